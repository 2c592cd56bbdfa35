"""Tests of `experiments.systems.robust`: aggregates by hand, and rounds with malicious updates through TFF."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from experiments.systems import robust
from quap_tff import accounting
from quap_tff import plans
from quap_tff.federated import aggregation
from quap_tff.mechanisms.parts import aggregators
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.quap.config import NoiseConfig
from tests.quap_tff import examples
from tests.quap_tff import rounds

_ROBUST = (robust.Median(), robust.TrimmedMean(), robust.GeometricMedian())


def _centre(aggregator, *updates):
  """The aggregate of updates with two tensors: the first entry, and the others as a row."""
  stacked = [tf.constant([u[0] for u in updates], tf.float32), tf.constant([[u[1:]] for u in updates], tf.float32)]
  first, row = aggregator.centre(stacked)
  assert first.shape == [] and row.shape == [1, len(updates[0]) - 1]
  return [float(first), *row.numpy()[0].tolist()]


class TestByHand:
  @pytest.mark.parametrize(
    'aggregator, updates, expected',
    [
      (aggregators.Mean(), [[0, 1], [1, 1], [5, 4]], [2, 2]),
      (robust.Median(), [[0, 9, -1], [1, 1, -1], [50, 4, 7]], [1, 4, -1]),
      # Of an even number, it is between the two in the middle.
      (robust.Median(), [[0, 9], [1, 1], [50, 4], [3, 6]], [2, 5]),
      *((one, [[3, -4]], [3, -4]) for one in _ROBUST),
    ],
  )
  def test_exact_numbers(self, aggregator, updates, expected):
    assert _centre(aggregator, *updates) == expected

  @pytest.mark.parametrize(
    'share, expected', [(0.0, [22, -0.4]), (0.19, [22, -0.4]), (0.2, [4, 1]), (0.4, [3, 2]), (0.49, [3, 2])]
  )
  def test_trimmed_mean_cuts_a_share_at_each_end(self, share, expected):
    updates = [[1, -9], [3, 3], [2, 4], [7, -2], [97, 2]]
    assert _centre(robust.TrimmedMean(share), *updates) == pytest.approx(expected, rel=1e-6, abs=1e-6)

  @pytest.mark.slow
  def test_geometric_median_of_a_quadrilateral_is_where_its_diagonals_cross(self):
    found = _centre(robust.GeometricMedian(iterations=200), [0, 0], [4, 0], [1, 1], [1, -3])
    np.testing.assert_allclose(found, [1, 0], atol=1e-3)

  @pytest.mark.slow
  def test_geometric_median_of_a_majority_is_theirs(self):
    np.testing.assert_allclose(_centre(robust.GeometricMedian(100), [2, 2], [2, 2], [2, 2], [90, 5]), [2, 2], atol=1e-3)

  @pytest.mark.slow
  def test_geometric_median_takes_all_layers_as_one_vector(self):
    # Layer by layer it would be (0, 0): in each of the two tensors, two of three updates are 0.
    found = _centre(robust.GeometricMedian(200), [0, 0], [1, 0], [0, 1])
    fermat = (1 - 1 / np.sqrt(3)) / 2  # The point that sees each side of this triangle under 120 degrees.
    np.testing.assert_allclose(found, [fermat, fermat], atol=1e-4)

  @pytest.mark.parametrize(
    'make, message',
    [
      (lambda: robust.TrimmedMean(0.5), 'less than 0.5'),
      (lambda: robust.TrimmedMean(-0.1), 'at least 0'),
      (lambda: robust.GeometricMedian(0), 'iterations'),
      (lambda: robust.GeometricMedian(smoothing=0.0), 'smoothing'),
    ],
  )
  def test_bad_parameters(self, make, message):
    with pytest.raises(ValueError, match=message):
      make()


def _config(aggregator, **changes):
  return examples.quap(clip=clip_rules.Fixed(5.0), critical_layers='all', aggregator=aggregator, **changes)


_VALUE = tff.to_type(collections.OrderedDict(kernel=(np.float32, [1, 2]), bias=(np.float32, [2])))


def _rounds(config, *cohorts):
  process = rounds.Process(config, tff.types.type_to_tf_tensor_specs(_VALUE))
  state, results = process.initialize(), []
  for updates in cohorts:
    values = [collections.OrderedDict(kernel=np.float32([u[:2]]), bias=np.float32(u[2:])) for u in updates]
    output = process.next(state, values, range(len(updates)))
    state = output.state
    results.append([*output.result['kernel'][0], *output.result['bias']])
  return np.array(results), state


class TestRounds:
  def test_updates_are_clipped_and_then_the_middle_one_is_taken(self):
    updates = [[3, 4, 0, 0], [30, 40, 0, 0], [0, 0, -3, 1], [0, 0, -1, 1], [1, 0, 0, 1]]
    found, _ = _rounds(_config(robust.Median()), updates)
    np.testing.assert_allclose(found, [[1, 0, 0, 1]], atol=1e-6)
    mean, _ = _rounds(_config(aggregators.Mean()), updates)
    np.testing.assert_allclose(mean, [[7 / 5, 8 / 5, -4 / 5, 3 / 5]], rtol=1e-6)

  def test_a_malicious_client_moves_the_mean_and_not_the_trimmed_mean(self):
    updates = [[1, 1, 1, 1]] * 4 + [[-1e4, 0, 0, 0]]
    np.testing.assert_allclose(_rounds(_config(robust.TrimmedMean(0.2)), updates)[0], [[1, 1, 1, 1]], rtol=1e-6)
    assert _rounds(_config(aggregators.Mean()), updates)[0][0, 0] == pytest.approx(-1 / 5)

  @pytest.mark.parametrize('aggregator', _ROBUST)
  def test_nobody(self, aggregator):
    found, state = _rounds(_config(aggregator), [], [[1, 2, 3, 2]])
    np.testing.assert_allclose(found, [[0, 0, 0, 0], [1, 2, 3, 2]], rtol=1e-6)
    assert state.round == 2

  def test_noise_is_added_to_the_aggregate(self):
    config = _config(robust.Median(), noise=NoiseConfig(seed=1))
    found, _ = _rounds(config, [[1, 1, 1, 1]] * 3)
    assert (np.abs(found - 1) > 1).all()  # σ = z·5/3, z above 100.

  def test_the_total_is_the_size_times_the_centre(self):
    one = rounds.Process(_config(robust.Median()), [[1, 1]]).rounds
    (total,) = one.combined([tf.constant([1.0, 5.0, 3.0])], tf.ones([3]))
    assert float(total) == 9


class TestPrivacy:
  @pytest.mark.parametrize('aggregator', _ROBUST)
  def test_no_figure_survives(self, aggregator):
    plan = plans.Plan(_config(aggregator, noise=NoiseConfig()), client_metrics=False)
    assert plan.protection.covers == accounting.COVERS[2]
    assert type(aggregator).__name__ in plan.protection.statement
    assert not plan.has_nominal
    mean = plans.Plan(_config(aggregators.Mean(), noise=NoiseConfig()), client_metrics=False)
    assert mean.protection.model_protected and mean.has_nominal

  @pytest.mark.parametrize('seed', [None, 3])
  def test_there_is_no_noise_to_calibrate(self, seed):
    plan = plans.Plan(_config(robust.Median(), noise=NoiseConfig(seed=seed)))
    with pytest.raises(ValueError, match='chooses the noise by a formal'):
      plan.calibrated([[0, 1]], 1.0)

  def test_a_secure_sum_is_refused(self):
    with pytest.raises(ValueError, match='no secure sum is possible'):
      factory = aggregation.AggregationFactory(_config(robust.Median()), inner_sum=tff.aggregators.SumFactory())
      factory.create(_VALUE, tff.TensorType(np.int64))

  def test_noise_at_the_clients_is_refused(self):
    with pytest.raises(ValueError, match='summed apart'):
      _config(robust.Median(), noise=NoiseConfig('client'))

  def test_something_else_is_refused(self):
    with pytest.raises(TypeError, match='quap_tff.mechanisms.parts.aggregators'):
      _config('median')
