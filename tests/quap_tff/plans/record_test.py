"""A record is of the cohort that was there, and a schedule is one that rounds can have."""

import functools
import math
import types

import numpy as np
import pytest

from experiments.systems import fedbuff
from experiments.systems import lee_kifer
from experiments.systems import local_dp
from experiments.systems import staleness as stalenesses
from quap_tff import accounting
from quap_tff import plans
from quap_tff.federated.stock import stock as stocks
from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.certified.config import CertifiedConfig
from quap_tff.mechanisms.certified.planning import calibrated
from quap_tff.mechanisms.noise import correlation
from quap_tff.mechanisms.parts.participation import ParticipationConfig
from quap_tff.mechanisms.quap.config import NoiseConfig
from quap_tff.plans import scheduled
from tests.quap_tff import examples

_CLIENTS = 10
# Round 2 of a run: clients 0 and 1, then 1 and 3.
_ROUNDS = [[0, 1], [1, 3]]


_quap = functools.partial(
  examples.whole,
  num_clients=_CLIENTS,
  participation=ParticipationConfig(warmup_rounds=0),
  noise=NoiseConfig('server', calibration='analytic'),
)


_CERTIFIED = CertifiedConfig(
  num_clients=_CLIENTS,
  epsilon=3.0,
  delta=1e-5,
  correlation=correlation.Independent(),
  weights=weight_rules.UniformWeights(),
  participation=ParticipationConfig(warmup_rounds=0),
)


def _stock(stock, cohorts):
  return scheduled.stock_plan(stock, _quap(), [np.array(c, np.int64) if len(c) else c for c in cohorts], 2.0)


_PLANS = {
  'quap': lambda: plans.Plan(_quap()),
  'local': lambda: plans.Plan(local_dp.LocalPrivacy(_quap(noise=NoiseConfig('client', calibration='analytic')))),
  'certified': lambda: plans.Plan.certified(_CERTIFIED, _ROUNDS),
  'fedbuff': lambda: plans.Plan(fedbuff.Buffered(_quap(), 1, stalenesses.Staleness(max_staleness=0))),
  'lee_kifer': lambda: plans.Plan(lee_kifer.LineSearchConfig(_CLIENTS, epsilon=2.0, delta=1e-5, planned_rounds=4)),
  'tff_dp_fedavg': lambda: _stock(stocks.DpFedAvg(), _ROUNDS),
  'tff_dp_ftrl': lambda: _stock(stocks.DpFtrl(), _ROUNDS),
}


def _output(round_num=2):
  """What the aggregator returns after round 2, as far as records read it, for any method."""
  counts, present = np.zeros(_CLIENTS, np.int32), np.zeros(_CLIENTS, np.float32)
  for cohort in _ROUNDS[:round_num]:
    counts[cohort] += 1
  present[_ROUNDS[round_num - 1]] = 1
  state = types.SimpleNamespace(
    round=round_num, participation=dict(counts=counts), weights=present, released=present, budget={}
  )
  return state, dict(round=round_num, cohort_size=2, clipping_norm=1.0, clipping_norms=np.ones(1), noise_multiplier=5.0)


def _record(name, cohort, round_num=2, plan=None):
  state, measurements = _output(round_num)
  if name == 'fedbuff':
    state.mechanism = types.SimpleNamespace(round=state.round, participation=state.participation, budget={})
  return (plan or _PLANS[name]()).recorded(state, measurements, cohort)


class TestCohort:
  @pytest.mark.slow
  @pytest.mark.parametrize('name', _PLANS)
  def test_that_of_the_round_is_taken_in_any_order(self, name):
    assert sorted(_record(name, [3, 1]).cohort) == [1, 3]

  @pytest.mark.parametrize('name', _PLANS)
  @pytest.mark.parametrize(
    'cohort, message',
    [
      ([], 'counted 2 clients in the round, and the cohort has 0'),
      ([1], 'counted 2 clients in the round, and the cohort has 1'),
      ([0, 1, 3], 'counted 2 clients in the round, and the cohort has 3'),
      ([1, 1], 'found client 1 twice'),
      ([1, 10], r'must be ids in \[0, 10\), found 10'),
      ([-1, 1], 'found -1'),
      ([1.0, 3.0], r'must be int\[clients\]'),
      ([[1, 3]], r'must be int\[clients\]'),
      ([True, False], r'must be int\[clients\]'),
    ],
  )
  def test_another_is_refused(self, name, cohort, message):
    with pytest.raises(ValueError, match=message):
      _record(name, cohort)

  @pytest.mark.parametrize(
    'name, message',
    [
      ('quap', 'never seen client 4'),
      ('local', 'never seen client 4'),
      ('fedbuff', 'never seen client 4'),
      ('certified', 'client 3 was in the round'),
      ('lee_kifer', 'client 3 was in the round'),
      ('tff_dp_ftrl', 'Planned are the clients'),
    ],
  )
  def test_a_client_that_was_not_there_is_refused(self, name, message):
    with pytest.raises(ValueError, match=message):
      _record(name, [1, 4])

  @pytest.mark.parametrize('name', ['quap', 'local'])
  def test_the_ledger_finds_a_client_of_an_earlier_round(self, name):
    plan = _PLANS[name]()
    ledger = plan.new_ledger()
    ledger.append(_record(name, [0, 1], 1, plan))
    with pytest.raises(ValueError, match='client 0 has been in 1 rounds, this one included, but the ledger holds 1'):
      ledger.append(_record(name, [0, 1], 2, plan))
    assert ledger.num_rounds == 1
    ledger.append(_record(name, [1, 3], 2, plan))
    assert ledger.rounds[:4].tolist() == [1, 2, 0, 1]

  @pytest.mark.parametrize('name', ['quap', 'local'])
  def test_the_ledger_finds_a_round_that_was_left_out(self, name):
    plan = _PLANS[name]()
    with pytest.raises(ValueError, match='client 1 has been in 2 rounds'):
      plan.new_ledger().append(_record(name, [1, 3], 2, plan))

  def test_a_warm_up_that_is_not_counted_leaves_nothing_to_compare(self):
    plan = plans.Plan(_quap(participation=ParticipationConfig(warmup_rounds=2, count_during_warmup=False)))
    state, measurements = _output()
    state.participation['counts'][:] = 0
    assert plan.recorded(state, measurements, [1, 3]).counts is None


class TestSchedule:
  _BAD = [
    ([[11]], r'Round 1 of the schedule: clients must be ids in \[0, 10\), found 11'),
    ([[0], [0, 0]], 'Round 2 of the schedule: A client can be in a round only once, found client 0 twice'),
    ([[0], [], [0.5]], r'Round 3 of the schedule: cohort must be int\[clients\], found float64'),
    ([[-1]], 'Round 1 of the schedule: .* found -1'),
    ([[math.nan]], 'Round 1 of the schedule: cohort must be'),
    ([0, 1], r'Round 1 of the schedule: cohort must be int\[clients\]'),
  ]

  @pytest.mark.parametrize('cohorts, message', _BAD)
  @pytest.mark.parametrize(
    'make',
    [
      lambda cohorts: plans.Plan.certified(_CERTIFIED, cohorts),
      lambda cohorts: calibrated(_CERTIFIED, cohorts),
      lambda cohorts: scheduled.stock_plan(stocks.DpFedAvg(), _quap(), cohorts, 2.0),
      lambda cohorts: scheduled.stock_plan(stocks.DpFtrl(), _quap(), cohorts, 2.0),
      lambda cohorts: _PLANS['tff_dp_fedavg']().planned_ledger(cohorts),
      lambda cohorts: _PLANS['quap']().planned_ledger(cohorts),
      lambda cohorts: _PLANS['local']().planned_ledger(cohorts),
      lambda cohorts: _PLANS['fedbuff']().planned_ledger(cohorts),
      lambda cohorts: _PLANS['quap']().calibrated(cohorts, 1.0),
    ],
  )
  def test_one_that_no_run_can_have_is_refused(self, make, cohorts, message):
    with pytest.raises(ValueError, match=message):
      make(cohorts)

  def test_an_empty_round_is_one(self):
    assert [len(cohort) for cohort in plans.Plan.certified(_CERTIFIED, [[], [0, 9]]).schedule] == [0, 2]


def test_a_ledger_checks_its_cohorts_as_plans_do():
  ledger = accounting.RunLedger(_CLIENTS, 1e-5, '')
  for cohort in ([0, 0], [10], [0.5]):
    count = len(cohort)
    with pytest.raises(ValueError):
      ledger.append(accounting.RoundRecord(cohort, np.ones(count), np.ones(count), 1.0, math.inf, 1.0))
