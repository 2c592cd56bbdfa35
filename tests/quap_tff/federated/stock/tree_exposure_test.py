"""What DP-FTRL tells of a client: against TensorFlow Privacy's own tree, node by node, and against brute force."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_privacy.privacy.dp_query import tree_aggregation

from quap_tff.federated.stock import stock as stocks


def _nodes(num_leaves):
  """The nodes that are complete after some leaves, as (first, last) leaf, in the order of their completion."""
  return [
    (leaf + 1 - 2**level, leaf)
    for leaf in range(num_leaves)
    for level in range(num_leaves.bit_length())
    if (leaf + 1) % 2**level == 0
  ]


def _mu_squared(num_leaves, taking_part):
  """Σ_nodes n², by definition."""
  return sum(sum(first <= t <= last for t in taking_part) ** 2 for first, last in _nodes(num_leaves))


class _OneHot(tree_aggregation.ValueGenerator):
  """The k-th node's value is the k-th unit vector: sums of noise tell which nodes they hold."""

  def __init__(self, size):
    self._size = size

  def initialize(self):
    return tf.constant(0)

  def next(self, state):
    return tf.one_hot(state, self._size), state + 1


@pytest.mark.slow
class TestTree:
  @pytest.mark.parametrize('num_leaves', [*(pytest.param(one, marks=pytest.mark.thorough) for one in (1, 5, 8)), 13])
  def test_what_tff_releases_follows_from_noised_nodes(self, num_leaves):
    """Cumulative noise of weights B on nodes belongs to the true sums A: B·(node sums) = A, so A + noise = B·nodes."""
    nodes = _nodes(num_leaves)
    aggregator = tree_aggregation.EfficientTreeAggregator(_OneHot(4 * num_leaves))
    state, rows = aggregator.init_state(), []
    for _ in range(num_leaves):
      noise, state = aggregator.get_cumsum_and_update(state)
      rows.append(noise.numpy())
    b = np.stack(rows)
    assert not b[:, len(nodes) :].any()
    sums = np.array([[first <= t <= last for t in range(num_leaves)] for first, last in nodes], float)
    np.testing.assert_allclose(b[:, : len(nodes)] @ sums, np.tril(np.ones([num_leaves] * 2)), atol=1e-6)


class TestTreeExposure:
  @pytest.mark.parametrize('seed', range(5))
  def test_against_brute_force(self, seed):
    rng = np.random.default_rng(seed)
    rounds, num_clients = int(rng.integers(1, 20)), 6
    rates = rng.choice([0, 0.5, 1], rounds, p=[0.2, 0.6, 0.2])
    cohorts = [np.flatnonzero(rng.random(num_clients) < rate) for rate in rates]
    exposure = stocks.tree_exposure(cohorts, num_clients)
    charged = np.zeros(num_clients)
    for round_num, cohort in enumerate(cohorts, start=1):
      weights = exposure.weights(round_num, cohort)
      assert ((weights > 0) & (weights <= 1)).all()
      charged[cohort] += (weights * exposure.largest) ** 2
    leaves = [cohort for cohort in cohorts if len(cohort)]
    expected = [
      _mu_squared(len(leaves), [t for t, cohort in enumerate(leaves) if i in cohort]) for i in range(num_clients)
    ]
    np.testing.assert_allclose(charged, expected)

  def test_by_hand(self):
    # Three leaves: nodes 0, 1, 01, 2. Client 0 in all: 1 + 1 + 4 + 1; client 1 in the last: 1.
    exposure = stocks.tree_exposure([np.array([0]), np.array([0]), np.array([0, 1])], 2)
    assert exposure.largest**2 == pytest.approx(4)  # Round 2: itself, and 4 - 1 for the node above.
    found = [(exposure.weights(t, c) * exposure.largest) ** 2 for t, c in [(1, [0]), (2, [0]), (3, [0, 1])]]
    np.testing.assert_allclose(np.concatenate(found), [2, 4, 1, 1])
    # A round moves at most a leaf and the node above it.
    assert exposure.of_one_round**2 == pytest.approx(2)

  @pytest.mark.slow
  def test_is_what_an_adversary_sees_at_most(self):
    """With all contributions aligned, the releases are one Gaussian: μ² = (Ax)ᵀ(BBᵀ)⁻¹(Ax) <= Σ_nodes n²."""
    num_leaves = 7
    aggregator = tree_aggregation.EfficientTreeAggregator(_OneHot(4 * num_leaves))
    state, rows = aggregator.init_state(), []
    for _ in range(num_leaves):
      noise, state = aggregator.get_cumsum_and_update(state)
      rows.append(noise.numpy())
    covariance = np.stack(rows) @ np.stack(rows).T
    for taking_part in ([0], [3], [0, 1, 4], list(range(7))):
      sums = np.cumsum([t in taking_part for t in range(num_leaves)]).astype(float)
      seen = sums @ np.linalg.solve(covariance, sums)
      assert seen <= _mu_squared(num_leaves, taking_part) * (1 + 1e-6)
    # For one who is always there the bound is tight: every node tells the same.
    assert seen == pytest.approx(_mu_squared(num_leaves, taking_part), rel=1e-5)

  def test_cohorts_are_those_planned(self):
    exposure = stocks.tree_exposure([np.array([0])], 2)
    with pytest.raises(ValueError, match='Planned are the clients .0., found .0, 1.'):
      exposure.weights(1, np.array([0, 1]))
