"""A fixed clipping norm, the baselines' choice."""

import dataclasses

from quap_tff import checks
from quap_tff import clipping


@dataclasses.dataclass(frozen=True)
class Fixed(clipping.ClipRule):
  """C_t = norm in every round."""

  norm: float = 1.0

  def __post_init__(self):
    checks.number('clipping norm', self.norm, above=0, at_most=clipping.LARGEST_NORM)

  @property
  def initial_norm(self) -> float:
    return self.norm
