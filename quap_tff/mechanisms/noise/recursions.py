"""Correlated noise as a linear recursion: what a release takes back, and how what it takes back from moves on.

    Ẑ_s = Z_s - Σ_j gain_j·b_j,     b ← `after`(b, Ẑ_s)

Buffer j holds something of earlier releases: of the noise, whose vectors have the model's size, or of a client's
weights, one number for each client. The impulse response of the recursion is the coefficients c_k. A family says how
its buffers move on, and with that what a client's participation costs (docs/proofs.md).
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
import math
import operator
from typing import Callable

import numpy as np

from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.common import lazy
from quap_tff.common.numbers import arrays

linalg = lazy.module('scipy.linalg')


class Correlation(checks.Checked, abc.ABC):
  """The coefficients c_k. Subclasses are frozen dataclasses in `quap_tff.mechanisms.noise.correlation.FAMILIES`.

  c_0 is 1. The coefficients are never negative and never grow with k. This keeps the noise bounded.
  """

  @property
  def is_settled(self) -> bool:
    """True if all coefficients are given. If not, they are chosen from a schedule."""
    return True

  def check_rounds(self, num_rounds: int) -> None:  # noqa: B027 (most families can do with any number)
    """Raises `ValueError` if the family cannot do with so few rounds."""

  def candidates(self, num_releases: int, most: int, apart: int) -> tuple[Correlation, ...]:
    """The settled correlations from which a plan chooses: this one, if all its coefficients are given.

    Args:
      num_releases: n.
      most: k: no client is in more of the releases.
      apart: b: no client is in two releases that are less than b apart.

    Raises:
      ValueError: If the family cannot do with so few releases.
    """
    self.check_rounds(num_releases)
    return (self,)

  @property
  @abc.abstractmethod
  def gains(self) -> np.ndarray:
    """gain_j of each buffer, float64[d]."""

  @property
  @abc.abstractmethod
  def decays(self) -> np.ndarray:
    """The share of each buffer that is left in it after one more release, float64[d]."""

  @property
  def num_buffers(self) -> int:
    """d; 0 for independent noise."""
    return len(self.gains)

  @property
  @abc.abstractmethod
  def formula(self) -> str:
    """The coefficients after c_0, as a certificate shows them."""

  @abc.abstractmethod
  def coefficients(self, count: int) -> np.ndarray:
    """c_0 … c_{count-1}, float64[count]."""

  @abc.abstractmethod
  def after(
    self,
    buffers: Sequence[array_types.Array],
    added: array_types.Array,
    times: Callable[[array_types.Array, float], array_types.Array] = operator.mul,
  ) -> list[array_types.Array]:
    """The d buffers after a release.

    Args:
      buffers: The buffers before it.
      added: What the release adds to them.
      times: The product of a buffer and a factor in (0, 1].
    """

  @abc.abstractmethod
  def faded(self, buffers: Sequence[array_types.Array], elapsed: array_types.Numbers) -> list[array_types.Array]:
    """The d buffers after `elapsed` releases that add nothing to them: float64s of any shape, whole numbers."""

  @abc.abstractmethod
  def price(self, releases_left: array_types.Numbers) -> tuple[array_types.Numbers, list[array_types.Array]]:
    """The cost of a weight in a release, counting that release and all that may follow it.

    Suppose that a client has weight w in a release, and that its buffers were h_j before it. The client shifts this
    release and each of the next `releases_left` ones by a vector. The weight raises the sum of the squared norms of
    these vectors by A·w² + 2·w·Σ_j κ_j·h_j.

    Args:
      releases_left: L ≥ 0, a number or a tensor: an integer, or +inf.

    Returns:
      (A, κ): a float64 scalar, and a list of d float64 scalars.
    """

  @abc.abstractmethod
  def overlap(self, gap: array_types.Numbers) -> array_types.Numbers:
    """The cost of evenly spread participations in addition to their own, in the limit of infinitely many.

    It is the sum over m ≥ 1 of the inner products of two unit participations that are m·gap releases apart, divided by
    the squared norm of one.

    Args:
      gap: The number of releases from one participation to the next, at least 1: floats of any shape.

    Returns:
      Floats of the same shape; 0 for independent noise.
    """

  @abc.abstractmethod
  def lasting(
    self,
    factors: Sequence[array_types.Numbers],
    buffers: Sequence[array_types.Array],
    gap: array_types.Numbers,
    rounds: array_types.Numbers,
  ) -> list[array_types.Array]:
    """Σ_j κ_j·h_j, summed over evenly spread participations, the first of which is now; a summand for each buffer.

    Args:
      factors: κ_j of each buffer, from `price`.
      buffers: h_j before the first participation, floats of any shape.
      gap: As `overlap` takes it.
      rounds: The number of participations, at least 1: floats of that shape.
    """

  def squared_norms(
    self, cohorts: Sequence[array_types.Ids], weights: Sequence[np.ndarray], num_clients: int
  ) -> np.ndarray:
    """‖C·w_i‖² of each client, float64[N]: Σ_s (Σ_{t≤s} c_{s-t}·w_i(t))² over all releases.

    Args:
      cohorts: int[M_s], the clients of each release.
      weights: float[M_s], their weights.
      num_clients: N.
    """
    total, latest = np.zeros(num_clients), np.zeros(num_clients)
    # Each client's buffers, as they were after its latest release.
    buffers = [np.zeros(num_clients) for _ in range(self.num_buffers)]
    for release, (clients, given) in enumerate(zip(cohorts, weights)):
      ids, own = np.asarray(clients, np.int64), np.asarray(given, np.float64)
      unit, by_buffer = self.price(len(cohorts) - 1 - release)
      elapsed = np.maximum(release - 1 - latest[ids], 0)
      before = self.faded([buffer[ids] for buffer in buffers], elapsed)
      cross = np.array(before).T @ np.array(by_buffer)
      total[ids] += own * (unit * own + 2.0 * cross)
      for buffer, after in zip(buffers, self.after(before, own)):
        buffer[ids] = after
      latest[ids] = release
    return total

  def covariance(self, cohorts: Sequence[array_types.Ids], noise_multipliers: Sequence[float]) -> np.ndarray:
    """The covariance of the noise in T releases, for each coordinate and in clipping norms, float64[T, T].

    Args:
      cohorts: int[M_t], the clients of each release.
      noise_multipliers: z_t of each release.
    """
    # C is lower triangular: its first row is c_0 and zeros.
    mixing = linalg.toeplitz(self.coefficients(len(cohorts)), np.zeros(len(cohorts)))
    drawn = np.diag(np.asarray(noise_multipliers, np.float64))
    unmixed = np.linalg.solve(mixing, drawn)
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
      buffers = np.array(self.after(list(buffers), own))
      total += own * own
    return math.sqrt(total)


class Exponentials(Correlation):
  """c_k = Σ_j gain_j·decay_j^(k-1) for k ≥ 1.

  This is a buffered linear Toeplitz mechanism (Dvijotham, McMahan, Pillutla, Steinke and Thakurta 2024). Its buffer j
  is b_j = Σ_{k≥1} decay_j^(k-1)·Ẑ_{s-k}, a sum of exponentials.
  """

  @property
  @abc.abstractmethod
  def terms(self) -> tuple[tuple[float, float], ...]:
    """(gain_j, decay_j) for each term."""

  @property
  def gains(self) -> np.ndarray:
    return np.array([gain for gain, _ in self.terms], np.float64)

  @property
  def decays(self) -> np.ndarray:
    return np.array([decay for _, decay in self.terms], np.float64)

  @property
  def formula(self) -> str:
    summands = [f'{gain:.6g}·{decay:.6g}^(k-1)' for gain, decay in self.terms]
    return 'c_k = ' + ' + '.join(summands)

  def coefficients(self, count: int) -> np.ndarray:
    ages = np.arange(max(count - 1, 0))[:, np.newaxis]
    after_first = (self.decays**ages * self.gains).sum(axis=1)
    return np.concatenate([[1.0], after_first])[:count]

  def after(
    self,
    buffers: Sequence[array_types.Array],
    added: array_types.Array,
    times: Callable[[array_types.Array, float], array_types.Array] = operator.mul,
  ) -> list[array_types.Array]:
    return [times(own, decay) + added for own, (_, decay) in zip(buffers, self.terms)]

  def faded(self, buffers: Sequence[array_types.Array], elapsed: array_types.Numbers) -> list[array_types.Array]:
    return [own * arrays.whole_power(decay, elapsed) for own, (_, decay) in zip(buffers, self.terms)]

  def price(self, releases_left: array_types.Numbers) -> tuple[array_types.Numbers, list[array_types.Array]]:
    if not self.num_buffers:
      return 1.0, []
    left = arrays.cast(releases_left, np.float64)
    powers = [arrays.whole_power(decay, left) for _, decay in self.terms]
    by_term = []
    for (gain, decay), power in zip(self.terms, powers):
      # Σ_{k=1..L} (decay_j·decay_l)^(k-1), added up one by one: a library's own sum has an order of its own.
      parts = [g * ((1.0 - power * p) / (1.0 - decay * d)) for (g, d), p in zip(self.terms, powers)]
      by_term.append(gain * sum(parts[1:], parts[0]))
    factors = [gain + decay * part for (gain, decay), part in zip(self.terms, by_term)]
    return 1.0 + sum(by_term[1:], by_term[0]), factors

  def overlap(self, gap: array_types.Numbers) -> array_types.Numbers:
    whole, _ = self.price(math.inf)
    xp = arrays.namespace(gap)
    result = 0.0 * gap
    for gain, decay in self.terms:
      with_others = sum(other_gain / (1 - decay * other_decay) for other_gain, other_decay in self.terms)
      share = gain / decay * (1 + decay * with_others)
      power = xp.exp(gap * math.log(decay))
      result = result + share * power / (1.0 - power)
    return result / whole

  def lasting(
    self,
    factors: Sequence[array_types.Numbers],
    buffers: Sequence[array_types.Array],
    gap: array_types.Numbers,
    rounds: array_types.Numbers,
  ) -> list[array_types.Array]:
    xp = arrays.namespace(gap, rounds, *buffers)
    summands = []
    for factor, buffer, (_, decay) in zip(factors, buffers, self.terms):
      # Each participation overlaps with what is left of earlier ones, more faintly each time.
      faded = xp.exp(gap * math.log(decay))
      times = xp.minimum(1.0 / (1.0 - faded), rounds)
      summands.append(factor * buffer * times)
    return summands
