"""The certified mechanism without a trusted server, as a value, and how it is planned. `rounds.py` has its rounds.

Weights, scale and memory of the noise are chosen from a public schedule alone:

    maximize over λ   J = Σ_t v_t·Σ_{i∈S_t} w_i / (s·√(vᵀΣv))      with w_i = s·√(limit_i/q_i),   max_i w_i = 1

J is the signal-to-noise ratio of what is published, as in `quap_tff.mechanisms.certified.planning`, with the covariance
Σ of `quap_tff.mechanisms.noise.held_noise`. q_i is client i's μ_i² at s = 1 with weights of 1 in all of its rounds, so
w_i spends its limit evenly. A smaller s gives the same J, and a larger s a smaller one.

**Dropout.** If each client that is drawn stays away with probability p, q_i is random. The plan assumes that client i
itself always comes, because in a large population some clients do. For everyone else it takes Σ̄, the mean of Σ. To
first order, q_i is then a sum over who comes. The plan adds a margin to q_i that follows from the deviation and skew of
this sum. In about one run in a hundred some client exceeds its margin, and in more where cohorts are small. The filter
guards the limits whatever happens: the margin only keeps it from refusing rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import NamedTuple, Optional

import numpy as np

from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.common import lazy
from quap_tff.common.numbers import slack as slacks
from quap_tff.mechanisms import mechanism
from quap_tff.mechanisms.certified import guarantee
from quap_tff.mechanisms.certified import privacy_filter
from quap_tff.mechanisms.noise import correlation as correlations
from quap_tff.mechanisms.noise import held_noise
from quap_tff.mechanisms.noise import integer_noise
from quap_tff.mechanisms.noise import integers
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import postprocessing

rounds = lazy.module('quap_tff.mechanisms.held.rounds')
special = lazy.module('scipy.special')

# The least standard deviation of a client's noise in grid steps is the larger of the first and, for D draws, √D times
# the second: what discreteness costs is the number of draws over the square of the steps.
_SHARE_STEPS, _SHARE_STEPS_BY_DRAW = 2.0**20, 16.0
# SecAgg+ over Flower sums modulo 2³². Where a cohort's sums do not fit, the grid is coarser, by a power of two up to
# this one. The account has the cost.
_LARGEST_SUM, _COARSEST = 2**32, 2**6
# The variance of a client's noise in one release, per s²: at least (1-λ)² + λ.
_LEAST_SHARE = 0.75
# In about this share of runs some client's loss exceeds what is planned for it.
_EXCEEDED = 0.01
# Weights are lower by this share than limits allow, because accounts are rounded up.
_ROOM = 2.0**-26
# In place of 0, where nobody else's presence matters.
_NOTHING = 1e-60
# How many clients' margins are computed at once.
_BLOCK = 256


class _Plan(NamedTuple):
  """The plan for one decay.

  Attributes:
    objective: J.
    average: Which of the averages is to be published.
    noise_multiplier: s, the scale of one client's noise in units of the clipping norm.
    weights: float64[N] in [0, 1], the weight of each client in each of its rounds; 0 if it has none.
    divisor: The mean, over the rounds of the schedule, of the expected sum of weights.
  """

  objective: float
  average: int
  noise_multiplier: float
  weights: np.ndarray
  divisor: float


@dataclasses.dataclass(frozen=True)
class HeldConfig(guarantee.PublicCohortsConfig):
  """The configuration of the certified mechanism in which clients hold the noise, and the server sees their sum alone.

  Attributes:
    correlation: How a client takes back its own noise; `HeldNoise(0.0)` for independent noise.
    dropout: The share of clients that are drawn and do not send, for which the plan leaves room.
    threshold: The smallest share of the announced clients with which the secure sum opens, in (0, 1]: give the one of
      the secure sum's protocol, if it has one. Clients then add so much noise that the account holds whichever of them
      drop out. Only with independent noise. None: the secure sum must open for all announced clients, or for nobody,
      and the server must tell the truth about who they are.
    planned_weights: float[N] in [0, 1], the weight of each client in each of its rounds. None: to be chosen from a
      schedule.
    most_clients: The size of the largest cohort. None: that of a schedule.
  """

  trust = 'secure_sum'

  correlation: correlations.HeldNoise = correlations.HeldNoise()
  dropout: float = checks.number_field('dropout', 0.0, at_least=0, at_most=0.9)
  threshold: Optional[float] = checks.number_field('threshold', None, above=0, at_most=1)
  planned_weights: Optional[tuple[float, ...]] = None
  most_clients: Optional[int] = checks.integer_field('most_clients', None, at_least=1)

  def __post_init__(self) -> None:
    super().__post_init__()
    if not isinstance(self.correlation, correlations.HeldNoise):
      raise ValueError(
        f'With trust=secure_sum, clients hold the noise, and no server has the memory of {self.correlation!r}. Use '
        'correlation=HeldNoise(), or HeldNoise(0.0) for independent noise.'
      )
    if self.clip is not None and not isinstance(self.clip, clip_rules.Fixed):
      raise ValueError(
        f'With trust=secure_sum, nobody sees the norms that {self.clip!r} follows. Use a fixed clipping norm.'
      )
    if self.threshold is not None and self.correlation.is_settled and self.correlation.decay:
      raise ValueError(
        f'A threshold needs noise that is independent from round to round, found {self.correlation!r}: if a server '
        'chooses who drops out, it chooses which noise is taken back. Use correlation=HeldNoise(0.0), or leave '
        'threshold out.'
      )
    self._check_planned_weights()

  def _check_planned_weights(self) -> None:
    if self.planned_weights is None:
      return
    weights = np.asarray(self.planned_weights, np.float64)
    if weights.shape != (self.num_clients,) or not ((weights >= 0) & (weights <= 1)).all():
      raise ValueError(f'planned_weights must be float[{self.num_clients}] in [0, 1].')
    if self.spent_before is not None:  # Who has nothing left sends nothing, whatever a plan for others gives it.
      weights = np.where(self.limit > 0, weights, 0.0)
    object.__setattr__(self, 'planned_weights', tuple((weights + 0.0).tolist()))  # -0.0 is 0.0.

  @property
  def sums_condition(self) -> str:
    """The condition on secure sums under which the account holds against the server, a clause (theorem 5)."""
    if self.threshold is None:
      return (
        'each secure sum opens for all clients with a weight that were announced for it, or for nobody, and the '
        'server tells all clients the truth about every round and about who is in its sum'
      )
    return (
      f'each secure sum opens for at least a share of {self.threshold} of the clients with a weight that were '
      'announced for it, or for nobody, and all who are in it were told the same cohort'
    )

  @property
  def facts(self) -> mechanism.Facts:
    return super().facts._replace(trust_note=f'The figures hold against the server, too, if {self.sums_condition}.')

  def settled(
    self,
    cohorts: Sequence[array_types.Ids],
    averaging: postprocessing.Averaging = postprocessing.LastIterate(),
    min_separation: Optional[int] = None,
  ) -> guarantee.Settled:
    """The bounds of a separation play no part here. Where weights are planned, only an average is left to be chosen."""
    if self.planned_weights is not None and self.most_clients is not None:
      largest = max(map(len, cohorts), default=0)
      if largest > self.most_clients:
        raise ValueError(
          f'A round of the schedule has {largest:,} clients, but most_clients={self.most_clients:,}, for which the '
          'secure sum and the account of rounding are made. Plan anew from this schedule, with a quap_tff.HeldConfig.'
        )
      if len(averages := averaging.candidates(len(cohorts))) == 1:
        return guarantee.Settled(self.to_mechanism(), averages[0])
    checked = checks.schedule(cohorts, self.num_clients)
    averages = averaging.candidates(len(checked))
    limits = np.broadcast_to(self.limit, [self.num_clients])
    # Who has nothing left sends nothing, and so adds no noise.
    releases = [ids[limits[ids] > 0] for ids in checked]
    if not any(map(len, releases)):
      raise ValueError(guarantee.NOTHING_LEFT)
    shares = [postprocessing.kept_shares(average.shares(len(releases))) for average in averages]
    decay = 0.0 if self.threshold is not None else self.correlation.decay
    # A decay is chosen by mean costs, which are far cheaper to compute than their margins.
    decays = correlations.DECAYS if decay is None else (decay,)
    decay = max(decays, key=lambda one: self._plan_for(releases, limits, one, shares, has_margin=False).objective)
    chosen = self._plan_for(releases, limits, decay, shares, has_margin=True)
    weights = chosen.weights.astype(np.float32)
    weights = np.where(weights > chosen.weights, np.nextafter(weights, np.float32(0)), weights)
    divisor = chosen.divisor if self.divisor is None else self.divisor
    settled = dataclasses.replace(
      self.clipped(len(releases)),
      noise_multiplier=chosen.noise_multiplier,
      correlation=correlations.HeldNoise(float(decay)),
      divisor=divisor,
      num_rounds=len(releases),
      planned_weights=tuple(weights.tolist()),
      most_clients=max(map(len, checked)),
    )
    return guarantee.Settled(settled.to_mechanism(), averages[chosen.average])

  def to_mechanism(self) -> Held:
    return Held(self)

  def _plan_for(
    self,
    cohorts: Sequence[np.ndarray],
    limits: np.ndarray,
    decay: float,
    shares: Sequence[np.ndarray],
    has_margin: bool,
  ) -> _Plan:
    """The best plan for one decay. `shares` are the v_t of each average, float64[T]."""
    released = [len(cohort) > 0 for cohort in cohorts]
    cohorts = [cohort for cohort in cohorts if len(cohort)]
    members = np.unique(np.concatenate(cohorts))
    covariance = held_noise.covariance(cohorts, decay, self.dropout)
    margin = self.dropout if has_margin else 0.0
    costs = _costs(cohorts, members, covariance, decay, margin)
    ratios = np.sqrt(limits[members] / costs)  # w_i/s
    multiplier = float(1 / ratios.max())
    weights = np.zeros(self.num_clients)
    weights[members] = np.minimum(ratios * multiplier, 1.0) * (1 - _ROOM)
    sums = (1 - self.dropout) * np.array([weights[cohort].sum() for cohort in cohorts])

    def ratio(v: np.ndarray) -> float:
      """The signal-to-noise ratio of an average of iterates with these shares."""
      return float(v @ sums / (multiplier * np.sqrt(v @ covariance @ v)))

    objective, average = max((ratio(v[released]), -index) for index, v in enumerate(shares))
    return _Plan(objective, -average, multiplier, weights, float(sums.mean()))


@dataclasses.dataclass(frozen=True)
class Held(guarantee.PublicCohorts):
  """The certified mechanism in which clients hold the noise. `HeldConfig.settled` makes it.

  Attributes:
    config: The configuration, in which nothing is left open.
  """

  config: HeldConfig = dataclasses.field(metadata={checks.KEYS_IN_PLACE: True})
  needed = ('noise_multiplier', 'divisor', 'num_rounds', 'planned_weights', 'most_clients')

  @functools.cached_property
  def planned_weights(self) -> np.ndarray:
    """float32[N], w_i of each client in each of its rounds."""
    return np.asarray(self.config.planned_weights, np.float32)

  @property
  def most_clients(self) -> int:
    """The size of the largest cohort."""
    assert self.config.most_clients is not None
    return self.config.most_clients

  def check_colluders(self, colluders: Sequence[int], attendance_is_known: bool) -> None:
    if colluders and max(colluders) >= self.num_clients:
      raise ValueError(
        f'There are {self.num_clients:,} clients, so at most {self.num_clients - 1:,} can collude against one of '
        f'them, found {max(colluders):,}.'
      )
    if colluders and self.config.threshold is not None:
      raise ValueError(
        'An ε against colluders is not known for a plan with a threshold: the server also chooses who drops out. Leave '
        'one of them out.'
      )
    if colluders and not attendance_is_known:
      raise ValueError(
        'An ε against colluders needs rounds whose clients are known before the run. Give attendance, or leave '
        'colluders out.'
      )

  def simulated(
    self, cohorts: Sequence[array_types.Ids], kept: Sequence[Optional[np.ndarray]] = ()
  ) -> list[guarantee.PlannedRound]:
    """A round that somebody's budget does not pay for is not released."""
    account = held_noise.opened(self.num_clients, self.noise_multiplier, self.config.correlation.chosen)
    rounds, limit = list[guarantee.PlannedRound](), self.config.limit
    for index, cohort in enumerate(cohorts):
      ids = np.asarray(cohort, np.int64)
      after = self._after(account, ids)
      is_released = after.is_within(limit) and index < self.config.most_releases
      if index < len(kept) and (own := kept[index]) is not None:
        is_released = bool((own > 0).any())
      if is_released:
        account = after
      weights = self.planned_weights[ids] * np.float32(is_released)
      rounds.append(
        guarantee.PlannedRound(weights, float(np.max(privacy_filter.share_of(limit, account.spent), initial=0.0)))
      )
    return rounds

  def _after(self, account: held_noise.Account, ids: np.ndarray) -> held_noise.Account:
    """The account after a round in which these clients, int64[M], have their weights."""
    weights = self.planned_weights[ids]
    return account.after(ids[weights > 0], weights[weights > 0].astype(np.float64))

  def allowed(self, cohorts: Sequence[array_types.Ids], kept: Sequence[np.ndarray], cohort: np.ndarray) -> np.ndarray:
    """The weights of a cohort in the next round: 0 for clients whose budgets do not pay for it.

    Nobody has one if the budget of somebody outside the cohort does not pay for what the round takes back.
    """
    account = held_noise.opened(self.num_clients, self.noise_multiplier, self.config.correlation.chosen)
    for ids, weights in zip(cohorts, kept):
      if (weights > 0).any():
        account = self._after(account, np.asarray(ids, np.int64))
    weights = self.planned_weights[cohort]
    # With fewer others there is less noise, so those who are left are looked at again.
    while (weights > 0).any():
      is_over = self._after(account, cohort[weights > 0]).spent > self.config.limit
      if not is_over.any():
        break
      leaves = is_over[cohort] & (weights > 0)
      if not leaves.any():
        return np.zeros_like(weights)  # Only somebody outside the cohort cannot pay.
      weights = np.where(leaves, np.float32(0), weights)
    return weights

  def cost_of_announced(self, announced: np.ndarray, anybody_came: bool, round_num: int) -> mechanism.RoundRecord:
    """The cost of a round, no matter which of the announced clients came (theorem 5).

    With a threshold, the server chooses who drops out, and may have seen a sum that it says it has not. So all who were
    announced are charged, by the noise of the threshold's share of them. Without one, a sum opens for all or nobody.

    Args:
      announced: int64[M], distinct ids.
      anybody_came: Whether a sum was opened.
      round_num: t, from 1.
    """
    is_charged = anybody_came or self.config.threshold is not None
    clip = float(np.float32(self.clip.initial_norm))  # As rounds measure it.
    return self.cost(announced, self.planned_weights[announced].astype(np.float64) * is_charged, clip, round_num)

  def _grid(self, num_weights: int) -> integers.Grid:
    smallest = min(stddev for stddev in self.share_stddevs if stddev)
    steps = max(_SHARE_STEPS, _SHARE_STEPS_BY_DRAW * math.sqrt(num_weights * self.config.most_releases))
    finest = grid = integers.Grid(smallest, num_weights, smallest_stddev=steps)
    while 2 * self.most_clients * self.share_bound(grid) >= _LARGEST_SUM:
      steps /= 2
      if steps < finest.smallest_stddev / _COARSEST:
        return finest
      grid = integers.Grid(smallest, num_weights, smallest_stddev=steps)
    return grid

  def share_bound(self, grid: integers.Grid) -> int:
    """The largest absolute value of an entry that a client sends, in grid steps: of its update and its noise."""
    fresh, taken_back = (one * grid.steps for one in self.share_stddevs)
    return grid.steps + math.ceil(integer_noise.REACH * (fresh + 2 * taken_back)) + 3

  def slack(self, num_weights: int) -> slacks.Slack:
    grid, config = self.grid(num_weights), self.config
    largest = max(config.epsilon, slacks.LARGEST_EPSILON)
    more = held_noise.discreteness_slack(
      *(largest, config.delta),
      noise_steps=self.share_scale * grid.steps,
      decay=config.correlation.chosen,
      num_releases=config.most_releases,
      num_coordinates=num_weights,
      num_participations=self._most_participations,
    )
    return self._with_slack_before(grid.slack(config.smallest_epsilon, largest, config.delta, self._draws(grid), more))

  def _draws(self, grid: integers.Grid) -> list[tuple[float, int]]:
    """The draws of all releases, as `Grid.slack` takes them. A client in a new chain draws twice with the σ of W."""
    count = grid.num_weights * self._most_participations
    return [(stddev * grid.steps, uses * count) for stddev, uses in zip(self.share_stddevs, (1, 2)) if stddev]

  @property
  def _most_participations(self) -> int:
    return self.config.most_releases * self.most_clients

  @property
  def share_stddevs(self) -> tuple[float, float]:
    """The standard deviations of V and W, in clipping norms; W is 0 for independent noise."""
    return held_noise.stddevs(self.share_scale, self.config.correlation.chosen)

  @property
  def share_scale(self) -> float:
    """s of noise that clients hold. With a threshold θ, the account has √θ of it, which is left if others drop out."""
    return self.noise_multiplier / math.sqrt(self.config.threshold or 1.0)

  def _mu(self, weights: np.ndarray, noise_multiplier: float) -> np.ndarray:
    return super()._mu(weights, noise_multiplier) / math.sqrt(_LEAST_SHARE)

  def for_model(
    self, specs: mechanism.Specs, layers: mechanism.Layers, learning_rate_fn: mechanism.LearningRateFn = None
  ) -> mechanism.Rounds:
    return rounds.HeldRounds(self, specs, layers)


def _costs(
  cohorts: Sequence[np.ndarray], members: np.ndarray, covariance: np.ndarray, decay: float, dropout: float
) -> np.ndarray:
  """q_i of each client in `members`, float64[P], with room for dropout."""
  here = np.zeros([len(cohorts), len(members)])
  for index, cohort in enumerate(cohorts):
    here[index, np.searchsorted(members, cohort)] = 1.0
  moved = np.linalg.solve(covariance, here)
  costs = (here * moved).sum(axis=0)
  if not dropout:
    return costs
  by_client, fresh = held_noise.histories(cohorts), (1 - decay) ** 2
  begins = np.isin(np.arange(len(by_client.clients)), by_client.starts)[:, np.newaxis]
  quantile, variance = -special.ndtri(_EXCEEDED / len(members)), dropout * (1 - dropout)
  for begin in range(0, len(members), _BLOCK):
    block = slice(begin, begin + _BLOCK)
    x = moved[by_client.rounds, block]
    following = by_client.differences(x)
    before = np.append(np.zeros_like(x[:1]), following[:-1], axis=0)  # x_{t_{r-1}} - x_{t_r} of the same client.
    # What one participation adds to xᵀΣx, and so takes away from q_i.
    change = fresh * x**2 + decay * np.where(begins, following**2, -2 * before * following)
    change *= by_client.clients[:, np.newaxis] != members[block]
    squares = np.maximum((change**2).sum(axis=0), _NOTHING)
    skew = (1 - 2 * dropout) * (change**3).sum(axis=0) / np.sqrt(variance * squares**3)
    deviations = quantile + np.maximum(skew, 0.0) * (quantile**2 - 1) / 6  # Cornish and Fisher's expansion.
    costs[block] *= np.exp(deviations * np.sqrt(variance * squares) / costs[block])
  return costs
