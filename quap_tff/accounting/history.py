"""What one client goes through: a multiset of Gaussian mechanisms, each with the rate at which it was sampled.

Composition does not ask in which order, so a history is counts of distinct mechanisms, and clients with equal
histories are accounted once. The mechanisms must be settled by what is public (schedule, cohorts, participation
counts): clips or noise that depend on clients' data are releases of their own and belong into the history as such.
"""

import collections
import dataclasses
import math
from typing import Any, Iterable, List, NamedTuple, Optional, Tuple

import numpy as np

from quap_tff import checks


@dataclasses.dataclass(frozen=True, order=True)
class GaussianMechanism:
  """A sum with Gaussian noise, to which one client adds a vector of bounded norm.

  Attributes:
    noise_multiplier: σ over the largest norm that this client's part can have: z/w for a client whose clip is w·C under
      σ = z·C. 0 is no noise, +inf a client that adds nothing.
    sampling_rate: q in (0, 1]: probability with which this client is in the round, independent of all other clients
      and rounds (Poisson sampling), where who took part is kept secret: neither a cohort's size nor a divisor or noise
      level that goes by it is released. 1: no amplification is counted.
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
    releases: (mechanism, count) pairs, count >= 1; none that tells nothing of the client.
  """

  releases: Tuple[Tuple[GaussianMechanism, int], ...]

  @classmethod
  def of(cls, releases: Iterable[Tuple[GaussianMechanism, int]]) -> 'History':
    """A history of (mechanism, count) pairs in any order; equal mechanisms are added up.

    Raises:
      ValueError: If a count is no integer of at least 0.
    """
    counts = collections.Counter()
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
  def sampling_rates(self) -> Tuple[float, ...]:
    """The distinct rates below 1."""
    return tuple(sorted({mechanism.sampling_rate for mechanism, _ in self.releases} - {1.0}))

  @property
  def total_mu(self) -> float:
    """√Σμ² over the mechanisms that are not sampled: together they are one Gaussian of this μ."""
    return _root_of_squares((mechanism.mu, n) for mechanism, n in self.releases if mechanism.sampling_rate == 1)

  def merged(self) -> 'History':
    """An equivalent history with all mechanisms that are not sampled as one."""
    mu = self.total_mu
    sampled = [(mechanism, n) for mechanism, n in self.releases if mechanism.sampling_rate < 1]
    return History.of(sampled + ([(GaussianMechanism(1 / mu), 1)] if mu else []))

  def scaled(self, factor: float) -> 'History':
    """The history with `factor` times the noise in every round; factor > 0."""
    return History.of(
        (dataclasses.replace(mechanism, noise_multiplier=mechanism.noise_multiplier * factor), n)
        for mechanism, n in self.releases
    )

  def coarsened(self, step: float) -> 'History':
    """A history of fewer distinct mechanisms that loses at least as much privacy.

    1/z and q are each rounded up to a power of (1 + step), so by at most that factor. Both only ever add loss: for q,
    because sampling what is sampled already is sampling at a smaller rate.

    Args:
      step: Above 0; ε grows by about as much, relatively.
    """
    grid = math.log1p(checks.number('step', step, above=0))

    def up(value):
      if not value or math.isinf(value):
        return value
      return max(value, math.exp(math.ceil(math.log(value) / grid - 1e-9) * grid))

    return History.of(
        (GaussianMechanism(
            min(1 / up(m.mu) if m.mu else math.inf, m.noise_multiplier), min(1.0, up(m.sampling_rate))
        ), n)
        for m, n in self.releases
    )


def _root_of_squares(pairs) -> float:
  pairs = list(pairs)
  largest = max((mu for mu, _ in pairs), default=0.0)
  if not largest or math.isinf(largest):
    return largest
  # Scaled, so that nothing overflows; summed exactly.
  return largest * math.sqrt(math.fsum(n * (mu / largest)**2 for mu, n in pairs))


class Population(NamedTuple):
  """Histories of many clients, each distinct one once.

  Attributes:
    histories: The distinct histories.
    index: int[N], which of them each client has.
  """

  histories: List[History]
  index: np.ndarray


def group(
    participation: Any, noise_multipliers: Any, weights: Optional[Any] = None, sampling_rates: Any = 1.0
) -> Population:
  """The histories of N clients over T rounds.

  Args:
    participation: bool[T, N], who was in the round; with sampling rates below 1, who could have been: whether they were
      is what the rates speak of.
    noise_multipliers: float[T], z_t, σ_t over the clip of a client of weight 1.
    weights: float[T, N] or float[N] in [0, 1], shares of the clip that a client may use. None: 1.
    sampling_rates: float or float[N], q in (0, 1].

  Returns:
    A `Population`.

  Raises:
    ValueError: If shapes or values don't fit.
  """
  present = np.asarray(participation, bool)
  if present.ndim != 2:
    raise ValueError(f'participation must be bool[rounds, clients], found shape {present.shape}.')
  rounds, clients = present.shape
  multipliers = _floats('noise_multipliers', noise_multipliers, (rounds,), at_least=0)
  rates = np.broadcast_to(_floats('sampling_rates', sampling_rates, (clients,), (), above=0, at_most=1), (clients,))
  if weights is not None:
    weights = _floats('weights', weights, (rounds, clients), (clients,), at_least=0, at_most=1)
  distinct, of_round = np.unique(multipliers, return_inverse=True)
  # What is alike at a glance is made a history once; histories can be equal even so (a weight of 0, say).
  seen, places, made, index = {}, {}, {}, np.empty(clients, np.int64)
  for i in range(clients):
    if weights is not None and weights.ndim == 2:
      used = present[:, i] & (weights[:, i] > 0)
      own, counts = np.unique(multipliers[used] / weights[used, i], return_counts=True)
      weight = 1.0
    else:
      own, counts = distinct, np.bincount(of_round[present[:, i]], minlength=len(distinct))
      weight = float(weights[i]) if weights is not None else 1.0
    key = (own.tobytes(), counts.tobytes(), weight, float(rates[i]))
    if key not in seen:
      seen[key] = places.setdefault(_history(own, weight, rates[i], counts, made), len(places))
    index[i] = seen[key]
  return Population(list(places), index)


def _history(multipliers, weight, rate, counts, made) -> History:
  """`History.of`, for ascending multipliers; mechanisms are made once and kept in `made`."""
  releases = []
  if weight:
    for k in np.flatnonzero(counts):
      key = (multipliers[k], weight, rate)
      if key not in made:
        made[key] = GaussianMechanism(float(multipliers[k] / weight), float(rate))
      if made[key].mu:
        releases.append((made[key], int(counts[k])))
  return History(tuple(releases))


def _floats(name, values, *shapes, above=None, at_least=None, at_most=None) -> np.ndarray:
  array = np.asarray(values, np.float64)
  if array.shape not in shapes:
    raise ValueError(f'{name} must be of shape {" or ".join(map(str, shapes))}, found {array.shape}.')
  good = array == array
  good &= (array > above) if above is not None else True
  good &= (array >= at_least) if at_least is not None else True
  good &= (array <= at_most) if at_most is not None else True
  if not good.all():
    checks.number(name, float(array[~good].flat[0]), above=above, at_least=at_least, at_most=at_most)
  return array
