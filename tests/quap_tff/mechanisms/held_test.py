"""Tests of `quap_tff.mechanisms.held`: the account in the graph, the noise that is sent, and the server's game."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from quap_tff.auditing import distinguisher
from quap_tff.mechanisms import clip_rules
from quap_tff.mechanisms import correlation
from quap_tff.mechanisms import held_noise
from quap_tff.mechanisms import integer_noise
from quap_tff.mechanisms import layers as layers_lib
from quap_tff.mechanisms import mechanism
from quap_tff.mechanisms import planning
from quap_tff.mechanisms import playing
from quap_tff.mechanisms.certified_config import CertifiedConfig

_SPECS = [tf.TensorSpec([3, 2], tf.float32), tf.TensorSpec([5], tf.float32)]
_LAYERS = [layers_lib.Layer('a', (0,), True), layers_lib.Layer('b', (1,), True)]


def _schedule(rounds=8, size=4, population=9, seed=5):
  generator = np.random.default_rng(seed)
  return [np.sort(generator.choice(population, size, replace=False)) for _ in range(rounds)]


def _config(schedule=None, decay=0.7, **changes):
  values = dict(
    num_clients=9,
    epsilon=3.0,
    delta=1e-5,
    correlation=correlation.Held(decay),
    trust='secure_sum',
    clip=clip_rules.Fixed(0.5),
  )
  config = CertifiedConfig(**{**values, **changes})
  return planning.calibrated(config, _schedule() if schedule is None else schedule).config


def _keys(count=9, seed=3):
  return np.random.default_rng(seed).integers(-(2**63), 2**63, [count, 4])


def _play(rounds, state, cohort, keys, updates=None):
  if updates is None:
    updates = [[tf.zeros(spec.shape) for spec in _SPECS] for _ in cohort]
  own = [dict(client_id=client, noise_key=tf.constant(keys[client])) for client in cohort]
  return playing.play_round(rounds, state, updates, own)


class TestAccount:
  @pytest.mark.parametrize('decay', [0.0, 0.7, 0.95])
  def test_is_that_of_dense_matrices(self, decay):
    schedule = _schedule(rounds=10)
    config, keys = _config(schedule, decay), _keys()
    rounds, account = config.for_model(_SPECS, _LAYERS), held_noise.opened(9, config.noise_multiplier, decay)
    state, generator = rounds.initial_state(), np.random.default_rng(1)
    weights = np.asarray(config.planned_weights)
    for cohort in schedule:
      came = cohort[generator.random(len(cohort)) < 0.9]
      state = _play(rounds, state, came, keys).state
      after = account.after(came, weights[came])
      account = after if after.is_within(config.prices.limit) else account
      np.testing.assert_allclose(state.spent, account.spent, rtol=1e-9)
      assert int(state.releases) == account.num_releases
    assert account.num_releases > 3

  def test_everyone_stays_within_the_limit_whoever_comes(self):
    config, keys = _config(_schedule(rounds=12)), _keys()
    rounds, generator = config.for_model(_SPECS, _LAYERS), np.random.default_rng(2)
    state, refused = rounds.initial_state(), 0
    for _ in range(12):
      cohort = np.sort(generator.choice(9, 5, replace=False))
      played = _play(rounds, state, cohort, keys)
      if not played.state.weights.numpy().any():
        refused += 1
        assert all(not part.numpy().any() for part in played.result)
        assert all(not part.numpy().any() for own in played.sent for part in own)
        np.testing.assert_array_equal(played.state.previous_rounds, state.previous_rounds)
      state = played.state
      assert (state.spent.numpy() <= config.prices.limit).all()
    assert 0 < refused < 12

  def test_planned_rounds_are_those_of_the_server(self):
    schedule = _schedule()
    config, keys = _config(schedule), _keys()
    rounds, came = config.for_model(_SPECS, _LAYERS), [cohort[1:] for cohort in schedule]
    state = rounds.initial_state()
    for cohort, planned in zip(came, planning.planned_rounds(config, came)):
      played = _play(rounds, state, cohort, keys)
      state = played.state
      np.testing.assert_array_equal(played.admitted.weights, planned.weights)
      assert float(played.metrics['spent_max']) == pytest.approx(planned.spent_max, rel=1e-5)

  def test_after_the_planned_rounds_nothing_is_released(self):
    schedule = _schedule(rounds=2)
    config, keys = _config(schedule), _keys()
    rounds = config.for_model(_SPECS, _LAYERS)
    state = rounds.initial_state()
    for cohort in schedule:
      state = _play(rounds, state, cohort, keys).state
    played = _play(rounds, state, schedule[0], keys)
    assert not played.state.weights.numpy().any() and not played.result[0].numpy().any()


class TestNoise:
  def test_the_releases_have_the_covariance_of_the_account(self):
    # One tensor of many coordinates, each a draw of the noise in all rounds.
    schedule = _schedule(rounds=5)
    config, size = _config(schedule), 20_000
    rounds = config.for_model([tf.TensorSpec([size], tf.float32)], [layers_lib.Layer('a', (0,), True)])
    state, keys, released = rounds.initial_state(), _keys(), []
    for cohort in schedule:
      own = [dict(client_id=client, noise_key=tf.constant(keys[client])) for client in cohort]
      played = playing.play_round(rounds, state, [[tf.zeros([size])] for _ in cohort], own)
      state = played.state
      released.append(played.result[0].numpy() * config.divisor / 0.5 / config.noise_multiplier)
    expected = held_noise.covariance(schedule, 0.7)
    found = np.cov(np.array(released))
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    assert np.abs((found - expected) / scale).max() < 5 / np.sqrt(size)
    for wrong in (2 / 3, 3 / 2):
      assert np.abs((wrong**2 * found - expected) / scale).max() > 5 / np.sqrt(size)

  def test_a_client_takes_back_what_it_added_in_its_last_round(self):
    config, key = _config(), tf.constant(_keys()[0])
    rounds, number = config.for_model(_SPECS, _LAYERS), lambda value: tf.constant(value, tf.int64)
    noise = [rounds._noise(key, number(t), number(s)) for t, s in ((2, 0), (5, 2), (6, 5))]
    with_w = [rounds._noise(key, number(t), number(0)) for t in (2, 5, 6)]
    fresh = [config.share_stddevs[0] * rounds.grid.steps * 8] * 2
    for index, bound in enumerate(fresh):
      # Without the fresh parts of both rounds, the sum of a round and the next is W of the next alone.
      left = with_w[index] + noise[index + 1] - with_w[index + 1]
      assert np.abs(left.numpy()).max() < bound
    assert np.abs(with_w[0].numpy()).max() > 0 and (noise[1] != with_w[1]).numpy().any()

  def test_is_within_the_bounds_of_the_secure_sum(self):
    config, keys = _config(), _keys()
    rounds = config.for_model(_SPECS, _LAYERS)
    cohort = _schedule()[0]
    played = _play(rounds, rounds.initial_state(), cohort, keys, [[tf.fill(spec.shape, 1e3) for spec in _SPECS]] * 4)
    for own in played.sent:
      for part, bound in zip(own, rounds.secure_bounds):
        assert part.dtype == tf.int64 and np.abs(part.numpy()).max() <= bound
    reach = rounds.grid.steps + integer_noise.REACH * rounds.grid.steps * (
      config.share_stddevs[0] + 2 * config.share_stddevs[1]
    )
    assert rounds.secure_bounds[0] >= reach

  def test_a_replayed_round_gives_the_same_sum(self):
    config, keys = _config(), _keys()
    rounds, cohort = config.for_model(_SPECS, _LAYERS), _schedule()[0]
    first, second = (_play(rounds, rounds.initial_state(), cohort, keys) for _ in range(2))
    for one, other in zip(first.result, second.result):
      np.testing.assert_array_equal(one, other)

  def test_two_clients_with_one_key_add_the_same_noise(self):
    # So the account would be wrong. A key must be drawn by its client; nobody can check that it is new.
    config, keys = _config(), _keys()
    keys[1] = keys[0]
    rounds = config.for_model(_SPECS, _LAYERS)
    played = _play(rounds, rounds.initial_state(), [0, 1], keys)
    np.testing.assert_array_equal(played.sent[0][0], played.sent[1][0])

  def test_a_client_twice_in_a_round_is_refused(self):
    rounds = _config().for_model(_SPECS, _LAYERS)
    with pytest.raises(tf.errors.InvalidArgumentError, match='twice'):
      _play(rounds, rounds.initial_state(), [2, 2], _keys())

  def test_the_key_does_not_leave_the_client(self):
    rounds = _config().for_model(_SPECS, _LAYERS)
    report = rounds.report(None, dict(client_id=1, noise_key=tf.constant(_keys()[1])), {})
    assert set(report) - set(rounds.kept_fields) == {'client_id'}


class TestGame:
  """The distinguishing game on the functions themselves, for all that the server sees."""

  @pytest.mark.parametrize('decay', [0.0, 0.8])
  def test_measures_the_claimed_loss(self, decay):
    schedule = _schedule(rounds=6, size=5)
    config = _config(schedule, decay)
    account = held_noise.opened(9, config.noise_multiplier, decay)
    for cohort in schedule:
      account = account.after(cohort, np.asarray(config.planned_weights)[cohort])
    target = int(np.argmax(account.mu))
    found = distinguisher.play(distinguisher.held(config, schedule, target, seed=1), 30_000, 1e-5)
    assert found.mu_estimate == pytest.approx(account.mu[target], rel=0.03)
    assert found.bound.epsilon <= 3.0

  @pytest.mark.parametrize('factor', [2 / 3, 3 / 2])
  def test_notices_wrong_noise(self, factor, monkeypatch):
    schedule = _schedule(rounds=6, size=5)
    config, real = _config(schedule), integer_noise.Sampler.draw
    monkeypatch.setattr(
      integer_noise.Sampler,
      'draw',
      lambda self, *args, **kwargs: tf.cast(
        tf.round(factor * tf.cast(real(self, *args, **kwargs), tf.float64)), tf.int64
      ),
    )
    target = int(schedule[0][0])
    account = held_noise.opened(9, config.noise_multiplier, 0.7)
    for cohort in schedule:
      account = account.after(cohort, np.asarray(config.planned_weights)[cohort])
    found = distinguisher.play(distinguisher.held(config, schedule, target, seed=1), 20_000, 1e-5)
    assert abs(found.mu_estimate / account.mu[target] - 1) > 0.2

  def test_colluders_see_more(self):
    schedule = _schedule(rounds=6, size=5)
    config = _config(schedule)
    account = held_noise.opened(9, config.noise_multiplier, 0.7)
    for cohort in schedule:
      account = account.after(cohort, np.asarray(config.planned_weights)[cohort])
    target, others = int(schedule[0][0]), [int(client) for client in schedule[0][1:3]]
    simulate = distinguisher.held(config, schedule, target, seed=1, colluders=others)
    found = distinguisher.play(simulate, 20_000, 1e-5)
    exact = held_noise.mu_against(account, others)[target]
    assert found.mu_estimate == pytest.approx(exact, rel=0.03)
    assert account.mu[target] < exact <= held_noise.mu_against_any(account, 2)[target]


class TestRefusals:
  @pytest.mark.parametrize(
    'changes, words',
    [
      (dict(correlation=correlation.Blt()), 'clients hold the noise'),
      (dict(correlation=correlation.Ar1(0.5)), 'clients hold the noise'),
      (dict(clip=clip_rules.PrivateQuantile(count_stddev=20.0)), 'nobody sees the norms'),
      (dict(trust='server'), 'is for trust="secure_sum"'),
      (dict(trust='nobody'), 'trust'),
      (dict(dropout=0.95), 'dropout'),
      (dict(planned_weights=(1.0,)), 'planned_weights'),
    ],
  )
  def test_a_configuration(self, changes, words):
    with pytest.raises(ValueError, match=words):
      _config(**changes)

  def test_a_grid_that_overflows(self):
    config = dataclasses.replace(_config(), noise_multiplier=1e9)
    with pytest.raises(ValueError, match='overflow'):
      config.for_model([tf.TensorSpec([10**9], tf.float32)], [layers_lib.Layer('a', (0,), True)])


def test_own_told_finds_what_is_of_a_client():
  told = dict(weights=tf.constant([0.5, 1.0]), previous_rounds=tf.constant([3, 4], tf.int64), clip=tf.constant(2.0))
  told['client_ids'] = tf.constant([7, 5], tf.int64)
  own = mechanism.own_told(told, tf.constant(5, tf.int64))
  assert (float(own['weight']), int(own['previous_round']), float(own['clip'])) == (1.0, 4, 2.0)
