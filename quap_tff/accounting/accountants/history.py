"""The history of one client: a multiset of Gaussian mechanisms, each with the rate at which it was sampled.

Composition does not depend on the order, so a history holds counts of distinct mechanisms, and clients with equal
histories are accounted for once. The mechanisms must follow from what is public (schedule, cohorts, participation
counts). Clips or noise that depend on clients' data are releases of their own and belong in the history as such.
"""

import collections
from collections.abc import Iterable, Sequence
import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from quap_tff.common import checks
from quap_tff.common import lazy

sparse = lazy.module('scipy.sparse')

# Neighbouring relations: what an adversary cannot tell apart. An (ε, δ) for one relation says nothing about another.
ZERO_OUT = "one client's data against nothing in its place, which adds zero; who takes part when is known (zero-out)"
ADD_OR_REMOVE = 'add or remove one client'
REPLACE_ONE = "replace one client's data by another's"


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

  def __post_init__(self):
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
    """The same mechanism in each of `rounds` rounds."""
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
    return tuple(sorted({mechanism.sampling_rate for mechanism, _ in self.releases} - {1.0}))

  @property
  def count(self) -> int:
    """k, the number of mechanisms; equal ones count separately."""
    return sum(n for _, n in self.releases)

  @property
  def total_mu(self) -> float:
    """√Σμ² over the mechanisms that are not sampled: together they are one Gaussian of this μ."""
    return _root_of_squares((mechanism.mu, n) for mechanism, n in self.releases if mechanism.sampling_rate == 1)

  def merged(self) -> 'History':
    """An equivalent history in which all mechanisms that are not sampled are one."""
    mu = self.total_mu
    sampled = [(mechanism, n) for mechanism, n in self.releases if mechanism.sampling_rate < 1]
    return History.of(sampled + ([(GaussianMechanism(1 / mu), 1)] if mu else []))

  def always_in(self) -> 'History':
    """The history of a client that is in every round: the same mechanisms without sampling."""
    return History.of((dataclasses.replace(mechanism, sampling_rate=1.0), n) for mechanism, n in self.releases)

  def scaled(self, factor: float) -> 'History':
    """The history with `factor` times the noise in every round; factor > 0."""
    return History.of(
      (dataclasses.replace(mechanism, noise_multiplier=mechanism.noise_multiplier * factor), n)
      for mechanism, n in self.releases
    )


def coarsened(histories: Sequence[History], step: float) -> list[History]:
  """Histories with fewer distinct mechanisms, each of which loses at least as much privacy as the one it replaces.

  μ = 1/z and q are each rounded up, by a factor of at most 1 + step, to the largest of all values over a power of
  (1 + step). Both can only add loss. For q this holds because sampling from a sample is sampling at a smaller rate.

  Args:
    histories: With any mechanisms; the one with the largest μ and rate stays as it is.
    step: Above 0; ε grows by about this share.
  """
  mechanisms = list({mechanism for history in histories for mechanism, _ in history.releases})
  mu = rounded_up(np.array([m.mu for m in mechanisms], np.float64), step)
  rates = rounded_up(np.array([m.sampling_rate for m in mechanisms], np.float64), step)
  with np.errstate(divide='ignore'):
    made = {pair: GaussianMechanism(*pair) for pair in set(zip((1 / mu).tolist(), rates.tolist()))}
  coarse = {m: made[pair] for m, pair in zip(mechanisms, zip((1 / mu).tolist(), rates.tolist()))}
  return [History.of((coarse[mechanism], n) for mechanism, n in history.releases) for history in histories]


def rounded_up(values: np.ndarray, step: float) -> np.ndarray:
  """float64 values >= 0, each rounded up to the largest finite one over a power of (1 + step); 0 and +inf stay."""
  grid = math.log1p(checks.number('step', step, above=0))
  inside = (values > 0) & np.isfinite(values)
  largest = values[inside].max(initial=0.0) or 1.0
  steps = np.floor(np.log(largest / np.where(inside, values, largest)) / grid + 1e-9)
  return np.where(inside, np.maximum(values, largest * np.exp(-steps * grid)), values)


def _root_of_squares(pairs) -> float:
  pairs = list(pairs)
  largest = max((mu for mu, _ in pairs), default=0.0)
  if not largest or math.isinf(largest):
    return largest
  # Scaled, so that nothing overflows; summed exactly.
  return largest * math.sqrt(math.fsum(n * (mu / largest) ** 2 for mu, n in pairs))


class Population(NamedTuple):
  """Histories of many clients; each distinct history appears once.

  Attributes:
    histories: The distinct histories.
    index: int[N], which of them each client has.
  """

  histories: list[History]
  index: np.ndarray  # type: ignore[assignment]  # It hides the method of tuples.


def group(clients: Any, kinds: Any, mechanisms: Sequence[GaussianMechanism], num_clients: int) -> Population:
  """The histories of N clients, given the mechanisms that each went through.

  Args:
    clients: int[K] ids in [0, N).
    kinds: int[K]: clients[e] went through mechanisms[kinds[e]], in any order.
    mechanisms: Distinct mechanisms.
    num_clients: N.

  Returns:
    A `Population`.
  """
  clients, kinds = np.asarray(clients, np.int64), np.asarray(kinds, np.int64)
  ordered = sorted(mechanisms)  # As histories keep them.
  place = np.array([ordered.index(mechanism) for mechanism in mechanisms], np.int64)
  telling = np.array([mechanism.mu > 0 for mechanism in mechanisms], bool)[kinds]
  clients, kinds = clients[telling], place[kinds[telling]]
  counts = sparse.csr_matrix((np.ones(len(kinds), np.int64), (clients, kinds)), (num_clients, max(len(mechanisms), 1)))
  counts.sum_duplicates()
  ends, columns, values = counts.indptr, counts.indices, counts.data
  busy = np.diff(ends) > 0
  idle = np.flatnonzero(~busy)[:1]  # The first stands for all.
  seen: dict[tuple[bytes, bytes], int] = {}
  histories: list[History] = []
  index = np.zeros(num_clients, np.int64)
  for client in np.concatenate([np.flatnonzero(busy), idle]):
    own = slice(ends[client], ends[client + 1])
    key = columns[own].tobytes(), values[own].tobytes()
    if key not in seen:
      seen[key] = len(histories)
      pairs = zip(columns[own].tolist(), values[own].tolist())
      histories.append(History(tuple((ordered[kind], n) for kind, n in pairs)))
    index[client] = seen[key]
  index[~busy] = index[idle[0]] if len(idle) else 0
  return Population(histories, index)
