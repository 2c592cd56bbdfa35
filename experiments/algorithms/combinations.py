"""The eight on/off combinations of QuAP-FL's parts (`002…` table 3): adaptive budget, adaptive clip, layer-wise noise.

A part that is on is set by its flags (--round_budget, --alpha, …; --clip; --critical_layers). One that is off is the
baselines' choice: ε_base for everyone; a fixed clipping norm; every layer clipped and noised.
"""

import dataclasses

from experiments.algorithms import mechanism
import quap_tff
from quap_tff import clip_rules
from quap_tff import layers


@dataclasses.dataclass(frozen=True)
class _Combination(mechanism.MechanismAlgorithm):

  _adaptive_budget = False
  _layerwise = False

  def configure(self, config: quap_tff.QuapConfig) -> quap_tff.QuapConfig:
    if not self._adaptive_budget:
      config = mechanism.uniform_budget(config)
    if not self._layerwise:
      config = dataclasses.replace(config, critical_layers=layers.ALL)
    return config


@dataclasses.dataclass(frozen=True)
class _WithFixedClip(_Combination):
  """The clipping norm is `clip` in every round."""

  clip: float = 1.0

  def configure(self, config):
    return dataclasses.replace(super().configure(config), clip=clip_rules.Fixed(self.clip))


@dataclasses.dataclass(frozen=True)
class FixedDp(_WithFixedClip):
  """The documents' Vanilla, Uniform or Fixed DP-FedAvg: uniform budget, fixed clip, noise everywhere."""


@dataclasses.dataclass(frozen=True)
class FixedDpLayerwise(_WithFixedClip):
  """Uniform budget, fixed clip, layer-wise noise."""

  _layerwise = True


@dataclasses.dataclass(frozen=True)
class AdaptiveBudget(_WithFixedClip):
  """Adaptive budget, fixed clip, noise everywhere."""

  _adaptive_budget = True


@dataclasses.dataclass(frozen=True)
class AdaptiveBudgetLayerwise(_WithFixedClip):
  """Adaptive budget, fixed clip, layer-wise noise."""

  _adaptive_budget = True
  _layerwise = True


@dataclasses.dataclass(frozen=True)
class QuantileClip(_Combination):
  """Uniform budget, tracked clip, noise everywhere."""


@dataclasses.dataclass(frozen=True)
class Layerwise(_Combination):
  """Uniform budget, tracked clip, layer-wise noise: `001…`'s layer-wise DP without participation."""

  _layerwise = True


@dataclasses.dataclass(frozen=True)
class AdaptiveBudgetClip(_Combination):
  """Adaptive budget, tracked clip, noise everywhere."""

  _adaptive_budget = True


@dataclasses.dataclass(frozen=True)
class Quap(_Combination):
  """QuAP-FL: all three."""

  _adaptive_budget = True
  _layerwise = True
