"""The integers of the certified mechanism: a grid, its noise, and the cost of rounding (docs/proofs.md).

    client     x_i = ⌊(K/C)·u_i⌉ with Σ x² ≤ ⌊w_i·K⌋², checked in integers; otherwise zeros
    server     R_t = Σ x_i + Ẑ_t,  Ẑ_t = ⌊Z_t - b_t⌉,  Z_t ~ N(0, (z·K)²),  b_t = Σ_j gain_j·buffer_j
               buffer_j ← decay_j·buffer_j + Ẑ_t, or the buffers move on by one place (banded)
    released   C/(K·D)·R_t

Sums of integers are the same in any order. Buffers are in fixed point. Everything has a bound that follows from the
configuration, so nothing can overflow.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import Optional, Protocol

import numpy as np

from quap_tff.common.lazy import tf
from quap_tff.common.numbers import slack as slacks
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms.noise import correlation as correlations
from quap_tff.mechanisms.noise import integer_noise

# The share of ε, and of δ, that is kept for what rounding costs.
RESERVE = 2.0**-11
# Grid steps in the clipping norm, for each √d.
_STEPS = 512
_MOST_STEPS = 2**30
# Sums and buffers stay below.
_LARGEST = 2.0**62
_FEWEST_FRACTION_BITS, _MOST_FRACTION_BITS = 8, 40
# A count is this many grid steps, so that noise on it is fine enough.
_COUNT_STEPS = 2**16
# The stream of a round's key for counts; that of sums is 0.
_COUNTS = 1
COUNT_RANGE = '1/16 to 2^29'
# `product` is too small by less than this.
_PRODUCT_ERROR = 3
# The error of float64 when a client's bound is computed, as a share.
_BOUND_ERROR = 2.0**-40
# Beyond this many releases, coefficients of the noise's inverse are bounded by 1 instead of being computed.
_COMPUTED_RELEASES = 10_000
# The name of the tensor that says whether a client's update counts, or zeros in its place: `exporting` looks for it.
COUNTS = 'quap_update_counts'


def count_steps(stddev: float) -> float:
  """The standard deviation of noise for a count, in grid steps."""
  return stddev * _COUNT_STEPS


def takes_count(stddev: float) -> bool:
  """True if noise with this standard deviation can be added to a count."""
  return integer_noise.SMALLEST_STDDEV <= count_steps(stddev) <= integer_noise.LARGEST_STDDEV


class Group(Protocol):
  """Tensors that are clipped together: `layers.ClipGroup`."""

  @property
  def indices(self) -> Sequence[int]: ...

  @property
  def ratio(self) -> float: ...


@dataclasses.dataclass(frozen=True)
class Grid:
  """The grid of a mechanism with d weights.

  Attributes:
    noise_multiplier: z.
    num_weights: d.
    correlation: The correlation of the noise.
    num_releases: The most releases; None if there is no limit, which correlated noise does not allow.
    smallest_stddev: The least standard deviation of the noise in grid steps.
    least_weight: In (0, 1], the smallest weight for which the grid is fine.
  """

  noise_multiplier: float
  num_weights: int
  correlation: correlations.Correlation = correlations.Independent()
  num_releases: Optional[int] = None
  smallest_stddev: float = integer_noise.SMALLEST_STDDEV
  least_weight: float = 1.0

  def __post_init__(self) -> None:
    if self.correlation.num_buffers and self.num_releases is None:
      raise ValueError(
        'Correlated noise needs a number of rounds, because the rounding of its buffers adds up. Give num_rounds, or '
        'use independent noise.'
      )
    if not self.stddev <= integer_noise.LARGEST_STDDEV or self.steps > _MOST_STEPS:
      raise ValueError(
        f'noise_multiplier={self.noise_multiplier:g} and {self.num_weights:,} weights need a grid of {self.steps:,} '
        f'steps and noise of {self.stddev:.3g} steps, and sums of such integers could overflow. Use a smaller model, '
        'or less noise.'
      )
    if self.correlation.num_buffers and self.fraction_bits < _FEWEST_FRACTION_BITS:
      raise ValueError(
        f'The buffers of {self.correlation!r} could overflow: noise of {self.stddev:.3g} grid steps leaves '
        f'{self.fraction_bits} bits for fractions, and {_FEWEST_FRACTION_BITS} are needed. Use smaller decays, or '
        'independent noise.'
      )

  @functools.cached_property
  def steps(self) -> int:
    """K, the number of grid steps in the clipping norm."""
    # With 512·√d steps, rounding a client's entries costs at most a thousandth of its bound at the least weight.
    fine = _STEPS * math.sqrt(self.num_weights) / self.least_weight
    return math.ceil(max(fine, self.smallest_stddev / self.noise_multiplier))

  @property
  def _releases(self) -> int:
    assert self.num_releases is not None
    return self.num_releases

  @property
  def stddev(self) -> float:
    """z·K, the standard deviation of Z_t in grid steps."""
    return self.noise_multiplier * self.steps

  @functools.cached_property
  def sampler(self) -> integer_noise.Sampler:
    """Draws the noise."""
    return integer_noise.Sampler(self.stddev)

  @functools.cached_property
  def _largest_noise(self) -> float:
    """A bound on |Ẑ_t|: Σ|h_k|·(|Z| + 1), where h is the inverse of the coefficients."""
    one = integer_noise.REACH * self.stddev + 2
    if not self.correlation.num_buffers:
      return one
    gains = self.correlation.gains
    total, noise, buffers = 1.0, 1.0, np.zeros_like(gains)
    for _ in range(min(self._releases, _COMPUTED_RELEASES) - 1):
      buffers = np.array(self.correlation.after(list(buffers), noise))
      noise = -float(gains @ buffers)
      total += abs(noise)
    return one * (total + max(self._releases - _COMPUTED_RELEASES, 0))

  @functools.cached_property
  def fraction_bits(self) -> int:
    """F: buffers are integers in units of 2^-F grid steps."""
    largest = self._largest_noise / (1 - self.correlation.decays.max())
    return min(math.floor(math.log2(_LARGEST / largest)), _MOST_FRACTION_BITS)

  def check_sum(self, num_clients: int) -> None:
    """Raises `ValueError` if a sum of all clients and noise could overflow."""
    if not num_clients * self.steps + self._largest_noise < _LARGEST:
      raise ValueError(
        f'{num_clients:,} clients of {self.steps:,} grid steps and noise of {self.stddev:.3g} steps could overflow '
        'integers of 64 bits. Use a smaller model, or less noise.'
      )

  @property
  def buffer_cost(self) -> float:
    """The most that the rounding of buffers adds to a client's μ.

    The difference of two runs' b_t is that of exact buffers up to twice the error of each. In all T releases it moves
    every entry by at most that. Buffers that only move on have no error, so for them this is too much.
    """
    if not self.correlation.num_buffers:
      return 0.0
    gains, decays = self.correlation.gains, self.correlation.decays
    # Errors of earlier products fade with their buffer. The products with the gains have errors of their own.
    faded = float(gains @ (1 / (1 - decays)))
    error = _PRODUCT_ERROR * (faded + self.correlation.num_buffers)
    each = 2 * error * 2.0**-self.fraction_bits * math.sqrt(self.num_weights) / self.stddev
    return math.sqrt(self._releases) * each

  def slack(
    self,
    smallest: float,
    largest: float,
    delta: float,
    draws: Sequence[tuple[float, int]],
    more: slacks.Slack = slacks.Slack(),
  ) -> slacks.Slack:
    """The cost of rounding: twice ε' of `slack.slack_of_draws`, and the buffers' cost at the largest μ.

    Args:
      smallest: The smallest ε that a client has.
      largest: The largest ε that the slack covers.
      delta: The total δ.
      draws: The draws of all releases: standard deviations in grid steps, and how many have each.
      more: What the ideal noise costs in addition to its μ.

    Raises:
      ValueError: If the share `RESERVE` of ε and δ does not pay for it.
    """
    num_draws = sum(count for _, count in draws)
    reserve = RESERVE * delta
    # What is unlikely under one of two neighbours is at most e^ε times as likely under the other. Above 700, e^ε may be
    # too large for a float, and no δ pays for 700 either.
    likelier = math.exp(min(largest + 1, 700.0))
    chance = max(reserve / (4 * likelier), float(np.finfo(np.float64).tiny))
    largest_stddev = max(stddev for stddev, _ in draws)
    missing = max(integer_noise.BEYOND_REACH, integer_noise.added(largest_stddev))
    moved = slacks.slack_of_draws(num_draws, integer_noise.RELATIVE_ERROR, missing, chance)
    of_buffers = self._cost_of_buffers(largest, delta)
    epsilon = 2 * moved + of_buffers + more.epsilon
    tails = sum(count * integer_noise.added(stddev) for stddev, count in draws)
    tails += likelier * num_draws * integer_noise.BEYOND_REACH
    ideal_delta = delta + more.delta
    lost = math.expm1(moved) * ideal_delta + more.delta + chance * (1 + likelier) + tails
    # More than 1 would not be covered by `likelier`.
    if not (epsilon <= min(RESERVE * smallest, 1.0) and lost <= reserve):
      remedy = 'smaller decays' if of_buffers > epsilon / 2 else 'a smaller model'
      if tails > reserve / 4:
        remedy = 'a smaller epsilon' if largest > slacks.LARGEST_EPSILON else 'a larger delta'
      raise ValueError(
        f'Rounding of {num_draws:,} draws of noise costs ε = {epsilon:.2g} and δ = {lost:.2g}, and of epsilon='
        f'{smallest:g} and delta={delta:g}, {RESERVE * smallest:.2g} and {reserve:.2g} are kept for it. Use fewer '
        f'rounds or {remedy}.'
      )
    return slacks.Slack(epsilon, reserve)

  def _cost_of_buffers(self, largest: float, delta: float) -> float:
    """The addition of `buffer_cost` to any ε up to `largest`.

    With t = ε/μ + μ/2, dε/dμ is φ(t)/Φ(-t), which is less than t + 1/t and grows with μ.
    """
    if not self.buffer_cost:
      return 0.0
    mu = tradeoff.mu_at_most(largest, delta) + self.buffer_cost
    t = float(tradeoff.epsilon_of(mu, delta * (1 - RESERVE))) / mu + mu / 2
    return self.buffer_cost * (t + 1 / t)

  def summands(
    self,
    update: Sequence[tf.Tensor],
    norms: Sequence[tf.Tensor],
    groups: Sequence[Group],
    weight: tf.Tensor,
    clip: tf.Tensor,
  ) -> list[tf.Tensor]:
    """A client's part of the sum: int32 tensors with Σ x² ≤ ⌊w·K⌋², or zeros.

    Args:
      update: Its float tensors.
      norms: float64 scalars, the norm of each group.
      groups: The tensors that are clipped together, `layers.ClipGroup`s.
      weight: w, float32 scalar.
      clip: C, float32 scalar.
    """
    # Lower by the error of this product, so that it is never above ⌊w·K⌋.
    bound = tf.floor(tf.cast(weight, tf.float64) * (self.steps * (1 - _BOUND_ERROR)))
    # Rounding adds at most √d/2 to the norm.
    most_by_rounding = math.sqrt(self.num_weights) / 2
    aim = tf.maximum(bound - most_by_rounding, 0.0) * (1 - _BOUND_ERROR)
    result = list(update)
    for group, norm in zip(groups, norms):
      steps_per_unit = self.steps / tf.cast(clip, tf.float64)
      clipped = tf.math.divide_no_nan(group.ratio * aim, norm)
      scale = tf.minimum(steps_per_unit, clipped)
      for index in group.indices:
        scaled = tf.cast(update[index], tf.float64) * scale
        result[index] = tf.round(scaled)
    # The float64 sum cannot wrap around, and an integer sum that would is too large for it.
    squares = tf.add_n([tf.reduce_sum(tf.square(part)) for part in result])
    small = tf.logical_and(tf.math.is_finite(squares), squares <= 2 * tf.square(bound))
    # Zeros first: a cast of numbers that are too large for integers is not defined.
    whole = [tf.cast(_or_zeros(small, part), tf.int64) for part in result]
    # The bound on a client's part holds for these integers, not for the floats that they come from.
    exact = tf.add_n([tf.reduce_sum(tf.square(part)) for part in whole])
    is_finite = tf.reduce_all(tf.math.is_finite(tf.stack(norms)))
    is_bounded = exact <= tf.square(tf.cast(bound, tf.int64))
    within = tf.reduce_all([is_finite, small, is_bounded], name=COUNTS)
    return [tf.cast(_or_zeros(within, part), tf.int32) for part in whole]

  def initial_buffers(self) -> list[tf.Tensor]:
    """The buffers before the first release: one int64[d buffers, d weights] in units of 2^-F; none if independent."""
    count = self.correlation.num_buffers
    return [tf.zeros([count, self.num_weights], tf.int64)] if count else []

  def noise(self, key: tf.Tensor, buffers: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """(Ẑ_t int64[d], the buffers after it), from the round's key, int64[4]."""
    if not buffers:
      return self.sampler.draw(key, self.num_weights), []
    (before,) = buffers
    bits = tf.constant(self.fraction_bits, tf.int64)
    held = tf.unstack(before)
    # The sum may wrap around on the way. b_t itself is less than the bound on the noise.
    gains = self.correlation.gains.tolist()
    taken = tf.add_n([product(own, gain) for own, gain in zip(held, gains)])
    # A draw can be shifted by at most half a step. Whole steps are subtracted after it.
    half_a_step = 2 ** (self.fraction_bits - 1)
    whole = tf.bitwise.right_shift(taken + half_a_step, bits)
    rest = taken - tf.bitwise.left_shift(whole, bits)
    shifts = tf.cast(rest, tf.float64) * 2.0**-self.fraction_bits
    noise = self.sampler.draw(key, self.num_weights, shifts) - whole
    added = tf.bitwise.left_shift(noise, bits)
    return noise, [tf.stack(self.correlation.after(held, added, product))]


def _or_zeros(condition: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
  return tf.where(condition, values, tf.zeros_like(values))


def count_noise(key: tf.Tensor, stddev: float) -> tf.Tensor:
  """float64 scalar: noise for a count, in multiples of 2^-16. A count (a multiple of 1/2) plus it is exact in float64.

  Args:
    key: int64[4].
    stddev: Its standard deviation, from 1/16.
  """
  sampler = integer_noise.Sampler(count_steps(stddev))
  # A stream of its own: the same key draws the noise of the updates.
  steps = sampler.draw(key, 1, stream=integer_noise.Stream(_COUNTS))[0]
  return tf.cast(steps, tf.float64) / _COUNT_STEPS


def product(values: tf.Tensor, factor: float) -> tf.Tensor:
  """int64 values·factor with an error in (-3, 0], for |values| < 2^62 and a float64 factor in [0, 1].

  A factor below 1/2 is rounded to a multiple of 2^-53.
  """
  # By parts of at most 33 bits of the value and 27 of the factor, so that no product needs more than 64 bits. Each of
  # the three shifts rounds down.
  high, low = divmod(round(factor * 2**53), 2**27)

  def shifted(value: tf.Tensor, bits: int) -> tf.Tensor:
    return tf.bitwise.right_shift(value, tf.constant(bits, tf.int64))

  above = shifted(values, 31)
  below = tf.bitwise.bitwise_and(values, tf.constant(2**31 - 1, tf.int64))
  # With v = above·2³¹ + below and f·2⁵³ = high·2²⁷ + low, each term is a product of parts over 2⁵³.
  result = above * (high * 32) + shifted(above * low, 22)
  return result + shifted(below * high, 26) + shifted(below * low, 53)
