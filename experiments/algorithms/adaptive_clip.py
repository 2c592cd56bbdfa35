"""Andrew et al.'s adaptive clipping with uniform budgets (the documents' "Adaptive Clipping" baseline)."""

import dataclasses

from experiments.algorithms import mechanism
import quap_tff
from quap_tff import clip_rules
from quap_tff import layers


@dataclasses.dataclass(frozen=True)
class AdaptiveClip(mechanism.MechanismAlgorithm):
  """A private quantile clips every layer, ε_base for everyone; the fields are `clip_rules.PrivateQuantile`'s."""

  quantile: float = 0.5
  initial_clip: float = 1.0
  learning_rate: float = 0.2
  count_stddev: float = 1.0

  def configure(self, config: quap_tff.QuapConfig) -> quap_tff.QuapConfig:
    clip = clip_rules.PrivateQuantile(**dataclasses.asdict(self))
    return dataclasses.replace(mechanism.uniform_budget(config), clip=clip, critical_layers=layers.ALL)
