"""Tests of `quap_tff.mechanisms.sparsity`: what is kept, and that the account stays."""

import collections
import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from experiments.systems import local_dp
from experiments.systems import pt_adp
from quap_tff import accounting
from quap_tff import plans
from quap_tff import runtime
from quap_tff.certificates.folders import evidence
from quap_tff.federated import aggregation
from quap_tff.mechanisms import sparsity
from quap_tff.mechanisms.certified.config import CertifiedConfig
from quap_tff.mechanisms.certified.weight_rules import UniformWeights
from quap_tff.mechanisms.noise import correlation
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts.budgets import BudgetConfig
from quap_tff.mechanisms.quap.config import NoiseConfig
from tests.quap_tff import examples
from tests.quap_tff import noise_checks
from tests.quap_tff import rounds

_VALUE = tff.to_type(collections.OrderedDict(a=(np.float32, [2, 2]), b=(np.float32, [2000])))
_SPECS = tff.types.type_to_tf_tensor_specs(_VALUE)
_ID = tff.TensorType(np.int64)
_SEED = tf.constant([4, 5], tf.int64)


def _config(noise=NoiseConfig('none'), **overrides):
  return examples.whole(noise=noise, **overrides)


_NOISE = NoiseConfig('server', calibration='analytic', seed=5)


def _process(config, chosen, seed=1):
  return rounds.Process(sparsity.Sparse(config, chosen, seed), _SPECS)


def _tff_process(config, chosen):
  return aggregation.AggregationFactory(sparsity.Sparse(config, chosen)).create(_VALUE, _ID)


def _value(a=0.0, b=0.0):
  return collections.OrderedDict(a=np.full([2, 2], a, np.float32), b=np.full([2000], b, np.float32))


class TestIndices:
  @pytest.mark.parametrize(
    'chosen, size, kept',
    [
      (sparsity.RandomMask(0.1), 330, 33),
      (sparsity.RandomMask(0.1), 5, 1),
      (sparsity.RandomMask(0.3), 10, 3),
      (sparsity.RandomMask(1.0), 7, 7),
      (sparsity.TopReleased(0.25), 10, 3),
      (sparsity.NotSparse(), 7, 7),
    ],
  )
  def test_how_many(self, chosen, size, kept):
    found = np.asarray(chosen.indices(_SEED, size, tf.zeros([size])))
    assert len(set(found)) == len(found) == kept == chosen.kept(size)
    assert found.min() >= 0 and found.max() < size

  @pytest.mark.slow
  def test_a_random_part_is_uniform(self):
    chosen = sparsity.RandomMask(0.25)
    counts = np.bincount(np.concatenate([chosen.indices(tf.constant([1, s], tf.int64), 8, None) for s in range(800)]))
    np.testing.assert_allclose(counts / 800, 0.25, atol=0.07)

  @pytest.mark.slow
  def test_the_part_that_moved_the_most(self):
    released = tf.constant([0.0, -5.0, 1.0, 0.0, 3.0, 0.0, 0.0, 0.0])
    # Of four, two have moved the most; the other two are drawn among the rest.
    drawn = [
      set(np.asarray(sparsity.TopReleased(0.5, explore=0.5).indices(tf.constant([1, s], tf.int64), 8, released)))
      for s in range(100)
    ]
    assert all({1, 4} <= found and len(found) == 4 for found in drawn)
    assert set.union(*drawn) == set(range(8))

  @pytest.mark.parametrize(
    'make',
    [
      lambda: sparsity.RandomMask(0.0),
      lambda: sparsity.RandomMask(1.5),
      lambda: sparsity.RandomMask(math.nan),
      lambda: sparsity.TopReleased(0.5, explore=0.0),
      lambda: sparsity.TopReleased(-1.0),
    ],
  )
  def test_bad_parameters(self, make):
    with pytest.raises(ValueError, match='sparsity'):
      make()


@pytest.mark.slow
class TestAggregation:
  def test_clips_what_is_kept(self, context):
    # Two of the four entries of `a` are kept, so of 2·[1, 1, 1, 1] a part of norm 2√2 is clipped to norm 1.
    process = _process(_config(), sparsity.RandomMask(0.5))
    result = process.next(process.initialize(), [_value(a=2.0)], [0]).result['a']
    assert np.count_nonzero(result) == 2
    np.testing.assert_allclose(result[result != 0], 1 / math.sqrt(2), rtol=1e-6)

  def test_each_round_keeps_another_part_and_all_clients_the_same(self, context):
    process = _process(_config(clip=clip_rules.Fixed(1e6)), sparsity.RandomMask(0.1))
    state, parts = process.initialize(), []
    for _ in range(2):
      output = process.next(state, [_value(b=1.0), _value(b=2.0)], [0, 1])
      state = output.state
      np.testing.assert_allclose(output.result['b'][output.result['b'] != 0], 1.5)
      parts.append(set(np.flatnonzero(output.result['b'])))
    assert len(parts[0]) == len(parts[1]) == 200
    assert 0 < len(parts[0] & parts[1]) < 60  # Of independent ones, 20 are in both.

  def test_noise_only_where_something_is_kept_and_at_its_full_scale(self, context):
    process = _process(_config(_NOISE), sparsity.RandomMask(0.25))
    output = process.next(process.initialize(), [_value(), _value()], [0, 1])
    noise = output.result['b'][output.result['b'] != 0]
    assert len(noise) == 500
    noise_checks.assert_gaussian(noise, float(output.measurements['noise_multiplier']) * 1.0 / 2)

  def test_top_released_follows_the_releases(self, context):
    process = _process(_config(clip=clip_rules.Fixed(1e6)), sparsity.TopReleased(0.5, explore=0.5))
    state, hits = process.initialize(), []
    update = collections.OrderedDict(a=np.float32([[0, 0], [9, 0]]), b=np.zeros([2000], np.float32))
    for _ in range(12):
      output = process.next(state, [update], [0])
      state = output.state
      hits.append(output.result['a'][1, 0] != 0)
    # Once it was kept by chance, it has moved, and stays.
    assert any(hits) and all(hits[hits.index(True) :])

  def test_less_is_sent(self, context):
    up = {}
    for share in (1.0, 0.1):
      process = _tff_process(_config(), sparsity.RandomMask(share))
      state = process.initialize()
      with runtime.measure_traffic() as measured:
        process.next(state, [_value()], [0])
      up[share] = measured.traffic.up_bytes_per_client
    assert up[1.0] - up[0.1] == 4 * (2004 - 201)

  def test_under_local_privacy_too(self, context):
    config = _config(NoiseConfig('client', calibration='analytic', seed=1))
    process = _process(local_dp.LocalPrivacy(config), sparsity.RandomMask(0.1))
    result = process.next(process.initialize(), [_value()], [2]).result
    assert np.count_nonzero(result['b']) == 200


class TestPlans:
  @pytest.mark.slow
  def test_the_account_is_that_of_the_dense_run(self):
    cohorts = [[0, 1], [1, 2], [1]]
    dense, sparse = (
      plans.Plan(_config(_NOISE), sparsity=chosen) for chosen in (sparsity.NotSparse(), sparsity.RandomMask(0.1))
    )
    charged = [accounting.total_mu(plan.planned_ledger(cohorts)).whole for plan in (dense, sparse)]
    np.testing.assert_array_equal(*charged)
    assert dense.fingerprint != sparse.fingerprint
    assert 'public seed' in sparse.protection.text

  def test_the_charge_bounds_what_a_client_moves(self, context):
    # One client in the worst direction: all of its norm on entries that are kept.
    plan = plans.Plan(_config(_NOISE, clip=clip_rules.Fixed(0.5)), sparsity=sparsity.RandomMask(0.25))
    process = rounds.Process(plan.mechanism, _SPECS)
    outputs = [process.next(process.initialize(), [_value(a=a), _value()], [0, 1]) for a in (100.0, 0.0)]
    moved = float(np.sqrt(sum(((outputs[0].result[k] - outputs[1].result[k]) ** 2).sum() for k in ('a', 'b'))))
    ledger = plan.new_ledger()
    ledger.append(plan.recorded(outputs[0].state, outputs[0].measurements, [0, 1]))
    noise = outputs[1].result['b'][outputs[1].result['b'] != 0]
    assert moved == pytest.approx(0.5 / 2, rel=1e-4)
    noise_checks.assert_gaussian(noise, moved / accounting.total_mu(ledger).whole[0])

  @pytest.mark.slow
  def test_certified_charges_the_same(self, context):
    independent = dict(correlation=correlation.Independent(), weights=UniformWeights())
    config = CertifiedConfig(num_clients=4, epsilon=3.0, delta=1e-5, noise_seed=3, **independent)
    cohorts = [[0, 1], [1, 2], [1, 3]]
    plan = plans.Plan.certified(config, cohorts, certificate=False, sparsity=sparsity.RandomMask(0.1))
    process = rounds.Process(plan.mechanism, _SPECS)
    state, ledger = process.initialize(), plan.new_ledger()
    for cohort in cohorts:
      output = process.next(state, [_value(b=1.0)] * 2, [i for i in cohort])
      state = output.state
      ledger.append(plan.recorded(output.state, output.measurements, cohort))
    assert not evidence.ledger_problems(plan, ledger)
    assert accounting.epsilon_by_client(ledger, 1e-5).max() == pytest.approx(3.0, rel=1e-3)
    assert np.count_nonzero(output.result['b']) == 200

  def test_certified_with_correlated_noise_is_refused(self):
    config = CertifiedConfig(num_clients=2, epsilon=3.0, delta=1e-5, correlation=correlation.Ar1(0.5))
    with pytest.raises(ValueError, match='noise=independent'):
      plans.Plan.certified(config, [[0, 1]], certificate=False, sparsity=sparsity.RandomMask(0.1))

  def test_what_cannot_be_sparse_is_refused(self):
    config = _config(_NOISE, budget=BudgetConfig(client_rule=pt_adp.PtAdp(), round_rule='each_own'))
    with pytest.raises(ValueError, match='--sparsity: rounds cannot .* because updates are compared'):
      plans.Plan(config, sparsity=sparsity.RandomMask(0.1))
