"""Tests of `mechanisms.held.rounds`: clients with guards, the noise that they send, and the server's game."""

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf

from quap_tff import plans
from quap_tff.auditing import distinguisher
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms import playing
from quap_tff.mechanisms.held import guard
from quap_tff.mechanisms.held import guarded_clients
from quap_tff.mechanisms.noise import correlation
from quap_tff.mechanisms.noise import held_noise
from quap_tff.mechanisms.noise import integer_noise
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers as layers_lib
from tests.quap_tff import examples
from tests.quap_tff import noise_checks

_SPECS = [tf.TensorSpec([3, 2], tf.float32), tf.TensorSpec([5], tf.float32)]


def _schedule(rounds=8, size=4, population=9, seed=5):
  generator = np.random.default_rng(seed)
  return [np.sort(generator.choice(population, size, replace=False)) for _ in range(rounds)]


def _config(schedule=None, decay=0.7, **changes):
  config = examples.held(**{'num_clients': 9, 'correlation': correlation.HeldNoise(decay), **changes})
  return config.settled(_schedule() if schedule is None else schedule).mechanism


def _rounds(config, specs=_SPECS):
  return config.for_model(specs, [layers_lib.Layer(str(index), (index,), True) for index in range(len(specs))])


def _keys(count=9, seed=3):
  return np.random.default_rng(seed).integers(-(2**63), 2**63, [count, 4])


def _guarded(config):
  return guarded_clients.GuardedClients(config, b'a secret of the simulation')


def _play(rounds, state, answers, updates=None):
  if updates is None:
    updates = [[tf.zeros(spec.shape) for spec in rounds.specs] for _ in answers]
  own = [dict(client_id=client, answer=answer) for client, answer in answers.items()]
  return playing.play_round(rounds, state, updates, own)


def _answer(config, client, round_num=1, last_round=0, key=None):
  """An answer as a guard gives it."""
  plan = guard.PublicPlan.of(config)
  fields = dict(plan=plan.number, round=round_num, last_round=last_round, weight=np.float32(plan.weights[client]))
  fields['noise_key'] = _keys()[client] if key is None else key
  return {name: tf.constant(value, tf.float32 if name == 'weight' else tf.int64) for name, value in fields.items()}


def _account(config, cohorts):
  """What a run of these cohorts costs."""
  account = held_noise.opened(9, config.noise_multiplier, config.config.correlation.decay)
  for cohort in cohorts:
    account = account.after(cohort, np.asarray(config.planned_weights)[cohort])
  return account


class TestAccount:
  @pytest.mark.slow
  @pytest.mark.parametrize('decay', [pytest.param(0.0, marks=pytest.mark.thorough), 0.7])
  def test_everyone_stays_within_the_limit_whoever_comes(self, decay, monkeypatch):
    # Noise of one step each: what is refused must be 0 all the same.
    monkeypatch.setattr(integer_noise.Sampler, 'draw', lambda self, key, count, **_: tf.ones([count], tf.int64))
    config = dataclasses.replace(_config(_schedule(rounds=12), decay).config, most_clients=5).to_mechanism()
    rounds, generator = _rounds(config), np.random.default_rng(2)
    guarded, state, refused = _guarded(config), rounds.initial_state(), 0
    account, weights = held_noise.opened(9, config.noise_multiplier, decay), np.asarray(config.planned_weights)
    for round_num in range(1, 13):
      cohort = np.sort(generator.choice(9, 5, replace=False))
      played = _play(rounds, state, guarded.answers(round_num, cohort))
      after = account.after(cohort, weights[cohort])
      if after.is_within(config.prices.limit):
        account = after
        np.testing.assert_array_equal(played.state.weights.numpy()[cohort], np.float32(weights[cohort]))
      else:
        refused += 1
        assert all(not part.numpy().any() for part in played.result)
        assert all(not part.numpy().any() for own in played.sent for part in own)
        np.testing.assert_array_equal(played.state.last_rounds, state.last_rounds)
      state = played.state
      assert guarded.spent_max == pytest.approx(account.spent.max() / config.prices.limit, rel=1e-12)
      assert guarded.spent_max <= 1
    assert 0 < refused < 12

  @pytest.mark.slow
  def test_planned_rounds_are_those_of_the_clients(self, undrawn):
    schedule = _schedule()
    config = _config(schedule)
    rounds, came, guarded = _rounds(config), [cohort[1:] for cohort in schedule], _guarded(config)
    state = rounds.initial_state()
    for round_num, (cohort, planned) in enumerate(zip(came, config.simulated(came)), 1):
      played = _play(rounds, state, guarded.answers(round_num, cohort))
      state = played.state
      np.testing.assert_array_equal(played.admitted.weights, planned.weights)
      assert guarded.spent_max == pytest.approx(planned.spent_max, rel=1e-12)

  @pytest.mark.parametrize('decay', [0.0, 0.3, 0.5, 0.9])
  def test_the_budget_of_a_round_covers_a_client_behind_its_own_noise(self, decay):
    config = _config(decay=decay)
    account = held_noise.opened(9, config.noise_multiplier, decay).after(np.array([4]), np.ones(1))
    (budget,) = config.cost(np.array([4]), np.ones(1), 0.5, 1).budgets
    assert budget >= tradeoff.epsilon_of(np.sqrt(account.spent[4]), config.config.delta) * (1 - 1e-6)

  @pytest.mark.slow
  def test_after_the_planned_rounds_nothing_is_released(self):
    schedule = _schedule(rounds=2)
    config = _config(schedule)
    rounds, guarded = _rounds(config), _guarded(config)
    state = rounds.initial_state()
    for round_num, cohort in enumerate([*schedule, schedule[0]], 1):
      played = _play(rounds, state, guarded.answers(round_num, cohort))
      state = played.state
    assert not state.weights.numpy().any() and not played.result[0].numpy().any()

  @pytest.mark.slow
  def test_a_simulation_goes_on_where_its_ledger_ends(self, undrawn):
    schedule = _schedule()
    config = _config(schedule)
    plan = plans.Plan.certified(config.config, schedule)
    rounds, guarded, ledger = _rounds(config), _guarded(config), plan.new_ledger()
    state = rounds.initial_state()
    for round_num, cohort in enumerate(schedule[:5], 1):
      played = _play(rounds, state, guarded.answers(round_num, cohort))
      ledger.append(plan.recorded(played.state, played.metrics, cohort))
      state = played.state
    resumed = _guarded(config)
    resumed.resume(ledger)
    assert resumed.spent_max == guarded.spent_max
    one, other = (each.answers(6, schedule[5]) for each in (guarded, resumed))
    tf.nest.map_structure(np.testing.assert_array_equal, one, other)


class TestNoise:
  @pytest.mark.slow
  def test_the_releases_have_the_covariance_of_the_account(self):
    # One tensor of many coordinates, each a draw of the noise in all rounds.
    schedule = _schedule(rounds=5)
    config, size = _config(schedule), 5_000
    rounds = _rounds(config, [tf.TensorSpec([size], tf.float32)])
    state, guarded, released = rounds.initial_state(), _guarded(config), []
    for round_num, cohort in enumerate(schedule, 1):
      played = _play(rounds, state, guarded.answers(round_num, cohort))
      state = played.state
      released.append(played.result[0].numpy() * config.divisor / 0.5 / config.noise_multiplier)
    expected = held_noise.covariance(schedule, 0.7)
    found = np.cov(np.array(released))
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    assert np.abs((found - expected) / scale).max() < 5 / np.sqrt(size)
    for wrong in (2 / 3, 3 / 2):
      assert np.abs((wrong**2 * found - expected) / scale).max() > 5 / np.sqrt(size)

  @pytest.mark.slow
  def test_a_client_takes_back_what_it_added_in_its_last_round(self):
    config, key = _config(), tf.constant(_keys()[0])
    rounds, number = _rounds(config), lambda value: tf.constant(value, tf.int64)
    noise = [rounds._noise(key, number(t), number(s)) for t, s in ((2, 0), (5, 2), (6, 5))]
    with_w = [rounds._noise(key, number(t), number(0)) for t in (2, 5, 6)]
    fresh = [config.share_stddevs[0] * rounds.grid.steps * 8] * 2
    for index, bound in enumerate(fresh):
      # Without the fresh parts of both rounds, the sum of a round and the next is W of the next alone.
      left = with_w[index] + noise[index + 1] - with_w[index + 1]
      assert np.abs(left.numpy()).max() < bound
    assert np.abs(with_w[0].numpy()).max() > 0 and (noise[1] != with_w[1]).numpy().any()

  @pytest.mark.slow
  def test_a_new_chain_takes_nothing_back_and_has_as_much_noise(self):
    config, key, size = _config(), tf.constant(_keys()[0]), 5_000
    rounds = _rounds(config, [tf.TensorSpec([size], tf.float32)])
    of = lambda last: rounds._noise(key, tf.constant(5, tf.int64), tf.constant(last, tf.int64)).numpy()
    first, anew, linked = of(0), of(guard.NEW_CHAIN), of(2)
    fresh, taken_back = (stddev * rounds.grid.steps for stddev in config.share_stddevs)
    noise_checks.assert_gaussian(anew, math.hypot(fresh, taken_back, taken_back))
    # In place of W of round 2 there is noise that no other round has.
    substitute, w_of_2 = first - anew, first - linked
    noise_checks.assert_gaussian(substitute, taken_back)
    noise_checks.assert_uncorrelated(substitute, w_of_2)
    later = rounds._noise(key, tf.constant(6, tf.int64), tf.constant(guard.NEW_CHAIN, tf.int64)).numpy()
    noise_checks.assert_uncorrelated(anew, later)

  @pytest.mark.slow
  def test_is_within_the_bounds_of_the_secure_sum(self):
    config = _config()
    rounds = _rounds(config)
    answers = _guarded(config).answers(1, _schedule()[0])
    played = _play(rounds, rounds.initial_state(), answers, [[tf.fill(spec.shape, 1e3) for spec in _SPECS]] * 4)
    for own in played.sent:
      for part, bound in zip(own, rounds.secure_bounds):
        assert part.dtype == tf.int64 and np.abs(part.numpy()).max() <= bound
    reach = rounds.grid.steps + integer_noise.REACH * rounds.grid.steps * (
      config.share_stddevs[0] + 2 * config.share_stddevs[1]
    )
    assert rounds.secure_bounds[0] >= reach

  @pytest.mark.slow
  def test_a_replayed_round_gives_the_same_sum(self):
    config, cohort = _config(), _schedule()[0]
    rounds = _rounds(config)
    first, second = (_play(rounds, rounds.initial_state(), _guarded(config).answers(1, cohort)) for _ in range(2))
    for one, other in zip(first.result, second.result):
      np.testing.assert_array_equal(one, other)

  def test_two_clients_with_one_key_add_the_same_noise(self):
    # So the account would be wrong. A key must be drawn by its client; nobody can check that it is new.
    config = _config()
    rounds, key = _rounds(config), _keys()[0]
    answers = {client: _answer(config, client, key=key) for client in (0, 1)}
    played = _play(rounds, rounds.initial_state(), answers)
    np.testing.assert_array_equal(played.sent[0][0], played.sent[1][0])

  def test_the_key_does_not_leave_the_client(self):
    config = _config()
    rounds = _rounds(config)
    report = rounds.report(None, dict(client_id=tf.constant(1, tf.int64), answer=_answer(config, 1)), {})
    assert set(report) - set(rounds.kept_fields) == {'client_id', 'round', 'last_round', 'weight'}


class TestRound:
  """Checks of an answer by a client and by the server."""

  @pytest.fixture(scope='class')
  def played(self):
    config = _config()
    rounds = _rounds(config)
    state = rounds.initial_state()
    guarded = _guarded(config)
    for round_num in (1, 2):
      state = _play(rounds, state, guarded.answers(round_num, [0, 1, 2])).state
    return config, rounds, state

  @pytest.mark.slow
  @pytest.mark.parametrize(
    'changes, words',
    [
      (dict(plan=np.int64(5)), 'another plan'),
      (dict(weight=np.float32(0.9999)), 'must be the planned one'),
      (dict(weight=np.float32(10)), 'must be the planned one'),
      (dict(weight=np.float32('nan')), 'must be the planned one'),
      (dict(weight=np.float32(-0.5)), 'must be the planned one'),
      (dict(round=np.int64(2)), 'must answer the next round'),
      (dict(round=np.int64(4)), 'must answer the next round'),
      (dict(last_round=np.int64(0)), 'takes back the noise of another round'),
      (dict(last_round=np.int64(1)), 'takes back the noise of another round'),
      (dict(last_round=np.int64(3)), 'takes back the noise of another round'),
    ],
  )
  def test_an_answer_that_does_not_fit_is_refused(self, played, changes, words):
    config, rounds, state = played
    assert config.planned_weights[1] != 0.9999
    _play(rounds, state, {1: _answer(config, 1, 3, 2)})
    with pytest.raises(tf.errors.InvalidArgumentError, match=words):
      _play(
        rounds, state, {1: {**_answer(config, 1, 3, 2), **{name: tf.constant(one) for name, one in changes.items()}}}
      )

  def test_a_client_may_begin_a_new_chain(self, played):
    config, rounds, state = played
    after = _play(rounds, state, {1: _answer(config, 1, 3, guard.NEW_CHAIN)}).state
    assert after.last_rounds.numpy().tolist()[:3] == [2, 3, 2]

  def test_a_client_twice_in_a_round_is_refused(self, played):
    config, rounds, state = played
    own = [dict(client_id=2, answer=_answer(config, 2, 3, 2))] * 2
    with pytest.raises(tf.errors.InvalidArgumentError, match='twice'):
      playing.play_round(rounds, state, [[tf.zeros(spec.shape) for spec in _SPECS]] * 2, own)

  @pytest.mark.slow
  def test_the_clipping_norm_is_the_plans_whatever_the_state_says(self, played):
    config, rounds, state = played
    updates = [[tf.ones(spec.shape) for spec in _SPECS]]
    sent = [
      _play(rounds, state._replace(clip=tf.constant(clip)), {1: _answer(config, 1, 3, 2)}, [list(updates[0])]).sent
      for clip in (0.5, 1e-30, 1e30)
    ]
    for other in sent[1:]:
      tf.nest.map_structure(np.testing.assert_array_equal, sent[0], other)

  def test_silence_sends_nothing(self, played):
    config, rounds, state = played
    silence = guard.silence(guard.PublicPlan.of(config), 3)
    after = _play(rounds, state, {1: silence}, [[tf.ones(spec.shape) for spec in _SPECS]])
    assert all(not part.numpy().any() for part in after.sent[0]) and after.state.last_rounds.numpy()[1] == 2


class TestThreshold:
  def test_fewer_shares_of_noise_are_larger(self):
    schedule = _schedule()
    plain, guarded = _config(schedule, 0.0), _config(schedule, 0.0, threshold=0.5)
    assert guarded.noise_multiplier == pytest.approx(plain.noise_multiplier, rel=1e-12)
    ratio = guarded.share_stddevs[0] / plain.share_stddevs[0]
    assert ratio == pytest.approx(math.sqrt(2), rel=1e-12)

  def test_half_of_a_cohort_has_the_noise_of_the_account(self):
    size = 20_000
    config = _config(_schedule(), 0.0, threshold=0.5)
    rounds = _rounds(config, [tf.TensorSpec([size], tf.float32)])
    answers = _guarded(config).answers(1, [0, 3, 5, 7])
    played = _play(rounds, rounds.initial_state(), {client: answers[client] for client in (3, 5)})
    noise = played.result[0].numpy() * config.divisor / 0.5
    # What four clients have without a threshold.
    noise_checks.assert_gaussian(noise, config.noise_multiplier * 2)

  def test_correlated_noise_is_refused(self):
    with pytest.raises(ValueError, match='independent from round to round'):
      _config(threshold=0.5)


@pytest.mark.slow
class TestGame:
  """The distinguishing game on the functions themselves, for all that the server sees."""

  @pytest.fixture(autouse=True)
  def _fewer_thresholds(self, monkeypatch):
    monkeypatch.setattr(distinguisher, '_THRESHOLDS', 50)

  @pytest.mark.parametrize('decay', [pytest.param(0.0, marks=pytest.mark.thorough), 0.8])
  def test_measures_the_claimed_loss(self, decay):
    schedule = _schedule(rounds=4)
    config = _config(schedule, decay)
    account = _account(config, schedule)
    target = int(np.argmax(account.mu))
    found = distinguisher.play(distinguisher.held(config, schedule, target, seed=1), 5_000, 1e-5)
    assert found.mu_estimate == pytest.approx(account.mu[target], rel=0.06)
    assert found.bound.epsilon <= 3.0

  @pytest.mark.parametrize('factor', [2 / 3, 3 / 2])
  def test_notices_wrong_noise(self, factor, monkeypatch):
    schedule = _schedule(rounds=4)
    config, real = _config(schedule), integer_noise.Sampler.draw
    monkeypatch.setattr(
      integer_noise.Sampler,
      'draw',
      lambda self, *args, **kwargs: tf.cast(
        tf.round(factor * tf.cast(real(self, *args, **kwargs), tf.float64)), tf.int64
      ),
    )
    target = int(schedule[0][0])
    account = _account(config, schedule)
    found = distinguisher.play(distinguisher.held(config, schedule, target, seed=1), 2_000, 1e-5)
    assert abs(found.mu_estimate / account.mu[target] - 1) > 0.2

  @pytest.mark.thorough
  def test_colluders_see_more(self):
    schedule = _schedule(rounds=4)
    config = _config(schedule)
    account = _account(config, schedule)
    target, others = int(schedule[0][0]), [int(client) for client in schedule[0][1:3]]
    simulate = distinguisher.held(config, schedule, target, seed=1, colluders=others)
    found = distinguisher.play(simulate, 5_000, 1e-5)
    exact = held_noise.mu_against(account, others)[target]
    assert found.mu_estimate == pytest.approx(exact, rel=0.06)
    assert account.mu[target] < exact <= held_noise.mu_against_any(account, 2)[target]


class TestRefusals:
  @pytest.mark.parametrize(
    'changes, words',
    [
      (dict(correlation=correlation.Blt()), 'clients hold the noise'),
      (dict(correlation=correlation.Ar1(0.5)), 'clients hold the noise'),
      (dict(clip=clip_rules.PrivateQuantile(count_stddev=20.0)), 'nobody sees the norms'),
      (dict(dropout=0.95), 'dropout'),
    ],
  )
  def test_a_configuration(self, changes, words):
    with pytest.raises(ValueError, match=words):
      _config(**changes)

  def test_weights_that_are_not_those_of_all_clients(self):
    with pytest.raises(ValueError, match='planned_weights'):
      dataclasses.replace(_config().config, planned_weights=(1.0,))

  @pytest.mark.parametrize(
    'changes, attendance_is_known, words',
    [
      ({}, False, 'clients are known before the run'),
      (dict(threshold=0.5, correlation=correlation.HeldNoise(0.0)), True, 'not known for a plan with a threshold'),
    ],
  )
  def test_colluders_without_an_account(self, changes, attendance_is_known, words):
    with pytest.raises(ValueError, match=words):
      _config(**changes).check_colluders((1,), attendance_is_known)

  def test_a_grid_that_overflows(self):
    config = dataclasses.replace(_config().config, noise_multiplier=1e9).to_mechanism()
    with pytest.raises(ValueError, match='overflow'):
      _rounds(config, [tf.TensorSpec([10**9], tf.float32)])
