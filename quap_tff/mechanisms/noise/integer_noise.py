"""Gaussian noise that is a whole number: rounded Gaussians ⌊N(0, σ²) - shift⌉, and discrete Gaussians.

A value k has the weight θ(c) at c = k + shift. For rounded Gaussians, θ is proportional to the probability that
N(0, σ²) lies within 1/2 of c; for discrete Gaussians, to exp(-c²/2σ²).

    θ(c) = A·exp(-x²/2)·(1 + (x² - 1)/24σ² + (x⁴ - 6x² + 3)/1920σ⁴),     x = c/σ

A table cuts the 2^63 values of a random word into bands. A band has some magnitudes, and each of them has as many words
as the largest θ of the band, rounded up. The word says the magnitude; a second word says the sign, and whether the
draw is kept, which has the probability θ(c) over the magnitude's number of words. So each k is drawn with a probability
proportional to θ(k + shift), whatever the table is. Draws that are not kept, about one in 25, are made again.

Rounding moves θ by a factor within 1 ± `RELATIVE_ERROR`, for all σ. (Φ⁻¹ of a uniform number would have an error that
grows with σ, because the ends of each unit cell move.) docs/proofs.md has the proof and what it costs.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import NamedTuple, Optional, Union

import numpy as np

from quap_tff.common import checks
from quap_tff.common.lazy import tf
from quap_tff.common.numbers import chacha20

# The series of θ is exact up to 2^-70 from this σ on.
SMALLEST_STDDEV = 2.0**12
# Magnitudes stay within float64's integers.
LARGEST_STDDEV = 2.0**45
# No draw is further from 0, in standard deviations, and a Gaussian is with at most this probability.
REACH, BEYOND_REACH = 16.5, 4e-61
# The largest |ln| of the ratio of a value's probability and the ideal one. The exponent of θ is at most 136.2 and has
# at most five roundings of 2^-53 each, which makes 2^-43.58; `exp` and the polynomial add less than 2^-49. The sum of
# all θ errs by as much. Together this is less than 0.7·2^-42. The rest is room for what is left out.
RELATIVE_ERROR = 2.0**-42
# The largest part of a value's probability that is in addition to this: keeping compares 63 bits, rounded up.
_ABSOLUTE_ERROR = 2.0**-125

_BANDS_PER_STDDEV = 32
_WORDS = 2**63
# The share of all words that the θ of both signs fill.
_FILLED = 0.96
_LOW_BITS = 2**63 - 1


class Stream(NamedTuple):
  """A stream of random words of a key.

  Attributes:
    use: What it is for, a number in [0, 2^32).
    number: Another number, such as that of a round.
    words: Its first words, from `stream_words`, if they are known already.
  """

  use: Union[int, tf.Tensor] = 0
  number: Union[int, tf.Tensor] = 0
  words: Optional[tf.Tensor] = None


class _Table(NamedTuple):
  """The bands, by rising magnitude: int64 arrays.

  Attributes:
    first: The first magnitude.
    words: How many words each magnitude has.
    begins: The first word.
    end: The first word that belongs to no band; 2^63 - 1 words at most are in bands.
  """

  first: np.ndarray
  words: np.ndarray
  begins: np.ndarray
  end: int


@dataclasses.dataclass(frozen=True)
class Sampler:
  """Draws noise with one standard deviation.

  Attributes:
    stddev: σ, in [2^12, 2^45].
    is_rounded: True for rounded Gaussians, False for discrete Gaussians.
  """

  stddev: float
  is_rounded: bool = True

  def __post_init__(self) -> None:
    checks.number('standard deviation on the grid', self.stddev, at_least=SMALLEST_STDDEV, at_most=LARGEST_STDDEV)

  @functools.cached_property
  def height(self) -> float:
    """A, the number of words for which θ(0) stands, without the terms of the series."""
    return _FILLED * _WORDS / (self.stddev * math.sqrt(math.pi / 2))

  @functools.cached_property
  def _table(self) -> _Table:
    last = int(REACH * self.stddev)
    num_bands = int(REACH * _BANDS_PER_STDDEV)
    edges = [int(self.stddev * step / _BANDS_PER_STDDEV) for step in range(num_bands + 1)]
    first: list[int] = []
    words: list[int] = []
    begins: list[int] = []
    end = 0
    for begin, after in zip(edges, [*edges[1:], last + 1]):
      # A shift of at most 1/2 brings the smallest magnitude nearer to 0. The series changes θ by less than 2^-17.
      nearest = max(begin - 0.5, 0.0) / self.stddev
      each = math.ceil(self.height * math.exp(-nearest * nearest / 2) * (1 + 2.0**-16))
      # All bands whose magnitudes have one word each are one band.
      if each > 1 or not words or words[-1] > 1:
        first.append(begin)
        words.append(each)
        begins.append(end)
      end += (after - begin) * each
    assert end < _WORDS, 'The bands need more words than there are.'
    return _Table(np.array(first, np.int64), np.array(words, np.int64), np.array(begins, np.int64), end)

  def theta(self, centres: tf.Tensor) -> tf.Tensor:
    """θ(c), float64, elementwise over float64 `centres`."""
    x = centres / self.stddev
    square = x * x
    weight = self.height * tf.exp(-0.5 * square)
    if not self.is_rounded:
      return weight
    narrow = 1 / self.stddev**2
    second = (square - 1) * (narrow / 24)
    fourth = ((square - 6) * square + 3) * (narrow * narrow / 1920)
    # One rounding fewer than a product with 1 + second + fourth.
    return weight + weight * (second + fourth)

  def decide(self, words: tf.Tensor, others: tf.Tensor, shifts: Optional[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """The integers that two random words make of each draw: a pure function, elementwise.

    Args:
      words: int64[n], for the magnitudes. The sign bit is not used.
      others: int64[n], for the signs and for keeping.
      shifts: float64[n] in [-1/2, 1/2], or 0.

    Returns:
      (int64[n] values, bool[n] whether they are kept).
    """
    table = self._table
    low_bits = tf.constant(_LOW_BITS, tf.int64)
    low = tf.bitwise.bitwise_and(words, low_bits)
    band = tf.searchsorted(tf.constant(table.begins), low, side='right') - 1
    each = tf.gather(table.words, band)
    place = (low - tf.gather(table.begins, band)) // each
    magnitudes = tf.gather(table.first, band) + place
    # -1, not 0, is the first of the negative values, so that no value can be drawn in two ways.
    values = tf.where(others < 0, -1 - magnitudes, magnitudes)
    centres = tf.cast(values, tf.float64) + shifts
    share = self.theta(centres) / tf.cast(each, tf.float64)
    # Rounded up, so that every magnitude of a band can be drawn; `_ABSOLUTE_ERROR` is the account of this.
    threshold = tf.cast(tf.math.ceil(share * float(_WORDS)), tf.int64)
    # The sign has used the first bit of this word.
    keeps = tf.bitwise.bitwise_and(others, low_bits) < threshold
    return values, tf.logical_and(keeps, low < table.end)

  def draw(
    self, key: tf.Tensor, count: Union[int, tf.Tensor], shifts: Optional[tf.Tensor] = None, stream: Stream = Stream()
  ) -> tf.Tensor:
    """int64[count]: independent draws, a pure function of the arguments.

    Args:
      key: int64[4].
      count: How many; an integer or an integer scalar.
      shifts: float64[count] in [-1/2, 1/2]; None for none.
      stream: The key's stream, used for nothing else.
    """
    words = stream.words
    if words is None:
      words = stream_words(key, [stream], count)[0]
    if shifts is None:
      shifts = tf.zeros([count], tf.float64)
    values = tf.zeros([count], tf.int64)
    shapes = (tf.TensorShape([]), tf.TensorShape([None]), values.shape)

    def attempts(words: tf.Tensor, left: tf.Tensor, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
      """Makes draws as long as there are words, and those that were not kept again."""
      pairs = tf.reshape(words, [-1, 2])

      def attempt(begin: tf.Tensor, left: tf.Tensor, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        size = tf.size(left)
        own_pairs = pairs[begin : begin + size]
        drawn, keeps = self.decide(own_pairs[:, 0], own_pairs[:, 1], tf.gather(shifts, left))
        # What is not kept is overwritten by the next attempt.
        values = tf.tensor_scatter_nd_update(values, left[:, tf.newaxis], drawn)
        return begin + size, tf.boolean_mask(left, tf.logical_not(keeps)), values

      def fits(begin: tf.Tensor, left: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        size = tf.size(left)
        return tf.logical_and(size > 0, begin + size <= tf.shape(pairs)[0])

      return tf.while_loop(fits, attempt, (tf.constant(0), left, values), shapes)[1:]

    def more(index: tf.Tensor, left: tf.Tensor, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
      further_words = stream_words(key, [stream], tf.size(left), index)[0]
      return index + 1, *attempts(further_words, left, values)

    def misses_some(index: tf.Tensor, left: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
      return tf.size(left) > 0

    left, values = attempts(words, tf.range(count), values)
    _, _, values = tf.while_loop(misses_some, more, (tf.constant(1), left, values), shapes)
    return values


def added(stddev: float) -> float:
  """The largest sum of the parts of all values' probabilities that are in addition to `RELATIVE_ERROR`."""
  return (2 * REACH * stddev + 2) * _ABSOLUTE_ERROR


def stream_words(
  key: tf.Tensor, streams: Sequence[Stream], count: Union[int, tf.Tensor], index: Union[int, tf.Tensor] = 0
) -> tf.Tensor:
  """int64[K, n]: words of K streams, enough for `count` draws of each, except in negligibly few cases.

  Args:
    key: int64[4].
    streams: K streams.
    count: How many draws there are to be.
    index: 0, or more if earlier words of these streams have been used up.
  """
  nonces = tf.stack([chacha20.nonce(stream.use, stream.number, index) for stream in streams])
  # One draw in 25 is made again; this is enough for twice as many, and for 64 more.
  num_attempts = count + count // 12 + 64
  return chacha20.integers(key, nonces, 2 * num_attempts)
