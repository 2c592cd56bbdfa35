"""No clipping: for training without privacy. Noise has no scale then, so the configuration refuses the combination."""

import dataclasses
import math

from quap_tff import clipping


@dataclasses.dataclass(frozen=True)
class Unclipped(clipping.ClipRule):
  """C_t = +inf in every round."""

  @property
  def initial_norm(self) -> float:
    return math.inf
