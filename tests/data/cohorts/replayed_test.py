"""Tests of `cohorts.replayed`: which clients a log stands for, and what is refused."""

import gzip
import hashlib

import pytest

from data import cohorts
from data import federation
from data import reading
from data.cohorts import replayed
from quap_tff.accounting import logs
from quap_tff.common import registry

_ROWS = ['1,cyd', '1,ann', '2,bob', '3,ann', '3,bob', '3,dan']


@pytest.fixture(name='written')
def _written(tmp_path):
  """Writes a log of some rows; returns its choice."""

  def write(rows=_ROWS, name='log.csv', header='round,client'):
    content = '\n'.join([header, *rows, '']).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith('.gz') else content)
    return replayed.ReplayedLog(str(tmp_path / name))

  return write


def _cohorts(choice, num_clients=6, num_rounds=3):
  model = choice.over(cohorts.Population(num_clients, None, 0))
  return [model.cohort(t).tolist() for t in range(1, num_rounds + 1)]


@pytest.mark.parametrize('name', ['log.csv', 'log.csv.gz'])
def test_names_are_clients_in_order_of_first_appearance(written, name):
  choice = written(name=name)
  assert _cohorts(choice) == [[0, 1], [2], [1, 2, 3]]
  bound = choice.for_clients(federation.NumberedIds(6))
  assert _cohorts(bound) == _cohorts(choice)
  assert 'its 4 clients stand for clients of the data in the order in which they come first.' in bound.statement
  assert bound.statement.endswith('2 of the 6 clients of the data are not in the log, and never come.')


def test_ids_of_the_data_are_those_clients(written):
  bound = written().for_clients(['ann', 'bob', 'cyd', 'dan'])
  assert _cohorts(bound, 4) == [[0, 2], [1], [0, 1, 3]]
  assert bound.statement.endswith('its 4 clients stand for clients of the data by their ids.')


def test_the_model_promises_nothing(written):
  model = written().over(cohorts.Population(6, 3, 0))
  assert model.sampler.kind == 'none' and model.min_separation is None and model.mean_cohort_size == 2


def test_a_spec_without_the_place_of_the_file_says_which_file_it_was(written):
  choice = written()
  with open(choice.path, 'rb') as f:
    digest = hashlib.sha256(f.read()).hexdigest()
  spec = f'log:path=log.csv,sha256={digest}'
  assert cohorts.portable(f'log:path={choice.path}') == spec and cohorts.portable('beta') == 'beta'
  # The file is not needed to say which it was.
  kept = registry.parse_spec('participation model', spec, cohorts.PARTICIPATION_MODELS)
  assert kept.portable() == kept and digest in kept.provenance == choice.provenance
  with pytest.raises(reading.DataFileError, match='log.csv not found; a log of participation is a CSV file'):
    kept.check_rounds(1)


class TestRefusals:
  def test_more_clients_than_the_data_have(self, written):
    for refused in (
      lambda: written().for_clients(['ann', 'bob', 'x']),
      lambda: written().over(cohorts.Population(3, 1, 0)),
    ):
      with pytest.raises(ValueError, match=r'names 4 clients, and the data have 3. Use .* \(--num_clients=4\)'):
        refused()

  def test_names_of_which_only_some_are_clients(self, written):
    with pytest.raises(ValueError, match="1 of its 4 clients are clients of the data, and 3 are not, such as 'cyd'"):
      written().for_clients(['v', 'w', 'x', 'y', 'ann'])

  def test_more_rounds_than_the_log_has(self, written):
    choice = written()
    choice.check_rounds(3)
    with pytest.raises(ValueError, match=r'4 rounds are planned, and .*log.csv has 3. Plan at most 3 \(--rounds=3\)'):
      choice.check_rounds(4)
    with pytest.raises(ValueError, match='The log has 3 rounds, and round 4 is asked for'):
      choice.over(cohorts.Population(6, 1, 0)).cohort(4)

  def test_another_file_than_is_stated(self, written):
    choice = replayed.ReplayedLog(written().path, '0' * 64)
    with pytest.raises(reading.DataFileError, match='expected the log with the SHA-256 0000'):
      choice.check_rounds(1)

  @pytest.mark.parametrize(
    'rows, message',
    [
      (['1,ann', '3,ann'], 'line 3: round 2 must follow round 1'),
      (['1,ann', '1,bob', '1,ann'], "line 4: client 'ann' is in this round already"),
      ([], 'has no rows'),
    ],
  )
  def test_a_log_that_is_none(self, written, rows, message):
    with pytest.raises(logs.LogError, match=message):
      written(rows).check_rounds(1)

  def test_a_file_that_is_no_gzip_file(self, written, tmp_path):
    whole = gzip.compress('\n'.join(['round,client', *_ROWS]).encode())
    for content in (b'round,client\n1,ann\n', whole[:-9], b''):
      (tmp_path / 'log.csv.gz').write_bytes(content)
      with pytest.raises(logs.LogError):
        replayed.ReplayedLog(str(tmp_path / 'log.csv.gz')).check_rounds(1)

  def test_no_file(self, tmp_path):
    with pytest.raises(ValueError, match='needs its file: log:path=FILE'):
      cohorts.make('log', 3, None, 0)
    with pytest.raises(reading.DataFileError, match='is a folder and not a file'):
      cohorts.make(f'log:path={tmp_path}', 3, None, 0)

  def test_cohorts_that_should_be_secret(self, written):
    with pytest.raises(ValueError, match='known to everyone who has the log'):
      written().over(cohorts.Population(6, None, 0, cohort_seed=1))
