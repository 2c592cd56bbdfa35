"""The documents' rule: C_t = μ·C_{t-1} + (1-μ)·target_t, target_t a bounded quantile of norms (`002…` algorithm 1)."""

import dataclasses
import math
from typing import Optional

import tensorflow as tf

from quap_tff import checks
from quap_tff import clipping
from quap_tff import registry

TIMINGS = ('current', 'previous')


@dataclasses.dataclass(frozen=True)
class QuantileEma(clipping.ClipRule):
  """An exponential moving average of a quantile of the cohort's norms.

  The quantile is taken without noise: the clipping norm is itself a data-dependent release.

  Attributes:
    quantile: q in [0, 1].
    momentum: μ in [0, 1).
    min_clip: Lower bound on the target.
    max_clip: Upper bound on the target; None for none.
    initial_clip: C_0; None starts the average at the first cohort's target, C_1 = target_1.
    timing: 'current', round t is clipped by C_t (two dependent aggregations); or 'previous', by C_{t-1} (one, so that
      the process compiles to TFF's mergeable form).
  """

  quantile: float = 0.9
  momentum: float = 0.95
  min_clip: float = 0.1
  max_clip: Optional[float] = None
  initial_clip: Optional[float] = None
  timing: str = 'current'

  releases_exact_norms = True

  def __post_init__(self):
    checks.number('clip quantile', self.quantile, at_least=0, at_most=1)
    checks.number('clip momentum', self.momentum, at_least=0, below=1)
    checks.number('min_clip', self.min_clip, at_least=0, at_most=clipping.LARGEST_NORM)
    if self.max_clip is not None:
      checks.number('max_clip', self.max_clip, above=0, at_most=clipping.LARGEST_NORM)
      if self.min_clip > self.max_clip:
        raise ValueError(f'min_clip must not be above max_clip, found {self.min_clip} > {self.max_clip}.')
    if self.initial_clip is not None:
      checks.number('initial_clip', self.initial_clip, above=0, at_most=clipping.LARGEST_NORM)
    if self.timing not in TIMINGS:
      raise registry.unknown_name_error('clip timing', self.timing, TIMINGS)
    if self.timing == 'previous' and self.initial_clip is None:
      raise ValueError(
          'Clip timing "previous" clips the first round at initial_clip, which is not set. Set initial_clip '
          '(1.0 is a common start for updates of unit scale), or use timing "current".'
      )

  @property
  def uses_current_norms(self) -> bool:
    return self.timing == 'current'

  @property
  def initial_norm(self) -> float:
    return math.inf if self.initial_clip is None else self.initial_clip

  def next_norm(self, norm, norms, noise_seed):
    del noise_seed
    target = tf.maximum(clipping.quantile(norms, self.quantile), self.min_clip)
    if self.max_clip is not None:
      target = tf.minimum(target, self.max_clip)
    average = tf.where(tf.math.is_inf(norm), target, self.momentum * norm + (1.0 - self.momentum) * target)
    return tf.where(tf.math.is_nan(average), norm, average)
