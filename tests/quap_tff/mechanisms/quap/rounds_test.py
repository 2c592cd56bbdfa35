"""Tests of `mechanisms.quap.rounds`: rounds by hand with the noise off, and the noise by its scale and its place."""

import collections
import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf

from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts.budgets import BudgetConfig
from quap_tff.mechanisms.parts.participation import ParticipationConfig
from quap_tff.mechanisms.quap.config import NoiseConfig
from tests.quap_tff import examples
from tests.quap_tff import noise_checks
from tests.quap_tff import rounds

_NAN, _INF = math.nan, math.inf
_config = examples.quap
# Updates are [other layer, critical layer].
_CRITICAL = (1,)
_SHAPES = ([2], [2])
# √(2·ln(1.25/δ)) = 4.
_DELTA = 1.25 * math.exp(-8)


def _process(config, critical=_CRITICAL, shapes=_SHAPES, scale=1.0):
  if scale != 1.0:
    config = dataclasses.replace(config, update_scale='pseudo_gradient')
  return rounds.Process(config, list(shapes), rounds.one_dense(critical, len(shapes)), lambda round_num: scale)


def _run_round(config, state, cohort, **keywords):
  """A round of a dict of client id -> update."""
  return _process(config, **keywords).next(state, list(cohort.values()), list(cohort))


def _run_rounds(config, cohorts, **keywords):
  process, results = _process(config, **keywords), []
  state = process.initialize()
  for cohort in cohorts:
    state, mean, measurements = process.next(state, list(cohort.values()), list(cohort))
    results.append((mean, measurements))
  return state, results


def _run_once(config, cohort, **keywords):
  state, [(mean, measurements)] = _run_rounds(config, [cohort], **keywords)
  return state, [np.asarray(m) for m in mean], measurements


class TestUpdateNorm:
  @pytest.mark.parametrize('scope, expected', [('critical', 5.0), ('all_layers', 13.0)])
  def test_by_hand(self, scope, expected):
    update = [tf.constant([12.0, 0.0]), tf.constant([3.0, 4.0])]
    np.testing.assert_allclose(_process(_config(clip_scope=scope)).rounds.norm(update), expected)

  def test_critical_layers_have_one_norm_together(self):
    update = [tf.constant([3.0]), tf.constant([9.0]), tf.constant([[4.0]])]
    np.testing.assert_allclose(_process(_config(), (0, 2), ([1], [1], [1, 1])).rounds.norm(update), 5.0)

  @pytest.mark.parametrize('entry', [_NAN, _INF, -_INF])
  @pytest.mark.parametrize('layer', [0, 1])
  @pytest.mark.parametrize('scope', ['critical', 'all_layers'])
  def test_is_nan_if_any_entry_is_not_finite(self, entry, layer, scope):
    update = [[1.0, 2.0], [3.0, 4.0]]
    update[layer][1] = entry
    assert math.isnan(_process(_config(clip_scope=scope)).rounds.norm([tf.constant(u) for u in update]))


class TestClipUpdate:
  def _clip(self, update, norm, clip, **overrides):
    clipped = _process(_config(**overrides)).rounds.contribution(
      {i: tf.constant(u) for i, u in enumerate(update)}, dict(norm=tf.constant(norm)), dict(clip=tf.constant(clip))
    )
    return [c.numpy().tolist() for c in clipped]

  def test_only_the_critical_part_is_scaled(self):
    other = [0.1, 1e6 / 3]
    kept, scaled = self._clip([other, [3.0, 4.0]], 5.0, 2.5)
    assert kept == np.float32(other).tolist()
    np.testing.assert_allclose(scaled, [1.5, 2.0])

  def test_all_layers(self):
    scaled = self._clip([[12.0, 0.0], [3.0, 4.0]], 13.0, 6.5, clip_scope='all_layers')
    np.testing.assert_allclose(scaled, [[6.0, 0.0], [1.5, 2.0]])

  @pytest.mark.parametrize('clip', [5.0, 7.0, _INF])
  def test_at_or_below_the_bound_nothing_changes_a_bit(self, clip):
    update = [[0.1, 0.2], [3.0, 4.0]]
    assert self._clip(update, 5.0, clip) == [np.float32(u).tolist() for u in update]

  def test_a_zero_update_stays_zero(self):
    assert self._clip([[0.0, 0.0], [0.0, 0.0]], 0.0, 1.0) == [[0.0, 0.0]] * 2

  @pytest.mark.parametrize('clip', [1.0, _INF])
  @pytest.mark.parametrize('norm', [_NAN, _INF])
  @pytest.mark.parametrize('entry', [_NAN, _INF, 1.0])
  def test_a_non_finite_update_is_exactly_zero_in_every_layer(self, entry, norm, clip):
    # A norm can be +inf with finite entries: divided by a small learning rate it overflows.
    assert self._clip([[1.0, 2.0], [3.0, entry]], norm, clip) == [[0.0, 0.0]] * 2


class TestRoundWithoutNoise:
  def test_by_hand(self):
    # Norms 5 (clipped to 1), 0.5 and 0.
    cohort = {3: ([1.0, 2.0], [3.0, 4.0]), 5: ([4.0, 5.0], [0.3, 0.4]), 7: ([1.0, -1.0], [0.0, 0.0])}
    state, mean, measurements = _run_once(_config(), cohort)
    np.testing.assert_allclose(mean[0], [2.0, 2.0], rtol=1e-6)
    np.testing.assert_allclose(mean[1], [0.3, 0.4], rtol=1e-6)
    expected = collections.OrderedDict(
      round=1,
      cohort_size=3,
      epsilon=_INF,
      clipping_norm=1.0,
      noise_multiplier=0.0,
      sigma=0.0,
      norm_p10=0.1,
      norm_p50=0.5,
      norm_p90=4.1,
      norm_max=5.0,
      clipped_fraction=1 / 3,
      non_finite_updates=0,
      signal_norm=0.5,
      noise_norm=0.0,
      noise_to_signal=0.0,
      participation_mean=0.3,
      participation_stddev=math.sqrt(0.21),
      participation_min=0.0,
      participation_max=1.0,
      participation_never_seen=7,
    )
    assert list(measurements) == list(expected)
    np.testing.assert_allclose([float(m) for m in measurements.values()], list(expected.values()), rtol=1e-5)
    assert state.round == 1
    np.testing.assert_array_equal(state.participation['counts'], [0, 0, 0, 1, 0, 1, 0, 1, 0, 0])

  def test_all_layers_clip_together(self):
    _, mean, _ = _run_once(_config(clip_scope='all_layers', clip=clip_rules.Fixed(6.5)), {0: ([12.0, 0.0], [3.0, 4.0])})
    np.testing.assert_allclose(np.concatenate(mean), [6.0, 0.0, 1.5, 2.0], rtol=1e-6)

  @pytest.mark.parametrize('bound, factor', [(6.5, 0.5), (13.0, 1.0), (20.0, 1.0)])
  def test_max_agg_norm_bounds_the_whole_mean(self, bound, factor):
    config = _config(clip=clip_rules.Unclipped(), max_agg_norm=bound)
    _, mean, _ = _run_once(config, {0: ([24.0, 0.0], [0.0, 8.0]), 1: ([0.0, 0.0], [6.0, 0.0])})
    np.testing.assert_allclose(np.concatenate(mean), np.multiply([12.0, 0.0, 3.0, 4.0], factor), rtol=1e-6)

  def test_a_non_finite_update_contributes_zero_but_counts(self):
    for bad in (_NAN, _INF):
      for layer in (0, 1):
        update = [[8.0, 8.0], [8.0, 8.0]]
        update[layer][0] = bad
        state, mean, measurements = _run_once(_config(), {0: update, 1: ([2.0, 4.0], [0.0, 1.0])})
        np.testing.assert_array_equal(np.concatenate(mean), [1.0, 2.0, 0.0, 0.5])
        assert measurements['non_finite_updates'] == 1
        assert measurements['cohort_size'] == 2
        assert measurements['clipped_fraction'] == 0.0
        assert measurements['norm_max'] == 1.0
        assert state.participation['counts'][0] == 1

  def test_nothing_but_non_finite_updates(self):
    config = _config(clip=clip_rules.QuantileEma(), noise=NoiseConfig(seed=1))
    state, mean, measurements = _run_once(config, {0: ([_NAN] * 2, [1.0] * 2), 1: ([1.0] * 2, [_INF] * 2)})
    np.testing.assert_array_equal(np.concatenate(mean), np.zeros(4))
    assert state.clip == _INF and state.round == 1
    assert measurements['non_finite_updates'] == 2

  @pytest.mark.slow
  @pytest.mark.parametrize('placement', ['none', 'server', 'client'])
  @pytest.mark.parametrize(
    'clip',
    [
      clip_rules.QuantileEma(),
      clip_rules.Fixed(1.0),
      clip_rules.PrivateQuantile(),
      clip_rules.QuantileEma(initial_clip=1.0),
    ],
  )
  @pytest.mark.parametrize('rate', ['cumulative', pytest.param('ema', marks=pytest.mark.thorough)])
  def test_an_empty_cohort_changes_nothing_but_the_round(self, clip, rate, placement):
    config = _config(
      clip=clip, noise=NoiseConfig(placement, seed=3), participation=ParticipationConfig(rate), max_agg_norm=1.0
    )
    before, _ = _run_rounds(config, [{0: ([1.0, 2.0], [3.0, 4.0]), 4: ([1.0, 2.0], [0.3, 0.4])}] * 2)
    after, mean, measurements = _run_round(config, before, {})
    assert int(after.round) == int(before.round) + 1
    tf.nest.map_structure(np.testing.assert_array_equal, after._replace(round=before.round), before)
    np.testing.assert_array_equal(np.concatenate(mean), np.zeros(4))
    assert measurements['cohort_size'] == 0 and measurements['sigma'] == 0.0 and measurements['epsilon'] == 0.0
    assert measurements['noise_norm'] == 0.0

  @pytest.mark.slow
  @pytest.mark.parametrize(
    'ids, message',
    [
      ([0, 10], r'Client ids must lie in \[0, 10\), the configured population'),
      ([-1], r'Client ids must lie in \[0, 10\)'),
      ([3, 4, 3], 'A client appears twice in the cohort'),
    ],
  )
  @pytest.mark.parametrize('traced', [False, True])
  def test_bad_ids(self, ids, message, traced):
    one = _process(_config()).rounds
    reports = lambda ids: dict(client_id=ids, norm=tf.ones(tf.shape(ids)))
    admit = lambda ids: one.admit(one.initial_state(), {}, reports(ids)).client_ids
    admit = tf.function(admit) if traced else admit
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
      admit(tf.constant(ids, tf.int64))

  @pytest.mark.parametrize('client_id', [-1, 10])
  def test_a_bad_id_is_left_for_the_server_to_refuse(self, client_id):
    _own_noise(_config(noise=NoiseConfig('client', seed=0)), client_id)

  def test_the_last_client_can_take_part(self):
    state, _, _ = _run_once(_config(), {9: ([0.0, 0.0], [1.0, 0.0])})
    assert state.participation['counts'][9] == 1


class TestClipTiming:
  def _clips(self, config, norms, **keywords):
    """(used, kept, critical mean of one client) in each round."""
    process, found = _process(config, **keywords), []
    state = process.initialize()
    for norm in norms:
      state, mean, measurements = process.next(state, [([0.0, 0.0], [norm, 0.0])], [0])
      found.append((float(measurements['clipping_norm']), float(state.clip), float(mean[1][0])))
    return found

  def test_current_starts_at_the_first_target(self):
    config = _config(clip=clip_rules.QuantileEma(momentum=0.5))
    np.testing.assert_allclose(
      self._clips(config, [4.0, 8.0, 2.0]), [(4.0, 4.0, 4.0), (6.0, 6.0, 6.0), (4.0, 4.0, 2.0)]
    )

  def test_current_with_an_initial_clip(self):
    config = _config(clip=clip_rules.QuantileEma(momentum=0.5, initial_clip=1.0))
    np.testing.assert_allclose(self._clips(config, [4.0, 8.5]), [(2.5, 2.5, 2.5), (5.5, 5.5, 5.5)])

  def test_previous_clips_by_what_was_known_before(self):
    config = _config(clip=clip_rules.QuantileEma(momentum=0.5, initial_clip=1.0, timing='previous'))
    np.testing.assert_allclose(
      self._clips(config, [4.0, 8.5, 2.0]), [(1.0, 2.5, 1.0), (2.5, 5.5, 2.5), (5.5, 3.75, 2.0)]
    )

  def test_private_quantile_clips_by_what_was_known_before(self):
    config = _config(clip=clip_rules.PrivateQuantile(0.5, 2.0, learning_rate=math.log(4), count_stddev=0.0))
    np.testing.assert_allclose(self._clips(config, [5.0, 5.0, 1.0]), [(2, 4, 2), (4, 8, 4), (8, 4, 1)], rtol=1e-6)

  def test_sigma_follows_the_clip_in_use(self):
    noise = NoiseConfig(delta=_DELTA, seed=0)
    budget = BudgetConfig(epsilon_total=1.0, num_rounds=2, alpha=0.0)
    for timing, expected in (('current', [20.0, 44.0]), ('previous', [8.0, 20.0])):
      config = _config(
        clip=clip_rules.QuantileEma(momentum=0.5, initial_clip=1.0, timing=timing), noise=noise, budget=budget
      )
      _, results = _run_rounds(config, [{0: ([0.0] * 2, [4.0, 0.0])}, {0: ([0.0] * 2, [8.5, 0.0])}])
      np.testing.assert_allclose([float(m['sigma']) for _, m in results], expected, rtol=1e-5)


class TestUpdateScale:
  def test_divides_before_the_clip_and_multiplies_after(self):
    # Norm 5/0.5 = 10 is clipped to 2, a fifth.
    config = _config(clip=clip_rules.Fixed(2.0))
    _, mean, measurements = _run_once(config, {0: ([7.0, 8.0], [3.0, 4.0])}, scale=0.5)
    np.testing.assert_allclose(np.concatenate(mean), [7.0, 8.0, 0.6, 0.8], rtol=1e-6)
    np.testing.assert_allclose(measurements['norm_max'], 10.0)
    np.testing.assert_allclose(measurements['signal_norm'], 2.0)

  def test_max_agg_norm_is_in_the_same_unit(self):
    config = _config(clip=clip_rules.Unclipped(), max_agg_norm=5.0)
    _, mean, _ = _run_once(config, {0: ([0.0, 0.0], [3.0, 4.0])}, scale=0.5)
    np.testing.assert_allclose(mean[1], [1.5, 2.0], rtol=1e-6)

  def test_noise_is_multiplied_too(self):
    config = _config(noise=NoiseConfig(seed=0))
    _, mean, measurements = _run_once(config, {0: ([0.0], [0.0] * 300)}, shapes=([1], [300]), scale=0.01)
    noise_checks.assert_gaussian(mean[1], float(measurements['sigma']) * 0.01)


class TestEpsilon:
  @pytest.mark.slow
  def test_warmup_then_the_mean_rate(self):
    config = _config(
      budget=BudgetConfig(epsilon_total=4.0, num_rounds=4, alpha=0.5, beta=math.log(4)),
      noise=NoiseConfig(calibration='analytic'),
      participation=ParticipationConfig(warmup_rounds=1),
    )
    update = ([0.0, 0.0], [1.0, 0.0])
    _, results = _run_rounds(config, [{0: update}, {0: update, 1: update}, {}, {1: update}])
    # Mean rates: -, (1 + 1/2)/2, -, 2/4.
    expected = [1.0, 1 + 0.5 * 4**-0.75, 0.0, 1.25]
    np.testing.assert_allclose([float(m['epsilon']) for _, m in results], expected, rtol=1e-6)


class TestServerNoise:
  _LARGE = dict(shapes=([3], [40, 10]))

  def _cohort(self, size):
    return {i: ([1.0, 2.0, 3.0], np.zeros([40, 10])) for i in range(size)}

  def test_sigma_by_hand(self):
    # σ = (C/M)·4/ε = (2/5)·4/0.5.
    config = _config(
      clip=clip_rules.Fixed(2.0), budget=BudgetConfig(1.0, 2, alpha=0.0), noise=NoiseConfig(delta=_DELTA, seed=0)
    )
    _, _, measurements = _run_once(config, self._cohort(5), **self._LARGE)
    np.testing.assert_allclose(measurements['sigma'], 3.2, rtol=1e-5)
    np.testing.assert_allclose(measurements['noise_multiplier'], 8.0, rtol=1e-5)

  @pytest.mark.parametrize('placement, sigma', [('server', 0.8), ('client', 0.8 * math.sqrt(5))])
  def test_scale_scales_the_noise_that_is_drawn(self, placement, sigma):
    noise = NoiseConfig(placement, delta=_DELTA, scale=0.25, seed=0)
    config = _config(clip=clip_rules.Fixed(2.0), budget=BudgetConfig(1.0, 2, alpha=0.0), noise=noise)
    _, mean, measurements = _run_once(config, self._cohort(5), **self._LARGE)
    np.testing.assert_allclose(measurements['sigma'], sigma, rtol=1e-5)
    np.testing.assert_allclose(measurements['noise_multiplier'], sigma * 5 / 2, rtol=1e-5)
    noise_checks.assert_gaussian(mean[1], sigma)

  def test_classic_scale(self):
    config = _config(
      clip=clip_rules.Fixed(2.0), budget=BudgetConfig(1.0, 2, alpha=0.0), noise=NoiseConfig(delta=_DELTA, seed=0)
    )
    _, mean, measurements = _run_once(config, self._cohort(5), **self._LARGE)
    noise_checks.assert_gaussian(mean[1], 3.2)
    np.testing.assert_allclose(measurements['noise_norm'], np.linalg.norm(mean[1]), rtol=1e-5)
    assert measurements['signal_norm'] == 0.0

  def test_analytic_scale(self):
    # z(1, 1e-5) = 3.7306 (Balle and Wang's algorithm 1).
    config = _config(
      clip=clip_rules.Fixed(2.0),
      budget=BudgetConfig(2.0, 2, alpha=0.0),
      noise=NoiseConfig(calibration='analytic', seed=0),
    )
    _, mean, measurements = _run_once(config, self._cohort(5), **self._LARGE)
    np.testing.assert_allclose(measurements['sigma'], 0.4 * 3.7306, rtol=1e-4)
    noise_checks.assert_gaussian(mean[1], 0.4 * 3.7306)

  @pytest.mark.parametrize('placement', ['server', 'client'])
  def test_other_layers_are_bit_equal_and_critical_ones_all_noised(self, placement):
    cohort = {i: ([0.1 * i, 1 / 3, 3.0], np.full([40, 10], 1e-3)) for i in range(3)}
    _, plain, _ = _run_once(_config(), cohort, **self._LARGE)
    _, noised, _ = _run_once(_config(noise=NoiseConfig(placement, seed=0)), cohort, **self._LARGE)
    np.testing.assert_array_equal(plain[0], noised[0])
    assert np.all(plain[1] != noised[1])

  @pytest.mark.parametrize('placement', ['server', 'client'])
  def test_clip_scope_does_not_widen_the_noise(self, placement):
    cohort = {0: ([0.1, 0.2, 0.3], np.full([40, 10], 1e-3))}
    config = _config(clip_scope='all_layers', noise=NoiseConfig(placement, seed=0))
    _, mean, _ = _run_once(config, cohort, **self._LARGE)
    np.testing.assert_array_equal(mean[0], np.float32([0.1, 0.2, 0.3]))

  def test_max_agg_norm_comes_after_the_noise(self):
    config = _config(noise=NoiseConfig(seed=0), max_agg_norm=0.01)
    _, mean, _ = _run_once(config, self._cohort(1), **self._LARGE)
    np.testing.assert_allclose(np.sqrt(sum(np.sum(m**2) for m in mean)), 0.01, rtol=1e-5)

  def test_noise_to_signal(self):
    cohort = {0: ([0.0] * 3, np.full([40, 10], 1e-3))}
    _, _, measurements = _run_once(_config(noise=NoiseConfig(seed=0)), cohort, **self._LARGE)
    np.testing.assert_allclose(
      measurements['noise_to_signal'], measurements['noise_norm'] / measurements['signal_norm'], rtol=1e-6
    )
    np.testing.assert_allclose(measurements['signal_norm'], 0.02, rtol=1e-5)

  def test_non_finite_updates_do_not_lessen_the_noise(self):
    config = _config(noise=NoiseConfig(seed=0))
    bad = {0: ([_NAN] * 3, np.zeros([40, 10])), 1: ([_NAN] * 3, np.zeros([40, 10]))}
    _, mean, measurements = _run_once(config, bad, **self._LARGE)
    noise_checks.assert_gaussian(mean[1], float(measurements['sigma']))
    assert measurements['sigma'] > 0


def _own_noise(config, client_id, state=None, **keywords):
  """What a client with an update of zeros adds for its noise, on each critical tensor."""
  one = _process(config, **keywords).rounds
  state = one.initial_state() if state is None else state
  update = {i: tf.zeros(spec.shape) for i, spec in enumerate(one.specs)}
  report = dict(client_id=tf.constant(client_id, tf.int64), norm=tf.constant(0.0))
  return one.contribution(update, report, one.announce(state))[len(update) :]


class TestClientNoise:
  _LARGE = dict(shapes=([1], [600]))

  def test_scale_for_each_client(self):
    # Rates (1 and 1/2 in round 2) give ε 0.5·(1 + 4^-1) and 0.5·(1 + 4^-0.5), σ_i = 2·4/ε_i.
    config = _config(
      clip=clip_rules.Fixed(2.0),
      budget=BudgetConfig(1.0, 2, alpha=1.0, beta=math.log(4)),
      participation=ParticipationConfig(warmup_rounds=0),
      noise=NoiseConfig('client', delta=_DELTA, seed=0),
    )
    state, _ = _run_rounds(config, [{0: ([0.0], [0.0] * 600)}], **self._LARGE)
    for client_id, sigma in ((0, 16 / 1.25), (1, 16 / 1.5)):
      [noise] = _own_noise(config, client_id, state, **self._LARGE)
      noise_checks.assert_gaussian(noise, sigma)
    cohort = {0: ([0.0], [0.0] * 600), 1: ([0.0], [0.0] * 600)}
    _, mean, measurements = _run_round(config, state, cohort, **self._LARGE)
    sigma = math.hypot(16 / 1.25, 16 / 1.5) / 2
    np.testing.assert_allclose(measurements['sigma'], sigma, rtol=1e-5)
    np.testing.assert_allclose(measurements['epsilon'], 0.5 * 1.375, rtol=1e-5)
    noise_checks.assert_gaussian(mean[1], sigma)

  def test_analytic_scale(self):
    config = _config(
      budget=BudgetConfig(2.0, 2, alpha=0.0), noise=NoiseConfig('client', calibration='analytic', seed=0)
    )
    _, mean, measurements = _run_once(config, {4: ([0.0], [0.0] * 600)}, **self._LARGE)
    np.testing.assert_allclose(measurements['sigma'], 3.7306, rtol=1e-4)
    noise_checks.assert_gaussian(mean[1], 3.7306)

  def test_clients_draw_independently(self):
    config = _config(noise=NoiseConfig('client', seed=0))
    drawn = [_own_noise(config, i, critical=(0, 1), shapes=([600], [600])) for i in (0, 1, 2)]
    draws = [noise.numpy() for noises in drawn for noise in noises]
    for a in range(len(draws)):
      for b in range(a):
        noise_checks.assert_uncorrelated(draws[a], draws[b])


@pytest.mark.parametrize('placement', ['server', 'client'])
class TestNoiseStream:
  _COHORT = {0: ([0.0], [0.0] * 300, [0.0] * 300)}
  _KEYWORDS = dict(critical=(1, 2), shapes=([1], [300], [300]))

  def _config(self, placement, seed=7):
    return _config(noise=NoiseConfig(placement, seed=seed))

  def test_rounds_and_layers_are_independent(self, placement):
    _, results = _run_rounds(self._config(placement), [self._COHORT] * 3, **self._KEYWORDS)
    draws = [layer for mean, _ in results for layer in mean[1:]]
    for a in range(len(draws)):
      for b in range(a):
        noise_checks.assert_uncorrelated(draws[a], draws[b])

  @pytest.mark.slow
  def test_one_seed_gives_one_run(self, placement):
    first, second = (_run_rounds(self._config(placement), [self._COHORT] * 2, **self._KEYWORDS)[1] for _ in range(2))
    tf.nest.map_structure(np.testing.assert_array_equal, first, second)

  def test_another_seed_gives_independent_noise(self, placement):
    first, second = (_run_once(self._config(placement, seed), self._COHORT, **self._KEYWORDS)[1] for seed in (7, 8))
    noise_checks.assert_uncorrelated(first[1], second[1])

  def test_unseeded_runs_differ(self, placement):
    config = self._config(placement, seed=None)
    first, second = (_run_once(config, self._COHORT, **self._KEYWORDS)[1] for _ in range(2))
    noise_checks.assert_uncorrelated(first[1], second[1], noise_checks.UNSEEDED)


class TestPopulation:
  def test_a_million_clients_are_a_state_of_four_megabytes(self):
    config = _config(num_clients=10**6, noise=NoiseConfig(seed=0))
    state, _, measurements = _run_once(config, {999_999: ([0.0, 0.0], [1.0, 0.0]), 0: ([0.0, 0.0], [1.0, 0.0])})
    assert sum(np.asarray(t).nbytes for t in tf.nest.flatten(state)) < 4_000_100
    assert measurements['participation_never_seen'] == 999_998
