"""The benchmark leaves nothing behind, however it ends, and refuses wrong flags before it measures."""

import csv
import signal
import subprocess
import sys

import psutil
import pytest

from experiments import benchmark
from experiments import benchmark_cases
from experiments import command_line
from tests.experiments import harness

# A measurement in a process of its own, as the benchmark starts it, with a program that never ends in place of Python.
# tests/quap_tff/runtime/workers_test.py says that the workers of a measurement end with it.
_MEASURING = """
import sys, types
from experiments import benchmark
benchmark.sys = types.SimpleNamespace(executable=sys.argv[1])
benchmark._measure('case', name='ceiling')
"""


@pytest.mark.slow
@pytest.mark.parametrize('signum', [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_it(signum, tmp_path):
  endless = tmp_path / 'endless'
  endless.write_text('#!/bin/sh\nexec sleep 1000\n')
  endless.chmod(0o755)
  process = subprocess.Popen(
    [sys.executable, '-c', _MEASURING, str(endless)],
    cwd=harness.REPOSITORY,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    encoding='utf-8',
  )
  harness.wait_for(
    lambda: [child for child in psutil.Process(process.pid).children() if child.name() == 'sleep'], process
  )
  children = psutil.Process(process.pid).children(recursive=True)
  process.send_signal(signum)
  harness.finish(process)
  assert children and not psutil.wait_procs(children, timeout=30)[1]


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
  monkeypatch.setattr(benchmark, '_measure', None)
  assert command_line.status_of(benchmark.main, ['benchmark', *arguments]) == command_line.FAILED
  out, err = capsys.readouterr()
  assert not out and said in err and len(err.splitlines()) == 1


def test_a_device_that_is_not_there_is_found_out_first(monkeypatch, capsys):
  def measure(function, **arguments):
    assert (function, arguments) == ('check', {'device': 'gpu'})
    raise ValueError('there is no GPU')

  monkeypatch.setattr(benchmark, '_measure', measure)
  assert command_line.status_of(benchmark.main, ['benchmark', '--device=gpu']) == command_line.FAILED
  assert capsys.readouterr() == ('', 'Error: there is no GPU\n')


def _table(path, sections):
  """The rows of the CSV file that the benchmark writes, by case."""
  assert command_line.status_of(benchmark.main, ['benchmark', f'--sections={sections}', f'--csv={path}']) == 0
  with open(path, encoding='utf-8', newline='') as f:
    return {row['case']: row for row in csv.DictReader(f)}


def test_measurements_go_to_the_table(tmp_path, monkeypatch, capsys):
  def measure(function, **arguments):
    if function == 'first_round':
      return {'until_end': 9.0, 'overhead': 5.0}, 700.0
    speed = {'samples_per_second': 600.0, 'seconds_per_round': arguments['clients'] / 10}
    peak = 800.0 + arguments['clients'] / 10
    if function == 'cohort':
      assert arguments['examples'] == 60
      return speed, peak
    assert function == 'small' and arguments['clients'] == 100
    return {**speed, 'cpu_ms_per_client': 1.25 if arguments['model'] == 'digits_cnn' else 0.75}, peak

  monkeypatch.setattr(benchmark, '_measure', measure)
  monkeypatch.setattr(benchmark, '_first_round', lambda: (7.5, 600.0))
  rows = _table(tmp_path / 'cases.csv', 'cohort,small,start')
  assert rows['cohort_30'] == {
    'case': 'cohort_30',
    'samples_per_second': '600.0',
    'seconds_per_round': '3.0',
    'peak_memory_mib': '803.0',
    'cpu_ms_per_client': '',
  }
  assert rows['cohort_1000']['peak_memory_mib'] == '900.0'
  rules = ('', '_previous', '_fixed', '_private_quantile', '_certified')
  small = [f'small_{model}_{examples}' for model in ('logistic', 'cnn') for examples in (0, 10, 60)]
  assert list(rows) == [f'cohort_{n}{rule}' for rule in rules for n in (30, 1000)] + small + ['first_round']
  assert rows['small_cnn_10'] == {**rows['small_cnn_0'], 'case': 'small_cnn_10', 'cpu_ms_per_client': '1.25'}
  assert rows['small_logistic_0']['cpu_ms_per_client'] == '0.75'
  assert rows['first_round']['seconds_per_round'] == '7.5' and rows['first_round']['peak_memory_mib'] == '600.0'
  printed = capsys.readouterr().out
  assert '1.121' in printed and '1.25' in printed  # 900 MiB of 803 MiB, and the CPU time.


def test_cases_are_compared_with_the_worker_and_the_ceiling(tmp_path, monkeypatch, capsys):
  speeds = {'tff_worker': 50.0, 'tff_in_process': 80.0, 'quap_float32': 90.0, 'quap_bfloat16': 130.0, 'ceiling': 100.0}
  speeds['ceiling_bfloat16'] = 140.0
  monkeypatch.setattr(
    benchmark,
    '_measure',
    lambda function, name, **_: ({'samples_per_second': speeds[name], 'seconds_per_round': 1.0}, 9.0),
  )
  rows = _table(tmp_path / 'cases.csv', 'cases')
  assert {name: float(row['samples_per_second']) for name, row in rows.items()} == speeds
  line = [line for line in capsys.readouterr().out.splitlines() if line.startswith('quap_float32')]
  assert line[0].split()[-2:] == ['1.8', '0.9']


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
def test_a_small_client_is_measured():
  row = benchmark_cases.small('logistic_regression', examples=0, clients=2, batch_size=10, rounds=2)
  assert row['seconds_per_round'] > 0 and 0 < row['cpu_ms_per_client'] < 60_000


def _instead_of_python(monkeypatch, tmp_path, script):
  """Has the benchmark run a shell script in place of its measurements."""
  program = tmp_path / 'program'
  program.write_text(f'#!/bin/sh\n{script}\n')
  program.chmod(0o755)
  monkeypatch.setattr(benchmark.sys, 'executable', str(program))
  monkeypatch.setattr(benchmark.processes, 'ending_with_this_one', lambda command: command)


@pytest.mark.parametrize('standard_error, status', [('echo round 1/60 >&2', 3), ('echo nothing >&2', 0)])
def test_a_first_round_that_fails_is_an_error(standard_error, status, tmp_path, monkeypatch):
  _instead_of_python(monkeypatch, tmp_path, f'{standard_error}\nexit {status}')
  with pytest.raises(ValueError, match=f'first round failed with status {status}'):
    benchmark._first_round()


@pytest.mark.parametrize(
  'said, error',
  [
    ('a warning\nError: there is no GPU', 'there is no GPU'),
    ('Traceback\nKeyError: 1', "The measurement 'case' failed with status 3."),
  ],
)
def test_a_measurement_that_fails_gives_its_own_words(said, error, tmp_path, monkeypatch, capsys):
  _instead_of_python(monkeypatch, tmp_path, f'printf "{said}\n" >&2\nexit 3')
  with pytest.raises(ValueError) as caught:
    benchmark._measure('case', name='ceiling')
  assert str(caught.value) == error and capsys.readouterr().err.startswith(said.partition('\n')[0])
