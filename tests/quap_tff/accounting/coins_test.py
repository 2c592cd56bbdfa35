"""Tests of whether a log can have come from coins: their level, and what they refuse."""

import numpy as np
import pytest

from quap_tff.accounting import coins
from quap_tff.accounting import logs


def _log(tmp_path, came):
  """A log of bool[T, N]."""
  rows = [f'{t},{i}\n' for t, cohort in enumerate(came) for i in (np.flatnonzero(cohort) if cohort.any() else [''])]
  (tmp_path / 'log.csv').write_text('round,client\n' + ''.join(rows))
  return logs.Log(str(tmp_path / 'log.csv'))


def _refused(tmp_path, came, rate):
  return coins.Coins.of(_log(tmp_path, came), rate).contradiction


def _fixed_size(rng):
  return np.array([np.isin(np.arange(100), rng.choice(100, 10, replace=False)) for _ in range(50)])


def _shuffled_epochs(rng):
  """Each client once in ten rounds, in parts of different sizes."""
  came = np.zeros((50, 100), bool)
  for epoch in range(5):
    parts = np.split(rng.permutation(100), np.sort(rng.choice(101, 9)))
    for t, part in enumerate(parts):
      came[10 * epoch + t, part] = True
  return came


def _sticky(rng):
  came = rng.random((50, 100)) < 0.1
  for t in range(1, 50):
    came[t] = np.where(rng.random(100) < 0.5, came[t - 1], came[t])
  return came


def _one_crowded_round(rng):
  came = rng.random((50, 100)) < 0.1
  came[20] = rng.random(100) < 0.5
  return came


def _one_frequent_client(rng):
  came = rng.random((200, 100)) < 0.1
  came[:, 3] = rng.random(200) < 0.4
  return came


@pytest.mark.thorough
@pytest.mark.slow
def test_a_log_of_coins_is_not_refused(tmp_path):
  rng, least = np.random.default_rng(1), []
  for _ in range(150):
    rounds, clients, rate = rng.choice([1, 2, 5, 20, 100]), rng.choice([3, 50, 200]), rng.choice([0.02, 0.1, 0.5, 0.95])
    came = rng.random((rounds, clients)) < rate
    if came.any():
      log = _log(tmp_path, came)
      assert not coins.Coins.of(log, float(rate)).contradiction
      least.append(min(coins._tests(coins._seen(log), float(rate)))[0])
  assert min(least) < -2  # Bounds that are not far from the probabilities.


@pytest.mark.parametrize(
  'draw, words',
  [
    (lambda rng: np.array([(np.arange(100) // 10) == t % 10 for t in range(50)]), 'too even'),
    (_fixed_size, 'The rounds had 10 to 10 clients, which is too even'),
    (_shuffled_epochs, 'The clients came in 5 to 5 rounds, which is too even'),
    (_sticky, 'cases a client came in two successive rounds'),
    (_one_crowded_round, 'A round had 4'),
    (_one_frequent_client, 'A client came in 8'),
    (lambda rng: rng.random((100, 200)) < rng.uniform(0.02, 0.18, 200), 'rounds, which is too uneven'),
    (lambda rng: rng.random((200, 100)) < rng.uniform(0.02, 0.18, (200, 1)), 'clients, which is too uneven'),
  ],
)
def test_what_was_not_drawn_by_coins_is_refused(draw, words, tmp_path):
  found = _refused(tmp_path, draw(np.random.default_rng(0)), 0.1)
  assert words in found and 'Coins give something as extreme with a probability of at most' in found


@pytest.mark.parametrize('share, words', [(1.01, ''), (0.5, 'as extreme with a probability of at most 0.0005.')])
def test_all_tests_share_the_level(share, words, tmp_path, monkeypatch):
  log = _log(tmp_path, _fixed_size(np.random.default_rng(0)))
  tests = coins._tests(coins._seen(log), 0.1)
  # All tests find what one of so many finds with this probability by chance.
  evidence = float(np.log(share * coins.LEVEL / len(tests)))
  monkeypatch.setattr(coins, '_tests', lambda seen, rate: [(evidence, text) for _, text in tests])
  found = coins.Coins.of(log, 0.1).contradiction
  assert found.endswith(words) and bool(found) == bool(words)


def test_a_smaller_rate_than_that_of_the_log_is_refused(tmp_path):
  came = np.random.default_rng(0).random((200, 1000)) < 20_154 / 200_000
  assert 'participations, where about 14,000 are expected' in _refused(tmp_path, came, 0.07)
  assert 'participations, where about 30,000 are expected' in _refused(tmp_path, came, 0.15)
  assert not _refused(tmp_path, came, 0.1)


@pytest.mark.slow
def test_bounds_are_above_exact_probabilities(tmp_path):
  """Of two clients and three rounds, by all 64 logs. Only those in which both come are logs of two clients."""
  rate, found = 0.3, []
  for bits in range(64):
    came = np.array([bits >> k & 1 for k in range(6)], bool).reshape(3, 2)
    if came.any(0).all():
      evidence = [bound for bound, _ in coins._tests(coins._seen(_log(tmp_path, came)), rate)]
      found.append((evidence, rate ** came.sum() * (1 - rate) ** (6 - came.sum())))
  evidence, chances = np.exp(np.array([one for one, _ in found])), np.array([one for _, one in found])
  chances /= chances.sum()
  for bounds in evidence.T:
    for bound in bounds:
      assert chances[bounds <= bound * (1 + 1e-9)].sum() <= bound * (1 + 1e-9) or bound >= 1
