"""Lower bounds on ε from the successes of an attack, each valid with a stated confidence.

An attack says of a world with the client, or of one without it, that the client is there. Let α be how often it says so
without the client, and β how often with it. Every attack on an (ε, δ)-DP mechanism has β ≤ e^ε·α + δ (Kairouz, Oh and
Viswanath 2015), and every attack on a μ-GDP mechanism has β ≤ Φ(Φ⁻¹(α) + μ) (Dong, Roth and Su 2019). So

    μ ≥ Φ⁻¹(β) - Φ⁻¹(α)      and      ε ≥ ln((β - δ)/α),

with β replaced by a lower confidence limit and α by an upper one (Clopper and Pearson 1934). The first is the tighter
bound where the claim is a Gaussian trade-off curve, as for all Gaussian mechanisms here (Nasr et al. 2023).

Both limits, and so both bounds, need independent trials. Trials that share one run are independent if its noise is, in
orthogonal directions. Nothing guarantees this for an arbitrary mechanism, even if it is (ε, δ)-DP. The probabilities of
the trials may differ: the limits are then those of their mean (Hoeffding 1956, theorem 5).
"""

import math
from typing import Any, NamedTuple

import numpy as np
from scipy import special
from scipy import stats

from quap_tff.common import checks
from quap_tff.common.numbers import tradeoff

# Thresholds that are tried, over the range in which the scores of a Gaussian mechanism lie.
_THRESHOLDS = 241
_TAIL = 4.0
# The share by which limits are moved to the safe side: far more than the rounding of all that is computed from them.
_MARGIN = 1e-9


class Guesses(NamedTuple):
  """How often an attack said that a client was there.

  Attributes:
    true_positives: How often it said so where the client was there.
    inserted: In how many trials the client was there.
    false_positives: How often it said so where the client was not there.
    unseen: In how many trials the client was not there.
  """

  true_positives: int
  inserted: int
  false_positives: int
  unseen: int


class Bound(NamedTuple):
  """The bounds that independent guesses prove. All of it holds together with the stated confidence.

  Attributes:
    mu: A lower bound on μ, if the trade-off curve is a Gaussian one.
    epsilon: The ε of that μ at δ, in nats.
    epsilon_if_independent: A lower bound on ε at δ for any trade-off curve, in nats.
    true_positive_rate: The lower limit of β.
    false_positive_rate: The upper limit of α.
  """

  mu: float
  epsilon: float
  epsilon_if_independent: float
  true_positive_rate: float
  false_positive_rate: float


def clopper_pearson(successes: int, trials: int, error: float) -> tuple[float, float]:
  """The limits of a binomial probability (Clopper and Pearson 1934), rounded down and up.

  Args:
    successes: Between 0 and `trials`.
    trials: Independent trials with one probability, at least 1.
    error: The probability, at most, with which each of the two limits misses.
  """
  low = stats.beta.ppf(error, successes, trials - successes + 1) if successes else 0.0
  high = stats.beta.isf(error, successes + 1, trials - successes) if successes < trials else 1.0
  return float(low) * (1 - _MARGIN), min(float(high) * (1 + _MARGIN), 1.0)


def at_least(successes: int, trials: int, error: float) -> float:
  """A lower limit of the trials' mean probability: above it with a probability of at most `error` <= 1/4.

  It is Clopper and Pearson's except for one success: where probabilities differ, only the sum of all of them bounds the
  chance of any.
  """
  return error * (1 - _MARGIN) / trials if successes == 1 else clopper_pearson(successes, trials, error)[0]


def at_most(successes: int, trials: int, error: float) -> float:
  """The upper limit: below the mean probability with a probability of at most `error` <= 1/4."""
  if trials - successes == 1:
    return math.nextafter(1 - at_least(1, trials, error), 1)
  return clopper_pearson(successes, trials, error)[1]


def each(confidence: float, tests: int) -> float:
  """The confidence that each of several tests needs, so that all of them hold together with this confidence."""
  return 1 - (1 - confidence) / tests


def bound(guesses: Guesses, delta: float, confidence: float = 0.95) -> Bound:
  """The lower bounds that guesses prove. Half of the allowed error goes to each of the two rates.

  The attack, its threshold included, must not depend on the trials that are counted. Bounds below 0 are reported as 0.

  Args:
    guesses: The counts; the trials are independent.
    delta: δ in (0, 1).
    confidence: In [0.5, 1): the probability that all bounds hold.

  Raises:
    ValueError: If there are no trials of one kind, or more positives than trials.
  """
  checks.number('confidence', confidence, at_least=0.5, below=1)
  checks.number('delta', delta, above=0, below=1)
  for positives, trials in ((guesses.true_positives, guesses.inserted), (guesses.false_positives, guesses.unseen)):
    checks.integer('the number of trials', trials, at_least=1)
    checks.integer('the number of positives', positives, at_least=0, at_most=trials)
  error = (1 - confidence) / 2
  beta = at_least(guesses.true_positives, guesses.inserted, error)
  alpha = at_most(guesses.false_positives, guesses.unseen, error)
  mu = 0.0
  if beta > 0 and alpha < 1:
    mu = max(float(special.ndtri(beta) - special.ndtri(alpha)), 0.0)
  with np.errstate(divide='ignore'):
    # The complement of an attack is an attack: "not there".
    ratios = [(beta - delta, alpha), (1 - alpha - delta, 1 - beta)]
  any_curve = max([0.0] + [math.log(top / low) for top, low in ratios if top > 0 and low > 0])
  epsilon = float(tradeoff.epsilon_of(mu, delta)) * (1 - 2 * tradeoff.RELATIVE_MARGIN) if mu else 0.0
  return Bound(mu, epsilon, any_curve, beta, alpha)


def planned_threshold(mu: float, inserted: int, unseen: int, confidence: float = 0.95) -> float:
  """The threshold at which scores N(μ, 1) and N(0, 1) are expected to give the largest lower bound on μ.

  It is chosen from the claim and the numbers of trials alone, so it does not depend on any score.
  """
  tried = np.linspace(*thresholds(mu), _THRESHOLDS)
  expected = [
    bound(
      Guesses(round(inserted * float(special.ndtr(mu - t))), inserted, round(unseen * float(special.ndtr(-t))), unseen),
      0.5,
      confidence,
    ).mu
    for t in tried
  ]
  best = np.flatnonzero(np.asarray(expected) >= max(expected) - 1e-9)
  return float(tried[best[len(best) // 2]])


def thresholds(mu: float) -> tuple[float, float]:
  """The least and the largest threshold that is tried for scores N(μ, 1) and N(0, 1)."""
  return -_TAIL, mu + _TAIL


def count(inserted: Any, unseen: Any, threshold: float) -> Guesses:
  """The guesses of the attack that says "there" where a score exceeds a threshold.

  Args:
    inserted: float[n], scores where the client was there.
    unseen: float[m], scores where it was not.
    threshold: The threshold.

  Raises:
    ValueError: For a score that is NaN: it would count as a client that was not found.
  """
  inserted, unseen = np.asarray(inserted), np.asarray(unseen)
  if np.isnan(inserted).any() or np.isnan(unseen).any():
    raise ValueError('A score is NaN, so these trials prove nothing. Look for a run that has diverged.')
  return Guesses(int((inserted > threshold).sum()), inserted.size, int((unseen > threshold).sum()), unseen.size)


def as_dict(guesses: Guesses, audited: Bound) -> dict[str, Any]:
  """The guesses and their bound, as JSON has them."""
  return {
    **guesses._asdict(),
    'true_positive_rate_at_least': audited.true_positive_rate,
    'false_positive_rate_at_most': audited.false_positive_rate,
    'mu_lower_bound': audited.mu,
    'epsilon_lower_bound': audited.epsilon,
    'epsilon_lower_bound_if_trials_are_independent': audited.epsilon_if_independent,
  }
