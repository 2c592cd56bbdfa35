"""Tests of `quap_tff.clipping`."""

import math

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf

from quap_tff.mechanisms.parts import clip_rules

_NAN, _INF = math.nan, math.inf
# TensorFlow flushes subnormal numbers to zero.
_norms = st.floats(0, 2.0**100, width=32, allow_subnormal=False)


def _f32(values):
  return tf.constant(values, tf.float32)


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
      ([_NAN, 1, _INF, 3, -_INF], 0.5, 2),
      ([], 0.5, _NAN),
      ([_NAN, _INF], 0.5, _NAN),
    ],
  )
  def test_by_hand(self, values, q, expected):
    np.testing.assert_allclose(clip_rules.quantile(_f32(values), q), expected, rtol=1e-6)

  @given(
    values=st.lists(st.floats(0, 1e6, width=32, allow_subnormal=False), min_size=1, max_size=40), q=st.floats(0, 1)
  )
  @settings(derandomize=True, deadline=None, max_examples=100)
  def test_as_numpys(self, values, q):
    np.testing.assert_allclose(
      clip_rules.quantile(_f32(values), q), np.quantile(values, q), rtol=1e-5, atol=1e-5 * max(values)
    )

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
      (5.0, _INF, 1.0),
      (0.0, _INF, 1.0),
      (_NAN, 1.0, 0.0),
      (_NAN, _INF, 0.0),
      (_NAN, 0.0, 0.0),
      (_INF, 1.0, 0.0),
    ],
  )
  def test_by_hand(self, norm, clip, expected):
    assert clip_rules.clip_factor(_f32(norm), _f32(clip)) == expected

  def test_elementwise(self):
    np.testing.assert_array_equal(clip_rules.clip_factor(_f32([8, 2, 0, _NAN]), _f32(4.0)), [0.5, 1, 1, 0])

  @given(norm=_norms, clip=_norms)
  @settings(derandomize=True, deadline=None, max_examples=200)
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

  @pytest.mark.parametrize('entry', [_NAN, _INF, -_INF])
  def test_is_not_finite_where_entries_are_not(self, entry):
    assert not math.isfinite(clip_rules.global_norm([_f32([1.0, entry])]))

  @pytest.mark.parametrize('scale', [1e-35, 1e-24, 1e30, 8e37])
  def test_is_right_where_squares_are_beyond_float32(self, scale):
    tensors = [_f32([3 * scale]), _f32([4 * scale])]
    np.testing.assert_allclose(clip_rules.global_norm(tensors), 5 * scale, rtol=1e-6)


class TestAsFloat32:
  @given(norm=st.floats(2.0**-120, 2.0**120))
  @settings(derandomize=True, deadline=None, max_examples=200)
  def test_is_rounded_up_by_at_most_two_units(self, norm):
    rounded = float(clip_rules.as_float32(tf.constant(norm, tf.float64)))
    assert norm <= rounded <= norm * (1 + 2.0**-22)

  def test_of_a_float32_is_itself(self):
    assert clip_rules.as_float32(tf.constant(np.float64(np.float32(0.1)))) == np.float32(0.1)


class TestClipRule:
  def test_by_default_the_norm_stays(self):
    class Constant(clip_rules.ClipRule):
      initial_norm = 2.0

    rule = Constant()
    assert rule.next_norm(2.0, _f32([9.0]), None) == 2.0
    assert not rule.uses_current_norms
    assert not rule.releases_exact_norms
