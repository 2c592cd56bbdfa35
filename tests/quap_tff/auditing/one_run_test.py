"""Lower bounds from canaries of one run: by hand, by simulation, and how often they are wrong."""

import itertools
import math

import numpy as np
import pytest
from scipy import special
from scipy import stats

from quap_tff.auditing.bounds import one_run
from quap_tff.common.numbers import tradeoff

_DELTA = 1e-5
_MU = tradeoff.mu_at_most(3.0, _DELTA)
_ERROR = 0.05


def _scores(rng, mu, coins=400, unseen=200, noise=1.0, guesses=100):
  """The scores of one run whose noise is that many times the claimed one."""
  heads = rng.random(coins) < 0.5
  scores = noise * rng.normal(size=coins) + mu * heads
  return one_run.found(scores, heads, noise * rng.normal(size=unseen), mu, guesses)


class TestFound:
  def test_guesses_are_the_coins_of_scores_far_from_the_middle(self):
    heads = [True, False, False, True, True]
    found = one_run.found([3.0, -2.0, 2.0, -1.5, 0.6], heads, [1.0, 1.0], 1.0, 4)
    # The middle is 1/2. Guessed as heads: 3 and 2. Guessed as tails: -2 and -1.5.
    assert (found.guesses, found.correct) == (4, 2)
    assert (found.coins, found.inserted, found.unseen) == (5, 3, 4)
    assert found.inserted_mean == pytest.approx(2.1 / 3)
    assert found.unseen_rms == pytest.approx(math.sqrt((4 + 4 + 1 + 1) / 4))

  def test_each_canary_has_its_own_middle(self):
    # A score of 1 speaks for heads where 1 is spent, and for tails where 10 are: that it does so loudest.
    found = one_run.found([1.0, 1.0, 0.5], [True, False, True], [0.0], [1.0, 10.0, 1.0], 2)
    assert found.correct == 2
    assert one_run.found([1.0, 1.0, 0.5], [True, False, True], [0.0], [1.0, 10.0, 1.0], 1).correct == 1

  def test_canaries_that_are_certain_are_all_guessed_right(self):
    heads = np.random.default_rng(0).random(37) < 0.3
    found = one_run.found(1e6 * heads, heads, [0.0], 1e6, 37)
    assert found.correct == found.guesses == 37

  def test_without_heads_nothing_is_proved(self):
    found = one_run.found([3.0, 2.0], [False, False], [1.0], 1.0, 2)
    assert found.inserted == 0 and found.inserted_mean == 0
    assert one_run.gaussian_mu(found, _ERROR) == 0

  def test_refuses_scores_that_are_not_numbers(self):
    for scores, unseen in (([1.0, np.nan], [0.0]), ([1.0, 2.0], [np.nan])):
      with pytest.raises(ValueError, match='A score is NaN'):
        one_run.found(scores, [True, False], unseen, 1.0, 2)


class TestGaussian:
  @pytest.mark.parametrize('degrees', [1, 3, 40, 3000])
  @pytest.mark.parametrize('mean', [0.5, 4.0, 25.0])
  def test_tail_is_that_of_the_noncentral_t_distribution(self, mean, degrees):
    for statistic in (0.2 * mean, mean, 1.1 * mean, 1.5 * mean):
      expected = stats.nct.sf(statistic, degrees, mean)
      assert one_run._t_tail(statistic, mean, degrees) == pytest.approx(expected, rel=1e-5, abs=1e-9)

  @pytest.mark.parametrize('statistic', [1e3, 1e6])
  def test_tail_of_a_huge_statistic(self, statistic):
    # Where the deviation alone decides: P(s <= mean/statistic).
    degrees, mean = 500, 0.98 * statistic
    expected = stats.chi2.cdf(degrees * 0.98**2, degrees)
    assert one_run._t_tail(statistic, mean, degrees) == pytest.approx(expected, rel=0.01)

  def test_bound_is_where_the_tail_is_the_error(self):
    found = one_run.CanaryScores(400, 200, 400, 0.75, 1.1, 100, 70)
    bound = one_run.gaussian_mu(found, _ERROR)
    statistic = math.sqrt(200) * 0.75 / 1.1
    assert stats.nct.sf(statistic, 400, math.sqrt(200) * bound) == pytest.approx(_ERROR, rel=1e-4)
    # Fewer or smaller scores prove less.
    assert bound > one_run.gaussian_mu(found._replace(inserted=100), _ERROR)
    assert bound > one_run.gaussian_mu(found._replace(unseen_rms=1.2), _ERROR)
    assert one_run.gaussian_mu(found._replace(inserted_mean=-0.1), _ERROR) == 0


class TestGaussianDp:
  def test_no_distribution_of_right_guesses_has_less_mass(self):
    # Two canaries, both guessed: the inequalities by hand, on a grid of all distributions.
    found, grid, least = one_run.CanaryScores(2, 1, 1, 1.0, 1.0, 2, 2), np.linspace(0, 1, 201), 2.0
    for two, one in itertools.product(grid, grid):
      # A_2 = p_2, B_1 = p_1/2; A_1 = p_2 + p_1/2, B_0 = p_1/2 + p_0.
      nothing = max(special.ndtr(special.ndtri(two + one / 2) - _MU) - one / 2, 0)
      if two >= 0.3 and one / 2 >= special.ndtr(special.ndtri(two) - _MU):
        least = min(least, two + one + nothing)
    assert one_run._least_mass(found, 0.3, _MU) == pytest.approx(least, abs=0.01)
    assert one_run._least_mass(found, 0.3, _MU) <= least + 1e-9

  def test_all_right_in_one_canary_is_randomized_response(self):
    # One coin: a guess is right with a probability of at most Φ(μ/2).
    found = one_run.CanaryScores(1, 1, 1, 1.0, 1.0, 1, 1)
    for mu in (0.2, 1.0, 3.0):
      most = float(special.ndtr(mu / 2))
      assert one_run._least_mass(found, most - 1e-6, mu) < 1 < one_run._least_mass(found, most + 1e-6, mu)

  def test_bound_is_where_the_mass_is_one(self):
    # Many right guesses of many, and the same with few: the bisection must not be deceived by masses far above 1.
    for coins, guesses, correct in ((100, 100, 80), (1300, 196, 165), (20, 20, 20)):
      found = one_run.CanaryScores(coins, 1, 1, 1.0, 1.0, guesses, correct)
      bound = one_run.gaussian_dp_mu(found, _ERROR)
      assert one_run._least_mass(found, _ERROR, bound + 1e-6) <= 1 + 1e-6
      for mu in np.linspace(0, 0.999 * bound, 20):
        assert one_run._least_mass(found, _ERROR, mu) > 1


class TestAny:
  def test_by_hand(self):
    # Without δ: all of 100 guesses are right, so the rate of right guesses is at least 0.05^(1/100).
    found = one_run.CanaryScores(100, 50, 50, 1.0, 1.0, 100, 100)
    rate = _ERROR**0.01
    assert one_run.any_epsilon(found, 1e-300, _ERROR) == pytest.approx(math.log(rate / (1 - rate)))
    assert one_run.any_epsilon(found, 1e-5, _ERROR) < one_run.any_epsilon(found, 1e-300, _ERROR)
    assert one_run.any_epsilon(found._replace(correct=0), 1e-5, _ERROR) == 0

  def test_delta_costs_what_the_theorem_says(self):
    found = one_run.CanaryScores(40, 20, 20, 1.0, 1.0, 10, 9)
    epsilon = one_run.any_epsilon(found, 1e-3, _ERROR)
    rate = special.expit(epsilon)
    chance = stats.binom.pmf(np.arange(11), 10, rate)
    most = max(chance[9 - i : 9].sum() / i for i in range(1, 10))
    assert chance[9:].sum() + 2 * 40 * 1e-3 * most == pytest.approx(_ERROR, rel=1e-6)


def _alarms(mu, claimed, runs=100, **run):
  """The share of runs in which each analysis proves more than the claim, for scores of canaries that spend μ."""
  rng, epsilon = np.random.default_rng(7), float(tradeoff.epsilon_of(claimed, _DELTA)) if claimed else 0.0
  alarms = []
  for _ in range(runs):
    found = _scores(rng, mu, **run)
    by_any = one_run.any_epsilon(found, _DELTA, _ERROR)
    alarms.append([one_run.gaussian_dp_mu(found, _ERROR) > claimed, by_any > epsilon])
  return np.mean(alarms, axis=0)


def _gaussian_alarms(mu, claimed, runs=1000, **run):
  """The same for the analysis that needs Gaussian noise."""
  rng = np.random.default_rng(7)
  return np.mean([one_run.gaussian_mu(_scores(rng, mu, **run), _ERROR) > claimed for _ in range(runs)])


@pytest.mark.slow
class TestAlarms:
  """Runs with fixed seeds: 5% of 1,000 is 50, give or take 7, and 5% of 100 is 5, give or take 2."""

  @pytest.mark.parametrize('mu', [_MU, *(pytest.param(mu, marks=pytest.mark.thorough) for mu in (0.0, 2.0))])
  def test_null_scores_give_no_more_false_alarms_than_the_level(self, mu):
    # It is exact, so it gives as many as it may.
    assert 0.035 <= _gaussian_alarms(mu, mu) <= 0.065
    assert (_alarms(mu, mu) <= 0.1).all()

  def test_noise_of_another_scale_gives_no_alarm_where_the_claim_scales_with_it(self):
    assert 0.035 <= _gaussian_alarms(1.5 * _MU, _MU, noise=1.5) <= 0.065
    assert (_alarms(1.5 * _MU, _MU, noise=1.5) <= 0.1).all()

  def test_noise_that_is_a_third_too_small_is_found_by_its_scores_alone(self):
    assert _gaussian_alarms(_MU, _MU, runs=100, noise=2 / 3, coins=1000) >= 0.9

  def test_scores_that_share_noise_deceive_the_analysis_that_needs_independence_alone(self):
    rng, wrong, mu, share = np.random.default_rng(3), [], 0.3, 0.5
    # Who knows all other coins sees the noise that is shared: what a canary spends is μ/√(1 - share).
    spent = mu / math.sqrt(1 - share)
    for _ in range(100):
      heads = rng.random(200) < 0.5
      noise = math.sqrt(share) * rng.normal() + math.sqrt(1 - share) * rng.normal(size=300)
      found = one_run.found(noise[:200] + mu * heads, heads, noise[200:], mu, 100)
      by_any = one_run.any_epsilon(found, _DELTA, _ERROR) > float(tradeoff.epsilon_of(spent, _DELTA))
      wrong.append([one_run.gaussian_mu(found, _ERROR) > spent, one_run.gaussian_dp_mu(found, _ERROR) > spent, by_any])
    gaussian, gaussian_dp, any_dp = np.mean(wrong, axis=0)
    assert gaussian > 0.15 and gaussian_dp <= 0.1 and any_dp <= 0.1

  def test_ideal_audits_of_a_certified_three(self):
    rng, found = np.random.default_rng(0), []
    guesses = one_run.planned_guesses(_MU, 1300, 0.045)
    for _ in range(60):
      scores = _scores(rng, _MU, coins=1300, unseen=100, guesses=guesses)
      bounds = one_run.as_dict(scores, _DELTA, 0.955, is_gaussian=True)
      names = ('epsilon_lower_bound', 'epsilon_lower_bound_by_gaussian_dp', 'epsilon_lower_bound_by_any_dp')
      found.append([bounds[name] for name in names])
    gaussian, gaussian_dp, any_dp = np.median(found, axis=0)
    assert 2.6 < gaussian < 2.8 and 1.5 < gaussian_dp < 1.8 and 0.95 < any_dp < 1.2


class TestPlannedGuesses:
  def test_all_where_canaries_are_certain(self):
    assert one_run.planned_guesses(1e6, 101, _ERROR) == 101

  def test_some_where_most_scores_say_little(self):
    assert 100 <= one_run.planned_guesses(_MU, 1000, _ERROR) <= 300

  @pytest.mark.parametrize('coins', [1, 2, 3, 7])
  def test_few_coins(self, coins):
    assert 1 <= one_run.planned_guesses(_MU, coins, _ERROR) <= coins


def test_without_gaussian_noise_one_bound_is_left():
  found = one_run.CanaryScores(100, 50, 60, 1.0, 1.0, 100, 90)
  bounds = one_run.as_dict(found, _DELTA, 0.95, is_gaussian=False)
  assert bounds['mu_lower_bound'] is None and bounds['epsilon_lower_bound_by_gaussian_dp'] is None
  assert bounds['epsilon_lower_bound'] == bounds['epsilon_lower_bound_by_any_dp'] > 0


def test_bounds_are_rounded_down():
  found = one_run.CanaryScores(100, 50, 60, 1.0, 1.0, 100, 90)
  bounds = one_run.as_dict(found, _DELTA, 0.95, is_gaussian=True)
  exact = float(tradeoff.epsilon_of(bounds['mu_lower_bound'], _DELTA))
  assert exact * (1 - 1e-11) < bounds['epsilon_lower_bound'] < exact
