"""Tests of `mechanisms.parts.clip_rules`: clipping, and each rule's course over rounds, against NumPy and TFF's own."""

import functools
import itertools
import math

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from experiments.systems import acdp
from quap_tff import quap_fl
from quap_tff import runtime
from quap_tff.mechanisms.noise import gaussian
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.quap.config import QuapConfig
from tests.quap_tff import noise_checks

_SEED = tf.constant([5, 6], tf.int64)
# TensorFlow flushes subnormal numbers to zero.
_norms = st.floats(0, 2.0**100, width=32, allow_subnormal=False)


def _f32(values):
  return tf.constant(values, tf.float32)


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


class _Constant(clip_rules.ClipRule):
  initial_norm = 2.0


_DOUBLING = acdp.NoisedMean(factor=3.0, noise_multiplier=0.0)


@pytest.mark.parametrize(
  'rule, rounds, expected',
  [
    # The average starts at the first target, or at an initial clip.
    (clip_rules.QuantileEma(0.5, 0.75, min_clip=0.0), [[1, 3, 5], [7], [7]], [3, 4, 4.75]),
    (clip_rules.QuantileEma(0.5, 0.75, min_clip=0.0, initial_clip=1.0), [[1, 5, 9], [6]], [2, 3]),
    # The target is bounded, not the average; the first one, too.
    (clip_rules.QuantileEma(0.9, 0.5, 1.0, 2.0, initial_clip=8.0), [[0.0], [100.0], [1.5]], [4.5, 3.25, 2.375]),
    (clip_rules.QuantileEma(min_clip=1.0, max_clip=2.0), [[0.0]], [1]),
    (clip_rules.QuantileEma(min_clip=1.0, max_clip=2.0), [[0.0] * 8], [1]),
    (clip_rules.QuantileEma(min_clip=1.0, max_clip=2.0), [[9.0]], [2]),
    (clip_rules.QuantileEma(min_clip=1.0, max_clip=2.0), [[9.0] * 8], [2]),
    # Norms that are not finite are left out.
    (clip_rules.QuantileEma(0.5), [[math.nan, 1.0, math.inf, 3.0]], [2]),
    (clip_rules.Fixed(2.5), [[9.0], [], [math.nan]], [2.5] * 3),
    (clip_rules.Unclipped(), [[9.0], []], [math.inf] * 2),
    # By default the norm stays.
    (_Constant(), [[9.0]], [2]),
    # Three of four norms at most 1: C = e^(-0.2·(0.75 - 0.5)). Nobody leaves it. It never becomes +inf: no bound.
    (clip_rules.PrivateQuantile(0.5, 1.0, 0.2, 0.0), [[0.5, 1.0, 0.2, 3.0]], [math.exp(-0.05)]),
    (clip_rules.PrivateQuantile(), [[]], [0.1]),
    (clip_rules.PrivateQuantile(1.0, 1.0, 1e3, 0.0), [[9.0]], [clip_rules.LARGEST_NORM]),
    # Clipped to 1, with 1 for what is not finite: (0.5 + 1 + 1)/3·1.5.
    (acdp.NoisedMean(noise_multiplier=0.0), [[0.5, 2.0, math.nan]], [1.25]),
    # It at most doubles, and at most halves. Nobody leaves it.
    (_DOUBLING, [[9.0, 9.0], [0.0, 1e-3]], [2, 1]),
    (acdp.NoisedMean(initial_clip=0.7), [[]], [0.7]),
    (clip_rules.Decaying(2.0, 0.5), [[9.0], []], [1, 0.5]),
  ],
)
def test_courses_by_hand(rule, rounds, expected):
  np.testing.assert_allclose(_course(rule, rounds), np.float32(expected), rtol=2e-7)


@pytest.mark.parametrize(
  'rule, uses_current_norms, releases_exact_norms, count_noise_multiplier',
  [
    (clip_rules.QuantileEma(), True, True, math.inf),
    (clip_rules.QuantileEma(timing='previous', initial_clip=1.0), False, True, math.inf),
    (clip_rules.Fixed(), False, False, math.inf),
    (clip_rules.PrivateQuantile(count_stddev=3.0), False, False, 3.0 / 0.5),
    (clip_rules.PrivateQuantile(count_stddev=0.0), False, True, 0.0),
    (acdp.NoisedMean(noise_multiplier=3.0), False, False, 3.0),
    (acdp.NoisedMean(noise_multiplier=0.0), False, True, 0.0),
    (clip_rules.Decaying(), False, False, math.inf),
    (clip_rules.Unclipped(), False, False, math.inf),
    (_Constant(), False, False, math.inf),
  ],
)
def test_what_rules_use_and_release(rule, uses_current_norms, releases_exact_norms, count_noise_multiplier):
  assert rule.uses_current_norms == uses_current_norms and rule.releases_exact_norms == releases_exact_norms
  assert rule.count_noise_multiplier == count_noise_multiplier


_PRIVATE_FIELDS = ('quantile', 'initial_clip', 'learning_rate', 'count_stddev')


@pytest.mark.parametrize(
  'rule, arguments, message',
  [
    (clip_rules.QuantileEma, dict(quantile=1.1), 'clip quantile must be .* at least 0 and at most 1, found 1.1'),
    *((clip_rules.QuantileEma, dict(quantile=bad), 'clip quantile') for bad in (-0.1, math.nan)),
    *((clip_rules.QuantileEma, dict(momentum=bad), 'clip momentum') for bad in (1.0, -0.1, math.nan)),
    *((clip_rules.QuantileEma, dict(min_clip=bad), 'min_clip') for bad in (-1, math.nan, math.inf)),
    *((clip_rules.QuantileEma, dict(max_clip=bad), 'max_clip') for bad in (0.0, math.nan)),
    (clip_rules.QuantileEma, dict(min_clip=2.0, max_clip=1.0), 'min_clip must not be above max_clip, found 2.0 > 1.0'),
    # 1e39 is +inf in float32.
    *((clip_rules.QuantileEma, dict(initial_clip=bad), 'initial_clip') for bad in (0.0, math.nan, 1e39)),
    (clip_rules.QuantileEma, dict(timing='curent'), "Unknown clip timing 'curent'. Did you mean 'current'"),
    (clip_rules.QuantileEma, dict(timing='previous'), 'Set initial_clip'),
    *(
      (clip_rules.Fixed, dict(norm=bad), 'clipping norm must be a finite number at least 1e-20')
      for bad in (0.0, 1e-24, -1.0, math.nan, math.inf, 1e39, None)
    ),
    *(
      (clip_rules.PrivateQuantile, {name: bad}, name)
      for name, bad in itertools.product(_PRIVATE_FIELDS, (-0.1, math.nan, math.inf, None))
    ),
    (clip_rules.PrivateQuantile, dict(quantile=1.1), 'quantile'),
    (clip_rules.PrivateQuantile, dict(initial_clip=0.0), 'initial_clip'),
    (clip_rules.PrivateQuantile, dict(learning_rate=0.0), 'learning_rate'),
    (acdp.NoisedMean, dict(factor=1.0), 'factor of the clipping norm'),
    (acdp.NoisedMean, dict(noise_multiplier=-1.0), 'noise_multiplier of the norms'),
    *((clip_rules.Decaying, dict(decay=bad), 'decay of the clipping norm') for bad in (0.0, 1.1)),
  ],
)
def test_bad_values(rule, arguments, message):
  with pytest.raises(ValueError, match=message):
    rule(**arguments)


class TestQuantileEma:
  @pytest.mark.parametrize('nobody', [[], [math.nan], [math.nan, math.inf, math.nan, math.nan]])
  @pytest.mark.parametrize('max_clip', [None, 5.0])
  def test_a_cohort_without_one_finite_norm_leaves_it(self, nobody, max_clip):
    rule = clip_rules.QuantileEma(momentum=0.5, max_clip=max_clip)
    assert _course(rule, [nobody, [2.0], nobody, [4.0]]) == [math.inf, 2.0, 2.0, 3.0]

  @pytest.mark.slow
  @given(
    rounds=st.lists(st.lists(st.floats(0, 1e4, width=32) | st.just(math.nan), max_size=8), min_size=1, max_size=8),
    quantile=st.floats(0, 1),
    momentum=st.floats(0, 0.99),
    bounds=st.tuples(st.floats(0, 100), st.floats(0.1, 100) | st.none()),
    initial_clip=st.none() | st.floats(0.01, 100),
  )
  @settings(max_examples=25)
  def test_any_history(self, rounds, quantile, momentum, bounds, initial_clip):
    min_clip, max_clip = bounds[0] if bounds[1] is None else min(bounds), bounds[1] and max(bounds)
    rule = clip_rules.QuantileEma(quantile, momentum, min_clip, max_clip, initial_clip)
    expected, clip = [], rule.initial_norm
    for norms in rounds:
      clip = quap_fl.next_clipping_norm(QuapConfig(1, clip=rule), clip, [n for n in norms if math.isfinite(n)])
      expected.append(clip)
    np.testing.assert_allclose(_course(rule, rounds), expected, rtol=1e-4, atol=1e-3)


class TestPrivateQuantile:
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

  @pytest.mark.slow
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

  def test_a_non_finite_update_counts_as_above(self):
    rule = clip_rules.PrivateQuantile(quantile=0.5, initial_clip=1.0, count_stddev=0.0)
    assert _course(rule, [[math.nan, 0.5]]) == _course(rule, [[9.0, 0.5]])

  def test_to_take_a_clients_data_away_moves_the_count_by_half(self):
    # ln(C'/C) = -η·(count/M + 1/2 - q); a client without data sends an update of exactly zero.
    rule = clip_rules.PrivateQuantile(quantile=0.5, initial_clip=1.0, learning_rate=1.0, count_stddev=0.0)
    counts = [-4 * math.log(_course(rule, [[own, 0.5, 0.5, 9.0]])[-1]) for own in (0.5, 9.0, 0.0)]
    np.testing.assert_allclose(counts, [1.0, 0.0, 0.5], atol=1e-5)


class TestNoisedMean:
  @pytest.mark.slow
  def test_the_noise_is_that_of_its_multiplier(self):
    rule = acdp.NoisedMean(factor=2.0, noise_multiplier=30.0)
    next_norm = tf.function(lambda seed: rule.next_norm(tf.constant(1.0), tf.fill([1000], 0.5), _noise(seed)))
    found = [float(next_norm(tf.constant([1, k], tf.int64))) / 2 * 1000 - 500 for k in range(400)]
    noise_checks.assert_gaussian(found, 30.0)

  def test_nobody_moves_the_sum_by_more_than_the_clip(self):
    # Its update replaced by zero, whatever it was.
    for norm in (0.2, 1.0, 7.0, float('inf'), float('nan')):
      rule = acdp.NoisedMean(factor=1.1, noise_multiplier=0.0)
      with_it, without = (2 * _course(rule, [[0.9, own]])[0] / 1.1 for own in (norm, 0.0))
      assert abs(with_it - without) <= 1.0 + 1e-6


class TestQuantile:
  @pytest.mark.parametrize(
    'values, q, expected',
    [
      ([1, 2, 3, 4, 5], 0.5, 3),
      ([5, 3, 1, 2, 4], 0.9, 4.6),
      ([0, 10], 0.25, 2.5),
      ([7], 0.9, 7),
      ([1, 2, 3], 0.0, 1),
      ([1, 2, 3], 1.0, 3),
      ([math.nan, 1, math.inf, 3, -math.inf], 0.5, 2),
      ([], 0.5, math.nan),
      ([math.nan, math.inf], 0.5, math.nan),
    ],
  )
  def test_by_hand(self, values, q, expected):
    np.testing.assert_allclose(clip_rules.quantile(_f32(values), q), expected, rtol=1e-6)

  @pytest.mark.slow
  @given(
    values=st.lists(st.floats(0, 1e6, width=32, allow_subnormal=False), min_size=1, max_size=40), q=st.floats(0, 1)
  )
  @settings(max_examples=100)
  def test_as_numpys(self, values, q):
    np.testing.assert_allclose(
      clip_rules.quantile(_f32(values), q), np.quantile(values, q), rtol=1e-5, atol=1e-5 * max(values)
    )

  @pytest.mark.slow
  def test_of_unknown_length_in_a_graph(self):
    traced = tf.function(lambda v: clip_rules.quantile(v, 0.5), input_signature=[tf.TensorSpec([None], tf.float32)])
    assert traced(_f32([1, 2, 4])) == 2.0
    assert math.isnan(traced(_f32([])))


class TestClipFactor:
  @pytest.mark.parametrize(
    'norm, clip, expected',
    [
      (5.0, 1.0, 0.2),
      (5.0, 5.0, 1.0),  # Exactly at the bound.
      (4.9, 5.0, 1.0),
      (0.0, 5.0, 1.0),
      (0.0, 0.0, 1.0),
      (2.0, 0.0, 0.0),
      (5.0, math.inf, 1.0),
      (0.0, math.inf, 1.0),
      (math.nan, 1.0, 0.0),
      (math.nan, math.inf, 0.0),
      (math.nan, 0.0, 0.0),
      (math.inf, 1.0, 0.0),
    ],
  )
  def test_by_hand(self, norm, clip, expected):
    assert clip_rules.clip_factor(_f32(norm), _f32(clip)) == expected

  def test_elementwise(self):
    np.testing.assert_array_equal(clip_rules.clip_factor(_f32([8, 2, 0, math.nan]), _f32(4.0)), [0.5, 1, 1, 0])

  @pytest.mark.slow
  @given(norm=_norms, clip=_norms)
  @settings(max_examples=200)
  def test_clips_to_the_bound_and_never_scales_up(self, norm, clip):
    factor = float(clip_rules.clip_factor(_f32(norm), _f32(clip)))
    assert 0 <= factor <= 1
    assert factor * norm <= clip * (1 + 1e-6)


class TestGlobalNorm:
  def test_tensors_are_taken_together(self):
    norm = clip_rules.global_norm([_f32([[1, 2], [2, 0]]), _f32([4])])
    assert norm.dtype == tf.float64
    np.testing.assert_allclose(norm, 5.0)

  def test_of_nothing_is_zero(self):
    assert clip_rules.global_norm([]) == 0.0

  def test_takes_other_float_types(self):
    tensors = [tf.constant([3.0], tf.float64), tf.constant([4.0], tf.bfloat16)]
    np.testing.assert_allclose(clip_rules.global_norm(tensors), 5.0)

  @pytest.mark.parametrize('entry', [math.nan, math.inf, -math.inf])
  def test_is_not_finite_where_entries_are_not(self, entry):
    assert not math.isfinite(clip_rules.global_norm([_f32([1.0, entry])]))

  @pytest.mark.parametrize('scale', [1e-35, 1e-24, 1e30, 8e37])
  def test_is_right_where_squares_are_beyond_float32(self, scale):
    tensors = [_f32([3 * scale]), _f32([4 * scale])]
    np.testing.assert_allclose(clip_rules.global_norm(tensors), 5 * scale, rtol=1e-6)


class TestAsFloat32:
  @pytest.mark.slow
  @given(norm=st.floats(2.0**-120, 2.0**120))
  @settings(max_examples=200)
  def test_is_rounded_up_by_at_most_two_units(self, norm):
    rounded = float(clip_rules.as_float32(tf.constant(norm, tf.float64)))
    assert norm <= rounded <= norm * (1 + 2.0**-22)

  def test_of_a_float32_is_itself(self):
    assert clip_rules.as_float32(tf.constant(np.float64(np.float32(0.1)))) == np.float32(0.1)
