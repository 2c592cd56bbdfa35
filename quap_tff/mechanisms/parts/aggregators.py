"""How the clipped updates of a round become one: by their mean, or by a replacement of a program's own.

The server must see each client's update to compute any but the mean. So secure aggregation, which reveals only a sum,
is not possible with them. And noise of σ = z·C/M covers only the mean, which one client moves by C/M at most. One
client can move the others by far more: the median of three numbers follows the middle one wherever it goes. So a run
with another aggregator has no formal privacy figure and no certificate, however much noise it adds.
`experiments/systems/robust.py` has some that a few malicious clients cannot move far.
"""

from __future__ import annotations

import abc
import dataclasses

from quap_tff.common import checks
from quap_tff.common.lazy import tf


class Aggregator(checks.Checked, abc.ABC):
  """How clipped updates become one. Subclasses are frozen dataclasses in `AGGREGATORS`.

  Attributes:
    needs_each_update: Whether the server must see each client's update, and not only their sum.
  """

  needs_each_update: bool = True

  @abc.abstractmethod
  def centre(self, updates: list[tf.Tensor]) -> list[tf.Tensor]:
    """The aggregate.

    Args:
      updates: For each tensor of shape S of an update, float[M, *S] with M >= 1, in the order of the clients.

    Returns:
      For each tensor float[*S].
    """


@dataclasses.dataclass(frozen=True)
class Mean(Aggregator):
  """The mean, QuAP-FL's own. One client moves it by C/M at most. It is the only one that a sum is enough for."""

  needs_each_update = False

  def centre(self, updates: list[tf.Tensor]) -> list[tf.Tensor]:
    return [tf.reduce_mean(one, axis=0) for one in updates]


AGGREGATORS: dict[str, type[Aggregator]] = {'mean': Mean}
