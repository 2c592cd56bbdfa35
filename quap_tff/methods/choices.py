"""The parts of mechanisms that methods share: each brings fields that flags of the same names set."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from quap_tff.common import flag_fields
from quap_tff.mechanisms import sparsity as sparsities
from quap_tff.mechanisms.noise import gaussian
from quap_tff.mechanisms.parts import aggregators
from quap_tff.mechanisms.parts import budgets
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers
from quap_tff.mechanisms.parts import participation as participations
from quap_tff.mechanisms.quap import config as configs
from quap_tff.plans import scheduled
from quap_tff.training import optimizers


@dataclasses.dataclass(frozen=True)
class Budget:
  """The privacy budget.

  Attributes:
    epsilon: Total budget ε_total, spread over --rounds. Default: 3 with certified, 6 with all others.
    delta: δ of one round in nominal figures, and total δ in formal ones.
    noise_seed: Seed of the noise, for reproducible experiments only: anyone who knows it can subtract the noise.
      Default: drawn from the operating system's entropy.
  """

  epsilon: float = flag_fields.flag(6.0, differs=True)
  delta: float = flag_fields.flag(1e-5)
  noise_seed: Optional[int] = flag_fields.flag()


@dataclasses.dataclass(frozen=True)
class Spent:
  """The budgets that clients have spent in earlier runs.

  Attributes:
    spent: File of an earlier run of the same clients, with the same numbers: its ledger.npz or its clients.csv, which a
      certified run has in its folder certificate, or the state of a gate. Budgets and figures count from what they have
      spent there. It must be the last of the earlier runs, which carries what those before it have spent, and it must
      have ended.
  """

  spent: Optional[Any] = flag_fields.flag()


@dataclasses.dataclass(frozen=True)
class Calibrated(Budget):
  """Noise by the documents' formula, or by exact accounting.

  Attributes:
    calibration: How much noise is added. documents: as much as the documents' formula gives for each round's budget.
      exact: that noise is scaled until the client that spends most spends --epsilon at a total δ of --delta, by exact
      accounting. This is only for methods that add noise to every layer. Default: exact for TFF's own aggregators
      (tff_…), and documents for all other methods.
  """

  calibration: str = flag_fields.flag('documents', one_of=scheduled.CALIBRATIONS, differs=True)

  def calibrated(self, plan: Any, setting: Any) -> Any:
    """The plan with its noise scaled, if that was asked for."""
    return plan.calibrated(setting.schedule, self.epsilon) if self.calibration == 'exact' else plan


@dataclasses.dataclass(frozen=True)
class Noise(Calibrated):
  """Gaussian noise of the documents' formula.

  Attributes:
    noise: Where Gaussian noise is added.
    gaussian_calibration: Formula for the noise of (ε, δ). classic is valid only if a round's ε is at most 1.
  """

  noise: str = flag_fields.flag('server', kind='noise placement', names=configs.PLACEMENTS)
  gaussian_calibration: str = flag_fields.flag(
    'classic', kind='gaussian calibration', names=tuple(gaussian.CALIBRATIONS)
  )

  def noise_config(self) -> configs.NoiseConfig:
    """The noise of each round."""
    return configs.NoiseConfig(self.noise, self.delta, self.gaussian_calibration, seed=self.noise_seed)


@dataclasses.dataclass(frozen=True)
class Rates:
  """How participation is counted.

  Attributes:
    participation_rate: How participation rates are computed.
    ema_weight: η: weight of the newest round, for --participation_rate=ema.
    warmup_rounds: T_warm: number of rounds at the start in which every budget is ε_base.
    count_during_warmup: Whether warm-up rounds count as participation.
  """

  participation_rate: str = flag_fields.flag('cumulative', kind='participation rate', names=participations.RATES)
  ema_weight: float = flag_fields.flag(0.1)
  warmup_rounds: int = flag_fields.flag(5)
  count_during_warmup: bool = flag_fields.flag(True)

  def rates(self) -> participations.ParticipationConfig:
    """How participation is counted."""
    return participations.ParticipationConfig(
      self.participation_rate, self.ema_weight, self.warmup_rounds, self.count_during_warmup
    )


@dataclasses.dataclass(frozen=True)
class Shape(Rates):
  """How budgets follow participation.

  Attributes:
    alpha: α: the extra budget of a client that never takes part, in units of ε_base.
    beta: β: how fast that extra budget falls as the participation rate grows.
  """

  alpha: float = flag_fields.flag(0.5)
  beta: float = flag_fields.flag(2.0)


@dataclasses.dataclass(frozen=True)
class AdaptiveBudgets(Shape):
  """QuAP-FL's budgets.

  Attributes:
    round_budget: Budget of a round.
  """

  round_budget: str = flag_fields.flag('cohort_mean_rate', kind='round budget rule', names=tuple(budgets.ROUND_RULES))

  def budgets(self: Any, setting: Any) -> budgets.BudgetConfig:
    """Budgets that follow participation."""
    return budgets.BudgetConfig(self.epsilon, setting.rounds, self.alpha, self.beta, self.round_budget)


@dataclasses.dataclass(frozen=True)
class Clip:
  """A rule for the clipping norm.

  Attributes:
    clip: Rule for the clipping norm. timing is current or previous.
  """

  clip: clip_rules.ClipRule = flag_fields.flag('quantile_ema', kind='clip rule', choices=clip_rules.RULES)

  def clip_rule(self) -> clip_rules.ClipRule:
    """The rule."""
    return self.clip


@dataclasses.dataclass(frozen=True)
class FixedClip:
  """One clipping norm for all rounds.

  Attributes:
    clip: The clipping norm.
  """

  clip: float = 1.0

  def __post_init__(self) -> None:
    self.clip_rule()

  def clip_rule(self) -> clip_rules.ClipRule:
    """The rule."""
    return clip_rules.Fixed(self.clip)


@dataclasses.dataclass(frozen=True)
class Bounds:
  """The clipped layers.

  Attributes:
    clip_scope: Layers that are clipped.
    max_agg_norm: Bound on the norm of the noised mean update.
  """

  clip_scope: str = flag_fields.flag('critical', kind='clip scope', names=configs.CLIP_SCOPES)
  max_agg_norm: Optional[float] = flag_fields.flag()


@dataclasses.dataclass(frozen=True)
class LayersChoice:
  """Which layers are clipped and noised.

  Attributes:
    critical_layers: Layers that are clipped and noised, by one of the words, or by their names with wildcards.
  """

  critical_layers: str = flag_fields.flag(layers.FINAL_DENSE, words=tuple(layers.SELECTIONS))


@dataclasses.dataclass(frozen=True)
class ScaleChoice:
  """The unit of updates.

  Attributes:
    update_scale: Unit in which updates are clipped. pseudo_gradient: they are divided by the client learning rate.
  """

  update_scale: str = flag_fields.flag('delta', kind='update scale', names=configs.UPDATE_SCALES)


@dataclasses.dataclass(frozen=True)
class SparseChoice:
  """Rounds that update a part of the weights.

  Attributes:
    sparsity: Which part of each layer's weights a round updates, clips and noises, while the others stay as they are.
      random: a new part in each round, from the public --seed. top_released (an interpretation): those that earlier
      releases moved the most, and a share of random others (explore).
  """

  sparsity: sparsities.Sparsity = flag_fields.flag(
    'none', kind='sparsity', choices=sparsities.SPARSITIES, is_neutral=True
  )


@dataclasses.dataclass(frozen=True)
class Robust:
  """Sums that bound malicious clients.

  Attributes:
    aggregator: The replacement of the mean of the clipped updates. All but the mean need each client's update at the
      server, so that no secure aggregation is possible, and no privacy figure survives.
  """

  aggregator: aggregators.Aggregator = flag_fields.flag(
    'mean', kind='aggregator', choices=aggregators.AGGREGATORS, is_neutral=True
  )


@dataclasses.dataclass(frozen=True)
class ServerOptimizer:
  """The server's step.

  Attributes:
    server_optimizer: Server optimizer.
  """

  server_optimizer: optimizers.OptimizerChoice = flag_fields.flag(
    'sgd:learning_rate=1.0', kind='server optimizer', choices=optimizers.OPTIMIZERS
  )


@dataclasses.dataclass(frozen=True)
class Tuned:
  """How the constants of a run were chosen.

  Attributes:
    tuning: A sentence for the certificate. It says how the constants of the run were chosen. Default: that they were
      chosen by the public rule, if they were, and otherwise that this is not stated.
  """

  tuning: str = flag_fields.flag(
    "Not stated. The guarantee is that of this run, if its constants were chosen without these clients' data.",
    differs=True,
  )


# The parts, in the order in which --help shows their flags. Each flag of a method belongs to one of them.
PARTS = (
  Noise,
  Spent,
  AdaptiveBudgets,
  Clip,
  Bounds,
  LayersChoice,
  ScaleChoice,
  SparseChoice,
  Robust,
  ServerOptimizer,
  Tuned,
)
FLAGS: dict[str, flag_fields.Flag] = {
  name: found for part in PARTS for name, found in flag_fields.flags_of(part).items()
}
