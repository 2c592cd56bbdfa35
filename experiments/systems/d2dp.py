"""D2DP, an interpretation: clipping norm and noise fall over the rounds by a public schedule.

    C_t = clip·clip_decay^((t-1)/(T-1)),    ε_t by `dynamic_budget.Geometric`

So σ_t = z(ε_t, δ)·C_t/M_t falls for two reasons. The documents name D2DP and say no more than that it clips adaptively.
No paper of this name could be found. The nearest is dynamic DP-SGD (Du, Li, Chen, Chen and Hong 2021, "Dynamic
Differential-Privacy Preserving SGD"), in which the clipping norm decays and the privacy parameter of a step grows, both
geometrically.
"""

from __future__ import annotations

import dataclasses

from experiments.systems import adaptive
from experiments.systems import dynamic_budget
from quap_tff import methods
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.quap import config as configs
from quap_tff.methods import base


@dataclasses.dataclass(frozen=True)
class D2dp(adaptive.Adaptive):
  """An interpretation: clipping norm and noise fall over the rounds by a public schedule, see
  `experiments.systems.d2dp` for the equations.

  Attributes:
    clip: C_1, the clipping norm of the first round.
    clip_decay: C_T/C_1, by what factor the clipping norm falls over the run, in (0, 1].
    growth: ε_T/ε_1, the budget of the last round over that of the first.
  """

  title = 'D2DP (an interpretation)'
  interpretation = (
    'd2dp is an interpretation: the documents name D2DP without specifying it, and no paper of this name was found.'
  )

  clip: float = 1.0
  clip_decay: float = 0.5
  growth: float = 2.0

  def __post_init__(self) -> None:
    dynamic_budget.Geometric(self.growth)
    self.clip_rule()

  def clip_rule(self) -> clip_rules.ClipRule:
    return clip_rules.Decaying(self.clip, self.clip_decay)

  def configure(self, setting: base.Setting) -> configs.QuapConfig:
    decay = self.clip_decay ** (1 / max(setting.rounds - 1, 1))
    clip = clip_rules.Decaying(self.clip, decay)
    return self.configured(setting, dynamic_budget.Geometric(self.growth), clip=clip)


methods.METHODS['d2dp'] = D2dp
