"""Clipping: g <- g·min(1, C/‖g‖), quantiles of norms, and the rules by which the clipping norm C moves.

A clipping norm of +inf means "no bound". A norm of NaN stands for an update that is not finite; quantiles leave it out.
Equations: docs/method.md, sections 5.3 and 5.4. A new rule is a class here and a line in `RULES`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Sequence
import dataclasses
import math
from typing import Optional

from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.common import registry
from quap_tff.common.lazy import tf

# Larger norms would become +inf in float32, which means "no bound": neither clipped nor noised.
LARGEST_NORM = 1e38
# Updates that are clipped to a smaller norm would lose bits in float32, whatever the weight.
SMALLEST_CLIP = 1e-20
# TFF's own aggregators compute norms in float32, where the squares of entries below 1e-19 are 0, and those above 1e19
# overflow. Between these limits neither matters, for any number of weights.
TFF_SMALLEST_CLIP, TFF_LARGEST_NORM = 1e-10, 1e19
# The most that rounding its entries to float32 adds to the norm of an update, as a share.
_ROUNDING = 2.0**-24

# How far a round, and all rounds together, may move a model whose clipping norm nobody chose: as far as all may, but by
# each client of a cohort no farther than this.
_FARTHEST_ROUND, _FARTHEST, _FARTHEST_OF_CLIENT = 1.0, 10.0, 1 / 3

# Draws a float64 scalar of noise with a standard deviation.
Noise = Callable[[float], 'tf.Tensor']

# Each client of the cohort adds 1/2 or -1/2 to the centred count, as in the paper. A client without data adds nothing.
_COUNT_SENSITIVITY = 0.5


def norm_field(name: str, default: Optional[float]) -> checks.FieldValue:
  """A field of a rule that is a clipping norm."""
  return checks.number_field(name, default, at_least=SMALLEST_CLIP, at_most=LARGEST_NORM)


class ClipRule(checks.Checked, abc.ABC):
  """How the clipping norm moves from round to round. Subclasses are frozen dataclasses in `RULES`.

  Attributes:
    initial_clip: The norm that clips the first round; None if there is none.
    uses_current_norms: Whether the clipping norm of a round depends on that round's norms. If so, aggregation needs two
      dependent levels. If not, C is known before the round begins, and one level is enough.
    releases_exact_norms: Whether the clipping norm is an un-noised function of the clients' norms, a data-dependent
      release that no privacy figure covers.
    count_noise_multiplier: σ of the noised count of norms that a round releases, over the most that one client moves
      the count; +inf if there is no such release.
  """

  initial_clip: Optional[float]

  @property
  def uses_current_norms(self) -> bool:
    return False

  @property
  def releases_exact_norms(self) -> bool:
    return self.count_noise_multiplier == 0

  @property
  def count_noise_multiplier(self) -> float:
    return math.inf

  @property
  def initial_norm(self) -> float:
    """C_0; +inf if there is none."""
    return math.inf if self.initial_clip is None else self.initial_clip

  def next_norm(self, norm: tf.Tensor, norms: tf.Tensor, noise: Noise) -> tf.Tensor:
    """C_t from C_{t-1} (float32 scalar) and the cohort's norms (float32[M], NaN for non-finite updates).

    Args:
      norm: C_{t-1}.
      norms: L2 norms of the cohort's updates; may be empty.
      noise: Draws float64 noise of a standard deviation, once; for rules that add noise.
    """
    return norm


@dataclasses.dataclass(frozen=True)
class QuantileEma(ClipRule):
  """C_t = μ·C_{t-1} + (1-μ)·target_t: an exponential moving average of a bounded quantile of the cohort's norms.

  The quantile is taken without noise: the clipping norm is itself a data-dependent release.

  Attributes:
    quantile: q, which quantile of the norms, in [0, 1].
    momentum: μ, the weight of the norm before, in [0, 1).
    min_clip: Lower bound on the target.
    max_clip: Upper bound on the target; None for none.
    initial_clip: C_0; None starts the average at the first cohort's target, C_1 = target_1.
    timing: 'current', round t is clipped by C_t (two dependent aggregations); or 'previous', by C_{t-1} (one, so that
      the process compiles to TFF's mergeable form).
  """

  quantile: float = checks.number_field('clip quantile', 0.9, at_least=0, at_most=1)
  momentum: float = checks.number_field('clip momentum', 0.95, at_least=0, below=1)
  min_clip: float = checks.number_field('min_clip', 0.1, at_least=0, at_most=LARGEST_NORM)
  max_clip: Optional[float] = norm_field('max_clip', None)
  initial_clip: Optional[float] = norm_field('initial_clip', None)
  timing: str = registry.name_field('clip timing', 'current', ('current', 'previous'))

  releases_exact_norms = True

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.max_clip is not None and self.min_clip > self.max_clip:
      raise ValueError(f'min_clip must not be above max_clip, found {self.min_clip} > {self.max_clip}.')
    if self.timing == 'previous' and self.initial_clip is None:
      raise ValueError(
        'Clip timing "previous" clips the first round at initial_clip, which is not set. Set initial_clip '
        '(1.0 is a common start for updates of unit scale), or use timing "current".'
      )

  @property
  def uses_current_norms(self) -> bool:
    return self.timing == 'current'

  def next_norm(self, norm: tf.Tensor, norms: tf.Tensor, noise: Noise) -> tf.Tensor:
    target = tf.maximum(quantile(norms, self.quantile), self.min_clip)
    if self.max_clip is not None:
      target = tf.minimum(target, self.max_clip)
    average = tf.where(tf.math.is_inf(norm), target, self.momentum * norm + (1.0 - self.momentum) * target)
    # An infinite norm stays: there has been none yet.
    return tf.where(tf.math.is_nan(average), norm, tf.maximum(average, SMALLEST_CLIP))


@dataclasses.dataclass(frozen=True)
class Fixed(ClipRule):
  """C_t = norm in every round, the baselines' choice.

  Attributes:
    norm: The clipping norm, above 0.
  """

  norm: float = norm_field('clipping norm', 1.0)

  @property
  def initial_norm(self) -> float:
    return self.norm


def public_norm(num_rounds: int, step: float = 1.0, cohort_size: Optional[float] = None) -> float:
  """C = min(1, min(10, M/3)/T)/step: the clipping norm of a run for which none was chosen.

  It follows from no client's data. With it a mean of clipped updates moves the model by 1 at most in a round, and by 10
  at most in all rounds. Noise is in proportion to C. So C moves neither ε nor, as long as updates are no shorter than
  C, the ratio of signal to noise; it says how far the model goes. A small cohort has much noise in its mean, and still
  more where updates are shorter than C. So its model goes less far. The numbers are a rule of thumb, from federations
  of digits and of numbers that the program makes (docs/usage.md, "Choosing constants").

  Args:
    num_rounds: T.
    step: By how much the server moves the model for a mean of norm 1.
    cohort_size: M, the mean number of clients in a round; None, where it is not known, for a large one.
  """
  farthest = _FARTHEST if cohort_size is None else min(_FARTHEST, _FARTHEST_OF_CLIENT * cohort_size)
  return min(_FARTHEST_ROUND, farthest / num_rounds) / step


@dataclasses.dataclass(frozen=True)
class PrivateQuantile(ClipRule):
  """Andrew et al.'s private quantile: C_{t+1} = C_t·exp(-η·(b̃_t - q)), b̃_t the noised fraction of norms at most C_t.

  Andrew, Thakkar, McMahan and Ramaswamy 2021, "Differentially Private Learning with Adaptive Clipping", section 2.1.
  The update is the one of `tff.aggregators.PrivateQuantileEstimationProcess`. Its noise is drawn from the server's
  seeded generator, because TFF's cannot be seeded and a resumed run would draw other noise.

  Attributes:
    quantile: q, the share of the norms that C_t should exceed, in [0, 1].
    initial_clip: C_1, which clips the first round.
    learning_rate: η, how fast C_t moves.
    count_stddev: Standard deviation of the noise on the count of norms at most C_t.
  """

  quantile: float = checks.number_field('clip quantile', 0.5, at_least=0, at_most=1)
  initial_clip: float = norm_field('initial_clip', 0.1)
  learning_rate: float = checks.number_field('clip learning_rate', 0.2, above=0)
  count_stddev: float = checks.number_field('count_stddev', 1.0, at_least=0)

  @property
  def count_noise_multiplier(self) -> float:
    return self.count_stddev / _COUNT_SENSITIVITY

  def next_norm(self, norm: tf.Tensor, norms: tf.Tensor, noise: Noise) -> tf.Tensor:
    cohort_size = tf.cast(tf.size(norms), tf.float32)
    return tf.where(cohort_size > 0, self.moved(norm, norms, noise, tf.maximum(cohort_size, 1.0)), norm)

  def moved(self, norm: tf.Tensor, norms: tf.Tensor, noise: Noise, divisor: array_types.Numbers) -> tf.Tensor:
    """C_{t+1} from C_t, float32 scalar, where the noised count is divided by `divisor`, also if nobody came.

    Other arguments are those of `next_norm`.
    """
    # An update that is not finite counts as above the clip, as a norm of +inf would. An update of exactly zero, which
    # a client without data sends, counts for neither side: taking a client's data away moves the count by 1/2 only.
    centred = tf.where(norms <= norm, _COUNT_SENSITIVITY, -_COUNT_SENSITIVITY) * tf.cast(norms != 0, tf.float32)
    count = tf.cast(tf.reduce_sum(centred), tf.float64) + noise(self.count_stddev)
    below = tf.cast(count, tf.float32) / divisor + 0.5
    factor = tf.exp(-self.learning_rate * (below - self.quantile))
    return tf.clip_by_value(norm * factor, SMALLEST_CLIP, LARGEST_NORM)


@dataclasses.dataclass(frozen=True)
class Decaying(ClipRule):
  """C_t = C_1·decay^(t-1): a public schedule, which releases nothing.

  Attributes:
    initial_clip: C_1, which clips the first round.
    decay: In (0, 1], the factor from one round to the next.
  """

  initial_clip: float = norm_field('initial_clip', 1.0)
  decay: float = checks.number_field('decay of the clipping norm', 0.99, above=0, at_most=1)

  def next_norm(self, norm: tf.Tensor, norms: tf.Tensor, noise: Noise) -> tf.Tensor:
    return tf.maximum(norm * self.decay, SMALLEST_CLIP)


@dataclasses.dataclass(frozen=True)
class Unclipped(ClipRule):
  """C_t = +inf in every round, only for training without noise: noise would have no scale."""

  initial_clip = None


RULES = {
  'quantile_ema': QuantileEma,
  'fixed': Fixed,
  'private_quantile': PrivateQuantile,
  'decaying': Decaying,
  'none': Unclipped,
}


def quantile(values: tf.Tensor, q: array_types.Numbers) -> tf.Tensor:
  """The q-quantile of the finite entries of float32[M] `values`, interpolated as numpy's; NaN if there are none.

  `q` may be a list of K numbers. The result is then a float32[K].
  """
  finite = tf.sort(tf.boolean_mask(values, tf.math.is_finite(values)))
  last = tf.size(finite) - 1
  position = tf.cast(last, tf.float32) * q
  lower = tf.clip_by_value(tf.cast(tf.floor(position), tf.int32), 0, tf.maximum(last, 0))
  upper = tf.minimum(lower + 1, tf.maximum(last, 0))
  padded = tf.concat([finite, [float('nan')]], axis=0)
  fraction = position - tf.cast(lower, tf.float32)
  below, above = tf.gather(padded, lower), tf.gather(padded, upper)
  return tf.where(last >= 0, below + fraction * (above - below), float('nan'))


def clip_factor(norm: tf.Tensor, clipping_norm: tf.Tensor) -> tf.Tensor:
  """min(1, C/‖g‖), elementwise, float64: 1 for ‖g‖ = 0 or C = +inf; 0 for a NaN norm (an update that is not finite)."""
  norm, clipping_norm = tf.cast(norm, tf.float64), tf.cast(clipping_norm, tf.float64)
  within = tf.logical_or(norm <= clipping_norm, tf.equal(norm, 0.0))
  factor = tf.where(within, tf.ones_like(norm), clipping_norm / tf.where(within, tf.ones_like(norm), norm))
  return tf.where(tf.math.is_nan(norm), tf.zeros_like(norm), factor)


def scaled_down(tensors: Sequence[tf.Tensor], factor: tf.Tensor) -> list[tf.Tensor]:
  """The tensors times a `clip_factor`, or a bit less: their norm is at most C also after rounding; equal for 1."""
  factor = tf.where(factor < 1, factor * (1 - _ROUNDING), factor)
  return [tf.cast(tf.cast(one, tf.float64) * factor, one.dtype) for one in tensors]


def global_norm(tensors: Iterable[tf.Tensor]) -> tf.Tensor:
  """The L2 norm of a list of float tensors taken together, float64; 0 for an empty list.

  It is not finite if an entry is not finite. The squares of all float32 numbers are within float64's range.
  """
  # l2_loss is half the sum of the squares, without a tensor of squares.
  halves = [tf.nn.l2_loss(tf.cast(one, tf.float64)) for one in tensors]
  return tf.sqrt(2.0 * tf.add_n([tf.zeros([], tf.float64), *halves]))


def as_float32(norm: tf.Tensor) -> tf.Tensor:
  """A float64 norm >= 0 as float32, rounded up: an update within C by this norm is within C."""
  nearest = tf.cast(norm, tf.float32)
  return tf.where(tf.cast(nearest, tf.float64) < norm, nearest * (1 + 2 * _ROUNDING), nearest)
