"""Accountants: what a client's history of Gaussian mechanisms spends, as (ε, δ). `ACCOUNTANTS` lists all of them.

All figures are upper bounds, for one client with all of its data, and name their neighbouring relation. An accountant
that does not hold for a history refuses it and says why, instead of giving a wrong figure.

`solve` finds any one of ε, δ and noise from the other two. Every solution is rounded to the private side: ε and δ are
never exceeded.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import math
from typing import Callable, NamedTuple, Optional, Union

import numpy as np

from quap_tff.accounting import history as histories_lib
from quap_tff.accounting import run_ledger
from quap_tff.accounting import theorems
from quap_tff.accounting.theorems import NotApplicableError
from quap_tff.common import checks
from quap_tff.common import lazy
from quap_tff.common import registry
from quap_tff.common.numbers import rounding
from quap_tff.common.numbers import tradeoff

optimize = lazy.module('scipy.optimize')

UNIT = 'one client with all of its data'

MIN_FACTOR, MAX_FACTOR = 1e-6, 1e12
# How much larger than the least noise a solution is, as a share: room for noise multipliers in float32.
_FLOAT32_ROOM = 1e-6
# A search that begins at a good guess ends within this share of ε, or after as many steps.
_NEAR, _MOST_STEPS = 5e-7, 10


@dataclasses.dataclass(frozen=True)
class Figure:
  """A formal (ε, δ) and what it means.

  Attributes:
    accountant: Name in `ACCOUNTANTS`.
    epsilon: Nats, an upper bound; +inf if some mechanism has no noise.
    delta: The total δ.
    method: The accountant's theorem in a line; with sampling, that the figure is the one without, if it is.
    amplification: Whether amplification by sampling is counted, and why it may be.
    neighbours: The neighbouring relation.
    unit: Whose privacy it is.
  """

  accountant: str
  epsilon: float
  delta: float
  method: str
  amplification: str
  neighbours: str
  unit: str = UNIT

  def __post_init__(self) -> None:
    theorems.checked_epsilon(self.epsilon)

  def __str__(self) -> str:
    return (
      f'ε = {rounding.up(self.epsilon)} at δ = {rounding.up(self.delta)} ({self.accountant}: {self.method}; '
      f'neighbours: {self.neighbours}; unit: {self.unit}; {self.amplification})'
    )


@dataclasses.dataclass(frozen=True)
class NotApplicable:
  """No figure, and why."""

  accountant: str
  reason: str


ACCOUNTANTS: Mapping[str, theorems.Accountant] = {
  'gaussian_exact': theorems.GaussianExact(),
  'zcdp': theorems.Zcdp(),
  'rdp': theorems.Rdp(),
  'pld': theorems.Pld(),
  'advanced': theorems.Advanced(),
  'basic': theorems.Basic(),
}


def get(name: str) -> theorems.Accountant:
  """The accountant of this name; raises `ValueError` with the nearest names if there is none."""
  return registry.lookup('accountant', name, ACCOUNTANTS)


def default_name(history: histories_lib.History, delta: Optional[float] = None) -> str:
  """The accountant with the smallest figure: `gaussian_exact`; with sampling `pld`, or `rdp` if δ is too small."""
  if not history.is_sampled:
    return 'gaussian_exact'
  return 'pld' if delta is None or delta >= theorems.Pld.MIN_DELTA else 'rdp'


def account(
  history: histories_lib.History, delta: float, names: Optional[Sequence[str]] = None
) -> dict[str, Union[Figure, NotApplicable]]:
  """The privacy loss of a history, by every accountant or by the named ones.

  Args:
    history: The mechanisms that one client goes through.
    delta: Total δ in (0, 1).
    names: Some of `ACCOUNTANTS`; None for all.

  Returns:
    For each name a `Figure`, or a `NotApplicable` that says why there is none.

  Raises:
    ValueError: For an unknown name or a δ outside (0, 1).
  """
  result: dict[str, Union[Figure, NotApplicable]] = {}
  for name in names if names is not None else ACCOUNTANTS:
    accountant = get(name)
    try:
      epsilon = accountant.epsilon(history, delta)
    except NotApplicableError as error:
      result[name] = NotApplicable(name, str(error))
    else:
      method = accountant.method
      if history.is_sampled and epsilon >= theorems.unamplified(history, delta):
        method = f'exact ε without sampling: {name} proves no amplification here'
      result[name] = Figure(name, epsilon, delta, method, amplification(history), history.neighbours)
  return result


def amplification(history: histories_lib.History) -> str:
  """The amplification that is counted, and why it may be."""
  rates = history.sampling_rates
  if not rates:
    return 'no amplification by sampling'
  shown = f'{rates[0]:g}' if len(rates) == 1 else f'{rates[0]:g} to {rates[-1]:g}'
  return (
    f'amplification by Poisson sampling, q = {shown}: each round draws each client independently, and who was drawn '
    'stays secret; if the exact ε of a client that is in every round is smaller, that one is given'
  )


def delta_of(history: histories_lib.History, epsilon: float, name: str) -> float:
  """The smallest δ at which the accountant proves ε, rounded up; at least the smallest δ that it can handle.

  Args:
    history: The mechanisms that one client goes through.
    epsilon: ε >= 0 in nats.
    name: One of `ACCOUNTANTS`.

  Returns:
    δ in (0, 1), within a factor of 1e-9 of the smallest; 1e-300 for anything smaller.

  Raises:
    ValueError: If no δ < 1 is enough, or the accountant does not apply.
  """
  accountant = get(name)
  checks.number('epsilon', epsilon, at_least=0)
  least_delta = theorems.Pld.MIN_DELTA * (1 + 1e-9) if name == 'pld' else 1e-300
  low, high = math.log(least_delta), math.log1p(-1e-12)

  def excess(log_delta: float) -> float:
    """How far ε is above the one asked for. It falls as δ grows."""
    return accountant.epsilon(history, math.exp(log_delta)) - epsilon

  if excess(high) > 0:
    raise ValueError(f'epsilon={epsilon} is out of reach: {name} proves it for no delta below 1 with this noise.')
  return math.exp(least(excess, low, high, tolerance=1e-9))


class Solution(NamedTuple):
  """A history and its (ε, δ) by one accountant.

  Attributes:
    noise_multiplier: z of every round.
    epsilon: Nats.
    delta: The total δ.
    accountant: The name of the accountant that proves it.
    history: The mechanisms that the client goes through at that noise.
  """

  noise_multiplier: float
  epsilon: float
  delta: float
  accountant: str
  history: histories_lib.History


def noise_factor(history: histories_lib.History, epsilon: float, delta: float, name: str) -> float:
  """The least factor on the noise of every round with which the accountant proves (ε, δ).

  Args:
    history: The mechanisms that one client goes through, at any noise; sampling rates stay as they are.
    epsilon: ε >= 0 in nats.
    delta: Total δ in (0, 1).
    name: One of `ACCOUNTANTS`.

  Returns:
    A factor in [`MIN_FACTOR`, `MAX_FACTOR`], above the least one by at most the accountant's `relative_tolerance`.

  Raises:
    ValueError: If there is no such factor, the history has a round without noise, or the accountant does not apply.
  """
  accountant = get(name)
  checks.number('epsilon', epsilon, at_least=0)
  checks.number('delta', delta, above=0, below=1)
  if any(math.isinf(mechanism.mu) for mechanism, _ in history.releases):
    raise ValueError('A round without noise has no finite ε, whatever its noise is multiplied by.')

  @functools.cache
  def excess(log_factor: float) -> float:
    """ln of the ratio of ε at that factor to the ε asked for, which falls as the factor grows."""
    reached = accountant.epsilon(history.scaled(math.exp(log_factor)), delta)
    with np.errstate(divide='ignore', invalid='ignore'):
      return float(np.log(np.float64(reached) / epsilon)) if reached > epsilon or reached and epsilon else -math.inf

  bottom, top = math.log(MIN_FACTOR), math.log(MAX_FACTOR)
  # Start at 1, where nothing is extreme, and double the steps.
  low, high, step = 0.0, 0.0, math.log(2)
  while excess(low) <= 0 and low > bottom:
    low, high, step = max(bottom, low - step), low, 2 * step
  while excess(high) > 0:
    if high >= top:
      raise ValueError(
        f'epsilon={epsilon} at delta={delta} is out of reach: {name} does not prove it with {MAX_FACTOR:g} times '
        'the noise.'
      )
    low, high, step = high, min(top, high + step), 2 * step
  return math.exp(least(excess, low, high, accountant.relative_tolerance))


def solve(
  *,
  epsilon: Optional[float] = None,
  delta: Optional[float] = None,
  noise_multiplier: Optional[float] = None,
  rounds: int = 1,
  sampling_rate: float = 1.0,
  accountant: Optional[str] = None,
) -> Solution:
  """The one of ε, δ and z that is None, for the same mechanism in each of `rounds` rounds.

  Args:
    epsilon: ε >= 0 in nats.
    delta: Total δ in (0, 1).
    noise_multiplier: z > 0, σ over the clipping norm, of a sum to which each client adds at most that norm.
    rounds: Rounds T >= 1 that the client is in or, with sampling, could be in.
    sampling_rate: q in (0, 1], of Poisson sampling; 1 for no sampling.
    accountant: The accountant that proves ε and δ. None: `gaussian_exact` without sampling, `pld` with it.

  Returns:
    A `Solution`: never less private than was asked for.

  Raises:
    ValueError: If not exactly two of the three are given, a value is out of range, or there is no solution.
  """
  given = {'epsilon': epsilon, 'delta': delta, 'noise_multiplier': noise_multiplier}
  known = [name for name, value in given.items() if value is not None]
  if len(known) != 2:
    known_names = ', '.join(known) if known else 'none of them'
    raise ValueError(
      f'Two of epsilon, delta and noise_multiplier must be given, and the third is solved for; found {known_names}.'
    )
  if epsilon is not None:
    checks.number('epsilon', epsilon, at_least=0)
  if delta is not None:
    checks.number('delta', delta, above=0, below=1)
  if noise_multiplier is not None:
    checks.number('noise_multiplier', noise_multiplier, at_least=MIN_FACTOR, at_most=MAX_FACTOR)
  checks.integer('rounds', rounds, at_least=1)
  checks.number('sampling_rate', sampling_rate, above=0, at_most=1)

  def history_at(z: float) -> histories_lib.History:
    return histories_lib.History.gaussian(z, rounds, sampling_rate)

  name = accountant if accountant is not None else default_name(history_at(1.0), delta)
  by = get(name)
  try:
    if noise_multiplier is None:
      assert epsilon is not None and delta is not None  # Two of the three are given.
      if sampling_rate < 1:
        _check_in_range(epsilon, delta, rounds, sampling_rate, name)
      noise_multiplier = noise_factor(history_at(1.0), epsilon, delta, name)
    history = history_at(noise_multiplier)
    if delta is None:
      assert epsilon is not None
      delta = delta_of(history, epsilon, name)
    elif epsilon is None:
      epsilon = by.epsilon(history, delta)
  except NotApplicableError as error:
    raise ValueError(f'Accountant {name} has no figure for this: {error}.') from None
  return Solution(noise_multiplier, epsilon, delta, name, history)


def _check_in_range(epsilon: float, delta: float, rounds: int, sampling_rate: float, name: str) -> None:
  """Raises `ValueError` if the accountants that count sampling cannot hold losses that are so small."""
  if not epsilon:
    raise ValueError(
      f'epsilon={epsilon} with sampling_rate={sampling_rate} is out of range: {name} proves no amplification there. '
      'Take a larger epsilon, or no sampling (sampling_rate=1).'
    )
  noise = noise_factor(histories_lib.History.gaussian(1.0, rounds), epsilon, delta, 'gaussian_exact')
  if name == 'pld' and noise > theorems.Pld.MAX_NOISE_MULTIPLIER:
    raise ValueError(
      f'epsilon={epsilon} at delta={delta} over {rounds} rounds with sampling_rate={sampling_rate} is out of range: '
      f'pld cannot hold such small losses. Without sampling, noise of z = {rounding.up(noise, 7)} is enough. Take that '
      '(sampling_rate=1), a larger epsilon, or another accountant.'
    )


def exact_scale(ledger: run_ledger.RunLedger, epsilon: float, delta: float) -> float:
  """The factor on the noise of every round at which the most exposed client spends ε at δ by `gaussian_exact`.

  The noise of a private quantile's counts is not scaled.

  Args:
    ledger: The ledger of the planned rounds, with the noise that is to be scaled.
    epsilon: ε > 0 in nats.
    delta: Total δ in (0, 1).

  Returns:
    A factor > 0, larger than the least one by a share of about 1e-6: room for noise multipliers in float32.

  Raises:
    ValueError: If a round has no noise, nobody takes part, or the counts alone pass ε.
  """
  checks.number('epsilon', epsilon, above=0)
  mu = histories_lib.total_mu(ledger)
  if np.isinf(mu.whole).any():
    raise ValueError('A round without noise has no finite ε, whatever its noise is multiplied by.')
  if not mu.updates.any():
    raise ValueError('There is no noise to scale: no client takes part in any round.')
  allowed = tradeoff.mu_at_most(epsilon, delta)
  counts = float(mu.counts.max())
  if counts >= allowed:
    alone = float(tradeoff.epsilon_of(counts, delta))
    raise ValueError(
      f'epsilon={epsilon} is out of reach: for the clipping norm, the noised counts alone spend '
      f'{rounding.up(alone)} at delta={delta}. Give them more noise (count_stddev of private_quantile, '
      'norm_noise of acdp), or use a fixed '
      'clipping norm.'
    )
  # From μ_updates²/factor² + μ_counts² = μ_allowed², client by client.
  left = np.sqrt((allowed - mu.counts) * (allowed + mu.counts))
  return float((mu.updates / left).max()) * (1 + _FLOAT32_ROOM)


def sampled_noise_multiplier(rates: np.ndarray, rounds: int, epsilon: float, delta: float) -> float:
  """The least z at which the client of the largest rate spends at most ε at δ in rounds of Poisson sampling.

  It follows from public numbers alone, and not from who comes.

  Args:
    rates: float64[N] in [0, 1], the probability of each client to be in a round.
    rounds: T >= 1.
    epsilon: ε > 0 in nats, by privacy loss distributions (for a δ too small for them, by Rényi composition).
    delta: Total δ in (0, 1).

  Returns:
    z, larger than the least one by a share of about 1e-6: room for noise multipliers in float32.

  Raises:
    ValueError: If nobody ever takes part, or no noise is enough.
  """
  checks.number('epsilon', epsilon, above=0)
  rate = float(np.max(rates))
  if not rate:
    raise ValueError('There is no noise to choose: all participation rates are 0.')
  by = get(default_name(histories_lib.History.gaussian(1.0, rounds, rate), delta))
  solution = solve(epsilon=epsilon, delta=delta, rounds=rounds, sampling_rate=rate)
  multiplier = solution.noise_multiplier * (1 + _FLOAT32_ROOM)
  # The library's grid follows the noise, so its ε is not exactly monotonic.
  while by.epsilon(histories_lib.History.gaussian(multiplier, rounds, rate), delta) > epsilon:
    multiplier *= 1 + _FLOAT32_ROOM
  return multiplier


class PlaceOnCurve(NamedTuple):
  """A noise multiplier, and how ε falls there.

  Attributes:
    noise_multiplier: z.
    slope: The derivative of ln ε by ln z.
  """

  noise_multiplier: float
  slope: float = -1.0


def near(guess: PlaceOnCurve, rate: float, rounds: int, epsilon: float, delta: float) -> Optional[PlaceOnCurve]:
  """The noise multiplier of `sampled_noise_multiplier`, from a number near it and in a part of the time.

  Args:
    guess: Where the secant method, in logarithms, begins.
    rate: q in (0, 1].
    rounds: T >= 1.
    epsilon: ε > 0 in nats.
    delta: Total δ in (0, 1).

  Returns:
    z with an ε that is smaller than the one asked for by a share of about 1e-6, and the slope from the guess to it;
    None if the search does not come near.
  """
  by = get(default_name(histories_lib.History.gaussian(1.0, rounds, rate), delta))

  def excess(log_noise: float) -> float:
    reached = by.epsilon(histories_lib.History.gaussian(math.exp(log_noise), rounds, rate), delta)
    return math.log(reached / epsilon) + _FLOAT32_ROOM if reached else -math.inf

  first = before = math.log(guess.noise_multiplier)
  excess_before, slope, slope_of_first = excess(before), guess.slope, guess.slope
  for step in range(_MOST_STEPS):
    if abs(excess_before) < _NEAR:
      return PlaceOnCurve(math.exp(before), slope_of_first)
    now = before - excess_before / slope
    if not abs(now - first) < 1:
      return None
    excess_now = excess(now)
    if excess_now == excess_before:
      return None
    slope = (excess_now - excess_before) / (now - before)
    # Later steps are so short that the grid's steps show in their slopes.
    slope_of_first = slope if not step else slope_of_first
    before, excess_before = now, excess_now
  return None


def least(excess: Callable[[float], float], low: float, high: float, tolerance: float) -> float:
  """The least x in [low, high] at which nothing is exceeded, or a larger one by at most `tolerance`.

  SciPy finds the root. The answer is always on its private side.

  Args:
    excess: A function that falls as x grows, and is at most 0 where nothing is exceeded, as at `high`.
    low: The lower end, which is returned if nothing is exceeded there.
    high: The upper end.
    tolerance: How much larger than the least x the answer may be, above 0.
  """

  @functools.cache
  def bounded(x: float) -> float:
    """`excess`, but finite, because a line is drawn through it, and not 0, which is enough."""
    root = min(excess(x), 1e6)
    return root if root > 0 else max(min(root, -1e-300), -1e6)

  if bounded(low) < 0:
    return low
  # The root is within a quarter of the tolerance of the figure that is found.
  root = optimize.brentq(bounded, low, high, xtol=tolerance / 4)
  while bounded(root) > 0:
    root = min(root + tolerance / 4, high)
  return root
