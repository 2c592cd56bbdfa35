"""Runs that end early: the reading of their ledger, the bound of their plan, and what the difference is worth."""

import dataclasses
import math

import numpy as np
import pytest

from experiments.systems import lee_kifer
import quap_tff
from quap_tff import accounting
from quap_tff import plans
from quap_tff.mechanisms import mechanism
from quap_tff.mechanisms.parts import budgets
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.quap import config as configs
from quap_tff.plans.accounts import run_account
from tests.quap_tff import examples

_DELTA = 1e-5
_COHORTS = [[0, 1], [1, 2], [], [0, 1, 2], [3]]


def _record(cohort, noise=4.0, weights=None):
  weights = np.ones(len(cohort)) if weights is None else np.asarray(weights, float)
  return accounting.RoundRecord(np.asarray(cohort, np.int64), np.ones(len(cohort)), weights, noise, math.inf, 1.0)


def _ledger(records):
  ledger = accounting.RunLedger(5, _DELTA, 'a run')
  for record in records:
    ledger.append(record)
  return ledger


@dataclasses.dataclass(frozen=True)
class _KnownNoise(mechanism.Mechanism):
  """A mechanism whose rounds have known noise."""

  num_clients: int
  delta: float
  unplannable: str = ''
  noise: float = 4.0
  fingerprint = 'a run'

  @property
  def facts(self):
    return mechanism.Facts(self.delta, frozenset(), unplannable=self.unplannable)

  def planned(self, cohorts):
    return [_record(cohort, self.noise) for cohort in cohorts]

  for_model = seen = spent = None


class _Planned(run_account.RunAccount):
  protection = accounting.Protection('released model', 'All is noised.', 'All is noised.')

  def __init__(self, num_clients, delta, unplannable='', noise=4.0):
    super().__init__(_KnownNoise(num_clients, delta, unplannable, noise))


class TestCompleted:
  @pytest.mark.parametrize('rounds', range(len(_COHORTS) + 1))
  def test_the_rounds_that_ran_and_then_the_planned_ones(self, rounds):
    # As recorded in TensorFlow's arithmetic, and with the cohort in another order.
    ran = _ledger(_record(cohort[::-1], 4.0 * (1 + 1e-7)) for cohort in _COHORTS[:rounds])
    whole = accounting.completed(ran, _ledger(map(_record, _COHORTS)))
    assert whole.num_rounds == len(_COHORTS)
    expected = [4.0 * (1 + 1e-7)] * rounds + [4.0] * (len(_COHORTS) - rounds)
    np.testing.assert_array_equal(whole.state_dict()['noise_multipliers'], expected)
    np.testing.assert_array_equal(whole.rounds, _ledger(map(_record, _COHORTS)).rounds)

  @pytest.mark.parametrize(
    'records, words',
    [
      ([_record([0, 2])], 'other clients'),
      ([_record([0])], 'other clients'),
      ([_record(cohort) for cohort in [*_COHORTS, [0]]], 'other clients'),
      ([_record([0, 1], 4.1)], 'other noise'),
      ([_record([0, 1], 3.9)], 'other noise'),
      ([_record([0, 1], weights=[1, 0.5])], 'other weights'),
    ],
  )
  def test_rounds_that_were_not_planned_so_have_no_bound(self, records, words):
    with pytest.raises(accounting.NoBoundError, match=words):
      accounting.completed(_ledger(records), _ledger(map(_record, _COHORTS)))


class TestReport:
  def test_a_run_that_reached_its_last_round_is_as_before(self):
    plan, ledger = _Planned(5, _DELTA), _ledger(map(_record, _COHORTS))
    assert plan.report(ledger, _COHORTS).as_dict() == plan.report(ledger).as_dict()
    assert plan.report(ledger).as_dict()['formal']['reading'] is None

  def test_an_earlier_end_has_the_figures_of_all_planned_rounds_and_a_reading(self):
    plan, ledger = _Planned(5, _DELTA), _ledger(map(_record, _COHORTS[:2]))
    found, whole = plan.report(ledger, _COHORTS).formal, plan.report(_ledger(map(_record, _COHORTS))).formal
    assert found.figures == whole.figures
    np.testing.assert_array_equal(found.epsilon, whole.epsilon)
    spent = accounting.epsilon_by_client(ledger, _DELTA)
    assert found.as_dict()['reading'] == {
      'rounds': 2,
      'epsilon_max': spent.max(),
      'epsilon_mean': spent.mean(),
      'why': 'the run may have ended because of what it released',
    }
    # Client 3 has not come yet, and the bound counts that it was to come.
    assert spent[3] == 0 < found.epsilon[3]
    assert 'Reading after 2 rounds' in found.text and 'not a guarantee' in found.text

  def test_without_a_bound_there_is_no_figure_but_the_reason(self):
    plan, ledger = _Planned(5, _DELTA), _ledger([_record([0, 1], 3.0)])
    found = plan.report(ledger, _COHORTS).formal
    assert not found.figures and found.epsilon is None and found.reading.rounds == 1
    assert found.notes == (
      'No formal figure: the run has ended early, and the rounds that ran had other noise or other weights than were '
      'planned.',
    )

  def test_a_method_whose_rounds_cannot_be_planned(self):
    plan = _Planned(5, _DELTA, 'what the rounds cost is not known before they have run')
    assert 'not known before they have run' in plan.report(_ledger([]), _COHORTS).formal.notes[0]

  def test_rounds_without_noise_read_null(self):
    ledger = _ledger([_record([0], 0.0)])
    assert accounting.Reading(1, accounting.epsilon_by_client(ledger, _DELTA)).as_dict() == {
      'rounds': 1,
      'epsilon_max': None,
      'epsilon_mean': None,
      'why': 'the run may have ended because of what it released',
    }

  def test_nothing_is_said_where_nothing_is_covered(self):
    config = configs.QuapConfig(num_clients=5, noise=configs.NoiseConfig(placement='none'))
    plan = plans.Plan(config)
    assert plan.report(plan.new_ledger(), _COHORTS).formal.as_dict() is None


class TestPlans:
  def test_quap_counts_the_planned_noised_counts(self):
    pytest.importorskip('tensorflow')  # For the noise of a budget.
    config = configs.QuapConfig(
      num_clients=5,
      critical_layers='all',
      clip=clip_rules.PrivateQuantile(count_stddev=3.0),
      budget=budgets.BudgetConfig(num_rounds=5, epsilon_total=3.0),
    )
    plan = plans.Plan(config, client_metrics=False)
    planned = plan.planned_ledger(_COHORTS)
    found = plan.report(planned.truncated(2), _COHORTS).formal
    np.testing.assert_array_equal(found.epsilon, accounting.epsilon_by_client(planned, config.noise.delta))
    assert found.reading.epsilon.max() < found.epsilon.max()

  @pytest.mark.slow
  @pytest.mark.parametrize('own', [None, (3.0, 1.0, 0.5, 3.0, 2.0)])
  def test_certified_is_bounded_by_what_the_filter_lets_each_client_spend(self, own):
    config = examples.guarantee(num_clients=5, delta=_DELTA, own_epsilon=own)
    if own:
      config = dataclasses.replace(config, weights=quap_tff.mechanisms.certified.weight_rules.ScaledWeights())
    plan = quap_tff.Plan.certified(config, _COHORTS)
    found = plan.report(plan.new_ledger(), plan.schedule).formal
    bounds = np.array(own or [3.0] * 5)
    # Of each bound, 1/2048 is kept for rounding. It costs everyone as much as the smallest bound keeps, at most.
    kept = 2.0**-11
    np.testing.assert_allclose(found.epsilon, bounds * (1 - kept) + bounds.min() * kept, rtol=1e-8)
    assert (found.epsilon <= bounds).all()

  @pytest.mark.slow
  def test_lee_kifer_is_bounded_by_its_filter_for_all_who_were_to_come(self):
    plan = plans.Plan(lee_kifer.LineSearchConfig(5, 2.0, _DELTA, 3), client_metrics=False)
    found = plan.report(plan.new_ledger(), _COHORTS).formal
    np.testing.assert_allclose(found.epsilon, [2, 2, 2, 2, 0], rtol=1e-8)
    assert (found.epsilon <= 2).all() and not found.reading.epsilon.any()
    assert 'that was planned to take part' in found.notes[-1]


@pytest.mark.slow
def test_the_reading_at_a_stopping_time_is_exceeded_and_the_bound_of_the_plan_is_not():
  """A person who stops a run when its releases speak of a client has a real δ far above the one of the reading.

  Under the client's data, round t raises the log-likelihood ratio L by a normal number of mean μ²/2 and variance μ². A
  run that releases (n, L_n) with ε(n) is (ε(n), δ)-private only if E max(0, 1 - exp(ε(n) - L_n)) is at most δ.
  """
  rounds, noise, delta = 40, 2.0, 1e-2
  plan = _Planned(5, delta, noise=noise)
  cohorts = [[0]] * rounds
  whole = plan.planned_ledger(cohorts)
  reports = [plan.report(whole.truncated(n), cohorts).formal for n in range(1, rounds)]
  reading = np.array([report.reading.epsilon[0] for report in reports] + [plan.report(whole).formal.epsilon[0]])
  bound = np.array([report.epsilon[0] for report in reports] + [reading[-1]])
  rng, mu = np.random.default_rng(0), 1 / noise
  losses = np.cumsum(rng.normal(mu * mu / 2, mu, [100_000, rounds]), axis=1)
  stops = losses > reading + 0.5
  last = np.where(stops.any(axis=1), stops.argmax(axis=1), rounds - 1)
  loss = losses[np.arange(len(losses)), last]
  real = lambda epsilon: np.maximum(0, -np.expm1(epsilon[last] - loss)).mean()
  assert real(reading) > 3 * delta
  assert real(bound) < delta
