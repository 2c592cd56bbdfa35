"""The history of one client: a multiset of Gaussian mechanisms, each with the rate at which it was sampled.

A run's ledger gives a history for each client: a Gaussian mechanism of μ = w_i(t)/z_t for each round. Under correlated
noise all rounds together are one of μ_i = ‖C·w_i‖/z. A private quantile's noised count is a separate mechanism, in
which a client of weight 0 takes no part either. In a round without clients nobody spends anything.

Composition does not depend on the order, so a history holds counts of distinct mechanisms, and clients with equal
histories are accounted for once. The mechanisms must follow from what is public (schedule, cohorts, participation
counts). Clips or noise that depend on clients' data are releases of their own and belong in the history as such.
"""

import collections
from collections.abc import Iterable, Sequence
import dataclasses
import math
from typing import Any, NamedTuple, Optional

import numpy as np

from quap_tff.accounting import run_ledger
from quap_tff.common import checks
from quap_tff.common import lazy
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms import mechanism as mechanism_lib
from quap_tff.mechanisms.certified import spending

sparse = lazy.module('scipy.sparse')

# Neighbouring relations: what an adversary cannot tell apart. An (ε, δ) for one relation says nothing about another.
ZERO_OUT = "one client's data against nothing in its place, which adds zero; who takes part when is known (zero-out)"
ADD_OR_REMOVE = 'add or remove one client'
REPLACE_ONE = "replace one client's data by another's"

# How far μ is rounded up where the ledger has many different values, and how many values stay exact.
_STEP, _MOST_MECHANISMS = 1e-2, 256
# The same for histories of one mechanism.
_MERGED_STEP, _MOST_MERGED = 1e-3, run_ledger.LARGE_POPULATION


@dataclasses.dataclass(frozen=True, order=True)
class GaussianMechanism:
  """A sum with Gaussian noise, to which one client adds a vector of bounded norm.

  Attributes:
    noise_multiplier: σ over the largest norm that this client's part can have: z/w for a client whose clip is w·C under
      σ = z·C. 0 means no noise, +inf a client that adds nothing.
    sampling_rate: q in (0, 1]: the probability that this client is in the round, independent of all other clients and
      rounds (Poisson sampling). Who took part is kept secret: no cohort size is released, nor any divisor or noise
      level that depends on it. 1: no amplification is counted.
  """

  noise_multiplier: float
  sampling_rate: float = 1.0

  def __post_init__(self) -> None:
    if self.noise_multiplier != math.inf:
      checks.number('noise_multiplier', self.noise_multiplier, at_least=0)
    checks.number('sampling_rate', self.sampling_rate, above=0, at_most=1)

  @property
  def mu(self) -> float:
    """Sensitivity over σ."""
    return 1 / self.noise_multiplier if self.noise_multiplier else math.inf


@dataclasses.dataclass(frozen=True)
class History:
  """Distinct mechanisms and how often each was applied, sorted. Made by `of` or `gaussian`; equal histories are equal.

  Attributes:
    releases: (mechanism, count) pairs, count >= 1, without mechanisms that reveal nothing about the client.
  """

  releases: tuple[tuple[GaussianMechanism, int], ...]

  @classmethod
  def of(cls, releases: Iterable[tuple[GaussianMechanism, int]]) -> 'History':
    """A history of (mechanism, count) pairs in any order; equal mechanisms are added up.

    Raises:
      ValueError: If a count is not an integer of at least 0.
    """
    counts: collections.Counter[GaussianMechanism] = collections.Counter()
    for mechanism, count in releases:
      if checks.integer('count', count, at_least=0) and mechanism.mu:
        counts[mechanism] += int(count)
    return cls(tuple(sorted(counts.items())))

  @classmethod
  def gaussian(cls, noise_multiplier: float, rounds: int, sampling_rate: float = 1.0) -> 'History':
    """A history of one mechanism, the same in each of `rounds` rounds."""
    return cls.of([(GaussianMechanism(noise_multiplier, sampling_rate), rounds)])

  @property
  def is_sampled(self) -> bool:
    return any(mechanism.sampling_rate < 1 for mechanism, _ in self.releases)

  @property
  def neighbours(self) -> str:
    """The relation that the figures hold for: Poisson sampling hides who takes part; otherwise it is known."""
    return ADD_OR_REMOVE if self.is_sampled else ZERO_OUT

  @property
  def sampling_rates(self) -> tuple[float, ...]:
    """The distinct rates below 1."""
    rates = {mechanism.sampling_rate for mechanism, _ in self.releases}
    return tuple(sorted(rates - {1.0}))

  @property
  def count(self) -> int:
    """k, the number of mechanisms; equal ones count separately."""
    return sum(n for _, n in self.releases)

  @property
  def total_mu(self) -> float:
    """√Σμ² over the mechanisms that are not sampled: together they are one Gaussian of this μ."""
    pairs = [(mechanism.mu, n) for mechanism, n in self.releases if mechanism.sampling_rate == 1]
    largest = max((mu for mu, _ in pairs), default=0.0)
    if not largest or math.isinf(largest):
      return largest
    # Scaled, so that nothing overflows; summed exactly.
    sum_of_squares = math.fsum(n * (mu / largest) ** 2 for mu, n in pairs)
    return largest * math.sqrt(sum_of_squares)

  def merged(self) -> 'History':
    """An equivalent history in which all mechanisms that are not sampled are one."""
    mu = self.total_mu
    sampled = [(mechanism, n) for mechanism, n in self.releases if mechanism.sampling_rate < 1]
    if mu:
      sampled.append((GaussianMechanism(1 / mu), 1))
    return History.of(sampled)

  def always_in(self) -> 'History':
    """The history of a client that is in every round: the same mechanisms without sampling."""
    releases = []
    for mechanism, count in self.releases:
      releases.append((dataclasses.replace(mechanism, sampling_rate=1.0), count))
    return History.of(releases)

  def scaled(self, factor: float) -> 'History':
    """The history with `factor` times the noise in every round; factor > 0."""
    releases = []
    for mechanism, count in self.releases:
      noise_multiplier = mechanism.noise_multiplier * factor
      releases.append((dataclasses.replace(mechanism, noise_multiplier=noise_multiplier), count))
    return History.of(releases)


def coarsened(histories: Sequence[History], step: float) -> list[History]:
  """Histories with fewer distinct mechanisms, each of which loses at least as much privacy as the one it replaces.

  μ = 1/z and q are each rounded up, by a factor of at most 1 + step, to the largest of all values over a power of
  (1 + step). Both can only add loss. For q this holds because sampling from a sample is sampling at a smaller rate.

  Args:
    histories: With any mechanisms; the one with the largest μ and rate stays as it is.
    step: Above 0; ε grows by about this share.
  """
  mechanisms = list({mechanism for history in histories for mechanism, _ in history.releases})
  exact_mu = [mechanism.mu for mechanism in mechanisms]
  exact_rates = [mechanism.sampling_rate for mechanism in mechanisms]
  mu = rounded_up(np.array(exact_mu, np.float64), step)
  rates = rounded_up(np.array(exact_rates, np.float64), step)
  with np.errstate(divide='ignore'):  # A μ of 0 has infinite noise.
    noise_multipliers = 1 / mu
  coarse = {}
  for mechanism, noise_multiplier, rate in zip(mechanisms, noise_multipliers.tolist(), rates.tolist()):
    coarse[mechanism] = GaussianMechanism(noise_multiplier, rate)

  def coarsened_history(history: History) -> History:
    return History.of((coarse[mechanism], count) for mechanism, count in history.releases)

  return list(map(coarsened_history, histories))


def rounded_up(values: np.ndarray, step: float) -> np.ndarray:
  """float64 values >= 0, each rounded up to the largest finite one over a power of (1 + step); 0 and +inf stay."""
  grid = math.log1p(checks.number('step', step, above=0))
  inside = (values > 0) & np.isfinite(values)
  largest = values[inside].max(initial=0.0) or 1.0
  below_largest = np.log(largest / np.where(inside, values, largest))
  # With room for rounding: a value that lies on the grid stays where it is.
  steps = np.floor(below_largest / grid + 1e-9)
  on_grid = largest * np.exp(-steps * grid)
  # What the room lets fall below a value is the value itself.
  return np.where(inside, np.maximum(values, on_grid), values)


class ClientHistories(NamedTuple):
  """Histories of many clients; each distinct history appears once.

  Attributes:
    histories: The distinct histories.
    index: int[N], which of them each client has.
  """

  histories: list[History]
  index: np.ndarray  # type: ignore[assignment]  # It hides the method of tuples.


def group(clients: Any, kinds: Any, mechanisms: Sequence[GaussianMechanism], num_clients: int) -> ClientHistories:
  """The histories of N clients, given the mechanisms that each went through.

  Args:
    clients: int[K] ids in [0, N).
    kinds: int[K]: clients[e] went through mechanisms[kinds[e]], in any order.
    mechanisms: Distinct mechanisms.
    num_clients: N.

  Returns:
    A `ClientHistories`.
  """
  clients, kinds = np.asarray(clients, np.int64), np.asarray(kinds, np.int64)
  ordered = sorted(mechanisms)  # As histories keep them.
  place = np.array([ordered.index(mechanism) for mechanism in mechanisms], np.int64)
  # A history leaves mechanisms out that reveal nothing.
  reveals = np.array([mechanism.mu > 0 for mechanism in mechanisms], bool)[kinds]
  clients, kinds = clients[reveals], place[kinds[reveals]]
  # How often each client (row) went through each mechanism (column).
  ones, shape = np.ones(len(kinds), np.int64), (num_clients, max(len(mechanisms), 1))
  counts = sparse.csr_matrix((ones, (clients, kinds)), shape)
  counts.sum_duplicates()
  ends, columns, values = counts.indptr, counts.indices, counts.data
  busy = np.diff(ends) > 0
  idle = np.flatnonzero(~busy)[:1]  # The first stands for all.
  seen: dict[tuple[bytes, bytes], int] = {}
  histories: list[History] = []
  index = np.zeros(num_clients, np.int64)
  for client in np.concatenate([np.flatnonzero(busy), idle]):
    entries = slice(ends[client], ends[client + 1])
    key = columns[entries].tobytes(), values[entries].tobytes()
    if key not in seen:
      seen[key] = len(histories)
      own = [ordered[kind] for kind in columns[entries].tolist()]
      histories.append(History(tuple(zip(own, values[entries].tolist()))))
    index[client] = seen[key]
  if len(idle):
    index[~busy] = index[idle[0]]
  return ClientHistories(histories, index)


class TotalMu(NamedTuple):
  """√Σμ² of each client, rounded up by a share of less than 1e-9: the μ of one Gaussian that reveals as much.

  Attributes:
    whole: float64[N], from everything that was released, before this run too.
    updates: float64[N], from the sums of updates alone.
    counts: float64[N], from the noised counts alone.
  """

  whole: np.ndarray
  updates: np.ndarray
  counts: np.ndarray

  @property
  def came(self) -> np.ndarray:
    """bool[N], the clients about whom this run has released anything."""
    return np.maximum(self.updates, self.counts) > 0


def total_mu(ledger: run_ledger.RunLedger, num_rounds: Optional[float] = None) -> TotalMu:
  """The total μ of each client over the ledger's rounds and before; +inf for one that was in a round without noise.

  Args:
    ledger: The rounds.
    num_rounds: The planned rounds; None: the ledger has all of them. See `spending.spending`.

  Raises:
    ValueError: If a μ is NaN, which is not a bound; or if noise multipliers differ under correlated noise.
  """

  def spent(history: Iterable[mechanism_lib.RoundRecord]) -> np.ndarray:
    return spending.spending(history, ledger.correlation, ledger.num_clients, num_rounds).mu_squared

  mu = spent(ledger.history)
  whole = np.sqrt(mu + ledger.spent_before)
  is_nan = np.isnan(whole)
  if is_nan.any():
    raise ValueError(
      f'The account of client {int(np.argmax(is_nan))} is not a number: its rounds and {ledger.correlation!r} give no '
      'μ that a float can hold. Nothing can be said about this run.'
    )
  state = ledger.state_dict()
  if np.isinf(state['count_noise_multipliers']).all():
    return TotalMu(whole, np.sqrt(mu), np.zeros_like(whole))
  updates = [record._replace(count_noise_multiplier=np.inf) for record in ledger.history]
  # A client counts with 1 in each round in which it has a weight.
  noise_of_counts = np.repeat(state['count_noise_multipliers'], np.diff(state['offsets']))
  count_mu = _over(state['weights'] > 0, noise_of_counts)
  counts = _root_of_squares(state['clients'], count_mu, ledger.num_clients)
  return TotalMu(whole, np.sqrt(spent(updates)), counts)


def epsilon_by_client(ledger: run_ledger.RunLedger, delta: float) -> np.ndarray:
  """float64[N], the exact ε of each client at a total δ, without amplification; +inf without noise."""
  return tradeoff.epsilon_of(total_mu(ledger).whole, delta)


def merged_histories(mu: np.ndarray) -> ClientHistories:
  """Each client's history as one mechanism: Gaussian mechanisms compose to one Gaussian.

  If there are more than 10,000 distinct μ, each is rounded up, by at most 0.1%, to the largest one over a power of
  1.001.

  Args:
    mu: `total_mu(ledger).whole`, float64[N].
  """
  distinct, index = np.unique(mu, return_inverse=True)
  if len(distinct) > _MOST_MERGED:
    distinct, again = np.unique(rounded_up(distinct, _MERGED_STEP), return_inverse=True)
    index = again[index]
  return ClientHistories([History.gaussian(_inverse(mu), 1) for mu in distinct], index)


def histories(ledger: run_ledger.RunLedger) -> ClientHistories:
  """Each client's history, mechanism by mechanism; under correlated noise there is only one mechanism.

  If a ledger has more than 256 distinct μ, each is rounded up, by at most 1%, to the largest one over a power of 1.01.
  """
  if ledger.correlation.num_buffers:
    return merged_histories(total_mu(ledger).whole)
  # Each entry is a client and a kind: the place of a mechanism's μ in `distinct`.
  state = ledger.state_dict()
  sizes = np.diff(state['offsets'])
  weights, ones = state['weights'], np.ones(len(sizes))
  if (weights == 1).all():
    # Rounds are far fewer than entries, so they are sorted in their place.
    distinct, kinds_of_rounds = np.unique(_over(ones, state['noise_multipliers']), return_inverse=True)
    kinds = np.repeat(kinds_of_rounds, sizes)
  else:
    mu = _over(weights, np.repeat(state['noise_multipliers'], sizes))
    distinct, kinds = np.unique(mu, return_inverse=True)
  count_mu, kinds_of_counts = np.unique(_over(ones, state['count_noise_multipliers']), return_inverse=True)
  clients = state['clients']
  if count_mu.any():
    is_counted = weights > 0
    more = np.repeat(kinds_of_counts, sizes)[is_counted]
    clients = np.concatenate([clients, clients[is_counted]])
    kinds = np.concatenate([kinds, len(distinct) + more])
    distinct = np.concatenate([distinct, count_mu])
  with_spending = np.flatnonzero(ledger.spent_before)
  if len(with_spending):
    # What was spent before is one mechanism of each client.
    more = np.arange(len(with_spending))
    clients = np.concatenate([clients, with_spending])
    kinds = np.concatenate([kinds, len(distinct) + more])
    distinct = np.concatenate([distinct, np.sqrt(ledger.spent_before[with_spending])])
  if len(distinct) > _MOST_MECHANISMS:
    distinct = rounded_up(distinct, _STEP)
  distinct, index = np.unique(distinct, return_inverse=True)
  mechanisms = [GaussianMechanism(_inverse(mu)) for mu in distinct]
  return group(clients, index[kinds], mechanisms, ledger.num_clients)


def _inverse(mu: float) -> float:
  return float(1 / mu) if mu else np.inf


def _over(weights: np.ndarray, noise_multipliers: np.ndarray) -> np.ndarray:
  """μ = w/z; 0 where the weight is 0, whatever the noise. NaN stays NaN."""
  with np.errstate(divide='ignore', invalid='ignore', over='ignore'):
    return np.where(weights == 0, 0.0, weights / noise_multipliers)


def _root_of_squares(clients: np.ndarray, values: np.ndarray, num_clients: int) -> np.ndarray:
  unbounded = np.isinf(values)
  largest = values[~unbounded].max(initial=0.0)
  # Scaled, so that nothing overflows.
  scaled = np.where(unbounded, 0.0, values / (largest or 1.0))
  total = largest * np.sqrt(np.bincount(clients, scaled * scaled, num_clients))
  # The sum of n terms is below the true one by at most n half units in the last place.
  most_terms = np.bincount(clients, minlength=num_clients).max(initial=0)
  total *= 1 + (most_terms + 8) * 2.0**-53
  has_unbounded = np.bincount(clients, unbounded, num_clients) > 0
  total[has_unbounded] = np.inf
  return total
