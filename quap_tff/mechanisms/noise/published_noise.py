"""Coefficients of correlated noise as they are published: those of the least error for n releases, k and b.

    minimise E(c)·S(c),    E = 1/n·‖A·C⁻¹‖² = Σ_t (1 - t/n)·e_t²,    S = max_x ‖C·x‖²

E is the mean square of the noise in all n prefix sums: A has ones on and below its diagonal, and e are the sums of the
first coefficients of C⁻¹. S is the squared sensitivity, over all clients that are in at most k releases, at least b
apart. Their product is the loss whose root is called RMSE or RmseLoss (McKenna 2024, "Scaling up the Banded Matrix
Factorization Mechanism"; McMahan, Xu and Zhang 2024, "A Hassle-free Algorithm for Private Learning in Practice: Don't
Use Tree Aggregation, Use BLTs"). It does not depend on the scale of C.

Coefficients that are not negative and do not grow have a worst case in closed form: the client comes in the first
release and then as often as it may (Kalinin and Lampert 2024, "Banded Square Root Matrix Factorization"). If no more
than b coefficients are not 0, the participations do not overlap, and S = k·‖c‖² up to the end of the run
(Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization"). Whatever numbers are chosen here, the account
computes with them exactly.
"""

from collections.abc import Sequence
import math
from typing import Any, Callable, Optional

import numpy as np

from quap_tff.common import lazy

optimize = lazy.module('scipy.optimize')
# `scipy.optimize.OptimizeResult`.
_Minimum = Any
signal = lazy.module('scipy.signal')
special = lazy.module('scipy.special')

# Coefficients have this many decimals. Two processors then find the same numbers, although their last bits differ.
DECIMALS = 4
# A further buffer must lower the root of the loss by this share. More than 4 did not for up to 2,000 releases.
_SMALLEST_GAIN = 1e-3
_MOST_BUFFERS = 4
# The gains sum to less than 1, with room for rounding.
_LARGEST_SUM = 0.999
# Where the search for the decay of a further buffer begins, and with what share of the gains.
_FIRST_DECAYS = (0.1, 0.5, 0.9, 0.98, 0.997)
_FIRST_SHARE = 0.05
# log-odds of decays and of gains stay within.
_MOST_ODDS = 14.0
_OPTIONS = dict(maxiter=2000, maxfun=4000, ftol=1e-15, gtol=1e-10)


def banded(num_releases: int, most: int, apart: int, bands: int) -> tuple[float, ...]:
  """c_1 … c_{bands-1} of least loss, with c_0 = 1, c_k = 0 from k = bands on, and no c_k larger than the one before.

  Args:
    num_releases: n ≥ bands.
    most: k ≥ 1.
    apart: b ≥ 1.
    bands: At least 1.
  """

  def loss(steps: np.ndarray) -> tuple[float, np.ndarray]:
    column = np.zeros(num_releases)
    # Coefficient k is the sum of the steps from k on.
    column[:bands] = np.cumsum(steps[::-1])[::-1]
    value, slopes = _log_loss(column, column[:bands], np.ones(1), most, apart)
    return value, np.cumsum(slopes[:bands])

  # Steps between coefficients, which may not be negative. The start is the root of A, best for k = 1 and large n: the
  # coefficients of 1/√(1-x) (Fichtenberger, Henzinger and Upadhyay 2023).
  ages = np.arange(1, bands)
  ratios = (2 * ages - 1) / (2 * ages)
  start = np.append(1.0, np.cumprod(ratios))
  start_steps = np.append(start[:-1] - start[1:], start[-1])
  steps = _minimum(loss, start_steps, [(0.0, None)] * bands).x
  column = np.cumsum(steps[::-1])[::-1]
  return tuple(np.round(column[1:] / column[0], DECIMALS).tolist())


def buffered(
  num_releases: int, most: int, apart: int, smallest_decay: float, largest_decay: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
  """(gains, decays) of least loss for c_k = Σ_j gain_j·decay_j^(k-1).

  Buffers are added one by one, from several first decays each, for as long as a further one is worth its memory.

  Args:
    num_releases: n ≥ 1.
    most: k ≥ 1.
    apart: b ≥ 1.
    smallest_decay, largest_decay: The bounds of decays.
  """
  lower, upper = special.logit(smallest_decay), special.logit(largest_decay)

  def minimum(found: np.ndarray, decay: float) -> _Minimum:
    odds, decays = np.split(found, 2)
    # The further buffer begins with a share of what all gains, and the rest, make together.
    first_odds = math.log(_FIRST_SHARE) + np.logaddexp.reduce(np.append(odds, 0.0))
    first_decay = np.clip(special.logit(decay), lower, upper)
    start = np.concatenate([odds, [first_odds], decays, [first_decay]])
    num_buffers = len(odds) + 1
    bounds = [(-_MOST_ODDS, _MOST_ODDS)] * num_buffers + [(lower, upper)] * num_buffers
    return _minimum(lambda point: _buffered_loss(point, num_releases, most, apart), start, bounds)

  def best_with_one_more(found: np.ndarray) -> _Minimum:
    minima = [minimum(found, decay) for decay in _FIRST_DECAYS]
    return min(minima, key=lambda candidate: candidate.fun)

  best = best_with_one_more(np.zeros(0))
  for _ in range(_MOST_BUFFERS - 1):
    further = best_with_one_more(best.x)
    # Half of the logarithm of E·S is that of the root.
    if further.fun / 2 > best.fun / 2 + math.log1p(-_SMALLEST_GAIN):
      break
    best = further
  gains, decays, _ = _terms(best.x)
  smallest = 10.0**-DECIMALS
  order = np.argsort(-decays)
  gains = np.maximum(np.round(gains[order], DECIMALS), smallest)
  decays = np.clip(np.round(decays[order], DECIMALS), smallest, largest_decay)
  return tuple(gains.tolist()), tuple(decays.tolist())


def _buffered_loss(point: np.ndarray, num_releases: int, most: int, apart: int) -> tuple[float, np.ndarray]:
  gains, decays, slopes = _terms(point)
  ages = np.arange(num_releases - 1)[:, np.newaxis]
  powers = decays**ages
  column = np.append(1.0, powers @ gains)
  # C as a ratio of polynomials: 1 + Σ_j gain_j·x/(1 - decay_j·x).
  denominator = np.poly(decays)
  others = [np.append(0.0, np.poly(np.delete(decays, j))) for j in range(len(decays))]
  numerator = denominator + gains @ np.array(others)
  value, by_column = _log_loss(column, numerator, denominator, most, apart)
  # d decay^k = k·decay^(k-1)
  first = np.zeros([1, len(decays)])
  fallen = np.vstack([first, ages[1:] * powers[:-1]])[: num_releases - 1]
  by_gain = by_column[1:] @ powers
  by_decay = (by_column[1:] @ fallen) * gains
  # The search moves log-odds: d decay = decay·(1 - decay)·d log-odds.
  return value, np.concatenate([slopes @ by_gain, by_decay * decays * (1 - decays)])


def _terms(point: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """The gains and decays of a point of the search, and the derivatives of the gains by their log-odds."""
  odds, decays = np.split(point, 2)
  shares = special.softmax(np.append(odds, 0.0))[:-1]
  slopes = np.diag(shares) - np.outer(shares, shares)
  return _LARGEST_SUM * shares, special.expit(decays), _LARGEST_SUM * slopes


def _log_loss(
  column: np.ndarray, numerator: np.ndarray, denominator: np.ndarray, most: int, apart: int
) -> tuple[float, np.ndarray]:
  """ln(E·S), and its derivatives by the coefficients, float64[n].

  Args:
    column: float64[n], the coefficients.
    numerator, denominator: Polynomials, lowest power first, whose ratio has these coefficients.
    most: k.
    apart: b.
  """
  releases = len(column)
  sums = signal.lfilter(denominator, numerator, np.ones(releases))  # e
  shares = _shares(releases)
  error = shares @ np.square(sums)
  # de = -(e convolved with C⁻¹)·dc
  sums_of_sums = signal.lfilter(denominator, numerator, sums)
  by_error = -2 * _correlated(shares * sums, sums_of_sums)
  comes = np.zeros(releases)
  comes[: most * apart : apart] = 1.0
  moved = signal.fftconvolve(comes, column)[:releases]
  sensitivity = moved @ moved
  by_sensitivity = 2 * _correlated(moved, comes)
  return math.log(error * sensitivity), by_error / error + by_sensitivity / sensitivity


def _shares(releases: int) -> np.ndarray:
  """The share of the prefix sums in which each coefficient of A·C⁻¹ counts, float64[n]."""
  return 1 - np.arange(releases) / releases


def _correlated(values: np.ndarray, shifted: np.ndarray) -> np.ndarray:
  """Σ_t values_t·shifted_{t-j} for each j, float64[n]."""
  reversed_result = signal.fftconvolve(values[::-1], shifted)[: len(values)]
  return reversed_result[::-1]


def _minimum(
  loss: Callable[[np.ndarray], tuple[float, np.ndarray]],
  start: np.ndarray,
  bounds: Sequence[tuple[float, Optional[float]]],
) -> _Minimum:
  return optimize.minimize(loss, start, jac=True, method='L-BFGS-B', bounds=bounds, options=_OPTIONS)
