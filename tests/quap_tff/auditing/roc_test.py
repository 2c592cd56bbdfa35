"""ROC curves by hand, and intervals that cover what they should."""

import math

import numpy as np
import pytest
from scipy import stats

from quap_tff.auditing import roc


class TestCurve:
  def test_by_hand(self):
    # From the top: member, non-member, member, non-member.
    found = roc.curve(np.array([4.0, 3.0, 2.0, 1.0]), np.array([True, False, True, False]))
    assert found.fpr.tolist() == [0, 0, 0.5, 0.5, 1]
    assert found.tpr.tolist() == [0, 0.5, 0.5, 1, 1]
    assert roc.auc(found) == 0.75

  def test_a_tie_is_one_step_and_counts_half(self):
    scores, is_member = np.array([2.0, 1.0, 1.0, 1.0, 0.0]), np.array([True, True, True, False, False])
    found = roc.curve(scores, is_member)
    assert found.fpr.tolist() == [0, 0, 0.5, 1]
    assert found.tpr.tolist() == pytest.approx([0, 1 / 3, 1, 1])
    # Pairs: the first member wins 2, each of the others wins 1 and ties 1.
    assert roc.auc(found) == pytest.approx((2 + 1.5 + 1.5) / 6)

  def test_the_order_of_tied_trials_is_no_knowledge(self):
    ties = np.zeros(10)
    for is_member in (np.arange(10) < 5, np.arange(10) >= 5):
      found = roc.curve(ties, is_member)
      assert roc.auc(found) == 0.5
      assert roc.tpr_at(found, 0.99) == 0

  def test_tpr_at_a_bound_interpolates_nothing(self):
    is_member = np.repeat([True, False], 100)
    scores = np.concatenate([np.arange(100) + 0.5, np.arange(100)])
    found = roc.curve(scores, is_member)
    # Above k non-members lie k + 1 members.
    assert roc.tpr_at(found, 0.0) == pytest.approx(0.01)
    assert roc.tpr_at(found, 0.01) == pytest.approx(0.02)
    assert roc.tpr_at(found, 0.0199) == pytest.approx(0.02)
    assert roc.tpr_at(found, 0.02) == pytest.approx(0.03)

  def test_infinite_scores_are_in_order(self):
    found = roc.curve(np.array([np.inf, 0.0, -np.inf]), np.array([True, False, False]))
    assert roc.auc(found) == 1

  @pytest.mark.parametrize(
    'scores, is_member, message',
    [
      ([1.0, math.nan], [True, False], 'found NaN in trial 1'),
      ([1.0, 2.0], [True, True], 'needs members and non-members, found 2 members among 2'),
      ([1.0, 2.0], [False, False], 'found 0 members'),
      ([1.0, 2.0], [True], 'one membership a trial'),
    ],
  )
  def test_bad_trials_are_errors(self, scores, is_member, message):
    with pytest.raises(ValueError, match=message):
      roc.curve(np.array(scores), np.array(is_member))


class TestClopperPearson:
  @pytest.mark.parametrize('trials', [1, 10, 300])
  def test_no_hit_leaves_what_the_formula_says(self, trials):
    found = roc.clopper_pearson(0, trials)
    assert found.low == 0
    assert found.high == pytest.approx(1 - 0.025 ** (1 / trials))
    assert roc.clopper_pearson(trials, trials) == pytest.approx((1 - found.high, 1))

  def test_its_ends_are_where_the_binomial_has_its_tails(self):
    low, high = roc.clopper_pearson(7, 50, 0.9)
    assert stats.binom.sf(6, 50, low) == pytest.approx(0.05)
    assert stats.binom.cdf(7, 50, high) == pytest.approx(0.05)

  def test_it_covers(self):
    rng = np.random.default_rng(1)
    intervals = [roc.clopper_pearson(int(hits), 40) for hits in rng.binomial(40, 0.1, 2000)]
    covered = np.mean([low <= 0.1 <= high for low, high in intervals])
    assert 0.95 <= covered < 0.995


def _gaussian_trials(rng, mu, clients, runs, spread=0.0):
  """Scores N(0, 1), and N(μ, 1) for members; each client has an offset of its own."""
  is_member = rng.random((runs, clients)) < 0.5
  scores = rng.normal(size=(runs, clients)) + mu * is_member + spread * rng.normal(size=clients)
  client = np.broadcast_to(np.arange(clients), is_member.shape)
  run = np.broadcast_to(np.arange(runs)[:, np.newaxis], is_member.shape)
  return dict(scores=scores.ravel(), is_member=is_member.ravel(), clients=client.ravel(), runs=run.ravel())


class TestSummary:
  def test_a_gaussian_has_its_area(self):
    found = roc.summarize(**_gaussian_trials(np.random.default_rng(3), 1.5, 60, 30), resamples=100)
    area, tpr = roc.gaussian_bound(1.5)
    assert area == pytest.approx(stats.norm.cdf(1.5 / math.sqrt(2)))
    assert found.auc_interval.low <= area <= found.auc_interval.high
    assert found.auc_interval.high - found.auc_interval.low < 0.08
    for rate in roc.FALSE_POSITIVE_RATES:
      assert found.operating[rate].interval.low <= tpr[rate] <= found.operating[rate].interval.high

  def test_the_bound_of_a_gaussian(self):
    area, tpr = roc.gaussian_bound(2.0)
    assert tpr[0.01] == pytest.approx(stats.norm.sf(stats.norm.isf(0.01) - 2))
    assert roc.gaussian_bound(0.0) == (0.5, pytest.approx({0.01: 0.01, 0.001: 0.001}))

  def test_a_random_score_has_an_area_of_one_half_in_its_interval(self):
    covered = []
    for seed in range(60):
      trials = _gaussian_trials(np.random.default_rng(seed), 0.0, 20, 10)
      interval = roc.summarize(**trials, resamples=60).auc_interval
      covered.append(interval.low <= 0.5 <= interval.high)
    # 95% is asked for, and the bootstrap of both rows and columns is conservative.
    assert np.mean(covered) >= 0.93

  def test_trials_of_one_client_are_not_counted_as_independent(self):
    # The offsets of six clients decide: 200 runs of them say little about other clients.
    rng = np.random.default_rng(5)
    is_member = np.arange(6) % 2 == 0
    scores = np.repeat(rng.normal(size=6)[np.newaxis], 200, axis=0) + 0.01 * rng.normal(size=(200, 6))
    trials = dict(scores=scores.ravel(), is_member=np.tile(is_member, 200))
    alone = roc.summarize(**trials).auc_interval
    together = roc.summarize(**trials, clients=np.tile(np.arange(6), 200)).auc_interval
    assert together.high - together.low > 5 * (alone.high - alone.low)

  def test_trials_of_one_run_are_not_counted_as_independent(self):
    rng = np.random.default_rng(6)
    shift = 3 * rng.normal(size=(8, 1))
    is_member = rng.random((8, 100)) < (0.5 + 0.4 * np.sign(shift))
    scores = rng.normal(size=(8, 100)) + shift
    trials = dict(scores=scores.ravel(), is_member=is_member.ravel())
    alone = roc.summarize(**trials).auc_interval
    together = roc.summarize(**trials, runs=np.repeat(np.arange(8), 100)).auc_interval
    assert together.high - together.low > 3 * (alone.high - alone.low)

  def test_with_few_non_members_the_small_rate_says_how_little_is_known(self):
    trials = dict(scores=np.arange(100.0), is_member=np.arange(100) >= 50)
    point = roc.summarize(**trials).operating[0.001]
    assert point.tpr == 1
    assert point.fpr_high == pytest.approx(1 - 0.025 ** (1 / 50))
    assert point.interval.low == pytest.approx(0.025 ** (1 / 50))

  def test_where_nobody_is_found_the_interval_has_width(self):
    trials = dict(scores=-np.arange(100.0), is_member=np.arange(100) >= 50)
    point = roc.summarize(**trials).operating[0.01]
    assert (point.tpr, point.interval.low) == (0, 0)
    assert point.interval.high == pytest.approx(1 - 0.025 ** (1 / 50))

  def test_counts(self):
    found = roc.summarize(np.arange(10.0), np.arange(10) < 3)
    assert (found.members, found.non_members) == (3, 7)

  def test_labels_of_another_length_are_an_error(self):
    with pytest.raises(ValueError, match='one entry for each of the 4 scores'):
      roc.summarize(np.arange(4.0), np.arange(4) < 2, clients=np.arange(3))
