"""Tests of `mechanisms.parts.clip_rules`: each rule's course over rounds, against numpy and against TFF's own."""

import functools
import math

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff import runtime
from quap_tff.mechanisms.noise import gaussian
from quap_tff.mechanisms.parts import clip_rules
from tests.quap_tff import noise_checks

_SEED = tf.constant([5, 6], tf.int64)


def _noise(seed):
  return functools.partial(gaussian.noise, seed, [])


def _course(rule, rounds, compiled=False):
  """C after each round. Compile it for many rounds of as many norms."""
  norm, course = tf.constant(rule.initial_norm, tf.float32), []
  next_norm = lambda norm, norms, seed: rule.next_norm(norm, norms, _noise(seed))
  next_norm = tf.function(next_norm) if compiled else next_norm
  for index, norms in enumerate(rounds):
    norm = next_norm(norm, tf.constant(norms, tf.float32), _SEED + index)
    assert norm.shape == [] and norm.dtype == tf.float32
    course.append(float(norm))
  return course


class TestQuantileEma:
  def test_the_average_starts_at_the_first_target(self):
    rule = clip_rules.QuantileEma(quantile=0.5, momentum=0.75, min_clip=0.0)
    np.testing.assert_allclose(_course(rule, [[1, 3, 5], [7], [7]]), [3, 4, 4.75], rtol=1e-6)

  def test_the_average_starts_at_an_initial_clip(self):
    rule = clip_rules.QuantileEma(quantile=0.5, momentum=0.75, min_clip=0.0, initial_clip=1.0)
    np.testing.assert_allclose(_course(rule, [[1, 5, 9], [6]]), [2, 3], rtol=1e-6)

  def test_the_target_is_bounded_not_the_average(self):
    rule = clip_rules.QuantileEma(momentum=0.5, min_clip=1.0, max_clip=2.0, initial_clip=8.0)
    np.testing.assert_allclose(_course(rule, [[0.0], [100.0], [1.5]]), [4.5, 3.25, 2.375], rtol=1e-6)

  @pytest.mark.parametrize('size', [1, 8])
  def test_the_first_target_is_bounded(self, size):
    rule = clip_rules.QuantileEma(min_clip=1.0, max_clip=2.0)
    assert _course(rule, [[0.0] * size]) == [1.0]
    assert _course(rule, [[9.0] * size]) == [2.0]

  @pytest.mark.parametrize('nobody', [[], [math.nan], [math.nan, math.inf, math.nan, math.nan]])
  @pytest.mark.parametrize('max_clip', [None, 5.0])
  def test_a_cohort_without_one_finite_norm_leaves_it(self, nobody, max_clip):
    rule = clip_rules.QuantileEma(momentum=0.5, max_clip=max_clip)
    assert _course(rule, [nobody, [2.0], nobody, [4.0]]) == [math.inf, 2.0, 2.0, 3.0]

  def test_non_finite_norms_are_left_out(self):
    rule = clip_rules.QuantileEma(quantile=0.5)
    assert _course(rule, [[math.nan, 1.0, math.inf, 3.0]]) == [2.0]

  @given(
    rounds=st.lists(st.lists(st.floats(0, 1e4, width=32) | st.just(math.nan), max_size=8), min_size=1, max_size=8),
    quantile=st.floats(0, 1),
    momentum=st.floats(0, 0.99),
    bounds=st.tuples(st.floats(0, 100), st.floats(0.1, 100) | st.none()),
    initial_clip=st.none() | st.floats(0.01, 100),
  )
  @settings(derandomize=True, deadline=None, max_examples=60)
  def test_any_history_against_numpy(self, rounds, quantile, momentum, bounds, initial_clip):
    min_clip, max_clip = bounds[0] if bounds[1] is None else min(bounds), bounds[1] and max(bounds)
    rule = clip_rules.QuantileEma(quantile, momentum, min_clip, max_clip, initial_clip)
    expected, clip = [], initial_clip
    for norms in rounds:
      finite = [n for n in norms if math.isfinite(n)]
      if finite:
        target = min(max(np.quantile(finite, quantile), min_clip), math.inf if max_clip is None else max_clip)
        clip = target if clip is None else momentum * clip + (1 - momentum) * target
      expected.append(math.inf if clip is None else clip)
    np.testing.assert_allclose(_course(rule, rounds), expected, rtol=1e-4, atol=1e-3)

  def test_current_norms_are_used_by_default_and_previous_ones_by_choice(self):
    assert clip_rules.QuantileEma().uses_current_norms
    assert not clip_rules.QuantileEma(timing='previous', initial_clip=1.0).uses_current_norms
    assert clip_rules.QuantileEma().releases_exact_norms

  @pytest.mark.parametrize(
    'arguments, message',
    [
      (dict(quantile=1.1), 'clip quantile must be a finite number at least 0 and at most 1, found 1.1'),
      (dict(quantile=-0.1), 'clip quantile'),
      (dict(quantile=math.nan), 'clip quantile'),
      (dict(momentum=1.0), 'clip momentum'),
      (dict(momentum=-0.1), 'clip momentum'),
      (dict(momentum=math.nan), 'clip momentum'),
      (dict(min_clip=-1), 'min_clip'),
      (dict(min_clip=math.nan), 'min_clip'),
      (dict(min_clip=math.inf), 'min_clip'),
      (dict(max_clip=0.0), 'max_clip'),
      (dict(max_clip=math.nan), 'max_clip'),
      (dict(min_clip=2.0, max_clip=1.0), 'min_clip must not be above max_clip, found 2.0 > 1.0'),
      (dict(initial_clip=0.0), 'initial_clip'),
      (dict(initial_clip=math.nan), 'initial_clip'),
      (dict(initial_clip=1e39), 'initial_clip'),  # +inf in float32.
      (dict(timing='curent'), "Unknown clip timing 'curent'. Did you mean 'current'"),
      (dict(timing='previous'), 'Set initial_clip'),
    ],
  )
  def test_bad_values(self, arguments, message):
    with pytest.raises(ValueError, match=message):
      clip_rules.QuantileEma(**arguments)


class TestFixed:
  def test_stays(self):
    assert _course(clip_rules.Fixed(2.5), [[9.0], [], [math.nan]]) == [2.5] * 3
    assert not clip_rules.Fixed().uses_current_norms
    assert not clip_rules.Fixed().releases_exact_norms

  @pytest.mark.parametrize('norm', [0.0, 1e-24, -1.0, math.nan, math.inf, 1e39, None])
  def test_bad_values(self, norm):
    with pytest.raises(ValueError, match='clipping norm must be a finite number at least 1e-20'):
      clip_rules.Fixed(norm)


class TestUnclipped:
  def test_is_no_bound(self):
    assert _course(clip_rules.Unclipped(), [[9.0], []]) == [math.inf] * 2


class TestPrivateQuantile:
  def test_by_hand_without_noise(self):
    # Three of four norms at most 1: C = e^(-0.2·(0.75 - 0.5)).
    rule = clip_rules.PrivateQuantile(quantile=0.5, initial_clip=1.0, learning_rate=0.2, count_stddev=0.0)
    np.testing.assert_allclose(_course(rule, [[0.5, 1.0, 0.2, 3.0]]), [math.exp(-0.05)], rtol=1e-6)

  def test_as_tffs_over_rounds(self):
    rounds = np.random.default_rng(0).lognormal(1.0, 1.0, [6, 10]).astype(np.float32)
    rule = clip_rules.PrivateQuantile(quantile=0.7, initial_clip=0.5, learning_rate=0.4, count_stddev=0.0)
    process = tff.aggregators.PrivateQuantileEstimationProcess.no_noise(
      initial_estimate=0.5, target_quantile=0.7, learning_rate=0.4
    )
    expected = []
    with runtime.activate(runtime.RuntimeConfig(device='cpu')):
      state = process.initialize()
      for norms in rounds:
        state = process.next(state, list(norms))
        expected.append(process.report(state))
    np.testing.assert_allclose(_course(rule, rounds), expected, rtol=1e-5)

  @pytest.mark.slow
  @pytest.mark.parametrize('quantile', [0.2, 0.8])
  @pytest.mark.parametrize('initial_clip', [0.01, 100.0])
  def test_moves_to_the_target_quantile_from_both_sides(self, quantile, initial_clip):
    norms = np.linspace(1.0, 11.0, 101)
    rule = clip_rules.PrivateQuantile(quantile, initial_clip, learning_rate=0.3, count_stddev=0.0)
    course = _course(rule, [norms] * 150, compiled=True)
    assert abs(course[0] - 6) < abs(initial_clip - 6)
    np.testing.assert_allclose(course[-1], 1 + 10 * quantile, rtol=0.05)

  @pytest.mark.parametrize('count_stddev', [0.5, 3.0])
  def test_the_count_has_noise_of_the_right_scale(self, count_stddev):
    # ln(C'/C) = -η·((count - 4/2 + noise)/4 + 1/2 - q), and every norm is below C.
    rule = clip_rules.PrivateQuantile(0.5, 10.0, learning_rate=0.1, count_stddev=count_stddev)
    next_norm = tf.function(lambda seed: rule.next_norm(tf.constant(10.0), tf.ones([4]), _noise(seed)))
    moved = np.array([float(next_norm(_SEED + index)) for index in range(400)])
    noise_checks.assert_gaussian((-np.log(moved / 10.0) / 0.1 - 0.5) * 4, count_stddev)

  def test_the_noise_is_a_pure_function_of_the_seed(self):
    rule = clip_rules.PrivateQuantile()
    assert _course(rule, [[1.0, 2.0]] * 3) == _course(rule, [[1.0, 2.0]] * 3)

  def test_an_empty_cohort_leaves_it(self):
    assert _course(clip_rules.PrivateQuantile(), [[]]) == [np.float32(0.1)]

  def test_a_non_finite_update_counts_as_above(self):
    rule = clip_rules.PrivateQuantile(quantile=0.5, initial_clip=1.0, count_stddev=0.0)
    assert _course(rule, [[math.nan, 0.5]]) == _course(rule, [[9.0, 0.5]])

  def test_to_take_a_clients_data_away_moves_the_count_by_half(self):
    # ln(C'/C) = -η·(count/M + 1/2 - q); a client without data sends an update of exactly zero.
    rule = clip_rules.PrivateQuantile(quantile=0.5, initial_clip=1.0, learning_rate=1.0, count_stddev=0.0)
    counts = [-4 * math.log(_course(rule, [[own, 0.5, 0.5, 9.0]])[-1]) for own in (0.5, 9.0, 0.0)]
    np.testing.assert_allclose(counts, [1.0, 0.0, 0.5], atol=1e-5)
    assert clip_rules.PrivateQuantile(count_stddev=3.0).count_noise_multiplier == 3.0 / 0.5

  def test_never_becomes_no_bound(self):
    rule = clip_rules.PrivateQuantile(quantile=1.0, initial_clip=1.0, learning_rate=1e3, count_stddev=0.0)
    assert _course(rule, [[9.0]]) == [np.float32(clip_rules.LARGEST_NORM)]

  def test_says_whether_it_releases_exact_norms(self):
    assert not clip_rules.PrivateQuantile().releases_exact_norms
    assert clip_rules.PrivateQuantile(count_stddev=0.0).releases_exact_norms

  @pytest.mark.parametrize('field', ['quantile', 'initial_clip', 'learning_rate', 'count_stddev'])
  @pytest.mark.parametrize('value', [-0.1, math.nan, math.inf, None])
  def test_bad_values(self, field, value):
    with pytest.raises(ValueError, match=field):
      clip_rules.PrivateQuantile(**{field: value})

  def test_a_quantile_above_one_and_a_zero_clip_or_rate(self):
    for bad in (dict(quantile=1.1), dict(initial_clip=0.0), dict(learning_rate=0.0)):
      with pytest.raises(ValueError, match=next(iter(bad))):
        clip_rules.PrivateQuantile(**bad)


class TestNoisedMean:
  def _next(self, norms, norm=1.0, **parameters):
    rule = clip_rules.NoisedMean(**{**dict(noise_multiplier=0.0), **parameters})
    seed = tf.constant([1, 2], tf.int64)
    return float(rule.next_norm(tf.constant(norm), tf.constant(norms, tf.float32), _noise(seed)))

  def test_by_hand(self):
    # Clipped to 1, with 1 for what is not finite: (0.5 + 1 + 1)/3·1.5.
    assert self._next([0.5, 2.0, float('nan')]) == pytest.approx(1.25)

  def test_it_at_most_doubles_and_at_most_halves(self):
    assert self._next([9.0, 9.0], factor=3.0) == 2.0
    assert self._next([0.0, 1e-3]) == 0.5

  def test_nobody(self):
    assert self._next([], norm=0.7) == pytest.approx(0.7)

  def test_the_noise_is_that_of_its_multiplier(self):
    rule = clip_rules.NoisedMean(factor=2.0, noise_multiplier=30.0)
    next_norm = tf.function(lambda seed: rule.next_norm(tf.constant(1.0), tf.fill([1000], 0.5), _noise(seed)))
    found = [float(next_norm(tf.constant([1, k], tf.int64))) / 2 * 1000 - 500 for k in range(400)]
    noise_checks.assert_gaussian(found, 30.0)

  def test_what_it_releases(self):
    assert clip_rules.NoisedMean(noise_multiplier=3.0).count_noise_multiplier == 3.0
    assert clip_rules.NoisedMean(noise_multiplier=0.0).releases_exact_norms
    assert not clip_rules.NoisedMean().releases_exact_norms and not clip_rules.NoisedMean().uses_current_norms

  def test_nobody_moves_the_sum_by_more_than_the_clip(self):
    # Its update replaced by zero, whatever it was.
    for norm in (0.2, 1.0, 7.0, float('inf'), float('nan')):
      with_it, without = (2 * self._next([0.9, own], factor=1.1) / 1.1 for own in (norm, 0.0))
      assert abs(with_it - without) <= 1.0 + 1e-6


class TestDecaying:
  def test_by_hand(self):
    rule = clip_rules.Decaying(2.0, 0.5)
    assert rule.initial_norm == 2.0 and not rule.releases_exact_norms and rule.count_noise_multiplier == math.inf
    assert float(rule.next_norm(tf.constant(2.0), tf.constant([9.0]), None)) == 1.0

  @pytest.mark.parametrize('decay', [0.0, 1.1])
  def test_bad_decay(self, decay):
    with pytest.raises(ValueError, match='decay'):
      clip_rules.Decaying(1.0, decay)
