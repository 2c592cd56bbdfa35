"""Each client's own account under secret coins (docs/proofs.md, theorem 6): the least noise that its rate needs."""

from collections.abc import Sequence
import functools
import math

import numpy as np

from quap_tff.accounting import accountants
from quap_tff.accounting import history as histories
from quap_tff.common import checks

# How many rates are accounted for one by one, and how far others are rounded up at first.
_MOST_RATES, _STEP = 32, 1e-3
# Of the slopes of ln ε by ln z that are believed, the one nearest to 0: under much noise it is -1.
_LEAST_FALL = -0.5


def accounted_rates(rates: np.ndarray) -> np.ndarray:
  """Each rate, rounded up to one of at most 32, which can only add loss. The largest stays as it is.

  Args:
    rates: float64[N] in (0, 1].

  Raises:
    ValueError: If a rate is out of range.
  """
  rates = np.asarray(rates, np.float64)
  bad = np.flatnonzero(~((rates > 0) & (rates <= 1)))
  if len(bad):
    raise ValueError(
      f'Each client needs a rate above 0 and at most 1, found {rates[bad[0]]:g} for client {bad[0]}. Leave out clients '
      'that never come.'
    )
  found, step = rates, _STEP
  while len(np.unique(found)) > _MOST_RATES:
    found, step = histories.rounded_up(rates, step), 1.5 * step
  return found


def least_noise(rates: np.ndarray, rounds: int, epsilon: float, delta: float) -> np.ndarray:
  """σ(q), float64[N]: the least z with which a client of weight 1 spends at most ε at δ in rounds that it may be in.

  A client of weight w needs w·σ(q). So under noise z, everyone may have the weight min(1, z/σ(q)).

  Args:
    rates: float64[N] in (0, 1], the rates of the coins, of at most 32 different values (`accounted_rates`).
    rounds: T >= 1.
    epsilon: ε > 0 in nats.
    delta: Total δ in (0, 1).

  Raises:
    ValueError: If a value is out of range, or no noise is enough.
  """
  checks.number('epsilon', epsilon, above=0)
  distinct, index = np.unique(rates, return_inverse=True)
  # The largest first: what the accountant needs for small ones takes long, and guesses make it shorter.
  distinct, index = distinct[::-1], len(distinct) - 1 - index
  if len(distinct) > _MOST_RATES:
    raise ValueError(f'At most {_MOST_RATES} rates are accounted for, found {len(distinct)}. Use `accounted_rates`.')
  places: list[accountants.PlaceOnCurve] = []
  for place, rate in enumerate(distinct.tolist()):
    found = None
    if place > 1:
      guess = _next_on_curve(np.log(distinct[:place]), places, math.log(rate))
      found = accountants.near(guess, rate, rounds, epsilon, delta)
    if found is None:
      multiplier = accountants.sampled_noise_multiplier(np.array([rate]), rounds, epsilon, delta)
      found = accountants.PlaceOnCurve(multiplier)
    places.append(found)
  return np.array([place.noise_multiplier for place in places])[index]


def _next_on_curve(x: np.ndarray, places: Sequence[accountants.PlaceOnCurve], at: float) -> accountants.PlaceOnCurve:
  """A guess at the next place, by a parabola through the last three of at least two, in logarithms."""
  log_noise = np.log([place.noise_multiplier for place in places[-3:]])
  slopes = np.array([place.slope for place in places[-2:]])
  noise, slope = _continued(x[-3:] - at, log_noise), _continued(x[-2:] - at, slopes)
  # Between rates that are far apart the line of slopes says little, but ε always falls.
  return accountants.PlaceOnCurve(math.exp(noise), min(slope, _LEAST_FALL))


def _continued(x: np.ndarray, values: np.ndarray) -> float:
  """The value at 0 of the polynomial through these points."""
  return float(np.polyfit(x, values, len(x) - 1)[-1])


def epsilons(rates: np.ndarray, multipliers: np.ndarray, rounds: int, delta: float) -> np.ndarray:
  """ε_i of each client, float64[N], over T rounds: that of the Poisson-subsampled Gaussian (q_i, z_i).

  Args:
    rates: float64[N] in (0, 1], q_i.
    multipliers: float64[N] above 0, z_i: z/w_i, and less with noised counts.
    rounds: T >= 1.
    delta: Total δ in (0, 1).

  Raises:
    NotApplicableError: If no accountant has a figure.
  """
  pairs, index = np.unique(np.stack([rates, multipliers]), axis=1, return_inverse=True)
  found = []
  for rate, multiplier in pairs.T.tolist():
    found.append(_epsilon(rate, multiplier, rounds, delta))
  return np.array(found)[index.reshape(-1)]


def total_variations(rates: np.ndarray, multipliers: np.ndarray, rounds: int) -> np.ndarray:
  """The δ at which each client's ε is 0, float64[N]: the distance of what is released with the client and without it.

  Arguments are those of `epsilons`.
  """
  pairs, index = np.unique(np.stack([rates, multipliers]), axis=1, return_inverse=True)
  found = []
  for rate, multiplier in pairs.T.tolist():
    history = histories.History.gaussian(multiplier, rounds, rate)
    found.append(accountants.delta_of(history, 0.0, accountants.default_name(history)))
  return np.array(found)[index.reshape(-1)]


# A run asks for the same figures when it begins, when it ends and for its certificate.
@functools.lru_cache(maxsize=1024)
def _epsilon(rate: float, noise_multiplier: float, rounds: int, delta: float) -> float:
  history = histories.History.gaussian(noise_multiplier, rounds, rate)
  return accountants.get(accountants.default_name(history, delta)).epsilon(history, delta)


def share_of_ceiling(rates: np.ndarray, weights: np.ndarray, noise_multiplier: float, rounds: int, mu: float) -> float:
  """√T·Σ q_i·w_i/z over N·μ: the signal-to-noise ratio of the sum, as a share of the most with known cohorts.

  Args:
    rates: float64[N], q_i.
    weights: float64[N], w_i.
    noise_multiplier: z.
    rounds: T.
    mu: The μ of a Gaussian mechanism that spends ε at δ.
  """
  return float(np.sqrt(rounds) * (rates @ weights) / (noise_multiplier * len(rates) * mu))
