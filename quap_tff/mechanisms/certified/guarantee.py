"""The values that both certified mechanisms share: clipping, budgets and account."""

from __future__ import annotations

import abc
from collections.abc import Sequence
import dataclasses
import math
from typing import Any, ClassVar, NamedTuple, Optional, TYPE_CHECKING, TypeVar, Union

import numpy as np

from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.common import registry
from quap_tff.common.numbers import rounding
from quap_tff.common.numbers import slack as slacks
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms import mechanism
from quap_tff.mechanisms.certified import privacy_filter
from quap_tff.mechanisms.certified import spent_before as spent_befores
from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.noise import correlation as correlations
from quap_tff.mechanisms.noise import integers
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers as layers_lib
from quap_tff.mechanisms.parts import participation as participations
from quap_tff.mechanisms.parts import postprocessing

_Config = TypeVar('_Config', bound='GuaranteeConfig')

# Up to this norm float32 does not overflow, whatever the noise multiplier and the weight.
LARGEST_CLIP = 1e20
SMALLEST_MULTIPLIER, LARGEST_MULTIPLIER = 1e-3, 1e9
_PUBLIC_METRICS = {'exhausted_clients', 'weight_mean', 'weight_min', 'spent_max'}
# How many rounds the account of rounding covers if their number is not planned.
_OPEN_ENDED = 10**6
NOTHING_LEFT = (
  'No client that takes part has anything left of its budget, so no noise can be chosen. Give a larger epsilon, or '
  'plan rounds of other clients.'
)


class Settled(NamedTuple):
  """A mechanism and an average that were chosen together, before training.

  Attributes:
    mechanism: The mechanism, with its noise and divisor.
    averaging: The average that is to be published.
  """

  mechanism: Guarantee
  averaging: postprocessing.Averaging


class PlannedRound(NamedTuple):
  """The outcome of a round if the schedule is followed.

  Attributes:
    weights: float32[M_t], the weights of its cohort.
    spent_max: The largest share of the limit on μ² that any client has spent.
  """

  weights: np.ndarray
  spent_max: float


@dataclasses.dataclass(frozen=True)
class GuaranteeConfig(mechanism.Configuration):
  """What is asked of either certified mechanism: it adds clients' clipped updates and noise, and divides the sum by D.

  Client i's clipped update has norm at most w_i(t)·C_t. Every constant here is public. It must be chosen without a look
  at clients' data. Otherwise it is itself a release, which no account covers.

  Attributes:
    trust: 'server', which sees updates and adds the noise, or 'secure_sum': clients hold the noise, and the server sees
      their secure sum alone.
    num_clients: N, the population. Client ids are integers in [0, N).
    epsilon: ε > 0, in nats. No client exceeds it over the whole run.
    delta: The total δ, in (0, 1), at which ε holds.
    noise_multiplier: z: the standard deviation of the noise that each round draws, divided by C_t. None: to be chosen
      from a schedule, by `settled`.
    divisor: D > 0. The sum is divided by it in every round. An example is the expected sum of weights. None: to be
      chosen from a schedule, like the noise multiplier.
    num_rounds: T, the planned rounds. After them nobody adds anything. None: to be taken from a schedule. A mechanism
      without it has any number of rounds, and charges each client as if they went on for ever.
    clip: C_t: `clip_rules.Fixed`, or `clip_rules.PrivateQuantile`, whose noised count is in the account. None: to be
      chosen from the number of rounds, `clip_rules.public_norm`, for a server whose step is 1.
    clip_split: How C_t is divided among layers, one of `quap_tff.mechanisms.parts.layers.CLIP_SPLITS`.
    own_epsilon: float[N], the bound that each client has chosen for itself, in (0, epsilon]. None: `epsilon` for
      everyone. A bound must not depend on the client's data.
    spent_before: What was released about each client before, and what those runs protected, from
      `accounting.read_spent`. The filter lets each client spend what is left, and all figures count from there. None:
      nothing was.
    noise_seed: A non-negative integer makes the noise reproducible and so public: such a run cannot be certified. None:
      the seed is drawn from the operating system's entropy.
  """

  choices = (correlations.FAMILIES, weight_rules.RULES, clip_rules.RULES)
  trust: ClassVar[str]

  num_clients: int = checks.integer_field('num_clients', at_least=1, at_most=2**31 - 1)
  epsilon: float = checks.number_field('epsilon', above=0, at_most=100)
  delta: float = checks.number_field('delta', above=0, below=1)
  noise_multiplier: Optional[float] = checks.number_field(
    'noise_multiplier', None, at_least=SMALLEST_MULTIPLIER, at_most=LARGEST_MULTIPLIER
  )
  divisor: Optional[float] = checks.number_field('divisor', None, above=0)
  num_rounds: Optional[int] = checks.integer_field('num_rounds', None, at_least=1)
  clip: Optional[clip_rules.ClipRule] = None
  clip_split: str = registry.name_field('clip split', 'joint', layers_lib.CLIP_SPLITS)
  own_epsilon: Optional[tuple[float, ...]] = None
  spent_before: Optional[spent_befores.SpentBefore] = dataclasses.field(
    default=None, metadata={checks.IN_KEYS_IF_GIVEN: True}
  )
  noise_seed: Optional[int] = checks.seed_field('noise_seed')

  if TYPE_CHECKING:  # At run time the fields of subclasses would take it as their default.

    @property
    def correlation(self) -> correlations.Correlation: ...

  def __post_init__(self) -> None:
    super().__post_init__()
    if not isinstance(self.correlation, correlations.Correlation):
      raise TypeError(
        f'correlation must be a Correlation of quap_tff.mechanisms.noise.correlation, found {self.correlation!r}.'
      )
    if self.num_rounds is not None:
      self.correlation.check_rounds(self.num_rounds)
    self._check_clip()
    self._check_own_epsilon()
    self._check_spent_before()

  def _check_own_epsilon(self) -> None:
    if self.own_epsilon is None:
      return
    own = checks.numbers_of_clients('own_epsilon', self.own_epsilon, self.num_clients)
    bad = np.flatnonzero(~((own > 0) & (own <= self.epsilon)))
    if len(bad):
      raise ValueError(
        f'own_epsilon must be above 0 and at most epsilon={self.epsilon:g} for each client, found {own[bad[0]]:g} for '
        f'client {bad[0]}.'
      )
    object.__setattr__(self, 'own_epsilon', tuple(own.tolist()))

  def _check_spent_before(self) -> None:
    if self.spent_before is None:
      return
    if not isinstance(self.spent_before, spent_befores.SpentBefore):
      raise TypeError(
        f'spent_before must be a SpentBefore, found {type(self.spent_before).__name__}: numbers alone do not say what '
        'the earlier runs protected. Read it from a file of theirs by accounting.read_spent, or make an '
        "accounting.SpentBefore(mu_squared, trust='server')."
      )
    spent = checks.numbers_of_clients('spent_before', self.spent_before.mu_squared, self.num_clients)
    if self.holds_noise and self.spent_before.trust == 'server' and spent.any():
      raise ValueError(
        "spent_before is of runs whose server saw the clients' updates, so nothing can be said against a server. Use "
        'trust=server, which says no more, or count from runs with trust=secure_sum alone.'
      )
    bounds = np.broadcast_to(self.own_epsilon or self.epsilon, spent.shape)
    distinct, index = np.unique(bounds, return_inverse=True)
    most = np.array([tradeoff.mu_at_most(one, self.delta) ** 2 for one in distinct.tolist()])[index]
    over = np.flatnonzero(~(spent <= most))
    if len(over):
      client = int(over[0])
      epsilon = rounding.up(float(tradeoff.epsilon_of(math.sqrt(spent[client]), self.delta)))
      raise ValueError(
        f'{len(over)} clients have spent more before than they may in all. Client {client} has spent ε = {epsilon} at '
        f'delta={self.delta:g}, and its bound is {bounds[client]:g}. Give it a bound that covers that: a larger '
        'epsilon, or own_epsilon.'
      )
    if not spent.any():
      object.__setattr__(self, 'spent_before', None)

  def _check_clip(self) -> None:
    if self.clip is None:
      return
    if not isinstance(self.clip, clip_rules.ClipRule):
      raise TypeError(f'clip must be a rule of quap_tff.mechanisms.parts.clip_rules, found {self.clip!r}.')
    if self.clip.releases_exact_norms or self.clip.uses_current_norms:
      raise ValueError(
        f"Clip rule {self.clip!r} clips by an un-noised function of the clients' update norms, which no ε covers. "
        'Use fixed, or private_quantile with count_stddev > 0.'
      )
    # Not a subclass either: it could let the norm follow anything.
    if type(self.clip) not in (clip_rules.Fixed, clip_rules.PrivateQuantile, clip_rules.Unclipped):
      raise ValueError(
        f'Clip rule {self.clip!r} is not one that a certificate describes. Use fixed, or private_quantile with '
        'count_stddev > 0.'
      )
    if math.isinf(self.clip.initial_norm):
      raise ValueError(
        'Without a clipping norm nothing bounds what one client adds, and no noise covers it. Use clip rule fixed or '
        'private_quantile.'
      )
    checks.number('clipping norm', self.clip.initial_norm, at_most=LARGEST_CLIP)
    stddev = self.clip.count_noise_multiplier / 2
    if math.isfinite(stddev) and not integers.takes_count(stddev):
      raise ValueError(
        f'count_stddev must be in the range of noise in integers, {integers.COUNT_RANGE}, found {stddev:g}.'
      )
    if not self.count_cost < self._limit_of(self.epsilon):
      raise ValueError(
        f'epsilon={self.epsilon} at delta={self.delta} is too small to pay for one noised count of the '
        'private quantile. Give the counts more noise (count_stddev), or use a fixed clipping norm.'
      )

  @abc.abstractmethod
  def settled(
    self,
    cohorts: Sequence[array_types.Ids],
    averaging: postprocessing.Averaging = postprocessing.LastIterate(),
    min_separation: Optional[int] = None,
  ) -> Settled:
    """The mechanism, whose noise and divisor are chosen from a schedule: see `planning` and `held.config`.

    Args:
      cohorts: int[M_t] ids for each of the T planned rounds: the public schedule, or one drawn from a model of it.
      averaging: The average of the iterates. `postprocessing.PlannedAverage` chooses the best of several.
      min_separation: b, if it is promised that two rounds of a client are at least b apart, and that every round
        releases. A client is then in at most ⌈T/b⌉ rounds. None: the bounds are those of the schedule.

    Raises:
      ValueError: If a cohort does not consist of distinct ids in [0, N), if nobody takes part, if nobody's budget pays
        for a round or for the noised counts of all its rounds, or if the schedule does not keep what is promised.
    """

  @abc.abstractmethod
  def to_mechanism(self) -> Guarantee:
    """The mechanism around this configuration. Raises `ValueError` if anything is left open."""

  def noise_scale(self, round_num: array_types.Numbers) -> array_types.Numbers:
    """f_t >= 1, a public function of t (from 1, a number or a tensor): round t draws noise of f_t·z·C_t.

    A subclass may say another scale, under independent noise. In NumPy and in TensorFlow it must be the same float64.
    """
    del round_num
    return 1.0

  @property
  def limit(self) -> Union[float, np.ndarray]:
    """The most μ² that each client may spend, after what it has spent before: a number or float64[N]."""
    limits: Union[float, np.ndarray] = self._limit_of(self.epsilon)
    if self.own_epsilon is not None:
      limits = np.array([self._limit_of(own) for own in self.own_epsilon], np.float64)
    return limits if self.spent_before is None else privacy_filter.left_of(limits, self.spent_before.mu_squared)

  @property
  def holds_noise(self) -> bool:
    """Whether clients hold the noise, because nobody trusts the server."""
    return self.trust == 'secure_sum'

  def _limit_of(self, epsilon: float) -> float:
    """The largest μ² of a client with this ε. A part of ε and δ is kept for what rounding costs, now and before."""
    kept = 1 - integers.RESERVE * (1 if self.spent_before is None else 2)
    return privacy_filter.limit_of(epsilon * kept, self.delta * kept)

  @property
  def count_cost(self) -> float:
    """1/c² of the noised count; 0 if there is none."""
    if self.clip is None:
      return 0.0
    share = 1 / self.clip.count_noise_multiplier
    return share * share

  @property
  def counts_norms(self) -> bool:
    """Whether each round releases a noised count of norms."""
    return self.clip is not None and math.isfinite(self.clip.count_noise_multiplier)

  def clipped(self: _Config, num_rounds: int) -> _Config:
    """The configuration with a clipping norm for this number of rounds, if none is given."""
    if self.clip is not None:
      return self
    return dataclasses.replace(self, clip=clip_rules.Fixed(clip_rules.public_norm(num_rounds)))

  @property
  def most_releases(self) -> int:
    """How many releases the account of rounding covers."""
    return self.num_rounds if self.num_rounds is not None else _OPEN_ENDED

  @property
  def reserve_for_rounding(self) -> slacks.Slack:
    """The share of ε and δ that a run keeps for rounding."""
    return slacks.Slack(integers.RESERVE * self.smallest_epsilon, integers.RESERVE * self.delta)

  @property
  def slack_before(self) -> slacks.Slack:
    """The share of ε and δ for rounding in all that was released before: as much as a run may at most have."""
    return slacks.Slack() if self.spent_before is None else self.reserve_for_rounding

  @property
  def smallest_epsilon(self) -> float:
    """The smallest bound of a client."""
    return min(self.own_epsilon or (self.epsilon,))

  @property
  def facts(self) -> mechanism.Facts:
    unsparse = ''
    if not self.correlation.is_settled or self.correlation.num_buffers:
      unsparse = 'a round would take back noise of other weights than those it updates'
    return mechanism.Facts(
      delta=self.delta,
      public_metrics=mechanism.PUBLIC_METRICS | mechanism.PUBLIC_NORMS | _PUBLIC_METRICS,
      unsparse=unsparse,
      noise_follows='plan',
      divisor=self.divisor,
      correlation=self.correlation,
      trust=self.trust,
      is_certified=True,
      game='certified',
      noise_seed=self.noise_seed,
      is_saved_before_release=True,
      noise_note='',
    )


@dataclasses.dataclass(frozen=True)
class PublicCohortsConfig(GuaranteeConfig):
  """The configuration of a certified mechanism whose cohorts everyone may know: its state counts who came.

  Attributes:
    participation: How the participation rates are computed.
  """

  participation: participations.ParticipationConfig = participations.ParticipationConfig()


class Guarantee(mechanism.Configured):
  """The part that both certified mechanisms share: a configuration in which nothing is left open, and its account.

  Attributes:
    needed: The fields of the configuration that must be given.
  """

  config: GuaranteeConfig
  needed: ClassVar[Sequence[str]] = ('noise_multiplier', 'divisor')

  def __post_init__(self) -> None:
    super().__post_init__()
    config = self.config
    if config.clip is None:
      raise ValueError(
        'A mechanism needs a clipping norm, found clip=None. Give clip, such as clip_rules.Fixed(1.0), or num_rounds, '
        'from which `settled` chooses it.'
      )
    for name in self.needed:
      if getattr(config, name) is None:
        raise ValueError(f'A mechanism needs its {name}, found None. Give it, or let `settled` choose it.')
    if not config.correlation.is_settled:
      raise ValueError(
        f'A mechanism needs its noise in numbers, found {config.correlation!r}. Give correlation=Independent() or one '
        'with all of its numbers, such as Ar1(0.9), or let `settled` choose them from a schedule.'
      )

  @property
  def noise_multiplier(self) -> float:
    """z."""
    assert self.config.noise_multiplier is not None
    return self.config.noise_multiplier

  @property
  def divisor(self) -> float:
    """D."""
    assert self.config.divisor is not None
    return self.config.divisor

  @property
  def clip(self) -> clip_rules.ClipRule:
    """C_t."""
    assert self.config.clip is not None
    return self.config.clip

  @property
  def limit(self) -> Union[float, np.ndarray]:
    return self.config.limit

  @property
  def spent_before(self) -> Optional[Sequence[float]]:
    return None if self.config.spent_before is None else self.config.spent_before.mu_squared

  @property
  def facts(self) -> mechanism.Facts:
    return self.config.facts

  @property
  def prices(self) -> privacy_filter.Prices:
    """The price of taking part in a round if `noise_scale` is 1."""
    return privacy_filter.Prices(
      limit=self.config.limit,
      noise_multiplier=self.noise_multiplier,
      count_cost=self.config.count_cost,
      correlation=self.config.correlation,
    )

  def prices_of(
    self, prices: privacy_filter.Prices, client_ids: array_types.Array, round_num: array_types.Numbers
  ) -> privacy_filter.Prices:
    """The prices of round t for some clients, int64[M], by `noise_scale`."""
    own = privacy_filter.prices_of(prices, client_ids)
    return own._replace(noise_multiplier=own.noise_multiplier * self.config.noise_scale(round_num))

  @abc.abstractmethod
  def simulated(
    self, cohorts: Sequence[array_types.Ids], kept: Sequence[Optional[np.ndarray]] = ()
  ) -> list[PlannedRound]:
    """The weights under a schedule, round by round.

    Args:
      cohorts: int[M_t] ids for each round.
      kept: float[M_t], the weights that a run really gave, from which its accounts go on; None, or no entry, for a
        round in which they are not known. Without them, a last bit in which two processors differ would grow from round
        to round where a budget is nearly spent.
    """

  def allowed(self, cohorts: Sequence[array_types.Ids], kept: Sequence[np.ndarray], cohort: np.ndarray) -> np.ndarray:
    """The weights that clients would have in the next round, float32[M].

    Args:
      cohorts: int[M_t], the clients of each round so far.
      kept: float[M_t], their weights.
      cohort: int64[M], those who could come.
    """
    return self.simulated([*cohorts, cohort], kept)[-1].weights

  def check_colluders(self, colluders: Sequence[int], attendance_is_known: bool) -> None:
    """Raises `ValueError` if there is no ε against so many clients that tell the server their noise."""
    del attendance_is_known
    if colluders:
      raise ValueError('Colluders are clients that hold noise: give them with trust=secure_sum only.')

  def grid(self, num_weights: int) -> integers.Grid:
    """The grid of integers for an update of `num_weights` entries.

    Raises:
      ValueError: If integers could overflow.
    """
    grid = self._grid(num_weights)
    grid.check_sum(self.num_clients)
    return grid

  @abc.abstractmethod
  def _grid(self, num_weights: int) -> integers.Grid: ...

  @property
  def kept_slack(self) -> slacks.Slack:
    return self._with_slack_before(self.config.reserve_for_rounding)

  def _with_slack_before(self, own: slacks.Slack) -> slacks.Slack:
    return slacks.Slack(own.epsilon + self.config.slack_before.epsilon, own.delta + self.config.slack_before.delta)

  def cost(
    self, cohort: np.ndarray, weights: np.ndarray, clipping_norm: float, round_num: int
  ) -> mechanism.RoundRecord:
    """The cost of round t, from 1, with these weights w_i(t), float64[M].

    Its budgets are the ε that the round, taken alone, costs each client at the total δ. So the ledger's Σε at k·δ is
    proven but loose, by basic composition.
    """
    noise_multiplier = self.noise_multiplier * float(self.config.noise_scale(round_num))
    return mechanism.RoundRecord(
      cohort=cohort,
      budgets=tradeoff.budgets_of(self._mu(weights, noise_multiplier), self.config.delta),
      weights=weights,
      noise_multiplier=noise_multiplier,
      count_noise_multiplier=self.clip.count_noise_multiplier,
      clipping_norm=clipping_norm,
    )

  def _mu(self, weights: np.ndarray, noise_multiplier: float) -> np.ndarray:
    """The μ of a round, taken alone, for these weights."""
    return np.sqrt((weights / noise_multiplier) ** 2 + self.config.count_cost * (weights > 0))


class PublicCohorts(Guarantee):
  """A certified mechanism whose cohorts everyone may know: each round costs those who came, by their weights."""

  config: PublicCohortsConfig

  def seen(self, state: mechanism.State) -> dict[str, Any]:
    return {'weights': state.weights}

  def spent(self, state: mechanism.State, metrics: mechanism.Measurements, cohort: np.ndarray) -> mechanism.RoundRecord:
    weights = np.asarray(state.weights)[cohort].astype(np.float64)
    return self.cost(cohort, weights, float(metrics['clipping_norm']), int(state.round))

  def planned(self, cohorts: Sequence[np.ndarray]) -> list[mechanism.RoundRecord]:
    clip = float(np.float32(self.clip.initial_norm))  # As the rounds measure it.
    rounds = enumerate(zip(cohorts, self.simulated(cohorts)), 1)
    return [self.cost(cohort, one.weights.astype(np.float64), clip, number) for number, (cohort, one) in rounds]
