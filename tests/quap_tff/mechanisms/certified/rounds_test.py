"""Tests of `mechanisms.certified.rounds`: sensitivity, noise, and that budgets hold over any history of rounds.

Sums of integers are exact, so tests of sensitivity need no tolerance.
"""

import collections
import dataclasses
import fractions
import functools
import math

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf

from quap_tff.common import registry
from quap_tff.common.numbers import arrays
from quap_tff.common.numbers import chacha20
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms import playing
from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.certified.config import CertifiedConfig
from quap_tff.mechanisms.noise import correlation as correlations
from quap_tff.mechanisms.noise import integer_noise
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers
from quap_tff.mechanisms.parts.layers import Layer
from quap_tff.mechanisms.parts.participation import ParticipationConfig
from tests.quap_tff import examples
from tests.quap_tff import noise_checks
from tests.quap_tff import rounds

_SHAPES = ([2], [2])


_config = functools.partial(examples.noised, num_clients=8)


@functools.lru_cache(maxsize=64)
def _rounds_of(config, shapes):
  return rounds.Process(config, list(shapes), [Layer(str(i), (i,), True) for i in range(len(shapes))]).rounds


def _rounds_for(update, split='joint', clip_rule=clip_rules.Fixed(1.0)):
  return _rounds_of(_config(clip_split=split, clip=clip_rule), tuple(tuple(np.shape(u)) for u in update))


def _contribute(update, weight=1.0, clip=1.0, split='joint', clip_rule=clip_rules.Fixed(1.0)):
  """What a client adds."""
  update = [tf.constant(u, tf.float32) for u in update]
  announced = dict(weights=tf.fill([8], tf.constant(weight, tf.float32)), clip=tf.constant(clip, tf.float32))
  report = dict(client_id=tf.constant(5, tf.int64))
  return _rounds_for(update, split, clip_rule).contribution(dict(enumerate(update)), report, announced)


def _sum(split, updates, weights, clip):
  """The sum before the noise, as the aggregation makes it."""
  total = [np.zeros(np.shape(u), np.int64) for u in updates[0]]
  for update, weight in zip(updates, weights):
    parts = _contribute(update, weight, clip, split)
    total = [t + p.numpy() for t, p in zip(total, parts)]
  return total


def _squared_share(moved):
  """(‖a difference of sums‖ as a share of the clipping norm)², exactly."""
  return fractions.Fraction(sum(int(part.ravel() @ part.ravel()) for part in moved), _rounds_for(moved).grid.steps ** 2)


@functools.lru_cache(maxsize=8)
def _process_of(config, shapes):
  return rounds.Process(config, [list(shape) for shape in shapes])


def _process(config, shapes=_SHAPES):
  return _process_of(config, tuple(map(tuple, shapes)))


def _initial(config):
  return _process(config).initialize()


def _run_round(config, state, cohort, shapes=_SHAPES):
  """A round of a dict of client id -> update."""
  return _process(config, shapes).next(state, list(cohort.values()), list(cohort))


def _saved(state):
  return tf.nest.map_structure(np.array, state)


def _zeros(ids):
  return {i: ([0.0, 0.0], [0.0, 0.0]) for i in ids}


class TestContribute:
  def test_by_hand(self):
    update = [[12.0, 0.0], [3.0, 4.0]]
    found, step = _contribute(update, weight=0.5, clip=13.0), 13.0 / _rounds_for(update).grid.steps
    # It is rounded to the grid, and room is left for that: each is half of √d steps at most.
    np.testing.assert_allclose(np.array(found) * step, [[6.0, 0.0], [1.5, 2.0]], rtol=1e-7, atol=3.5 * step)


@pytest.mark.slow
class TestSensitivity:
  @given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=4),
    num_clients=st.integers(1, 6),
    split=st.sampled_from(list(layers.CLIP_SPLITS)),
    log_clip=st.floats(-44.0, 44.0),
    log_scale=st.floats(-30.0, 70.0),
  )
  @settings(max_examples=20)
  def test_without_one_clients_data_the_sum_moves_by_at_most_its_weight_times_the_clip(
    self, seed, sizes, num_clients, split, log_clip, log_scale
  ):
    rng = np.random.default_rng(seed)
    clip = np.float32(math.exp(log_clip))
    scale = math.exp(min(log_clip + log_scale, 80.0))
    updates = [[(rng.standard_normal(n) * scale).astype(np.float32) for n in sizes] for _ in range(num_clients)]
    weights = np.maximum(rng.uniform(0, 1, num_clients), 2.0**-20).astype(np.float32)
    whole = _sum(split, updates, weights, clip)
    for i in range(num_clients):
      nothing = [np.zeros_like(u) for u in updates[i]]
      moved = _sum(split, updates[:i] + [nothing] + updates[i + 1 :], weights, clip)
      assert _squared_share([a - b for a, b in zip(whole, moved)]) <= fractions.Fraction(float(weights[i])) ** 2

  def test_the_bound_is_reached(self):
    moved = _sum('joint', [[np.float32([30, 40]), np.float32([0, 0])]], [np.float32(0.25)], np.float32(2.0))
    # But for the room of rounding, three of 1024 steps.
    assert math.sqrt(_squared_share(moved)) == pytest.approx(0.25, abs=3 / 1024)

  @pytest.mark.parametrize('num_clients, dtype', [(2**21 - 1, np.int32), (2**21, np.int64)])
  def test_the_sum_of_a_whole_population_fits_into_its_dtype(self, num_clients, dtype):
    whole = _config(num_clients=num_clients).for_model([tf.TensorSpec([2], tf.float32)], [Layer('a', (0,), True)])
    assert whole.grid.steps == 2**10 and whole.sum_dtype == dtype


@dataclasses.dataclass(frozen=True)
class _Halving(CertifiedConfig):
  """Each round has half of the noise of the one before; the second, and last, has z·C."""

  def noise_scale(self, round_num):
    return 2 * arrays.whole_power(0.5, round_num - 1)


class TestNoise:
  _LARGE = dict(shapes=([2000], [2000]))

  def _result(self, state=None, config=None, cohort=None):
    config = config or _config(clip=clip_rules.Fixed(0.5))
    state = state or _initial(config)
    cohort = cohort or {i: ([0.0] * 2000,) * 2 for i in (1, 2)}
    new_state, mean, measurements = _run_round(config, state, cohort, **self._LARGE)
    return new_state, np.concatenate(mean), measurements

  def test_scale_and_measured_sigma(self):
    _, mean, measurements = self._result()
    # z·C/D = 4·0.5/2.
    noise_checks.assert_gaussian(mean, 1.0)
    assert measurements['sigma'] == 1.0 and measurements['noise_multiplier'] == 4.0

  @pytest.mark.slow
  def test_scales_of_rounds_leave_clipping_as_it_is(self):
    fields = registry.parameter_values(_config(clip=clip_rules.Fixed(0.5), num_rounds=2).config)
    config, state = _Halving(**{**fields, 'noise_seed': 3}).to_mechanism(), None
    loud = np.full(2000, 9.0)
    for t, (scale, spent) in enumerate([(2.0, 1 / 64), (1.0, 5 / 64)], 1):
      before = state
      state, quiet, measurements = self._result(before, config)
      _, mean, _ = self._result(before, config, {1: (loud, loud), 2: ([0.0] * 2000,) * 2})
      noise_checks.assert_gaussian(quiet, scale)  # f_t·z·C/D.
      assert measurements['sigma'] == scale and measurements['noise_multiplier'] == 4.0 * scale
      # Clipped to C over D, whatever the noise is; and charged by 1/(f_t·z)².
      assert 0.249 < np.linalg.norm(mean - quiet) <= 0.25 * (1 + 1e-6)
      np.testing.assert_allclose(state.accounts.spent[[0, 1]], [0, spent], rtol=1e-12)
      assert config.spent(state, measurements, np.array([1, 2])).noise_multiplier == 4.0 * scale
      assert config.simulated([[1, 2]] * t)[-1].spent_max == pytest.approx(spent / config.limit)

  def test_correlated_noise_has_one_scale(self):
    fields = registry.parameter_values(_config(num_rounds=2, correlation=correlations.Ar1(0.5)).config)
    with pytest.raises(ValueError, match='Under correlated noise all rounds have one scale'):
      _Halving(**fields).to_mechanism()

  def test_does_not_go_by_the_cohort_or_its_weights(self):
    config = _config(clip=clip_rules.Fixed(0.5), weights=weight_rules.ParticipationWeights(9.0, 5.0))
    _, mean, _ = self._result(config=config, cohort={i: ([0.0] * 2000,) * 2 for i in range(7)})
    noise_checks.assert_gaussian(mean, 1.0)

  @pytest.mark.slow
  def test_differs_by_tensor_round_cohort_and_seed(self):
    state, first, _ = self._result()
    noise_checks.assert_uncorrelated(first[:2000], first[2000:])
    noise_checks.assert_uncorrelated(first, self._result(state)[1])
    # Otherwise the difference of a round and its second try would be one of bare sums.
    noise_checks.assert_uncorrelated(first, self._result(cohort={i: ([0.0] * 2000,) * 2 for i in (1, 3)})[1])
    noise_checks.assert_uncorrelated(first, self._result(cohort={1: ([0.0] * 2000,) * 2})[1])
    other = _config(clip=clip_rules.Fixed(0.5), noise_seed=4)
    noise_checks.assert_uncorrelated(first, self._result(config=other)[1])
    entropy = _config(clip=clip_rules.Fixed(0.5), noise_seed=None)
    first, second = (self._result(config=entropy)[1] for _ in range(2))
    # With the standard deviation of 130,000 steps that noise has here, two of 4,000 are equal in 1 of 26,000 runs.
    noise_checks.assert_uncorrelated(first, second, noise_checks.UNSEEDED, equal=3)

  @pytest.mark.slow
  def test_a_resumed_round_draws_the_same_and_spends_once(self):
    state, _, _ = self._result()
    kept = _saved(state)
    after, first, _ = self._result(state)
    again, second, _ = self._result(kept, cohort={i: ([0.0] * 2000,) * 2 for i in (2, 1)})
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(after.accounts.spent, again.accounts.spent)
    np.testing.assert_allclose(after.accounts.spent, [0, 2 / 16, 2 / 16, 0, 0, 0, 0, 0], rtol=1e-12)

  def test_the_sum_is_under_it(self):
    process = rounds.Process(_config(clip=clip_rules.Fixed(0.5)), [tf.TensorSpec([2000], tf.float64)] * 2)
    zeros = np.zeros(2000)
    quiet, loud = (zeros, zeros), (zeros + 0.25 / 50, zeros)  # Of norms 0 and 0.2236.
    without, with_data = (
      np.concatenate(process.next(process.initialize(), [update] * 2, [1, 2]).result) for update in (quiet, loud)
    )
    noise_checks.assert_gaussian(without, 1.0)
    # Two of 0.005, over the divisor. Each is rounded to half a step of C/(512·√4000).
    tolerance = 0.5 / (2 * 512 * math.sqrt(4000))
    np.testing.assert_allclose(with_data - without, [0.005] * 2000 + [0.0] * 2000, atol=tolerance)


class TestRound:
  def test_by_hand(self):
    # ε_i/(ε_base(1 + α)) at rates 1/2 and 1.
    config = _config(weights=weight_rules.ParticipationWeights(1.0, 2.0))
    state, _, _ = _run_round(config, _initial(config), _zeros([3]))
    state, _, measurements = _run_round(config, state, _zeros([3, 5]))
    low, high = (1 + math.exp(-2)) / 2, (1 + math.exp(-1)) / 2
    np.testing.assert_allclose(state.weights, [0, 0, 0, low, 0, high, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(state.accounts.spent, [0, 0, 0, 2 * low**2 / 16, 0, high**2 / 16, 0, 0], rtol=1e-6)
    expected = collections.OrderedDict(
      round=2,
      cohort_size=2,
      clipping_norm=1.0,
      noise_multiplier=4.0,
      sigma=2.0,
      exhausted_clients=0,
      weight_mean=(low + high) / 2,
      weight_min=low,
      spent_max=2 * low**2 / 16 / config.prices.limit,
      participation_mean=1.5 / 8,
      participation_stddev=math.sqrt(1.25 / 8 - (1.5 / 8) ** 2),
      participation_min=0.0,
      participation_max=1.0,
      participation_never_seen=6,
    )
    assert list(measurements) == list(expected)
    np.testing.assert_allclose([float(m) for m in measurements.values()], list(expected.values()), rtol=1e-6)

  def test_nothing_that_is_reported_goes_by_data(self):
    config = _config()
    quiet = _run_round(config, _initial(config), _zeros([0, 1]))
    loud = {0: ([1e9, 0.0], [0.0, 3.0]), 1: ([math.nan, 0.0], [0.0, 0.0])}
    state, _, measurements = _run_round(config, _initial(config), loud)
    tf.nest.map_structure(np.testing.assert_array_equal, measurements, quiet[2])
    tf.nest.map_structure(np.testing.assert_array_equal, state, quiet[0])

  @pytest.mark.slow
  @pytest.mark.parametrize('clip', [clip_rules.Fixed(1.0), clip_rules.PrivateQuantile(count_stddev=20.0)])
  @pytest.mark.parametrize('rate', ['cumulative', 'ema'])
  def test_an_empty_cohort_releases_nothing(self, clip, rate):
    config = _config(clip=clip, participation=ParticipationConfig(rate))
    before, _, _ = _run_round(config, _initial(config), _zeros([0, 4]))
    after, mean, measurements = _run_round(config, before, {})
    np.testing.assert_array_equal(np.concatenate(mean), np.zeros(4))
    assert int(after.round) == 2 and not np.any(after.weights)
    same = dict(round=0, weights=0)
    tf.nest.map_structure(np.testing.assert_array_equal, after._replace(**same), before._replace(**same))
    assert measurements['cohort_size'] == 0 and measurements['sigma'] == 0.0
    assert measurements['weight_mean'] == 0.0 and measurements['weight_min'] == 0.0

  @pytest.mark.slow
  def test_a_client_that_has_spent_its_budget_adds_exactly_nothing(self):
    # μ_max² = 0.516: one round of z = 1.5 costs 0.444, and a second one pays for a weight of 0.4.
    config = _config(noise_multiplier=1.5)
    state, weights, exhausted = _initial(config), [], []
    for cohort in ([2], [2], [2], [2, 3]):
      state, _, measurements = _run_round(config, state, _zeros(cohort))
      weights.append(float(state.weights[2]))
      exhausted.append(int(measurements['exhausted_clients']))
    left = 1.5 * math.sqrt(config.prices.limit - 1 / 1.5**2)
    assert weights == [1.0, pytest.approx(left, rel=1e-6), 0.0, 0.0] and exhausted == [0, 0, 1, 1]
    assert left == pytest.approx(0.405, abs=3e-3)
    kept = _saved(state)
    alone, mean, measurements = _run_round(config, kept, {2: ([1.0, 2.0], [3.0, 4.0])})
    # Nobody may add anything: there is no noise either, and no draw is used up.
    np.testing.assert_array_equal(np.concatenate(mean), np.zeros(4))
    assert measurements['sigma'] == 0.0 and alone.noise.counter == kept.noise.counter
    # With others, it makes no difference what it sends.
    others = {3: ([0.1, 0.0], [0.0, 0.0])}
    results = [
      _run_round(config, kept, {**others, 2: update})[1]
      for update in (([0.0] * 2,) * 2, ([9.0, 1.0], [2.0, 3.0]), ([math.nan] * 2,) * 2)
    ]
    for result in results[1:]:
      np.testing.assert_array_equal(np.concatenate(result), np.concatenate(results[0]))

  @pytest.mark.slow
  def test_spend_evenly_lasts_to_the_end_of_the_plan(self, undrawn):
    config = _config(weights=weight_rules.SpendEvenly(), planned_rounds=[20] * 8, noise_multiplier=2.0)
    state = _initial(config)
    for _ in range(20):
      state, _, measurements = _run_round(config, state, _zeros([0]))
    assert float(measurements['spent_max']) == pytest.approx(1.0, rel=1e-6)
    assert float(state.weights[0]) == pytest.approx(2 * math.sqrt(config.prices.limit / 20), rel=1e-5)
    assert _run_round(config, state, _zeros([0]))[2]['exhausted_clients'] == 1

  @pytest.mark.parametrize(
    'ids, message', [([0, 8], r'Client ids must lie in \[0, 8\)'), ([-1], 'Client ids'), ([3, 3], 'appears twice')]
  )
  def test_bad_ids(self, ids, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
      _process(_config()).next(_initial(_config()), [([0.0] * 2,) * 2] * len(ids), ids)


class TestPrivateQuantile:
  _CLIP = clip_rules.PrivateQuantile(0.5, 2.0, learning_rate=1.0, count_stddev=4.0)

  def test_counts_are_charged(self):
    config = _config(clip=self._CLIP)
    state, _, _ = _run_round(config, _initial(config), _zeros([0, 1]))
    np.testing.assert_allclose(state.accounts.spent[:2], 1 / 16 + 1 / 64, rtol=1e-12)

  @pytest.mark.slow
  def test_moves_the_next_clip_and_not_this_one(self):
    config = _config(clip=self._CLIP)
    state, _, measurements = _run_round(config, _initial(config), {0: ([9.0, 0.0], [0.0, 0.0])})
    assert measurements['clipping_norm'] == 2.0 and measurements['sigma'] == 4.0
    assert state.clip != 2.0
    assert _run_round(config, state, _zeros([1]))[2]['clipping_norm'] == state.clip

  @pytest.mark.slow
  def test_one_client_moves_the_count_by_a_half(self):
    # With 8·exp(-η(b - q)) and one in the cohort, the logarithms of two clips differ as the counts do.
    config = _config(clip=self._CLIP)
    clips = {}
    for name, entry in (('below', 1.0), ('above', 9.0), ('nothing', 0.0), ('not finite', math.nan)):
      state, _, _ = _run_round(config, _initial(config), {0: ([entry, 0.0], [0.0, 0.0])})
      clips[name] = math.log(state.clip)
    assert clips['below'] - clips['nothing'] == pytest.approx(-0.5, abs=1e-6)
    assert clips['above'] - clips['nothing'] == pytest.approx(0.5, abs=1e-6)
    assert clips['not finite'] == clips['above']

  @pytest.mark.slow
  def test_who_cannot_pay_is_not_counted(self):
    # μ_max² = 0.517 pays for 6 rounds of 0.0625 + 0.0156 in full, for a smaller weight in the seventh, and no more.
    config = _config(clip=self._CLIP)
    state = _initial(config)
    for _ in range(8):
      state, _, measurements = _run_round(config, state, _zeros([0]))
    assert measurements['exhausted_clients'] == 1
    clips = []
    for entry in (0.0, 1.0, 9.0):
      both, _, _ = _run_round(config, state, {0: ([entry, 0.0], [0.0, 0.0]), 1: ([1.0, 0.0], [0.0, 0.0])})
      clips.append(float(both.clip))
    assert clips[0] == clips[1] == clips[2] != float(state.clip)
    # Alone it moves nothing: no count is released.
    alone, _, _ = _run_round(config, state, {0: ([9.0, 0.0], [0.0, 0.0])})
    assert alone.clip == state.clip and alone.noise.counter == state.noise.counter

  def test_the_norm_of_split_layers_is_the_least_clip_that_leaves_them(self):
    # Ratios 0.6 and 0.8.
    for entry, expected in ((3.0, 5.0), (math.inf, math.nan)):
      update = [tf.constant([entry] + [0.0] * 8), tf.constant([0.0, 2.0] + [0.0] * 14)]
      report = _rounds_for(update, 'size', self._CLIP).report(update, dict(client_id=tf.constant(5, tf.int64)), {})
      np.testing.assert_allclose(report['norm'], expected, rtol=1e-6)

  @pytest.mark.slow
  def test_the_clip_stays_where_float32_is_exact(self):
    config = _config(clip=clip_rules.PrivateQuantile(0.5, 1e-20, learning_rate=100.0, count_stddev=4.0))
    state = _initial(config)
    for entry in (1e-30, 1e-30, 1e-30):
      state, _, _ = _run_round(config, state, {i: ([entry, 0.0], [0.0, 0.0]) for i in range(8)})
      assert 0.99e-20 <= float(state.clip) <= 1.01e20


class TestReleases:
  def test_more_releases_than_rounding_is_paid_for_are_refused(self):
    config = _config(num_rounds=3)
    process, state = _process(config), _initial(config)
    state = state._replace(noise=state.noise._replace(counter=np.int64(3)))
    with pytest.raises(tf.errors.InvalidArgumentError, match='more rounds than the account of rounding'):
      process.next(state, [_zeros([0])[0]], [0])

  @pytest.mark.thorough
  @pytest.mark.slow
  def test_a_count_and_the_sum_have_noise_of_their_own(self):
    """The key of a round has a stream for each."""
    config = _config(num_clients=1, clip=clip_rules.PrivateQuantile(0.5, 1.0, learning_rate=1.0, count_stddev=4.0))
    of_model = config.for_model([tf.TensorSpec([1], tf.float64)], [])
    first = of_model.initial_state()

    @tf.function(autograph=False)
    def play(seed):
      started = first._replace(noise=first.noise._replace(seed=tf.stack([seed, 0, 0, 0])))
      played = playing.play_round(of_model, started, [[tf.zeros([1], tf.float64)]], [0])
      return -tf.math.log(played.state.clip), played.result[0][0]

    counted, added = np.transpose([play(tf.constant(seed, tf.int64)) for seed in range(120)])
    # ln(C'/C) = -η·(noise + 1/2 - q) for an update of zero, and z·C/D = 2.
    noise_checks.assert_gaussian(counted, 4.0)
    noise_checks.assert_gaussian(added, 2.0)
    noise_checks.assert_uncorrelated(counted, added)


@pytest.mark.slow
class TestHistories:
  @given(
    rounds=st.lists(
      st.tuples(st.lists(st.integers(0, 4), unique=True), st.sampled_from(['go on', 'resume', 'retry'])),
      min_size=1,
      max_size=12,
    ),
    rule=st.sampled_from(
      [
        weight_rules.UniformWeights(),
        weight_rules.ParticipationWeights(),
        weight_rules.ParticipationWeights(4.0, 5.0),
        weight_rules.SpendEvenly(),
      ]
    ),
    clip=st.sampled_from([clip_rules.Fixed(1.0), clip_rules.PrivateQuantile(count_stddev=2.0)]),
    multiplier=st.sampled_from([0.5, 1.0, 2.0, 3.0]),
  )
  @settings(max_examples=10)
  def test_no_history_passes_epsilon(self, rounds, rule, clip, multiplier):
    with pytest.MonkeyPatch.context() as patch:
      # The account does not depend on the noise, and drawing it takes most of a round's time.
      patch.setattr(chacha20, 'derived_key', lambda key, nonce: key)
      patch.setattr(integer_noise.Sampler, 'draw', lambda self, key, count, **_: tf.zeros([count], tf.int64))
      self._check(rounds, rule, clip, multiplier)

  def _check(self, rounds, rule, clip, multiplier):
    config = _config(
      num_clients=5,
      epsilon=3.0,
      weights=rule,
      clip=clip,
      noise_multiplier=multiplier,
      planned_rounds=[4] * 5,
      participation=ParticipationConfig('ema', 0.3, 1),
    )
    state, squares = _initial(config), np.zeros(5)
    for cohort, event in rounds:
      if event == 'resume':
        state = _saved(state)
      elif event == 'retry':  # A round that was never released: its state is thrown away.
        _run_round(config, _saved(state), _zeros([0, 1]))
      state, _, _ = _run_round(config, state, _zeros(cohort))
      weights = np.asarray(state.weights, np.float64)
      assert not np.any(weights[np.setdiff1d(np.arange(5), cohort)])
      squares += np.where(weights > 0, (weights / multiplier) ** 2 + 1 / clip.count_noise_multiplier**2, 0.0)
      # By the exact accountant, which rounds up.
      assert (tradeoff.epsilon_of(np.sqrt(squares), config.config.delta) <= config.config.epsilon).all()
      np.testing.assert_allclose(state.accounts.spent, squares, rtol=1e-12)
