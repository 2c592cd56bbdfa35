"""The benchmark leaves nothing behind, however it ends, and refuses wrong flags before it measures."""

import pathlib
import signal
import subprocess
import sys

import psutil
import pytest

from experiments import benchmark
from experiments.benchmarking import cases as benchmark_cases
from experiments.benchmarking import turns as benchmark_turns
from experiments.command import command_line
from tests import processes
from tests.experiments import harness

# A measurement in a process of its own, as the benchmark starts it, with a program that never ends in place of Python.
# tests/quap_tff/runtime/workers_test.py says that the workers of a measurement end with it.
_MEASURING = """
import sys, types
from experiments.benchmarking import turns as benchmark_turns
benchmark_turns.sys = types.SimpleNamespace(executable=sys.argv[1])
benchmark_turns.Measurement('case', name='ceiling')
"""


def _main(*arguments):
  return command_line.status_of(benchmark.main, ['benchmark', *arguments])


def _program(folder, script):
  """A shell script in place of Python."""
  program = folder / 'program'
  program.write_text(f'#!/bin/sh\n{script}\n')
  program.chmod(0o755)
  return program


@pytest.mark.slow
@pytest.mark.parametrize(
  'signum',
  [signal.SIGKILL, *(pytest.param(one, marks=pytest.mark.thorough) for one in (signal.SIGTERM, signal.SIGINT))],
)
def test_no_process_outlives_it(signum, tmp_path):
  endless = _program(tmp_path, 'exec sleep 1000')
  process = subprocess.Popen(
    [sys.executable, '-c', _MEASURING, str(endless)],
    cwd=harness.REPOSITORY,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    encoding='utf-8',
  )
  processes.until(
    lambda: [child for child in psutil.Process(process.pid).children() if child.name() == 'sleep'], process
  )
  children = psutil.Process(process.pid).children(recursive=True)
  process.send_signal(signum)
  harness.finish(process)
  assert children and harness.gone(children)


@pytest.mark.parametrize(
  'arguments, said',
  [
    (['--clients=0'], 'clients'),
    (['--sections=growht'], "Did you mean 'growth'"),
    (['--csv=no/such/folder/x.csv'], 'x.csv'),
    (['stray'], "'stray'"),
  ],
)
def test_wrong_flags_are_refused_before_anything_is_measured(arguments, said, capsys, monkeypatch):
  monkeypatch.setattr(benchmark_turns, 'Measurement', None)
  assert _main(*arguments) == command_line.FAILED
  out, err = capsys.readouterr()
  assert not out and said in err and len(err.splitlines()) == 1


def test_a_device_that_is_not_there_is_found_out_first(monkeypatch, capsys):
  def measurement(name, **arguments):
    assert (name, arguments) == ('check', {'device': 'gpu'})
    raise ValueError('there is no GPU')

  monkeypatch.setattr(benchmark_turns, 'Measurement', measurement)
  assert _main('--device=gpu') == command_line.FAILED
  assert capsys.readouterr() == ('', 'Error: there is no GPU\n')


class _Measured:
  """Stands in for `benchmark_turns.Measurement`. The first round, which is not timed, takes 100 s.

  Attributes:
    turns: Who ran a round, in order.
    seconds: The seconds of the timed rounds of each case, by the arguments that tell it apart.
  """

  turns: list = []
  seconds: dict = {}
  key = staticmethod(lambda name, arguments: arguments.get('name', name))

  def __init__(self, name, /, **arguments):
    if name == 'check':
      self.labels = [{'kernels': 'oneDNN on, AVX2'}]
      return
    self.labels = [{}]
    self.peak_mib = 800.0 + arguments.get('clients', 0) / 10
    self._key = self.key(name, arguments)
    self._left = None

  def __enter__(self):
    return self

  def __exit__(self, *error):
    pass

  def age(self):
    return 107.0

  def run(self, index):
    assert index == 0
    if self._left is None:
      self._left = list(self.seconds[self._key])
      return 100.0, 99.0
    self.turns.append(self._key)
    seconds = self._left.pop(0)
    return seconds, seconds / 2


@pytest.fixture
def measured(monkeypatch):
  """A subclass of `_Measured` in place of the measurements."""
  monkeypatch.setattr(benchmark.kernels, 'starts_onednn', lambda: True)
  fake = type('Measured', (_Measured,), {'turns': [], 'seconds': {}})
  monkeypatch.setattr(benchmark_turns, 'Measurement', fake)
  return fake


def _table(path, sections, *arguments):
  """The rows of the CSV file that the benchmark writes, by case."""
  assert _main(f'--sections={sections}', f'--csv={path}', *arguments) == 0
  return {row['case']: row for row in harness.table(path)}


def test_cases_that_the_processor_emulates_are_left_out(tmp_path, measured, capsys, monkeypatch):
  monkeypatch.setattr(benchmark.kernels, 'emulates_bfloat16', lambda: True)
  names = ['tff_worker', 'tff_in_process', 'quap_float32', 'ceiling']
  measured.seconds = {name: [6.0, 3.0, 1.5] for name in names}
  rows = _table(tmp_path / 'cases.csv', 'cases')
  assert list(rows) == names and rows['ceiling']['of_ceiling'] == '1.0' and rows['ceiling']['of_ceiling_bfloat16'] == ''
  assert 'Without quap_bfloat16 and ceiling_bfloat16: this CPU has no bfloat16 instr' in capsys.readouterr().out
  measured.seconds.update({name: [1.0, 1.0, 1.0] for name in ('quap_bfloat16', 'ceiling_bfloat16')})
  assert 'quap_bfloat16' in _table(tmp_path / 'cases.csv', 'cases', '--device=gpu')


def test_the_worker_has_a_second_case_where_it_comes_without_onednn(tmp_path, measured, capsys, monkeypatch):
  monkeypatch.setattr(benchmark.kernels, 'emulates_bfloat16', lambda: True)
  monkeypatch.setattr(benchmark.kernels, 'starts_onednn', lambda: False)
  monkeypatch.setattr(benchmark.lazy, 'ONEDNN_BEFORE', None)
  names = ['tff_worker', 'tff_worker_onednn', 'tff_in_process', 'quap_float32', 'ceiling']
  measured.seconds = {name: [1.0, 1.0, 1.0] for name in names}
  assert list(_table(tmp_path / 'cases.csv', 'cases')) == names
  assert capsys.readouterr().out.splitlines()[0].endswith('oneDNN on, AVX2')


def test_cases_take_turns_and_each_figure_has_its_spread(tmp_path, measured, capsys, monkeypatch):
  monkeypatch.setattr(benchmark.kernels, 'emulates_bfloat16', lambda: False)
  names = ['tff_worker', 'tff_in_process', 'quap_float32', 'quap_bfloat16', 'ceiling', 'ceiling_bfloat16']
  measured.seconds = {name: [6.0, 3.0, 1.5] for name in names}
  measured.seconds['quap_float32'] = [3.0, 1.5, 1.0]
  rows = _table(tmp_path / 'cases.csv', 'cases')
  assert measured.turns == names + names[::-1] + names and list(rows) == names
  row = {name: value and float(value) for name, value in rows['quap_float32'].items() if name != 'case'}
  assert row == {
    'samples_per_second': 18_000 / 1.5,
    'seconds_per_round': 1.5,
    'peak_memory_mib': 803.0,
    'cpu_ms_per_client': '',
    'samples_per_second_spread': (18_000 - 6_000) / 2,
    'seconds_per_round_spread': 1.0,
    'peak_memory_mib_spread': '',
    'cpu_ms_per_client_spread': '',
    'start_seconds': 105.5,
    # The machine was six times as fast in the end, but the rounds of a turn differ by 1.5 to 2 times.
    **{f'of_{other}': 2.0 for other in ('tff_worker', 'ceiling', 'ceiling_bfloat16')},
    **{f'of_{other}_spread': 0.25 for other in ('tff_worker', 'ceiling', 'ceiling_bfloat16')},
  }
  said = capsys.readouterr()
  assert '1.5 ±1 ' in said.out and said.out.count('2 ±0.25') == 3
  assert '[0:00] cases: tff_worker, start and first round\n' in said.err
  assert '[0:00] cases: quap_float32, round 3 of 3\n' in said.err


def test_large_and_small_clients_go_to_the_table(tmp_path, measured, capsys):
  called = []

  def key(name, arguments):
    called.append(arguments.get('clients_per_call'))
    return name, arguments['clients'], arguments['examples']

  measured.key = staticmethod(key)
  measured.seconds = {('cohort', clients, 60): [clients / 10] * 3 for clients in (30, 1000)}
  measured.seconds.update({('small', 100, examples): [0.5] * 10 + [0.1] + [0.5] * 9 for examples in (0, 10, 60)})
  rows = _table(tmp_path / 'cases.csv', 'cohort,small')
  rules = ('', '_previous', '_fixed', '_private_quantile', '_certified')
  small = [f'small_{model}_{examples}' for model in ('logistic', 'cnn') for examples in (0, 10, 60)]
  small += ['small_logistic_0_singly', 'small_cnn_10_singly']
  assert list(rows) == small + [f'cohort_{n}{rule}' for rule in rules for n in (30, 1000)]
  assert called[:8] == [None] * 6 + [1] * 2
  assert rows['cohort_30']['seconds_per_round'] == '3.0' and rows['cohort_30']['samples_per_second'] == '600.0'
  assert rows['cohort_1000']['peak_memory_mib'] == '900.0'
  # CPU time is the least, as other programs only add to it.
  assert rows['small_cnn_10']['seconds_per_round'] == '0.5' and rows['small_cnn_10']['cpu_ms_per_client'] == '0.5'
  assert rows['small_cnn_10']['cpu_ms_per_client_spread'] == '0.0'
  said = capsys.readouterr()
  assert '1.121' in said.out  # 900 MiB of 803 MiB.
  # Only what begins a round is said of small clients: after the first, whose length tells, there is no long one.
  assert said.err.count('round 2 of 20') == 1


def test_the_start_is_repeated(tmp_path, measured, monkeypatch, capsys):
  starts = iter([(9.0, 600.0), (7.5, 610.0), (7.0, 590.0), (8.0, 600.0), (7.25, 600.0)])
  monkeypatch.setattr(benchmark, '_first_round', lambda: next(starts))
  row = _table(tmp_path / 'cases.csv', 'start')['first_round']
  assert row['seconds_per_round'] == '7.5' and row['peak_memory_mib'] == '600.0'
  assert row['seconds_per_round_spread'] == '0.6875' and 'digits: 7.5 ±0.69 s' in capsys.readouterr().out


def test_the_kinds_of_an_aggregation_are_compared(monkeypatch, capsys):
  class Kinds(_Measured):
    def __init__(self, name, /, **arguments):
      super().__init__(name, **arguments)
      if name == 'aggregation':
        self.labels = [{'kind': kind, 'weights': '1M'} for kind in ('QuAP', 'TFF adaptive clip')]

    def run(self, index):
      return (0.25, 0.5)[index], 0.0

  monkeypatch.setattr(benchmark_turns, 'Measurement', Kinds)
  assert _main('--sections=aggregation') == 0
  line = [line for line in capsys.readouterr().out.splitlines() if line.startswith('QuAP')]
  assert line[0].split() == ['QuAP', '1M', '250', '±0', '0.5', '±0']


def test_a_single_repetition_has_no_spread():
  assert benchmark_turns.figure([3.0]) == (3.0, None) and str(benchmark_turns.figure([3.0])) == '3'
  assert str(benchmark_turns.figure([3.0, 1.0, 2.5])) == '2.5 ±1'


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize('compute_dtype', ['float32', 'bfloat16'])
def test_the_bare_loop_trains_float32_weights_of_stock_layers_in_either_arithmetic(compute_dtype):
  worker = benchmark_cases._BareWorker('/CPU:0', 4, compute_dtype)
  start = [v.numpy() for v in worker.variables]
  x, y = benchmark_cases._random_examples(0, 6)
  worker.train(start, x, y)
  assert {v.dtype.name for v in worker.variables} == {'float32'}
  assert all((v.numpy() != w).any() for v, w in zip(worker.variables, start))


@pytest.mark.slow
@pytest.mark.thorough
def test_a_small_client_is_measured_and_between_runs_its_process_waits_for_a_line():
  arguments = dict(model='logistic_regression', examples=0, clients=2, batch_size=10)
  with benchmark_turns.Measurement('small', **arguments) as measurement:
    (label,) = measurement.labels
    seconds, cpu_seconds = measurement.run()
    assert label == {} and seconds > 0 and cpu_seconds > 0 and measurement.peak_mib > 100
    process = psutil.Process(measurement._process.pid)
    # It takes no processor time then: the kernel has it in a read of its standard input, and looks at nothing itself.
    call = pathlib.Path(f'/proc/{process.pid}/syscall')
    processes.until(lambda: call.read_text().split()[:2] == ['0', '0x0'], measurement._process)
  assert not process.is_running() and measurement.status() == 0


def _instead_of_python(monkeypatch, tmp_path, script):
  """Has the benchmark run a shell script in place of its measurements."""
  monkeypatch.setattr(benchmark_turns.sys, 'executable', str(_program(tmp_path, script)))
  monkeypatch.setattr(benchmark_turns.worker_processes, 'ending_with_this_one', lambda command: command)


@pytest.mark.parametrize('standard_error, status', [('echo round 1/60 >&2', 3), ('echo nothing >&2', 0)])
def test_a_first_round_that_fails_is_an_error(standard_error, status, tmp_path, monkeypatch):
  _instead_of_python(monkeypatch, tmp_path, f'{standard_error}\nexit {status}')
  with pytest.raises(ValueError, match=f'first round failed with status {status}'):
    benchmark._first_round()


@pytest.mark.parametrize(
  'answers, error',
  [
    ('echo \'"there is no GPU"\'; exit 1', 'there is no GPU'),
    ('exit 3', "The measurement 'case' failed with status 3."),
    ('echo [{}]; read line; kill -KILL $$', "The measurement 'case' failed with status -9."),
    ('echo [{}]; exit 3', "The measurement 'case' failed with status 3."),
  ],
)
def test_a_measurement_that_fails_gives_its_own_words(answers, error, tmp_path, monkeypatch):
  _instead_of_python(monkeypatch, tmp_path, answers)
  with pytest.raises(ValueError) as caught:
    with benchmark_turns.Measurement('case', name='ceiling') as measurement:
      measurement.run()
  assert str(caught.value) == error
