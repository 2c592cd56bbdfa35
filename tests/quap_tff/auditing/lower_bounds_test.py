"""Lower bounds: limits by hand, the two formulas, and how often they are wrong."""

import decimal
import math

import numpy as np
import pytest
from scipy import special
from scipy import stats

from quap_tff.auditing.bounds import lower_bounds
from quap_tff.common.numbers import tradeoff


def _tail(successes, trials, probability):
  """P(at least `successes`) in 50 digits."""
  with decimal.localcontext(decimal.Context(prec=50)):
    p = decimal.Decimal(probability)
    term, total = p**trials, decimal.Decimal(0)
    for k in range(trials, successes - 1, -1):
      total += term
      term = term * k / (trials - k + 1) * (1 - p) / p
    return total


class TestLimits:
  def test_ends_are_where_the_binomial_has_its_tails(self):
    low, high = lower_bounds.clopper_pearson(7, 50, 0.05)
    assert stats.binom.sf(6, 50, low) == pytest.approx(0.05)
    assert stats.binom.cdf(7, 50, high) == pytest.approx(0.05)
    assert (low, high) == pytest.approx(tuple(stats.binomtest(7, 50).proportion_ci(0.9, 'exact')))

  def test_by_hand(self):
    # Nothing in n trials: p is excluded if (1 - p)^n < error. Everything in n trials: the mirror image.
    low, high = lower_bounds.clopper_pearson(0, 10, 0.05)
    assert (low, high) == (0, pytest.approx(1 - 0.05**0.1))
    low, high = lower_bounds.clopper_pearson(10, 10, 0.05)
    assert (low, high) == (pytest.approx(0.05**0.1), 1)

  @pytest.mark.parametrize('trials', [7, 40, 2000])
  @pytest.mark.parametrize('error', [1e-7, 0.0125, 0.25])
  def test_rounding_is_to_the_safe_side(self, trials, error):
    for successes in {1, 2, 3, trials // 3, trials - 2, trials - 1, trials}:
      low, _ = lower_bounds.clopper_pearson(successes, trials, error)
      _, high = lower_bounds.clopper_pearson(trials - successes, trials, error)
      assert _tail(successes, trials, low) <= error
      assert high == 1 or _tail(successes, trials, 1 - decimal.Decimal(high)) <= error

  def test_limits_are_wrong_as_seldom_as_they_say(self):
    rng = np.random.default_rng(0)
    for probability in (0.02, 0.5, 0.9):
      found = rng.binomial(40, probability, 4000)
      limits = {int(k): lower_bounds.clopper_pearson(int(k), 40, 0.05) for k in set(found)}
      assert np.mean([limits[k][0] > probability for k in found]) <= 0.06
      assert np.mean([limits[k][1] < probability for k in found]) <= 0.06


class TestBound:
  def test_formulas(self):
    guesses = lower_bounds.Guesses(80, 100, 100, 1000)
    found = lower_bounds.bound(guesses, 1e-5, 0.9)
    beta, _ = lower_bounds.clopper_pearson(80, 100, 0.05)
    _, alpha = lower_bounds.clopper_pearson(100, 1000, 0.05)
    assert (found.true_positive_rate, found.false_positive_rate) == pytest.approx((beta, alpha))
    assert found.mu == pytest.approx(special.ndtri(beta) - special.ndtri(alpha))
    assert found.epsilon == pytest.approx(float(tradeoff.epsilon_of(found.mu, 1e-5)))
    assert found.epsilon <= float(tradeoff.epsilon_of(found.mu, 1e-5))
    assert found.epsilon_if_independent == pytest.approx(math.log((beta - 1e-5) / alpha))

  def test_an_attack_that_says_not_there_counts_too(self):
    # It misses nobody, and still takes 60% of the others for canaries: ln(1 - α over 1 - β) is the larger figure.
    found = lower_bounds.bound(lower_bounds.Guesses(1000, 1000, 600, 1000), 1e-5)
    expected = math.log((1 - found.false_positive_rate - 1e-5) / (1 - found.true_positive_rate))
    assert found.epsilon_if_independent == pytest.approx(expected)

  @pytest.mark.parametrize('guesses', [(0, 100, 100, 100), (50, 100, 500, 1000), (0, 1, 0, 1)])
  def test_useless_attacks_prove_nothing(self, guesses):
    found = lower_bounds.bound(lower_bounds.Guesses(*guesses), 1e-5)
    assert (found.mu, found.epsilon, found.epsilon_if_independent) == (0, 0, 0)

  def test_refuses_counts_that_cannot_be_and_scores_that_are_not_numbers(self):
    for guesses in ((1, 0, 0, 1), (2, 1, 0, 1), (-1, 1, 0, 1)):
      with pytest.raises(ValueError, match='the number of'):
        lower_bounds.bound(lower_bounds.Guesses(*guesses), 1e-5)
    with pytest.raises(ValueError, match='A score is NaN'):
      lower_bounds.count([1.0, np.nan], [0.0], 0.5)
