"""Tests of `experiments.systems.local_dp`: what a client sends, and what it is charged."""

import collections
import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf

from experiments.systems import local_dp
from quap_tff import accounting
from quap_tff import plans
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts.budgets import BudgetConfig
from quap_tff.mechanisms.parts.participation import ParticipationConfig
from quap_tff.mechanisms.quap.config import NoiseConfig
from tests.quap_tff import examples
from tests.quap_tff import noise_checks
from tests.quap_tff import rounds

_VALUE = collections.OrderedDict(a=tf.TensorSpec([2]), b=tf.TensorSpec([400]))
_TINY_NOISE = 1e-9


def _config(clip=1.0, **overrides):
  values = dict(
    clip=clip_rules.Fixed(clip),
    budget=BudgetConfig(epsilon_total=8.0, num_rounds=4),
    participation=ParticipationConfig(warmup_rounds=0),
    noise=NoiseConfig('client', calibration='analytic', seed=3),
  )
  return examples.whole(**{**values, **overrides})


def _value(a, scale=0.0):
  return collections.OrderedDict(a=np.float32(a), b=np.full([400], scale, np.float32))


def _randomize(update, clip=1.0, noise_multiplier=_TINY_NOISE, seed=(1, 2)):
  tensors = [tf.constant(u, tf.float32) for u in update]
  # With this scale a budget of 1 has the noise multiplier.
  scale = noise_multiplier * tradeoff.mu_at_most(1.0, 1e-5)
  noise = NoiseConfig('client', calibration='analytic', scale=scale, seed=3)
  budget = BudgetConfig(epsilon_total=4.0, num_rounds=4, round_rule='uniform')
  one = rounds.Process(
    local_dp.LocalPrivacy(_config(clip, noise=noise, budget=budget)), [u.shape for u in tensors]
  ).rounds
  announced = dict(one.announce(one.initial_state()), seed=tf.constant(seed, tf.int64))
  sent = one.contribution(dict(enumerate(tensors)), dict(client_id=tf.constant(1, tf.int64)), announced)
  return [np.asarray(s) for s in sent]


class TestRandomize:
  @pytest.mark.slow
  @pytest.mark.parametrize(
    'update, sent',
    [
      ([[3.0], [4.0, 0.0]], [[0.6], [0.8, 0.0]]),  # Norm 5, clipped to 1 over all tensors together.
      ([[0.3], [0.4, 0.0]], [[0.3], [0.4, 0.0]]),
      ([[0.0], [0.0, 0.0]], [[0.0], [0.0, 0.0]]),
      ([[math.nan], [4.0, 0.0]], [[0.0], [0.0, 0.0]]),
      ([[3.0], [math.inf, 0.0]], [[0.0], [0.0, 0.0]]),
    ],
  )
  def test_clips_the_whole_update(self, update, sent):
    for found, expected in zip(_randomize(update), sent):
      np.testing.assert_allclose(found, expected, atol=2e-6)

  def test_the_noise_is_for_twice_the_clipping_norm(self):
    (sent,) = _randomize([np.zeros(5000)], clip=0.5, noise_multiplier=3.0)
    noise_checks.assert_gaussian(sent, 3.0 * 2 * 0.5)

  def test_an_update_that_is_not_finite_is_noised_like_any_other(self):
    (sent,) = _randomize([np.full(5000, np.nan)], clip=0.5, noise_multiplier=3.0)
    noise_checks.assert_gaussian(sent, 3.0)

  def test_each_tensor_and_each_seed_has_noise_of_its_own(self):
    first, second = _randomize([np.zeros(500), np.zeros(500)], noise_multiplier=1.0)
    other, _ = _randomize([np.zeros(500), np.zeros(500)], noise_multiplier=1.0, seed=(1, 3))
    noise_checks.assert_uncorrelated(first, second)
    noise_checks.assert_uncorrelated(first, other)


@pytest.mark.slow
class TestAggregation:
  def test_the_mean_of_messages(self):
    scale = 1e-9
    config = _config(noise=NoiseConfig('client', calibration='analytic', scale=scale, seed=3))
    process = rounds.Process(local_dp.LocalPrivacy(config), _VALUE)
    output = process.next(process.initialize(), [_value([3, 4]), _value([0, 0.5])], [2, 0])
    np.testing.assert_allclose(output.result['a'], [0.3, 0.65], atol=1e-5)
    assert list(output.state.participation['counts']) == [1, 0, 1, 0]
    assert (output.state.round, output.state.noise.counter) == (1, 1)

  def test_noise_by_each_clients_own_budget(self):
    # Round 2: client 0 has a rate of 1, client 1 one of 1/2. ε = 2·(1 + exp(-2p)/2).
    config = _config(clip=0.25)
    process = rounds.Process(local_dp.LocalPrivacy(config), _VALUE)
    state = process.next(process.initialize(), [_value([0, 0])], [0]).state
    output = process.next(state, [_value([0, 0])] * 2, [0, 1])
    z = [1 / tradeoff.mu_at_most(2 * (1 + 0.5 * math.exp(-2 * rate)), 1e-5) for rate in (1, 0.5)]
    sigma = 2 * 0.25 * math.hypot(*z) / 2
    np.testing.assert_allclose(output.measurements['sigma'], sigma, rtol=1e-6)
    noise_checks.assert_gaussian(np.concatenate([output.result['a'], output.result['b']]), sigma)

  def test_nothing_exact_is_sent_or_reported(self):
    process = rounds.Process(local_dp.LocalPrivacy(_config()), _VALUE)
    measured = [
      process.next(process.initialize(), [_value(a), _value([0, 0])], [0, 1]).measurements
      for a in ([3, 4], [np.nan, 0])
    ]
    assert measured[0].keys() == measured[1].keys()
    assert all(np.array_equal(measured[0][name], measured[1][name]) for name in measured[0])

  def test_a_round_of_nobody_changes_nothing(self):
    process = rounds.Process(local_dp.LocalPrivacy(_config()), _VALUE)
    output = process.next(process.initialize(), [], [])
    assert not np.any(output.result['b']) and output.state.noise.counter == 0 and output.state.round == 1

  @pytest.mark.parametrize(
    'overrides, message',
    [
      (dict(noise=NoiseConfig('server', calibration='analytic')), 'noise at the clients'),
      (dict(clip=clip_rules.QuantileEma()), 'use clip rule fixed'),
      (dict(clip=clip_rules.PrivateQuantile()), 'use clip rule fixed'),
      (dict(clip_scope='critical'), 'clip_scope="all_layers"'),
      (dict(critical_layers='final_dense'), 'critical_layers="all"'),
    ],
  )
  def test_what_clients_cannot_do_is_refused(self, overrides, message):
    config = dataclasses.replace(_config(), **overrides)
    with pytest.raises(ValueError, match=message):
      local_dp.LocalPrivacy(config)
    with pytest.raises(ValueError, match=message):
      plans.Plan(local_dp.LocalPrivacy(config))


class TestPlan:
  def _ledger(self, config, cohorts):
    return plans.Plan(local_dp.LocalPrivacy(config)).planned_ledger(cohorts)

  def test_a_release_costs_its_own_budget_exactly(self):
    # In its first round a client has a rate of 1, so ε = 2·(1 + exp(-2)/2), at δ = 1e-5.
    found = accounting.epsilon_by_client(self._ledger(_config(), [[0]]), 1e-5)
    assert found[0] == pytest.approx(2 * (1 + 0.5 * math.exp(-2)), rel=1e-6)
    assert found[1] == 0

  @pytest.mark.slow
  def test_each_client_is_charged_for_its_own_noise(self):
    ledger = self._ledger(_config(), [[0], [0, 1]])
    z = {rate: 1 / tradeoff.mu_at_most(2 * (1 + 0.5 * math.exp(-2 * rate)), 1e-5) for rate in (1, 0.5)}
    np.testing.assert_allclose(
      accounting.total_mu(ledger).whole, [math.hypot(1 / z[1], 1 / z[1]), 1 / z[0.5], 0, 0], rtol=1e-6
    )

  @pytest.mark.slow
  def test_the_account_is_that_of_the_noise_that_is_added(self):
    # What replacing (C in one direction by C in the other) moves, over the noise that is measured.
    config = _config(clip=0.5)
    plan = plans.Plan(local_dp.LocalPrivacy(config))
    process = rounds.Process(plan.mechanism, _VALUE)
    outputs = [process.next(process.initialize(), [_value(a)], [1]) for a in ([9, 0], [-9, 0])]
    moved = float(outputs[0].result['a'][0] - outputs[1].result['a'][0])
    ledger = plan.new_ledger()
    ledger.append(plan.recorded(outputs[0].state, outputs[0].measurements, [1]))
    mu = accounting.total_mu(ledger).whole[1]
    assert moved == pytest.approx(2 * 0.5, rel=1e-5)
    noise_checks.assert_gaussian(outputs[0].result['b'], moved / mu)

  @pytest.mark.slow
  def test_calibrated_to_a_total(self):
    plan = plans.Plan(local_dp.LocalPrivacy(_config())).calibrated([[0, 1], [0, 2], [0]], 5.0)
    spent = accounting.epsilon_by_client(plan.planned_ledger([[0, 1], [0, 2], [0]]), 1e-5)
    assert spent.max() == pytest.approx(5.0, rel=1e-4) and spent.max() <= 5.0

  def test_the_figures_are_of_the_local_model(self):
    plan = plans.Plan(
      local_dp.LocalPrivacy(dataclasses.replace(_config(), noise=NoiseConfig('client', calibration='analytic')))
    )
    ledger = plan.planned_ledger([[0, 1]])
    report = plan.report(ledger)
    assert {figure.neighbours for figure in report.formal.figures} == {accounting.REPLACE_ONE}
    assert {figure.amplification for figure in report.formal.figures} == {'none'}
    assert 'against the server itself' in report.protection.statement
    assert any('each client draws its own noise' in note for note in report.formal.notes)

  def test_a_known_seed_protects_nothing(self):
    assert not plans.Plan(local_dp.LocalPrivacy(_config())).protection.model_protected

  def test_training_metrics_are_refused(self):
    with pytest.raises(ValueError, match='--client_metrics'):
      plans.Plan(local_dp.LocalPrivacy(_config()), client_metrics=True)
