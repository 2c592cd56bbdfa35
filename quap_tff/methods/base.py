"""Every method's interface, and QuAP-FL's mechanism as methods bring it together from `parts`.

A method is a frozen dataclass. Plain fields are the parameters of its spec (`fixed_dp:clip=0.5`). Fields that one of
the `parts` brings are set by flags of the same names. A method uses exactly those flags that are its fields.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from typing import Callable, ClassVar, Optional

import numpy as np

from quap_tff import cohorts
from quap_tff import plans
from quap_tff.common import checks
from quap_tff.common import flag_fields
from quap_tff.mechanisms import mechanism as mechanisms
from quap_tff.mechanisms import sparsity as sparsities
from quap_tff.mechanisms.parts import aggregators
from quap_tff.mechanisms.parts import budgets
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers
from quap_tff.mechanisms.parts import participation as participations
from quap_tff.mechanisms.quap import config as configs
from quap_tff.methods import choices
from quap_tff.training import optimizers

_MOST_PARTICIPATIONS = 10**8
# For a user whose round has a larger ε than the classic calibration allows.
_FEWER_ROUNDS = 'To run fewer rounds of the same plan, use --stop_after instead of --rounds.'


@dataclasses.dataclass(frozen=True)
class Setting:
  """The facts about a run that methods use.

  It is not `experiments.command.run.Run`: a run is flags, among them those for data, files and machines, of which the
  library does not know, and a setting also has what is known only when the data are, such as N and the model's shape.

  Attributes:
    num_clients: N.
    rounds: T, the planned rounds.
    seed: The public seed of everything that is drawn, except for the noise.
    participation: Who takes part in which round: `cohort(round_num)` gives int64[M_t], and there are `sampler` and
      `mean_cohort_size`, see `data.cohorts.ParticipationModel`. None before the number of clients is known.
    has_secret_cohorts: Whether cohorts are drawn by coins that stay secret.
    has_dropout: Whether clients drop out in mid-round.
    order: Gives int64[N], the clients in a random order that is public.
    client_optimizer: One of `optimizers.OPTIMIZERS`.
    mean_epochs: The public mean of the clients' local epochs, or None if all have the same number.
    asks_client_metrics: Whether the user asked for exact functions of clients' data.
    options: Those of the plan.
    reseeded: From a seed to who takes part in which round by the same model with other draws, as `participation`.
  """

  num_clients: int
  rounds: int
  seed: int = 0
  participation: Optional[cohorts.ParticipationModel] = None
  has_secret_cohorts: bool = False
  has_dropout: bool = False
  order: Optional[Callable[[], np.ndarray]] = None
  client_optimizer: optimizers.OptimizerChoice = optimizers.Sgd()
  mean_epochs: Optional[float] = None
  asks_client_metrics: bool = False
  options: plans.PlanOptions = plans.PlanOptions()
  reseeded: Optional[Callable[[int], cohorts.ParticipationModel]] = None

  @functools.cached_property
  def schedule(self) -> list[np.ndarray]:
    """int64[M_t] for each planned round.

    Raises:
      ValueError: If it is too long for the memory of an ordinary machine.
    """
    assert self.participation is not None
    return self.rounds_of(self.participation.cohort)

  @functools.cached_property
  def drawn_schedule(self) -> list[np.ndarray]:
    """int64[M_t] for each planned round, with the clients that were drawn and do not come."""
    assert self.participation is not None
    return self.rounds_of(self.participation.drawn)

  @property
  def mean_cohort_size(self) -> Optional[float]:
    """The mean number of clients in a round; None if it is not known."""
    return self.participation.mean_cohort_size if self.participation is not None else None

  @property
  def mean_dropout(self) -> float:
    """The share of the clients that are drawn and expected not to come."""
    return self.participation.mean_dropout if self.participation is not None else 0.0

  def rounds_of(self, cohort: Callable[[int], np.ndarray]) -> list[np.ndarray]:
    """int64[M_t] for each planned round t, from 1, by a function of t. Raises `ValueError` if these are too many."""
    cohorts_found, total = [], 0
    for round_num in range(1, self.rounds + 1):
      cohorts_found.append(cohort(round_num))
      total += len(cohorts_found[-1])
      if total > _MOST_PARTICIPATIONS:
        raise ValueError(
          f'--rounds={self.rounds} plans more than {_MOST_PARTICIPATIONS:,} participations. Plan fewer rounds, or '
          'smaller cohorts.'
        )
    return cohorts_found


@dataclasses.dataclass(frozen=True)
class Method(abc.ABC):
  """A choice of --algorithm with its parameters.

  Attributes:
    title: Its name in print; '' if that is its name in --algorithm.
    gives_certificate: Whether a run ends with a certificate. Then nothing exact about clients' data may be released,
      not even a figure on held-out examples of the clients themselves.
    follows_public_rule: Whether what nobody gives is chosen by the public rule, see `quap_tff.public_constants`.
    clip_follows_rounds: Whether the clipping norm was not given, so that it follows from rounds and the server's step.
    divides_by_planned_cohort: Whether sums are divided by a number of clients that is planned, whatever clients come.
    client_round_share: The share of the rounds that are rounds of clients. In the others the server trains.
    auxiliary_share: How many examples of people who are not clients the server has, see `data.load`.
    interpretation: Says that a system is not specified, and that this is our own reading of it, in a sentence; '' if
      there is nothing to say. A plan that says so itself needs no such sentence.
  """

  title: ClassVar[str] = ''
  divides_by_planned_cohort: ClassVar[bool] = False
  follows_public_rule: ClassVar[bool] = False
  interpretation: ClassVar[str] = ''
  # Where a method has no such field.
  server_optimizer: ClassVar[optimizers.OptimizerChoice] = optimizers.Sgd()
  sparsity: ClassVar[sparsities.Sparsity] = sparsities.NotSparse()
  aggregator: ClassVar[aggregators.Aggregator] = aggregators.Mean()

  @property
  def gives_certificate(self) -> bool:
    return False

  @property
  def clip_follows_rounds(self) -> bool:
    return False

  @property
  def client_round_share(self) -> float:
    return 1.0

  @property
  def auxiliary_share(self) -> float:
    return 0.0

  @property
  def written_out(self) -> Method:
    """The method with everything that suits its other parameters in place of what is not given."""
    return self

  @abc.abstractmethod
  def configure(self, setting: Setting) -> mechanisms.Configuration:
    """The configuration before a noise is chosen. This is cheap, and also done before data are read.

    Raises:
      ValueError: If the method cannot run in this setting.
    """

  def facts(self, setting: Setting) -> mechanisms.Facts:
    """Facts about the mechanism. Raises what `configure` raises."""
    return self.configure(setting).facts

  @abc.abstractmethod
  def plan(self, setting: Setting) -> plans.Plan:
    """The plan of a run. The setting has its schedule, and the model in its `options`."""

  def flag_names(self) -> frozenset[str]:
    """The flags that this method uses: its fields, and those of its base."""
    return frozenset(flag_fields.flags_of(self))

  def check_cohorts(self, setting: Setting) -> None:  # noqa: B027 (most methods take any cohorts)
    """Raises a `ValueError` if the method cannot do with the cohorts of the planned rounds. No data are read."""


class SimpleMethod(Method):
  """A method whose mechanism follows from its fields, except for the scale of its noise."""

  @abc.abstractmethod
  def configure(self, setting: Setting) -> mechanisms.Mechanism:
    """The mechanism. Raises `ValueError` if the method cannot run in this setting."""

  def plan(self, setting: Setting) -> plans.Plan:
    assert setting.participation is not None
    plan = plans.Plan(self.configure(setting), setting.participation.sampler, **vars(setting.options))
    return self.calibrated(plan, setting)

  def calibrated(self, plan: plans.Plan, setting: Setting) -> plans.Plan:
    """The plan with its noise scaled to the schedule, for a method whose noise an accountant chooses."""
    del setting
    return plan


@dataclasses.dataclass(frozen=True)
class QuapMechanism(choices.ServerOptimizer, choices.Bounds, choices.Noise, SimpleMethod):
  """QuAP-FL's own mechanism. The parts that a subclass brings replace those that are off here.

  Off are: budgets that follow participation (everyone has ε_base), layer-wise noise (every layer is clipped and
  noised), and the counting of participation by flags. A subclass brings `Clip` or `FixedClip`, or a rule of its own.
  """

  critical_layers: ClassVar[str] = layers.ALL
  update_scale: ClassVar[str] = 'delta'

  def budgets(self, setting: Setting) -> budgets.BudgetConfig:
    """ε_base for everyone."""
    return budgets.BudgetConfig(self.epsilon, setting.rounds, round_rule='uniform')

  @abc.abstractmethod
  def clip_rule(self) -> clip_rules.ClipRule:
    """The rule for the clipping norm."""

  def rates(self) -> participations.ParticipationConfig:
    """How participation is counted."""
    return participations.ParticipationConfig()

  def configure(self, setting: Setting) -> mechanisms.Mechanism:
    return self.quap_config(setting)

  def quap_config(self, setting: Setting, **changes: checks.Unchecked) -> configs.QuapConfig:
    """The configuration that the fields describe. `changes` replace fields of it."""
    defaults = dict(
      budget=self.budgets(setting),
      participation=self.rates(),
      clip=self.clip_rule(),
      clip_scope=self.clip_scope,
      noise=self.noise_config(),
      critical_layers=self.critical_layers,
      max_agg_norm=self.max_agg_norm,
      update_scale=self.update_scale,
      aggregator=self.aggregator,
    )
    try:
      return configs.QuapConfig(num_clients=setting.num_clients, **{**defaults, **changes})
    except configs.RoundBudgetError as error:
      raise ValueError(f'{error} {_FEWER_ROUNDS}') from None
