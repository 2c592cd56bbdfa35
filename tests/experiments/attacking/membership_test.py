"""Membership scores by hand, and LiRA where the best attack is known in closed form."""

import math

import numpy as np
import pytest
from scipy import stats

from experiments.attacking import membership
from experiments.attacking import roc


class TestScores:
  def test_loss_and_confidence_by_hand(self):
    # Probabilities 1/2, 1/4, 1/4.
    logits = np.log([[2.0, 1.0, 1.0]])
    for label, probability in ((0, 0.5), (1, 0.25)):
      labels = np.array([label])
      assert membership.cross_entropy(logits, labels) == pytest.approx([-math.log(probability)])
      assert membership.scaled_confidence(logits, labels) == pytest.approx([math.log(probability / (1 - probability))])

  def test_confidence_of_a_sure_model_is_finite(self):
    logits = np.array([[1000.0, 0.0, 0.0]])
    assert membership.scaled_confidence(logits, np.array([0])) == pytest.approx([1000 - math.log(2)])
    assert membership.scaled_confidence(logits, np.array([1])) == pytest.approx([-1000])

  def test_each_model_has_its_row(self):
    logits = np.log([[[1.0, 3.0]], [[3.0, 1.0]]])
    found = membership.scaled_confidence(logits, np.array([1]))
    assert found == pytest.approx(np.array([[math.log(3)], [-math.log(3)]]))

  def test_a_unit_is_the_mean_of_its_examples(self):
    values = np.array([[1.0, 5.0, 3.0], [2.0, 0.0, 0.0]])
    assert membership.unit_means(values, np.array([0, 1, 0]), 2).tolist() == [[2, 5], [1, 0]]
    with pytest.raises(ValueError, match='Each of the 3 units needs an example'):
      membership.unit_means(values, np.array([0, 1, 0]), 3)

  def test_the_loss_threshold_is_minus_the_mean_loss(self):
    logits = np.log([[[0.5, 0.5], [0.25, 0.75]], [[0.9, 0.1], [0.2, 0.8]]])
    members = np.array([[True], [False]])
    scores = membership.attack_each('loss_threshold', logits, np.array([0, 0]), np.array([0, 0]), members)
    assert scores[:, 0] == pytest.approx([(math.log(0.5) + math.log(0.25)) / 2, (math.log(0.9) + math.log(0.2)) / 2])


class TestLira:
  # Unit 0: with it 3, 5; without it 0, 2. Unit 1: with it 1, 1; without it 1, 3.
  SHADOWS = np.array([[3.0, 1.0], [5.0, 1.0], [0.0, 1.0], [2.0, 3.0]])
  MEMBERS = np.array([[True, True], [True, True], [False, False], [False, False]])

  def test_online_by_hand(self):
    # Squares about each unit's mean, with: 2 + 0 over 2 degrees of freedom; without: 2 + 2 over 2.
    scores = membership.lira(np.array([4.0, 1.0]), self.SHADOWS, self.MEMBERS)
    with_it = stats.norm.logpdf([4, 1], [4, 1], 1)
    without = stats.norm.logpdf([4, 1], [1, 2], math.sqrt(2))
    assert scores == pytest.approx(with_it - without)

  def test_offline_by_hand_does_not_use_models_with_the_target(self):
    expected = [3 / math.sqrt(2), -1 / math.sqrt(2)]
    assert membership.lira(np.array([4.0, 1.0]), self.SHADOWS, self.MEMBERS, online=False) == pytest.approx(expected)
    others = np.where(self.MEMBERS, 77.0, self.SHADOWS)
    assert membership.lira(np.array([4.0, 1.0]), others, self.MEMBERS, online=False) == pytest.approx(expected)

  def test_with_many_models_each_unit_has_its_own_variance(self):
    rng = np.random.default_rng(2)
    deviations = np.array([1.0, 10.0])
    members = np.arange(200)[:, np.newaxis] % 2 == np.zeros((1, 2))
    shadows = rng.normal(size=(200, 2)) * deviations
    scores = membership.lira(deviations, shadows, members, online=False)
    assert scores == pytest.approx([1, 1], abs=0.35)

  def test_a_unit_without_models_is_an_error(self):
    members = self.MEMBERS.copy()
    members[:, 1] = True
    with pytest.raises(ValueError, match='1 of 2 units have no shadow model that was trained without them'):
      membership.lira(np.zeros(2), self.SHADOWS, members)
    with pytest.raises(ValueError, match='1 of 2 units have no shadow model that was trained with them'):
      membership.lira(np.zeros(2), self.SHADOWS, ~members)

  @pytest.mark.parametrize('online', [True, False])
  def test_it_attains_the_best_area_of_a_gaussian(self, online):
    # Each unit's confidence is N(own mean, 1), and N(own mean + μ, 1) if it is a member. An attack that knows the
    # means attains Φ(μ/√2); the loss alone does not, since units differ far more than membership moves them.
    rng, mu = np.random.default_rng(4), 1.5
    members = rng.random((60, 80)) < 0.5
    confidences = rng.normal(size=(60, 80)) + mu * members + 10 * rng.normal(size=80)
    scores = np.empty(members.shape)
    for i in range(60):
      others, theirs = np.delete(confidences, i, 0), np.delete(members, i, 0)
      scores[i] = membership.lira(confidences[i], others, theirs, online=online)
    runs, clients = (index.ravel() for index in np.indices(members.shape))
    found = roc.summarize(scores.ravel(), members.ravel(), clients=clients, runs=runs, resamples=100)
    best = stats.norm.cdf(mu / math.sqrt(2))
    assert found.auc_interval.low <= best <= found.auc_interval.high + 0.01
    assert abs(found.auc - best) < 0.02
    assert roc.auc(roc.curve(confidences.ravel(), members.ravel())) < 0.6

  @pytest.mark.parametrize('attack', list(membership.ATTACKS))
  def test_models_that_know_nothing_give_one_half(self, attack):
    rng = np.random.default_rng(7)
    members = rng.random((30, 40)) < 0.5
    logits = rng.normal(size=(30, 80, 3)) + rng.normal(size=(80, 3))
    units = np.repeat(np.arange(40), 2)
    scores = membership.attack_each(attack, logits, rng.integers(3, size=80), units, members)
    runs, clients = (index.ravel() for index in np.indices(members.shape))
    found = roc.summarize(scores.ravel(), members.ravel(), clients=clients, runs=runs)
    assert found.auc_interval.low <= 0.5 <= found.auc_interval.high
    assert abs(found.auc - 0.5) < 0.05


class TestShadowClassifier:
  def _data(self, seed, models):
    """Members of class 0 are predicted with confidence, members of class 1 with doubt."""
    rng = np.random.default_rng(seed)
    labels = np.arange(60) % 2
    members = rng.random((models, 60)) < 0.5
    sure = np.where(labels == 0, 1.0, -1.0) * (members - 0.5) * 3
    logits = np.stack([sure, np.zeros_like(sure)], axis=-1)
    return logits + 0.3 * rng.normal(size=logits.shape), labels, members

  def test_each_class_has_its_own_attack_model(self):
    logits, labels, members = self._data(1, 4)
    scores = membership.shadow_scores(*self._data(0, 10), logits)
    for label in (0, 1):
      of_class = labels == label
      assert roc.auc(roc.curve(scores[:, of_class].ravel(), members[:, of_class].ravel())) > 0.9

  def test_scores_are_log_odds(self):
    # Three kinds of predictions that say nothing: the odds are those of membership among the shadow models, 3 to 1.
    logits = np.log([[0.5, 0.5], [0.9, 0.1], [0.1, 0.9]])[np.arange(60) % 3]
    members = np.broadcast_to(np.arange(60) % 4 > 0, (6, 60))
    labels = np.zeros(60, np.int64)
    scores = membership.shadow_scores(np.broadcast_to(logits, (6, 60, 2)), labels, members, logits)
    assert scores == pytest.approx(np.full(60, math.log(3)), abs=0.06)

  def test_the_target_is_not_among_its_own_shadow_models(self):
    # Outputs that are all alike, and memberships of a target that are all true: training on the target would show.
    members = np.zeros((4, 20), bool)
    members[0] = True
    members[1:, :10] = True
    scores = membership.attack_each(
      'shadow_classifier', np.zeros((4, 20, 2)), np.zeros(20, np.int64), np.arange(20), members
    )
    assert scores[0] == pytest.approx(np.zeros(20), abs=1e-6)


class TestAttackEach:
  def test_lira_leaves_the_target_out(self):
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(9, 5, 3)), np.array([0, 1, 2, 0, 1])
    members = (np.arange(9)[:, np.newaxis] + np.arange(5)) % 2 == 0
    scores = membership.attack_each('lira_online', logits, labels, np.arange(5), members)
    confidences = membership.scaled_confidence(logits, labels)
    expected = membership.lira(confidences[3], np.delete(confidences, 3, 0), np.delete(members, 3, 0))
    assert scores[3] == pytest.approx(expected)

  def test_bad_calls_are_errors(self):
    logits, labels, units = np.zeros((2, 1, 2)), np.zeros(1, int), np.zeros(1, int)
    members = np.array([[True], [False]])
    with pytest.raises(ValueError, match='Unknown attack'):
      membership.attack_each('guess', logits, labels, units, members)
    with pytest.raises(ValueError, match='must be finite'):
      membership.attack_each('lira_online', logits * np.nan, labels, units, members)
    with pytest.raises(ValueError, match='the number of models'):
      membership.attack_each('lira_online', logits[:1], labels, units, members[:1])
