"""Chooses weights, scale and memory of noise that clients hold, from a public schedule alone.

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

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from quap_tff.common import checks
from quap_tff.common import lazy
from quap_tff.mechanisms.noise import correlation as correlations
from quap_tff.mechanisms.noise import held_noise
from quap_tff.mechanisms.parts import postprocessing

special = lazy.module('scipy.special')

# In about this share of runs some client's loss exceeds what is planned for it.
_EXCEEDED = 0.01
# Weights are lower by this share than limits allow, because accounts are rounded up.
_ROOM = 2.0**-26
# In place of 0, where nobody else's presence matters.
_NOTHING = 1e-60
# How many clients' margins are computed at once.
_BLOCK = 256


class Plan(NamedTuple):
  """What was chosen.

  Attributes:
    noise_multiplier: s, the scale of one client's noise in units of the clipping norm.
    decay: λ.
    weights: float64[N] in [0, 1], the weight of each client in each of its rounds; 0 if it has none.
    divisor: The mean, over the rounds of the schedule, of the expected sum of weights.
    averaging: The average that is to be published.
    objective: J.
  """

  noise_multiplier: float
  decay: float
  weights: np.ndarray
  divisor: float
  averaging: postprocessing.Averaging
  objective: float


def calibrated(
  cohorts: Sequence[Any],
  num_clients: int,
  limit: Any,
  dropout: float = 0.0,
  averaging: postprocessing.Averaging = postprocessing.Planned(),
  decays: Sequence[float] = correlations.DECAYS,
) -> Plan:
  """The plan that maximizes J.

  Args:
    cohorts: int[M_t] ids for each of T rounds: the public schedule.
    num_clients: N.
    limit: The largest μ_i²: one number for all, or float64[N].
    dropout: p in [0, 0.9], the share of clients that are drawn and expected to stay away.
    averaging: The average of the iterates. `postprocessing.Planned` chooses the best of several by J.
    decays: The values of λ to choose from.

  Raises:
    ValueError: If a cohort does not consist of distinct ids in [0, N), if a value is out of range, or if nobody who
      takes part has a limit above 0.
  """
  cohorts = checks.schedule(cohorts, num_clients)
  checks.number('dropout', dropout, at_least=0, at_most=0.9)
  limits = np.broadcast_to(np.asarray(limit, np.float64), [num_clients])
  if not (np.isfinite(limits) & (limits >= 0)).all():
    raise ValueError('Each limit must be a finite number, at least 0.')
  members = np.unique(np.concatenate(cohorts)) if cohorts else np.zeros(0, np.int64)
  if not limits[members].any():
    raise ValueError('No client that takes part has a limit above 0, so no noise can be chosen.')
  released = np.array([len(cohort) > 0 for cohort in cohorts])
  candidates = averaging.candidates(len(cohorts))
  averages = [(average, postprocessing.kept_shares(average.shares(len(cohorts)))[released]) for average in candidates]
  cohorts = [cohort for cohort in cohorts if len(cohort)]
  # A decay is chosen by mean costs, which are far cheaper to compute than their margins.
  choices = [_plan(cohorts, limits, decay, dropout, averages, has_margin=False) for decay in decays]
  best = max(choices, key=lambda choice: choice.objective)
  return _plan(cohorts, limits, best.decay, dropout, averages, has_margin=True)


def _plan(cohorts, limits, decay, dropout, averages, has_margin) -> Plan:
  """The plan for one decay. `averages` are pairs of an average and its v_t, float64[T]."""
  members = np.unique(np.concatenate(cohorts))
  covariance = held_noise.covariance(cohorts, decay, dropout)
  costs = _costs(cohorts, members, covariance, decay, dropout if has_margin else 0.0)
  ratios = np.sqrt(limits[members] / costs)  # w_i/s
  multiplier = float(1 / ratios.max())
  weights = np.zeros(len(limits))
  weights[members] = np.minimum(ratios * multiplier, 1.0) * (1 - _ROOM)
  sums = (1 - dropout) * np.array([weights[cohort].sum() for cohort in cohorts])
  ratio = lambda shares: float(shares @ sums / (multiplier * np.sqrt(shares @ covariance @ shares)))
  objective, index = max((ratio(shares), -index) for index, (_, shares) in enumerate(averages))
  return Plan(multiplier, float(decay), weights, float(sums.mean()), averages[-index][0], objective)


def _costs(cohorts, members, covariance, decay, dropout) -> np.ndarray:
  """q_i of each client in `members`, float64[P], with room for dropout."""
  here = np.zeros([len(cohorts), len(members)])
  for index, cohort in enumerate(cohorts):
    here[index, np.searchsorted(members, cohort)] = 1.0
  moved = np.linalg.solve(covariance, here)
  costs = (here * moved).sum(axis=0)
  if not dropout:
    return costs
  found, fresh = held_noise.histories(cohorts), (1 - decay) ** 2
  begins = np.isin(np.arange(len(found.clients)), found.starts)[:, np.newaxis]
  quantile, variance = -special.ndtri(_EXCEEDED / len(members)), dropout * (1 - dropout)
  for begin in range(0, len(members), _BLOCK):
    block = slice(begin, begin + _BLOCK)
    x = moved[found.rounds, block]
    following = found.differences(x)
    before = np.append(np.zeros_like(x[:1]), following[:-1], axis=0)  # x_{t_{r-1}} - x_{t_r} of the same client.
    # What one participation adds to xᵀΣx, and so takes away from q_i.
    change = fresh * x**2 + decay * np.where(begins, following**2, -2 * before * following)
    change *= found.clients[:, np.newaxis] != members[block]
    squares = np.maximum((change**2).sum(axis=0), _NOTHING)
    skew = (1 - 2 * dropout) * (change**3).sum(axis=0) / np.sqrt(variance * squares**3)
    deviations = quantile + np.maximum(skew, 0.0) * (quantile**2 - 1) / 6  # Cornish and Fisher's expansion.
    costs[block] *= np.exp(deviations * np.sqrt(variance * squares) / costs[block])
  return costs
