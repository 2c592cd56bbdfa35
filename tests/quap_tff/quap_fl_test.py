"""QuAP-FL as `quap_fl` writes it down is QuAP-FL as it trains: as a TFF process, and as the mechanism's functions."""

import math

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow_federated as tff

import quap_tff
from quap_tff import plans
from quap_tff import quap_fl
from quap_tff.mechanisms.parts import budgets
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import participation
from quap_tff.mechanisms.parts.budgets import BudgetConfig
from quap_tff.mechanisms.parts.participation import ParticipationConfig
from quap_tff.mechanisms.quap.config import NoiseConfig
from tests.quap_tff import linear_model
from tests.quap_tff import noise_checks
from tests.quap_tff import rounds

pytestmark = pytest.mark.slow

# The model is a product of two kernels. The last one is the critical layer.
_WIDTHS, _CRITICAL, _LEARNING_RATE = (1, 20, 20), [1], 0.5
_COHORTS = [[2, 0, 3], [4], [], [1, 3], [3, 0], [3, 4, 1, 0]]
_CONFIGS = {
  'the documents': dict(),
  'clipped by the norm before, rates by EMA': dict(
    clip=dict(timing='previous', initial_clip=0.5, momentum=0.5, quantile=0.5, min_clip=0.0),
    participation=dict(rate='ema', ema_weight=0.3, warmup_rounds=2, count_during_warmup=False),
    budget=dict(round_rule='cohort_min'),
    noise=dict(calibration='analytic'),
  ),
  'noise of clients on a layer of an update that is clipped whole': dict(
    clip=dict(max_clip=0.3), clip_scope='all_layers', noise=dict(placement='client')
  ),
  'noise of each budget': dict(budget=dict(round_rule='each_own'), clip=dict(momentum=0.0)),
}


def _config(clip=None, participation=None, budget=None, noise=None, **fields):
  return quap_tff.QuapConfig(
    num_clients=5,
    clip=clip_rules.QuantileEma(**(clip or {})),
    participation=ParticipationConfig(**{'warmup_rounds': 1, **(participation or {})}),
    budget=BudgetConfig(**{'epsilon_total': 3.0, 'num_rounds': 6, **(budget or {})}),
    noise=NoiseConfig(**{'seed': 4, **(noise or {})}),
    **fields,
  )


class _Silent(np.random.Generator):
  """A generator of noise that draws zeros."""

  def __init__(self):
    super().__init__(np.random.PCG64(0))

  def normal(self, loc=0.0, scale=1.0, size=None):
    return np.zeros(size)


def _example(client):
  """The x and y of a client's example; client 4 diverges."""
  return 0.1 * (client + 1), math.nan if client == 4 else client - 1.5


def _local_update(weights, client):
  """g_i of a step of gradient descent on the mean of (x·first·last - y)²."""
  (x, y), (first, last) = _example(client), (np.asarray(kernel, np.float64) for kernel in weights)
  slope = 2 * (x * first @ last - y) / last.shape[1]
  return [_LEARNING_RATE * x * slope @ last.T, _LEARNING_RATE * x * first.T @ slope]


class TestProcess:
  """The process that trains, round by round: TFF's federated computation of client work, aggregation and step."""

  @pytest.mark.parametrize(
    'name', [pytest.param(name, marks=pytest.mark.thorough if i > 1 else ()) for i, name in enumerate(_CONFIGS)]
  )
  def test_each_round_is_that_of_the_documents(self, name, context):
    config = _config(**_CONFIGS[name])
    plan, noises = plans.Plan(config), []
    model, optimizer = linear_model.functional(*_WIDTHS), tff.learning.optimizers.build_sgdm(_LEARNING_RATE)
    process = plan.build_process(model, client_optimizer=optimizer).process
    state = process.initialize()
    expected = quap_fl.initial_state(config, linear_model.weights(process, state))
    for cohort in _COHORTS:
      before = linear_model.weights(process, state)
      updates = {client: _local_update(before, client) for client in cohort}
      data = [linear_model.client(i, y, x=x, width=_WIDTHS[-1]) for i in cohort for x, y in [_example(i)]]
      output = process.next(state, data)
      state, record, measured = (
        output.state,
        plan.record(output, np.array(cohort, np.int64)),
        output.metrics['aggregator'],
      )
      expected, played = quap_fl.play_round(config, _CRITICAL, expected._replace(weights=before), updates, _Silent())
      order = np.argsort(cohort)
      np.testing.assert_array_equal(state.aggregator.participation['counts'], expected.counts)
      np.testing.assert_allclose(state.aggregator.clip, expected.clip, rtol=1e-5)
      np.testing.assert_allclose(measured['sigma'], played.sigma, rtol=1e-5)
      np.testing.assert_allclose(
        np.asarray(record.budgets)[np.argsort(record.cohort)], played.budgets[order], rtol=1e-5
      )
      if cohort:
        np.testing.assert_allclose(measured['clipping_norm'], played.clip, rtol=1e-5)
        np.testing.assert_allclose(record.noise_multiplier, played.sigma * len(cohort) / played.clip, rtol=1e-5)
      if config.noise.placement == 'server' and config.budget.round_rule != 'each_own':
        np.testing.assert_allclose(measured['epsilon'], played.budget, rtol=1e-5)
      hidden, noised = linear_model.weights(process, state)
      np.testing.assert_allclose(hidden, expected.weights[0], rtol=1e-5, atol=1e-6)
      if played.sigma:
        noises.append((noised - expected.weights[1]) / played.sigma)
        noise_checks.assert_gaussian(noises[-1], 1.0)
      else:
        np.testing.assert_allclose(noised, expected.weights[1], rtol=1e-5)
    assert len(noises) == 5  # All but the round with nobody.


class TestMechanism:
  """The mechanism's functions, over any history."""

  @given(
    history=st.lists(st.lists(st.integers(0, 4), unique=True), min_size=1, max_size=6),
    rate=st.sampled_from(participation.RATES),
    counts=st.booleans(),
    rule=st.sampled_from(sorted(budgets.ROUND_RULES)),
    placement=st.sampled_from(['server', 'client']),
    warmup=st.integers(0, 3),
    scope=st.sampled_from(['critical', 'all_layers']),
    timing=st.sampled_from(['current', 'previous']),
    seed=st.integers(0, 99),
  )
  @settings(max_examples=25)
  def test_any_history(self, history, rate, counts, rule, placement, warmup, scope, timing, seed):
    config = _config(
      clip=dict(timing=timing, initial_clip=None if timing == 'current' else 0.5, momentum=0.5),
      participation=dict(rate=rate, ema_weight=0.3, warmup_rounds=warmup, count_during_warmup=counts),
      budget=dict(round_rule=rule),
      noise=dict(placement=placement),
      clip_scope=scope,
    )
    zeros, generator = [np.zeros(2), np.zeros(2)], np.random.default_rng(seed)
    process = rounds.Process(config, [[2], [2]], rounds.one_dense(_CRITICAL, 2))
    state, expected = process.initialize(), quap_fl.initial_state(config, zeros)
    for cohort in history:
      updates = {client: [np.float32(generator.lognormal(0, 2, 2)) for _ in zeros] for client in cohort}
      state, result, measured = process.next(state, list(updates.values()), cohort)
      expected, played = quap_fl.play_round(config, _CRITICAL, expected, updates, _Silent())
      np.testing.assert_array_equal(state.participation['counts'], expected.counts)
      np.testing.assert_allclose(state.clip, expected.clip, rtol=1e-5)
      np.testing.assert_allclose(measured['sigma'], played.sigma, rtol=1e-5)
      np.testing.assert_allclose(result[0], played.update[0], rtol=1e-5)
      np.testing.assert_allclose(measured['signal_norm'], np.linalg.norm(played.update[1]), rtol=1e-5)
      if placement == 'server':  # Else it is the mean of the clients' budgets.
        np.testing.assert_allclose(measured['epsilon'], played.budget, rtol=1e-5)


class TestOracle:
  def test_noise_of_the_stated_size_on_the_critical_layer_alone(self):
    config, weights = _config(), [np.zeros(500), np.zeros(500)]
    update = [np.full(500, 0.1), np.full(500, 0.2)]
    _, played = quap_fl.play_round(
      config, [1], quap_fl.initial_state(config, weights), {3: update}, np.random.default_rng(0)
    )
    np.testing.assert_array_equal(played.update[0], update[0])
    noise_checks.assert_gaussian(played.update[1] - update[1], math.sqrt(2 * math.log(1.25e5)) / 0.5 * played.clip)

  def test_training_descends(self):
    # Both clients' updates of 0.8·w are clipped to 1 as long as w is above 1.25: 10, 9, 8, ...
    config = _config(clip=dict(min_clip=1.0, max_clip=1.0), noise=dict(placement='none'))
    found = quap_fl.train(config, [0], [np.array([10.0])], [[0, 1]] * 8, lambda w, i: [0.8 * w[0]], _Silent())
    np.testing.assert_allclose(found[0], 2.0)
