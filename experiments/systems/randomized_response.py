"""Randomised response: each client's answer is private before it leaves, and the server estimates the shares.

Warner 1965 for k answers (k-RR; Kairouz, Bonawitz and Ramage 2016, equation 2):

    a client sends its answer with probability a = e^ε/(e^ε + k - 1), and each other one with b = 1/(e^ε + k - 1)
    π̂_j = (c_j/n - b)/(a - b)

The one-bit-per-answer form of RAPPOR (Erlingsson, Pihur and Korolova 2014, section 2: "Basic RAPPOR", h = 1):

    permanent, drawn once:  P(B'_j = 1) = f/2, P(B'_j = 0) = f/2, else B'_j = B_j
    of each report:         P(S_j = 1) = q if B'_j = 1, p if B'_j = 0
    π̂_j = (c_j/n - (p + f·q/2 - f·p/2))/((1 - f)·(q - p))                                       (section 4)

Both are pure ε-differentially private in the client's answer, under replacement, against the server itself.

NumPy only. Draws come from a `numpy.random.Generator`; in a deployment each client has its own.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import NamedTuple

import numpy as np

from quap_tff.common import checks


class Estimate(NamedTuple):
  """The server's estimate of the share of clients with each of k answers.

  Attributes:
    shares: float64[k], unbiased; an estimate can be below 0 or above 1.
    stddev: float64[k], the standard deviation of each, at the estimated shares brought into [0, 1].
  """

  shares: np.ndarray
  stddev: np.ndarray


class ResponseMechanism(checks.Checked, abc.ABC):
  """How clients answer, and what follows from their answers. Subclasses are frozen dataclasses in `MECHANISMS`."""

  @abc.abstractmethod
  def epsilon_of(self, reports: int) -> float:
    """ε that `reports` reports about the same answer cost a client, in nats."""

  @abc.abstractmethod
  def reports(self, rng: np.random.Generator, answers: np.ndarray, num_answers: int, count: int = 1) -> np.ndarray:
    """Counts of what the server receives.

    Args:
      rng: Where the clients' randomness comes from.
      answers: int[n] in [0, k), each client's true answer.
      num_answers: k >= 2.
      count: How often each client reports, at least 1.

    Returns:
      int64[k], how many of the n·count reports have each answer's bit.

    Raises:
      ValueError: If an answer is out of range, or k or `count` is too small.
    """

  @abc.abstractmethod
  def estimate(self, counts: np.ndarray, num_clients: int, count: int = 1) -> Estimate:
    """The shares that the counts stand for."""


@dataclasses.dataclass(frozen=True)
class RandomizedResponse(ResponseMechanism):
  """Each client gives its true answer, or with some probability another one.

  Reports are independent, so they cost ε each.

  Attributes:
    epsilon: ε > 0 of a report, in nats.
  """

  epsilon: float = checks.number_field('randomized_response epsilon', 1.0, above=0, at_most=50)

  def _probabilities(self, num_answers: int) -> tuple[float, float]:
    total = math.exp(self.epsilon) + num_answers - 1
    return math.exp(self.epsilon) / total, 1 / total

  def epsilon_of(self, reports: int) -> float:
    return reports * self.epsilon

  def reports(self, rng: np.random.Generator, answers: np.ndarray, num_answers: int, count: int = 1) -> np.ndarray:
    answers = np.repeat(_checked_answers(answers, num_answers, count), count)
    true, other = self._probabilities(num_answers)
    keeps = rng.random(len(answers)) < true - other
    # With probability a - b the answer itself, else any of the k: the true one has a in all.
    sent = np.where(keeps, answers, rng.integers(0, num_answers, len(answers)))
    return np.bincount(sent, minlength=num_answers)

  def estimate(self, counts: np.ndarray, num_clients: int, count: int = 1) -> Estimate:
    return _estimate(counts, num_clients, count, *self._probabilities(len(counts)))


@dataclasses.dataclass(frozen=True)
class Rappor(ResponseMechanism):
  """Basic RAPPOR: a bit for each answer, randomised once for ever and again for each report.

  ε_∞ = 2·ln((1 - f/2)/(f/2)) bounds any number of reports (theorem 1, h = 1), because they follow from B'. One report
  has ε_1 = ln(q*·(1 - p*)/(p*·(1 - q*))), with q* = f·(p + q)/2 + (1 - f)·q and p* = f·(p + q)/2 + (1 - f)·p
  (theorem 2). The bits must be kept at the client: a client that draws B' anew spends ε_∞ again.

  Attributes:
    f: In (0, 1).
    p, q: In [0, 1], p < q.
  """

  f: float = checks.number_field('rappor f', 0.5, above=0, below=1)
  p: float = checks.number_field('rappor p', 0.5, at_least=0, at_most=1)
  q: float = checks.number_field('rappor q', 0.75, at_least=0, at_most=1)

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.p >= self.q:
      raise ValueError(f'rappor p must be less than q, or reports say nothing; found p={self.p:g} and q={self.q:g}.')

  @property
  def permanent_epsilon(self) -> float:
    """ε_∞, of all reports together."""
    return 2 * math.log((1 - self.f / 2) / (self.f / 2))

  @property
  def report_epsilon(self) -> float:
    """ε_1, of one report."""
    one, zero = self._probabilities
    if zero == 0 or one == 1:
      return self.permanent_epsilon
    return math.log(one * (1 - zero) / (zero * (1 - one)))

  @property
  def _probabilities(self) -> tuple[float, float]:
    """(q*, p*)."""
    mixed = self.f * (self.p + self.q) / 2
    return mixed + (1 - self.f) * self.q, mixed + (1 - self.f) * self.p

  def epsilon_of(self, reports: int) -> float:
    return min(reports * self.report_epsilon, self.permanent_epsilon)

  def reports(self, rng: np.random.Generator, answers: np.ndarray, num_answers: int, count: int = 1) -> np.ndarray:
    bits = _checked_answers(answers, num_answers, count)[:, np.newaxis] == np.arange(num_answers)
    coins = rng.random(bits.shape)
    permanent = np.where(coins < self.f, coins < self.f / 2, bits)
    ones = rng.binomial(count, np.where(permanent, self.q, self.p))
    return ones.sum(axis=0)

  def estimate(self, counts: np.ndarray, num_clients: int, count: int = 1) -> Estimate:
    estimate = _estimate(counts, num_clients, count, *self._probabilities)
    if count == 1:
      return estimate
    # Reports of one client share its permanent bits: Var(c) = n·E Var(S) + n·Var(count·P(S | B')).
    n, f = num_clients, self.f
    within = np.clip(estimate.shares, 0, 1)
    chance = within * (1 - f / 2) + (1 - within) * f / 2
    # Given the true bits, which are not random, the permanent ones are Bernoulli(1 - f/2) or (f/2): the same variance.
    between = (f / 2) * (1 - f / 2) * (self.q - self.p) ** 2
    within_one = chance * self.q * (1 - self.q) + (1 - chance) * self.p * (1 - self.p)
    variance = (within_one / count + between) / n
    return Estimate(estimate.shares, np.sqrt(variance) / ((1 - f) * (self.q - self.p)))


MECHANISMS = {'randomized_response': RandomizedResponse, 'rappor': Rappor}


def _checked_answers(answers: np.ndarray, num_answers: int, count: int) -> np.ndarray:
  checks.integer('number of answers', num_answers, at_least=2)
  checks.integer('reports', count, at_least=1)
  answers = np.asarray(answers)
  if answers.ndim != 1 or not np.issubdtype(answers.dtype, np.integer):
    raise ValueError(f'Answers must be int[clients], found {answers.dtype}{list(answers.shape)}.')
  bad = answers[(answers < 0) | (answers >= num_answers)]
  if len(bad):
    raise ValueError(f'Answers must lie in [0, {num_answers}), found {bad[0]}.')
  return answers


def _estimate(counts: np.ndarray, num_clients: int, count: int, true: float, other: float) -> Estimate:
  """π̂ = (c/n - b)/(a - b), where a client with the answer reports it with probability a, and any other with b."""
  total = checks.integer('num_clients', num_clients, at_least=1) * count
  shares = (np.asarray(counts, np.float64) / total - other) / (true - other)
  within = np.clip(shares, 0, 1)
  # Given the true answers, each report is a coin of probability a or b.
  variance = (within * true * (1 - true) + (1 - within) * other * (1 - other)) / total
  return Estimate(shares, np.sqrt(variance) / (true - other))


def majority_answer(labels: np.ndarray, num_answers: int) -> int:
  """The most frequent of a client's labels, the smallest of several.

  A client without examples answers 0, as if all labels were equally frequent: to stay away would tell that it has none.
  """
  return int(np.bincount(labels, minlength=num_answers).argmax())
