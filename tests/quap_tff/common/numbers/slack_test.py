"""Tests of `quap_tff.common.numbers.slack`: n draws against the exact distribution of all their outcomes."""

import math

import mpmath
import numpy as np
import pytest

from quap_tff.common.numbers import slack as slacks
from quap_tff.common.numbers import tradeoff


def test_of_a_mu():
  slack = slacks.Slack(0.01, 1e-6)
  mus = np.array([0.0, 0.5, 1.0])
  found = slack.of(mus, 1e-5)
  np.testing.assert_allclose(found[1:], tradeoff.epsilon_of(mus[1:], 9e-6) + 0.01, rtol=1e-12)
  assert found[0] == 0.0
  np.testing.assert_array_equal(slacks.Slack().of(mus, 1e-5), tradeoff.epsilon_of(mus, 1e-5))


def _opposites(log_ratio, so_far, bound):
  """Two values with ratios of e^η and e^-η in every draw."""
  likelier = 1 / (1 + math.exp(-log_ratio))
  return tuple(np.tile([one, 1 - one], [len(so_far), 1]) for one in (likelier, 1 - likelier))


def _stopped(log_ratio, so_far, bound):
  """The same until a ratio is above the bound, from where on an adversary keeps it."""
  first, second = _opposites(log_ratio, so_far, bound)
  return np.where(so_far[:, np.newaxis] > bound, second, first), second


def _random(log_ratio, so_far, bound):
  """Three values with other probabilities after every history."""
  rng = np.random.default_rng(len(so_far))
  second = rng.dirichlet(np.ones(3), len(so_far))
  first = second * np.exp(rng.uniform(-log_ratio / 2, log_ratio / 2, second.shape))
  return first / first.sum(axis=1, keepdims=True), second


def _outcomes(pair, num_draws, log_ratio, rests, bound):
  """The probabilities of all histories of draws under both: float64[K], float64[K].

  One more value has the mass of the first one's rest, and another has that of the second one's.
  """
  first = second = np.ones(1)
  for _ in range(num_draws):
    with np.errstate(divide='ignore', invalid='ignore'):
      parts = pair(log_ratio, np.nan_to_num(np.log(first / second)), bound)
    drawn = []
    for index, (part, rest) in enumerate(zip(parts, rests)):
      more = np.zeros([len(part), 2 if any(rests) else 0])
      more[:, index : index + 1] = rest
      drawn.append(np.append((1 - rest) * part, more, axis=1))
    first, second = ((before[:, np.newaxis] * now).ravel() for before, now in zip((first, second), drawn))
  return first, second


def _exact_delta(first, second, epsilon):
  """The largest of first(S) - e^ε·second(S) over all events S."""
  return np.maximum(first - math.exp(epsilon) * second, 0).sum()


# η, n and δ'. Where δ' is small, the root decides, and where η·√n is large, the drift.
_DRAWS = [(0.05, 8, 1e-3), (0.3, 8, 0.05), (0.03, 10, 1.5e-8), (1.0, 10, 0.2)]


class TestOfDraws:
  @pytest.mark.parametrize('log_ratio, num_draws, delta', _DRAWS)
  @pytest.mark.parametrize('pair', [_opposites, _stopped, _random])
  def test_bounds_every_event_under_both(self, pair, log_ratio, num_draws, delta):
    bound = slacks.slack_of_draws(num_draws, log_ratio, 0.0, delta)
    first, second = _outcomes(pair, num_draws, log_ratio, (0.0, 0.0), bound)
    assert first.sum() == pytest.approx(1) == pytest.approx(second.sum()) and (first != second).any()
    assert _exact_delta(first, second, bound) <= delta
    assert _exact_delta(second, first, bound) <= delta

  @pytest.mark.parametrize('rests', [(0.1, 0.0), (0.0, 0.1), (0.1, 0.05)])
  @pytest.mark.parametrize('pair', [_opposites, _stopped, _random])
  def test_what_is_missing_from_either(self, pair, rests):
    num_draws, log_ratio, delta = 6, 0.01, 0.1
    bound = slacks.slack_of_draws(num_draws, log_ratio, max(rests), delta)
    first, second = _outcomes(pair, num_draws, log_ratio, rests, bound)
    assert first.sum() == pytest.approx(1) == pytest.approx(second.sum())
    assert _exact_delta(first, second, bound) <= delta + num_draws * rests[0]
    assert _exact_delta(second, first, bound) <= delta + num_draws * rests[1]

  def test_less_would_be_too_little(self):
    """Without the drift, with half of the root, or without the missing mass, the same checks fail."""
    first, second = _outcomes(_opposites, 10, 1.0, (0.0, 0.0), 0.0)
    assert _exact_delta(first, second, math.sqrt(2 * 10 * math.log(1 / 0.2))) > 0.2
    first, second = _outcomes(_opposites, 10, 0.03, (0.0, 0.0), 0.0)
    drift = 10 * 0.03 * math.expm1(0.03)
    assert _exact_delta(first, second, 0.03 * math.sqrt(2 * 10 * math.log(1 / 1.5e-8)) / 2 + drift) > 1.5e-8
    for rests in ((0.0, 0.1), (0.1, 0.0)):
      outcomes = _outcomes(_opposites, 6, 0.01, rests, 0.0)
      first, second = outcomes if rests[1] else outcomes[::-1]
      assert _exact_delta(first, second, slacks.slack_of_draws(6, 0.01, 0.0, 0.1)) > 0.1

  def test_is_rounded_up(self):
    for log_ratio, num_draws, delta in [(2.0**-42, 2 * 10**11, 1e-30), *_DRAWS]:
      with mpmath.workdps(60):
        eta, n = mpmath.mpf(log_ratio), mpmath.mpf(num_draws)
        exact = eta * mpmath.sqrt(2 * n * mpmath.log(1 / mpmath.mpf(delta)))
        exact += n * (eta * mpmath.expm1(eta) + 2 * mpmath.mpf(1e-25))
        assert exact <= slacks.slack_of_draws(num_draws, log_ratio, 1e-25, delta) <= exact * (1 + mpmath.mpf(2) ** -39)
