"""Tests of `quap_tff.mechanisms.parts.schedules`, and of budgets that follow one."""

import numpy as np
import pytest

from experiments.systems import dynamic_budget
from experiments.systems import pt_adp
from quap_tff.common.lazy import tf
from quap_tff.mechanisms.parts import budgets
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import schedules
from quap_tff.mechanisms.parts.participation import ParticipationConfig
from quap_tff.mechanisms.quap.config import NoiseConfig
from quap_tff.mechanisms.quap.config import QuapConfig
from tests.quap_tff import rounds


def _factors(growth, rounds):
  return [float(dynamic_budget.Geometric(growth).factor(t, rounds)) for t in range(1, rounds + 1)]


class TestGeometric:
  def test_by_hand(self):
    np.testing.assert_allclose(_factors(4.0, 3), [3 / 7, 6 / 7, 12 / 7], rtol=1e-6)
    np.testing.assert_allclose(_factors(0.25, 3), [12 / 7, 6 / 7, 3 / 7], rtol=1e-6)

  @pytest.mark.parametrize('growth', [0.1, 1.0, 7.5])
  @pytest.mark.parametrize('rounds', [1, 2, 200])
  def test_the_mean_is_one(self, growth, rounds):
    assert np.mean(_factors(growth, rounds)) == pytest.approx(1, rel=1e-5)

  def test_the_last_over_the_first_is_the_growth(self):
    factors = _factors(5.0, 40)
    assert factors[-1] / factors[0] == pytest.approx(5, rel=1e-5)
    assert dynamic_budget.Geometric(5.0).largest(40) == factors[-1]
    assert dynamic_budget.Geometric(0.2).largest(40) == _factors(0.2, 40)[0]

  def test_tensors_and_rounds_beyond_the_plan(self):
    rule = dynamic_budget.Geometric(4.0)
    assert float(rule.factor(tf.constant(2), 3)) == pytest.approx(6 / 7)
    assert float(rule.factor(tf.constant(9), 3)) == pytest.approx(12 / 7)

  @pytest.mark.parametrize('growth', [0.0, -1.0, float('nan'), 1e9])
  def test_bad_growth(self, growth):
    with pytest.raises(ValueError, match='growth'):
      dynamic_budget.Geometric(growth)


def _config(**overrides):
  values = dict(epsilon_total=3.0, num_rounds=3, alpha=0.5, beta=2.0, schedule=dynamic_budget.Geometric(4.0))
  return budgets.BudgetConfig(**{**values, **overrides})


class TestBudgets:
  def test_the_largest_budget_is_that_of_the_largest_factor(self):
    assert _config().largest_budget == pytest.approx(1.5 * 12 / 7)

  def test_the_classic_formula_is_refused_where_a_late_budget_is_too_large(self):
    with pytest.raises(ValueError, match='can reach 1.286'):
      QuapConfig(9, _config(epsilon_total=1.5), clip=clip_rules.Fixed(1.0))
    QuapConfig(9, _config(epsilon_total=1.5, schedule=schedules.Even()), clip=clip_rules.Fixed(1.0))

  def test_budgets_that_depend_on_earlier_ones_take_no_schedule(self):
    with pytest.raises(ValueError, match='no schedule may multiply'):
      _config(client_rule=pt_adp.PtAdp(), round_rule='each_own')

  def test_something_else(self):
    with pytest.raises(TypeError, match='RoundSchedule'):
      _config(schedule=4.0)

  @pytest.mark.slow
  @pytest.mark.parametrize(
    'round_rule',
    [pytest.param(one, marks=pytest.mark.thorough if i > 1 else ()) for i, one in enumerate(budgets.ROUND_RULES)],
  )
  def test_a_round_of_the_mechanism(self, round_rule):
    def epsilon(finished, schedule):
      budget, participation = _config(round_rule=round_rule, schedule=schedule), ParticipationConfig(warmup_rounds=0)
      noise = NoiseConfig(calibration='analytic')
      own = rounds.Process(QuapConfig(9, budget, participation, clip_rules.Fixed(1.0), noise=noise), [[2, 1]]).rounds
      state = own.initial_state()._replace(round=tf.constant(finished))
      reports = dict(client_id=tf.constant([2, 5], tf.int64), norm=tf.constant([0.5, 1.0]))
      return float(own.admit(state, own.announce(state), reports).metrics['epsilon'])

    for finished, factor in enumerate([3 / 7, 6 / 7, 12 / 7]):
      even = epsilon(finished, schedules.Even())
      assert epsilon(finished, dynamic_budget.Geometric(4.0)) == pytest.approx(factor * even, rel=1e-5)

  def test_noise_at_the_clients_follows_it(self):
    config = QuapConfig(
      9, _config(epsilon_total=1.5), clip=clip_rules.Fixed(1.0), noise=NoiseConfig('client', calibration='analytic')
    )
    one = rounds.Process(config, [[2, 1]]).rounds
    assert float(one.announce(one.initial_state())['noise']['budget_factor']) == pytest.approx(3 / 7)
