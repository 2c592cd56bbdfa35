"""Andrew et al.'s private quantile: C_{t+1} = C_t·exp(-η·(b̃_t - q)), b̃_t the noised fraction of norms at most C_t.

Andrew, Thakkar, McMahan and Ramaswamy 2021, "Differentially Private Learning with Adaptive Clipping", section 2.1. The
update is the one of `tff.aggregators.PrivateQuantileEstimationProcess`, which a test holds it to; its noise is drawn
here from the server's seeded generator, because TFF's cannot be seeded and a resumed run would draw other noise.
"""

import dataclasses

import tensorflow as tf

from quap_tff import checks
from quap_tff import clipping
from quap_tff import gaussian


# Each client of the cohort adds 1/2 or -1/2 to the count, centred as in the paper; one without data adds nothing.
_COUNT_SENSITIVITY = 0.5


@dataclasses.dataclass(frozen=True)
class PrivateQuantile(clipping.ClipRule):
  """Geometric updates toward a quantile of the norms, from a noised count.

  Attributes:
    quantile: q in [0, 1], the target.
    initial_clip: C_1, which clips the first round.
    learning_rate: η.
    count_stddev: Standard deviation of the noise on the count of norms at most C_t.
  """

  quantile: float = 0.5
  initial_clip: float = 0.1
  learning_rate: float = 0.2
  count_stddev: float = 1.0

  def __post_init__(self):
    checks.number('clip quantile', self.quantile, at_least=0, at_most=1)
    checks.number('initial_clip', self.initial_clip, above=0, at_most=clipping.LARGEST_NORM)
    checks.number('clip learning_rate', self.learning_rate, above=0)
    checks.number('count_stddev', self.count_stddev, at_least=0)

  @property
  def releases_exact_norms(self) -> bool:
    return self.count_stddev == 0

  @property
  def count_noise_multiplier(self) -> float:
    return self.count_stddev / _COUNT_SENSITIVITY

  @property
  def initial_norm(self) -> float:
    return self.initial_clip

  def next_norm(self, norm, norms, noise_seed):
    # A non-finite update counts as above the clip, as a norm of +inf would. An update of exactly zero, which is what a
    # client without data sends, counts for neither side: to take a client's data away moves the count by 1/2 only.
    centred = tf.where(norms <= norm, _COUNT_SENSITIVITY, -_COUNT_SENSITIVITY) * tf.cast(norms != 0, tf.float32)
    count = tf.cast(tf.reduce_sum(centred), tf.float64) + gaussian.noise(noise_seed, [], self.count_stddev)
    cohort_size = tf.cast(tf.size(norms), tf.float32)
    below = tf.cast(count, tf.float32) / tf.maximum(cohort_size, 1.0) + 0.5
    moved = tf.minimum(norm * tf.exp(-self.learning_rate * (below - self.quantile)), clipping.LARGEST_NORM)
    return tf.where(cohort_size > 0, moved, norm)
