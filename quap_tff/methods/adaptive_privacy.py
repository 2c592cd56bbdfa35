"""Methods of adaptive privacy: QuAP-FL's mechanism with what other systems adapt.

Each runs as published, or, with `quap=true`, together with QuAP-FL's own parts. docs/systems.md says what each
does to privacy.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from quap_tff import plans
from quap_tff.common import checks
from quap_tff.common import flag_fields
from quap_tff.common import registry
from quap_tff.federated.line_search import line_search as line_search
from quap_tff.mechanisms.parts import budgets
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers
from quap_tff.mechanisms.parts import participation as participations
from quap_tff.mechanisms.parts import schedules
from quap_tff.mechanisms.parts import weighting
from quap_tff.mechanisms.quap import config as configs
from quap_tff.methods import base
from quap_tff.methods import choices


@dataclasses.dataclass(frozen=True)
class _Adaptive(
  choices.AdaptiveBudgets,
  choices.LayersChoice,
  choices.ScaleChoice,
  choices.SparseChoice,
  choices.Robust,
  base.QuapMechanism,
):
  """A system whose clip, budgets or weights adapt.

  As published, every client has the same budget whenever it takes part, and every layer is clipped and noised. With
  `quap`, clients' budgets follow participation and the flags set the layers, as in quap.

  Attributes:
    quap: Whether QuAP-FL's own parts are also on.
  """

  quap: bool = False

  def flag_names(self) -> frozenset[str]:
    of_quap = (
      frozenset()
      if self.quap
      else {*flag_fields.flags_of(choices.AdaptiveBudgets), *flag_fields.flags_of(choices.LayersChoice)}
    )
    return super().flag_names() - of_quap

  def _configured(
    self, setting: base.Setting, schedule: schedules.RoundSchedule = schedules.Even(), **parts: checks.Unchecked
  ) -> configs.QuapConfig:
    if self.quap:
      return self.quap_config(setting, budget=dataclasses.replace(self.budgets(setting), schedule=schedule), **parts)
    budget = budgets.BudgetConfig(self.epsilon, setting.rounds, round_rule='uniform', schedule=schedule)
    published = dict(critical_layers=layers.ALL, participation=participations.ParticipationConfig())
    return self.quap_config(setting, budget=budget, **published, **parts)


@dataclasses.dataclass(frozen=True)
class DynamicBudget(_Adaptive):
  """Budgets that grow or decay over the rounds, by Hong, Wang and Zhou 2022: see `schedules.Geometric`.

  The sum of the rounds' ε_base(t) is --epsilon. With `quap`, --clip also sets the clipping norm.

  Attributes:
    growth: The budget of the last round over that of the first. Below 1, budgets decay.
    clip: The clipping norm, without `quap`.
  """

  title = 'Dynamic budget'

  growth: float = 4.0
  clip: float = 1.0
  of_quap: choices.Clip = flag_fields.part(choices.Clip())

  def __post_init__(self) -> None:
    schedules.Geometric(self.growth)
    clip_rules.Fixed(self.clip)

  def flag_names(self) -> frozenset[str]:
    return super().flag_names() - (frozenset() if self.quap else {'clip'})

  def clip_rule(self) -> clip_rules.ClipRule:
    return self.of_quap.clip if self.quap else clip_rules.Fixed(self.clip)

  def configure(self, setting: base.Setting) -> configs.QuapConfig:
    return self._configured(setting, schedules.Geometric(self.growth))


@dataclasses.dataclass(frozen=True)
class D2dp(_Adaptive):
  """An interpretation: clipping norm and noise fall over the rounds by a public schedule.

      C_t = clip·clip_decay^((t-1)/(T-1)),   ε_t by `schedules.Geometric`, so that σ_t = z(ε_t, δ)·C_t/M_t falls twice

  The documents name D2DP and say no more than that it clips adaptively. No paper of this name could be found. The
  nearest is dynamic DP-SGD (Du, Li, Chen, Chen and Hong 2021, "Dynamic Differential-Privacy Preserving SGD"), in which
  the clipping norm decays and the privacy parameter of a step grows, both geometrically.

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
    schedules.Geometric(self.growth)
    self.clip_rule()

  def clip_rule(self) -> clip_rules.ClipRule:
    return clip_rules.Decaying(self.clip, self.clip_decay)

  def configure(self, setting: base.Setting) -> configs.QuapConfig:
    decay = self.clip_decay ** (1 / max(setting.rounds - 1, 1))
    clip = clip_rules.Decaying(self.clip, decay)
    return self._configured(setting, schedules.Geometric(self.growth), clip=clip)


@dataclasses.dataclass(frozen=True)
class Acdp(_Adaptive):
  """An interpretation: the clipping norm follows a private mean of the clipped norms, and the noise follows it.

  The documents name ACDP and say no more than that it clips adaptively under fixed participation. No paper of this name
  could be found. `clip_rules.NoisedMean` is the smallest reading whose account is whole: the norms are released with
  noise of their own. σ_t = z·C_t/M_t adapts with C_t.

  Attributes:
    factor: The clipping norm over the private mean of the clipped norms, above 1.
    initial_clip: The clipping norm of the first round.
    norm_noise: The noise multiplier of the sum of the norms.
  """

  title = 'ACDP (an interpretation)'
  interpretation = (
    'acdp is an interpretation: the documents name ACDP without specifying it, and no paper of this name was found.'
  )

  factor: float = 1.5
  initial_clip: float = 1.0
  norm_noise: float = 15.0

  def __post_init__(self) -> None:
    self.clip_rule()

  def clip_rule(self) -> clip_rules.ClipRule:
    return clip_rules.NoisedMean(self.factor, self.initial_clip, self.norm_noise)

  def configure(self, setting: base.Setting) -> configs.QuapConfig:
    return self._configured(setting)


@dataclasses.dataclass(frozen=True)
class FedApca(
  choices.Shape,
  choices.Clip,
  choices.LayersChoice,
  choices.ScaleChoice,
  choices.SparseChoice,
  choices.Robust,
  base.QuapMechanism,
):
  """An interpretation: clients in clusters of similar budgets, and clusters weighted by their noise.

  `weighting.Clusters` has the equations. Clients' budgets follow participation, as in quap: with equal budgets there
  would be one cluster. Each client's own noise is drawn at the server, as large as each client would have added.
  FedAPCA's piecewise mechanism (bounded noise by layer, at the clients) is replaced by QuAP-FL's clip and Gaussian
  noise, and its budgets by accuracy and loss by QuAP-FL's budgets: accuracy and loss are exact functions of clients'
  data. --clip and --critical_layers apply as in quap.

  Attributes:
    clusters: K, the number of clusters.
  """

  title = 'FedAPCA (an interpretation)'

  clusters: int = 3

  interpretation = (
    'fedapca is an interpretation: of the paper on FedAPCA only the abstract could be read, and its mechanism and '
    "budgets are replaced by QuAP-FL's."
  )

  def __post_init__(self) -> None:
    weighting.Clusters(self.clusters)

  def check_cohorts(self, setting: base.Setting) -> None:
    if self.clusters > setting.num_clients:
      raise ValueError(
        f'--algorithm=fedapca:clusters={self.clusters}: there are only {setting.num_clients} clients to be clustered. '
        f'Give at most {setting.num_clients} clusters, or more clients.'
      )

  def configure(self, setting: base.Setting) -> configs.QuapConfig:
    budget = budgets.BudgetConfig(self.epsilon, setting.rounds, self.alpha, self.beta, round_rule='each_own')
    return self.quap_config(setting, budget=budget, weighting=weighting.Clusters(self.clusters))


@dataclasses.dataclass(frozen=True)
class LeeKifer(choices.Budget, base.SimpleMethod):
  """Lee and Kifer 2018: noisy steps whose size, and whose share of the budget, are chosen by noised losses.

  `quap_tff.federated.line_search.line_search` has the equations and the differences from the paper. No client exceeds
  --epsilon at a total δ of --delta. The local learning rate sets the unit of the steps; --server_optimizer has no
  effect.

  Attributes:
    clip: The clipping norm C of updates.
    loss_clip: The bound B on a client's differences of losses.
    steps: The step sizes to choose from, in addition to 0.
    growth: γ, by how much the budget of a gradient grows after a step of 0.
    test_share: The share of the budget that the losses get.
    lasts: How much smaller than an even share of the budget the first gradients' share is.
  """

  title = 'Lee and Kifer'

  clip: float = 1.0
  loss_clip: float = 0.5
  steps: tuple = (0.5, 1.0, 2.0)
  growth: float = 0.1
  test_share: float = 0.1
  lasts: float = 1.2

  def __post_init__(self) -> None:
    line_search.LineSearchConfig(1, 1.0, 1e-5, 1, **registry.parameter_values(self))

  def configure(self, setting: base.Setting) -> line_search.LineSearchConfig:
    return line_search.LineSearchConfig(
      setting.num_clients,
      self.epsilon,
      self.delta,
      setting.rounds,
      noise_seed=self.noise_seed,
      **registry.parameter_values(self),
    )

  def plan(self, setting: base.Setting) -> plans.Plan:
    # The public schedule says how often the client comes that comes most often.
    clients = np.concatenate(setting.schedule).astype(np.int64)
    most = int(np.bincount(clients, minlength=1).max())
    config = dataclasses.replace(self.configure(setting), planned_rounds=max(most, 1))
    return plans.Plan(config, **vars(setting.options))
