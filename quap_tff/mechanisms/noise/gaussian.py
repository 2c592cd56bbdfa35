"""The Gaussian mechanism: its noise multiplier z = σ / sensitivity for one (ε, δ), and noise from a stateless seed.

* classic: z = √(2·ln(1.25/δ)) / ε, proven for ε <= 1 only (Dwork and Roth 2014, theorem A.1);
* analytic: the smallest z, for any ε: δ = Φ(1/(2z) - ε·z) - e^ε·Φ(-1/(2z) - ε·z) (Balle and Wang 2018, theorem 8).
"""

from __future__ import annotations

from collections.abc import Sequence
import math

from quap_tff.common import array_types
from quap_tff.common.lazy import tf
from quap_tff.common.numbers import seeds

CALIBRATIONS = ('classic', 'analytic')
CLASSIC_MAX_EPSILON = 1.0

# Bisection halves ln z; from a bracket of width ln(1e16), 70 steps reach float64's last bits.
_BISECTION_STEPS = 70
_LOG_MULTIPLIER_BOUNDS = (math.log(1e-4), math.log(1e12))


def noise_multiplier(calibration: str, epsilon: array_types.Numbers, delta: float) -> tf.Tensor:
  """z(ε, δ), elementwise over the float tensor `epsilon` (nats); the same shape and dtype."""
  if calibration == 'classic':
    return math.sqrt(2.0 * math.log(1.25 / delta)) / tf.convert_to_tensor(epsilon)
  return _analytic_multiplier(tf.convert_to_tensor(epsilon), delta)


def delta_of(epsilon: tf.Tensor, multiplier: tf.Tensor) -> tf.Tensor:
  """δ(ε) of one Gaussian mechanism with noise multiplier z, elementwise, float64 in and out."""
  half = 0.5 / multiplier
  moved = epsilon * multiplier
  return _normal_cdf(half - moved) - tf.exp(epsilon) * _normal_cdf(-half - moved)


def _analytic_multiplier(epsilon: tf.Tensor, delta: float) -> tf.Tensor:
  exact_epsilon = tf.cast(epsilon, tf.float64)
  shape = tf.shape(exact_epsilon)
  lowest, highest = (tf.constant(bound, tf.float64) for bound in _LOG_MULTIPLIER_BOUNDS)
  low, high = tf.fill(shape, lowest), tf.fill(shape, highest)

  def halve(step: tf.Tensor, low: tf.Tensor, high: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    middle = 0.5 * (low + high)
    enough = delta_of(exact_epsilon, tf.exp(middle)) <= delta
    return step + 1, tf.where(enough, low, middle), tf.where(enough, middle, high)

  # Return the upper end: in float64 it is never less noise than asked for (a float32 result rounds the last bit).
  _, _, high = tf.while_loop(lambda step, *_: step < _BISECTION_STEPS, halve, (0, low, high))
  return tf.cast(tf.exp(high), epsilon.dtype)


def _normal_cdf(x: tf.Tensor) -> tf.Tensor:
  return 0.5 * tf.math.erfc(-x / math.sqrt(2.0))


def noise(seed: tf.Tensor, shape: Sequence[int], stddev: array_types.Numbers) -> tf.Tensor:
  """float64 N(0, stddev²) of `shape`, a pure function of `seed` (int64[2]): half the sum of four draws.

  A single draw can take only the values that its generator's few uniform bits allow. Someone who guesses what the noise
  was added to can check the guess by that (Mironov 2012). The sum of four draws cannot be checked in this way (Holohan
  and Braghin 2021), and its tails reach twice as far. Add it in float64, and round only the result.
  """
  draws = []
  for index in range(4):
    own_seed = seeds.fold_in(seed, tf.constant(index, tf.int64))
    draws.append(seeds.normal(own_seed, shape))
  # Four draws together have twice the deviation of one.
  return tf.cast(stddev, tf.float64) * 0.5 * tf.add_n(draws)


def noises(seed: tf.Tensor, tensors: Sequence[tf.Tensor], stddev: array_types.Numbers) -> list[tf.Tensor]:
  """Independent `noise` for each tensor of a list, in its shape."""
  result = []
  for index, tensor in enumerate(tensors):
    own_seed = seeds.fold_in(seed, tf.constant(index, tf.int64))
    result.append(noise(own_seed, tf.shape(tensor), stddev))
  return result
