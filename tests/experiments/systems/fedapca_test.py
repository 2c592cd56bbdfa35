"""Tests of `quap_tff.mechanisms.parts.weighting`: shares by hand, and what the noise and the ledger make of them."""

import collections
import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from experiments.systems import fedapca
from experiments.systems import robust
from quap_tff import plans
from quap_tff import runtime
from quap_tff.federated import aggregation
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import weighting
from quap_tff.mechanisms.parts.budgets import BudgetConfig
from quap_tff.mechanisms.parts.participation import ParticipationConfig
from quap_tff.mechanisms.quap.config import NoiseConfig
from quap_tff.mechanisms.quap.config import QuapConfig

_DELTA = 1.25 * np.exp(-8)  # √(2·ln(1.25/δ)) = 4.


def _shares(budgets, clusters=2):
  found = fedapca.Clusters(clusters).shares(np.float32(budgets), lambda b: 4 / b)
  as_tensor = fedapca.Clusters(clusters).shares(tf.constant(budgets, tf.float32), lambda b: 4 / b)
  np.testing.assert_allclose(as_tensor, found, rtol=1e-6)
  return found


class TestClusters:
  def test_by_hand(self):
    # Clusters {1, 1} and {2}: the variances of their means are 2·16/4 = 8 and 4, so λ ∝ 1/8, 1/4.
    np.testing.assert_allclose(_shares([1, 2, 1]), [0.5, 2, 0.5], rtol=1e-6)

  def test_budgets_in_one_cluster_count_the_same(self):
    # ⌊2·(1.2 - 1)/1⌋ = 0: the mean of the first cluster has variance (16 + 16/1.44)/4.
    low = 2 / (16 + 16 / 1.44)
    np.testing.assert_allclose(_shares([1, 1.2, 2]), 3 / (2 * low + 0.25) * np.array([low, low, 0.25]), rtol=1e-5)

  @pytest.mark.parametrize('budgets, clusters', [([1, 3, 2], 1), ([2, 2, 2, 2], 3), ([0.7], 3)])
  def test_one_cluster(self, budgets, clusters):
    np.testing.assert_allclose(_shares(budgets, clusters), np.ones(len(budgets)), rtol=1e-6)

  def test_nobody(self):
    assert fedapca.Clusters().shares(np.zeros(0, np.float32), lambda b: 4 / b).shape == (0,)

  def test_equal(self):
    assert weighting.Equal().shares(np.float32([1, 5]), None).tolist() == [1, 1]

  @pytest.mark.parametrize('clusters', [0, -1, 2.5])
  def test_bad_clusters(self, clusters):
    with pytest.raises(ValueError, match='clusters'):
      fedapca.Clusters(clusters)


def _config(**overrides):
  values = dict(
    num_clients=4,
    budget=BudgetConfig(epsilon_total=0.4, num_rounds=1, alpha=1.0, round_rule='each_own'),
    participation=ParticipationConfig(warmup_rounds=0),
    clip=clip_rules.Fixed(5.0),
    critical_layers='all',
    noise=NoiseConfig(delta=_DELTA),
    weighting=fedapca.Clusters(2),
  )
  return QuapConfig(**{**values, **overrides})


class TestMechanism:
  def test_the_noise_is_that_of_the_weighted_sum(self):
    # Budgets 1, 2, 1: shares 1/2, 2, 1/2 and z = 4, 2, 4, so √(2² + 4² + 2²).
    _, found = _config().round_noise(tf.zeros([3]), False, tf.constant([1.0, 2.0, 1.0]))
    assert float(found) == pytest.approx(np.sqrt(24), rel=1e-6)

  def test_the_ledger_holds_the_largest_share_as_one(self):
    record = _config().cost(np.array([3, 0, 1]), np.array([1.0, 2.0, 1.0]), np.sqrt(24), 5.0)
    np.testing.assert_allclose(record.weights, [0.25, 1, 0.25], rtol=1e-6)
    assert record.noise_multiplier == pytest.approx(np.sqrt(24) / 2)

  @pytest.mark.slow
  def test_clients_add_their_share_of_their_clipped_update(self):
    config = _config(noise=NoiseConfig('none', delta=_DELTA))
    value_type = tff.to_type(collections.OrderedDict(kernel=(np.float32, [1, 2])))
    process = aggregation.AggregationFactory(config).create(value_type, tff.TensorType(np.int64))
    value = lambda *entries: collections.OrderedDict(kernel=np.float32([entries]))
    with runtime.activate():
      state = process.initialize()
      # Clients 0 and 1 come twice, client 2 in round 2 only: rates 1, 1, 1/2.
      state = process.next(state, [value(1, 0), value(1, 0)], [np.int64(0), np.int64(1)]).state
      found = process.next(state, [value(30, 40), value(0, 1), value(2, 0)], [np.int64(i) for i in (2, 0, 1)]).result
    rare, often = 0.4 * (1 + np.exp(-1)), 0.4 * (1 + np.exp(-2))
    share = lambda budget: budget**2 / (rare**2 + 2 * often**2)  # One over z², over the sum of the three.
    expected = share(rare) * np.array([3, 4]) + share(often) * np.array([2, 1])
    np.testing.assert_allclose(found['kernel'][0], expected, rtol=1e-5)

  @pytest.mark.parametrize(
    'overrides',
    [
      dict(aggregator=robust.Median()),
      dict(noise=NoiseConfig('client', delta=_DELTA)),
      dict(budget=BudgetConfig(epsilon_total=0.4, num_rounds=1)),
    ],
  )
  def test_what_it_does_not_go_with(self, overrides):
    with pytest.raises(ValueError, match='round_rule="each_own"'):
      _config(**overrides)

  def test_something_else(self):
    with pytest.raises(TypeError, match='quap_tff.mechanisms.parts.weighting'):
      _config(weighting='clusters')

  def test_an_equal_weighting_leaves_the_record_as_it_was(self):
    plan = plans.Plan(_config(weighting=weighting.Equal()))
    state = types.SimpleNamespace(round=1, participation=dict(counts=np.array([1, 0, 1, 0], np.int32)), budget={})
    measured = dict(noise_multiplier=7.0, clipping_norm=5.0, cohort_size=2)
    record = plan.recorded(state, measured, np.array([0, 2]))
    assert record.weights.tolist() == [1, 1] and record.noise_multiplier == 7.0
