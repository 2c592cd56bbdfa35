"""Cohorts that follow from releases (docs/privacy.md), by brute force: every adversary of small games, and the filter.

In a game, client i adds its weight in one world and nothing in the other. Releases are integers, as in a certified run:
R_s = ⌊Y_s - Σ_{k≥1} c_k·R_{s-k}⌉ with Y_s = Σ_{t≤s} c_{s-t}·x_t + Z_s, so that they are post-processing of Y. After
each release the adversary chooses whether client i is asked for a weight, or only others, or the round releases
nothing. All releases and all choices are enumerated, and the best choice is taken at each node. So a value is the
largest hockey-stick divergence that any adversary of the game reaches against the project's filter.
"""

from collections.abc import Callable
import math
from typing import Any, NamedTuple, Optional

import numpy as np
import pytest
from scipy import special
import scipy.linalg

from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms.certified import privacy_filter
from quap_tff.mechanisms.noise import correlation

_NOBODY = -1.0
# The integers within so many standard deviations are enumerated. All others count as if they revealed everything.
_REACH = 5.0
_EPSILONS = np.array([0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0])
_AR1, _BLT = correlation.Ar1(0.9), correlation.Blt((0.6, 0.3), (0.9, 0.4))
_BANDED = correlation.Banded(3, (0.7, 0.4))


class _Game(NamedTuple):
  """A game. The noise multiplier is 1, so a release with weight 1 costs 1 without its tail.

  Attributes:
    noise: The correlation of the noise.
    num_rounds: T.
    limit: The limit of Σμ_s².
    steps: Grid steps in the clipping norm, which is also the standard deviation of the noise.
    choices: What the adversary may choose: a weight that client i is asked for, 0 for others alone, or nobody.
    count_stddev: The standard deviation of the noise of a count; None if no count is released.
    num_runs: How many runs there are, each of T rounds and with noise of its own. Each begins with what was spent.
    forgets: Whether a run begins with nothing instead.
  """

  noise: correlation.Correlation
  num_rounds: int = 3
  limit: float = 1.7
  steps: float = 1.5
  choices: tuple[float, ...] = (1.0, 0.6, 0.0, _NOBODY)
  count_stddev: Optional[float] = None
  num_runs: int = 1
  forgets: bool = False

  @property
  def prices(self) -> privacy_filter.Prices:
    count_cost = 0.0 if self.count_stddev is None else 1 / (2 * self.count_stddev) ** 2
    return privacy_filter.Prices(self.limit, 1.0, count_cost, self.noise)


class _Nodes(NamedTuple):
  """All courses of a game up to a round.

  Attributes:
    accounts: Client i's, each array float64[n].
    added, released: float64[n, T], client i's weight in each release, and the release.
    count: int64[n], how many releases there were.
    probabilities: float64[2, n], without client i's data and with them.
    before: float64[n], what client i has spent in the runs before this one.
  """

  accounts: privacy_filter.Accounts
  added: np.ndarray
  released: np.ndarray
  count: np.ndarray
  probabilities: np.ndarray
  before: np.ndarray


_Filter = Callable[..., tuple[Any, privacy_filter.Accounts]]


def _drops_the_tail(prices, accounts, release, left, proposed):
  return privacy_filter.spend(prices, accounts, release, 0 * left, proposed)


def _drops_counts(prices, accounts, release, left, proposed):
  return privacy_filter.spend(prices._replace(count_cost=0.0), accounts, release, left, proposed)


def _charges_afterwards(prices, accounts, release, left, proposed):
  """Whoever has anything left may add everything."""
  weights, after = privacy_filter.spend(prices._replace(limit=1e9), accounts, release, left, proposed)
  pays = accounts.spent < prices.limit
  sums = [np.where(pays, new, old) for new, old in zip(after.sums, accounts.sums)]
  spent, latest = np.where(pays, after.spent, accounts.spent), np.where(pays, after.latest, accounts.latest)
  return np.where(pays, weights, 0), privacy_filter.Accounts(spent, sums, latest)


def _from_before(values, count, coefficients):
  """float64[n], Σ_{k≥1} c_k·values[s-k], where s is `count`."""
  ages = count[:, np.newaxis] - np.arange(values.shape[1])
  return np.where(ages >= 1, coefficients[np.maximum(ages, 0)] * values, 0.0).sum(axis=1)


def _sums(game, nodes, weights):
  """The integers that a release may be, float64[n, letters], and their probabilities, float64[2, n, letters]."""
  coefficients = game.noise.coefficients(game.num_rounds + 1)
  taken_back = _from_before(nodes.released, nodes.count, coefficients)
  moved = game.steps * (weights + _from_before(nodes.added, nodes.count, coefficients))
  width = math.ceil((_REACH + game.num_rounds / 2) * game.steps)
  letters = np.rint(moved / 2 - taken_back)[:, np.newaxis] + np.arange(-width, width + 1)
  edges = np.append(letters - 0.5, letters[:, -1:] + 0.5, axis=1) + taken_back[:, np.newaxis]
  cells = [np.diff(special.ndtr((edges - mean[:, np.newaxis]) / game.steps)) for mean in (0 * moved, moved)]
  return letters, np.stack(cells)


def _counts(game, weights):
  """float64[2, n, 2], whether a noised count to which client i adds 1/2 is above the middle."""
  moved = np.where(weights > 0, 0.5 / game.count_stddev, 0.0)
  above = special.ndtr(np.stack([-moved, moved]) / 2)
  return np.stack([1 - above, above], axis=-1)


def _after_release(game, nodes, round_num, asked, filtered):
  """The nodes after a release, and float64[2, n], the probability of what is not among them."""
  weights, accounts = np.zeros(len(nodes.count)), nodes.accounts
  if asked:
    proposed = np.full(len(weights), asked, np.float32)
    limit = game.limit if game.forgets else privacy_filter.left_of(game.limit, nodes.before)
    prices = game.prices._replace(limit=limit)
    weights, accounts = filtered(prices, accounts, nodes.count, game.num_rounds - round_num, proposed)
  letters, cells = _sums(game, nodes, np.float64(weights))
  if game.count_stddev is not None:
    cells = (cells[..., np.newaxis] * _counts(game, weights)[:, :, np.newaxis]).reshape([2, len(weights), -1])
    letters = np.repeat(letters, 2, axis=1)
  each = lambda values: np.repeat(values, letters.shape[1], axis=0)
  rows, places, added, released = np.arange(letters.size), each(nodes.count), each(nodes.added), each(nodes.released)
  added[rows, places], released[rows, places] = each(weights), letters.ravel()
  accounts = privacy_filter.Accounts(each(accounts.spent), list(map(each, accounts.sums)), each(accounts.latest))
  probabilities = nodes.probabilities[..., np.newaxis] * cells
  after = _Nodes(accounts, added, released, places + 1, probabilities.reshape([2, -1]), each(nodes.before))
  return after, nodes.probabilities - probabilities.sum(axis=-1)


def _next_run(game, nodes):
  """The nodes as a run of its own goes on from them."""
  accounts, nothing = privacy_filter.opened(len(nodes.count), game.noise.num_buffers), 0 * nodes.added
  before = nodes.before + nodes.accounts.spent
  return _Nodes(accounts, nothing, nothing, 0 * nodes.count, nodes.probabilities, before)


def _values(game, nodes, round_num, filtered, factors):
  """float64[2, k, n], the most that an adversary adds from each node on to a divergence, in both directions."""
  if round_num > game.num_rounds and game.num_runs > 1:
    return _values(game._replace(num_runs=game.num_runs - 1), _next_run(game, nodes), 1, filtered, factors)
  if round_num > game.num_rounds:
    without, present = nodes.probabilities
    factor = factors(nodes.before + nodes.accounts.spent)
    return np.maximum([present - factor * without, without - factor * present], 0.0)
  found = []
  for choice in game.choices:
    if choice == _NOBODY:
      found.append(_values(game, nodes, round_num + 1, filtered, factors))
    else:
      after, missed = _after_release(game, nodes, round_num, choice, filtered)
      later = _values(game, after, round_num + 1, filtered, factors)
      found.append(later.reshape([*later.shape[:2], len(nodes.count), -1]).sum(axis=-1) + missed[::-1, np.newaxis])
  return np.max(found, axis=0)


def _played(game, filtered, factors):
  """float64[2, k], the largest divergences at e^ε = `factors`, float64[k, n] for n courses by what was spent."""
  accounts, nothing = privacy_filter.opened(1, game.noise.num_buffers), np.zeros([1, game.num_rounds])
  start = _Nodes(accounts, nothing, nothing, np.zeros(1, np.int64), np.ones([2, 1]), np.zeros(1))
  return _values(game, start, 1, filtered, factors)[..., 0]


def _ratios(game, filtered: _Filter = privacy_filter.spend):
  """float64[2, 7], the largest δ of any adversary over the δ of the theorem at the limit, for each ε."""
  found = _played(game, filtered, lambda spent: np.exp(_EPSILONS)[:, np.newaxis])
  return found / np.exp(tradeoff.log_delta(_EPSILONS, math.sqrt(game.limit)))


@pytest.mark.slow
@pytest.mark.parametrize(
  'game, broken, at_least',
  [
    (_Game(correlation.Independent()), _charges_afterwards, 2.0),
    pytest.param(
      *(_Game(correlation.Independent(), num_rounds=4, steps=1.0, choices=(1.0, 0.0)), _charges_afterwards, 1.2),
      marks=pytest.mark.thorough,
    ),
    (_Game(_AR1), _drops_the_tail, 2.0),
    pytest.param(
      *(_Game(_AR1, num_rounds=4, steps=1.0, limit=3.0, choices=(1.0, 0.0)), _drops_the_tail, 2.0),
      marks=pytest.mark.thorough,
    ),
    (_Game(_AR1), _charges_afterwards, 2.0),
    (_Game(_BLT), _drops_the_tail, 2.0),
    (_Game(_BANDED), _drops_the_tail, 2.0),
    (_Game(correlation.Independent(), steps=1.0, choices=(1.0, 0.0, _NOBODY), count_stddev=1.0), _drops_counts, 1.1),
    (_Game(_AR1, steps=1.0, choices=(1.0, 0.0, _NOBODY), count_stddev=0.7), _drops_counts, 1.1),
  ],
)
def test_no_adversary_gets_past_the_limit(game, broken, at_least):
  """The best comes near the bound and never above it; a broken filter does not stop it."""
  ratios = _ratios(game)
  assert ratios.max() <= 1
  assert ratios.max() > 0.9
  assert _ratios(game, broken).max() > at_least


@pytest.mark.slow
@pytest.mark.parametrize(
  'game',
  [
    _Game(correlation.Independent(), num_rounds=2, steps=1.0, choices=(1.0, 0.0), num_runs=2),
    _Game(correlation.Independent(), num_rounds=1, steps=1.5, num_runs=3),
    _Game(_AR1, num_rounds=2, steps=1.0, limit=3.0, choices=(1.0, 0.0), num_runs=2),
  ],
)
def test_no_adversary_gets_past_the_limit_of_several_runs(game):
  """He decides by the releases of one run who comes in the next. A run that forgets the others does not stop him."""
  ratios = _ratios(game)
  assert ratios.max() <= 1
  assert ratios.max() > 0.95
  assert _ratios(game._replace(forgets=True)).max() > 3


@pytest.mark.slow
@pytest.mark.parametrize('noise', [pytest.param(correlation.Independent(), marks=pytest.mark.thorough), _AR1])
def test_spending_is_a_reading(noise):
  """An adversary stops where the releases say much. At the ε of what was spent by then, δ is too small."""
  delta = np.array([0.02, 0.1])
  spent_epsilon = lambda spent: tradeoff.epsilon_of(np.sqrt(np.maximum(spent, 1e-9)), delta[:, np.newaxis])
  game = _Game(noise, choices=(0.6, 0.0, _NOBODY), limit=3.0)
  assert (_played(game, privacy_filter.spend, lambda spent: np.exp(spent_epsilon(spent))) > 1.05 * delta).all()


_CLIENTS, _ROUNDS = 5, 14


def _course(rng, noise, limit, count_cost, filtered=privacy_filter.spend):
  """A run in which releases decide who comes: exact μ² and what was charged, float64[S, N], after each release.

  The clients that come are those that the noise favours, as if it were the privacy loss. Some rounds are given up
  before anything is released.
  """
  prices = privacy_filter.Prices(limit, 2.0, count_cost, noise)
  accounts, columns, exact, charged = privacy_filter.opened(_CLIENTS, noise.num_buffers), [], [], []
  loss, gives_up = np.zeros(_CLIENTS), rng.choice([0.0, 0.2])
  for round_num in range(1, _ROUNDS + 1):
    cohort = np.flatnonzero(rng.random(_CLIENTS) < 1 / (1 + np.exp(-loss)))
    before = privacy_filter.accounts_of(accounts, cohort)
    asked = rng.uniform(0.2, 1.0, len(cohort)).astype(np.float32)
    weights, after = filtered(prices, before, len(columns), _ROUNDS - round_num, asked)
    if rng.random() < gives_up or not weights.any():
      continue
    privacy_filter.put(accounts, cohort, after)
    columns.append(np.zeros(_CLIENTS))
    columns[-1][cohort] = weights
    added, size = np.array(columns), len(columns)
    inverse = np.linalg.inv(scipy.linalg.toeplitz(noise.coefficients(size), np.zeros(size)))
    covariance = 4.0 * inverse @ inverse.T
    exact.append(np.einsum('ti,ti->i', added, np.linalg.solve(covariance, added)) + count_cost * (added > 0).sum(0))
    charged.append(accounts.spent.copy())
    loss[cohort] += rng.normal(size=len(cohort))
  return np.array(exact), np.array(charged)


@pytest.mark.slow
@pytest.mark.parametrize('count_cost', [pytest.param(0.0, marks=pytest.mark.thorough), 0.01])
@pytest.mark.parametrize(
  'noise',
  [*(pytest.param(one, marks=pytest.mark.thorough) for one in (correlation.Independent(), _BLT)), _AR1, _BANDED],
)
def test_on_every_path_what_is_charged_covers_the_dense_covariance(noise, count_cost):
  rng = np.random.default_rng(0)
  nearest = 0.0
  for _ in range(60):
    limit = rng.uniform(0.3, 2.0)
    exact, charged = _course(rng, noise, limit, count_cost)
    assert (exact <= charged * (1 + 1e-9)).all()
    assert (exact <= limit * (1 + 1e-9)).all()
    nearest = max(nearest, exact.max() / limit)
  assert nearest > 0.85


@pytest.mark.parametrize('noise', [_AR1, _BLT, _BANDED])
def test_without_the_tail_the_dense_covariance_is_past_the_limit(noise):
  rng = np.random.default_rng(0)
  exact, charged = _course(rng, noise, 1.0, 0.0, _drops_the_tail)
  assert exact.max() > 1.2 and charged.max() <= 1 + 1e-9
