"""One Gaussian mechanism exactly: δ(ε) = Φ(μ/2 - ε/μ) - e^ε·Φ(-μ/2 - ε/μ), μ = sensitivity / σ (μ-GDP).

Gaussian mechanisms compose to one Gaussian: μ² = Σ μ_t² (Dong, Roth and Su 2019, corollary 3.3; the formula is Balle
and Wang 2018, theorem 8). `quap_tff.mechanisms.noise.gaussian` has it as TensorFlow arithmetic for a round's noise.
Here it is evaluated in logarithms, for every δ that a float can hold, and every answer is rounded to the safe side.
"""

import functools
import math
from typing import Optional, Union

import numpy as np

from quap_tff.common import checks
from quap_tff.common import lazy

special = lazy.module('scipy.special')

# Answers exceed the true value by at most this share. The rounding of μ and of ε/μ - μ/2 stays below a tenth of it.
RELATIVE_MARGIN = 1e-12

# An inverse is lowered by this share. So its ε, which is rounded up, is not above the given one.
_MU_MARGIN = 1e-11
_BISECTION_STEPS = 80
# The size of an array from which equal values are computed once.
_DISTINCT_FROM = 10_000
# Below this, the two terms of δ hardly cancel. Above it they do, but the scaled functions do not overflow.
_SCALED_FROM = -5.0
# Relative error of scipy's erfcx, with room.
_ERFCX_ERROR = 4e-15
_SQRT_HALF_PI = math.sqrt(math.pi / 2)
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def log_delta(epsilon: Union[float, np.ndarray], mu: Union[float, np.ndarray]) -> np.ndarray:
  """ln δ(ε), an upper bound that is tight to about 1e-14 of the larger of the two terms.

  With x = ε/μ and Mills' ratio R(t) = Φ(-t)/φ(t), δ = φ(x - μ/2)·(R(x - μ/2) - R(x + μ/2)): nothing overflows or
  underflows for large ε or tiny δ.

  Args:
    epsilon: ε >= 0 in nats, float or array.
    mu: μ >= 0, float or array. μ = 0 gives -inf; μ = +inf gives 0, which is δ = 1.

  Returns:
    float64, broadcast over both.

  Raises:
    ValueError: For an ε or μ that is negative or NaN, or an infinite ε.
  """
  epsilon, mu = _checked_array('epsilon', epsilon, below=math.inf), _checked_array('mu', mu)
  return _log_delta(*np.broadcast_arrays(epsilon, mu))


def _log_delta(epsilon: np.ndarray, mu: np.ndarray) -> np.ndarray:
  inside = (mu > 0) & np.isfinite(mu)
  safe_mu = np.where(inside, mu, 1.0)
  x = epsilon / safe_mu
  near, far = x - safe_mu / 2, x + safe_mu / 2
  scaled = near >= _SCALED_FROM
  with np.errstate(divide='ignore', under='ignore', over='ignore', invalid='ignore'):
    near_ratio, far_ratio = _mills(np.where(scaled, near, 0.0)), _mills(far)
    log_density = -near * near / 2 - _HALF_LOG_2PI
    by_ratios = log_density + np.log(near_ratio - far_ratio + _ERFCX_ERROR * near_ratio)
    first = special.log_ndtr(-near)
    # e^ε·Φ(-far) is φ(near)·R(far). As a difference of ε and far²/2 it would be lost in their rounding for large ε.
    by_terms = first + np.log1p(-np.exp(np.minimum(log_density + np.log(far_ratio) - first, 0.0)))
  result = np.minimum(np.where(scaled, by_ratios, by_terms), 0.0)
  return np.where(inside, result, np.where(mu > 0, 0.0, -np.inf))


def epsilon_of(mu: Union[float, np.ndarray], delta: Union[float, np.ndarray]) -> np.ndarray:
  """The smallest ε >= 0 with δ(ε) <= δ, rounded up by at most `RELATIVE_MARGIN`.

  Args:
    mu: μ >= 0, float or array; +inf gives ε = +inf.
    delta: δ in (0, 1), float or array.

  Returns:
    float64, broadcast over both, nats.

  Raises:
    ValueError: For a μ that is negative or NaN, or a δ that is not in (0, 1).
  """
  mu, delta = _checked_array('mu', mu), _checked_array('delta', delta, above=0, below=1)
  if mu.size > _DISTINCT_FROM and not delta.ndim:
    # In a large population most clients have spent the same: nothing, or one participation in the same round.
    distinct, index = np.unique(mu, return_inverse=True)
    return _epsilon_of(distinct, delta)[index].reshape(mu.shape)
  return _epsilon_of(mu, delta)


def _epsilon_of(mu: np.ndarray, delta: np.ndarray) -> np.ndarray:
  mu, delta = np.broadcast_arrays(mu, delta)
  finite = np.isfinite(mu)
  safe_mu = np.where(finite, mu, 1.0)
  target = np.log(delta)
  # ρ-zCDP's conversion, Bun and Steinke 2016, proposition 1.3: never below the exact ε.
  low, high = np.zeros_like(safe_mu), safe_mu * (safe_mu / 2 + np.sqrt(-2 * target))
  zero = _log_delta(np.zeros_like(safe_mu), safe_mu) <= target
  for _ in range(_BISECTION_STEPS):
    middle = 0.5 * (low + high)
    enough = _log_delta(middle, safe_mu) <= target
    low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    if (high - low <= 1e-15 * high).all():
      break
  return np.where(finite, np.where(zero, 0.0, high * (1 + RELATIVE_MARGIN)), np.inf)


@functools.lru_cache(maxsize=64)
def mu_at_most(epsilon: float, delta: float) -> float:
  """μ_max(ε, δ), the largest μ with ε(μ, δ) <= ε, for ε > 0 and δ in (0, 1), to float64's last bits."""
  checks.number('epsilon', epsilon, above=0)
  low, high = 0.0, 1.0
  while epsilon_of(high, delta) <= epsilon:
    low, high = high, 2 * high
  while low < (middle := 0.5 * (low + high)) < high:
    low, high = (middle, high) if epsilon_of(middle, delta) <= epsilon else (low, middle)
  return low


def mu_of(epsilon: Union[float, np.ndarray], delta: float) -> np.ndarray:
  """The largest μ whose ε at δ is at most the given one, for many ε >= 0; too small by a share of at most 2e-11.

  It is the most that was spent, if an ε at δ is all that is known.

  Args:
    epsilon: ε >= 0, float or array.
    delta: δ in (0, 1).

  Returns:
    float64, of the shape of `epsilon`.

  Raises:
    ValueError: For an ε that is negative, NaN or infinite, or a δ that is not in (0, 1).
  """
  epsilon = _checked_array('epsilon', epsilon, below=math.inf)
  target = math.log(_checked_array('delta', delta, above=0, below=1))
  low, high = np.zeros_like(epsilon), np.ones_like(epsilon)
  while (inside := _log_delta(epsilon, high) <= target).any():
    low, high = np.where(inside, high, low), np.where(inside, 2 * high, high)
  for _ in range(_BISECTION_STEPS):
    middle = 0.5 * (low + high)
    inside = _log_delta(epsilon, middle) <= target
    low, high = np.where(inside, middle, low), np.where(inside, high, middle)
  return low * (1 - _MU_MARGIN)


def _checked_array(
  name: str, values: Union[float, np.ndarray], *, above: Optional[float] = None, below: Optional[float] = None
) -> np.ndarray:
  """float64 `values`; raises `ValueError` unless all are numbers, at least 0 or above `above`, and below `below`."""
  values = np.asarray(values, np.float64)
  good = values >= 0 if above is None else values > above
  if below is not None:
    good &= values < below
  if not good.all():
    bounds = 'at least 0' if above is None else f'greater than {above:g}'
    bounds += '' if below is None else f' and less than {below:g}'
    raise ValueError(f'{name} must be a number {bounds}, found {values[~good].flat[0]:g}.')
  return values


def _mills(t: np.ndarray) -> np.ndarray:
  return _SQRT_HALF_PI * special.erfcx(t / math.sqrt(2))


def budgets_of(mu: Union[float, np.ndarray], delta: float) -> np.ndarray:
  """The ε of rounds with this μ, float64[M], each taken alone at the total δ. In a ledger none of them is 0."""
  return np.maximum(epsilon_of(mu, delta), np.finfo(np.float64).tiny)
