"""ROC curves by hand and as scikit-learn draws them, and intervals that cover what they should."""

import math

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from experiments.attacking import roc


class TestCurve:
  def test_a_tie_is_one_step_and_counts_half(self):
    scores, is_member = np.array([2.0, 1.0, 1.0, 1.0, 0.0]), np.array([True, True, True, False, False])
    found = roc.curve(scores, is_member)
    assert found.fpr.tolist() == [0, 0, 0.5, 1]
    assert found.tpr.tolist() == pytest.approx([0, 1 / 3, 1, 1])
    # Pairs: the first member wins 2, each of the others wins 1 and ties 1.
    assert roc.auc(found) == pytest.approx((2 + 1.5 + 1.5) / 6)

  @pytest.mark.parametrize('digits', [0, 1, 8])
  def test_curve_and_area_are_those_of_scikit_learn(self, digits):
    rng = np.random.default_rng(digits)
    scores, is_member = rng.normal(size=300).round(digits), rng.random(300) < 0.3
    found = roc.curve(scores, is_member)
    fpr, tpr, _ = metrics.roc_curve(is_member, scores, drop_intermediate=False)
    np.testing.assert_allclose(found, (fpr, tpr), atol=1e-15)
    assert roc.auc(found) == pytest.approx(metrics.roc_auc_score(is_member, scores))

  def test_the_order_of_tied_trials_is_no_knowledge(self):
    for is_member in (np.arange(10) < 5, np.arange(10) >= 5):
      found = roc.curve(np.zeros(10), is_member)
      assert (roc.auc(found), roc.tpr_at(found, 0.99)) == (0.5, 0)

  def test_tpr_at_a_bound_interpolates_nothing(self):
    found = roc.curve(np.concatenate([np.arange(100) + 0.5, np.arange(100)]), np.repeat([True, False], 100))
    # Above k non-members lie k + 1 members.
    for bound, tpr in ((0.0, 0.01), (0.01, 0.02), (0.0199, 0.02), (0.02, 0.03)):
      assert roc.tpr_at(found, bound) == pytest.approx(tpr)

  def test_infinite_scores_are_in_order(self):
    assert roc.auc(roc.curve(np.array([np.inf, 0.0, -np.inf]), np.array([True, False, False]))) == 1

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


def _gaussian_trials(rng, mu, clients, runs):
  """Scores N(0, 1), and N(μ, 1) for members."""
  is_member = rng.random((runs, clients)) < 0.5
  run, client = np.indices(is_member.shape)
  scores = rng.normal(size=(runs, clients)) + mu * is_member
  return dict(scores=scores.ravel(), is_member=is_member.ravel(), clients=client.ravel(), runs=run.ravel())


def _width(interval):
  return interval.high - interval.low


class TestSummary:
  def test_a_gaussian_has_its_area_and_its_bound(self):
    found = roc.summarize(**_gaussian_trials(np.random.default_rng(3), 1.5, 60, 30), resamples=100)
    area, tpr = roc.gaussian_bound(1.5)
    assert area == pytest.approx(stats.norm.cdf(1.5 / math.sqrt(2)))
    assert tpr[0.01] == pytest.approx(stats.norm.sf(stats.norm.isf(0.01) - 1.5))
    assert found.auc_interval.low <= area <= found.auc_interval.high and _width(found.auc_interval) < 0.08
    for rate in roc.FALSE_POSITIVE_RATES:
      assert found.operating[rate].interval.low <= tpr[rate] <= found.operating[rate].interval.high
    assert roc.gaussian_bound(0.0) == (0.5, pytest.approx({0.01: 0.01, 0.001: 0.001}))

  @pytest.mark.slow
  def test_a_random_score_has_an_area_of_one_half_in_its_interval(self):
    intervals = [
      roc.summarize(**_gaussian_trials(np.random.default_rng(seed), 0.0, 20, 10), resamples=60).auc_interval
      for seed in range(60)
    ]
    # 95% is asked for, and the bootstrap of both rows and columns is conservative.
    assert np.mean([low <= 0.5 <= high for low, high in intervals]) >= 0.93

  def test_trials_of_one_client_are_not_counted_as_independent(self):
    # The offsets of six clients decide: 200 runs of them say little about other clients.
    rng = np.random.default_rng(5)
    scores = np.repeat(rng.normal(size=6)[np.newaxis], 200, axis=0) + 0.01 * rng.normal(size=(200, 6))
    trials = dict(scores=scores.ravel(), is_member=np.tile(np.arange(6) % 2 == 0, 200))
    alone, together = roc.summarize(**trials), roc.summarize(**trials, clients=np.tile(np.arange(6), 200))
    assert _width(together.auc_interval) > 5 * _width(alone.auc_interval)

  def test_trials_of_one_run_are_not_counted_as_independent(self):
    rng = np.random.default_rng(6)
    shift = 3 * rng.normal(size=(8, 1))
    is_member = rng.random((8, 100)) < (0.5 + 0.4 * np.sign(shift))
    trials = dict(scores=(rng.normal(size=(8, 100)) + shift).ravel(), is_member=is_member.ravel())
    alone, together = roc.summarize(**trials), roc.summarize(**trials, runs=np.repeat(np.arange(8), 100))
    assert _width(together.auc_interval) > 3 * _width(alone.auc_interval)

  def test_with_few_trials_the_intervals_say_how_little_is_known(self):
    found = roc.summarize(np.arange(100.0), np.arange(100) >= 40)
    assert (found.members, found.non_members) == (60, 40)
    everyone = roc.summarize(np.arange(100.0), np.arange(100) >= 50).operating[0.001]
    assert everyone.tpr == 1
    assert everyone.fpr_high == pytest.approx(1 - 0.025 ** (1 / 50))
    assert everyone.interval.low == pytest.approx(0.025 ** (1 / 50))
    nobody = roc.summarize(-np.arange(100.0), np.arange(100) >= 50).operating[0.01]
    assert (nobody.tpr, nobody.interval.low) == (0, 0)
    assert nobody.interval.high == pytest.approx(1 - 0.025 ** (1 / 50))

  def test_labels_of_another_length_are_an_error(self):
    with pytest.raises(ValueError, match='one entry for each of the 4 scores'):
      roc.summarize(np.arange(4.0), np.arange(4) < 2, clients=np.arange(3))
