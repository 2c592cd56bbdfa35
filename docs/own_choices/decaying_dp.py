"""An example of a method: a class that names its choices and makes its mechanism."""

import dataclasses

from quap_tff import methods
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.methods import base
from quap_tff.methods import choices


@dataclasses.dataclass(frozen=True)
class DecayingDp(base.QuapMechanism, choices.Noise):
  """Fixed-DP whose clipping norm falls from round to round.

  Attributes:
    clip: The first clipping norm.
    decay: In (0, 1], the factor from one round to the next.
  """

  clip: float = 1.0
  decay: float = 0.9

  def __post_init__(self) -> None:
    self.clip_rule()

  def clip_rule(self) -> clip_rules.ClipRule:
    return clip_rules.Decaying(self.clip, self.decay)


methods.METHODS['decaying_dp'] = DecayingDp
