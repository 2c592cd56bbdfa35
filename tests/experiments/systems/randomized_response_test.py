"""Tests of `experiments.systems.randomized_response`: probabilities and ε by hand, and estimates that are unbiased."""

import itertools
import math

import numpy as np
import pytest

from experiments.systems import randomized_response as rr
from quap_tff.common import registry

_ANSWERS = np.repeat([0, 1, 2], [500, 300, 200])
_SHARES = np.array([0.5, 0.3, 0.2])


def _estimates(mechanism, count=1, runs=400):
  """float64[runs, 3], of independent surveys, and one survey's standard deviations."""
  rng = np.random.default_rng(1)
  found = [mechanism.estimate(mechanism.reports(rng, _ANSWERS, 3, count), 1000, count) for _ in range(runs)]
  return np.array([f.shares for f in found]), np.mean([f.stddev for f in found], axis=0)


class TestRandomizedResponse:
  def test_estimate_by_hand(self):
    # ε = ln 3 and k = 3: a = 3/5, b = 1/5.
    found = rr.RandomizedResponse(math.log(3)).estimate(np.array([40, 40, 20]), 100)
    np.testing.assert_allclose(found.shares, [0.5, 0.5, 0.0], atol=1e-12)
    np.testing.assert_allclose(found.stddev[2], math.sqrt(0.2 * 0.8 / 100) / 0.4)

  def test_reports_have_the_probabilities_that_epsilon_allows(self):
    mechanism, rng = rr.RandomizedResponse(1.5), np.random.default_rng(0)
    counts = np.array([mechanism.reports(rng, np.full(200_000, answer), 4) for answer in range(2)]) / 200_000
    total = math.exp(1.5) + 3
    np.testing.assert_allclose(counts[0], np.array([math.exp(1.5), 1, 1, 1]) / total, atol=4e-3)
    assert np.log(counts[0] / counts[1]).max() == pytest.approx(1.5, abs=0.05)

  def test_reports_add_up(self):
    assert rr.RandomizedResponse(0.5).epsilon_of(4) == 2.0


class TestRappor:
  @pytest.mark.parametrize(
    'f, p, q, one, forever',
    [
      # The paper's f = 1/2, p = 1/2, q = 3/4: q* = 11/16, p* = 9/16; (11·7)/(9·5); and 3².
      (0.5, 0.5, 0.75, math.log(77 / 45), math.log(9)),
      # Without the second step one report tells the permanent bits: ε_1 = ε_∞ = 2·ln((1 - f/2)/(f/2)).
      (0.5, 0.0, 1.0, math.log(9), math.log(9)),
    ],
  )
  def test_epsilon_by_hand(self, f, p, q, one, forever):
    mechanism = rr.Rappor(f, p, q)
    assert mechanism.report_epsilon == pytest.approx(one)
    assert mechanism.permanent_epsilon == pytest.approx(forever)
    assert mechanism.epsilon_of(1) == pytest.approx(one)
    assert mechanism.epsilon_of(1000) == pytest.approx(forever)

  def test_one_report_is_as_likely_as_epsilon_allows(self):
    # All four pairs of bits of one report of two answers, from both true answers, in closed form.
    mechanism = rr.Rappor(0.3, 0.2, 0.9)
    star = lambda bit: 0.3 * (0.2 + 0.9) / 2 + 0.7 * (0.9 if bit else 0.2)
    chance = lambda answer, sent: math.prod(
      star(answer == j) if one else 1 - star(answer == j) for j, one in enumerate(sent)
    )
    ratios = [math.log(chance(0, sent) / chance(1, sent)) for sent in itertools.product([0, 1], repeat=2)]
    assert max(map(abs, ratios)) == pytest.approx(mechanism.report_epsilon)

  def test_estimate_by_hand(self):
    # b = p + f·q/2 - f·p/2 = 0.5625 and (1 - f)·(q - p) = 0.125.
    found = rr.Rappor().estimate(np.array([60, 56.25]), 100)
    np.testing.assert_allclose(found.shares, [0.3, 0.0], atol=1e-12)

  def test_permanent_bits_stay(self):
    # One client reports very often: what is received tells its permanent bits, and nothing averages them away.
    counts = [rr.Rappor(f=0.5, p=0.0, q=1.0).reports(np.random.default_rng(s), [0], 2, 50) for s in range(20)]
    assert {int(c) for pair in counts for c in pair} == {0, 50}


@pytest.mark.slow
@pytest.mark.parametrize(
  'mechanism, count',
  [
    (rr.RandomizedResponse(1.0), 1),
    (rr.RandomizedResponse(2.0), 3),
    (rr.Rappor(), 1),
    (rr.Rappor(0.25, 0.25, 0.75), 4),
  ],
)
def test_estimates_are_unbiased_with_the_stated_deviation(mechanism, count):
  shares, stddev = _estimates(mechanism, count)
  np.testing.assert_allclose(shares.mean(axis=0), _SHARES, atol=4 * stddev.max() / math.sqrt(len(shares)))
  # Of 400 runs, the deviation is known to 3.5%: 2/3 and 3/2 of it are far off.
  np.testing.assert_allclose(shares.std(axis=0), stddev, rtol=0.15)


@pytest.mark.parametrize(
  'spec, message',
  [
    ('randomized_response:epsilon=0', 'epsilon'),
    ('randomized_response:epsilon=nan', 'epsilon'),
    ('rappor:f=0', 'rappor f'),
    ('rappor:f=1', 'rappor f'),
    ('rappor:p=0.75', 'p must be less than q'),
    ('rapport', "'rappor'"),
  ],
)
def test_bad_parameters(spec, message):
  with pytest.raises(ValueError, match=message):
    registry.parse_spec('mechanism', spec, rr.MECHANISMS)


@pytest.mark.parametrize(
  'answers, k, count, message',
  [
    ([3], 3, 1, 'found 3'),
    ([-1], 3, 1, 'found -1'),
    ([0.5], 3, 1, r'int\[clients\]'),
    ([0], 1, 1, 'number of answers'),
    ([0], 2, 0, 'reports'),
  ],
)
def test_bad_answers(answers, k, count, message):
  for mechanism in (rr.RandomizedResponse(), rr.Rappor()):
    with pytest.raises(ValueError, match=message):
      mechanism.reports(np.random.default_rng(0), np.array(answers), k, count)


def test_a_client_without_examples_answers_too():
  assert [rr.majority_answer(np.array(y, np.int64), 3) for y in ([2, 1, 2], [1, 2], [])] == [2, 1, 0]
