"""Tests of `quap_tff.mechanisms.noise.held_noise`: each figure is compared with the definition of the noise."""

import fractions
import itertools
import math

import numpy as np
import pytest
from scipy import signal
from scipy import stats

from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms.noise import held_noise


def _history(seed, num_clients=7, num_rounds=9, share=0.45):
  """Cohorts of those who came, none of them empty, and their weights."""
  rng = np.random.default_rng(seed)
  came = rng.random([num_rounds, num_clients]) < share
  came[np.arange(num_rounds), rng.integers(num_clients, size=num_rounds)] = True
  cohorts = [np.flatnonzero(row) for row in came]
  return cohorts, [rng.uniform(0.1, 1.0, len(cohort)) for cohort in cohorts]


def _account(cohorts, weights, decay, num_clients=7, noise_multiplier=1.3):
  account = held_noise.opened(num_clients, noise_multiplier, decay)
  for cohort, own in zip(cohorts, weights):
    account = account.after(cohort, own)
  return account


def _loadings(cohorts, client, decay):
  """B_i, float64[T, 2·n_i]: the noise of client i in the releases is s·B_i times standard normal numbers."""
  rounds = [t for t, cohort in enumerate(cohorts) if client in cohort]
  fresh, taken_back = held_noise.stddevs(1.0, decay)
  loadings = np.zeros([len(cohorts), 2 * len(rounds)])
  for r, t in enumerate(rounds):
    loadings[t, 2 * r], loadings[t, 2 * r + 1] = fresh, taken_back
    if r:
      loadings[t, 2 * r - 1] = -taken_back
  return loadings


def _dense(cohorts, decay, num_clients=7):
  return sum(b @ b.T for b in (_loadings(cohorts, i, decay) for i in range(num_clients)))


def _columns(cohorts, weights, num_clients=7):
  columns = np.zeros([len(cohorts), num_clients])
  for t, (cohort, own) in enumerate(zip(cohorts, weights)):
    columns[t, cohort] = own
  return columns


def _exact_loss(cohorts, weights, decay, client):
  """w_iᵀ·Σ⁻¹·w_i in rational numbers, by elimination."""
  share, size = fractions.Fraction(decay), len(cohorts)
  table = [[fractions.Fraction(0)] * (size + 1) for _ in range(size)]
  for other in range(7):
    rounds = [t for t, cohort in enumerate(cohorts) if other in cohort]
    for t, following in itertools.zip_longest(rounds, rounds[1:]):
      table[t][t] += (1 - share) ** 2 + share
      if following is not None:
        table[following][following] += share
        table[t][following] -= share
        table[following][t] -= share
  for t, (cohort, own) in enumerate(zip(cohorts, weights)):
    table[t][size] = sum((fractions.Fraction(float(w)) for i, w in zip(cohort, own) if i == client), start=0)
  total = fractions.Fraction(0)
  for t in range(size):
    total += table[t][size] ** 2 / table[t][t]
    for below in range(t + 1, size):
      factor = table[below][t] / table[t][t]
      table[below] = [a - factor * b for a, b in zip(table[below], table[t])]
  return total


@pytest.mark.parametrize('decay', [0.0, 0.4, 0.9])
def test_covariance_is_that_of_the_definition(decay):
  for seed in range(5):
    cohorts, _ = _history(seed)
    np.testing.assert_allclose(held_noise.covariance(cohorts, decay), _dense(cohorts, decay), atol=1e-14)


def test_noise_as_drawn_has_this_covariance_and_not_two_thirds_or_three_halves_of_it():
  cohorts, _ = _history(3)
  decay, scale, draws = 0.7, 1.3, 20_000
  rng, totals = np.random.default_rng(0), np.zeros([len(cohorts), 20_000])
  for client in range(7):
    kept = np.zeros(draws)
    for t in [t for t, cohort in enumerate(cohorts) if client in cohort]:
      fresh, taken_back = rng.normal(size=[2, draws]) * np.array(held_noise.stddevs(scale, decay))[:, np.newaxis]
      totals[t] += fresh + taken_back - kept
      kept = taken_back
  measured = totals @ totals.T / draws

  def is_accepted(covariance):
    white = np.linalg.solve(np.linalg.cholesky(covariance), totals)
    deviation = white @ white.T / draws - np.eye(len(cohorts))
    return np.abs(deviation).max() < 6 * math.sqrt(2 / draws)

  expected = scale**2 * held_noise.covariance(cohorts, decay)
  assert is_accepted(expected)
  assert not is_accepted(expected * 2 / 3) and not is_accepted(expected * 3 / 2)
  assert np.abs(measured - expected).max() < 0.05 * np.abs(expected).max()


def test_covariance_between_rounds_of_one_client():
  found = held_noise.covariance([np.array([0])] * 4, 0.6)
  np.testing.assert_allclose(np.diag(found), [1 - 0.6 + 0.36, 1.36, 1.36, 1.36])
  np.testing.assert_allclose(np.diag(found, 1), -0.6)
  np.testing.assert_array_equal(np.diag(found, 2), 0)


@pytest.mark.slow
def test_mean_covariance_under_dropout():
  cohorts, _ = _history(4)
  rng, total, draws = np.random.default_rng(1), np.zeros([9, 9]), 4000
  for _ in range(draws):
    came = [cohort[rng.random(len(cohort)) >= 0.3] for cohort in cohorts]
    total += held_noise.covariance(came, 0.8)
  np.testing.assert_allclose(held_noise.covariance(cohorts, 0.8, dropout=0.3), total / draws, atol=0.1)
  assert np.abs(held_noise.covariance(cohorts, 0.8) - total / draws).max() > 0.5


class TestAccount:
  @pytest.mark.parametrize('decay', [0.0, 0.3, 0.7, 0.98])
  def test_appended_rows_are_those_of_the_whole(self, decay):
    for seed in range(5):
      cohorts, weights = _history(seed)
      account = held_noise.opened(7, 1.3, decay)
      for t in range(len(cohorts)):
        account = account.after(cohorts[t], weights[t])
        covariance = _dense(cohorts[: t + 1], decay)
        columns = _columns(cohorts[: t + 1], weights[: t + 1])
        expected = (columns * np.linalg.solve(covariance, columns)).sum(axis=0) / 1.3**2
        np.testing.assert_allclose(account.spent, expected, rtol=1e-10)
      np.testing.assert_allclose(account.whitening, np.linalg.inv(np.linalg.cholesky(covariance)), atol=1e-10)
      np.testing.assert_allclose(account.mu, np.sqrt(expected), rtol=1e-10)

  @pytest.mark.parametrize('decay', [0.0, 0.7, 0.999])
  def test_is_never_below_the_exact_loss(self, decay):
    for seed in range(3):
      cohorts, weights = _history(seed)
      account = _account(cohorts, weights, decay, noise_multiplier=1.0)
      for client in range(7):
        exact = _exact_loss(cohorts, weights, decay, client)
        assert exact <= fractions.Fraction(account.spent[client]) <= exact * fractions.Fraction(1 + 1e-9)

  def test_no_updates_cost_more_and_parallel_ones_cost_as_much(self):
    rng = np.random.default_rng(0)
    for seed, decay in enumerate([0.2, 0.7, 0.95]):
      cohorts, weights = _history(seed)
      account = _account(cohorts, weights, decay)
      precision, columns = np.linalg.inv(1.3**2 * _dense(cohorts, decay)), _columns(cohorts, weights)
      assert (precision >= 0).all() and (account.whitening >= 0).all()
      design = (np.abs(account.whitening) @ columns) ** 2
      np.testing.assert_allclose(design.sum(axis=0) / 1.3**2, account.spent, rtol=1e-10)
      for client in range(7):
        directions = rng.normal(size=[100, len(cohorts), 3])
        directions /= np.linalg.norm(directions, axis=2, keepdims=True)
        updates = columns[:, client, np.newaxis] * directions
        losses = np.einsum('asx,st,atx->a', updates, precision, updates)
        assert (losses <= account.spent[client]).all()

  def test_independent_noise_has_a_closed_form(self):
    cohorts, weights = _history(0)
    account = _account(cohorts, weights, 0.0)
    expected = sum(np.bincount(cohort, own**2 / len(cohort), minlength=7) for cohort, own in zip(cohorts, weights))
    np.testing.assert_allclose(account.spent, expected / 1.3**2, rtol=1e-12)

  def test_everyone_in_every_round(self):
    decay, num_rounds = 0.8, 12
    toeplitz = (1 + decay**2) * np.eye(num_rounds) - decay * (np.eye(num_rounds, k=1) + np.eye(num_rounds, k=-1))
    toeplitz[0, 0] -= decay
    expected = np.linalg.inv(5 * toeplitz).sum()
    account = _account([np.arange(5)] * num_rounds, [np.ones(5)] * num_rounds, decay, 5, 1.0)
    np.testing.assert_allclose(account.spent, expected, rtol=1e-10)

  def test_who_stays_away_pays_for_who_comes_later(self):
    first = held_noise.opened(3, 1.0, 0.7).after([0, 1], [1.0, 1.0])
    later = first.after([1, 2], [1.0, 1.0])
    assert later.spent[0] > first.spent[0]
    independent = held_noise.opened(3, 1.0, 0.0).after([0, 1], [1.0, 1.0])
    assert independent.after([1, 2], [1.0, 1.0]).spent[0] == pytest.approx(independent.spent[0], rel=1e-12)

  def test_noise_of_those_who_add_nothing_counts(self):
    alone = held_noise.opened(2, 1.0, 0.5).after([0], [1.0])
    together = held_noise.opened(2, 1.0, 0.5).after([0, 1], [1.0, 0.0])
    assert together.spent[0] == pytest.approx(alone.spent[0] / 2) and together.spent[1] == 0

  def test_is_a_value(self):
    account = held_noise.opened(3, 1.0, 0.7).after([0, 1], [1.0, 0.5])
    before = [np.copy(field) for field in account]
    account.after([0, 2], [1.0, 1.0])
    assert all(np.array_equal(a, b) for a, b in zip(before, account))

  def test_a_round_without_clients_releases_nothing(self):
    account = held_noise.opened(3, 1.0, 0.7).after([0, 1], [1.0, 0.5])
    assert account.after([], []) is account
    assert account.num_releases == 1

  def test_is_within(self):
    account = held_noise.opened(2, 1.0, 0.0).after([0], [1.0])
    assert account.is_within(1.001) and not account.is_within(0.999)
    assert account.is_within(np.array([1.001, 0.0])) and not account.is_within(np.array([0.5, 9.0]))
    assert not account.is_within(math.nan)

  @pytest.mark.parametrize(
    'cohort, weights', [([0, 0], [1, 1]), ([3], [1]), ([0], [1.1]), ([0], [-0.1]), ([0], [math.nan]), ([0, 1], [1])]
  )
  def test_refuses_what_makes_no_sense(self, cohort, weights):
    with pytest.raises(ValueError):
      held_noise.opened(3, 1.0, 0.5).after(cohort, weights)

  @pytest.mark.parametrize('arguments', [(0, 1.0, 0.5), (3, 0.0, 0.5), (3, 1.0, 1.0), (3, 1.0, -0.1)])
  def test_refuses_values_out_of_range(self, arguments):
    with pytest.raises(ValueError):
      held_noise.opened(*arguments)


class TestCollusion:
  @pytest.mark.parametrize('decay', [0.0, 0.7, 0.95])
  def test_named_clients_against_the_definition(self, decay):
    cohorts, weights = _history(2)
    account = _account(cohorts, weights, decay)
    for colluders in ([1], [0, 4], [2, 3, 6]):
      left = [np.setdiff1d(cohort, colluders) for cohort in cohorts]
      kept = [t for t, cohort in enumerate(left) if len(cohort)]
      covariance = _dense([left[t] for t in kept], decay)
      columns = _columns(cohorts, weights)[kept]
      expected = np.sqrt((columns * np.linalg.solve(covariance, columns)).sum(axis=0)) / 1.3
      found = held_noise.mu_against(account, colluders)
      honest = np.setdiff1d(np.arange(7), colluders)
      np.testing.assert_allclose(found[honest], expected[honest], rtol=1e-9)
      assert np.isinf(found[colluders]).all()

  @pytest.mark.slow
  @pytest.mark.parametrize('decay', [0.0, 0.3, 0.7, 0.95])
  @pytest.mark.parametrize('num_colluders', [1, 2, 3, 6])
  def test_bound_holds_for_every_set(self, decay, num_colluders):
    for seed in range(3):
      account = _account(*_history(seed), decay)
      bound = held_noise.mu_against_any(account, num_colluders)
      assert np.isfinite(bound).all() and (bound >= account.mu).all()
      for colluders in itertools.combinations(range(7), num_colluders):
        found = held_noise.mu_against(account, colluders)
        assert (found <= bound)[np.isfinite(found)].all()

  def test_everyone_else_leaves_the_own_noise(self):
    account = _account(*_history(1), 0.7)
    bound = held_noise.mu_against_any(account, 6)
    for client in range(7):
      alone = held_noise.mu_against(account, np.setdiff1d(np.arange(7), [client]))[client]
      assert bound[client] == pytest.approx(alone, rel=2e-6)

  def test_is_tight_for_independent_noise_and_equal_cohorts(self):
    account = _account([np.arange(7)] * 4, [np.ones(7)] * 4, 0.0)
    for k in (1, 2, 3):
      np.testing.assert_allclose(held_noise.mu_against_any(account, k), account.mu * math.sqrt(7 / (7 - k)), rtol=2e-6)

  def test_few_of_many_change_little(self):
    rng = np.random.default_rng(0)
    cohorts = [rng.choice(100, 30, replace=False) for _ in range(40)]
    account = _account(cohorts, [np.ones(30)] * 40, 0.7, 100)
    assert (held_noise.mu_against_any(account, 1) < 1.02 * account.mu).all()
    assert (held_noise.mu_against_any(account, 5) < 1.08 * account.mu).all()

  def test_nobody_colludes(self):
    account = _account(*_history(1), 0.7)
    np.testing.assert_array_equal(held_noise.mu_against_any(account, 0), account.mu)
    np.testing.assert_array_equal(held_noise.mu_against(account, []), account.mu)
    unused = held_noise.opened(3, 1.0, 0.5)
    np.testing.assert_array_equal(held_noise.mu_against_any(unused, 2), 0)

  def test_who_was_in_no_release_lost_nothing(self):
    account = held_noise.opened(4, 1.0, 0.5).after([0, 1, 2], [1, 1, 1])
    assert held_noise.mu_against_any(account, 2)[3] == 0


def _discrete(stddev, reach):
  """The discrete Gaussian on -reach … reach, and its normal density."""
  points = np.arange(-reach, reach + 1)
  masses = np.exp(-(points**2) / (2 * stddev**2))
  return masses / masses.sum()


def _curve(masses, shift, epsilon):
  """δ(ε) of adding integer noise of these masses to 0 or to `shift`, exactly."""
  one, other = np.pad(masses, (shift, 0)), np.pad(masses, (0, shift))
  return max(np.maximum(a - math.exp(epsilon) * b, 0).sum() for a, b in ((one, other), (other, one)))


def _slack(epsilon, delta, steps, **changes):
  """What integers cost a release of one number by one client, with independent noise of so many steps."""
  defaults = dict(decay=0.0, num_releases=1, num_coordinates=1, num_participations=1)
  return held_noise.discreteness_slack(epsilon, delta, noise_steps=steps, **{**defaults, **changes})


class TestDiscreteness:
  def test_a_sum_of_discrete_gaussians_in_one_dimension(self):
    for stddev in (0.45, 0.55, 0.7):
      one, reach = _discrete(stddev, 12), 7
      found = np.convolve(np.convolve(one, one), one)[36 - reach : 37 + reach]
      expected = _discrete(math.sqrt(3) * stddev, 40)[40 - reach : 41 + reach]
      error = np.abs(np.log(found / expected)).max()
      # The kernel has the basis (1, -1, 0), (0, 1, -1).
      bound = 2 * 2 * math.atanh(held_noise._theta_error(2 / stddev**2))
      assert bound / 50 < error < bound

  def test_two_rounds_of_one_client_and_another(self):
    fresh, taken_back, reach = 0.8, 0.9, 12
    grid = 2 * reach + 1
    column = lambda masses: np.pad(masses[:, np.newaxis], ((0, 0), (reach, reach)))
    v, w = column(_discrete(fresh, reach)), column(_discrete(taken_back, reach))
    # V of two clients in each round, and W of the first client: in round 1, and then in round 2.
    found = np.zeros([grid, grid])
    found[reach, reach] = 1.0
    for term in (v, v.T, v, v.T, np.fliplr(np.diag(w[:, reach])), w.T):
      found = signal.convolve2d(found, term, mode='same')
    covariance = 2 * fresh**2 * np.eye(2) + taken_back**2 * np.array([[1.0, -1.0], [-1.0, 2.0]])
    points = np.stack(np.meshgrid(*[np.arange(-reach, reach + 1)] * 2, indexing='ij'), axis=-1)
    expected = np.exp(-0.5 * np.einsum('xys,st,xyt->xy', points, np.linalg.inv(covariance), points))
    near = np.abs(points).max(axis=-1) <= 4
    ratio = np.log(found[near] / (expected / expected.sum())[near])
    bound = (6 - 2) * 2 * math.atanh(held_noise._theta_error(2 / fresh**2 + 1 / taken_back**2))
    assert 1e-6 < np.abs(ratio).max() < bound

  def test_a_shift_costs_no_more_than_with_real_noise_and_the_slack(self):
    for stddev, members, shift in ((2.0, 2, 1), (2.0, 2, 4), (5.0, 3, 2)):
      masses = np.ones(1)
      for _ in range(members):
        masses = np.convolve(masses, _discrete(stddev, 60))
      mu = shift / (stddev * math.sqrt(members))
      for epsilon in (0.0, 0.5, 1.0, 2.0):
        delta = float(np.exp(tradeoff.log_delta(epsilon, mu)))
        slack = _slack(epsilon, delta, stddev, num_participations=members, smallest_cohort=members)
        assert _curve(masses, shift, epsilon + slack.epsilon) <= delta + slack.delta
        if shift == 1:  # Integers alone really cost something.
          assert _curve(masses, shift, epsilon) > 1.005 * delta

  @pytest.mark.parametrize('stddev', [2.0, 8.0])
  def test_rounded_noise_is_rarely_more_likely_than_the_slack_says(self, stddev):
    delta, reach = 1e-3, int(9 * stddev)
    points = np.arange(1, reach + 1)
    rounded = stats.norm.sf((points - 0.5) / stddev) - stats.norm.sf((points + 0.5) / stddev)
    ratios = np.log(rounded / _discrete(stddev, 2 * reach)[2 * reach + 1 : 3 * reach + 1])
    beyond = 2 * stats.norm.sf((points + 0.5) / stddev) > delta * 2.0**-30
    slack = _slack(0.0, delta, stddev)
    assert 0.5 * slack.epsilon < ratios[beyond].max() < slack.epsilon
    assert ratios.min() > -slack.epsilon

  def test_falls_with_the_square_of_the_steps(self):
    run = dict(num_releases=60, num_coordinates=2570, num_participations=1800, smallest_cohort=20)
    slack = lambda steps, decay: _slack(3.0, 1e-5, steps, decay=decay, **run)
    coarse, fine = slack(2.0**12, 0.7), slack(2.0**20, 0.7)
    assert fine.epsilon < 1e-8 and fine.delta < 1e-12
    assert coarse.epsilon / fine.epsilon == pytest.approx(2.0**16, rel=0.02)
    assert slack(2.0**20, 0.95).epsilon > fine.epsilon

  def test_counts_three_draws_for_each_participation(self):
    of = lambda count: _slack(0.0, 1e-5, 1.2, num_participations=count)
    added = 2 * 3 * 2 * math.atanh(held_noise._theta_error(2 / 1.2**2))
    assert of(3).epsilon - of(2).epsilon == pytest.approx(added, rel=1e-5)

  def test_delta_pays_for_the_tail_also_where_the_grid_is_fine(self):
    assert 1e-3 * 2.0**-30 < _slack(0.0, 1e-3, 2.0**20).delta < 1.001e-3 * 2.0**-30

  @pytest.mark.parametrize('steps, coordinates', [(0.2, 1), (5.0, 1000)])
  def test_too_few_steps(self, steps, coordinates):
    with pytest.raises(ValueError, match='too few steps'):
      _slack(1.0, 1e-5, steps, num_coordinates=coordinates, num_participations=2)
