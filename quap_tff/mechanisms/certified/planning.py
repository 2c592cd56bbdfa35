"""Chooses the noise, the divisor and the average of a run before it begins, from its schedule alone.

    z, and whatever else is left open, maximizes  J = Σ_t v_t·Σ_i w_i(t) / (z·‖C⁻ᵀv‖)      subject to the filter

J is the signal-to-noise ratio of what is published. v_t is the share of round t's update that is left in it. The
published average takes iterate s with share a_s. Each later round moves the model by a share `postprocessing.PULL`
towards where training would end. This shrinks what earlier rounds added: v_t = Σ_{s≥t} a_s·(1 - PULL)^(s-t).
Σ_i w_i(t)·C is the most that the clients of a round can add together. z·C·‖C⁻ᵀv‖ is the standard deviation of the noise
that is left in what is published. If the noise is correlated, a part of it has cancelled.

There are two trade-offs. Less noise in each round makes the rounds better, but budgets run out sooner. Correlation
makes noise cancel in part, but each participation affects more releases. The choice uses no client's data.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import math
from typing import Any, Optional

import numpy as np

from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.common.numbers import arrays
from quap_tff.mechanisms.certified import config as configs
from quap_tff.mechanisms.certified import guarantee
from quap_tff.mechanisms.certified import privacy_filter
from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.noise import correlation as correlations
from quap_tff.mechanisms.parts import participation as participations
from quap_tff.mechanisms.parts import postprocessing

# How many noise multipliers are tried for each correlation, and how many for the best correlation.
_FEW_CANDIDATES, _MOST_CANDIDATES = 8, 32
# How many accounts are kept at once while they are tried, about 24 bytes each.
_MOST_ACCOUNTS = 2**21
# The noise is larger by this share than a budget needs, so that rounding does not lower the last weight.
_ROOM = 1e-9
# A larger multiplier is preferred if its J is lower by no more than this share.
_TIE = 1e-6
# A budget so large that it limits nobody.
_NO_LIMIT = 1e30
_TOO_MANY_COUNTS = (
  "The noised counts of each client's planned rounds cost more than epsilon={epsilon:g}. Give the counts more noise "
  '(count_stddev), or choose a fixed clipping norm.'
)


def calibrated(
  config: configs.CertifiedConfig,
  cohorts: Sequence[array_types.Ids],
  averaging: postprocessing.Averaging = postprocessing.LastIterate(),
  min_separation: Optional[int] = None,
) -> guarantee.Settled:
  """The mechanism for a schedule. Arguments and errors are those of `GuaranteeConfig.settled`.

  The noise multiplier, a decay and an average are chosen to maximize J. Other coefficients of correlated noise are
  those of the published objective (`published_noise`) for the bounds on participation. If several noise multipliers are
  equally good, the largest one is chosen. The number of rounds is that of the schedule, and an open clipping norm
  follows from it (`clip_rules.public_norm`). The divisor is the mean sum of weights. For weight rules that need it, the
  number of rounds that each client is planned to be in is counted. If everyone takes part in T rounds with weights of 1
  and independent noise, z = √T/μ_max.
  """
  cohorts = checks.schedule(cohorts, config.num_clients)
  if config.num_rounds is None and cohorts:
    config = dataclasses.replace(config, num_rounds=len(cohorts))
  if config.num_rounds is not None:
    config = config.clipped(config.num_rounds)
  averages = averaging.candidates(len(cohorts))
  has_scales = config.noise_multiplier is not None and config.divisor is not None
  if has_scales and config.correlation.is_settled and len(averages) == 1:
    return guarantee.Settled(_mechanism(config, config.correlation, cohorts), averages[0])
  releases = [cohort for cohort in cohorts if len(cohort)]
  if not releases:
    raise ValueError('Nobody takes part in any of the planned rounds, so no noise and no divisor can be chosen.')
  if config.spent_before is not None:
    members = np.unique(np.concatenate(releases))
    if not np.asarray(config.limit)[members].any():
      raise ValueError(guarantee.NOTHING_LEFT)
  bounds = participation_bounds(releases, config.num_clients, min_separation)
  candidates = config.correlation.candidates(len(releases), *bounds)
  correlation = candidates[0]
  if len(candidates) > 1:
    # A few multipliers tell correlations apart; the best one gets more of them below.
    choices = [_chosen(config, one, cohorts, averages, bounds, _FEW_CANDIDATES) for one in candidates]
    _, best = max(choices, key=lambda choice: choice[0])
    correlation = best.mechanism.config.correlation
  _, settled = _chosen(config, correlation, cohorts, averages, bounds, _MOST_CANDIDATES)
  return settled


def share_of_ceiling(planned: guarantee.Settled, cohorts: Sequence[array_types.Ids]) -> float:
  """The signal-to-noise ratio of what is published, as a share of what no Gaussian mechanism can exceed.

      Σ_t v_t·Σ_i w_i(t) / √(vᵀΣv)  ≤  Σ_i μ_i

  v_t is the share of round t in what is published, without a pull, Σ is the covariance of the noise, and μ_i the
  largest μ of each client that takes part. The bound is that of Cauchy and Schwarz.

  Args:
    planned: From `calibrated`.
    cohorts: int[M_t], the schedule, in which every round has clients.
  """
  mechanism = planned.mechanism
  limits = np.broadcast_to(np.sqrt(mechanism.limit), [mechanism.num_clients])
  # A client without budget is in no round, and a round without clients is left out.
  with_budget = [np.asarray(ids)[limits[ids] > 0] for ids in cohorts]
  cohorts = [ids for ids in with_budget if len(ids)]
  sums = np.array([planned_round.weights.sum(dtype=np.float64) for planned_round in mechanism.simulated(cohorts)])
  # The update of round t is in every iterate from t on.
  published = np.cumsum(planned.averaging.shares(len(cohorts))[::-1])[::-1]
  scales = list(mechanism.noise_multiplier * _scales(mechanism.config, len(cohorts)))
  covariance = mechanism.config.correlation.covariance(cohorts, scales)
  noise = math.sqrt(published @ covariance @ published)
  ceiling = limits[np.unique(np.concatenate(cohorts))].sum()
  return float(published @ sums / noise / ceiling)


def _chosen(
  config: configs.CertifiedConfig,
  correlation: correlations.Correlation,
  cohorts: Sequence[np.ndarray],
  averages: Sequence[postprocessing.Averaging],
  bounds: tuple[int, int],
  num_candidates: int,
) -> tuple[float, guarantee.Settled]:
  """J, and the best noise multiplier and average under a settled correlation."""
  mechanism = _mechanism(config, correlation, cohorts)
  if config.noise_multiplier is not None:
    multipliers = np.array([config.noise_multiplier], np.float64)
  elif config.weights.takes_worst_case:
    multipliers = np.array([_worst_case_multiplier(mechanism, cohorts, bounds)])
  else:
    multipliers = _candidates(mechanism, cohorts, num_candidates)
  sums = _weight_sums(mechanism, multipliers, cohorts)
  choices = []
  for average in averages:
    kept = postprocessing.kept_shares(average.shares(len(cohorts)))
    noise = multipliers * correlation.published_noise(kept * _scales(config, len(cohorts)))
    objective = sums @ kept / noise
    if not np.isfinite(objective).all():
      raise ValueError(f'No signal-to-noise ratio can be computed for {correlation!r} and {average!r}.')
    # Multipliers descend, and `argmax` takes the first that is good enough: the largest of those that tie.
    is_as_good = objective >= objective.max() * (1 - _TIE)
    best = int(np.argmax(is_as_good))
    choices.append((objective[best], best, average))
  objective, best, average = max(choices, key=lambda choice: choice[0])
  if not sums[best].any():
    raise ValueError(f"noise_multiplier={multipliers[best]:g} is so small that nobody's budget pays for a round.")
  divisor = config.divisor
  if divisor is None:
    # Rounds in which nobody has a weight release nothing, and divide nothing.
    own_sums = sums[best]
    divisor = float(own_sums[own_sums > 0].mean())
  config = dataclasses.replace(mechanism.config, noise_multiplier=float(multipliers[best]), divisor=divisor)
  return objective, guarantee.Settled(config.to_mechanism(), average)


def _scales(config: guarantee.GuaranteeConfig, num_rounds: int) -> np.ndarray:
  """f_t of each round, float64[T]."""
  return np.array([config.noise_scale(number) for number in range(1, num_rounds + 1)], np.float64)


def _mechanism(
  config: configs.CertifiedConfig, correlation: correlations.Correlation, cohorts: Sequence[np.ndarray]
) -> configs.Certified:
  """The mechanism with this correlation, and with 1 as its noise multiplier or divisor if that is not given."""
  values: dict[str, Any] = {}
  if config.noise_multiplier is None:
    values['noise_multiplier'] = 1.0
  if config.divisor is None:
    values['divisor'] = 1.0
  releases = [cohort for cohort in cohorts if len(cohort)]
  if config.weights.needs_plan and releases and config.planned_rounds is None:
    rounds = np.bincount(np.concatenate(releases), minlength=config.num_clients)
    weights = [np.ones(len(ids)) for ids in releases]
    squares = correlation.squared_norms(releases, weights, config.num_clients)
    # Overlaps only add to the cost of the rounds alone, so less than that is rounding.
    costs = np.maximum(squares, rounds)
    values['planned_rounds'] = tuple(rounds.tolist())
    values['planned_costs'] = tuple(costs.tolist())
  return dataclasses.replace(config, correlation=correlation, **values).to_mechanism()


def _worst_case_multiplier(
  mechanism: configs.Certified, cohorts: Sequence[np.ndarray], bounds: tuple[int, int]
) -> float:
  """The noise multiplier for the worst case of public bounds.

  Under it, no client exceeds its budget if it takes part at most as often, and at intervals at least as long, as the
  bounds say.
  """
  most, apart = bounds
  left = mechanism.limit - most * mechanism.prices.count_cost
  if not left > 0:
    raise ValueError(_TOO_MANY_COUNTS.format(epsilon=mechanism.config.epsilon))
  num_releases = sum(len(cohort) > 0 for cohort in cohorts)
  largest_norm = mechanism.config.correlation.worst_case(most, apart, num_releases)
  return largest_norm / math.sqrt(left) * (1 + _ROOM)


def participation_bounds(
  releases: Sequence[np.ndarray], num_clients: int, min_separation: Optional[int] = None
) -> tuple[int, int]:
  """(k, b): no client is in more than k of the releases, or in two releases that are less than b apart.

  Both are those of the schedule, or those that follow from a promised separation, which the schedule must keep.
  """
  latest = np.full(num_clients, -len(releases), np.int64)
  apart = len(releases)
  for release, ids in enumerate(releases):
    apart = min(apart, int((release - latest[ids]).min()))
    latest[ids] = release
  most = int(np.bincount(np.concatenate(releases), minlength=num_clients).max())
  if min_separation is None:
    return most, apart
  checks.integer('min_separation', min_separation, at_least=1)
  if most > 1 and apart < min_separation:
    raise ValueError(
      f'Two rounds of a client must be at least {min_separation} apart, by min_separation, and in this schedule a '
      f'client comes again after {apart}. Give a schedule that keeps the separation, or leave min_separation out.'
    )
  most_kept = math.ceil(len(releases) / min_separation)
  return most_kept, min_separation


def _candidates(mechanism: configs.Certified, cohorts: Sequence[np.ndarray], count: int) -> np.ndarray:
  """float64, descending: multipliers at which some client's budget lasts exactly until its last planned round."""
  # One run at z = 1 without limits tells what each client would spend, which z² divides.
  free = mechanism.prices._replace(limit=_NO_LIMIT, noise_multiplier=1.0, count_cost=0.0)
  members, rounds = np.unique(np.concatenate(cohorts), return_counts=True)
  costs = np.zeros(len(members))
  for ids, (_, spent) in zip(cohorts, _run(mechanism, free, cohorts)):
    costs[np.searchsorted(members, ids)] = spent
  left = privacy_filter.prices_of(mechanism.prices, members).limit - rounds * mechanism.prices.count_cost
  reachable = (costs > 0) & (left > 0)
  if not reachable.any():
    raise ValueError(_TOO_MANY_COUNTS.format(epsilon=mechanism.config.epsilon))
  exact = np.unique(np.sqrt(costs[reachable] / left[reachable]))
  # So many of them, evenly by rank.
  ranks = np.unique(np.linspace(0, len(exact) - 1, count).round().astype(int))
  with_room = exact[ranks] * (1 + _ROOM)
  within = np.clip(with_room, guarantee.SMALLEST_MULTIPLIER, guarantee.LARGEST_MULTIPLIER)
  return np.unique(within)[::-1]


def simulated(
  mechanism: configs.Certified, cohorts: Sequence[array_types.Ids], kept: Sequence[Optional[np.ndarray]] = ()
) -> list[guarantee.PlannedRound]:
  """The rounds of a schedule, without updates; `guarantee.Guarantee.simulated` says more."""
  rounds, largest, prices = [], 0.0, mechanism.prices
  for ids, (weights, spent) in zip(cohorts, _run(mechanism, prices, cohorts, kept)):
    limit = privacy_filter.prices_of(prices, np.asarray(ids, np.int64)).limit
    shares = privacy_filter.share_of(limit, spent)
    # Python's `max` would lose a NaN.
    largest = np.maximum(largest, shares.max(initial=0.0))
    rounds.append(guarantee.PlannedRound(weights, float(largest)))
  return rounds


def _weight_sums(mechanism: configs.Certified, multipliers: np.ndarray, cohorts: Sequence[np.ndarray]) -> np.ndarray:
  """Σ_i w_i(t) for each of Z noise multipliers, float64[Z, T]."""
  sums = np.zeros([len(multipliers), len(cohorts)])
  members = min(mechanism.config.num_clients, sum(map(len, cohorts)))
  at_once = max(1, _MOST_ACCOUNTS // members)
  for start in range(0, len(multipliers), at_once):
    rows = slice(start, start + at_once)
    prices = mechanism.prices._replace(noise_multiplier=multipliers[rows, np.newaxis])
    for index, (weights, _) in enumerate(_run(mechanism, prices, cohorts)):
      sums[rows, index] = weights.sum(axis=1, dtype=np.float64)
  return sums


def _run(
  mechanism: configs.Certified,
  prices: privacy_filter.Prices,
  cohorts: Sequence[array_types.Ids],
  kept: Sequence[Optional[np.ndarray]] = (),
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Yields the weights of each round's cohort and what it has spent: [M], or [Z, M] if prices have Z noise multipliers.

  The accounts go on from the weights in `kept`, where there are any, and from the mechanism's own otherwise.
  """
  config = mechanism.config
  # Accounts are kept for those who take part: of a million clients, most may never do.
  cohorts = [np.asarray(ids, np.int64) for ids in cohorts]
  members = np.unique(np.concatenate(cohorts)) if cohorts else np.zeros(0, np.int64)
  participation = participations.initial_state(config.participation, len(members))
  leading = np.shape(prices.noise_multiplier)[:1]
  accounts = privacy_filter.opened(len(members), prices.correlation.num_buffers, leading)
  release = np.zeros([*leading, 1], np.int64) if leading else np.int64(0)
  for index, client_ids in enumerate(cohorts):
    round_num = index + 1
    ids = np.searchsorted(members, client_ids)
    participation = participations.next_state(config.participation, participation, ids, round_num)
    before = privacy_filter.accounts_of(accounts, ids)
    own_prices = mechanism.prices_of(prices, client_ids, round_num)
    cohort_participation = participations.for_clients(participation, ids)
    view = round_view(mechanism, own_prices, cohort_participation, before, release, round_num, client_ids)
    asked = config.weights.weights(view)
    weights, own = privacy_filter.spend(own_prices, before, release, view.rounds_left, asked)
    if index < len(kept) and kept[index] is not None:
      own = privacy_filter.charged(own_prices, before, release, view.rounds_left, kept[index])
    privacy_filter.put(accounts, ids, own)
    # A round in which nobody has a weight releases nothing, for each multiplier by itself.
    release = release + np.any(weights > 0, axis=-1, keepdims=bool(leading))
    yield weights, own.spent


def round_view(
  mechanism: configs.Certified,
  prices: privacy_filter.Prices,
  participation: array_types.Structure,
  accounts: privacy_filter.Accounts,
  release: array_types.Numbers,
  round_num: array_types.Numbers,
  client_ids: array_types.Array,
) -> weight_rules.RoundView:
  """The facts that a weight rule gets to know about a round.

  Args:
    mechanism: The mechanism.
    prices: The prices of the round for its cohort.
    participation: The participation state of the cohort, this round included.
    accounts: The accounts of the cohort before the round.
    release: How many releases there have been.
    round_num: t, from 1.
    client_ids: int64[M], the cohort.
  """
  config, planned = mechanism.config, None
  if config.weights.needs_plan:
    rounds = np.asarray(config.planned_rounds, np.int64)
    # Under independent noise a round of weight 1 costs 1.
    costs = rounds if config.planned_costs is None else config.planned_costs
    planned = (arrays.take(rounds, client_ids), arrays.take(np.asarray(costs, np.float64), client_ids))
  budget_shares: array_types.Numbers = 1.0
  if config.own_epsilon is not None:
    limits = np.asarray(mechanism.limit)
    budget_shares = arrays.take(limits / limits.max(), client_ids)
  return weight_rules.RoundView(
    prices=prices,
    standing=privacy_filter.standing(prices, accounts, release),
    rates=participations.rates(config.participation, participation, round_num),
    counts=participation['counts'],
    round_num=participations.counted_rounds(config.participation, round_num),
    rounds_left=config.rounds_left(round_num),
    in_warmup=participations.in_warmup(config.participation, round_num),
    planned=planned,
    budget_shares=budget_shares,
  )
