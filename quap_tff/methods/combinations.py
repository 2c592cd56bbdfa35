"""QuAP-FL, its on/off combinations, and other settings of the same mechanism."""

from __future__ import annotations

import dataclasses

from quap_tff.common import checks
from quap_tff.common import flag_fields
from quap_tff.common import registry
from quap_tff.mechanisms.parts import budgets
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers
from quap_tff.mechanisms.parts import participation as participations
from quap_tff.mechanisms.quap import buffered
from quap_tff.mechanisms.quap import config as configs
from quap_tff.mechanisms.quap import local
from quap_tff.mechanisms.quap import pt_adp
from quap_tff.mechanisms.quap import staleness as stalenesses
from quap_tff.methods import base
from quap_tff.methods import choices

_LOCAL_BUDGETS = ('participation', 'uniform')


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


@dataclasses.dataclass(frozen=True)
class PtAdpMethod(choices.Clip, choices.LayersChoice, choices.ScaleChoice, choices.Robust, base.QuapMechanism):
  """An interpretation of PT-ADP: budgets that are credited for participation and agreement, see `pt_adp.PtAdp`.

  Flags set the clip and the critical layers, as in quap. The noise is drawn at the server, and is as large as the sum
  of the noise that each client would have added. There is no warm-up: it is meant for participation rates, and these
  budgets do not follow them.

  Attributes:
    participation_credit: The credits for taking part in a round.
    agreement_credit: The most credits for an update in the direction of the last aggregate.
  """

  title = 'PT-ADP (an interpretation)'

  participation_credit: float = 0.1
  agreement_credit: float = 0.5

  def __post_init__(self) -> None:
    self._rule(0)

  def _rule(self, seed: int) -> pt_adp.PtAdp:
    return pt_adp.PtAdp(self.participation_credit, self.agreement_credit, seed)

  def budgets(self, setting: base.Setting) -> budgets.BudgetConfig:
    rule = self._rule(setting.seed)
    return budgets.BudgetConfig(self.epsilon, setting.rounds, client_rule=rule, round_rule='each_own')

  def rates(self) -> participations.ParticipationConfig:
    return participations.ParticipationConfig(warmup_rounds=0)


@dataclasses.dataclass(frozen=True)
class FedBuff(choices.AdaptiveBudgets, choices.Clip, choices.LayersChoice, base.QuapMechanism):
  """FedBuff (Nguyen et al. 2022, Algorithm 1) with QuAP-FL's clip, budgets and noise, as the flags set them for quap.

  The clients that --participation draws are those whose updates arrive in a round. Each has trained on a version of the
  model that is τ releases old and counts with s(τ) = 1/√(1 + τ). The server releases the buffer when it holds `buffer`
  updates (`quap_tff.federated.old_versions`). How τ is distributed is our choice.

  Attributes:
    buffer: K, the updates that fill the buffer.
    staleness: The scale of τ, in versions; 0 for none.
    spread: How much clients differ in speed.
    max_staleness: The largest τ. The server keeps one version more than this.
  """

  title = 'FedBuff (asynchronous)'

  buffer: int = 10
  staleness: float = 2.0
  spread: float = 0.5
  max_staleness: int = 10

  def __post_init__(self) -> None:
    checks.integer('fedbuff buffer', self.buffer, at_least=1, at_most=2**31 - 1)
    self._staleness(0)

  def _staleness(self, seed: int) -> stalenesses.Staleness:
    return stalenesses.Staleness(self.staleness, self.spread, self.max_staleness, seed)

  def configure(self, setting: base.Setting) -> buffered.Buffered:
    return buffered.Buffered(self.quap_config(setting), self.buffer, self._staleness(setting.seed))

  def check_cohorts(self, setting: base.Setting) -> None:
    assert setting.participation is not None
    arrived = 0
    for round_num in range(1, setting.rounds + 1):
      arrived += len(setting.participation.cohort(round_num))
      if arrived >= self.buffer:
        return
    raise ValueError(
      f'--algorithm=fedbuff:buffer={self.buffer}: {arrived} updates arrive in all of the {setting.rounds} planned '
      f'rounds. So the buffer is never full, and the model is never updated. Give a buffer of at most {arrived}, more '
      '--rounds, or larger cohorts.'
    )


@dataclasses.dataclass(frozen=True)
class LocalDp(choices.Shape, choices.SparseChoice, choices.ServerOptimizer, choices.Calibrated, base.SimpleMethod):
  """Local differential privacy: each client adds its own Gaussian noise to everything that it sends.

  A message is the client's update, clipped to norm C, plus N(0, (2·C·z(ε_i(t), δ))²) on every weight
  (`quap_tff.mechanisms.quap.local`). It is (ε_i(t), δ)-private for the client's whole data against the server.

  Attributes:
    clip: C. No client sends a norm, so C cannot follow the norms.
    budget: 'participation': ε_i(t) follows QuAP-FL's budgets, with --alpha, --beta and the flags of rates. 'uniform':
      ε_base for everyone.
  """

  title = 'Local DP'

  clip: float = 1.0
  budget: str = 'participation'

  def __post_init__(self) -> None:
    clip_rules.Fixed(self.clip)
    if self.budget not in _LOCAL_BUDGETS:
      raise registry.unknown_name_error('local budget', self.budget, _LOCAL_BUDGETS)

  def flag_names(self) -> frozenset[str]:
    return super().flag_names() - (flag_fields.flags_of(choices.Shape).keys() if self.budget == 'uniform' else set())

  def configure(self, setting: base.Setting) -> local.LocalPrivacy:
    if setting.asks_client_metrics:
      raise ValueError(
        '--client_metrics: under local_dp a client sends its noised update and nothing else, so there are no '
        'training metrics. Leave this flag out.'
      )
    if self.budget == 'uniform':
      budget = budgets.BudgetConfig(self.epsilon, setting.rounds, round_rule='uniform')
      rates = participations.ParticipationConfig()
    else:
      budget = budgets.BudgetConfig(self.epsilon, setting.rounds, self.alpha, self.beta)
      rates = self.rates()
    config = configs.QuapConfig(
      num_clients=setting.num_clients,
      budget=budget,
      participation=rates,
      clip=clip_rules.Fixed(self.clip),
      clip_scope='all_layers',
      critical_layers=layers.ALL,
      noise=configs.NoiseConfig(placement='client', delta=self.delta, calibration='analytic', seed=self.noise_seed),
    )
    return local.LocalPrivacy(config)
