"""Lower bounds on ε from the successes of an attack, each valid with a stated confidence.

An attack says of a world with the client, or of one without it, that the client is there. Let α be how often it says so
without the client, and β how often with it. Every attack on an (ε, δ)-DP mechanism has β ≤ e^ε·α + δ (Kairouz, Oh and
Viswanath 2015), and every attack on a μ-GDP mechanism has β ≤ Φ(Φ⁻¹(α) + μ) (Dong, Roth and Su 2019). So

    μ ≥ Φ⁻¹(β) - Φ⁻¹(α)      and      ε ≥ ln((β - δ)/α),

with β replaced by a lower confidence limit and α by an upper one (Clopper and Pearson 1934). The first is the tighter
bound where the claim is a Gaussian trade-off curve, as for all Gaussian mechanisms here (Nasr et al. 2023).

Both limits, and so both bounds, need independent trials, as those of the distinguishing game are. Canaries of one run
share the run (`one_run`).
"""

import math
from typing import Any, NamedTuple

import numpy as np
from scipy import special
from scipy import stats

from quap_tff.common import checks
from quap_tff.common.numbers import tradeoff

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
  beta, _ = clopper_pearson(guesses.true_positives, guesses.inserted, error)
  _, alpha = clopper_pearson(guesses.false_positives, guesses.unseen, error)
  mu = 0.0
  if beta > 0 and alpha < 1:
    mu = max(float(special.ndtri(beta) - special.ndtri(alpha)), 0.0)
  with np.errstate(divide='ignore'):
    # The complement of an attack is an attack: "not there".
    ratios = [(beta - delta, alpha), (1 - alpha - delta, 1 - beta)]
  any_curve = max([0.0] + [math.log(top / low) for top, low in ratios if top > 0 and low > 0])
  epsilon = float(tradeoff.epsilon_of(mu, delta)) * (1 - 2 * tradeoff.RELATIVE_MARGIN) if mu else 0.0
  return Bound(mu, epsilon, any_curve, beta, alpha)


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
