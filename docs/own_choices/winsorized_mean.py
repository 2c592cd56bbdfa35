"""An example of a robust aggregator, whose field is checked when the value is made."""

import dataclasses

from quap_tff.common import checks
from quap_tff.common.lazy import tf
from quap_tff.mechanisms.parts import aggregators


@dataclasses.dataclass(frozen=True)
class WinsorizedMean(aggregators.Aggregator):
  """The mean of each coordinate, whose largest and smallest values count as the nearest value that is kept.

  Attributes:
    share: In [0, 0.5): the share of the clients whose values are replaced at each end.
  """

  share: float = checks.number_field('share of winsorized_mean', 0.2, at_least=0, below=0.5)

  def centre(self, updates: list[tf.Tensor]) -> list[tf.Tensor]:
    return [self._mean(one) for one in updates]

  def _mean(self, values: tf.Tensor) -> tf.Tensor:
    ordered, size = tf.sort(values, axis=0), tf.shape(values)[0]
    cut = tf.cast(self.share * tf.cast(size, tf.float32), tf.int32)
    return tf.reduce_mean(tf.clip_by_value(values, ordered[cut], ordered[size - 1 - cut]), axis=0)


aggregators.AGGREGATORS['winsorized_mean'] = WinsorizedMean
