"""An example of a clip rule."""

import dataclasses

from quap_tff.common.lazy import tf
from quap_tff.mechanisms.parts import clip_rules


@dataclasses.dataclass(frozen=True)
class Median(clip_rules.ClipRule):
  """The clipping norm is the median of the cohort's norms, an exact function of clients' data."""

  first: float = 1.0

  uses_current_norms = True
  releases_exact_norms = True

  @property
  def initial_norm(self) -> float:
    return self.first

  def next_norm(self, norm: tf.Tensor, norms: tf.Tensor, noise: clip_rules.Noise) -> tf.Tensor:
    ordered = tf.sort(norms)
    return tf.cond(tf.size(norms) > 0, lambda: ordered[tf.size(norms) // 2], lambda: norm)


clip_rules.RULES['median'] = Median
