"""The training loop: however a run is cut off, it ends as the uninterrupted one, bit for bit."""

import contextlib
import dataclasses
import shutil
import signal

import numpy as np
import pytest

from experiments.command import interrupts
from experiments.command import run as run_lib
from experiments.folders import directory as run_directory
from experiments.folders import folder as run_folder
from experiments.running import loop
from quap_tff import runtime
from tests.experiments import harness

pytestmark = pytest.mark.slow

# Whatever has a state that a checkpoint must keep: momentum at the server, EMA rates, decay, an averaged clip.
FLAGS = (
  *harness.TINY,
  '--participation=beta:a=2,b=5',
  '--server_optimizer=sgd:learning_rate=1.0,momentum=0.5',
  '--client_learning_rate_decay=0.9',
  '--participation_rate=ema',
  '--warmup_rounds=2',
  '--clip=quantile_ema',
  '--checkpoint_every=3',
  '--eval_every=2',
)


class Killed(BaseException):
  """Ends a run as SIGKILL does: nothing of ours runs after it."""


@pytest.fixture(scope='module')
def active():
  """One experiment and its process for all tests here, the runtime active: to trace it takes longest."""
  experiment = harness.experiment(*FLAGS)
  with runtime.activate(experiment.runtime):
    yield experiment, experiment.build_process(), experiment.run.identity()


@contextlib.contextmanager
def _directory(path, identity):
  directory = run_directory.RunDirectory(str(path), identity, identity, {'num_clients': 8}, b'data')
  with contextlib.closing(directory):
    yield directory


class _Process:
  """The process from one given state, with `before` and `after` called around round n of this process's life."""

  def __init__(self, process, state, before=lambda n: None, after=lambda n: None):
    self._process, self._state, self._before, self._after, self._calls = process, state, before, after, 0

  def __getattr__(self, name):
    return getattr(self._process, name)

  def initialize(self):
    return self._state

  def next(self, state, data):
    self._calls += 1
    self._before(self._calls)
    output = self._process.next(state, data)
    self._after(self._calls)
    return output


def _observed(built, *arguments):
  return dataclasses.replace(built, process=_Process(built.process, *arguments))


def _raises(error, at):
  def action(n):
    if n == at:
      raise error

  return action


def _weights_equal(one, other):
  leaves = [(np.asarray(a), np.asarray(b)) for a, b in zip(one.trainable, other.trainable)]
  return all(a.tobytes() == b.tobytes() for a, b in leaves)


@pytest.fixture(scope='module')
def first_state(active):
  """The state before round 1, which holds the seed of the noise: the runs to compare must start from one."""
  return active[1].process.initialize()


@pytest.fixture(scope='module')
def uninterrupted(active, first_state, tmp_path_factory):
  experiment, built, identity = active
  path = tmp_path_factory.mktemp('runs') / 'uninterrupted'
  with _directory(path, identity) as directory:
    result = loop.train(experiment, _observed(built, first_state), directory)
  return result, harness.rows(path)


@pytest.fixture
def run(active, first_state, tmp_path):
  """Runs in one folder, each time from where the last run ended."""
  experiment, built, identity = active

  def run(
    before=lambda n: None, after=lambda n: None, folder=tmp_path / 'run', log=None, save=None, callbacks=(), **flags
  ):
    with _directory(folder, identity) as directory:
      if log is not None:
        directory.log = log(directory.log)
      if save is not None:
        write = directory.store.write
        saved = save(lambda round_num, arrays: write(arrays))
        directory.store.write = lambda arrays: saved(int(arrays['done']), arrays)
      observed = _observed(built, first_state, before, after)
      own = run_lib.Run.from_flags({**experiment.run.flags, **flags})
      return loop.train(dataclasses.replace(experiment, run=own), observed, directory, callbacks)

  run.folder = tmp_path / 'run'
  return run


def _same(result, folder, uninterrupted):
  expected, rows = uninterrupted
  assert _weights_equal(result.weights, expected.weights)
  assert harness.rows(folder) == rows
  assert result.round_num == 8 and not result.interrupted
  assert result.test == expected.test
  assert result.ledger.epsilon.tolist() == expected.ledger.epsilon.tolist()
  assert result.ledger.rounds.tolist() == expected.ledger.rounds.tolist()


class TestUninterrupted:
  def test_one_row_a_round_and_a_test_every_other(self, uninterrupted):
    result, rows = uninterrupted
    assert [row['round'] for row in rows] == [str(t) for t in range(1, 9)]
    assert [row['test_accuracy'] != '' for row in rows] == [False, True] * 4
    assert all(row['cohort_size'] == '3' for row in rows)
    assert float(rows[-1]['test_accuracy']) == result.test['accuracy']
    assert float(rows[-1]['nominal_epsilon_max']) == result.ledger.epsilon.max()
    assert result.rounds_run == 8

  def test_weights_moved_and_are_finite(self, uninterrupted, active, first_state):
    result, _ = uninterrupted
    before = active[1].process.get_model_weights(first_state)
    assert not _weights_equal(result.weights, before)
    assert all(np.isfinite(w).all() for w in result.weights.trainable)

  def test_without_a_folder_the_same_comes_out(self, uninterrupted, active, first_state):
    experiment, built, _ = active
    result = loop.train(experiment, _observed(built, first_state))
    assert _weights_equal(result.weights, uninterrupted[0].weights)

  def test_without_progress_an_interrupt_is_answered_all_the_same(self, run, active, capsys):
    assert run(before=_raises(KeyboardInterrupt(), 3)).interrupted
    assert capsys.readouterr() == (
      '',
      f'\nInterrupted after round 2: saving the run in {run.folder}, and the same command continues it.\n',
    )
    result = loop.train(
      active[0], _observed(active[1], active[1].process.initialize(), _raises(KeyboardInterrupt(), 1))
    )
    said = 'Interrupted before a round was run: without --output_dir nothing is kept.'
    assert result.interrupted and said in capsys.readouterr().err

  def test_no_progress_no_output(self, run, capsys):
    run(progress='none')
    assert capsys.readouterr() == ('', '')


class TestInterrupted:
  @pytest.mark.parametrize('when, at', [('before', 1), ('after', 4), ('before', 8)])
  def test_at_a_round_it_keeps_the_rounds_before(self, at, when, run, uninterrupted):
    result = run(**{when: _raises(KeyboardInterrupt, at)})
    assert result.interrupted and result.round_num == result.rounds_run == at - 1
    resumed = run()
    assert resumed.rounds_run == 8 - (at - 1)
    _same(resumed, run.folder, uninterrupted)

  def test_a_signal_that_became_another_error_interrupts_all_the_same(self, run, uninterrupted):
    def became(*_):
      try:
        signal.raise_signal(signal.SIGTERM)
      except KeyboardInterrupt:
        raise AttributeError('As TensorFlow goes on after a function of ours has raised in it.') from None

    with harness.signal_handlers_kept():
      interrupts.install()
      result = run(before=lambda round_num: became() if round_num == 3 else None)
    assert result.interrupted and result.round_num == 2
    _same(run(), run.folder, uninterrupted)

  def test_again_and_again(self, run, uninterrupted):
    for _ in range(3):
      run(before=_raises(KeyboardInterrupt, 3))
    _same(run(), run.folder, uninterrupted)

  @pytest.mark.parametrize(
    'moment, name, signum',
    [
      ('before', 'log', signal.SIGINT),
      ('after', 'log', signal.SIGTERM),
      ('before', 'save', signal.SIGINT),
      ('after', 'save', signal.SIGTERM),
    ],
  )
  def test_a_signal_while_a_round_is_put_down_waits(self, moment, name, signum, run, uninterrupted):
    def signalled(method):
      def replacement(round_num, *arguments):
        if round_num == 3 and moment == 'before':
          signal.raise_signal(signum)
        method(round_num, *arguments)
        if round_num == 3 and moment == 'after':
          signal.raise_signal(signum)

      return replacement

    with harness.signal_handlers_kept():
      interrupts.install()
      result = run(**{name: signalled})
    assert result.interrupted and result.round_num == 3
    assert len(harness.rows(run.folder)) == 3
    _same(run(), run.folder, uninterrupted)

  def test_a_signal_in_the_last_round_interrupts_nothing(self, run, uninterrupted):
    with harness.signal_handlers_kept():
      interrupts.install()
      result = run(log=lambda log: lambda t, row: (log(t, row), signal.raise_signal(signal.SIGINT) if t == 8 else 0))
    _same(result, run.folder, uninterrupted)


class TestKilled:
  @pytest.mark.parametrize('at', [1, 3, 6])
  def test_in_a_round_it_goes_on_from_the_last_checkpoint(self, at, run, uninterrupted):
    with pytest.raises(Killed):
      run(after=_raises(Killed, at))
    assert len(harness.rows(run.folder)) == at - 1
    resumed = run()
    assert resumed.rounds_run == 8 - (at - 1) // 3 * 3
    _same(resumed, run.folder, uninterrupted)

  @pytest.mark.parametrize('name, at', [('log', 3), ('log', 5), ('save', 3)])
  def test_between_model_log_and_checkpoint(self, name, at, run, uninterrupted):
    def killed(method):
      return lambda t, *arguments: _raises(Killed, at)(t) or method(t, *arguments)

    with pytest.raises(Killed):
      run(**{name: killed})
    _same(run(), run.folder, uninterrupted)

  def test_before_the_first_checkpoint(self, run, uninterrupted):
    def killed(save):
      return lambda t, *arguments: _raises(Killed, 0)(t)

    with pytest.raises(Killed):
      run(save=killed)
    _same(run(), run.folder, uninterrupted)

  def test_while_a_checkpoint_is_written(self, run, uninterrupted):
    run(before=_raises(KeyboardInterrupt, 5))
    (run.folder / 'checkpoints' / 'state.part').write_bytes(b'half')
    (run.folder / 'metrics.csv.part').write_text('round,epsi')
    _same(run(), run.folder, uninterrupted)
    assert not list(run.folder.rglob('*.part'))

  def test_no_state_but_the_latest_is_kept(self, run):
    run()
    assert sorted(path.name for path in (run.folder / 'checkpoints').iterdir()) == ['secret', 'state']


class TestPutBack:
  def test_an_older_state_is_refused_and_the_latest_goes_on(self, run, uninterrupted):
    run(before=_raises(KeyboardInterrupt, 4))
    state = run.folder / 'checkpoints' / 'state'
    older = state.read_bytes()
    run(before=_raises(KeyboardInterrupt, 3))
    latest = state.read_bytes()
    state.write_bytes(older)
    with pytest.raises(run_folder.RunDirectoryError, match='not the latest copy.* Put the latest one back'):
      run()
    state.write_bytes(latest)
    _same(run(), run.folder, uninterrupted)

  def test_a_run_that_was_removed_with_all_that_it_left_begins_anew(self, run, uninterrupted):
    run(before=_raises(KeyboardInterrupt, 4))
    shutil.rmtree(run.folder)
    _same(run(), run.folder, uninterrupted)


class TestStopAtAccuracy:
  def test_stops_at_the_first_test_that_reaches_it(self, run, uninterrupted):
    tests = [(int(row['round']), float(row['test_accuracy'])) for row in uninterrupted[1] if row['test_accuracy']]
    bar = sorted(accuracy for _, accuracy in tests)[-2]
    first = next(t for t, accuracy in tests if accuracy >= bar)
    result = run(stop_at_accuracy=bar)
    assert result.round_num == first and not result.interrupted
    again = run(stop_at_accuracy=bar)
    assert again.round_num == first and again.rounds_run == 0

  def test_a_test_beside_the_schedule_does_not_stop_a_resumed_run(self, run):
    run(before=_raises(KeyboardInterrupt, 2))
    # Round 1 is tested on resume, and reaches this; the uninterrupted run is tested in round 2.
    assert run(stop_at_accuracy=1e-9).round_num == 2


class TestCallbacks:
  def test_are_called_after_each_round_with_what_was_kept(self, run):
    seen = []
    run(callbacks=[lambda round_num, metrics, state: seen.append((round_num, metrics['cohort_size'], state))])
    rows = harness.rows(run.folder)
    assert [(n, size) for n, size, _ in seen] == [(int(row['round']), int(float(row['cohort_size']))) for row in rows]
    assert all(hasattr(state, 'global_model_weights') for _, _, state in seen)

  def test_an_error_in_one_ends_the_run_and_the_round_is_kept(self, run):
    def fail(round_num, metrics, state):
      if round_num == 2:
        raise RuntimeError('tracker')

    with pytest.raises(RuntimeError, match='tracker'):
      run(callbacks=[fail])
    assert len(harness.rows(run.folder)) == 2
