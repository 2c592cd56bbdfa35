"""Tests of `quap_tff.mechanisms.secret_cohorts.rounds`: sums by public weights, and nothing that says who came."""

import numpy as np
import pytest
import tensorflow as tf

from quap_tff.mechanisms import playing
from quap_tff.mechanisms.noise import integers
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers
from quap_tff.mechanisms.secret_cohorts import config as configs

_SIZE = 4000
_WEIGHTS = (1.0, 0.5, 0.125)
_CLIP, _NOISE, _DIVISOR = 2.0, 1.5, 1.25


def _rounds(size=_SIZE, **changes):
  given = dict(
    num_clients=3,
    epsilon=3.0,
    delta=1e-5,
    rates=(0.1, 0.3, 0.5),
    planned_weights=_WEIGHTS,
    noise_multiplier=_NOISE,
    divisor=_DIVISOR,
    num_rounds=10,
    clip=clip_rules.Fixed(_CLIP),
    noise_seed=3,
  )
  mechanism = configs.SecretCohortsConfig(**{**given, **changes}).to_mechanism()
  return mechanism.for_model([tf.TensorSpec([size], tf.float32)], layers.from_shapes([(size,)]))


def _played(cohort, size=_SIZE, scale=100.0):
  rounds = _rounds(size)
  updates = [[tf.fill([size], tf.constant(scale * (client + 1), tf.float32))] for client in cohort]
  return playing.play_round(rounds, rounds.initial_state(), updates, cohort)


def _norm(sent, rounds):
  return float(np.linalg.norm(np.asarray(sent[0], np.float64))) * rounds.sum_unit(_CLIP)


def test_each_client_is_clipped_to_its_own_weight():
  rounds, played = _rounds(), _played([0, 1, 2])
  norms = [_norm(sent, rounds) for sent in played.sent]
  assert norms == pytest.approx([weight * _CLIP for weight in _WEIGHTS], rel=1 / 400)
  assert all(norm <= weight * _CLIP for norm, weight in zip(norms, _WEIGHTS))


def test_an_update_within_its_bound_stays():
  rounds, played = _rounds(), _played([1], scale=1e-3)
  sent = np.asarray(played.sent[0][0], np.float64) * rounds.sum_unit(_CLIP)
  np.testing.assert_allclose(sent, np.full(_SIZE, 2e-3), rtol=0, atol=rounds.sum_unit(_CLIP))


@pytest.mark.parametrize('cohort', [[], [0, 2]])
def test_every_round_has_its_noise_and_the_sum(cohort):
  rounds, played = _rounds(), _played(cohort)
  total = np.sum([np.asarray(sent[0], np.float64) for sent in played.sent], axis=0) * rounds.sum_unit(_CLIP)
  noise = np.asarray(played.result[0], np.float64) * _DIVISOR - total
  assert noise.mean() == pytest.approx(0, abs=5 * _NOISE * _CLIP / np.sqrt(_SIZE))
  # Five standard errors are 5.6%, so a scale that is 10% off is found.
  assert noise.std() == pytest.approx(_NOISE * _CLIP, rel=5 / np.sqrt(2 * _SIZE))


def test_state_and_metrics_do_not_say_who_came():
  played = [_played(cohort, size=2) for cohort in ([], [1], [0, 1, 2])]
  for one in played[1:]:
    assert one.metrics.keys() == played[0].metrics.keys() and 'cohort_size' not in one.metrics
    for leaf, other in zip(
      tf.nest.flatten([one.metrics, one.state]), tf.nest.flatten([played[0].metrics, played[0].state])
    ):
      np.testing.assert_array_equal(leaf, other)
  assert int(played[0].state.noise.counter) == 1


def test_other_cohorts_have_other_noise():
  one, other = (np.asarray(_played(cohort).result[0]) for cohort in ([], [2]))
  assert not np.allclose(one, other, atol=0.01)


@pytest.mark.parametrize('bad', [float('nan'), float('inf')])
def test_an_update_that_is_not_finite_is_zero(bad):
  rounds = _rounds(3)
  update = tf.constant([1.0, bad, 1.0])
  played = playing.play_round(rounds, rounds.initial_state(), [[update]], [0])
  assert not np.asarray(played.sent[0][0]).any()


_QUANTILE = clip_rules.PrivateQuantile(0.3, initial_clip=_CLIP, learning_rate=0.1, count_stddev=2.0)


def _moved(cohort, norms, count):
  """The next norm for updates of these norms, and the one that the noised count gives if it is divided by Σ q_i."""
  rounds = _rounds(1, clip=_QUANTILE)
  state = rounds.initial_state()
  played = playing.play_round(rounds, state, [[tf.constant([norm], tf.float32)] for norm in norms], cohort)
  key = rounds.round_key(state.noise, tf.constant(cohort, tf.int64))
  noised = count + float(integers.count_noise(key, _QUANTILE.count_stddev))
  below = noised / (0.1 + 0.3 + 0.5) + 0.5
  return float(played.state.clip), _CLIP * np.exp(-_QUANTILE.learning_rate * (below - _QUANTILE.quantile))


@pytest.mark.parametrize(
  'cohort, norms, count',
  [
    ([], [], 0.0),
    ([0], [1.9], 0.5),
    # Its weight is 1/2, so it is clipped to half of C.
    ([1], [1.9], -0.5),
    ([1], [0.9], 0.5),
    ([0, 1, 2], [1.9, 0.9, 0.3], 0.5),
    ([0, 1, 2], [2.1, 1.1, float('nan')], -1.5),
    # Who has no data counts for neither side.
    ([0, 1], [0.0, 0.9], 0.5),
  ],
)
def test_the_norm_follows_a_noised_count_over_a_public_constant(cohort, norms, count):
  found, expected = _moved(cohort, norms, count)
  assert found == pytest.approx(expected, rel=1e-5)


def test_counts_have_their_noise():
  rounds = _rounds(1, clip=_QUANTILE, num_rounds=400)
  state, norms = rounds.initial_state(), [_CLIP]
  next_state = tf.function(lambda state: playing.play_round(rounds, state, [], []).state)
  for _ in range(400):
    state = next_state(state)
    norms.append(float(state.clip))
  log_norms = np.diff(np.log(norms))
  # Five standard errors are 18%, so noise that is divided by another number of clients is found.
  expected = _QUANTILE.learning_rate * _QUANTILE.count_stddev / 0.9
  assert np.std(log_norms) == pytest.approx(expected, rel=5 / np.sqrt(2 * 400))


@pytest.mark.parametrize('ids', [[3], [0, 0]])
def test_ids_that_are_none_are_refused(ids):
  rounds = _rounds(3)
  updates = [[tf.zeros(3)]] * len(ids)
  with pytest.raises(tf.errors.InvalidArgumentError):
    playing.play_round(rounds, rounds.initial_state(), updates, ids)


def test_the_grid_is_fine_enough_for_the_smallest_weight():
  rounds = _rounds()
  assert rounds.grid.steps >= 512 * np.sqrt(_SIZE) / min(_WEIGHTS)


@pytest.mark.parametrize(
  'changes, words',
  [
    ({'rates': (0.1, 0.0, 0.5)}, 'above 0 and at most 1, found 0 for client 1. Leave out clients that never come'),
    ({'rates': (0.1, 1.2, 0.5)}, 'above 0 and at most 1, found 1.2 for client 1'),
    ({'rates': (0.1, 0.2)}, r'rates must be float\[3\]'),
    ({'planned_weights': (0.1, 0.0, 0.5)}, r'planned_weights must be float\[3\] in \(0, 1\]'),
    ({'planned_weights': None}, 'needs its planned_weights'),
    ({'num_rounds': None}, 'needs its num_rounds'),
    ({'clip': clip_rules.PrivateQuantile(0.5, initial_clip=1.0, count_stddev=0.0)}, 'clips by an un-noised function'),
  ],
)
def test_configurations_without_a_proof_are_refused(changes, words):
  with pytest.raises(ValueError, match=words):
    _rounds(3, **changes)
