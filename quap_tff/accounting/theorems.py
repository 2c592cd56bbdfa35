"""The accountants. Each is a theorem that turns a history into the ε at a δ.

Most are closed forms. Those of the dp-accounting library, which can count sampling, compose Rényi divergences and
privacy loss distributions.
"""

from collections.abc import Sequence
import functools
import math
from typing import Any

import numpy as np

from quap_tff.accounting import history as histories_lib
from quap_tff.common import checks
from quap_tff.common import lazy
from quap_tff.common.numbers import rounding
from quap_tff.common.numbers import tradeoff

# Imported when first used, so that a program's help need not wait for SciPy's statistics, which come with the library.
dp_accounting = lazy.module('dp_accounting')
optimize = lazy.module('scipy.optimize')
pld = lazy.module('dp_accounting.pld')
rdp = lazy.module('dp_accounting.rdp')

# The most distinct histories that slow accountants account for one by one.
_MOST_HISTORIES = 64


class NotApplicableError(ValueError):
  """An accountant has no figure for a history. The message says why."""


def checked_epsilon(epsilon: Any) -> Any:
  """`epsilon`, one or many; raises `ValueError` if one is NaN or negative, which is not a bound."""
  if not np.all(np.asarray(epsilon) >= 0):
    raise ValueError(f'An accountant found ε = {epsilon}, which is not a bound. Nothing can be said by it.')
  return epsilon


def unamplified(history: histories_lib.History, delta: float) -> float:
  """The exact ε of a client that is in every round: one that is drawn with some probability never spends more."""
  return float(tradeoff.epsilon_of(history.always_in().total_mu, delta))


def _is_noised(history: histories_lib.History) -> bool:
  """Whether no mechanism of the history releases anything without noise."""
  return all(math.isfinite(mechanism.mu) for mechanism, _ in history.releases)


class Accountant:
  """Interprets a history. Stateless. A subclass defines `_epsilon`, or `_epsilons` if it takes many at once.

  Attributes:
    method: The theorem, in a line.
    supports_sampling: Whether this accountant can count amplification by sampling (rates below 1).
    merges: Whether only the histories' `merged` form matters.
    population_step: For many clients, `epsilons` rounds each μ up to the largest one over a power of 1 + this, so that
      few distinct histories are left; 0 for accountants that are fast.
    relative_tolerance: How close a solve for noise comes to the least noise.
  """

  method: str
  supports_sampling = False
  merges = True
  population_step = 0.0
  relative_tolerance = 1e-10

  def epsilon(self, history: histories_lib.History, delta: float) -> float:
    """The smallest ε >= 0 that this accountant can prove at δ; never less than the true one. +inf without noise.

    Raises:
      NotApplicableError: If the accountant does not hold for the history or δ.
      ValueError: If δ is not in (0, 1).
    """
    return float(self.epsilons([history], delta)[0])

  def epsilons(self, histories: Sequence[histories_lib.History], delta: float) -> np.ndarray:
    """float64[len(histories)], the ε of each; raises as `epsilon` does. Equal histories are computed once.

    If there are more than `_MOST_HISTORIES` distinct ones, they are coarsened (rounded up) by `population_step`, which
    is doubled until few enough are left. The history with the largest μ and rate stays as it is.
    """
    delta = checks.number('delta', delta, above=0, below=1)
    if not self.supports_sampling and any(history.is_sampled for history in histories):
      raise NotApplicableError('cannot count amplification by sampling')
    keys = list(histories)
    if self.merges:
      keys = [history.merged() for history in keys]
    places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    exact = coarse = list(places)
    step = self.population_step
    while 0 < step < 1 and len(set(coarse)) > _MOST_HISTORIES:
      coarse, step = histories_lib.coarsened(exact, step), 2 * step
    known = {}
    for key in coarse:
      known[key] = math.inf if key.releases else 0.0
    noised = [key for key in known if key.releases and _is_noised(key)]
    if noised:
      known.update(zip(noised, checked_epsilon(self._epsilons(noised, delta))))
    return np.array([known[coarse[places[key]]] for key in keys], np.float64)

  def _epsilons(self, histories: Sequence[histories_lib.History], delta: float) -> np.ndarray:
    """`epsilons` for distinct histories that have at least one mechanism, all of them with noise."""
    return np.array([self._bounded(history, delta) for history in histories])

  def _bounded(self, history: histories_lib.History, delta: float) -> float:
    """ε by this accountant, or the exact ε without sampling where that is smaller or the only one."""
    if not history.is_sampled:
      return self._epsilon(history, delta)
    always_in = unamplified(history, delta)
    if not always_in:
      return always_in
    try:
      return float(np.minimum(self._epsilon(history, delta), always_in))  # NaN stays NaN.
    except NotApplicableError:
      return always_in

  def _epsilon(self, history: histories_lib.History, delta: float) -> float:
    """The ε of one such history."""
    raise NotImplementedError


class GaussianExact(Accountant):
  """Not a bound: the ε of the composition, which is one Gaussian."""

  method = 'exact composition of Gaussians, μ² = Σμ_t² (Dong et al. 2019; Balle and Wang 2018)'

  def _epsilons(self, histories: Sequence[histories_lib.History], delta: float) -> np.ndarray:
    mu, index = np.unique([history.total_mu for history in histories], return_inverse=True)
    return tradeoff.epsilon_of(mu, delta)[index]


class Zcdp(Accountant):
  """ρ-zCDP. Any order α gives a valid ε: a search that misses the best order gives a larger ε, never a wrong one."""

  method = 'ρ = Σμ²/2 (Bun and Steinke 2016), to ε as in Canonne et al. 2020, proposition 12'

  def _epsilon(self, history: histories_lib.History, delta: float) -> float:
    mu = history.total_mu
    rho, log_inverse = mu * mu / 2, -math.log(delta)

    def bound(log_excess: float) -> float:
      excess = math.exp(log_excess)
      return (1 + excess) * rho + (log_inverse - math.log1p(excess)) / excess - math.log1p(1 / excess)

    # The classic optimum is α = 1 + √(ln(1/δ)/ρ). Search around it.
    centre = 0.5 * (math.log(log_inverse) - math.log(mu) * 2 + math.log(2))
    ends = (max(centre - 12, -300), min(centre + 12, 300))
    best = optimize.minimize_scalar(bound, bounds=ends, method='bounded', options={'xatol': 1e-9})
    return max(0.0, best.fun) * (1 + tradeoff.RELATIVE_MARGIN)


class Basic(Accountant):
  """Σε_t and Σδ_t. The δ of each of the k mechanisms is δ/k, its ε_t the exact one of that Gaussian at δ/k.

  The classic formula ε_t = √(2·ln(1.25·k/δ))·μ_t, proven for ε_t <= 1 only, is never below that.
  """

  method = 'Σε_t, Σδ_t with δ_t = δ/k for each of k mechanisms, ε_t exact for its Gaussian'
  merges = False
  _share = 1.0  # The share of δ: the mechanisms divide it equally.

  def _epsilons(self, histories: Sequence[histories_lib.History], delta: float) -> np.ndarray:
    # The mechanisms of all histories, one after the other.
    releases = [release for history in histories for release in history.releases]
    lengths = [len(history.releases) for history in histories]
    mu = np.array([mechanism.mu for mechanism, _ in releases], np.float64)
    counts = np.array([count for _, count in releases], np.float64)
    num_mechanisms = np.array([history.count for history in histories], np.float64)
    totals = np.repeat(num_mechanisms, lengths)
    # The same mechanism at the same share of δ is in many histories. Complex numbers sort as pairs.
    pairs, index = np.unique(mu + 1j * totals, return_inverse=True)
    epsilons = tradeoff.epsilon_of(pairs.real, self._share * delta / pairs.imag)[index]
    composed = []
    for length, end in zip(lengths, np.cumsum(lengths)):
      own = slice(end - length, end)
      composed.append(self._compose(epsilons[own], counts[own], delta))
    return np.array(composed, np.float64) * (1 + tradeoff.RELATIVE_MARGIN)

  def _compose(self, epsilons: np.ndarray, counts: np.ndarray, delta: float) -> float:
    """ε of mechanisms that have `epsilons`, each `counts` times."""
    return math.fsum(epsilons * counts)


class Advanced(Basic):
  """Kairouz, Oh and Viswanath 2017, theorem 3.5, the best of its bounds; half of δ is the composition's slack δ'.

  Each of the k mechanisms gets δ/(2k) of the other half. `basic` is the same theorem's bound without slack. It is
  smaller for few mechanisms of large ε_t, and then it is the figure here.
  """

  method = 'Kairouz et al. 2017, theorem 3.5: δ/2 as slack, δ/(2k) for each of k mechanisms; basic if smaller'
  _share = 0.5

  def _compose(self, epsilons: np.ndarray, counts: np.ndarray, delta: float) -> float:
    slack = delta / 2
    squares = math.fsum(counts * epsilons**2)
    # (e^ε - 1)/(e^ε + 1) = tanh(ε/2).
    mean = math.fsum(counts * epsilons * np.tanh(epsilons / 2))
    by_slack = math.sqrt(-2 * squares * math.log(slack))
    by_squares = math.sqrt(2 * squares * math.log(math.e + math.sqrt(squares) / slack))
    return mean + min(by_slack, by_squares)

  def _epsilons(self, histories: Sequence[histories_lib.History], delta: float) -> np.ndarray:
    return np.minimum(super()._epsilons(histories, delta), Basic()._epsilons(histories, delta))


class Rdp(Accountant):
  """dp-accounting's Rényi accountant."""

  method = 'Rényi composition by dp-accounting (Mironov et al. 2019; Canonne et al. 2020)'
  supports_sampling = True
  population_step = 1e-2

  def _epsilon(self, history: histories_lib.History, delta: float) -> float:
    orders = _orders(history.is_sampled)
    if history.is_sampled and unamplified(history, delta) <= _least_epsilon(orders, delta):
      raise NotApplicableError('no ε of its largest order is below the one without sampling')  # Known without a sum.
    epsilon, _ = rdp.compute_epsilon(orders, _rdp_of(history, orders), delta)
    return float(epsilon) * (1 + tradeoff.RELATIVE_MARGIN)


class Pld(Accountant):
  """dp-accounting's privacy loss distributions, on a grid that suits the history."""

  method = 'privacy loss distributions by dp-accounting (Doroshenko et al. 2022)'
  supports_sampling = True
  population_step = 1e-2
  relative_tolerance = 1e-6

  # The library cuts off tails of 1e-15 and convolves in floats, with errors in δ of up to about 1e-14 either way. So it
  # is asked for a δ smaller by this margin, and never for a δ close to the margin.
  DELTA_MARGIN = 1e-12
  MIN_DELTA = 1e-10
  # With more noise in every round, the library's floats cannot tell losses apart.
  MAX_NOISE_MULTIPLIER = 3e7

  def _epsilon(self, history: histories_lib.History, delta: float) -> float:
    if delta < self.MIN_DELTA:
      raise NotApplicableError(
        f'rounding and cut-off tails of its distributions reach about 1e-12, too close to δ = '
        f'{rounding.up(delta)} (smallest: {self.MIN_DELTA:g})'
      )
    if min(mechanism.noise_multiplier for mechanism, _ in history.releases) > self.MAX_NOISE_MULTIPLIER:
      raise NotApplicableError(
        f'with noise multipliers above {self.MAX_NOISE_MULTIPLIER:g}, losses are too small for it'
      )
    if _discretization(history) > _COARSEST_STEP:
      raise NotApplicableError(f'losses reach beyond its grid ({_MOST_STEPS * _COARSEST_STEP:g} nats)')
    with np.errstate(over='ignore', invalid='ignore'):
      epsilon = float(_pld_of(history).get_epsilon(delta - self.DELTA_MARGIN))
    if math.isinf(epsilon):
      raise NotApplicableError(f'the tails that its distributions cut off weigh more than δ = {rounding.up(delta)}')
    return epsilon * (1 + tradeoff.RELATIVE_MARGIN)


@functools.cache
def _orders(is_sampled: bool) -> tuple[float, ...]:
  """The library's own orders and, unless rounds are sampled, those that are best for small losses.

  With sampling, large orders would cost time.
  """
  orders = tuple(map(float, rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS))
  if is_sampled:
    return orders
  exponents = np.linspace(math.log(1e-2), math.log(1e9), 600)
  return tuple(sorted({*orders, *(1 + np.exp(exponents))}))


@functools.cache
def _whole_orders() -> tuple[float, ...]:
  """Those orders of sampled rounds that are integers: a tenth of the time."""
  return tuple(order for order in _orders(is_sampled=True) if order.is_integer())


@functools.cache
def _least_epsilon(orders: tuple[float, ...], delta: float) -> float:
  """The ε of a divergence of 0."""
  return float(rdp.compute_epsilon(orders, np.zeros(len(orders)), delta)[0])


def _composed(accountant: Any, history: histories_lib.History) -> Any:
  for mechanism, n in history.releases:
    event = dp_accounting.GaussianDpEvent(mechanism.noise_multiplier)
    if mechanism.sampling_rate != 1:
      event = dp_accounting.PoissonSampledDpEvent(mechanism.sampling_rate, event)
    accountant.compose(event, n)
  return accountant


# A solve for δ asks for the same history again and again.
@functools.lru_cache(maxsize=8)
def _rdp_of(history: histories_lib.History, orders: tuple[float, ...]) -> np.ndarray:
  """Rényi divergence of a history at each order, an upper bound."""
  accountant = rdp.RdpAccountant(list(orders), dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
  sampled = sum(n for mechanism, n in history.releases if mechanism.sampling_rate < 1)
  return divergences(_composed(accountant, history), orders, sampled)


def divergences(accountant: Any, orders: Sequence[float], sampled_rounds: int) -> np.ndarray:
  """The divergences of the library's Rényi accountant at each order, on the safe side.

  The library cuts off the series of a sampled round at e^-30 and sums it in floats. For a round with very little loss
  its result can be 0 or less. Of a divergence that is NaN it would make an ε of 0: here it is +inf.
  """
  alpha = np.array(orders, np.float64)
  # For what the library cuts off and rounds in each sampled round.
  room = sampled_rounds * 1e-12 * (1 + alpha / 100) / (alpha - 1)
  rdp = np.maximum(accountant.rdp, 0.0) + room
  return np.where(np.isnan(rdp), np.inf, rdp)


# As many as the rates of secret coins: a run asks for ε of each when it begins, when it ends and for its certificate.
@functools.lru_cache(maxsize=32)
def _pld_of(history: histories_lib.History) -> Any:
  accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, _discretization(history))
  return _composed(accountant, history)


# The grid's step as a share of a mechanism's own spread of loss. The ε that the library's pessimistic rounding adds
# grows with the square of this share: 1e-3 at a tenth. And the largest number of steps: 2e5 take a second.
_STEP_OF_SPREAD = 1 / 50
_MOST_STEPS = 2e5
_USUAL_STEP, _COARSEST_STEP = 1e-3, 0.1
_TAIL = 1e-15


def _discretization(history: histories_lib.History) -> float:
  """The step of the grid of losses, nats: small against each mechanism's loss, large enough to be computed."""
  mechanisms = [mechanism for mechanism, _ in history.releases]
  spread = min(min(1.0, mechanism.mu) * mechanism.sampling_rate for mechanism in mechanisms)
  largest_mu = max(mechanism.mu for mechanism in mechanisms)
  # The loss of a Gaussian has the mean μ²/2 and the deviation μ; ten of them leave no more than a tail.
  largest_of_one = largest_mu * (largest_mu / 2 + 10)
  fine_enough = min(_USUAL_STEP, _STEP_OF_SPREAD * spread)
  largest_loss = max(_at_least_rdp(history, fine_enough * _MOST_STEPS), largest_of_one)
  if largest_loss / _MOST_STEPS > fine_enough:
    largest_loss = max(Rdp().epsilon(history, _TAIL), largest_of_one)
  return max(fine_enough, largest_loss / _MOST_STEPS)


def _at_least_rdp(history: histories_lib.History, enough: float) -> float:
  """At least ε by `Rdp` at `_TAIL`, in a small part of its time; the first such bound that is `enough`, if one is.

  Divergences of sampled rounds at fractional orders take most of an account's time, and mostly the step is the same
  without them.
  """
  if not history.is_sampled:
    return math.inf
  always_in = unamplified(history, _TAIL)
  if always_in <= enough:
    return always_in
  orders = _whole_orders()
  epsilon, _ = rdp.compute_epsilon(orders, _rdp_of(history, orders), _TAIL)
  return float(epsilon) * (1 + tradeoff.RELATIVE_MARGIN)
