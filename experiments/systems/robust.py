"""Robust aggregators: replacements of the mean that a few malicious clients cannot move far.

    mean              (1/M)·Σ_i u_i, the library's own
    median            coordinate by coordinate (Yin, Chen, Ramchandran and Bartlett 2018, definition 1)
    trimmed_mean      the mean of a coordinate without its b largest and b smallest values, b = ⌊share·M⌋ (definition 2)
    geometric_median  argmin_v Σ_i ‖v - u_i‖, by Weiszfeld's smoothed iteration (Pillutla, Kakade and Harchaoui 2022)

No privacy figure survives any but the mean, see `quap_tff.mechanisms.parts.aggregators`.
"""

from __future__ import annotations

import dataclasses

from quap_tff.common import checks
from quap_tff.common.lazy import tf
from quap_tff.mechanisms.parts import aggregators


@dataclasses.dataclass(frozen=True)
class Median(aggregators.Aggregator):
  """The median of each coordinate; of an even number of values, the mean of the two in the middle."""

  def centre(self, updates: list[tf.Tensor]) -> list[tf.Tensor]:
    return [_middle(one, (tf.shape(one)[0] - 1) // 2) for one in updates]


@dataclasses.dataclass(frozen=True)
class TrimmedMean(aggregators.Aggregator):
  """The mean of each coordinate without its largest and its smallest values.

  Attributes:
    share: In [0, 0.5): the share of the clients that is cut off at each end. It holds off malicious clients up to this
      share of a cohort.
  """

  share: float = checks.number_field('share of trimmed_mean', 0.2, at_least=0, below=0.5)

  def centre(self, updates: list[tf.Tensor]) -> list[tf.Tensor]:
    return [_middle(one, _cut(self.share, tf.shape(one)[0])) for one in updates]


@dataclasses.dataclass(frozen=True)
class GeometricMedian(aggregators.Aggregator):
  """The point with the least sum of distances to all updates, each taken as one vector over all layers.

  Weiszfeld's iteration starts at the mean: v ← Σ_i β_i·u_i / Σ_i β_i, β_i = 1/max(ν, ‖v - u_i‖). The smoothing ν keeps
  it defined where v meets an update.

  Attributes:
    iterations: How often v moves. Few are enough: the paper uses at most a handful.
    smoothing: ν > 0, in units of the updates.
  """

  iterations: int = checks.integer_field('iterations of geometric_median', 8, at_least=1, at_most=1000)
  smoothing: float = checks.number_field('smoothing of geometric_median', 1e-6, above=0)

  def centre(self, updates: list[tf.Tensor]) -> list[tf.Tensor]:
    point = [tf.reduce_mean(one, axis=0) for one in updates]
    for _ in range(self.iterations):
      squares = tf.add_n([_squared_distances(one, centre) for one, centre in zip(updates, point)])
      weights = 1.0 / tf.maximum(tf.sqrt(squares), tf.constant(self.smoothing, tf.float64))
      weights /= tf.reduce_sum(weights)
      point = [tf.tensordot(tf.cast(weights, one.dtype), one, 1) for one in updates]
    return point


def _squared_distances(values: tf.Tensor, centre: tf.Tensor) -> tf.Tensor:
  """float64[M], ‖v_i - centre‖² of float[M, …]."""
  every_axis_but_the_first = list(range(1, values.shape.rank))
  return tf.reduce_sum(tf.square(tf.cast(values - centre, tf.float64)), axis=every_axis_but_the_first)


def _cut(share: float, size: tf.Tensor) -> tf.Tensor:
  """⌊share·M⌋; a share below 1/2 always leaves a value."""
  # A share such as 0.2 is not exact in binary: 0.2·5 must cut one.
  return tf.cast(tf.floor(tf.cast(share, tf.float64) * tf.cast(size, tf.float64) + 1e-9), tf.int32)


def _middle(values: tf.Tensor, cut: tf.Tensor) -> tf.Tensor:
  """The mean of float[M, …] along the first axis, without the `cut` largest and smallest values of each coordinate."""
  ordered = tf.sort(values, axis=0)
  return tf.reduce_mean(ordered[cut : tf.shape(values)[0] - cut], axis=0)


aggregators.AGGREGATORS['median'] = Median
aggregators.AGGREGATORS['trimmed_mean'] = TrimmedMean
aggregators.AGGREGATORS['geometric_median'] = GeometricMedian
