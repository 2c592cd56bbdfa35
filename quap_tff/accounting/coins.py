"""A test whether a log can have come from Poisson sampling: a coin of rate q for each client in each round.

A log can contradict coins, and can never show them. Twelve one-sided tests look at how many participations there are,
at the count of each client, at the size of each round, at how much counts and sizes vary, and at who comes in two
successive rounds. Their levels add up to `LEVEL`: a log of coins is taken for another with at most that probability.

Each statistic X has an exact tail or Chernoff's bound P(X >= x) <= E[exp(t·X)]·exp(-t·x), which holds for every t. A
log does not name the clients that never came. So counts and successive rounds are those of a client that came at least
once. Sizes of single rounds are taken given how often each client came. How much sizes vary is taken for coins of the
clients in the log, over the probability that each of them comes at least once.
"""

from typing import Callable, NamedTuple, Union

import numpy as np

from quap_tff.accounting import logs
from quap_tff.common import checks
from quap_tff.common import lazy
from quap_tff.common.numbers import rounding

special = lazy.module('scipy.special')

LEVEL = 1e-3
_TESTS = 12
# t·σ in Chernoff's bound.
_STEPS = np.geomspace(0.1, 1e3, 80)


class Coins(NamedTuple):
  """The assumption that a log was drawn by coins.

  Attributes:
    rate: q in (0, 1].
    contradiction: A sentence on how the log contradicts it; '' if no test does.
  """

  rate: float
  contradiction: str

  @classmethod
  def of(cls, log: logs.Log, rate: float) -> 'Coins':
    """Tests a log, which is read once.

    Args:
      log: The log. Clients of weight 0 count as absent.
      rate: q in (0, 1].

    Raises:
      LogError: If the log cannot be read.
      OSError: As for `logs.Log.rounds`.
    """
    checks.number('sampling_rate', rate, above=0, at_most=1)
    seen = _seen(log)
    if rate == 1 or not seen.counts.size:
      return cls(rate, '')
    evidence, words = min(_tests(seen, rate), key=lambda test: test[0])
    # The smallest of so many p-values is below p with at most so many times the probability of one (Bonferroni).
    bound = _TESTS * float(np.exp(min(evidence, 0.0)))
    if bound >= LEVEL:
      return cls(rate, '')
    shown = rounding.up(max(bound, 1e-300), 2)
    return cls(rate, f'{words}. Coins give something as extreme with a probability of at most {shown}.')


class _Seen(NamedTuple):
  """Facts on N clients and T rounds: int64[N] counts, int64[T] sizes, and how often somebody came twice in a row."""

  counts: np.ndarray
  sizes: np.ndarray
  repeats: int


def _seen(log: logs.Log) -> _Seen:
  counts, latest = np.zeros(0, np.int64), np.zeros(0, np.int64)
  sizes: list[int] = []
  repeats = 0
  for number, logged in enumerate(log.rounds(), 1):
    if log.num_clients > len(counts):
      # At least doubled, so that growing costs time in proportion to the number of clients.
      more = max(2 * len(counts), log.num_clients, 1024) - len(counts)
      counts = np.pad(counts, (0, more))
      latest = np.pad(latest, (0, more), constant_values=-1)
    ids = logged.ids[logged.weights > 0]
    counts[ids] += 1
    repeats += int(np.count_nonzero(latest[ids] == number - 1))
    latest[ids] = number
    sizes.append(len(ids))
  return _Seen(counts[counts > 0], np.array(sizes, np.int64), repeats)


def _tests(seen: _Seen, rate: float) -> list[tuple[float, str]]:
  """The logarithm of a bound on the p-value of each test, and what the test found."""
  counts, sizes, repeats = seen
  n, rounds = len(counts), len(sizes)
  log_absent = rounds * np.log1p(-rate)  # The log of the probability that a client never comes.
  log_present = float(np.log(-np.expm1(log_absent)))
  total = int(counts.sum())
  mean, size = rounds * rate, n * rate  # Of the rounds of a client, and of the clients of a round.
  most, least = int(counts.max()), int(counts.min())
  largest, smallest = int(sizes.max()), int(sizes.min())
  deviation = np.sqrt(rate * (1 - rate))

  def present(log_mgf: np.ndarray) -> np.ndarray:
    """The `log_mgf` of a client that came, from that of any client, for a statistic that is 0 for one that did not."""
    gap = log_absent - log_mgf
    with np.errstate(divide='ignore'):
      of_present = log_mgf + np.log1p(-np.exp(np.minimum(gap, 0.0))) - log_present
    # Too small a gap is lost in the rounding, and +inf is no evidence.
    return np.where(gap < -1e-6, of_present, np.inf)

  def total_log_mgf(t: np.ndarray) -> np.ndarray:
    of_one_round = np.logaddexp(np.log1p(-rate), np.log(rate) + t)
    return n * present(rounds * of_one_round)

  def repeats_log_mgf(t: np.ndarray) -> np.ndarray:
    of_any_client = np.array([_log_mgf_of_repeats(rate, rounds, each) for each in t])
    return n * present(of_any_client)

  def size_log_mgf(t: np.ndarray) -> np.ndarray:
    # Given how often each client came, in which of the rounds is symmetric: its share is its chance in each of them.
    shares, clients = np.unique(counts / rounds, return_counts=True)
    with np.errstate(divide='ignore'):  # A client that is in every round has the share 1.
      by_share = np.logaddexp(np.log1p(-shares), np.log(shares) + t[:, np.newaxis])
    return by_share @ clients

  log_mgf_of_counts = _log_mgf_of_square(rounds, rate)
  log_mgf_of_sizes = _log_mgf_of_square(n, rate)

  def spread_of_counts_log_mgf(t: np.ndarray) -> np.ndarray:
    # From 1: a client that never came is not in the log.
    return n * (log_mgf_of_counts(t, 1) - log_present)

  def spread_of_sizes_log_mgf(t: np.ndarray) -> np.ndarray:
    return rounds * log_mgf_of_sizes(t, 0) - n * log_present

  spread_of_counts = float(((counts - mean) ** 2).sum())
  spread_of_sizes = float(((sizes - size) ** 2).sum())
  low, high = _chernoff(total_log_mgf, total, deviation * np.sqrt(n * rounds))
  fewer, more = _chernoff(repeats_log_mgf, repeats, rate * np.sqrt(n * rounds))
  even, uneven = _chernoff(spread_of_counts_log_mgf, spread_of_counts, mean * np.sqrt(2 * n))
  steady, unsteady = _chernoff(spread_of_sizes_log_mgf, spread_of_sizes, size * np.sqrt(2 * rounds))
  small, large = _chernoff(size_log_mgf, np.array([smallest, largest]), deviation * np.sqrt(n))
  with np.errstate(divide='ignore'):
    log_as_often = float(np.log(special.bdtrc(most - 1, rounds, rate)))
    log_as_seldom = float(np.log(special.bdtr(least, rounds, rate)))
  # There are n clients, of which one may have come as often.
  often = log_as_often - log_present + np.log(n)
  seldom = log_as_seldom - log_present + np.log(n)
  participations = f'There are {total:,} participations, where about {n * mean:,.0f} are expected'
  successive = (
    f'In {repeats:,} cases a client came in two successive rounds, where about {size * rate * (rounds - 1):,.0f} are '
    'expected'
  )
  return [
    (low, participations),
    (high, participations),
    (seldom, f'A client came in {least:,} of {rounds:,} rounds'),
    (often, f'A client came in {most:,} of {rounds:,} rounds'),
    (small + np.log(rounds), f'A round had {smallest:,} clients, where about {total / rounds:,.0f} are expected'),
    (large + np.log(rounds), f'A round had {largest:,} clients, where about {total / rounds:,.0f} are expected'),
    (even, f'The clients came in {least:,} to {most:,} rounds, which is too even'),
    (uneven, f'The clients came in {least:,} to {most:,} rounds, which is too uneven'),
    (steady, f'The rounds had {smallest:,} to {largest:,} clients, which is too even'),
    (unsteady, f'The rounds had {smallest:,} to {largest:,} clients, which is too uneven'),
    (fewer, successive),
    (more, successive),
  ]


def _chernoff(
  log_mgf: Callable[[np.ndarray], np.ndarray], observed: Union[float, np.ndarray], deviation: float
) -> tuple[float, float]:
  """Logarithms of bounds on P(X <= x) and P(X >= x), given ln E[exp(t·X)]; `observed` is x, or one for each side."""
  below, above = np.broadcast_to(observed, 2)
  t = _STEPS / deviation
  with np.errstate(over='ignore', invalid='ignore', divide='ignore'):
    lower = log_mgf(-t) + t * below
    upper = log_mgf(t) - t * above
  # Each t gives a bound, so those that overflow can be left out.
  return float(np.nanmin(lower, initial=0.0)), float(np.nanmin(upper, initial=0.0))


def _log_mgf_of_square(trials: int, rate: float) -> Callable[[np.ndarray, int], np.ndarray]:
  """ln of the sum of P(K = k)·exp(t·(k - n·q)²) over k >= least, by t and least, for K ~ Binomial(n, q)."""
  k = np.arange(trials + 1.0)
  log_pmf = (
    special.gammaln(trials + 1)
    - special.gammaln(k + 1)
    - special.gammaln(trials - k + 1)
    + special.xlogy(k, rate)
    + special.xlog1py(trials - k, -rate)
  )
  squares = (k - trials * rate) ** 2

  def log_mgf(t: np.ndarray, least: int) -> np.ndarray:
    return np.array([special.logsumexp(log_pmf[least:] + each * squares[least:]) for each in t])

  return log_mgf


def _log_mgf_of_repeats(rate: float, rounds: int, t: float) -> float:
  """ln E[exp(t·how often a coin falls on its side twice in a row)], by a chain of two states."""
  chain = np.array([[1 - rate, rate], [1 - rate, rate * np.exp(t)]])
  if not np.isfinite(chain).all():
    return np.inf
  # By the largest eigenvalue, so that the power neither overflows nor vanishes.
  largest = float(np.linalg.eigvals(chain).real.max())
  ends = np.array([1 - rate, rate]) @ np.linalg.matrix_power(chain / largest, rounds - 1)
  return (rounds - 1) * float(np.log(largest)) + float(np.log(ends.sum()))
