"""Accountants: what a client's history of Gaussian mechanisms spends, as (ε, δ). All in `ACCOUNTANTS`.

All figures are upper bounds, for one client with all of its data, and name their neighbouring relation. An accountant
that does not hold for a history refuses it with a reason instead of giving a figure that would be wrong.
"""

import abc
import dataclasses
import functools
import math
from typing import Any, Dict, Mapping, Optional, Sequence, Union

import dp_accounting
from dp_accounting import pld
from dp_accounting import rdp
import numpy as np

from quap_tff import checks
from quap_tff import registry
from quap_tff.accounting import gaussian_tradeoff
from quap_tff.accounting import history as histories_lib

UNIT = 'one client with all of its data'

_POISSON = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
_SMALLEST_LOG_DELTA = math.log(1e-300)
_LOG_DELTA_TOLERANCE = 1e-9
# Distinct histories that `Accountant.epsilons` accounts one by one.
_MOST_HISTORIES = 64


class NotApplicableError(ValueError):
  """An accountant has no figure for a history; the message says why."""


@dataclasses.dataclass(frozen=True)
class Figure:
  """A formal (ε, δ) and what it stands for.

  Attributes:
    accountant: Name in `ACCOUNTANTS`.
    epsilon: Nats, an upper bound; +inf if some mechanism has no noise.
    delta: The total δ.
    method: The accountant's theorem in a line.
    amplification: Whether sampling is counted as amplification, and why it may be.
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

  def __str__(self):
    return (
        f'ε = {self.epsilon:.4g} at δ = {self.delta:.4g} ({self.accountant}: {self.method}; neighbours: '
        f'{self.neighbours}; unit: {self.unit}; {self.amplification})'
    )


@dataclasses.dataclass(frozen=True)
class NotApplicable:
  """No figure, and why."""

  accountant: str
  reason: str


class Accountant(abc.ABC):
  """Interprets a history. Stateless.

  Attributes:
    method: The theorem, in a line.
    supports_sampling: Whether rates below 1 are amplification that this accountant can count.
    merges: Whether only the histories' `merged` form matters.
    population_step: `epsilons` rounds the noise of many clients up to the largest over powers of 1 + this, so that few
      distinct histories are left; 0 for accountants that are quick.
    relative_tolerance: How near a solve for noise comes to the least one.
  """

  method: str
  supports_sampling = False
  merges = True
  population_step = 0.0
  relative_tolerance = 1e-10

  def refusal(self, history: histories_lib.History) -> Optional[str]:
    """Why this accountant has no figure for `history`; None if it has one."""
    if history.is_sampled and not self.supports_sampling:
      return 'cannot count amplification by sampling'
    return None

  def epsilon(self, history: histories_lib.History, delta: float) -> float:
    """The smallest ε >= 0 that this accountant can prove at δ; never below the truth. +inf without noise.

    Raises:
      NotApplicableError: If the accountant does not hold for the history or δ.
      ValueError: If δ is not in (0, 1).
    """
    checks.number('delta', delta, above=0, below=1)
    reason = self.refusal(history)
    if reason:
      raise NotApplicableError(reason)
    if not history.releases:
      return 0.0
    if any(math.isinf(mechanism.mu) for mechanism, _ in history.releases):
      return math.inf
    return float(self._epsilon(history.merged() if self.merges else history, float(delta)))

  @abc.abstractmethod
  def _epsilon(self, history: histories_lib.History, delta: float) -> float:
    """ε of a history with some mechanism and noise in all."""

  def epsilons(self, histories: Sequence[histories_lib.History], delta: float) -> np.ndarray:
    """float64[len(histories)], ε of each: computed once for equal ones and, if many are not, rounded up together.

    More than `_MOST_HISTORIES` distinct ones are coarsened by `population_step`, and by as often twice that as it takes.
    The history of the largest μ and rate stays as it is.
    """
    keys = [history.merged() if self.merges else history for history in histories]
    places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    exact = coarse = list(places)
    step = self.population_step
    while 0 < step < 1 and len(set(coarse)) > _MOST_HISTORIES:
      coarse, step = histories_lib.coarsened(exact, step), 2 * step
    known = {key: self.epsilon(key, delta) for key in dict.fromkeys(coarse)}
    return np.array([known[coarse[places[key]]] for key in keys], np.float64)


class GaussianExact(Accountant):
  """Not a bound: the ε of the composition, which is one Gaussian."""

  method = 'exact composition of Gaussians, μ² = Σμ_t² (Dong et al. 2019; Balle and Wang 2018)'

  def _epsilon(self, history, delta):
    return gaussian_tradeoff.epsilon_of(history.total_mu, delta)

  def epsilons(self, histories, delta):
    checks.number('delta', delta, above=0, below=1)
    for reason in filter(None, map(self.refusal, histories)):
      raise NotApplicableError(reason)
    mu, index = np.unique([h.total_mu for h in histories], return_inverse=True)
    return gaussian_tradeoff.epsilon_of(mu, delta)[index]


class Zcdp(Accountant):
  """ρ-zCDP. Any order α gives a valid ε: a search that misses the best one loses, but never lies."""

  method = 'ρ = Σμ²/2 (Bun and Steinke 2016), to ε as in Canonne et al. 2020, proposition 12'

  def _epsilon(self, history, delta):
    mu = history.total_mu
    rho, log_inverse = mu * mu / 2, -math.log(delta)
    # The classic optimum α = 1 + √(ln(1/δ)/ρ), and around it: finer in three rounds.
    centre, width = 0.5 * (math.log(log_inverse) - math.log(mu) * 2 + math.log(2)), 12.0
    best = math.inf
    for _ in range(4):
      logs = np.clip(centre + width * np.linspace(-1, 1, 401), -300, 300)
      excess = np.exp(logs)
      with np.errstate(over='ignore'):
        bounds = (1 + excess) * rho + (log_inverse - np.log1p(excess)) / excess - np.log1p(1 / excess)
      k = int(np.argmin(bounds))
      best, centre, width = min(best, float(bounds[k])), float(logs[k]), width / 50
    return max(0.0, best) * (1 + gaussian_tradeoff.RELATIVE_MARGIN)


class Rdp(Accountant):
  """dp-accounting's Rényi accountant."""

  method = 'Rényi composition by dp-accounting (Mironov et al. 2019; Canonne et al. 2020)'
  supports_sampling = True
  population_step = 1e-2

  # With sampling, the library's own orders: large ones cost time. Without, also those where little loss has its best.
  _SAMPLED_ORDERS = tuple(map(float, rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS))
  _ORDERS = tuple(sorted({*_SAMPLED_ORDERS, *(1 + np.exp(np.linspace(math.log(1e-2), math.log(1e9), 600)))}))

  def _epsilon(self, history, delta):
    orders = self._SAMPLED_ORDERS if history.is_sampled else self._ORDERS
    epsilon, _ = rdp.compute_epsilon(orders, _rdp_of(history, orders), delta)
    return float(epsilon) * (1 + gaussian_tradeoff.RELATIVE_MARGIN)


class Pld(Accountant):
  """dp-accounting's privacy loss distributions, on a grid that suits the history."""

  method = 'privacy loss distributions by dp-accounting (Doroshenko et al. 2022)'
  supports_sampling = True
  population_step = 1e-2
  relative_tolerance = 1e-6

  # The library cuts off tails of 1e-15 and convolves in floats, with errors in δ of up to some 1e-14 either way. So it
  # is asked for a δ smaller by the margin, and for no δ near it.
  DELTA_MARGIN = 1e-12
  MIN_DELTA = 1e-10

  def _epsilon(self, history, delta):
    if delta < self.MIN_DELTA:
      raise NotApplicableError(
          f'rounding and cut-off tails of its distributions reach about 1e-12, too near to δ = {delta:.3g} (smallest: '
          f'{self.MIN_DELTA:g})'
      )
    if _discretization(history) > _COARSEST_STEP:
      raise NotApplicableError(f'losses reach further than its grid ({_MOST_STEPS * _COARSEST_STEP:g} nats)')
    with np.errstate(over='ignore', invalid='ignore'):
      epsilon = float(_pld_of(history).get_epsilon(delta - self.DELTA_MARGIN))
    if math.isinf(epsilon):
      raise NotApplicableError(f'the tails that its distributions cut off weigh more than δ = {delta:.3g}')
    return epsilon * (1 + gaussian_tradeoff.RELATIVE_MARGIN)


class _PerRound(Accountant):
  """From the exact ε_t of each mechanism at its share of δ."""

  merges = False

  @abc.abstractmethod
  def _mechanism_delta(self, delta: float) -> float:
    """The part of δ that the mechanisms share equally."""

  @abc.abstractmethod
  def _compose(self, epsilons: np.ndarray, counts: np.ndarray, delta: float) -> float:
    """ε of mechanisms that have `epsilons`, each `counts` times."""

  def _epsilon(self, history, delta):
    return self.epsilons([history], delta)[0]

  def epsilons(self, histories, delta):
    checks.number('delta', delta, above=0, below=1)
    for reason in filter(None, map(self.refusal, histories)):
      raise NotApplicableError(reason)
    lengths = [len(history.releases) for history in histories]
    mu = np.array([mechanism.mu for history in histories for mechanism, _ in history.releases], np.float64)
    counts = np.array([n for history in histories for _, n in history.releases], np.float64)
    totals = np.repeat(np.array([history.count for history in histories], np.float64), lengths)
    # The same mechanism at the same share of δ is in many histories.
    pairs, index = np.unique(mu + 1j * totals, return_inverse=True)
    found = gaussian_tradeoff.epsilon_of(pairs.real, self._mechanism_delta(delta) / pairs.imag)[index]
    ends = np.cumsum(lengths)
    composed = [self._compose(found[end - n:end], counts[end - n:end], delta) for n, end in zip(lengths, ends)]
    return np.array(composed, np.float64) * (1 + gaussian_tradeoff.RELATIVE_MARGIN)


class Basic(_PerRound):
  """Σε_t and Σδ_t. The δ of each of the k mechanisms is δ/k, its ε_t the exact one of that Gaussian at δ/k.

  The classic formula ε_t = √(2·ln(1.25·k/δ))·μ_t, proven for ε_t <= 1 only, is never below that.
  """

  method = 'Σε_t, Σδ_t with δ_t = δ/k for each of k mechanisms, ε_t exact for its Gaussian'

  def _mechanism_delta(self, delta):
    return delta

  def _compose(self, epsilons, counts, delta):
    return math.fsum(epsilons * counts)


class Advanced(_PerRound):
  """Kairouz, Oh and Viswanath 2017, theorem 3.5, the best of its bounds; half of δ is the composition's slack δ'.

  Of the other half each of the k mechanisms has δ/(2k). `basic` is the same theorem's bound without slack, so it is the
  better one for few mechanisms of large ε_t, and then the figure here.
  """

  method = 'Kairouz et al. 2017, theorem 3.5: δ/2 as slack, δ/(2k) for each of k mechanisms; basic if smaller'

  def _mechanism_delta(self, delta):
    return delta / 2

  def _compose(self, epsilons, counts, delta):
    slack = delta / 2
    squares = math.fsum(counts * epsilons**2)
    # (e^ε - 1)/(e^ε + 1) = tanh(ε/2).
    mean = math.fsum(counts * epsilons * np.tanh(epsilons / 2))
    return mean + min(
        math.sqrt(-2 * squares * math.log(slack)),
        math.sqrt(2 * squares * math.log(math.e + math.sqrt(squares) / slack)),
    )

  def epsilons(self, histories, delta):
    return np.minimum(super().epsilons(histories, delta), ACCOUNTANTS['basic'].epsilons(histories, delta))


ACCOUNTANTS: Mapping[str, Accountant] = {
    'gaussian_exact': GaussianExact(),
    'zcdp': Zcdp(),
    'rdp': Rdp(),
    'pld': Pld(),
    'advanced': Advanced(),
    'basic': Basic(),
}


def get(name: str) -> Accountant:
  """The accountant of a name; raises `ValueError` with the nearest names if there is none."""
  return registry.lookup('accountant', name, ACCOUNTANTS)


def default_name(history: histories_lib.History, delta: Optional[float] = None) -> str:
  """The accountant of the smallest figure: `gaussian_exact`; with sampling `pld`, or `rdp` for δ too small for it."""
  if not history.is_sampled:
    return 'gaussian_exact'
  return 'pld' if delta is None or delta >= Pld.MIN_DELTA else 'rdp'


def account(
    history: histories_lib.History, delta: float, names: Optional[Sequence[str]] = None
) -> Dict[str, Union[Figure, NotApplicable]]:
  """What a history spends, by every accountant or the named ones.

  Args:
    history: What one client goes through.
    delta: Total δ in (0, 1).
    names: Of `ACCOUNTANTS`; None for all.

  Returns:
    For each name a `Figure`, or a `NotApplicable` that says why there is none.

  Raises:
    ValueError: For an unknown name or a δ outside (0, 1).
  """
  result = {}
  for name in names if names is not None else ACCOUNTANTS:
    accountant = get(name)
    try:
      epsilon = accountant.epsilon(history, delta)
    except NotApplicableError as error:
      result[name] = NotApplicable(name, str(error))
    else:
      result[name] = Figure(name, epsilon, delta, accountant.method, amplification(history), history.neighbours)
  return result


def amplification(history: histories_lib.History) -> str:
  """Whether sampling is counted, and why it may be."""
  rates = history.sampling_rates
  if not rates:
    return 'no amplification by sampling'
  shown = f'{rates[0]:g}' if len(rates) == 1 else f'{rates[0]:g} to {rates[-1]:g}'
  return (
      f'amplification by Poisson sampling, q = {shown}: each round draws each client independently, and who was drawn '
      'stays secret'
  )


def delta_of(history: histories_lib.History, epsilon: float, name: str) -> float:
  """The smallest δ at which the accountant proves ε, rounded up; at least the smallest δ that it knows.

  Args:
    history: What one client goes through.
    epsilon: ε >= 0 in nats.
    name: Of `ACCOUNTANTS`.

  Returns:
    δ in (0, 1), within a factor of 1e-9 of the smallest; 1e-300 stands for all below.

  Raises:
    ValueError: If no δ < 1 is enough, or the accountant does not apply.
  """
  accountant = get(name)
  checks.number('epsilon', epsilon, at_least=0)
  low, high = _SMALLEST_LOG_DELTA, math.log1p(-1e-12)
  if name == 'pld':
    low = math.log(Pld.MIN_DELTA * (1 + 1e-9))
  enough = lambda log_delta: accountant.epsilon(history, math.exp(log_delta)) <= epsilon
  if not enough(high):
    raise ValueError(f'epsilon={epsilon:g} is out of reach: {name} finds no delta below 1 for it with this noise.')
  if enough(low):
    return math.exp(low)
  while high - low > _LOG_DELTA_TOLERANCE:
    middle = 0.5 * (low + high)
    low, high = (low, middle) if enough(middle) else (middle, high)
  return math.exp(high)


def _event(mechanism: histories_lib.GaussianMechanism) -> Any:
  event = dp_accounting.GaussianDpEvent(mechanism.noise_multiplier)
  return event if mechanism.sampling_rate == 1 else dp_accounting.PoissonSampledDpEvent(mechanism.sampling_rate, event)


# A solve for δ asks the same history again and again.
@functools.lru_cache(maxsize=8)
def _rdp_of(history, orders):
  """Rényi divergence of a history at each order, an upper bound."""
  accountant = rdp.RdpAccountant(list(orders), _POISSON)
  for mechanism, n in history.releases:
    accountant.compose(_event(mechanism), n)
  sampled = sum(n for mechanism, n in history.releases if mechanism.sampling_rate < 1)
  return np.maximum(accountant.rdp, 0.0) + rdp_rounding(sampled, orders)


def rdp_rounding(sampled_rounds: int, orders: Sequence[float]) -> np.ndarray:
  """What to add to the library's Rényi divergences of sampled rounds, at each order, to be on the safe side.

  It cuts the series of a sampled round off at e^-30 and sums it in floats: what it finds for a round of very little
  loss can be 0 or below.
  """
  alpha = np.array(orders, np.float64)
  return sampled_rounds * 1e-12 * (1 + alpha / 100) / (alpha - 1)


@functools.lru_cache(maxsize=8)
def _pld_of(history):
  accountant = pld.PLDAccountant(_POISSON, _discretization(history))
  for mechanism, n in history.releases:
    accountant.compose(_event(mechanism), n)
  return accountant


# The grid's step as a share of a mechanism's own spread of loss: the ε of the library's pessimistic rounding grows with
# its square, 1e-3 at a tenth. And the most steps in the range of losses: a second for 2e5.
_STEP_OF_SPREAD = 1 / 50
_MOST_STEPS = 2e5
_USUAL_STEP, _COARSEST_STEP = 1e-3, 0.1
_TAIL = 1e-15


def _discretization(history) -> float:
  """The step of the grid of losses, nats: fine beside each mechanism's loss, coarse enough to be computed."""
  spread = min(min(1.0, mechanism.mu) * mechanism.sampling_rate for mechanism, _ in history.releases)
  largest_mu = max(mechanism.mu for mechanism, _ in history.releases)
  largest = max(ACCOUNTANTS['rdp'].epsilon(history, _TAIL), largest_mu * (largest_mu / 2 + 10))
  return max(min(_USUAL_STEP, _STEP_OF_SPREAD * spread), largest / _MOST_STEPS)
