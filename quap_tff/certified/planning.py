"""Noise and divisor of a run before it begins, from its schedule alone.

    z maximizes  J(z) = 1/T · Σ_t Σ_i w_i(t) / z      subject to the filter

J is the mean over the planned rounds of a round's signal to noise: Σ_i w_i(t)·C is the most that clients can add
together, z·C the noise on it; a round to which nobody may add anything any more counts with zero. Less noise makes
rounds better and lets budgets run out sooner. With weights of 1, and but for a budget's last, partial round, J is
A/z + B·z between any two z at which a client's budget lasts exactly to the end of its rounds, hence largest at one of
those; and these are what is tried, for all rules.
"""

import dataclasses
import math
from typing import Any, List, Sequence

import numpy as np

from quap_tff import arrays
from quap_tff import participation as participations
from quap_tff.certified import config as configs
from quap_tff.certified import privacy_filter
from quap_tff.certified import weight_rules

_MOST_CANDIDATES = 32
# Relative: noise beyond what a budget asks for exactly, so that rounding does not lower the last weight.
_ROOM = 1e-9
# Relative: how much of J the larger of two multipliers may give away.
_TIE = 1e-6


def calibrated(config: configs.CertifiedConfig, cohorts: Sequence[Any]) -> configs.CertifiedConfig:
  """The configuration with what it leaves open settled from a schedule.

  That is the noise multiplier z that maximizes J, the expected sum of weights as the divisor, and for weight rules that
  need it the number of rounds that each client is planned to be in. For T rounds with everyone and weights of 1,
  z = √T/μ_max. Of several z that are equally good, the largest. Time is that of T rounds' plans; memory some 32 float64
  for each of N clients.

  Args:
    config: The mechanism; what it gives itself stays.
    cohorts: int[M_t] ids for each of the T planned rounds: the public schedule, or one drawn from the model of it.

  Raises:
    ValueError: If nobody takes part, or nobody's budget pays for a round or for the noised counts of all its rounds.
  """
  cohorts = [np.asarray(cohort, np.int64) for cohort in cohorts]
  if config.is_calibrated:
    return config
  if not any(len(cohort) for cohort in cohorts):
    raise ValueError('Nobody takes part in any of the planned rounds: there is no noise and no divisor to choose.')
  if config.weights.needs_plan and config.planned_rounds is None:
    config = dataclasses.replace(
        config, planned_rounds=np.bincount(np.concatenate(cohorts), minlength=config.num_clients)
    )
  if config.noise_multiplier is not None:
    multipliers = np.array([config.noise_multiplier], np.float64)
  else:
    multipliers = _candidates(config, cohorts)
  sums, _ = _simulated(config, config.prices._replace(noise_multiplier=multipliers[:, np.newaxis]), cohorts)
  objective = sums.mean(axis=1) / multipliers
  best = int(np.argmax(objective >= objective.max() * (1 - _TIE)))  # Candidates descend.
  if not sums[best].any():
    raise ValueError(f'noise_multiplier={multipliers[best]:g} is so small that nobody\'s budget pays for a round.')
  return dataclasses.replace(
      config,
      noise_multiplier=float(multipliers[best]),
      divisor=config.divisor if config.divisor is not None else float(sums[best][sums[best] > 0].mean()),
  )


def _candidates(config, cohorts):
  """float64, descending: multipliers with which some client's budget lasts exactly to its last planned round."""
  free = privacy_filter.Prices(limit=math.inf, noise_multiplier=np.ones([1, 1]), count_cost=0.0)
  _, (squares,) = _simulated(config, free, cohorts)  # At no price, clients spend Σ w².
  rounds = np.bincount(np.concatenate(cohorts), minlength=config.num_clients)
  left = config.prices.limit - rounds * config.prices.count_cost
  reachable = (squares > 0) & (left > 0)
  if not reachable.any():
    raise ValueError(
        f'The noised counts of each client\'s planned rounds cost more than epsilon={config.epsilon:g}: give the '
        'counts more noise (count_stddev), or take a fixed clipping norm.'
    )
  exact = np.unique(np.sqrt(squares[reachable] / left[reachable]))
  chosen = np.unique(np.linspace(0, len(exact) - 1, _MOST_CANDIDATES).round().astype(int))
  bounds = configs.SMALLEST_MULTIPLIER, configs.LARGEST_MULTIPLIER
  return np.clip(exact[chosen] * (1 + _ROOM), *bounds)[::-1]


def planned_weights(config: configs.CertifiedConfig, cohorts: Sequence[Any]) -> List[np.ndarray]:
  """float32[M_t] for each round: the weights of its cohort, as the mechanism gives them.

  What a run's ledger must hold, for a schedule that was kept.
  """
  weights = []
  _run(config, config.prices, cohorts, np.zeros(config.num_clients), lambda index, found: weights.append(found))
  return weights


def _simulated(config, prices, cohorts):
  """(Σ_i w_i(t) float64[Z, T], Σμ² after T rounds float64[Z, N]) for each of the Z noise multipliers in `prices`."""
  num_candidates = len(prices.noise_multiplier)
  sums = np.zeros([num_candidates, len(cohorts)])
  spent = np.zeros([num_candidates, config.num_clients])

  def add_up(index, weights):
    sums[:, index] = weights.sum(axis=1, dtype=np.float64)

  _run(config, prices, cohorts, spent, add_up)
  return sums, spent


def _run(config, prices, cohorts, spent, visit):
  """Goes through the schedule; `spent` [..., N] grows in place, and `visit` gets each round's index and weights."""
  participation = participations.initial_state(config.participation, config.num_clients)
  for index, ids in enumerate(cohorts):
    participation = participations.next_state(config.participation, participation, ids, index + 1)
    view = round_view(config, prices, participation, index + 1, ids)
    weights, spent[..., ids] = privacy_filter.spend(prices, spent[..., ids], config.weights.weights(view))
    visit(index, weights)


def round_view(
    config: configs.CertifiedConfig, prices: privacy_filter.Prices, participation: Any, round_num: Any, client_ids: Any
) -> weight_rules.RoundView:
  """What a weight rule is told of a round.

  Args:
    config: The mechanism.
    prices: Of the round.
    participation: The participation state with this round in it.
    round_num: t, from 1.
    client_ids: int64[M], the cohort.
  """
  planned = None
  if config.weights.needs_plan:
    planned = arrays.take(np.asarray(config.planned_rounds, np.int64), client_ids)
  return weight_rules.RoundView(
      prices=prices,
      rates=arrays.take(participations.rates(config.participation, participation, round_num), client_ids),
      in_warmup=participations.in_warmup(config.participation, round_num),
      planned=planned,
  )
