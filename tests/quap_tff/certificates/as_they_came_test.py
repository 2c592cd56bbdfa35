"""Certificates of cohorts that nobody planned: what they say, and what is found in a folder that is none."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from quap_tff import certificates
from quap_tff import plans
from quap_tff.certificates.folders import folder as folders
from tests.quap_tff import examples
from tests.quap_tff.certificates import made

EXPECTED = ([0, 1, 2], [3, 4], [0, 5], [1, 2, 3])
# Another cohort in each round than was expected.
CAME = ([5, 3], [0, 1, 2, 4], [])
ABOUT = dataclasses.replace(made.ABOUT, tests=1, cohorts='Phones came when they were idle and charging.')


def _plan(schedule=None, **config):
  config = examples.guarantee(num_clients=made.NUM_CLIENTS, **config)
  return plans.Plan.certified(config, schedule, expected=None if schedule else EXPECTED, model=made.MODEL)


def _ledger(plan, came=CAME):
  found = plan.new_ledger()
  for cohort in came:
    weights = plan.ask(found, cohort)
    found.append(plan.core.cost(np.array(cohort, np.int64), weights.astype(np.float64), 1.0, found.num_rounds + 1))
  return found


@pytest.fixture(scope='module', name='originals')
def _originals(tmp_path_factory):
  path = tmp_path_factory.mktemp('came')
  for name, more in (('server', {}), ('held', made.HELD)):
    plan = _plan(**more)
    certificates.write_run(str(path / name), plan, made.leaving(plan), _ledger(plan), made.WEIGHTS, ABOUT)
  return path


@pytest.fixture(name='came', params=['server', 'held'])
def _came(request, originals, tmp_path):
  return shutil.copytree(originals / request.param, tmp_path / 'came')


class TestCertificate:
  @pytest.mark.slow
  def test_it_is_valid_and_says_that_cohorts_came(self, came, capsys):
    status, lines = made.answer(came, capsys)
    certificate = json.loads((came / 'certificate.json').read_text())
    assert status == 0 and certificate['guarantee']['cohorts'] == 'as they came'
    assert 'cohorts as they came' in lines[1] and 'over at most 4 rounds, for any cohorts' in lines[1]
    assert 'The issuer states: “Phones came when they were idle and charging.”' in lines[1]
    assert 'planned' not in certificate['statement']
    assert not (came / folders.SCHEDULE).exists()

  def test_the_limit_is_the_guarantee_and_spending_is_a_reading(self, came):
    certificate = json.loads((came / 'certificate.json').read_text())
    assert certificate['guarantee']['epsilon'] == 3 and certificate['achieved']['is_reading'] is True
    assert certificate['guarantee']['colluders'] == []
    header, *rows = (came / 'clients.csv').read_text().splitlines()
    assert header == 'client,rounds,formal_epsilon,formal_epsilon_reading'
    limits, readings = zip(*(map(float, row.split(',')[2:]) for row in rows))
    assert len(set(limits)) == 1 and 2.99 < limits[0] <= 3 and 0 <= min(readings) <= max(readings) < limits[0]

  def test_its_page_says_so(self, came):
    page = (came / 'certificate.html').read_text()
    assert 'Cohorts were not planned.' in page and 'from mechanism.json and the cohorts in ledger.npz' in page
    assert 'schedule.npz' not in page and '3 of at most 4 planned' in page

  def test_a_planned_run_says_that_cohorts_were_planned(self, tmp_path):
    certificate = json.loads((made.folder(tmp_path / 'run') / 'certificate.json').read_text())
    assert certificate['guarantee']['cohorts'] == 'planned' and 'as they came' not in certificate['statement']


def _more(path):
  made.change_arrays(path, folders.LEDGER, lambda kept: kept.__setitem__('weights', kept['weights'] * 1.01))


def _less_noise(path):
  made.change_arrays(path, folders.LEDGER, lambda kept: kept.update(noise_multipliers=kept['noise_multipliers'] * 2))


def _another_client(path):
  made.change_arrays(path, folders.LEDGER, lambda kept: kept['clients'].__setitem__(0, 0))


def _schedule(path):
  made.write_arrays(path / folders.SCHEDULE, {'offsets': np.array([0, 1]), 'clients': np.array([0])})


@pytest.mark.slow
@pytest.mark.parametrize(
  'change, words',
  [
    (_more, 'has other weights than follow from the cohorts'),
    (_less_noise, 'noise_multipliers is'),
    (_another_client, 'clients.csv: it says'),
    (_schedule, 'schedule.npz does not belong there'),
    (
      lambda path: made.change(path, folders.MECHANISM, lambda v: v.update(cohorts='planned')),
      'schedule.npz is missing',
    ),
    (
      lambda path: made.change(path, folders.MECHANISM, lambda v: v.update(cohorts='at will')),
      "Unknown cohorts 'at will'",
    ),
    (lambda path: made.change(path, folders.MECHANISM, lambda v: v.pop('cohorts')), 'mechanism.json is damaged'),
    (
      lambda path: made.change(path, folders.MECHANISM, lambda v: v['mechanism'].update(num_rounds=2)),
      'fingerprint in ledger.npz is not that of the mechanism',
    ),
  ],
)
def test_forgeries(change, words, came, capsys):
  change(came)
  made.reseal(came)
  status, lines = made.answer(came, capsys)
  assert status == 1 and any(words in line for line in lines), lines


class TestRefusals:
  @pytest.mark.slow
  def test_a_planned_run_with_other_clients_is_certified_without_its_schedule(self, tmp_path):
    planned = _plan(EXPECTED)
    unplanned = plans.Plan.certified(planned.config, model=made.MODEL)
    ledger = _ledger(unplanned)
    with pytest.raises(
      ValueError, match=r'Round 1 of ledger.npz has other .* So have 2 other rounds.* Plan.certified\(plan'
    ):
      certificates.write_run(str(tmp_path / 'planned'), planned, made.leaving(planned), ledger, made.WEIGHTS, ABOUT)
    certificates.write_run(str(tmp_path / 'came'), unplanned, made.leaving(unplanned), ledger, made.WEIGHTS, ABOUT)
    assert not certificates.verify(str(tmp_path / 'came')).problems

  def test_more_rounds_than_the_account_is_for(self, tmp_path):
    plan = _plan()
    ledger = _ledger(plan, [*CAME, [1]])
    ledger.append(plan.core.cost(np.array([2]), np.array([0.5]), 1.0, ledger.num_rounds + 1))
    with pytest.raises(ValueError, match='ledger.npz has 5 rounds, and 4 are planned'):
      certificates.write_run(str(tmp_path / 'came'), plan, made.leaving(plan), ledger, made.WEIGHTS, ABOUT)
