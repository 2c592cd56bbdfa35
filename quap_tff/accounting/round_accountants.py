"""Accountants that compose an (ε_t, δ_t) of each mechanism: basic and advanced composition."""

import abc
import math

import numpy as np

from quap_tff.accounting import accountant as base
from quap_tff.common import checks
from quap_tff.mechanisms import tradeoff


class _PerRound(base.Accountant):
  """Composes the exact ε_t of each mechanism at its share of δ."""

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
      raise base.NotApplicableError(reason)
    lengths = [len(history.releases) for history in histories]
    mu = np.array([mechanism.mu for history in histories for mechanism, _ in history.releases], np.float64)
    counts = np.array([n for history in histories for _, n in history.releases], np.float64)
    totals = np.repeat(np.array([history.count for history in histories], np.float64), lengths)
    # The same mechanism at the same share of δ is in many histories.
    pairs, index = np.unique(mu + 1j * totals, return_inverse=True)
    found = tradeoff.epsilon_of(pairs.real, self._mechanism_delta(delta) / pairs.imag)[index]
    ends = np.cumsum(lengths)
    composed = [self._compose(found[end - n : end], counts[end - n : end], delta) for n, end in zip(lengths, ends)]
    return base.checked(np.array(composed, np.float64) * (1 + tradeoff.RELATIVE_MARGIN))


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

  Each of the k mechanisms gets δ/(2k) of the other half. `basic` is the same theorem's bound without slack. It is
  smaller for few mechanisms of large ε_t, and then it is the figure here.
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
      math.sqrt(-2 * squares * math.log(slack)), math.sqrt(2 * squares * math.log(math.e + math.sqrt(squares) / slack))
    )

  def epsilons(self, histories, delta):
    return np.minimum(super().epsilons(histories, delta), Basic().epsilons(histories, delta))
