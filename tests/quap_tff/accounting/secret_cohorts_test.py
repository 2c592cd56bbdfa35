"""Secret cohorts (docs/proofs.md, theorem 6), by brute force: every strategy of small games, and the accountant.

A game has two rounds. Client i is drawn by a coin in each. Its second update may follow from the sign of the first
release and from its own first coin, which nobody else knows. A density on a grid gives the hockey-stick divergence in
both directions.
"""

import itertools
import pathlib
import re

import dp_accounting
from dp_accounting import pld
import numpy as np
import pytest

from quap_tff import accounting

_Z, _EPSILONS = 0.9, (0.25, 1.0, 2.0)
_STEP = 0.02
# Eight standard deviations around the means. No point is 0, so that half of them are on each side.
_GRID = np.arange(-9.0, 9.0, _STEP) + _STEP / 2
_SHARES = (-1.0, 0.5, 1.0)


def _density(points, mean):
  return np.exp(-((points - mean) ** 2) / (2 * _Z**2)) / (_Z * np.sqrt(2 * np.pi))


def _drawn(rate, update):
  return (1 - rate) * _density(_GRID, 0.0) + rate * _density(_GRID, update)


def _largest_delta(rate, weight, epsilon):
  """The largest hockey-stick divergence that a strategy of the game reaches, in either direction."""
  without = np.outer(_density(_GRID, 0.0), _density(_GRID, 0.0))
  largest = 0.0
  for first, direction in itertools.product(_SHARES, (1, -1)):
    stayed = (1 - rate) * _density(_GRID, 0.0)
    came = rate * _density(_GRID, first * weight)
    delta = 0.0
    for side in (_GRID < 0, _GRID > 0):
      # The two signs are apart, so the best strategy takes the best for each.
      best = 0.0
      for after_stayed, after_came in itertools.product(_SHARES, repeat=2):
        stays = np.outer(stayed[side], _drawn(rate, after_stayed * weight))
        comes = np.outer(came[side], _drawn(rate, after_came * weight))
        pair = (stays + comes, without[side])[::direction]
        best = max(best, float(np.maximum(pair[0] - np.exp(epsilon) * pair[1], 0).sum()) * _STEP**2)
      delta += best
    largest = max(largest, delta)
  return largest


def _accounted(rate, weight, epsilon):
  return accounting.delta_of(accounting.History.gaussian(_Z / weight, 2, rate), epsilon, 'pld')


@pytest.mark.parametrize('epsilon', _EPSILONS)
@pytest.mark.parametrize('rate,weight', [(0.3, 1.0), (0.1, 1.0), (0.6, 0.7)])
def test_no_strategy_of_a_client_exceeds_its_own_account(rate, weight, epsilon):
  ratio = _largest_delta(rate, weight, epsilon) / _accounted(rate, weight, epsilon)
  assert 0.999 < ratio < 1 + 5e-5  # The sums over the grid err by so much.


@pytest.mark.parametrize('rate,weight', [(0.32, 0.8), (0.3, 0.85)])
def test_a_larger_rate_or_weight_than_the_accounted_one_exceeds_it(rate, weight):
  assert _largest_delta(rate, weight, 1.0) > 1.03 * _accounted(0.3, 0.8, 1.0)


def _largest_delta_with_counts(rate, weight, stddev, epsilon):
  """The same for one round that also releases a noised count: the client moves it by 1/2, 0 or -1/2, with its coin."""
  counts = np.arange(-6.0, 6.0, 0.1) * stddev
  cells = _STEP * 0.1 * stddev

  def density(update, count):
    of_count = np.exp(-((counts - count) ** 2) / (2 * stddev**2)) / (stddev * np.sqrt(2 * np.pi))
    return np.outer(_density(_GRID, update), of_count)

  without, largest = density(0.0, 0.0), 0.0
  for share, count, direction in itertools.product(_SHARES, (0.5, 0.0, -0.5), (1, -1)):
    drawn = (1 - rate) * without + rate * density(share * weight, count)
    first, second = (drawn, without)[::direction]
    largest = max(largest, float(np.maximum(first - np.exp(epsilon) * second, 0).sum()) * cells)
  return largest


@pytest.mark.parametrize('rate, weight, stddev', [(0.3, 1.0, 0.7), (0.6, 0.4, 1.5)])
def test_a_noised_count_of_the_same_coin_is_in_the_account(rate, weight, stddev):
  multiplier = 1 / np.sqrt((weight / _Z) ** 2 + (0.5 / stddev) ** 2)
  accounted = accounting.delta_of(accounting.History.gaussian(multiplier, 1, rate), 0.5, 'pld')
  assert 0.999 < _largest_delta_with_counts(rate, weight, stddev, 0.5) / accounted < 1 + 5e-5
  # Without the count, or with more noise on it, an account is too small.
  for more in (np.inf, 1.3 * stddev):
    left_out = 1 / np.sqrt((weight / _Z) ** 2 + (0.5 / more) ** 2)
    assert _largest_delta_with_counts(rate, weight, stddev, 0.5) > 1.02 * accounting.delta_of(
      accounting.History.gaussian(left_out, 1, rate), 0.5, 'pld'
    )


def test_a_round_that_tells_that_nobody_came_exceeds_the_account():
  """Without its one client, such a run never releases anything. With it, it does if either coin shows heads."""
  assert 2 * _accounted(0.3, 1.0, 1.0) < 1 - (1 - 0.3) ** 2


def test_a_coin_that_moves_others_exceeds_the_account():
  """A second try that asks another client for 1 if client i was drawn: in the release, both coins' worlds differ."""
  moved = (1 - 0.3) * _density(_GRID, 0.0) + 0.3 * _density(_GRID, 2.0)
  excess = np.maximum(moved - np.exp(1.0) * _density(_GRID, 0.0), 0).sum() * _STEP
  history = accounting.History.gaussian(_Z, 1, 0.3)
  assert excess > 1.5 * accounting.delta_of(history, 1.0, 'pld')


def _by_the_library(rate, multiplier):
  """ε at δ = 1e-5 of 60 rounds, by dp-accounting alone, with its own grid."""
  event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(multiplier))
  accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-4).compose(event, 60)
  return accountant.get_epsilon(1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('places', [[5], pytest.param(range(5), marks=pytest.mark.thorough)], ids=['largest', 'others'])
def test_the_noise_that_the_page_of_proofs_gives_for_six_rates_is_the_least_by_dp_accounting(places):
  page = pathlib.Path(__file__).parents[3] / 'docs' / 'proofs.md'
  text = page.read_text(encoding='utf-8')
  rows = [re.search(rf'^\| {name} \|(.*)\|$', text, re.MULTILINE).group(1) for name in ('q', r'σ\(q\)')]
  rates, multipliers = ([float(one) for one in row.split('|')] for row in rows)
  assert len(rates) == len(multipliers) == 6
  for place in places:
    rate, multiplier = rates[place], multipliers[place]
    assert _by_the_library(rate, multiplier) <= 3 < _by_the_library(rate, multiplier * (1 - 1e-3))
