"""Tests of `experiments.systems.pt_adp`: transactions by hand, then through the mechanism's rounds."""

import math

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest

from experiments.systems import pt_adp
from quap_tff.common.lazy import tf
from quap_tff.mechanisms.parts import budgets as budget_lib
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts.budgets import BudgetConfig
from quap_tff.mechanisms.parts.participation import ParticipationConfig
from quap_tff.mechanisms.quap.config import NoiseConfig
from quap_tff.mechanisms.quap.config import QuapConfig
from tests.quap_tff import rounds

# ε_base = 1, and √(2·ln(1.25/δ)) = 4.
_BASE = dict(epsilon_total=2.0, num_rounds=2)
_DELTA = 1.25 * math.exp(-8)


def _config(rule=pt_adp.PtAdp(), **overrides):
  return BudgetConfig(**_BASE, **dict(dict(client_rule=rule, round_rule='each_own'), **overrides))


def _state(preferences, credits=None):
  zeros = [0.0] * len(preferences)
  values = dict(preferences=preferences, credits=zeros if credits is None else credits, given=zeros)
  return {**{name: tf.constant(value, tf.float32) for name, value in values.items()}, 'aggregate': []}


def _budgets(state, ids, config=_config(), in_warmup=False):
  ids = tf.constant(ids, tf.int64)
  return budget_lib.client_budgets(config, tf.zeros(ids.shape), in_warmup, state, ids).numpy()


class TestPtAdp:
  def test_preferences_are_log_uniform_around_the_base(self):
    config = _config(pt_adp.PtAdp(seed=7))
    state = config.rule.initial_state(config, 20_000, [])
    exponents = np.log2(state['preferences'].numpy() / config.epsilon_base)
    assert exponents.min() >= -1 and exponents.max() <= 1
    np.testing.assert_allclose(np.quantile(exponents, [0.1, 0.3, 0.5, 0.9]), [-0.8, -0.4, 0, 0.8], atol=0.03)
    other = pt_adp.PtAdp(seed=8)
    assert not np.array_equal(other.initial_state(config, 20_000, [])['preferences'], state['preferences'])

  def test_by_hand(self):
    # Shares 1, 2, 0.5·(1 + 1): the sum of 3 is reached at λ = 3/4 (budgets .75, 1.5, .75), no cap met.
    state = _state([1.0, 2.0, 0.5, 9.0], [0.0, 0.0, 5.0, 0.0])
    np.testing.assert_allclose(_budgets(state, [0, 1, 2]), [0.75, 1.5, 0.75], rtol=1e-6)

  def test_water_is_filled_up_under_the_cap(self):
    # Shares 0.5, 1 (by a credit), 0.5; caps 1, 1, 1: all are met, whatever the shares.
    np.testing.assert_allclose(_budgets(_state([0.5] * 3, [0.0, 1.0, 0.0]), [0, 1, 2]), [1, 1, 1], rtol=1e-6)
    # Shares 1, 0.6, caps 1, 1.2: the first is full at λ = 1, and the second has the rest at λ = 5/3.
    np.testing.assert_allclose(_budgets(_state([0.5, 0.6], [1.0, 0.0]), [0, 1]), [1, 1], rtol=1e-6)
    np.testing.assert_allclose(
      _budgets(_state([0.5, 0.7, 0.6], [1.0, 0.0, 0.0]), [0, 2, 1]), [1, 2 * 0.6 / 1.3, 2 * 0.7 / 1.3], rtol=1e-6
    )

  @pytest.mark.slow
  @given(st.lists(st.tuples(st.floats(0.5, 2, width=32), st.floats(0, 3, width=32)), min_size=1, max_size=30))
  @settings(max_examples=100)
  def test_sums_and_caps(self, clients):
    preferences, credits = np.float32(clients).T
    found = _budgets(_state(preferences, credits), range(len(clients)))
    np.testing.assert_allclose(found.sum(), len(clients), rtol=1e-5)  # As much as under the uniform rule.
    assert (found <= 2 * preferences * (1 + 1e-6)).all() and (found > 0).all()
    # Fair: below the cap, budgets are in proportion to shares, and nobody is full whose level is above the others'.
    level = found / (preferences * (1 + np.minimum(credits, 1)))
    below = found < 2 * preferences * (1 - 1e-5)
    assert not below.any() or np.allclose(level[below], level[below][0], rtol=1e-4)
    assert not below.any() or (level <= level[below][0] * (1 + 1e-4)).all()

  def test_a_credit_buys_a_larger_budget_and_not_more_than_one_counts(self):
    preferences = [1.0, 1.0]
    poor, rich, richer = (_budgets(_state(preferences, [c, 0.0]), [0, 1])[0] for c in (0.0, 1.0, 3.0))
    assert poor < rich == richer

  def test_earned_by_taking_part_and_by_agreement(self):
    config, state = _config(pt_adp.PtAdp(0.25, 0.5)), _state([1.0] * 4, [0.0, 0.0, 0.0, 0.7])
    ids, agreements = tf.constant([2, 0, 1], tf.int64), tf.constant([1.0, 0.5, -1.0])
    after = config.rule.next_state(config, state, ids, tf.constant([0.9, 0.9, 0.9]), agreements)
    np.testing.assert_allclose(after['credits'], [0.5, 0.25, 0.75, 0.7], rtol=1e-6)
    np.testing.assert_allclose(after['given'], [0.9, 0.9, 0.9, 0], rtol=1e-6)

  def test_what_is_above_the_preference_is_paid_for(self):
    config, state = _config(pt_adp.PtAdp(0.0, 0.0)), _state([0.5, 1.0, 1.0, 1.0], [0.9, 0.2, 0.4, 0.3])
    ids, agreements = tf.constant([0, 1, 2, 3], tf.int64), tf.zeros(4)
    after = config.rule.next_state(config, state, ids, tf.constant([0.75, 1.5, 1.25, 0.8]), agreements)
    np.testing.assert_allclose(after['credits'], [0.4, 0.0, 0.15, 0.3], atol=1e-6)

  def test_nobody(self):
    config, state = _config(), _state([1.0, 2.0], [0.5, 0.0])
    nobody = tf.zeros([0], tf.int64)
    assert _budgets(state, []).shape == (0,)
    after = config.rule.next_state(config, state, nobody, tf.zeros([0]), tf.zeros([0]))
    tf.nest.map_structure(np.testing.assert_array_equal, dict(after), state)

  def test_warmup_is_the_plain_base(self):
    np.testing.assert_array_equal(_budgets(_state([0.5, 2.0]), [0, 1], in_warmup=True), [1, 1])

  def test_largest(self):
    assert _config().largest_budget == 4.0
    # One client of preference 2 in a cohort of small ones cannot have more.
    assert _budgets(_state([2.0] + [0.5] * 9, [1.0] + [0.0] * 9), range(10)).max() <= 4.0

  @pytest.mark.parametrize('values', [dict(participation_credit=-1), dict(agreement_credit=math.nan), dict(seed=-1)])
  def test_bad_values(self, values):
    with pytest.raises(ValueError):
      pt_adp.PtAdp(**values)


class TestConfig:
  def test_uniform_rounds_have_uniform_clients(self):
    assert BudgetConfig(**_BASE, round_rule='uniform').rule == budget_lib.UniformBudgets()
    assert BudgetConfig(**_BASE).rule == budget_lib.ParticipationBudgets()
    with pytest.raises(ValueError, match='gives everyone ε_base, but client_rule is PtAdp'):
      _config(round_rule='uniform')

  def test_what_does_not_fit(self):
    with pytest.raises(ValueError, match='cohort_mean_rate'):
      _config(round_rule='cohort_mean_rate')
    with pytest.raises(TypeError, match='client_rule must be a rule'):
      BudgetConfig(client_rule='pt_adp')
    with pytest.raises(ValueError, match='Add the noise at the server'):
      QuapConfig(4, budget=_config(), noise=NoiseConfig('client', calibration='analytic'))
    with pytest.raises(ValueError, match='can reach 4'):
      QuapConfig(4, budget=_config())


class TestRounds:
  """Updates of two entries on the one, critical layer."""

  def _config(self, placement='none', **overrides):
    values = dict(
      num_clients=6,
      clip=clip_rules.Fixed(1.0),
      critical_layers='all',
      budget=_config(pt_adp.PtAdp(0.1, 0.5)),
      noise=NoiseConfig(placement, _DELTA, scale=1.0, seed=3),
      participation=ParticipationConfig(warmup_rounds=0),
    )
    return QuapConfig(**{**values, **overrides})

  def _round(self, config, state, cohort):
    process = rounds.Process(config, [[2]])
    state = process.initialize() if state is None else state
    return process.next(state, [[u] for u in cohort.values()], list(cohort))

  def test_agreement_is_with_the_round_before(self):
    config = self._config()
    state, _, _ = self._round(config, None, {0: [3, 0], 1: [0, 0.5]})
    np.testing.assert_allclose(state.budget['aggregate'][0], [0.5, 0.25])
    np.testing.assert_allclose(state.budget['credits'], [0.1, 0.1, 0, 0, 0, 0])
    # An empty round is none.
    state, _, _ = self._round(config, state, {})
    np.testing.assert_allclose(state.budget['aggregate'][0], [0.5, 0.25])
    # Along, across, against, not finite: only the first has anything for it.
    state, _, _ = self._round(config, state, {4: [20, 10], 5: [-1, 2], 2: [-2, -1], 3: [math.nan, 1]})
    np.testing.assert_allclose(state.budget['credits'], [0.1, 0.1, 0.1, 0.1, 0.6, 0.1], rtol=1e-6)

  def test_noise_is_that_of_all_together(self):
    budgets = BudgetConfig(0.5, 2, round_rule='each_own', client_rule=pt_adp.PtAdp())
    config = self._config('server', budget=budgets)
    state, _, measurements = self._round(config, None, {0: [3, 0], 3: [0, 0.5]})
    given = state.budget['given']
    np.testing.assert_allclose(given.sum(), 0.5, rtol=1e-6)
    assert given[0] != given[3]
    expected = math.hypot(4 / given[0], 4 / given[3])
    np.testing.assert_allclose(measurements['noise_multiplier'], expected, rtol=1e-5)
    np.testing.assert_allclose(measurements['sigma'], expected / 2, rtol=1e-5)
    np.testing.assert_allclose(measurements['epsilon'], 0.25, rtol=1e-6)

  def test_each_own_is_for_any_rule(self):
    config = self._config('server', budget=BudgetConfig(0.5, 2, alpha=1.0, beta=math.log(2), round_rule='each_own'))
    epsilon, noise_multiplier = config.round_noise(tf.constant([0.0, 1.0]), False)
    np.testing.assert_allclose([epsilon, noise_multiplier], [0.4375, math.hypot(4 / 0.5, 4 / 0.375)], rtol=1e-6)


class TestAgreement:
  @pytest.mark.parametrize(
    'update, other, scale, expected',
    [
      ([3, 4], 1.0, 1.0, 1.0),
      ([-6, -8], 1.0, 1.0, -1.0),
      ([4, -3], 1.0, 1.0, 0.0),
      ([1, 0], 1.0, 1.0, 0.6),
      ([0, 0], 1.0, 1.0, 0.0),
      ([math.inf, 0], 1.0, 1.0, 0.0),
      ([math.nan, 4], 1.0, 1.0, 0.0),
      # The critical part has a cosine, but the norm is NaN: of the whole update, and of one too large for float32.
      ([3, 4], math.nan, 1.0, 0.0),
      ([1e30, 0], 1.0, 1e-10, 0.0),
      ([1e30, 0], 1.0, 1.0, 0.6),
    ],
  )
  def test_by_hand(self, update, other, scale, expected):
    updates = [tf.fill([3], other), tf.constant(update, tf.float32)]
    config = QuapConfig(4, clip=clip_rules.Fixed(1.0), budget=_config(), noise=NoiseConfig('none'))
    one = rounds.Process(config, [[3], [2]], rounds.one_dense((1,), 2)).rounds
    announced = dict(scale=scale, budget=[tf.constant([0.3, 0.4])])
    found = one.report(updates, dict(client_id=tf.constant(1, tf.int64)), announced)['observation']
    np.testing.assert_allclose(found, expected, atol=1e-6)

  def test_before_there_is_an_aggregate(self):
    assert pt_adp.PtAdp().observe([tf.ones(2)], [tf.zeros(2)]) == 0
