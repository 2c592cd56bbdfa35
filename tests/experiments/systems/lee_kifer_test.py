"""Tests of `quap_tff.federated.lee_kifer.line_search`: the account by hand, releases, and the size of the noise."""

import math

import numpy as np
import pytest

from experiments.systems import lee_kifer
from quap_tff import accounting
from quap_tff import plans
from quap_tff.common.lazy import tf
from quap_tff.common.numbers import tradeoff
from tests.quap_tff import noise_checks


def _config(**overrides):
  values = dict(num_clients=6, epsilon=2.0, delta=1e-5, planned_rounds=4, noise_seed=3)
  return lee_kifer.LineSearchConfig(**{**values, **overrides})


def _ids(*ids):
  return tf.constant(ids, tf.int64)


def _finished(config, state, ids, gains):
  return lee_kifer.chosen_step(config, state, lee_kifer.plan_round(config, state, ids), tf.constant(gains))


class TestAccount:
  def test_an_even_budget_lasts_for_the_planned_rounds(self):
    config = _config(lasts=1.0, growth=0.0)
    # 4·(1/z² + 1/c²) = μ_max², a tenth of it for the losses.
    assert 4 / config.loss_multiplier**2 == pytest.approx(0.1 * config.limit)
    assert 4 / config.first_multiplier**2 == pytest.approx(0.9 * config.limit)
    assert tradeoff.epsilon_of(math.sqrt(config.limit), 1e-5) == pytest.approx(2.0, rel=1e-6)

  def test_a_client_that_cannot_pay_adds_nothing_and_is_not_charged(self):
    config = _config()
    cost = 1 / config.first_multiplier**2 + 1 / config.loss_multiplier**2
    state = lee_kifer.initial_state(config)
    spent = np.array([0, 0, config.limit - 0.5 * cost, config.limit - 1.01 * cost, 0, 0])
    plan = lee_kifer.plan_round(config, state._replace(spent=tf.constant(spent)), _ids(2, 3, 0))
    assert plan.weights.numpy().tolist() == [0, 1, 1]
    np.testing.assert_allclose(plan.spent, spent + cost * np.array([1, 0, 0, 1, 0, 0]), rtol=1e-12)

  def test_whatever_is_released_nobody_passes_the_limit(self):
    config = _config(growth=1.5)
    state = lee_kifer.initial_state(config)
    for t in range(12):
      step, state = _finished(config, state, _ids(0, 1 + t % 5), [-1e3] * 3)
      assert float(step) == 0
    assert float(tf.reduce_max(state.spent)) <= config.limit
    assert float(state.spent[0]) > 0.5 * config.limit and float(state.weights[0]) == 0

  def test_the_report_is_the_bound_of_the_filter(self):
    config = _config(noise_seed=None)
    plan = plans.Plan(config, client_metrics=False)
    ledger = plan.new_ledger()
    state = lee_kifer.initial_state(config)._replace(weights=tf.constant([1.0, 0, 1.0, 0, 0, 0]))
    measured = dict(noise_multiplier=config.first_multiplier, clipping_norm=1.0, cohort_size=3)
    record = plan.recorded(state, measured, np.array([0, 2, 3]))
    assert record.weights.tolist() == [1, 1, 0] and record.count_noise_multiplier == config.loss_multiplier
    ledger.append(record)
    # What the ledger says was spent is exact, and less than the bound.
    mu = math.sqrt(1 / config.first_multiplier**2 + 1 / config.loss_multiplier**2)
    np.testing.assert_allclose(accounting.total_mu(ledger).whole, [mu, 0, mu, 0, 0, 0], rtol=1e-9)
    formal = plan.report(ledger).formal
    np.testing.assert_allclose(formal.epsilon, [2, 0, 2, 2, 0, 0], rtol=1e-6)
    assert f'ρ = {config.limit / 2:.4g}' in formal.text and 'chosen from noised releases' in formal.text

  def test_a_known_seed_leaves_no_figure(self):
    assert not plans.Plan(_config()).protection.model_protected


class TestStep:
  def test_the_best_step_is_taken(self):
    config = _config(epsilon=100.0, planned_rounds=1)
    step, state = _finished(config, lee_kifer.initial_state(config), _ids(0, 1), [5.0, 90.0, -3.0])
    assert float(step) == 1.0 and float(state.multiplier) == config.first_multiplier
    assert (int(state.round), int(state.noise.counter)) == (1, 1)

  def test_if_none_helps_the_model_stays_and_the_next_gradient_gets_more(self):
    config = _config(epsilon=100.0, planned_rounds=1, growth=0.44)
    step, state = _finished(config, lee_kifer.initial_state(config), _ids(0, 1), [-5.0, -90.0, -3.0])
    assert float(step) == 0 and float(state.multiplier) == pytest.approx(config.first_multiplier / 1.2)

  def test_nobody(self):
    config = _config()
    state = lee_kifer.initial_state(config)
    plan = lee_kifer.plan_round(config, state, _ids())
    step, after = lee_kifer.chosen_step(config, state, plan, tf.constant([9.0, 9.0, 9.0]))
    (direction,) = lee_kifer.noised_direction(config, state, plan, [tf.ones([2])])
    assert float(step) == 0 and direction.numpy().tolist() == [0, 0]
    assert float(after.multiplier) == config.first_multiplier and int(after.noise.counter) == 0


class TestBounds:
  def test_by_hand(self):
    found = lee_kifer.bounded([tf.constant([3.0]), tf.constant([4.0])], 1.0, tf.constant(1.0))
    np.testing.assert_allclose([found[0][0], found[1][0]], [0.6, 0.8], rtol=1e-5)
    assert np.hypot(float(found[0]), float(found[1])) <= 1.0

  @pytest.mark.parametrize('values, weight', [([3.0, float('nan')], 1.0), ([math.inf, 1.0], 1.0), ([3.0, 4.0], 0.0)])
  def test_zero(self, values, weight):
    assert lee_kifer.bounded([tf.constant(values)], 1.0, tf.constant(weight))[0].numpy().tolist() == [0, 0]


class TestNoise:
  def test_of_the_gradient(self):
    config = _config(clip=0.5)
    state = lee_kifer.initial_state(config)
    plan = lee_kifer.plan_round(config, state, _ids(0, 4))
    found, other = lee_kifer.noised_direction(config, state, plan, [tf.ones([40, 50]), tf.ones([2000])])
    stddev = config.first_multiplier * 0.5 / 2
    noise_checks.assert_gaussian(found.numpy() - 0.5, stddev)
    noise_checks.assert_uncorrelated(found, other)

  @pytest.mark.slow
  def test_of_the_losses(self):
    steps = tuple(1.0 + i / 1e4 for i in range(800))
    config = _config(steps=steps, loss_clip=0.25, epsilon=100.0)
    best = []
    # The largest of 800 gains of zero, of N(0, (c·B)²): its distribution gives the scale away.
    scale = config.loss_multiplier * 0.25
    for counter in range(30):
      state = lee_kifer.initial_state(config)
      state = state._replace(noise=state.noise._replace(counter=tf.constant(counter, tf.int64)))
      for shift, taken in ((-2.5 * scale, 1), (-4.3 * scale, 0)):
        step, _ = _finished(config, state, _ids(0), [shift] * 800)
        best.append((float(step) > 0) == bool(taken))
    # P(max of 800 < 2.5σ) = 0.7%, P(max < 4.3σ) = 99.3%. Under 2/3 or 3/2 of σ, one of them is below 4%.
    assert sum(best) >= 56


class TestConfig:
  @pytest.mark.parametrize(
    'overrides, message',
    [
      (dict(steps=()), 'at least one step size'),
      (dict(steps=(0.0,)), 'step size'),
      (dict(growth=-1.0), 'growth'),
      (dict(test_share=1.0), 'test_share'),
      (dict(lasts=0.5), 'lasts'),
      (dict(loss_clip=0.0), 'loss_clip'),
      (dict(clip=-1.0), 'clipping norm'),
      (dict(epsilon=0.0), 'epsilon'),
    ],
  )
  def test_bad_parameters(self, overrides, message):
    with pytest.raises(ValueError, match=message):
      _config(**overrides)
