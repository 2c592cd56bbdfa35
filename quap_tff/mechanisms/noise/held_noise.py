"""Noise that clients hold: what each client loses to a server that sees only the noised sums.

    n_i(r) = V_{i,r} + W_{i,r} - W_{i,r-1},     W_{i,0} = 0,     R_t = Σ_{i∈S_t} (u_i(t) + n_i)
    Σ = Σ_i [ (1-λ)²·Σ_r e_{t_r}·e_{t_r}ᵀ + λ·Σ_r (e_{t_r} - e_{t_{r+1}})·(e_{t_r} - e_{t_{r+1}})ᵀ ]
    μ_i² = w_iᵀ·Σ⁻¹·w_i / s²

n_i(r) is what client i adds in the r-th round in which it really sends something, and t_r is that round. V has standard
deviation (1-λ)·s and W has √λ·s in each coordinate, in units of the clipping norm. All are independent Gaussians. Only
the client has the key from which they are drawn. So it draws W_{i,r-1} again and keeps nothing else. S_t are the
clients that really came. Σ is the covariance of the noise in the releases, per s². It follows from participation alone.
The last W of a client has no e_{t_{r+1}}. λ is the `decay`: each round takes back the W that the client's last round
added.

Σ has no positive entry off its diagonal, so no entry of Σ⁻¹ is negative, and μ_i is exact: a client whose updates all
have the largest norm and point in one direction attains it. Earlier entries of Σ do not change when a release is
appended, so μ_i² is a running sum. It guards a run if a round is released only while everyone's μ_i² is within its
limit. docs/proofs.md has the theorem and its proof.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools
import math
from typing import NamedTuple, Union

import numpy as np

from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.common.numbers import slack as slacks

# Up to this decay the covariance of all releases is far from singular.
LARGEST_DECAY = 0.999
# The factor by which bounds are rounded up that are not computed with directed rounding.
_MARGIN = 1 + 2.0**-20
# The share of δ that a tail of the noise adds, in `discreteness_slack`.
_TAIL = 2.0**-30
_TOO_FEW_STEPS = 'The noise has too few steps of the grid: give it more noise_steps, or choose another decay.'
# For how many clients `mu_against_any` computes bounds at once.
_BLOCK = 256


class Account(NamedTuple):
  """Everyone's account after some releases. It is a value: `after` makes a new one.

  Attributes:
    noise_multiplier: s > 0.
    decay: λ in [0, 0.999].
    whitening: float64[T, T], L⁻¹ for Σ = L·Lᵀ, rounded up. It is lower triangular, and no entry is negative.
    ids: int64[E], the clients of all T releases, release by release.
    releases: int64[E], from 0, the release of each entry.
    weights: float64[E], w_i(t) of each entry.
    latest: int64[N], the last release that each client was in; -1 if there was none.
    spent: float64[N], μ_i², rounded up.
  """

  noise_multiplier: float
  decay: float
  whitening: np.ndarray
  ids: np.ndarray
  releases: np.ndarray
  weights: np.ndarray
  latest: np.ndarray
  spent: np.ndarray

  @property
  def num_releases(self) -> int:
    """T, the number of releases so far."""
    return len(self.whitening)

  @property
  def mu(self) -> np.ndarray:
    """μ_i of the releases so far, float64[N], rounded up."""
    return np.sqrt(self.spent) * (1 + 2.0**-52)

  def is_within(self, limit: Union[float, np.ndarray]) -> bool:
    """True if every μ_i² is at most `limit`: one number for all, or float64[N]."""
    return bool((self.spent <= limit).all())

  def after(self, cohort: array_types.Ids, weights: np.ndarray) -> Account:
    """The account with one more release.

    Args:
      cohort: int[M] distinct ids: the clients whose noise is really in the release. If there are none, nothing is
        released, and the account stays as it is.
      weights: float[M] in [0, 1], w_i(t): client i's update has a norm of at most w_i(t) clipping norms.

    Raises:
      ValueError: If the ids or weights are not of this form.
    """
    num_clients, release = len(self.spent), self.num_releases
    cohort = checks.cohort(cohort, num_clients)
    weights = np.asarray(weights, np.float64)
    if weights.shape != cohort.shape or not ((weights >= 0) & (weights <= 1)).all():
      raise ValueError(f'weights must be float[{len(cohort)}] in [0, 1], one for each client of the cohort.')
    if not len(cohort):
      return self
    before = self.latest[cohort]
    before = before[before >= 0]
    # -Σ_rt for each release r: a client takes back only the W of its latest release.
    links = self.decay * np.bincount(before, minlength=release)
    # Each member adds (1-λ)² + λ to Σ_tt, and λ more if it was in a release before.
    variance = len(cohort) * ((1 - self.decay) ** 2 + self.decay) + len(before) * self.decay
    row = _appended_row(self.whitening, variance, links)
    whitening = np.zeros([len(row), len(row)])
    whitening[:-1, :-1] = self.whitening
    whitening[-1] = row
    ids = np.concatenate([self.ids, cohort])
    weights = np.concatenate([self.weights, weights])
    releases = np.concatenate([self.releases, np.full(len(cohort), release)])
    # The new entry of L⁻¹·w_i / s, whose square is what this release adds to μ_i².
    moved = np.bincount(ids, weights * row[releases], minlength=num_clients) / self.noise_multiplier
    latest = self.latest.copy()
    latest[cohort] = release
    # The last factor is for the roundings of this sum and this product.
    spent = (self.spent + moved * moved * _rounded_up(len(row))) * (1 + 2.0**-52)
    return self._replace(whitening=whitening, ids=ids, releases=releases, weights=weights, latest=latest, spent=spent)

  def cohorts(self) -> list[np.ndarray]:
    """int64[M_t], the clients of each release."""
    return _by_release(self.ids, self.releases)


def opened(num_clients: int, noise_multiplier: float, decay: float) -> Account:
  """The account before the first release.

  Args:
    num_clients: N.
    noise_multiplier: s > 0, the scale of one client's noise in units of the clipping norm.
    decay: λ in [0, 0.999]; 0 for noise that is independent from round to round.

  Raises:
    ValueError: If a value is out of range.
  """
  checks.integer('num_clients', num_clients, at_least=1)
  checks.number('noise_multiplier', noise_multiplier, above=0)
  checks.number('decay', decay, at_least=0, at_most=LARGEST_DECAY)
  none = np.zeros(0, np.int64)
  return Account(
    noise_multiplier=float(noise_multiplier),
    decay=float(decay),
    whitening=np.zeros([0, 0]),
    ids=none,
    releases=none,
    weights=np.zeros(0),
    latest=np.full(num_clients, -1, np.int64),
    spent=np.zeros(num_clients),
  )


def _rounded_up(terms: int) -> float:
  """More than what some sums of this many float64 terms of one sign lose by rounding, with a few operations more."""
  return 1 + (4 * terms + 64) * 2.0**-53


def _appended_row(whitening: np.ndarray, variance: float, links: np.ndarray) -> np.ndarray:
  """The next row of L⁻¹, float64[T+1], for Σ with the row (-links, own) appended.

  With l = C·links and d² = own - ‖l‖², the row is (lᵀC, 1)/d. All numbers but d² are sums of non-negative terms, so
  rounding d² down and everything else up gives a row that is not below the exact one, given earlier rows of this kind.
  """
  up = _rounded_up(len(links))
  projected = whitening @ links * up
  # d²: what is subtracted is rounded up, what it is subtracted from down, and the difference down again.
  explained = float(projected @ projected) * up
  pivot = (variance * (1 - 2.0**-49) - explained) * (1 - 2.0**-52)
  if not pivot > 0:
    raise ValueError('The noise of this release is almost a function of the noise before it: choose a smaller decay.')
  return np.append(projected @ whitening, 1.0) * (up / math.sqrt(pivot))


def _by_release(values: np.ndarray, releases: np.ndarray) -> list[np.ndarray]:
  """`values` of each release; every release has at least one."""
  if not len(values):
    return []  # `np.split` would make one release of nothing.
  starts = np.flatnonzero(np.diff(releases)) + 1
  return np.split(values, starts)


class Histories(NamedTuple):
  """All participations, sorted by client and then by round.

  Attributes:
    clients: int64[E].
    rounds: int64[E], from 0.
    starts: int64[P], where each of the P clients that take part has its first entry.
  """

  clients: np.ndarray
  rounds: np.ndarray
  starts: np.ndarray

  @property
  def counts(self) -> np.ndarray:
    """int64[P], how often each of them takes part."""
    return np.diff(np.append(self.starts, len(self.clients)))

  def differences(self, values: np.ndarray) -> np.ndarray:
    """x_{t_r} - x_{t_{r+1}} for each entry, from x_{t_r} as float64[E, K]; x_{t_r} for a client's last entry."""
    nothing = np.zeros_like(values[:1])
    following = np.append(values[1:], nothing, axis=0)
    # The entry after a client's last one is another client's.
    following[self.starts[1:] - 1] = 0.0
    return values - following


def histories(cohorts: Sequence[array_types.Ids]) -> Histories:
  """The participations in a list of cohorts, int64[M_t], at least one of which is not empty."""
  clients = np.concatenate(cohorts)
  order = np.argsort(clients, kind='stable')
  clients = clients[order]
  sizes = [len(cohort) for cohort in cohorts]
  rounds = np.repeat(np.arange(len(cohorts)), sizes)[order]
  is_first = np.append(True, clients[1:] != clients[:-1])
  return Histories(clients, rounds, np.flatnonzero(is_first))


def covariance(cohorts: Sequence[array_types.Ids], decay: float, dropout: float = 0.0) -> np.ndarray:
  """Σ of the noise in R_1, …, R_T per s², float64[T, T]; with dropout, its mean over who comes.

  Args:
    cohorts: int64[M_t], the clients of each round, at least one of them in all.
    decay: λ.
    dropout: p in [0, 1). Each client that is drawn stays away with this probability, independently of everything.
  """
  records = histories(cohorts)
  clients, rounds, size, came = records.clients, records.rounds, len(cohorts), 1 - dropout
  # How many rounds of the same client come after each entry.
  ends = np.append(records.starts[1:], len(clients))
  left = np.repeat(ends, records.counts) - 1 - np.arange(len(clients))
  variances = came * ((1 - decay) ** 2 + decay * dropout**left)  # V, and W if the client does not return.
  diagonal = np.bincount(rounds, variances, minlength=size)
  result = np.zeros(size * size)
  for gap in range(1, int(records.counts.max())):
    probability = came**2 * dropout ** (gap - 1)  # It comes in both rounds, and in none between them.
    if probability < 1e-16:
      break  # Below what a sum of 1 and it can hold, and smaller yet for longer gaps.
    is_pair = clients[gap:] == clients[:-gap]
    first = rounds[:-gap][is_pair]
    second = rounds[gap:][is_pair]
    shared = decay * probability
    diagonal = diagonal + shared * np.bincount(np.append(first, second), minlength=size)
    result -= shared * np.bincount(first * size + second, minlength=size * size)
  result = result.reshape(size, size)
  return result + result.T + np.diag(diagonal)


def mu_against(account: Account, colluders: array_types.Ids) -> np.ndarray:
  """μ_i against the server and a named set of clients that tell it their noise, float64[N], rounded up.

  Their noise is left out of Σ. Releases with nobody else's noise in them say nothing that the adversary does not know.

  Args:
    account: What was released.
    colluders: int[K], the clients that collude. Nothing is claimed for the colluders: their value is +inf.

  Raises:
    ValueError: If `colluders` are not distinct ids of clients.
  """
  num_clients = len(account.spent)
  known = np.zeros(num_clients, bool)
  known[checks.cohort(colluders, num_clients)] = True
  left = opened(num_clients, account.noise_multiplier, account.decay)
  weights_by_release = _by_release(account.weights, account.releases)
  for ids, weights in zip(account.cohorts(), weights_by_release):
    is_hidden = ~known[ids]
    left = left.after(ids[is_hidden], weights[is_hidden])
  return np.where(known, np.inf, left.mu)


def mu_against_any(account: Account, num_colluders: int) -> np.ndarray:
  """A bound on μ_i against the server and any k other clients that tell it their noise, float64[N].

  It is the smaller of two bounds. With x_i = Σ⁻¹·w_i and B_j·B_jᵀ, the part of client j in Σ,

      s²·μ² ≤ x_iᵀ·w_i + (sum of the k largest ‖B_jᵀ·x_i‖²) / (1 - ρ),     ρ = sum of the k largest λ_max(B_jᵀ·Σ⁻¹·B_j),

  over j ≠ i, if ρ < 1. The other bound keeps client i's own noise, and V of all but k clients of each of its rounds. It
  is always finite.

  Args:
    account: What was released.
    num_colluders: k ≥ 0. From N - 1 on, the bound is that of client i's own noise.
  """
  checks.integer('num_colluders', num_colluders, at_least=0)
  if not num_colluders or not account.num_releases:
    return account.mu
  by_own_noise = _mu_squared_by_own_noise(account, num_colluders)
  joint = np.where(by_own_noise > 0, _mu_squared_by_joint_noise(account, num_colluders), 0.0)
  return np.sqrt(np.minimum(by_own_noise, joint)) / account.noise_multiplier * _MARGIN


def _mu_squared_by_own_noise(account: Account, num_colluders: int) -> np.ndarray:
  """float64[N]: w_iᵀ·(B_i·B_iᵀ + (1-λ)²·diag(m_t))⁻¹·w_i, if at least m_t clients of round t but i do not collude."""
  by_client = histories(account.cohorts())
  weights = account.weights[np.argsort(account.ids, kind='stable')]
  others = np.maximum(np.bincount(account.releases) - num_colluders, 1) - 1
  result = np.zeros(len(account.spent))
  for start, count in zip(by_client.starts, by_client.counts):
    entries = slice(start, start + count)
    rounds, client_weights = by_client.rounds[entries], weights[entries]
    own_noise = _part(int(count), account.decay)
    noise_of_others = np.diag((1 - account.decay) ** 2 * others[rounds])
    whitened = np.linalg.solve(own_noise + noise_of_others, client_weights)
    result[by_client.clients[start]] = client_weights @ whitened
  return result


def _mu_squared_by_joint_noise(account: Account, num_colluders: int) -> np.ndarray:
  """float64[N], the first bound of `mu_against_any`."""
  num_clients, decay = len(account.spent), account.decay
  by_client = histories(account.cohorts())
  members = by_client.clients[by_client.starts]
  precision = account.whitening.T @ account.whitening  # Σ⁻¹
  weights = np.zeros([account.num_releases, num_clients])
  weights[account.releases, account.ids] = account.weights
  shares = np.zeros(len(members))  # λ_max(B_jᵀ·Σ⁻¹·B_j)
  for index, (start, count) in enumerate(zip(by_client.starts, by_client.counts)):
    rounds = by_client.rounds[start : start + count]
    factor = np.linalg.cholesky(_part(int(count), decay))  # B_j on the rounds of client j, and 0 elsewhere.
    own_precision = precision[np.ix_(rounds, rounds)]
    shares[index] = np.linalg.eigvalsh(factor.T @ own_precision @ factor)[-1]
  result = np.full(num_clients, np.inf)
  # In blocks: x of all clients at once would be a matrix of entries times clients.
  for begin in range(0, num_clients, _BLOCK):
    block = np.arange(begin, min(begin + _BLOCK, num_clients))
    x = (precision @ weights[:, block])[by_client.rounds]
    by_entry = (1 - decay) ** 2 * x**2 + decay * by_client.differences(x) ** 2
    parts = np.add.reduceat(by_entry, by_client.starts)  # ‖B_jᵀ·x_i‖²
    is_other = members[:, np.newaxis] != block
    known = _largest(shares[:, np.newaxis] * is_other, num_colluders) * _MARGIN  # ρ
    unknown = np.where(known < 1, 1 - known, 1.0)
    told = _largest(parts * is_other, num_colluders) / unknown
    bound = account.spent[block] * account.noise_multiplier**2 + told
    result[block] = np.where(known < 1, bound, np.inf)
  return result


@functools.lru_cache(maxsize=256)
def _part(count: int, decay: float) -> np.ndarray:
  """B_i·B_iᵀ of a client over its own rounds, float64[count, count]."""
  own = np.diag(np.full(count, (1 - decay) ** 2 + 2 * decay))
  neighbours = np.eye(count, k=1) + np.eye(count, k=-1)
  part = own - decay * neighbours
  part[0, 0] -= decay  # In its first round a client takes nothing back.
  return part


def _largest(values: np.ndarray, count: int) -> np.ndarray:
  """The sum of the `count` largest values of each column."""
  first = len(values) - min(count, len(values))
  return np.partition(values, first, axis=0)[first:].sum(axis=0)


def stddevs(noise_multiplier: float, decay: float) -> tuple[float, float]:
  """The standard deviations of V and of W in each coordinate: (1-λ)·s and √λ·s, in the unit of s."""
  return (1 - decay) * noise_multiplier, math.sqrt(decay) * noise_multiplier


def discreteness_slack(
  epsilon: float,
  delta: float,
  *,
  noise_steps: float,
  decay: float,
  num_releases: int,
  num_coordinates: int,
  num_participations: int,
  smallest_cohort: int = 1,
) -> slacks.Slack:
  """The loss if V and W are discrete Gaussians on the integers, and updates are integers.

  docs/proofs.md has the proof. It compares the integer noise of a run with the rounded noise of a run whose V and W
  are real. With a = 1/(m·(1-λ)²·s²), the logarithm of the first probability over the second is at most d·T·a/24. The
  other way round, it is at most ‖P·k‖²/24, P = (s²·Σ)⁻¹. A tail bound for k covers this. Both have a term for how far
  lattice sums of Gaussians are from integrals, which is below 10⁻²⁸⁰ where V and W have ten steps or more.

  Args:
    epsilon: ε >= 0, of the run with real noise. The result also covers any smaller ε.
    delta: δ in (0, 1), of the run with real noise.
    noise_steps: s in steps of the grid, greater than 0.
    decay: λ.
    num_releases: T, or more.
    num_coordinates: d, or more.
    num_participations: The sum of the sizes of all cohorts, or more; at least T.
    smallest_cohort: m, the least number of clients whose noise is in a release and unknown to the adversary, or less.

  Raises:
    ValueError: If the steps are too few for the bound.
  """
  fresh, taken_back = stddevs(noise_steps, decay)
  longest = 2 / fresh**2 + (1 / taken_back**2 if decay else 0.0)
  sharpest = 1 / (smallest_cohort * fresh**2)  # a
  # V, W, and the noise that replaces the W before, if each client begins a new chain in each round.
  lattice = (3 * num_participations - num_releases) * 2 * math.atanh(_theta_error(longest))
  lattice -= num_releases * math.log1p(-_theta_error(sharpest))
  numbers = num_releases * num_coordinates
  above = numbers * sharpest / 24 + num_coordinates * lattice
  if not above < 1:
    raise ValueError(_TOO_FEW_STEPS)
  tail = epsilon - math.log(delta) - math.log(_TAIL)
  # The square of a standard Gaussian vector is larger with probability e^-tail at most (Laurent and Massart 2000).
  squared_norm = numbers + 2 * math.sqrt(numbers * tail) + 2 * tail
  # ‖P·k‖: no eigenvalue of P is above a, and rounding moves each number by at most 1/2.
  moved = math.sqrt(sharpest * squared_norm) + sharpest * math.sqrt(numbers) / 2
  below = moved**2 / 24 + num_coordinates * lattice
  added_delta = delta * (math.expm1(above) + math.exp(above) * _TAIL)
  return slacks.Slack((above + below) * _MARGIN, added_delta * _MARGIN)


def _theta_error(squared_step: float) -> float:
  """η with |Σ_k g·φ(g·(k + c)) - 1| ≤ η for any c, where φ is the normal density and g² = `squared_step`.

  By Poisson summation, the sum is 1 + 2·Σ_{j≥1} exp(-2π²j²/g²)·cos(2πjc).
  """
  exponent = 2 * math.pi**2 / squared_step
  # A geometric series is above the sum, because j² ≥ j.
  error = 2 * math.exp(-exponent) / -math.expm1(-exponent)
  if not error < 1:
    raise ValueError(_TOO_FEW_STEPS)
  return error
