"""How the noise of a round is correlated with that of the rounds before.

Noise that is independent from round to round adds up in a model like a random walk. Noise that partly takes back what
earlier rounds added does not. Let Z_s be independent Gaussian vectors. Release s adds the noise Ẑ_s, where

    Σ_{k≥0} c_k·Ẑ_{s-k} = Z_s,     c_0 = 1,     c_k = Σ_j gain_j·decay_j^(k-1)  for k ≥ 1.

This is a buffered linear Toeplitz mechanism (Dvijotham, McMahan, Pillutla, Steinke and Thakurta 2024). Each of its
terms j needs one buffer b_j = Σ_{k≥1} decay_j^(k-1)·Ẑ_{s-k} of the model's size, and one number for each client.
docs/privacy.md derives a client's privacy loss under it. A new family is a class here and a line in `FAMILIES`.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
import dataclasses
import math
from typing import Any, Optional

import numpy as np
from scipy import linalg

from quap_tff.common import arrays
from quap_tff.common import checks
from quap_tff.mechanisms import held_noise

# With this limit, a client's sum of exponentials forgets rounding errors that are older than some thousand releases.
LARGEST_DECAY = 0.999
# A smaller decay changes next to nothing, and its powers would soon be too small for a float.
SMALLEST_DECAY = 1e-6
# The values from which an open decay is chosen.
DECAYS = (0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97)
# In place of a gain, in a ledger: the noise was held by clients.
_OF_HELD = -1.0


class Correlation(abc.ABC):
  """The coefficients c_k. Subclasses are frozen dataclasses in `FAMILIES`.

  They are never negative and never grow with k, because Σ gain_j ≤ 1 and decay_j < 1. This keeps the noise bounded.
  """

  @property
  @abc.abstractmethod
  def terms(self) -> tuple[tuple[float, float], ...]:
    """(gain_j, decay_j) for each term."""

  @property
  def is_settled(self) -> bool:
    """Whether all coefficients are given. If not, they are chosen from a schedule."""
    return True

  @property
  def gains(self) -> np.ndarray:
    """gain_j of each term, float64[d]."""
    return np.array([gain for gain, _ in self.terms], np.float64)

  @property
  def decays(self) -> np.ndarray:
    """decay_j of each term, float64[d]."""
    return np.array([decay for _, decay in self.terms], np.float64)

  @property
  def num_buffers(self) -> int:
    """d, the number of terms; 0 for independent noise."""
    return len(self.terms)

  def coefficients(self, count: int) -> np.ndarray:
    """c_0 … c_{count-1}, float64[count]."""
    powers = self.decays ** np.arange(max(count - 1, 0))[:, np.newaxis]
    return np.concatenate([[1.0], (powers * self.gains).sum(axis=1)])[:count]

  def price(self, releases_left: Any) -> tuple[Any, list[Any]]:
    """What a weight in a release costs, counting that release and all that may follow it.

    Suppose that a client has weight w in a release, and that its sums of exponentials were h_j before it. The client
    shifts this release and each of the next `releases_left` ones by a vector. The weight raises the sum of the squared
    norms of these vectors by A·w² + 2·w·Σ_j κ_j·h_j.

    Args:
      releases_left: L ≥ 0, a number or a tensor: an integer, or +inf.

    Returns:
      (A, κ): a float64 scalar, and a list of d float64 scalars.
    """
    if not self.num_buffers:
      return 1.0, []
    gains, decays = self.gains, self.decays
    left = arrays.cast(releases_left, np.float64)
    xp = arrays.namespace(left)
    # Σ_{k=1..L} (decay_j·decay_l)^(k-1). The logarithm is not that of a product, which could be too small for a float.
    logs = np.log(decays)
    sums = (1.0 - xp.exp(left * np.add.outer(logs, logs))) / (1.0 - np.multiply.outer(decays, decays))
    by_term = gains * xp.sum(gains * sums, axis=-1)
    factors = gains + decays * by_term
    return 1.0 + xp.sum(by_term), [factors[j] for j in range(self.num_buffers)]

  def overlap(self, gap: Any) -> Any:
    """What evenly spread participations cost in addition to their own cost, in the limit of infinitely many.

    It is the sum over m ≥ 1 of the inner products of two unit participations that are m·gap releases apart, divided by
    the squared norm of one.

    Args:
      gap: The number of releases from one participation to the next, at least 1: floats of any shape.

    Returns:
      Floats of the same shape; 0 for independent noise.
    """
    whole, _ = self.price(math.inf)
    xp = arrays.namespace(gap)
    result = 0.0 * gap
    for gain, decay in self.terms:
      share = gain / decay * (1 + decay * sum(other / (1 - decay * also) for other, also in self.terms))
      power = xp.exp(gap * math.log(decay))
      result = result + share * power / (1.0 - power)
    return result / whole

  def squared_norms(self, cohorts: Sequence[Any], weights: Sequence[Any], num_clients: int) -> np.ndarray:
    """‖C·w_i‖² of each client, float64[N]: Σ_s (Σ_{t≤s} c_{s-t}·w_i(t))² over all releases.

    Args:
      cohorts: int[M_s], the clients of each release.
      weights: float[M_s], their weights.
      num_clients: N.
    """
    total = np.zeros(num_clients)
    sums, latest = np.zeros([num_clients, self.num_buffers]), np.zeros(num_clients, np.int64)
    for release, (ids, own) in enumerate(zip(cohorts, weights)):
      ids, own = np.asarray(ids, np.int64), np.asarray(own, np.float64)
      unit, by_sum = self.price(len(cohorts) - 1 - release)
      before = sums[ids] * self.decays ** np.maximum(release - 1 - latest[ids], 0)[:, np.newaxis]
      total[ids] += own * (unit * own + 2.0 * before @ np.array(by_sum))
      sums[ids] = before * self.decays + own[:, np.newaxis]
      latest[ids] = release
    return total

  def covariance(self, cohorts: Sequence[Any], noise_multipliers: Sequence[float]) -> np.ndarray:
    """The covariance of the noise in T releases, for each coordinate and in clipping norms, float64[T, T].

    Args:
      cohorts: int[M_t], the clients of each release.
      noise_multipliers: z_t of each release.
    """
    mixing = linalg.toeplitz(self.coefficients(len(cohorts)), np.zeros(len(cohorts)))
    unmixed = np.linalg.solve(mixing, np.diag(np.asarray(noise_multipliers, np.float64)))
    return unmixed @ unmixed.T

  def worst_case(self, most: int, apart: int, num_releases: int) -> float:
    """The largest ‖C·x‖ of a client with weights of 1 that is in at most `most` releases, at least `apart` apart.

    This is the published way to account for correlated noise: one number for all clients, from two public bounds on the
    schedule. As the coefficients do not grow, the worst client is the one that comes in the first release and then as
    often as it may (Kalinin and Lampert 2024, "Banded Square Root Matrix Factorization", Theorem 2).

    Args:
      most: k ≥ 1.
      apart: b ≥ 1; 1 if a client may be in successive releases.
      num_releases: The number of releases.
    """
    checks.integer('most', most, at_least=1)
    checks.integer('apart', apart, at_least=1)
    checks.integer('num_releases', num_releases, at_least=1)
    column = self.coefficients(num_releases)
    moved = np.zeros(num_releases)
    for start in range(0, min(num_releases, most * apart), apart):
      moved[start:] += column[: num_releases - start]
    return float(np.linalg.norm(moved))

  def published_noise(self, shares: Sequence[float]) -> float:
    """‖C⁻ᵀv‖: the standard deviation of Σ_s v_s·Ẑ_s, for Z_s of standard deviation 1.

    Args:
      shares: v_s for each release: the factor with which it enters what is published.
    """
    total, buffers = 0.0, np.zeros(self.num_buffers)
    for share in reversed(np.asarray(shares, np.float64)):
      own = share - self.gains @ buffers
      buffers = self.decays * buffers + own
      total += own * own
    return math.sqrt(total)


@dataclasses.dataclass(frozen=True)
class Independent(Correlation):
  """Ẑ_s = Z_s: each round has independent noise."""

  @property
  def terms(self) -> tuple[tuple[float, float], ...]:
    return ()


class _OfOneDecay(Correlation):
  """A family with one decay, which may be left to the plan."""

  decay: Optional[float]

  @property
  def is_settled(self) -> bool:
    return self.decay is not None

  @property
  def chosen(self) -> float:
    """The decay; raises `ValueError` while it is open."""
    if self.decay is None:
      raise ValueError(
        'The decay is not chosen yet. Give it, or let quap_tff.mechanisms.planning.calibrated choose it.'
      )
    return self.decay


@dataclasses.dataclass(frozen=True)
class Ar1(_OfOneDecay):
  """c_k = decay^k, so that Ẑ_s = Z_s - decay·Z_{s-1}: each round takes back a share of what the round before added.

  Attributes:
    decay: 0, which is independent noise, or in [1e-6, 0.999]. None: chosen from the planned cohorts, like the noise
      multiplier.
  """

  decay: Optional[float] = None

  def __post_init__(self):
    if self.decay is not None:
      checks.number('decay', self.decay, at_least=0, at_most=LARGEST_DECAY)
      if self.decay:
        _check_decay('decay, unless it is 0 (independent noise),', self.decay)

  @property
  def terms(self) -> tuple[tuple[float, float], ...]:
    return ((self.chosen, self.chosen),) if self.chosen else ()


@dataclasses.dataclass(frozen=True)
class Blt(Correlation):
  """c_k = Σ_j gain_j·decay_j^(k-1): several memories of different lengths.

  Attributes:
    gain: gain_j of each term. Each is greater than 0, and their sum is at most 1.
    decay: decay_j of each term, in [1e-6, 0.999].
  """

  gain: tuple[float, ...] = (0.5, 0.2)
  decay: tuple[float, ...] = (0.9, 0.5)

  def __post_init__(self):
    for name, values in (('gain', self.gain), ('decay', self.decay)):
      if not isinstance(values, tuple) or not values:
        raise ValueError(f'{name} must be a tuple with one number for each term, found {values!r}.')
    for gain in self.gain:
      checks.number('gain', gain, above=0, at_most=1)
    for decay in self.decay:
      _check_decay('decay', decay)
    if len(self.gain) != len(self.decay):
      raise ValueError(f'There must be as many gains as decays, found {len(self.gain)} and {len(self.decay)}.')
    if sum(self.gain) > 1:
      raise ValueError(f'The gains must not sum to more than 1, found {sum(self.gain):g}.')
    if len(set(self.decay)) != len(self.decay):
      raise ValueError(f'Each decay must appear once, found {self.decay}.')

  @property
  def terms(self) -> tuple[tuple[float, float], ...]:
    return tuple(zip(self.gain, self.decay))


@dataclasses.dataclass(frozen=True)
class Held(_OfOneDecay):
  """Noise that clients hold: each takes back a part of the noise of its own last round (`held_noise`).

  There are no coefficients that hold for all clients. A client's account follows from who came.

  Attributes:
    decay: λ, in [0, 0.999]; 0 is independent noise. None: chosen from the planned cohorts.
  """

  decay: Optional[float] = None

  def __post_init__(self):
    if self.decay is not None:
      checks.number('decay', self.decay, at_least=0, at_most=held_noise.LARGEST_DECAY)

  @property
  def terms(self) -> tuple[tuple[float, float], ...]:
    return ((_OF_HELD, self.chosen),)

  def coefficients(self, count: int) -> np.ndarray:
    raise ValueError('Noise that clients hold has no coefficients that are the same for all clients.')

  def covariance(self, cohorts: Sequence[Any], noise_multipliers: Sequence[float]) -> np.ndarray:
    return held_noise.covariance(cohorts, self.terms[0][1]) * min(noise_multipliers) ** 2

  def squared_norms(self, cohorts: Sequence[Any], weights: Sequence[Any], num_clients: int) -> np.ndarray:
    account = held_noise.opened(num_clients, 1.0, self.terms[0][1])
    for ids, own in zip(cohorts, weights):
      sends = np.asarray(own) > 0  # A client of weight 0 sends nothing, not even noise.
      account = account.after(np.asarray(ids, np.int64)[sends], np.asarray(own, np.float64)[sends])
    return account.spent


def _check_decay(name, value):
  checks.number(name, value, at_least=SMALLEST_DECAY, at_most=LARGEST_DECAY)


def of_terms(gains: Sequence[float], decays: Sequence[float]) -> Correlation:
  """The correlation with these terms, as a ledger keeps them. Without terms, the noise is independent."""
  if list(gains) == [_OF_HELD]:
    return Held(*map(float, decays))
  return Blt(tuple(map(float, gains)), tuple(map(float, decays))) if len(gains) else Independent()


FAMILIES = {'independent': Independent, 'ar1': Ar1, 'blt': Blt, 'held': Held}
