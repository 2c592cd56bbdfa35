"""Canaries: their directions, and the aggregation that replaces and measures them."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.auditing import canaries as canary_lib
from quap_tff.mechanisms.noise import correlation

_SEED = tf.constant([3, 4], tf.int64)


class _Sum(tff.aggregators.WeightedAggregationFactory):
  """Adds updates up; its state counts rounds."""

  def create(self, value_type, weight_type):
    @tff.federated_computation
    def init_fn():
      return tff.federated_value(0, tff.SERVER)

    @tff.federated_computation(
      init_fn.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
      tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_fn(state, value, weight):
      del weight
      count = tff.federated_map(tff.tensorflow.computation(lambda n: n + 1, np.int32), state)
      return tff.templates.MeasuredProcessOutput(count, tff.federated_sum(value), state)

    return tff.templates.AggregationProcess(init_fn, next_fn)


_VALUE = tff.to_type([(np.float32, [2, 3]), (np.float32, [4])])
_WEIGHT = tff.to_type(collections.OrderedDict(client_id=np.int64))
_SHAPES = ([2, 3], [4])


def _update(seed):
  rng = np.random.default_rng(seed)
  return [rng.normal(size=shape).astype(np.float32) for shape in _SHAPES]


def _flat(update):
  return np.concatenate([np.ravel(part) for part in update])


def _sent(canaries, update, client):
  """The update that a client sends, and the facts that are kept of its own."""
  found = canary_lib.directions(_SEED, sum(np.prod(_SHAPES[i]) for i in canaries.places([6, 4])), canaries.count)
  tensors, client_id = [tf.constant(part) for part in update], tf.constant(client, tf.int64)
  return (
    [part.numpy() for part in canary_lib.replaced(canaries, found, tensors, client_id)],
    {name: value.numpy() for name, value in canary_lib.observed(canaries, found, tensors, client_id).items()},
  )


class TestDirections:
  @pytest.mark.parametrize('size,count', [(10, 10), (103, 10), (7, 3)])
  def test_are_orthonormal(self, size, count):
    found = canary_lib.directions(_SEED, size, count)
    matrix = np.stack([canary_lib.one_direction(found, tf.constant(k)).numpy() for k in range(count)])
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(count), atol=1e-6)
    assert set(np.bincount(found.block)) <= {size // count, -(-size // count)}

  def test_projections_are_inner_products(self):
    found = canary_lib.directions(_SEED, 50, 7)
    vector = np.random.default_rng(0).normal(size=50)
    expected = [vector @ canary_lib.one_direction(found, tf.constant(k)).numpy() for k in range(7)]
    projected = canary_lib.projected(canary_lib.Canaries((0,), 6), found, [tf.constant(vector)])
    np.testing.assert_allclose(projected, expected, atol=1e-6)

  def test_coins_are_fair_and_follow_the_seed(self):
    first, second = (canary_lib.coins(tf.constant(seed, tf.int64), 4000).numpy() for seed in ([3, 4], [3, 5]))
    assert 0.47 < first.mean() < 0.53 and 0.47 < (first == second).mean() < 0.53
    basis = canary_lib.directions(_SEED, 5000, 4000)
    np.testing.assert_array_equal(basis.heads, first)
    # The signs are other coins.
    assert 0.47 < (first == (basis.sign.numpy()[:4000] > 0)).mean() < 0.53

  def test_follow_the_seed(self):
    other = tf.constant([3, 5], tf.int64)
    first, second = canary_lib.directions(_SEED, 1000, 10), canary_lib.directions(other, 1000, 10)
    assert np.mean(first.block.numpy() == second.block.numpy()) < 0.2
    assert 0.4 < np.mean(first.sign.numpy() == second.sign.numpy()) < 0.6


class TestFunctions:
  def test_a_canary_is_replaced_and_nobody_else(self):
    canaries, update = canary_lib.Canaries((1, 7), 3, norm=5.0), _update(0)
    basis = canary_lib.directions(_SEED, 10, 5)
    assert list(basis.heads.numpy()[:2]) == [True, False]
    for client, expected in ((1, 5 * canary_lib.one_direction(basis, tf.constant(0))), (7, np.zeros(10))):
      sent, kept = _sent(canaries, update, client)
      np.testing.assert_allclose(_flat(sent), expected, atol=1e-6)
      assert kept['client_ids'] == client and not kept['norms'] and not kept['client_projections'].any()
    sent, kept = _sent(canaries, update, 2)
    np.testing.assert_array_equal(_flat(sent), _flat(update))
    assert kept['norms'] == pytest.approx(np.linalg.norm(_flat(update))) and kept['client_projections'].all()

  def test_directions_in_chosen_tensors_leave_the_others_at_zero(self):
    sent, _ = _sent(canary_lib.Canaries((0,), 2, tensors=(1,)), _update(0), 0)
    assert not sent[0].any() and np.linalg.norm(sent[1]) == pytest.approx(canary_lib.NORM)

  def test_the_norm_is_that_of_what_is_clipped(self):
    _, kept = _sent(canary_lib.Canaries((0,), 2, clipped=(1,)), _update(0), 1)
    assert kept['norms'] == pytest.approx(np.linalg.norm(_update(0)[1]))

  def test_an_update_that_is_not_finite_counts_as_nothing(self):
    update = _update(0)
    update[0][0, 0] = np.nan
    _, kept = _sent(canary_lib.Canaries((1,), 4), update, 0)
    assert not kept['norms'] and not kept['client_projections'].any()

  @pytest.mark.parametrize('clients', [(), (1, 1)])
  def test_refuses_clients_that_are_not_distinct(self, clients):
    with pytest.raises(ValueError, match='must be distinct clients, at least one'):
      canary_lib.Canaries(clients, 1)


class TestAggregation:
  @pytest.mark.slow
  def test_measures_projections_and_what_others_sent(self):
    updates = [_update(seed) for seed in range(3)]
    process = canary_lib.CanaryAggregationFactory(_Sum(), canary_lib.Canaries((1,), 4, norm=5.0)).create(
      _VALUE, _WEIGHT
    )
    state = process.initialize()
    state['directions'] = np.array([3, 4], np.int64)
    output = process.next(state, updates, [collections.OrderedDict(client_id=np.int64(i)) for i in range(3)])
    direction = canary_lib.one_direction(canary_lib.directions(_SEED, 10, 5), tf.constant(0))
    np.testing.assert_allclose(
      _flat(output.result), _flat(updates[0]) + _flat(updates[2]) + 5 * direction.numpy(), atol=1e-5
    )
    assert output.state['inner'] == 1  # The mechanism under audit really ran.
    others = output.measurements['others']
    np.testing.assert_array_equal(others['client_ids'], [0, 1, 2])
    norms = [np.linalg.norm(_flat(update)) for update in updates]
    np.testing.assert_allclose(others['norms'], [norms[0], 0, norms[2]], rtol=1e-6)
    found = canary_lib.CanaryRound(None, np.asarray(output.measurements['projections']), **others)
    whole = found.sum_of_others(np.full(3, np.inf))
    np.testing.assert_allclose(found.projections - whole, [5, 0, 0, 0, 0], atol=1e-5)
    # Clipped to half of their norms, the others add half as much.
    np.testing.assert_allclose(found.sum_of_others(np.array(norms) / 2), whole / 2, atol=1e-6)

  def test_refuses_more_directions_than_coordinates(self):
    with pytest.raises(ValueError, match=r'3 canaries and 8 unseen .*have only 10.*at most 7 unseen'):
      canary_lib.CanaryAggregationFactory(_Sum(), canary_lib.Canaries((0, 1, 2), 8)).create(_VALUE, _WEIGHT)


class TestScores:
  def test_matched_filter_of_independent_noise(self):
    # Two rounds with noise of 1 and 2, moved by 1 and 2: weights 1 and 1/2, over √2.
    templates, covariance = np.array([[1.0], [2.0]]), np.diag([1.0, 4.0])
    found = canary_lib.matched_filter(templates, covariance)
    np.testing.assert_allclose(found.mu, [np.sqrt(2)], rtol=1e-6)
    np.testing.assert_allclose(found.scores(np.array([[3.0], [4.0]])), [(3 + 4 / 2) / np.sqrt(2)], rtol=1e-6)

  def test_without_noise_scores_tell_everything(self):
    found = canary_lib.matched_filter(np.ones([2, 2]), np.zeros([2, 2]))
    scores = found.scores(np.array([[1.0, 0.0], [1.0, 0.0]]))
    assert np.isfinite(scores).all() and scores[0] > 1e3 and scores[1] == 0

  def test_scores_have_deviation_one_under_correlated_noise(self):
    rng, coefficients = np.random.default_rng(0), 0.8 ** np.arange(6)
    fresh = rng.normal(size=[6, 20_000]) * 3.0
    noise = np.zeros_like(fresh)
    for t in range(6):
      noise[t] = fresh[t] - sum(coefficients[k] * noise[t - k] for k in range(1, t + 1))
    covariance = correlation.Ar1(0.8).covariance([()] * 6, [3.0] * 6)
    np.testing.assert_allclose(np.cov(noise), covariance, atol=0.4)
    templates = np.tile(np.array([1.0, 0, 0, 1, 0, 1])[:, np.newaxis], 20_000)
    found = canary_lib.matched_filter(templates, covariance)
    assert found.scores(noise).std() == pytest.approx(1, abs=0.02)
    moved = np.convolve(templates[:, 0], coefficients)[:6]
    assert found.mu[0] == pytest.approx(np.linalg.norm(moved) / 3)
    assert found.scores(noise + templates).mean() == pytest.approx(found.mu[0], abs=0.02)
