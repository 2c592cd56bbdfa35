r"""Lower bounds on ε from many canaries in one run, by three analyses that assume less and less.

Each canary tosses a fair coin. With heads it is there and adds its direction, with tails it adds nothing. Its score is
N(0, 1) with tails and N(μ, 1) with heads, if the noise is Gaussian. Other directions are added by nobody.

`gaussian_mu` needs Gaussian noise that is independent in orthogonal directions, and whose shape over rounds is known up
to a factor. Let x̄ be the mean of the n scores with heads, and s² the mean square of the u other scores. Then √n·x̄/s has
a noncentral t distribution with u degrees of freedom and the noncentrality √n·μ̄, where μ̄ is the mean of what the
canaries spent. It is exact, and uses each score in full (Agrawal et al. 2026, arXiv:2606.12733, fit such a pair of
Gaussians, which are asymptotic there).

`gaussian_dp_mu` needs a μ-GDP mechanism and the coins, and no independence of scores (Mahloujifar, Melis and Chaudhuri
2024, arXiv:2410.22235). Of m canaries, g are guessed, and j of the guesses are right with the probability p_j. Let
F(x) = Φ(Φ⁻¹(x) + μ), and

    A_c = Σ_{j ≥ c} (j/m)·p_j,      B_c = Σ_{j ≥ c} ((g - j)/m)·p_j.

Then A_c ≤ F(B_{c-1}) for every c. To see this, turn the coin of one canary: a right guess becomes a wrong one, and the
number of right guesses falls by one. So the event "this guess is right, and at least c are" becomes "this guess is
wrong, and at least c - 1 are right". The mechanism is μ-GDP, so the probability of the first is at most F of the
second's. Average over coins and canaries: F is concave. The largest P(j ≥ c) that agrees with all of these inequalities
bounds the p-value of c right guesses. It has all of its mass above c at c itself, and below c, from c - 1 down, as
little as each inequality asks for: mass that moves from j to j - 1 makes A smaller and B larger in all that follow.

`any_epsilon` needs an (ε, δ)-DP mechanism and the coins, and nothing else (Steinke, Nasr and Jagielski 2023,
arXiv:2305.08846): with W ~ Binomial(g, 1/(1 + e^-ε)), c right guesses have the
p-value P(W ≥ c) + 2mδ·max_i P(c > W ≥ c - i)/i.
"""

from collections.abc import Callable
import functools
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize
from scipy import special
from scipy import stats

from quap_tff.common import checks
from quap_tff.common.numbers import tradeoff

# The largest number of coins: the bounds take some seconds there.
MOST_COINS = 100_000
# Bounds are lowered by this share: far more than the rounding of all that is computed from the scores.
_MARGIN = 1e-9
_BISECTION_STEPS = 50
# The tail of the distribution of s, on each side, that is not integrated.
_TAIL = 1e-13
_NODES = 96
# Beyond this, no normal distribution has any mass that counts.
_FAR = 9.0
# A bound on what a canary spends, in deviations, and on ε.
_MOST_MU, _MOST_EPSILON = 16.0, 40.0
# The shares of canaries that are guessed, of which the best is taken.
_SHARES = (1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.25, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03)


# Thirds of the canaries, by the number of rounds that they are in.
GROUPS = ('rare', 'middle', 'frequent')


class CanaryScores(NamedTuple):
  """A summary of the scores of some runs with canaries.

  Attributes:
    coins: m, how many coins were tossed: canaries times runs.
    inserted: n, how many of them fell heads.
    unseen: u, the number of scores of directions that nobody added, the canaries with tails among them.
    inserted_mean: x̄; 0 where all coins fell tails.
    unseen_rms: s.
    guesses: g, how many coins were guessed: those whose scores say most, for heads or for tails.
    correct: c, how many guesses were right.
  """

  coins: int
  inserted: int
  unseen: int
  inserted_mean: float
  unseen_rms: float
  guesses: int
  correct: int


def found(scores: Any, heads: Any, unseen: Any, mu: Any, guesses: int) -> CanaryScores:
  """Counts and means of scores.

  Args:
    scores: float64[m], the canaries' scores.
    heads: bool[m], their coins.
    unseen: float64[U], scores of further directions, which nobody adds.
    mu: float64[m] or a float, what each canary should spend: half of it lies between heads and tails.
    guesses: How many coins are guessed, at most m. Neither this nor μ may depend on the coins.

  Raises:
    ValueError: For a score that is NaN: it would count as a wrong guess.
  """
  scores, heads, unseen = np.asarray(scores, np.float64), np.asarray(heads, bool), np.asarray(unseen, np.float64)
  if np.isnan(scores).any() or np.isnan(unseen).any():
    raise ValueError('A score is NaN, so these trials prove nothing. Look for a run that has diverged.')
  # ln of how much more likely heads are.
  evidence = mu * (scores - np.asarray(mu) / 2)
  clearest = np.argsort(-np.abs(evidence), kind='stable')[:guesses]
  correct = int(((evidence > 0) == heads)[clearest].sum())
  without = np.concatenate([scores[~heads], unseen])
  mean = float(scores[heads].mean()) if heads.any() else 0.0
  rms = float(np.sqrt(np.mean(np.square(without))))
  return CanaryScores(len(scores), int(heads.sum()), len(without), mean, rms, guesses, correct)


def gaussian_mu(scores: CanaryScores, error: float) -> float:
  """A lower bound on the mean μ of canaries, which is wrong with a probability of at most `error`.

  It needs Gaussian noise that is independent in orthogonal directions.
  """
  if not scores.inserted or scores.inserted_mean <= 0:
    return 0.0
  root = np.sqrt(scores.inserted)
  statistic = float(root * scores.inserted_mean / scores.unseen_rms)

  def is_refuted(mean: float) -> bool:
    return _t_tail(statistic, mean, scores.unseen) <= error

  return float(_largest(is_refuted, statistic) / root) * (1 - _MARGIN)


def _t_tail(statistic: float, mean: float, degrees: int) -> float:
  """P((Z + mean)/s ≥ statistic) for Z ~ N(0, 1) and degrees·s² ~ χ², rounded up."""
  low, high = _range_of_deviation(degrees)
  # Around the deviation at which the normal tail falls from 1 to 0, the nodes are close.
  middle, width = mean / statistic, _FAR / statistic
  edges = np.unique(np.clip([low, middle - width, middle, middle + width, high], low, high))
  nodes, weights = _legendre()
  half = np.diff(edges)[:, np.newaxis] / 2
  places = (edges[:-1, np.newaxis] + half) + half * nodes
  log_density = (degrees - 1) * np.log(places) - degrees * np.square(places) / 2
  log_density += np.log(2) + degrees / 2 * np.log(degrees / 2) - special.gammaln(degrees / 2)
  return float((half * weights * np.exp(log_density) * special.ndtr(mean - statistic * places)).sum()) + 2 * _TAIL


@functools.lru_cache(maxsize=1)
def _legendre() -> tuple[np.ndarray, np.ndarray]:
  """The nodes and weights of Gauss and Legendre on [-1, 1]."""
  return np.polynomial.legendre.leggauss(_NODES)


@functools.lru_cache(maxsize=16)
def _range_of_deviation(degrees: int) -> tuple[float, float]:
  """Where s lies, but for both tails."""
  low, high = stats.chi2.ppf(_TAIL, degrees), stats.chi2.isf(_TAIL, degrees)
  return float(np.sqrt(low / degrees)), float(np.sqrt(high / degrees))


def gaussian_dp_mu(scores: CanaryScores, error: float) -> float:
  """A lower bound on μ of a μ-GDP mechanism, which is wrong with a probability of at most `error`."""

  def is_refuted(mu: float) -> bool:
    return _least_mass(scores, error, mu) > 1 + _MARGIN

  return _largest(is_refuted, _MOST_MU) * (1 - _MARGIN)


def _least_mass(scores: CanaryScores, error: float, mu: float) -> float:
  """Σ p_j, at least, of a μ-GDP mechanism with P(j ≥ c) = `error`; any number above 1 if it is above 1."""
  coins, guesses = scores.coins, scores.guesses
  mass, right, wrong = error, error * scores.correct / coins, error * (guesses - scores.correct) / coins
  for j in range(scores.correct - 1, -1, -1):
    if mass > 2:
      break
    needed = float(special.ndtr(special.ndtri(min(right, 1.0)) - mu))
    if needed <= wrong:
      break  # All further inequalities hold.
    more = (needed - wrong) * coins / (guesses - j)
    mass, right, wrong = mass + more, right + more * j / coins, needed
  return mass


def any_epsilon(scores: CanaryScores, delta: float, error: float) -> float:
  """A lower bound on ε of an (ε, δ)-DP mechanism, which is wrong with a probability of at most `error`."""
  if not scores.correct:
    return 0.0
  fewer = np.arange(1, scores.correct + 1)

  def is_refuted(epsilon: float) -> bool:
    rate = special.expit(epsilon)
    tail = stats.binom.sf(scores.correct - 1, scores.guesses, rate)
    longer = stats.binom.sf(scores.correct - 1 - fewer, scores.guesses, rate)
    return tail + 2 * scores.coins * delta * np.max((longer - tail) / fewer) <= error

  return _largest(is_refuted, _MOST_EPSILON) * (1 - _MARGIN)


def planned_guesses(mu: float, coins: int, error: float) -> int:
  """How many coins to guess, so that the largest bound by `gaussian_dp_mu` is expected.

  It is chosen from the claim and the number of coins alone, so it does not depend on any score.

  Args:
    mu: What a canary is claimed to spend.
    coins: m.
    error: As for the bound.
  """
  mu = min(mu, _MOST_MU)
  best, chosen = -1.0, 1
  for share in _SHARES:
    guesses = max(round(coins * share), 1)
    correct = round(guesses * _accuracy(mu, guesses / coins))
    bound = gaussian_dp_mu(CanaryScores(coins, 0, 0, 0.0, 0.0, guesses, correct), error)
    if bound > best:
      best, chosen = bound, guesses
  return chosen


def _accuracy(mu: float, share: float) -> float:
  """P(a guess is right), if this share of scores is guessed: those that are far from μ/2."""
  if share >= 1:
    return float(special.ndtr(mu / 2))

  def excess(distance: float) -> float:
    return float(special.ndtr(mu / 2 - distance) + special.ndtr(-mu / 2 - distance)) - share

  distance = optimize.brentq(excess, 0.0, mu / 2 + _FAR)
  return float(special.ndtr(mu / 2 - distance)) / share


def as_dict(scores: CanaryScores, delta: float, confidence: float, is_gaussian: bool) -> dict[str, Any]:
  """The scores and the bounds that they prove, as JSON has them. Each bound holds with the confidence.

  Args:
    scores: The scores.
    delta: δ in (0, 1).
    confidence: In [0.5, 1).
    is_gaussian: Whether all that the canaries look at has Gaussian noise. Without it, only `any_epsilon` is there.
  """
  checks.number('confidence', confidence, at_least=0.5, below=1)
  error = 1 - confidence
  by_any = any_epsilon(scores, delta, error)
  mu, by_gaussian_dp = None, None
  if is_gaussian:
    mu = gaussian_mu(scores, error)
    by_gaussian_dp = epsilon_at_least(gaussian_dp_mu(scores, error), delta)
  return {
    **scores._asdict(),
    'mu_lower_bound': mu,
    'epsilon_lower_bound': epsilon_at_least(mu, delta) if mu is not None else by_any,
    'epsilon_lower_bound_by_gaussian_dp': by_gaussian_dp,
    'epsilon_lower_bound_by_any_dp': by_any,
  }


def of_group(
  scores: CanaryScores, coins: int, inserted: int, inserted_mean: float, delta: float, confidence: float
) -> dict[str, Any]:
  """The scores and the bounds of one of `GROUPS`, as JSON has them. It needs what `gaussian_mu` needs.

  Args:
    scores: The scores of all canaries, whose deviation is the group's, too.
    coins: How many coins the group tossed.
    inserted: How many of them fell heads.
    inserted_mean: The mean of their scores; 0 where all fell tails.
    delta: δ in (0, 1).
    confidence: With it, the bounds of all groups hold together.
  """
  error = (1 - confidence) / len(GROUPS)
  mu = gaussian_mu(scores._replace(inserted=inserted, inserted_mean=inserted_mean), error)
  return {
    'coins': coins,
    'inserted': inserted,
    'inserted_mean': inserted_mean,
    'mu_lower_bound': mu,
    'epsilon_lower_bound': epsilon_at_least(mu, delta),
  }


def epsilon_at_least(mu: float, delta: float) -> float:
  """The ε at δ of a lower bound on μ, rounded down."""
  return float(tradeoff.epsilon_of(mu, delta)) * (1 - 2 * tradeoff.RELATIVE_MARGIN) if mu else 0.0


def _largest(holds: Callable[[float], bool], at_most: float) -> float:
  """The largest number from 0 for which a condition holds that holds up to some number; 0 if it holds nowhere."""
  low, high = 0.0, at_most
  for _ in range(_BISECTION_STEPS):
    middle = 0.5 * (low + high)
    low, high = (middle, high) if holds(middle) else (low, middle)
  return low
