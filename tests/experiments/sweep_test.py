"""Sweeps: with runs that only pretend, and once with real ones on digits."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import types

import psutil
import pytest

from experiments import sweep
from experiments.command import command_line
from experiments.sweeps import children
from experiments.sweeps import scheduler
from experiments.sweeps import sweep_runs
from quap_tff.common.lazy import tf
from tests import processes
from tests.experiments import harness
from tests.experiments import pretended_run

_BASE = ('--dataset=digits', '--rounds=10')
_ALGORITHMS = 'algorithm=fedavg|fixed_dp:clip=1.0|quap'


class _Child:
  """A run that only pretends: it ends with `code` after `looks` looks at it, and finished if the code is 0."""

  def __init__(self, runs, run, code=0, looks=0):
    self._runs, self._run, self._code, self._looks = runs, run, code, looks
    self.was_ended = self.was_waited_for = False

  @property
  def exitcode(self):
    if self._looks:
      self._looks -= 1
      return None
    self._runs.at_work -= 1
    if not self._code:
      pretended_run.write(self._run, self._run.last_round)
    return self._code

  def terminate(self):
    self.was_ended = True

  def join(self):
    assert self.was_ended  # Else it would wait for a run's natural end.
    self.was_waited_for = True

  def error(self):
    return 'Error: it broke.'


class _Runs:
  """Starts runs that only pretend, and keeps which."""

  def __init__(self, **settings):
    self._settings = settings  # Of the children, by the run's name.
    self.started, self.children = [], []
    self.at_work = self.most_at_work = 0

  def __call__(self, run):
    self.started.append(run.name)
    self.at_work += 1
    self.most_at_work = max(self.most_at_work, self.at_work)
    self.children.append(_Child(self, run, **self._settings.get(run.name, {})))
    return self.children[-1]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
  monkeypatch.setattr(scheduler, '_SECONDS_BETWEEN_LOOKS', 0)


@pytest.fixture(name='folder')
def _folder(tmp_path):
  return tmp_path / 'sweep'


@pytest.fixture(name='call')
def _call(folder, capfd):
  """Calls the binary's main; returns how it ended and what it started."""

  def call(*arguments, base=_BASE, runs=None):
    runs = runs or _Runs()
    separator = ['--'] if base else []
    with harness.signal_handlers_kept():
      argv = ['sweep', f'--output_dir={folder}', *arguments, *separator, *base]
      status = command_line.status_of(lambda argv: sweep.main(argv, runs), argv)
    return harness.Finished(status, *capfd.readouterr()), runs

  return call


def _runs_in(folder, *axes, base=_BASE):
  """The runs of a grid by name."""
  [runs] = sweep_runs.runs_of(str(folder), base, [axes])
  return {run.name: run for run in runs}


class TestRuns:
  def test_all_are_run_once_and_kept(self, call, folder):
    ended, runs = call(f'--vary={_ALGORITHMS}', '--vary=seed=1|2')
    assert ended.status == 0
    assert runs.started == [
      'algorithm=fedavg,seed=1',
      'algorithm=fedavg,seed=2',
      'algorithm=fixed_dp-clip=1.0,seed=1',
      'algorithm=fixed_dp-clip=1.0,seed=2',
      'algorithm=quap,seed=1',
      'algorithm=quap,seed=2',
    ]
    assert runs.most_at_work == 1
    assert ended.summary['done'] == runs.started and ended.summary['runs'] == 6
    assert not ended.summary['failed'] and not ended.summary['left'] and not ended.summary['interrupted']
    kept = harness.strict_json((folder / 'sweep.json').read_text())
    assert kept['base'] == list(_BASE) and kept['grids'] == [[_ALGORITHMS, 'seed=1|2']]
    assert kept['flags']['rounds'] == 10

  def test_each_gets_its_flags_and_folder(self, folder):
    run = _runs_in(folder, 'algorithm=fixed_dp:clip=1.0')['algorithm=fixed_dp-clip=1.0']
    assert run.path == f'{folder}/algorithm=fixed_dp-clip=1.0'
    assert run.arguments == [*_BASE, '--algorithm=fixed_dp:clip=1.0', f'--output_dir={run.path}']
    assert run.last_round == 10 and run.identity['algorithm'] == 'fixed_dp:clip=1.0'

  def test_a_flag_without_effect_on_a_run_is_not_part_of_it(self, folder):
    found = _runs_in(folder, 'participation=uniform|extreme_imbalance', base=(*_BASE, '--cohort_size=5'))
    uniform, imbalance = found.values()
    assert '--cohort_size=5' in uniform.arguments and uniform.identity['cohort_size'] == 5
    # Its folder would not be known again otherwise.
    assert '--cohort_size=5' not in imbalance.arguments and imbalance.identity['cohort_size'] is None

  def test_finished_ones_are_skipped_and_begun_ones_come_first(self, call, folder):
    by_name = _runs_in(folder, 'seed=1|2|3')
    call('--vary=seed=1|2|3', runs=_Runs(**{f'seed={seed}': {'code': 1} for seed in (1, 2, 3)}))
    pretended_run.write(by_name['seed=1'], 10)
    pretended_run.write(by_name['seed=3'], 4, with_summary=False)
    ended, runs = call('--vary=seed=1|2|3')
    assert runs.started == ['seed=3', 'seed=2']
    assert ended.status == 0 and ended.summary['done'] == ['seed=1', 'seed=2', 'seed=3']
    assert '3 runs, 1 at a time: 1 done, 1 begun, 1 new; 2 left, at least 00:32' in ended.err

  def test_start_ups_are_counted_when_a_whole_run_has_shown_them(self, call, monkeypatch):
    sleeps = []  # Of half a minute each.
    fake = types.SimpleNamespace(monotonic=lambda: 30.0 * len(sleeps), sleep=sleeps.append)
    monkeypatch.setattr(scheduler, 'time', fake)
    ended, _ = call('--vary=seed=1|2|3', runs=_Runs(**{f'seed={seed}': {'looks': 1} for seed in (1, 2, 3)}))
    # Ten rounds of two seconds, and ten seconds before and after them.
    assert 'done seed=1: 10 rounds, test accuracy 50.00%; 2 left, about 01:00' in ended.err

  def test_a_second_call_has_nothing_to_do(self, call):
    call('--vary=seed=1|2')
    ended, runs = call('--vary=seed=1|2')
    assert ended.status == 0 and not runs.started and 'nothing left' in ended.err

  def test_a_failed_one_is_named_and_the_others_go_on(self, call, folder):
    ended, runs = call('--vary=seed=1|2|3', runs=_Runs(**{'seed=1': {'code': 1}}))
    assert ended.status == 1 and runs.started == ['seed=1', 'seed=2', 'seed=3']
    assert ended.summary['failed'] == {'seed=1': 'Error: it broke.'}
    assert ended.summary['done'] == ['seed=2', 'seed=3'] and not ended.summary['left']
    assert 'Failed: seed=1: Error: it broke.' in ended.out and f'{folder}/seed=1.log' in ended.out
    assert call('--vary=seed=1|2|3')[1].started == ['seed=1']

  def test_as_many_at_a_time_as_asked_for(self, call):
    runs = _Runs(**{f'seed={seed}': {'looks': 3} for seed in range(1, 6)})
    ended, _ = call('--vary=seed=1|2|3|4|5', '--parallel=2', runs=runs)
    assert ended.status == 0 and runs.most_at_work == 2 and len(runs.started) == 5

  @pytest.mark.parametrize(
    'base, parallel, threads',
    [
      (_BASE, 1, []),
      (_BASE, 3, ['--num_threads=2']),
      (_BASE, 100, ['--num_threads=1']),
      ((*_BASE, '--num_threads=5'), 3, ['--num_threads=5']),
    ],
  )
  def test_runs_at_one_time_share_the_cores(self, call, monkeypatch, base, parallel, threads):
    monkeypatch.setattr(os, 'sched_getaffinity', lambda _: set(range(6)))
    ended, _ = call('--vary=seed=1', f'--parallel={parallel}', '--dry_run', base=base)
    command = ended.out.splitlines()[1].split()
    assert [word for word in command if word.startswith('--num_threads')] == threads

  def test_interrupted(self, call, folder):
    runs = _Runs(**{'seed=2': {'looks': 10**9}, 'seed=3': {'looks': 10**9}})
    start = runs.__call__

    def start_and_interrupt(run):
      child = start(run)
      if run.name == 'seed=3':
        signal.raise_signal(signal.SIGTERM)
      return child

    ended, _ = call('--vary=seed=1|2|3|4', '--parallel=2', runs=start_and_interrupt)
    assert ended.status == 130 and runs.started == ['seed=1', 'seed=2', 'seed=3']
    assert [child.was_waited_for for child in runs.children] == [False, True, True]
    assert ended.summary['interrupted'] and ended.summary['done'] == ['seed=1']
    assert ended.summary['left'] == ['seed=2', 'seed=3', 'seed=4'] and not ended.summary['failed']
    assert f'To go on: python -m experiments.sweep --output_dir={folder} --parallel=2' in ended.out
    # That command, without grid and flags.
    ended, runs = call(base=())
    assert ended.status == 0 and sorted(runs.started) == ['seed=2', 'seed=3', 'seed=4']

  def test_children_end_when_the_sweep_breaks(self, call):
    runs = _Runs(**{'seed=1': {'looks': 10**9}})

    def start(run):
      if run.name == 'seed=2':
        raise RuntimeError('no memory')
      return runs(run)

    with pytest.raises(RuntimeError):
      call('--vary=seed=1|2', '--parallel=2', runs=start)
    assert runs.children[0].was_waited_for

  def test_a_process_goes_on_with_its_group_and_others_take_other_groups(self, call):
    runs = _Runs()
    ended, _ = call('--vary=seed=1|2|3', '--vary=algorithm=fedavg|quap', '--parallel=2', runs=runs)
    methods = [name.split(',')[0].partition('=')[2] for name in runs.started]
    assert ended.status == 0 and methods == 3 * ['fedavg', 'quap']

  def test_a_dry_run_lists_and_leaves_nothing(self, call, folder):
    ended, runs = call('--vary=seed=1|2', '--dry_run')
    assert ended.status == 0 and not runs.started and not folder.exists()
    assert 'seed=1 (new)' in ended.out and '-m experiments.train --dataset=digits --rounds=10 --seed=1' in ended.out
    assert ended.summary['left'] == ['seed=1', 'seed=2']


class TestSecondCall:
  def test_another_grid_adds_its_runs(self, call, folder):
    call('--vary=seed=1|2')
    ended, runs = call('--vary=seed=2|3', '--vary=algorithm=fedavg|quap')
    # --algorithm=quap is the default: with seed 2 that run is there, under its name.
    assert runs.started == ['algorithm=fedavg,seed=2', 'algorithm=fedavg,seed=3', 'algorithm=quap,seed=3']
    assert ended.summary['done'] == [
      'algorithm=fedavg,seed=2',
      'seed=2',
      'algorithm=fedavg,seed=3',
      'algorithm=quap,seed=3',
    ]
    ended, runs = call(base=())
    assert not runs.started and ended.summary['runs'] == 5

  def test_other_base_flags_are_refused(self, call, folder):
    call('--vary=seed=1')
    before = harness.files(folder)
    ended, runs = call('--vary=seed=2', base=('--dataset=digits', '--rounds=10', '--epsilon=3'))
    assert ended.status == 1 and not runs.started and harness.files(folder) == before
    assert '--epsilon: 6.0 there, 3.0 now' in ended.err and 'sweep with other base flags' in ended.err

  def test_base_flags_that_change_no_result_may_change_and_it_is_said(self, call):
    call('--vary=seed=1')
    ended, runs = call('--vary=seed=1|2', base=(*_BASE, '--stop_after=5'))
    assert ended.status == 0 and runs.started == ['seed=2']
    assert '--stop_after: None there, 5 now' in ended.err

  def test_a_folder_at_work_is_refused(self, call, folder):
    with sweep_runs.held(str(folder), sweep_runs.extended(str(folder), _BASE, [['seed=1']])):
      ended, runs = call('--vary=seed=1')
    assert ended.status == 1 and not runs.started and 'Another sweep is running in' in ended.err
    assert call('--vary=seed=1')[0].status == 0


class TestWrongInput:
  @pytest.mark.parametrize(
    'arguments, base, message',
    [
      (['--vary=algoritm=quap'], _BASE, "Unknown flag 'algoritm'. Did you mean 'algorithm'"),
      (['--vary=seed=1'], ('--sead=1',), 'sead'),
      (['--vary=seed=1'], ('--dataset=digits', 'rounds=5'), "Unexpected argument 'rounds=5'"),
      (['--vary=seed=1'], ('--rounds=many',), 'many'),
      (['--vary=seed=1'], ('--flagfile=nowhere.flags',), 'nowhere.flags'),
      (['--vary=seed=1'], ('--output_dir=elsewhere',), '--output_dir belongs to the sweep'),
      ([], _BASE, 'The grid is empty'),
      (['--vary=seed=1|two'], _BASE, 'two'),
      (['--vary=algorithm=quap|qap'], _BASE, "--algorithm: Unknown algorithm 'qap'. Did you mean 'quap'"),
      (['--vary=batch_size=4|0'], _BASE, 'batch_size must be an integer at least 1'),
      (['--vary=partition=dirichlet:alpha=0'], _BASE, 'alpha'),
      (['--vary=server_optimizer=sgdd'], _BASE, 'server optimizer'),
      (['--vary=dataset=mnits'], _BASE, "Did you mean 'mnist'"),
      (['--vary=epsilon=3|6|3.0'], _BASE, 'the same run: --epsilon=3 and --epsilon=3.0'),
      (['--vary=data_dir=/a/x|/b/x'], _BASE, "the same folder 'data_dir=x'"),
      ([f'--vary=critical_layers={"dense," * 50}dense'], _BASE, 'longer than 255 bytes'),
      (['--vary=seed=1', '--rounds=5'], _BASE, 'is a flag of the runs: put it after a lone --'),
      (['--vary=seed=1'], ('--dry_run',), '--dry_run is a flag of the sweep: put it before the lone --'),
      (['--vary=seed=1', '--paralel=5'], _BASE, 'parallel'),
      (['--vary=seed=1', '--parallel=0'], _BASE, 'parallel'),
      (['--vary=seed=1', 'seed=2'], _BASE, "Unexpected argument 'seed=2'"),
    ],
  )
  def test_is_named_before_anything_starts(self, call, folder, arguments, base, message):
    ended, runs = call(*arguments, base=base)
    assert ended.status == 1 and not runs.started and not folder.exists()
    assert ended.err.startswith('Error: ') and message in ended.err and not ended.out

  def test_output_dir_is_needed(self, capfd):
    with harness.signal_handlers_kept():
      assert command_line.status_of(sweep.main, ['sweep', '--vary=seed=1']) == 1
    assert '--output_dir is missing' in capfd.readouterr().err

  @pytest.mark.parametrize(
    'name, content',
    [
      ('thesis.tex', '…'),
      ('sweep.json', ''),
      ('sweep.json', '{'),
      ('sweep.json', '[]'),
      ('sweep.json', '{"base": 3, "identity": {}, "flags": {}, "grids": []}'),
      ('sweep.json', '{"base": []}'),
      ('sweep.json', '{"base": [], "identity": {}, "flags": {}, "grids": 4}'),
      ('sweep.json', '{"base": [], "identity": {}, "flags": {}, "grids": [[3]]}'),
      ('sweep.json', '{"base": [1], "identity": {}, "flags": {}, "grids": []}'),
      ('sweep.json', '{"base": [], "identity": 1, "flags": {}, "grids": []}'),
    ],
  )
  def test_a_folder_without_a_readable_record_is_named_and_left_alone(self, name, content, call, folder):
    folder.mkdir()
    (folder / name).write_text(content)
    before = harness.files(folder)
    ended, runs = call('--vary=seed=1')
    assert ended.status == 1 and 'no readable sweep.json' in ended.err and not runs.started
    assert harness.files(folder) == before

  def test_a_runs_folder_with_another_run_in_it_is_named(self, call, folder):
    call('--vary=seed=1')
    run = _runs_in(folder, 'seed=1')['seed=1']
    pretended_run.write(run._replace(identity={**run.identity, 'rounds': 7}), 7)
    ended, runs = call('--vary=seed=1')
    assert ended.status == 1 and not runs.started
    assert '--seed=1: output_dir' in ended.err and '--rounds: 7 there, 10 now' in ended.err


class TestStanding:
  @pytest.fixture(name='run')
  def _run(self, folder):
    return _runs_in(folder, 'seed=1')['seed=1']

  @pytest.mark.parametrize(
    'rounds, written, changes, expected',
    [
      (4, dict(seconds=1.5, with_summary=False), {}, (4, False, 1.5, None)),
      (4, dict(interrupted=True), {}, (4, False, 2.0, None)),
      # It was interrupted after a test outside the schedule that would have stopped it.
      (4, dict(interrupted=True, accuracy=0.9), dict(stop_at_accuracy=0.9), (4, False, 2.0, None)),
      (10, dict(accuracy=0.75), {}, (10, True, 2.0, 0.75)),
      # It ended earlier than it is to end now.
      (4, {}, {}, (4, False, 2.0, None)),
      (4, {}, dict(last_round=4), (4, True, 2.0, 0.5)),
      (4, dict(accuracy=0.9), dict(stop_at_accuracy=0.9), (4, True, 2.0, 0.9)),
      (4, dict(accuracy=0.9), dict(stop_at_accuracy=0.95), (4, False, 2.0, None)),
    ],
  )
  def test_of_a_run_that_has_begun(self, run, rounds, written, changes, expected):
    assert scheduler.standing(run) == scheduler.RunStanding(0, False, None, None)
    pretended_run.write(run, rounds, **written)
    assert scheduler.standing(run._replace(**changes)) == scheduler.RunStanding(*expected)

  @pytest.mark.parametrize('name', ['metrics.csv', 'summary.json'])
  @pytest.mark.parametrize('text', ['', 'round,seconds\n1', '{', '[]', '{"rounds": 10}', 'round,seconds\nx,y\n'])
  def test_damaged_files_count_as_none(self, run, name, text):
    pretended_run.write(run, 10)
    with open(os.path.join(run.path, name), 'w') as f:
      f.write(text)
    found = scheduler.standing(run)
    assert found.finished == (name == 'metrics.csv')
    assert found.rounds in (10, 1, 0)

  def test_time_left(self, folder):
    runs = list(_runs_in(folder, 'seed=1|2|3|4').values())
    new = scheduler.RunStanding(0, False, None, None)
    standings = {run.name: new for run in runs}
    assert scheduler.seconds_left(runs, standings, 1) is None
    standings['seed=1'] = scheduler.RunStanding(10, True, 1.0, 0.5)
    standings['seed=2'] = scheduler.RunStanding(4, False, 3.0, None)
    # Six rounds of 3 s; the other two ten rounds each of the mean, 2 s.
    assert scheduler.seconds_left(runs, standings, 1) == 6 * 3 + 2 * 10 * 2
    assert scheduler.seconds_left(runs, standings, 2) == 6 * 3 + 10 * 2
    assert scheduler.seconds_left(runs, standings, 3) == 10 * 2
    # A run that has logged a round and is at work has started up; the others have not.
    assert scheduler.seconds_left(runs, standings, 1, 5.0) == 6 * 3 + 2 * 10 * 2 + 3 * 5
    assert scheduler.seconds_left(runs, standings, 1, 5.0, [run.name for run in runs]) == 6 * 3 + 2 * 10 * 2 + 2 * 5


# A program whose runs only execute a line of Python. Tests must not fork their own process, which has used TensorFlow.
_PRETENDING = """
import json, os, secrets, signal, sys, tempfile, time, types
from experiments.command import command_line
from experiments.sweeps import children

children._LOADED = ()


def main(argv):
  try:
    exec(argv[1])
  except SystemExit as ended:
    return int(ended.code or 0)
  return 0


children.train = types.SimpleNamespace(main=main)


def ended(code, log):
  child = children.Child(children.Process(), [code], log)
  child.join()
  child.process.end()
  child.process.join()
  return child


"""


# Programs of the children's tests, by name. All run in one process, each in a folder of its own and with a `log`.
_WAITS = 'signal.pause()'
_FAILED_FOR = {
  'its last line': ('print("Error: no data"); print("{}"); sys.exit(1)', 'Error: no data'),
  'an error of input': ('raise ValueError("no file")', 'Error: no file'),
  'an error of ours': ('print("round 1"); raise RuntimeError("a bug")', 'RuntimeError: a bug'),
  'no error': ('print("round 1"); sys.exit(1)', 'round 1'),
  'nothing': ('sys.exit(1)', 'it printed nothing'),
  'a kill': ('print("Error: of memory", flush=True); os.kill(os.getpid(), 9)', 'ended by SIGKILL; Error: of memory'),
  'an interrupt': ('print("{}"); sys.exit(130)', 'interrupted, but not by the sweep'),
}
_PROGRAMS = {
  **{
    name: f"""
      ended('print("Error: of an earlier attempt")', log)
      child = ended({code!r}, log)
      answer = [child.exitcode not in (None, 0), child.error()]
    """
    for name, (code, _) in _FAILED_FOR.items()
  },
  'after one that was killed': """
      answer = [ended(code, log).exitcode for code in ('os.kill(os.getpid(), 11)', 'print(1)', 'sys.exit(3)')]
    """,
  'runs of a group': """
      processes, ids, codes = children.Processes(), [], []
      for group, code in zip('aaaab', ('sys.exit(3)', 'raise KeyError', 'os.kill(os.getpid(), 11)', 'print(1)', '0')):
        child = processes.start(group, [code], log)
        child.join()
        ids.append(child.process.pid)
        codes.append(child.exitcode)
      processes.close()
      answer = [[ids.index(one) for one in ids], codes, [child.process.is_alive()]]
    """,
  'runs of other groups': """
      processes = children.Processes()
      first = processes.start('a', ['print(1)'], log)
      first.join()
      second = processes.start('b', ['print(1)'], log)
      first.process.join()
      second.join()
      processes.close()
      answer = [first.process.exitcode, second.exitcode, first.process.pid != second.process.pid]
    """,
  'a session of its own': 'answer = ended("sys.exit(os.getsid(0) == os.getpid())", log).exitcode',
  # It says that it is up in a pipe, for which the program waits.
  'asked to end': f"""
      os.mkfifo(log + '.up')
      code = f'signal.signal(15, lambda *_: exit(7)); open({{log + ".up"!r}}, "w").close(); {_WAITS}'
      child = children.Child(children.Process(), [code], log)
      open(log + '.up').read()
      child.terminate()
      child.join()
      answer = child.exitcode
    """,
  'asked to end before it has begun': f"""
      child = children.Child(children.Process(), [{_WAITS!r}], log)
      child.terminate()
      child.join()
      answer = child.exitcode
    """,
  'temporary files': """
      command_line.use_own_temporary_folder()
      ended('print(tempfile.mkdtemp(), flush=True)', log)
      its = open(log).read().strip()
      own = tempfile.gettempdir()
      answer = [os.path.exists(its), its.startswith(own), os.path.exists(own)]
    """,
}


def _start(program, *arguments):
  """Starts a program that has runs which only pretend."""
  return subprocess.Popen(
    [sys.executable, '-c', _PRETENDING + textwrap.dedent(program), *map(str, arguments)],
    cwd=harness.REPOSITORY,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


@pytest.fixture(scope='module', name='found')
def _found(tmp_path_factory):
  """What each of the programs answers."""
  folder = tmp_path_factory.mktemp('logs')
  parts = []
  for number, program in enumerate(_PROGRAMS.values()):
    parts.append(f'log = {str(folder / str(number))!r}\n{textwrap.dedent(program)}\nprint(json.dumps(answer))\n')
  ended = harness.finish(_start(''.join(parts)))
  answers = [json.loads(line) for line in ended.out.splitlines()]
  assert len(answers) == len(_PROGRAMS), ended.err
  return dict(zip(_PROGRAMS, answers))


def test_a_process_whose_log_cannot_be_opened_ends(tmp_path, monkeypatch):
  ended = []
  monkeypatch.setattr(children, 'Process', lambda: types.SimpleNamespace(end=lambda: ended.append(True)))
  with pytest.raises(FileNotFoundError):
    children.Processes().start('group', [], str(tmp_path / 'missing' / 'run.log'))
  assert ended == [True]


@pytest.mark.slow
class TestChild:
  @pytest.mark.parametrize('name', _FAILED_FOR)
  def test_says_why_it_failed(self, found, name):
    assert found[name] == [True, _FAILED_FOR[name][1]]

  def test_the_next_one_starts_after_one_that_was_killed(self, found):
    assert found['after one that was killed'] == [-11, 0, 3]

  def test_a_process_takes_the_runs_of_its_group_while_it_lives(self, found):
    assert found['runs of a group'] == [[0, 0, 0, 3, 4], [3, 1, -11, 0, 0], [False]]

  def test_other_groups_end_a_process_that_has_no_run(self, found):
    assert found['runs of other groups'] == [0, 0, True]

  def test_does_not_get_the_terminals_ctrl_c(self, found):
    assert found['a session of its own'] == 1

  def test_is_asked_to_end(self, found):
    assert found['asked to end'] == 7

  def test_is_asked_to_end_before_it_has_begun(self, found):
    assert found['asked to end before it has begun'] == 130

  def test_only_its_own_temporary_files_go_with_it(self, found):
    assert found['temporary files'] == [False, True, True]

  @pytest.mark.thorough
  def test_tensorflow_is_loaded_and_has_done_nothing(self, tmp_path):
    """Then no thread and no generator of random numbers of TensorFlow is forked."""
    program = """
        children._LOADED = ('experiments.running.results', 'experiments.running.plots')
        code = 'import tensorflow as tf; print(tf.random.normal([4]).numpy().tolist(), secrets.randbits(63))'
        for log in '12':
          ended(code, sys.argv[1] + log)
        from tensorflow.python.eager import context
        texts = [open(sys.argv[1] + log).read() for log in '12']
        print(json.dumps([context.context()._initialized, texts[0] == texts[1], all('[' in text for text in texts)]))
    """
    assert json.loads(harness.finish(_start(program, tmp_path / 'log')).out) == [False, False, True]

  def test_does_not_outlive_the_sweep(self):
    program = f"""
        child = children.Child(children.Process(), [{_WAITS!r}], '/dev/null')
        print(child.process.pid, flush=True)
        {_WAITS}
    """
    parent = _start(program)
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    processes.finish(parent)
    assert harness.gone([child])


@pytest.mark.slow
def test_real_runs_compute_what_they_compute_alone_and_are_cut_off_with_the_sweep(tmp_path):
  """One run has come to its end before, one does so now, and one of many rounds is cut off."""
  folder, grid, (done, whole, cut) = tmp_path / 'runs', 'rounds=4|8|3000', ('rounds=4', 'rounds=8', 'rounds=3000')
  base = [*harness.TINY, '--algorithm=fixed_dp', '--noise_seed=3', '--noclient_metrics']
  assert harness.main(*base, '--rounds=8', f'--output_dir={tmp_path / "alone"}') == 0
  folder.mkdir()
  pretended_run.write(_runs_in(folder, grid, base=base)[done], 4)
  record = sweep_runs.extended(str(tmp_path / 'new'), base, [[grid]])
  with sweep_runs.held(str(folder), record):
    pass
  command = [sys.executable, '-m', 'experiments.sweep', f'--output_dir={folder}', f'--vary={grid}', '--', *base]
  with open(tmp_path / 'progress', 'w+') as progress:
    process = subprocess.Popen(
      command, cwd=harness.REPOSITORY, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=progress, text=True
    )
    processes.until(lambda: len(harness.rows(folder / cut)) > 1, process)
    at_work = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    ended = harness.finish(process)
    progress.seek(0)
    said = progress.read()
  assert 'Traceback' not in ended.out + said and '1 done, 0 begun, 2 new' in said
  assert ended.status == 130 and at_work and harness.gone(at_work)
  assert ended.summary['done'] == [done, whole] and ended.summary['left'] == [cut] and not ended.summary['failed']
  kept = json.loads((folder / cut / 'summary.json').read_text())
  assert kept['interrupted'] and kept['rounds'] == len(harness.rows(folder / cut))
  assert 'Interrupted after' in (folder / f'{cut}.log').read_text()
  assert harness.rows(folder / whole) and harness.rows(folder / whole) == harness.rows(tmp_path / 'alone')
  models = [tf.keras.models.load_model(path / 'final_model.keras') for path in (tmp_path / 'alone', folder / whole)]
  alone, swept = ([weights.tobytes() for weights in model.get_weights()] for model in models)
  assert alone == swept


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.usefixtures('drawn')
def test_a_run_leaves_the_same_files_whatever_its_process_ran_before(tmp_path):
  """A process has the runs of one method; the second of them is compared with the same run alone."""
  folder, alone = tmp_path / 'runs', tmp_path / 'alone'
  algorithms = ('fixed_dp', 'certified:certificate=false', 'tff_dp_ftrl:clip=1')
  base = [*harness.TINY, '--noise_seed=3', '--noclient_metrics']
  grid = [f'--vary=algorithm={"|".join(algorithms)}', '--vary=seed=1|3']
  command = [sys.executable, '-m', 'experiments.sweep', f'--output_dir={folder}', *grid, '--', *base]
  done = processes.run(command, cwd=harness.REPOSITORY)
  assert done.returncode == 0 and len(harness.last_line(done.stdout)['done']) == 2 * len(algorithms), done.stderr
  for name, run in _runs_in(folder, *(axis.partition('=')[2] for axis in grid), base=base).items():
    if 'seed=3' not in name:
      continue
    arguments = [one for one in run.arguments if 'output_dir' not in one]
    assert harness.main(*arguments, f'--output_dir={alone / name}') == 0
    swept, expected = ({one.name: one for one in where.iterdir()} for where in (folder / name, alone / name))
    assert swept.keys() == expected.keys()
    differ = {one for one in swept if swept[one].is_file() and swept[one].read_bytes() != expected[one].read_bytes()}
    assert differ <= {'run.json', 'summary.json'}, name
    for file in ('run.json', 'summary.json'):
      swept_values, values = (json.loads(files_[file].read_text()) for files_ in (swept, expected))
      for one in (swept_values, values):
        one.get('resolved', {}).pop('data_commitment', None)  # It has a secret of the run in it.
      assert {key for key in values if values[key] != swept_values[key]} <= {'output_dir', 'flags'}, (name, file)
    assert (folder / f'{name}.log').read_text().count('Done: 8 of 8') == 1
