"""Tests of `quap_tff.mechanisms.parts.budgets`, by hand and against `quap_fl`."""

import dataclasses
import math

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest

from quap_tff import quap_fl
from quap_tff.common.lazy import tf
from quap_tff.mechanisms.parts import budgets
from quap_tff.mechanisms.parts.budgets import BudgetConfig
from quap_tff.mechanisms.parts.participation import ParticipationConfig
from quap_tff.mechanisms.quap.config import NoiseConfig
from quap_tff.mechanisms.quap.config import QuapConfig

_configs = st.builds(
  BudgetConfig,
  epsilon_total=st.floats(0.1, 50),
  num_rounds=st.integers(1, 500),
  alpha=st.floats(0, 4),
  beta=st.floats(0.01, 10),
  round_rule=st.sampled_from(sorted(budgets.ROUND_RULES)),
)
_cohorts = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=30)


def _f32(values):
  return tf.constant(values, tf.float32)


class TestClientBudgets:
  def test_by_hand(self):
    config = BudgetConfig(epsilon_total=4.0, num_rounds=2, alpha=0.5, beta=math.log(2))
    found = budgets.client_budgets(config, _f32([0.0, 1.0, 2.0]), False)
    np.testing.assert_allclose(found, [3.0, 2.5, 2.25], rtol=1e-6)

  def test_at_full_participation_the_budget_is_above_the_base(self):
    # An erratum of the documents: 1.068·ε_base, not ε_base.
    config = BudgetConfig()
    np.testing.assert_allclose(
      budgets.client_budgets(config, _f32([1.0]), False) / config.epsilon_base, [1.0676676], rtol=1e-6
    )

  @pytest.mark.parametrize('rule, in_warmup', [('cohort_mean_rate', True), ('uniform', False)])
  def test_in_the_warmup_and_by_the_uniform_rule_everybody_gets_the_base(self, rule, in_warmup):
    config = BudgetConfig(epsilon_total=4.0, num_rounds=2, round_rule=rule)
    np.testing.assert_array_equal(budgets.client_budgets(config, _f32([0.0, 1.0]), in_warmup), [2.0, 2.0])

  @pytest.mark.slow
  @given(config=_configs, rates=_cohorts)
  @settings(max_examples=60)
  def test_never_outside_base_and_largest(self, config, rates):
    found = budgets.client_budgets(config, _f32(rates), False).numpy()
    assert np.all(found >= config.epsilon_base * (1 - 1e-6))
    assert np.all(found <= config.largest_budget * (1 + 1e-6))
    assert config.largest_budget <= config.epsilon_base * (1 + config.alpha)

  @pytest.mark.slow
  @given(config=_configs, rates=_cohorts)
  @settings(max_examples=60)
  def test_who_is_there_more_often_never_gets_more(self, config, rates):
    found = budgets.client_budgets(config, _f32(sorted(rates)), False).numpy()
    assert np.all(np.diff(found) <= 1e-6 * config.epsilon_base)


class TestRoundBudget:
  @pytest.mark.parametrize(
    'rule, expected',
    [
      ('cohort_mean_rate', 2.5),
      ('cohort_mean_budget', 2.625),
      ('cohort_min', 2.25),
      ('each_own', 2.625),
      ('uniform', 2.0),
    ],
  )
  def test_by_hand(self, rule, expected):
    # Rates 0 and 2 (as numbers): budgets 3 and 2.25, the budget of their mean 2.5.
    config = BudgetConfig(epsilon_total=4.0, num_rounds=2, alpha=0.5, beta=math.log(2), round_rule=rule)
    np.testing.assert_allclose(budgets.round_budget(config, _f32([0.0, 2.0]), False), expected, rtol=1e-6)

  @pytest.mark.slow
  @given(config=_configs, rates=st.just([]) | _cohorts, in_warmup=st.booleans())
  @settings(max_examples=100)
  def test_any_cohort(self, config, rates, in_warmup):
    found = budgets.round_budget(config, _f32(rates), in_warmup)
    assert found.shape == [] and found.dtype == tf.float32
    whole = QuapConfig(1, config, ParticipationConfig(warmup_rounds=1), noise=NoiseConfig('none'))
    if rates:
      expected = quap_fl.round_budget(whole, 1 if in_warmup else 2, np.array(rates))
    else:
      expected = config.epsilon_base
    np.testing.assert_allclose(found, expected, rtol=2e-6)

  @pytest.mark.slow
  @given(config=_configs, rates=_cohorts)
  @settings(max_examples=60)
  def test_never_above_the_largest(self, config, rates):
    assert budgets.round_budget(config, _f32(rates), False) <= config.largest_budget * (1 + 1e-6)

  @pytest.mark.slow
  @given(config=_configs, rates=_cohorts)
  @settings(max_examples=60)
  def test_rules_are_ordered(self, config, rates):
    def with_rule(rule):
      return float(budgets.round_budget(dataclasses.replace(config, round_rule=rule), _f32(rates), False))

    values = [with_rule(r) for r in ('uniform', 'cohort_min', 'cohort_mean_rate', 'cohort_mean_budget')]
    assert np.all(np.diff(values) >= -1e-5 * config.epsilon_base)


@pytest.mark.parametrize('rule, largest', [('cohort_mean_rate', 3.0), ('uniform', 2.0)])
def test_the_largest_budget_is_reached_by_those_never_seen(rule, largest):
  config = BudgetConfig(epsilon_total=4.0, num_rounds=2, alpha=0.5, round_rule=rule)
  assert config.epsilon_base == 2.0 and config.largest_budget == largest
