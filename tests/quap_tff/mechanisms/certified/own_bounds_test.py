"""Tests of certified runs in which clients have bounds of their own: weights by hand, and nobody passes its own."""

import dataclasses
import math

import numpy as np
import pytest

from quap_tff import plans
from quap_tff.certificates import certificate
from quap_tff.certificates.folders import about as abouts
from quap_tff.common.lazy import tf
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms.certified import config as configs
from quap_tff.mechanisms.certified import privacy_filter
from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.noise import correlation as correlations
from quap_tff.mechanisms.parts import layers
from tests.quap_tff import rounds

# The part of ε and δ that is not kept for rounding.
_KEPT = 1 - 2.0**-11
_OWN = (0.5, 1.0, 2.0, 2.0, 0.5, 1.0)
_DELTA = 1e-5
_MODEL = layers.ModelShape((layers.Layer('w', (0,), False),), ((1,),))
_RULES = (
  weight_rules.ScaledWeights(),
  weight_rules.Sample(),
  weight_rules.UniformWeights(),
  weight_rules.ParticipationWeights(),
  weight_rules.Online(),
  weight_rules.SpendEvenly(),
)


def _config(**overrides):
  values = dict(num_clients=6, epsilon=2.0, delta=_DELTA, weights=weight_rules.ScaledWeights(), own_epsilon=_OWN)
  values['correlation'] = correlations.Independent()
  return configs.CertifiedConfig(**{**values, **overrides})


def _cohorts(seed, rounds=12):
  rng = np.random.default_rng(seed)
  return [np.sort(rng.choice(6, rng.integers(0, 7), replace=False)) for _ in range(rounds)]


def _view(**overrides):
  values = dict(counts=np.array([1, 2, 3, 4]), budget_shares=np.array([1.0, 0.5, 0.25, 0.3]))
  nothing = dict.fromkeys(('prices', 'standing', 'rates', 'round_num', 'rounds_left', 'in_warmup'))
  return weight_rules.RoundView(**{**nothing, **values, **overrides})


def _excesses(plan, ledger):
  """Why a run of one weight gets no certificate: who has spent too much."""
  return certificate.refusals(plan, ledger, abouts.About('x', 'x', 'x', 'x'))


class TestWeights:
  def test_scale_by_hand(self):
    np.testing.assert_allclose(weight_rules.ScaledWeights().weights(_view()), [1, math.sqrt(0.5), 0.5, math.sqrt(0.3)])

  def test_sample_by_hand(self):
    # ⌊k·0.4⌋ for k = 0, 1, …: 0 0 0 1 1 2.
    view = _view(counts=np.arange(1, 6), budget_shares=np.full(5, 0.4))
    assert weight_rules.Sample().weights(view).tolist() == [0, 0, 1, 0, 1]
    assert weight_rules.Sample().weights(_view(budget_shares=np.ones(4))).tolist() == [1, 1, 1, 1]

  @pytest.mark.parametrize('rule', [weight_rules.ScaledWeights(), weight_rules.Sample()])
  def test_tensors(self, rule):
    view = _view(counts=tf.constant([1, 2, 3, 4]), budget_shares=tf.constant([1.0, 0.5, 0.25, 0.3], tf.float64))
    np.testing.assert_array_equal(rule.weights(view), rule.weights(_view()))

  @pytest.mark.slow
  @pytest.mark.parametrize('rule', [weight_rules.ScaledWeights(), weight_rules.Sample()])
  def test_everyone_who_is_always_there_spends_what_it_chose(self, rule):
    rounds = 200
    schedule = [np.arange(6)] * rounds
    plan = plans.Plan.certified(_config(weights=rule), schedule)
    squares = np.sum([r.weights.astype(np.float64) ** 2 for r in plan.core.simulated(schedule)], axis=0)
    spent = np.sqrt(squares) / plan.config.noise_multiplier
    chosen = np.array([tradeoff.mu_at_most(own * _KEPT, _DELTA * _KEPT) for own in _OWN])
    assert (spent <= chosen).all()
    np.testing.assert_allclose(spent, chosen, rtol=0.1 if rule == weight_rules.Sample() else 1e-5)


class TestFilter:
  @pytest.mark.slow
  @pytest.mark.parametrize('rule', _RULES)
  @pytest.mark.parametrize('noise', [correlations.Independent(), correlations.Ar1(0.7)])
  @pytest.mark.parametrize('seed', [0, *(pytest.param(one, marks=pytest.mark.thorough) for one in (1, 2))])
  def test_nobody_passes_its_own_bound(self, rule, noise, seed):
    cohorts = _cohorts(seed)
    # Less noise than planned, so that the filter and not the rule decides.
    config = _config(weights=rule, correlation=noise).settled(cohorts).mechanism
    config = dataclasses.replace(config.config, noise_multiplier=config.noise_multiplier / 3).to_mechanism()
    plan = plans.Plan.certified(config.config, cohorts, model=_MODEL)
    found = config.simulated(cohorts)
    ledger = plan.new_ledger()
    for number, (cohort, one) in enumerate(zip(cohorts, found), 1):
      ledger.append(config.cost(cohort, one.weights.astype(np.float64), 1.0, number))
    assert not _excesses(plan, ledger)
    assert found[-1].spent_max <= 1 + 1e-9
    # Much smaller bounds would be passed: budgets are used.
    tighter = dataclasses.replace(config.config, own_epsilon=tuple(own / 4 for own in _OWN))
    [excess] = _excesses(plans.Plan.certified(tighter, cohorts, model=_MODEL), ledger)
    assert 'have spent more than their bound' in excess

  @pytest.mark.slow
  def test_the_server_gives_the_planned_weights(self):
    cohorts = _cohorts(7)
    config = _config().settled(cohorts).mechanism
    config = dataclasses.replace(config.config, noise_multiplier=config.noise_multiplier / 2).to_mechanism()
    process = rounds.Process(config, [[1]])
    state = process.initialize()
    for cohort, planned in zip(cohorts, config.simulated(cohorts)):
      state, _, measurements = process.next(state, [[[0.0]]] * len(cohort), [int(i) for i in cohort])
      np.testing.assert_allclose(state.weights[cohort], planned.weights, rtol=1e-6)
      assert float(measurements['spent_max']) == pytest.approx(planned.spent_max, rel=1e-5)

  def test_prices_of_some_clients(self):
    limit = lambda epsilon: privacy_filter.limit_of(epsilon * _KEPT, _DELTA * _KEPT)
    prices = privacy_filter.prices_of(_config().settled([range(6)]).mechanism.prices, np.array([2, 0]))
    assert prices.limit.tolist() == [limit(2.0), limit(0.5)]
    uniform = _config(own_epsilon=None, weights=weight_rules.UniformWeights()).settled([range(6)]).mechanism
    assert privacy_filter.prices_of(uniform.prices, [0]).limit == limit(2.0)

  def test_equal_bounds_are_the_run_that_everyone_knows(self):
    cohorts = _cohorts(3)
    uniform = plans.Plan.certified(_config(own_epsilon=None, weights=weight_rules.UniformWeights()), cohorts)
    scaled = plans.Plan.certified(_config(own_epsilon=(2.0,) * 6), cohorts)
    assert scaled.config.noise_multiplier == uniform.config.noise_multiplier
    for a, b in zip(*(plan.core.simulated(cohorts) for plan in (uniform, scaled))):
      np.testing.assert_array_equal(a.weights, b.weights)


class TestConfig:
  @pytest.mark.parametrize(
    'overrides, message',
    [
      (dict(own_epsilon=None), 'follows bounds that clients have chosen'),
      (dict(own_epsilon=(1.0,)), r'float\[6\]'),
      (dict(own_epsilon=('1',) * 6), 'found text'),
      (dict(own_epsilon=dict.fromkeys(range(6), 1.0)), 'in the order of the ids, found the dict'),
      (dict(own_epsilon=(2.1, 1.0, 1.0, 1.0, 1.0, 1.0)), 'at most epsilon=2'),
      (dict(own_epsilon=(0.0, 1.0, 1.0, 1.0, 1.0, 1.0)), 'above 0'),
      (dict(weights=weight_rules.WorstCase()), 'one worst case for all clients'),
    ],
  )
  def test_bad_bounds(self, overrides, message):
    with pytest.raises(ValueError, match=message):
      _config(**overrides)
