"""Tests of `quap_tff.mechanisms.noise.gaussian`: calibration against closed forms, and the scale of its noise."""

import math

from dp_accounting.pld import accountant
from dp_accounting.pld import common
from dp_accounting.pld import privacy_loss_distribution
import numpy as np
import pytest
from scipy import special
import tensorflow as tf

from quap_tff.common.numbers import seeds
from quap_tff.mechanisms.noise import gaussian
from tests.quap_tff import noise_checks


def _multiplier(calibration, epsilon, delta, dtype=tf.float64):
  return float(gaussian.noise_multiplier(calibration, tf.constant(epsilon, dtype), delta))


def _delta(epsilon, multiplier):
  """Balle and Wang 2018, theorem 8, with the normal distribution of scipy."""
  half = 0.5 / multiplier
  log_second = epsilon + special.log_ndtr(-half - epsilon * multiplier)
  return special.ndtr(half - epsilon * multiplier) - math.exp(log_second)


class TestClassic:
  @pytest.mark.parametrize(
    'epsilon, delta, expected',
    # δ = 1.25·e^(-8): √(2·8) = 4. And the documents' numbers: ε = 6 over 200 rounds at δ = 1e-5.
    [(0.5, 1.25 * math.exp(-8), 8.0), (0.03, 1e-5, math.sqrt(2 * math.log(1.25e5)) / 0.03)],
  )
  def test_closed_form(self, epsilon, delta, expected):
    assert _multiplier('classic', epsilon, delta) == pytest.approx(expected)

  def test_elementwise(self):
    found = gaussian.noise_multiplier('classic', tf.constant([0.25, 0.5, 1.0]), 1e-5)
    assert found.dtype == tf.float32
    np.testing.assert_allclose(found / found[-1], [4.0, 2.0, 1.0], rtol=1e-6)

  @pytest.mark.parametrize('epsilon', [0.01, 0.1, 1.0])
  @pytest.mark.parametrize('delta', [1e-8, 1e-5, 1e-2])
  def test_is_enough_where_it_is_allowed(self, epsilon, delta):
    assert _delta(epsilon, _multiplier('classic', epsilon, delta)) <= delta

  def test_is_too_little_far_beyond(self):
    # Why the configuration refuses it there.
    assert _delta(10.0, _multiplier('classic', 10.0, 1e-5)) > 1e-5


class TestAnalytic:
  @pytest.mark.parametrize('epsilon', [0.001, 0.03, 0.5, 1.0, 3.0, 10.0, 100.0])
  @pytest.mark.parametrize('delta', [1e-10, 1e-5, 1e-2])
  def test_is_the_smallest_that_is_enough(self, epsilon, delta):
    multiplier = _multiplier('analytic', epsilon, delta)
    assert _delta(epsilon, multiplier) == pytest.approx(delta, rel=1e-5)
    assert _delta(epsilon, multiplier * 0.999) > delta

  @pytest.mark.parametrize('epsilon', [0.03, 0.5, 3.0, 20.0])
  @pytest.mark.parametrize('delta', [1e-8, 1e-5])
  def test_against_dp_accounting(self, epsilon, delta):
    parameters = common.DifferentialPrivacyParameters(epsilon, delta)
    expected = accountant.get_smallest_gaussian_noise(parameters, num_queries=1, sensitivity=1.0)
    assert _multiplier('analytic', epsilon, delta) == pytest.approx(expected, rel=1e-4)

  @pytest.mark.slow
  @pytest.mark.parametrize('epsilon, delta', [(0.5, 1e-5), (1.0, 1e-5), (4.0, 1e-6)])
  def test_against_privacy_loss_distributions(self, epsilon, delta):
    multiplier = _multiplier('analytic', epsilon, delta)
    pld = privacy_loss_distribution.from_gaussian_mechanism(multiplier, value_discretization_interval=1e-4)
    assert pld.get_epsilon_for_delta(delta) == pytest.approx(epsilon, rel=2e-3)

  @pytest.mark.parametrize('epsilon', [0.01, 0.3, 1.0])
  def test_is_below_the_classic_one(self, epsilon):
    assert _multiplier('analytic', epsilon, 1e-5) < _multiplier('classic', epsilon, 1e-5)

  @pytest.mark.slow
  def test_elementwise_in_a_graph_of_unknown_length(self):
    traced = tf.function(
      lambda epsilon: gaussian.noise_multiplier('analytic', epsilon, 1e-5),
      input_signature=[tf.TensorSpec([None], tf.float32)],
    )
    found = traced(tf.constant([0.1, 2.0]))
    assert found.dtype == tf.float32
    np.testing.assert_allclose(
      found, [_multiplier('analytic', 0.1, 1e-5), _multiplier('analytic', 2.0, 1e-5)], rtol=1e-6
    )
    assert traced(tf.zeros([0])).shape == [0]

  def test_delta_of_against_scipy(self):
    found = gaussian.delta_of(tf.constant([0.1, 1.0, 5.0], tf.float64), tf.constant([5.0, 1.0, 0.7], tf.float64))
    np.testing.assert_allclose(found, [_delta(0.1, 5.0), _delta(1.0, 1.0), _delta(5.0, 0.7)], rtol=1e-9)


class TestNoise:
  @pytest.mark.parametrize('stddev', [1.0, 0.037, 250.0])
  def test_scale(self, stddev):
    noise_checks.assert_gaussian(gaussian.noise(tf.constant([1, 2], tf.int64), [50, 10], stddev), stddev)

  def test_is_a_pure_function_of_the_seed(self):
    seed = tf.constant([1, 2], tf.int64)
    np.testing.assert_array_equal(gaussian.noise(seed, [9], 2.0), tf.function(gaussian.noise)(seed, [9], 2.0))

  def test_seeds_that_differ_in_either_word_are_independent(self):
    base = gaussian.noise(tf.constant([1, 2], tf.int64), [1000], 1.0)
    for other in ([1, 3], [2, 2], [2, 1]):
      noise_checks.assert_uncorrelated(base, gaussian.noise(tf.constant(other, tf.int64), [1000], 1.0))

  def test_no_noise_is_exactly_zero(self):
    np.testing.assert_array_equal(gaussian.noise(tf.constant([1, 2], tf.int64), [9], 0.0), np.zeros(9))

  def test_is_half_the_sum_of_four_independent_float64_draws(self):
    seed, total = tf.constant([1, 2], tf.int64), np.zeros(1000)
    for index in range(4):
      part = seeds.fold_in(seed, tf.constant(index, tf.int64))
      total += tf.random.stateless_normal([1000], part, dtype=tf.float64, alg='philox').numpy()
    drawn = gaussian.noise(seed, [1000], 3.0)
    assert drawn.dtype == tf.float64
    np.testing.assert_allclose(drawn, 1.5 * total, rtol=1e-14)


class TestNoiseChecks:
  """The checks that the tests of noise stand on must be able to fail."""

  def test_wrong_scales_and_shapes_are_rejected(self):
    generator = np.random.default_rng(0)
    right = generator.normal(size=300)
    assert noise_checks.is_gaussian(right, 1.0)
    for wrong in (right * 2 / 3, right * 3 / 2, generator.uniform(-(3**0.5), 3**0.5, 3000), right + 0.5, right * 0):
      assert not noise_checks.is_gaussian(wrong, 1.0)
