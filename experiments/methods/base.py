"""What every method is: its interface, and QuAP-FL's mechanism as the flags describe it."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar, NamedTuple, Optional

from data import cohorts
from quap_tff import plans
from quap_tff.common import checks
from quap_tff.common import registry
from quap_tff.mechanisms import budgets
from quap_tff.mechanisms import clip_rules
from quap_tff.mechanisms import config as configs
from quap_tff.mechanisms import participation as participations
from quap_tff.mechanisms import postprocessing
from quap_tff.mechanisms import robust
from quap_tff.mechanisms import sparsity as sparsities
from quap_tff.plans import stock_tff

CALIBRATIONS = stock_tff.CALIBRATIONS

OF_BUDGETS = frozenset(
  {'alpha', 'beta', 'round_budget', 'participation_rate', 'ema_weight', 'warmup_rounds', 'count_during_warmup'}
)
OF_NOISE = frozenset({'epsilon', 'delta', 'calibration', 'noise', 'gaussian_calibration', 'noise_seed'})
OF_CLIP = frozenset({'clip', 'clip_scope', 'max_agg_norm', 'critical_layers', 'update_scale'})
TUNING = frozenset({'tuning'})

_MOST_PARTICIPATIONS = 10**8


class Setting(NamedTuple):
  """What a plan takes besides the mechanism.

  Attributes:
    participation: Who takes part in which round.
    rounds: T, the planned rounds.
    seed: Seed of everything that is drawn besides the noise.
    calibration: One of `CALIBRATIONS`.
    averaging: How the released weights are averaged. A certified plan chooses its noise for this average.
    mean_epochs: The public mean of the clients' local epochs, or None if all have the same number.
    options: The options of the plan: what else is released with the model, and the model's shape.
  """

  participation: cohorts.ParticipationModel
  rounds: int
  seed: int
  calibration: str
  averaging: postprocessing.Averaging
  mean_epochs: Optional[float]
  options: dict[str, Any]

  @property
  def schedule(self):
    """int64[M_t] for each planned round.

    Raises:
      ValueError: If it is too long for the memory of an ordinary machine.
    """
    cohorts_found, total = [], 0
    for round_num in range(1, self.rounds + 1):
      cohorts_found.append(self.participation.cohort(round_num))
      total += len(cohorts_found[-1])
      if total > _MOST_PARTICIPATIONS:
        raise ValueError(
          f'--rounds={self.rounds} plans more than {_MOST_PARTICIPATIONS:,} participations. Plan fewer rounds, or '
          'smaller cohorts.'
        )
    return cohorts_found


@dataclasses.dataclass(frozen=True)
class Method(abc.ABC):
  """A choice of --algorithm and its parameters.

  Attributes:
    unused: Names of flags that have no effect on this method.
    withholds_client_metrics: Whether exact functions of clients' data are kept only if the user asks for that.
    noise_of_its_own: Whether the method decides by itself if it adds noise, whatever --noise says.
    gives_certificate: Whether a run ends with a certificate. Then nothing exact about clients' data may be released,
      not even a figure on held-out examples of the clients themselves.
    takes_aggregator: Whether --aggregator may put something else in the place of the mean.
    charges_absent: Whether a client that is drawn and drops out is charged as if it had come. Its update is zero then.
    auxiliary_share: How many examples of people who are no clients the server has, see `data.load`.
    plans_averaging: Whether the published average can be chosen together with the noise.
    takes_sparsity: Whether rounds can update a part of the weights only (--sparsity).
    interpretation: Says what is our own reading of a system that is not specified, a sentence; '' if nothing is. A plan
      that says so itself needs none.
  """

  unused: ClassVar[frozenset[str]] = TUNING
  withholds_client_metrics: ClassVar[bool] = False
  noise_of_its_own: ClassVar[bool] = False
  gives_certificate: ClassVar[bool] = False
  charges_absent: ClassVar[bool] = False
  auxiliary_share: ClassVar[float] = 0.0
  plans_averaging: ClassVar[bool] = False
  takes_aggregator: ClassVar[bool] = False
  takes_sparsity: ClassVar[bool] = False
  interpretation: ClassVar[str] = ''

  @abc.abstractmethod
  def configure(self, values: Any, num_clients: int) -> Any:
    """The mechanism's configuration from the flags. This is cheap, and is called before data are read.

    Raises:
      ValueError: If the method cannot run with these flags.
    """

  def aggregates_once(self, config: Any) -> bool:
    """Whether a round needs only one level of aggregation. Several workers can run nothing else."""
    return not config.clip.uses_current_norms and config.weighting.is_equal

  def participation(self, model: cohorts.ParticipationModel) -> cohorts.ParticipationModel:
    """Who takes part, if the method changes that."""
    return model

  def check_cohorts(self, participation: cohorts.ParticipationModel, rounds: int):
    """Raises a `ValueError` if the method cannot do with these cohorts over the planned rounds. No data are read."""

  @abc.abstractmethod
  def plan(self, config: Any, setting: Setting) -> plans.Plan:
    """The plan of a run."""


def sparsity_of(values) -> sparsities.Sparsity:
  """Which part of the weights a round updates, by the flags."""
  return registry.parse_spec('sparsity', values.sparsity, sparsities.SPARSITIES)


def participation_config(values) -> participations.ParticipationConfig:
  """How participation is counted, by the flags."""
  return participations.ParticipationConfig(
    rate=values.participation_rate,
    ema_weight=values.ema_weight,
    warmup_rounds=values.warmup_rounds,
    count_during_warmup=values.count_during_warmup,
  )


def quap_config(values, num_clients: int, **parts) -> configs.QuapConfig:
  """QuAP-FL's mechanism as the flags describe it. `parts` replace what the flags would give."""
  if 'budget' not in parts:
    parts['budget'] = flags_budget(values)
  if 'clip' not in parts:
    parts['clip'] = registry.parse_spec('clip rule', values.clip, clip_rules.RULES)
  noise = configs.NoiseConfig(
    placement=parts.pop('placement', values.noise),
    delta=values.delta,
    calibration=values.gaussian_calibration,
    seed=values.noise_seed,
  )
  defaults = dict(
    participation=participation_config(values),
    clip_scope=values.clip_scope,
    noise=noise,
    critical_layers=values.critical_layers,
    max_agg_norm=values.max_agg_norm,
    update_scale=values.update_scale,
    aggregator=aggregator_of(values),
  )
  try:
    return configs.QuapConfig(num_clients=num_clients, **{**defaults, **parts})
  except ValueError as error:
    if 'classic Gaussian calibration' in str(error):
      raise ValueError(f'{error} To run fewer rounds of the same plan, use --stop_after instead of --rounds.') from None
    raise


def aggregator_of(values) -> robust.Aggregator:
  """What replaces the mean of the clipped updates, by the flags."""
  return registry.parse_spec('aggregator', values.aggregator, robust.AGGREGATORS)


def flags_budget(values) -> budgets.BudgetConfig:
  """QuAP-FL's budgets, by the flags."""
  return budgets.BudgetConfig(
    epsilon_total=values.epsilon,
    num_rounds=values.rounds,
    alpha=values.alpha,
    beta=values.beta,
    round_rule=values.round_budget,
  )


def uniform_budget(values) -> budgets.BudgetConfig:
  """ε_base for everyone."""
  return budgets.BudgetConfig(epsilon_total=values.epsilon, num_rounds=values.rounds, round_rule='uniform')


def local_epochs_of(values: Any) -> tuple[int, Optional[int]]:
  """The fewest epochs of a client, and the most if clients differ, by --local_epochs=3 or --local_epochs=1..5."""
  fewest, dots, most = str(values.local_epochs).partition('..')
  try:
    found = checks.parsed_number(fewest, int), checks.parsed_number(most, int) if dots else None
  except ValueError:
    raise ValueError(
      f'--local_epochs must be a number, such as 3, or a range, such as 1..5, found {values.local_epochs!r}.'
    ) from None
  checks.integer('local_epochs', found[0], at_least=1)
  if found[1] is not None and found[1] <= found[0]:
    raise ValueError(
      f'--local_epochs: a range must grow, found {values.local_epochs!r}. Give the smaller number first, as in 1..5.'
    )
  return found


def mean_epochs_of(values: Any) -> Optional[float]:
  """The public mean of the clients' epochs, or None if all have the same number."""
  fewest, most = local_epochs_of(values)
  return None if most is None else (fewest + most) / 2
