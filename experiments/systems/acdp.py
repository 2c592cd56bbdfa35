"""ACDP, an interpretation: the clipping norm follows a private mean of the clipped norms, and the noise follows it.

    C_{t+1} = factor·ñ_t,    ñ_t = (Σ_{i in S_t} min(‖g_i‖, C_t) + N(0, (s·C_t)²))/M_t,    σ_t = z·C_t/M_t

The documents name ACDP and say no more than that it clips adaptively under fixed participation. No paper of this name
could be found. `NoisedMean` is the smallest reading whose account is whole: the norms are released with noise of their
own.
"""

from __future__ import annotations

import dataclasses

from experiments.systems import adaptive
from quap_tff import methods
from quap_tff.common import checks
from quap_tff.common.lazy import tf
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.quap import config as configs
from quap_tff.methods import base


@dataclasses.dataclass(frozen=True)
class NoisedMean(clip_rules.ClipRule):
  """C_{t+1} = factor·ñ_t, ñ_t = (Σ_{i in S_t} min(‖g_i‖, C_t) + N(0, (s·C_t)²))/M_t: a private mean of clipped norms.

  Nobody moves the sum by more than C_t, so its noise multiplier is s. C_{t+1} stays within a factor of 2 of C_t, so
  that noise cannot carry it away. An update that is not finite counts with norm C_t.

  Attributes:
    factor: C over the mean of the clipped norms. It must be above 1, or C could only fall.
    initial_clip: C_1, which clips the first round.
    noise_multiplier: s, the noise on the sum of the norms, over C_t.
  """

  factor: float = checks.number_field('factor of the clipping norm', 1.5, above=1, at_most=100)
  initial_clip: float = clip_rules.norm_field('initial_clip', 1.0)
  noise_multiplier: float = checks.number_field('noise_multiplier of the norms', 15.0, at_least=0)

  @property
  def count_noise_multiplier(self) -> float:
    return self.noise_multiplier

  def next_norm(self, norm: tf.Tensor, norms: tf.Tensor, noise: clip_rules.Noise) -> tf.Tensor:
    clipped = tf.minimum(tf.where(tf.math.is_finite(norms), norms, norm), norm)
    total = tf.cast(tf.reduce_sum(clipped), tf.float64) + tf.cast(norm, tf.float64) * noise(self.noise_multiplier)
    cohort_size = tf.cast(tf.size(norms), tf.float32)
    target = self.factor * tf.cast(total, tf.float32) / tf.maximum(cohort_size, 1.0)
    moved = tf.clip_by_value(target, norm / 2.0, norm * 2.0)
    return tf.where(cohort_size > 0, tf.clip_by_value(moved, clip_rules.SMALLEST_CLIP, clip_rules.LARGEST_NORM), norm)


@dataclasses.dataclass(frozen=True)
class Acdp(adaptive.Adaptive):
  """An interpretation: the clipping norm follows a private mean of the clipped norms, and the noise follows it, see
  `experiments.systems.acdp` for the equations.

  Attributes:
    factor: The clipping norm over the private mean of the clipped norms, above 1.
    initial_clip: The clipping norm of the first round.
    norm_noise: The noise multiplier of the sum of the norms.
  """

  title = 'ACDP (an interpretation)'
  interpretation = (
    'acdp is an interpretation: the documents name ACDP without specifying it, and no paper of this name was found.'
  )

  factor: float = 1.5
  initial_clip: float = 1.0
  norm_noise: float = 15.0

  def __post_init__(self) -> None:
    self.clip_rule()

  def clip_rule(self) -> clip_rules.ClipRule:
    return NoisedMean(self.factor, self.initial_clip, self.norm_noise)

  def configure(self, setting: base.Setting) -> configs.QuapConfig:
    return self.configured(setting)


clip_rules.RULES['noised_mean'] = NoisedMean
methods.METHODS['acdp'] = Acdp
