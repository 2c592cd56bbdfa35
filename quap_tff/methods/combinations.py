"""QuAP-FL, its on/off combinations, and other settings of the same mechanism."""

from __future__ import annotations

import dataclasses

from quap_tff.common import registry
from quap_tff.mechanisms.parts import budgets
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.quap import config as configs
from quap_tff.methods import base
from quap_tff.methods import choices


@dataclasses.dataclass(frozen=True)
class _Combination(choices.ScaleChoice, choices.SparseChoice, choices.Robust, base.QuapMechanism):
  """One of the eight combinations of QuAP-FL's parts: adaptive budget, adaptive clip, layer-wise noise.

  Flags set the parts that are on: --round_budget, --alpha and others; --clip; --critical_layers. A part that is off is
  as in the baselines: ε_base for everyone; a fixed clipping norm; every layer clipped and noised.
  """


@dataclasses.dataclass(frozen=True)
class Quap(choices.AdaptiveBudgets, choices.Clip, choices.LayersChoice, _Combination):
  """QuAP-FL: all three parts."""

  title = 'QuAP-FL'


@dataclasses.dataclass(frozen=True)
class FixedDp(choices.FixedClip, _Combination):
  """The documents' Vanilla, Uniform or Fixed DP-FedAvg: uniform budget, fixed clipping norm, noise everywhere."""

  title = 'Fixed-DP'


@dataclasses.dataclass(frozen=True)
class FixedDpLayerwise(choices.FixedClip, choices.LayersChoice, _Combination):
  """Uniform budget, fixed clipping norm, layer-wise noise."""

  title = 'Fixed-DP, layer-wise'


@dataclasses.dataclass(frozen=True)
class AdaptiveBudget(choices.AdaptiveBudgets, choices.FixedClip, _Combination):
  """Adaptive budget, fixed clipping norm, noise everywhere."""

  title = 'Adaptive budget'


@dataclasses.dataclass(frozen=True)
class AdaptiveBudgetLayerwise(choices.AdaptiveBudgets, choices.FixedClip, choices.LayersChoice, _Combination):
  """Adaptive budget, fixed clipping norm, layer-wise noise."""

  title = 'Adaptive budget, layer-wise'


@dataclasses.dataclass(frozen=True)
class QuantileClip(choices.Clip, _Combination):
  """Uniform budget, tracked clipping norm, noise everywhere."""

  title = 'Quantile clip'


@dataclasses.dataclass(frozen=True)
class Layerwise(choices.Clip, choices.LayersChoice, _Combination):
  """Uniform budget, tracked clipping norm, layer-wise noise: layer-wise DP without participation."""

  title = 'Layer-wise, uniform budget'


@dataclasses.dataclass(frozen=True)
class AdaptiveBudgetClip(choices.AdaptiveBudgets, choices.Clip, _Combination):
  """Adaptive budget, tracked clipping norm, noise everywhere."""

  title = 'Adaptive budget and clip'


@dataclasses.dataclass(frozen=True)
class FedAvg(choices.SparseChoice, choices.Robust, choices.ServerOptimizer, base.SimpleMethod):
  """Federated averaging without clipping and noise. Each client counts the same. This is the documents' upper bound."""

  title = 'FedAvg (no privacy)'
  follows_public_rule = True

  def configure(self, setting: base.Setting) -> configs.QuapConfig:
    return configs.QuapConfig(
      num_clients=setting.num_clients,
      budget=budgets.BudgetConfig(num_rounds=setting.rounds, round_rule='uniform'),
      clip=clip_rules.Unclipped(),
      noise=configs.NoiseConfig(placement='none'),
      aggregator=self.aggregator,
    )


@dataclasses.dataclass(frozen=True)
class AdaptiveClip(_Combination):
  """The documents' "Adaptive Clipping": Andrew et al.'s private quantile clips every layer, and everyone gets ε_base.

  The equations are those of `clip_rules.PrivateQuantile`.

  Attributes:
    quantile: The share of the norms that the clipping norm should exceed, in [0, 1].
    initial_clip: The clipping norm of the first round.
    learning_rate: How fast the clipping norm moves.
    count_stddev: The standard deviation of the noise on the count of norms within the clipping norm.
  """

  title = 'Adaptive clipping (Andrew et al.)'

  quantile: float = 0.5
  initial_clip: float = 1.0
  learning_rate: float = 0.2
  count_stddev: float = 1.0

  def __post_init__(self) -> None:
    self.clip_rule()

  def clip_rule(self) -> clip_rules.ClipRule:
    return clip_rules.PrivateQuantile(**registry.parameter_values(self))
