"""Runs that replay a log of participation, and `experiments.example_log`."""

import collections
import datetime
import json

import numpy as np
import pytest

from data import cohorts
from data.cohorts import replayed
from experiments import example_log
from experiments.command import command_line
from quap_tff import verify
from quap_tff.accounting import logs
from tests.experiments import harness

_SIZED = ('--algorithm=fedavg', '--cohort_size=3', '--rounds=8')
# With this seed, somebody comes in every round.
_DEVICES = ('--num_clients=7', '--rounds=10', '--mean_cohort_size=3', '--seed=3')


def _write(path, *flags):
  assert command_line.status_of(example_log.main, ['example_log', f'--output={path}', *_DEVICES, *flags]) == 0


@pytest.fixture(name='log')
def _log(tmp_path):
  """Devices of an example, some days long; the flags that replay it."""
  path = tmp_path / 'devices.csv.gz'
  _write(path)
  return path


def _replayed(path):
  return f'--participation=log:path={path}'


def test_the_same_flags_write_the_same_bytes(log, capsys):
  before = log.read_bytes()
  _write(log)
  assert log.read_bytes() == before
  _write(log, '--seed=4')
  assert log.read_bytes() != before
  assert command_line.status_of(example_log.main, ['example_log']) == command_line.FAILED
  assert '--output is missing' in capsys.readouterr().err


def test_what_does_not_fit_is_refused_before_data_are_read(log, tmp_path):
  assert '11 rounds are planned, and' in harness.refusal(*harness.TINY, '--rounds=11', _replayed(log))
  assert 'Use data of at least' in harness.refusal(*harness.TINY, '--num_clients=2', '--cohort_size=2', _replayed(log))
  assert 'not found' in harness.refusal(*harness.TINY, _replayed(tmp_path / 'none.csv'))
  assert 'sets the size of its cohorts itself' in harness.refusal(*_SIZED, _replayed(log))
  gap = tmp_path / 'gap.csv'
  gap.write_text('round,client\n1,ann\n3,ann\n')
  assert 'round 2 must follow round 1' in harness.refusal(*harness.TINY, _replayed(gap))


def test_devices_of_the_example_come_at_night_and_on_weekends():
  header, *rows = example_log.log_rows(1000, 300, 30.0, 0)
  assert header == ('round', 'client', 'began')
  sizes = collections.Counter(began for _, _, began in rows)
  means = collections.defaultdict(list)
  for began, size in sizes.items():
    time = datetime.datetime.fromisoformat(began)
    means[time.weekday() >= 5, time.hour >= 20 or time.hour < 6].append(size)
  night, day = (np.mean(means[False, is_night]) for is_night in (True, False))
  assert night > 2 * day and np.mean(means[True, False]) > 1.3 * day
  assert 25 < np.mean(list(sizes.values())) < 35 and 900 < len({name for _, name, _ in rows}) <= 1000


def test_the_example_follows_from_the_seed_and_is_a_log(tmp_path):
  found = [list(example_log.log_rows(20, 12, 0.5, seed)) for seed in (0, 0, 1)]
  assert found[0] == found[1] != found[2]
  # A round to which nobody came has a row.
  assert [int(row[0]) for row in found[0][1:]] == sorted(int(row[0]) for row in found[0][1:])
  assert {row[0] for row in found[0][1:]} == set(map(str, range(1, 13)))
  (tmp_path / 'log.csv').write_text('\n'.join(','.join(row) for row in example_log.log_rows(50, 20, 20.0, 3)))
  choice = replayed.ReplayedLog(str(tmp_path / 'log.csv'))
  model = choice.over(cohorts.Population(50, None, 0))
  assert [len(model.cohort(t)) > 0 for t in range(1, 21)] == [True] * 20


@pytest.mark.slow
@pytest.mark.parametrize(
  'flags',
  [
    pytest.param(('--algorithm=certified:clip=0.5', '--dropout=bernoulli:rate=0.3'), marks=pytest.mark.thorough),
    ('--algorithm=fixed_dp:clip=1.0', '--dropout=bernoulli:rate=0.3'),
    pytest.param(('--algorithm=certified:clip=0.5,trust=secure_sum,noise=held',), marks=pytest.mark.thorough),
  ],
)
def test_a_run_has_the_cohorts_of_the_log(log, tmp_path, flags, capfd):
  output = tmp_path / 'run'
  arguments = [*harness.TINY, *flags, '--rounds=6', '--epsilon=3', _replayed(log), f'--output_dir={output}']
  assert harness.main(*arguments) == 0
  said = capfd.readouterr().err
  assert 'clients stand for clients of the data in the order in which they come first.' in said
  read = logs.Log(str(log))
  expected = [len(one.ids) for one in read.rounds()][:6]
  came, lost = ([int(row.get(name, 0)) for row in harness.rows(output)] for name in ('cohort_size', 'dropped_out'))
  assert expected == (came if 'certified' in flags[0] else [sum(one) for one in zip(came, lost)])
  assert f'{8 - read.num_clients} of the 8 clients of the data are not in the log' in said
  if 'certified' not in flags[0]:
    return
  # The certificate names the log by its digest, not by its place, and is verified without it.
  everything = b''.join(path.read_bytes() for path in (output / 'certificate').iterdir())
  assert str(log.parent).encode() not in everything
  certificate = json.loads((output / 'certificate' / 'certificate.json').read_text(encoding='utf-8'))
  assert certificate['issuer']['cohorts'].startswith('The cohorts are those of a log of participation with the SHA-256')
  log.unlink()
  assert verify.main([str(output)]) == 0


@pytest.mark.slow
@pytest.mark.thorough
def test_a_run_does_not_go_on_with_another_log(log, tmp_path, capsys):
  arguments = [*harness.TINY, '--algorithm=fedavg', '--rounds=6', _replayed(log), f'--output_dir={tmp_path}/run']
  assert harness.main(*arguments, '--stop_after=2') == 0
  _write(log, '--seed=4')
  assert harness.main(*arguments) == command_line.FAILED
  assert 'participation' in capsys.readouterr().err
