"""QuAP-FL, its on/off combinations, and other settings of the same mechanism."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from experiments.methods import base
from quap_tff import plans
from quap_tff.mechanisms import budgets
from quap_tff.mechanisms import clip_rules
from quap_tff.mechanisms import config as configs
from quap_tff.mechanisms import layers as layers_lib


@dataclasses.dataclass(frozen=True)
class Mechanism(base.Method):
  """A setting of QuAP-FL's own mechanism."""

  takes_aggregator = True
  takes_sparsity = True

  def plan(self, config, setting):
    plan = self._plan_class()(config, setting.participation.sampler, **setting.options)
    return plan.calibrated(setting.schedule, config.budget.epsilon_total) if setting.calibration == 'exact' else plan

  def _plan_class(self):
    return plans.QuapPlan


@dataclasses.dataclass(frozen=True)
class _Combination(Mechanism):
  """One of the eight on/off combinations of QuAP-FL's parts: adaptive budget, adaptive clip, layer-wise noise.

  Flags set the parts that are on: --round_budget, --alpha and others; --clip; --critical_layers. A part that is off is
  as in the baselines: ε_base for everyone; a fixed clipping norm; every layer clipped and noised.
  """

  adaptive_budget: ClassVar[bool] = False
  layerwise: ClassVar[bool] = False

  def configure(self, values, num_clients):
    return base.quap_config(values, num_clients, **self._parts(values))

  def _parts(self, values) -> dict[str, Any]:
    parts = {}
    if not self.adaptive_budget:
      parts['budget'] = base.uniform_budget(values)
    if not self.layerwise:
      parts['critical_layers'] = layers_lib.ALL
    return parts


@dataclasses.dataclass(frozen=True)
class _WithFixedClip(_Combination):
  """The clipping norm is `clip` in every round."""

  clip: float = 1.0

  def __post_init__(self):
    clip_rules.Fixed(self.clip)

  def _parts(self, values):
    return {**super()._parts(values), 'clip': clip_rules.Fixed(self.clip)}


def _combination(name: str, doc: str, *, budget: bool, clip: bool, layerwise: bool) -> type[_Combination]:
  """The class of one combination."""
  unused = base.TUNING | (frozenset() if budget else base.OF_BUDGETS)
  unused |= (frozenset() if clip else {'clip'}) | (frozenset() if layerwise else {'critical_layers'})
  parent = _Combination if clip else _WithFixedClip
  members = dict(
    __doc__=doc, __module__=__name__, adaptive_budget=budget, layerwise=layerwise, unused=frozenset(unused)
  )
  return dataclasses.dataclass(frozen=True)(type(name, (parent,), members))


Quap = _combination('Quap', 'QuAP-FL: all three parts.', budget=True, clip=True, layerwise=True)
FixedDp = _combination(
  'FixedDp',
  "The documents' Vanilla, Uniform or Fixed DP-FedAvg: uniform budget, fixed clip, noise everywhere.",
  budget=False,
  clip=False,
  layerwise=False,
)
FixedDpLayerwise = _combination(
  'FixedDpLayerwise', 'Uniform budget, fixed clip, layer-wise noise.', budget=False, clip=False, layerwise=True
)
AdaptiveBudget = _combination(
  'AdaptiveBudget', 'Adaptive budget, fixed clip, noise everywhere.', budget=True, clip=False, layerwise=False
)
AdaptiveBudgetLayerwise = _combination(
  'AdaptiveBudgetLayerwise', 'Adaptive budget, fixed clip, layer-wise noise.', budget=True, clip=False, layerwise=True
)
QuantileClip = _combination(
  'QuantileClip', 'Uniform budget, tracked clip, noise everywhere.', budget=False, clip=True, layerwise=False
)
Layerwise = _combination(
  'Layerwise',
  'Uniform budget, tracked clip, layer-wise noise: layer-wise DP without participation.',
  budget=False,
  clip=True,
  layerwise=True,
)
AdaptiveBudgetClip = _combination(
  'AdaptiveBudgetClip', 'Adaptive budget, tracked clip, noise everywhere.', budget=True, clip=True, layerwise=False
)


@dataclasses.dataclass(frozen=True)
class FedAvg(Mechanism):
  """Federated averaging without clip and noise. Each client counts the same. This is the documents' upper bound."""

  unused = base.TUNING | base.OF_BUDGETS | base.OF_NOISE | base.OF_CLIP
  noise_of_its_own = True

  def configure(self, values, num_clients):
    return configs.QuapConfig(
      num_clients=num_clients,
      budget=budgets.BudgetConfig(num_rounds=values.rounds, round_rule='uniform'),
      participation=base.participation_config(values),
      clip=clip_rules.Unclipped(),
      noise=configs.NoiseConfig(placement='none', delta=values.delta),
      aggregator=base.aggregator_of(values),
    )

  def plan(self, config, setting):
    return super().plan(config, setting._replace(calibration='documents'))


@dataclasses.dataclass(frozen=True)
class AdaptiveClip(Mechanism):
  """The documents' "Adaptive Clipping": Andrew et al.'s private quantile clips every layer, and everyone gets ε_base.

  The fields are those of `clip_rules.PrivateQuantile`.
  """

  unused = base.TUNING | base.OF_BUDGETS | {'clip', 'critical_layers'}

  quantile: float = 0.5
  initial_clip: float = 1.0
  learning_rate: float = 0.2
  count_stddev: float = 1.0

  def __post_init__(self):
    self._rule()

  def _rule(self):
    return clip_rules.PrivateQuantile(**dataclasses.asdict(self))

  def configure(self, values, num_clients):
    return base.quap_config(
      values, num_clients, budget=base.uniform_budget(values), clip=self._rule(), critical_layers=layers_lib.ALL
    )


@dataclasses.dataclass(frozen=True)
class PtAdp(Mechanism):
  """An interpretation. Flags set the clip and the critical layers, as in quap; `plans.PtAdp` sets the budgets.

  The noise is drawn at the server, and is as large as the sum of the noise that each client would have added. There is
  no warm-up: it is meant for participation rates, and these budgets do not follow them.
  """

  unused = base.TUNING | base.OF_BUDGETS
  takes_sparsity = False

  participation_credit: float = 0.1
  agreement_credit: float = 0.5

  def __post_init__(self):
    self._rule(0)

  def _rule(self, seed):
    return plans.PtAdp(self.participation_credit, self.agreement_credit, seed)

  def configure(self, values, num_clients):
    budget = budgets.BudgetConfig(
      epsilon_total=values.epsilon, num_rounds=values.rounds, client_rule=self._rule(values.seed), round_rule='each_own'
    )
    participation = dataclasses.replace(base.participation_config(values), warmup_rounds=0)
    return base.quap_config(values, num_clients, budget=budget, participation=participation)

  def _plan_class(self):
    return plans.PtAdpPlan
