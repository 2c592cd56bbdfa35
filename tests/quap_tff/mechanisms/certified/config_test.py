"""Tests of `config` and `weight_rules` in `quap_tff.mechanisms.certified`: refusals, rules by hand."""

import dataclasses
import functools
import json
import math

import numpy as np
import pytest

from quap_tff.common import registry
from quap_tff.common.lazy import tf
from quap_tff.mechanisms.certified import privacy_filter
from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.certified.config import CertifiedConfig
from quap_tff.mechanisms.certified.privacy_filter import Prices
from quap_tff.mechanisms.certified.privacy_filter import Standing
from quap_tff.mechanisms.held.config import HeldConfig
from quap_tff.mechanisms.noise import correlation as correlations
from quap_tff.mechanisms.noise import integers
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts.layers import Layer


def _view(rates=None, in_warmup=False, **overrides):
  values = dict(prices=Prices(1.0, 2.0, 0.0), standing=None, counts=None, round_num=None, rounds_left=math.inf)
  return weight_rules.RoundView(**{**values, 'rates': rates, 'in_warmup': in_warmup, **overrides})


def _config(**overrides):
  values = dict(num_clients=4, epsilon=3.0, delta=1e-5, noise_multiplier=5.0, divisor=2.0, clip=clip_rules.Fixed(1.0))
  values.update(correlation=correlations.Independent(), weights=weight_rules.ParticipationWeights())
  return CertifiedConfig(**{**values, **overrides}).to_mechanism()


def _held(decay, **overrides):
  values = dict(num_clients=4, epsilon=3.0, delta=1e-5, noise_multiplier=5.0, divisor=2.0, num_rounds=7, most_clients=4)
  values.update(correlation=correlations.HeldNoise(decay), planned_weights=(1.0,) * 4, clip=clip_rules.Fixed(1.0))
  return HeldConfig(**{**values, **overrides}).to_mechanism()


class TestCertified:
  @pytest.mark.parametrize(
    'overrides, message',
    [
      (dict(num_clients=0), 'num_clients must be an integer at least 1'),
      (dict(epsilon=0.0), 'epsilon must be a finite number greater than 0'),
      (dict(epsilon=math.inf), 'epsilon must be a finite number'),
      (dict(delta=1.0), 'delta must be a finite number greater than 0 and less than 1'),
      (dict(noise_multiplier=0.0), 'noise_multiplier must be'),
      (dict(divisor=0.0), 'divisor must be'),
      (dict(clip_split='layers'), 'Unknown clip split'),
      (dict(noise_seed=-1), 'noise_seed must be'),
      (dict(clip=clip_rules.QuantileEma()), "un-noised function of the clients' update norms"),
      (dict(clip=clip_rules.QuantileEma(timing='previous', initial_clip=1.0)), 'un-noised function'),
      (dict(clip=clip_rules.PrivateQuantile(count_stddev=0.0)), 'un-noised function'),
      (dict(clip=clip_rules.Unclipped()), 'Without a clipping norm nothing bounds'),
      (dict(clip=clip_rules.Fixed(1e30)), 'clipping norm must be'),
      (dict(clip=clip_rules.PrivateQuantile(count_stddev=0.1)), 'too small to pay for one noised count'),
      (dict(weights=weight_rules.SpendEvenly()), 'SpendEvenly needs a public schedule. Give planned_rounds'),
      (dict(num_rounds=0), 'num_rounds must be an integer at least 1'),
      (dict(correlation=correlations.Ar1()), 'needs its noise in numbers'),
      (dict(noise_multiplier=None), 'needs its noise_multiplier, found None'),
      (dict(planned_rounds=[1, 2, 3, 4], planned_costs=[1, 2, 3, 3.9]), 'planned_costs must be'),
      (dict(planned_rounds=[1, 2]), r'planned_rounds must be int\[4\]'),
      (dict(planned_rounds=[1, 2, 3, -1]), r'planned_rounds must be int\[4\]'),
      (dict(planned_rounds=[1.5, 2, 3, 1]), r'planned_rounds must be int\[4\], .* found float64'),
      (dict(clip=clip_rules.PrivateQuantile(count_stddev=0.06)), 'must be in the range of noise in integers, 1/16 to'),
    ],
  )
  def test_what_is_refused(self, overrides, message):
    with pytest.raises(ValueError, match=message):
      _config(**overrides)

  @pytest.mark.parametrize('name', ['weights', 'clip'])
  def test_rules_are_instances(self, name):
    with pytest.raises(TypeError, match=f'{name} must be a rule of'):
      _config(**{name: 'uniform'})

  def test_is_frozen_comparable_and_takes_an_array_as_plan(self):
    config = _config(weights=weight_rules.SpendEvenly(), planned_rounds=np.array([1, 2, 3, 4], np.int32))
    assert config.config.planned_rounds == (1, 2, 3, 4)
    assert hash(config) == hash(dataclasses.replace(config))
    with pytest.raises(dataclasses.FrozenInstanceError):
      config.epsilon = 1.0

  def test_numbers_of_numpy_are_kept_as_those_of_python(self):
    def config(integer, number):
      return CertifiedConfig(
        integer(10),
        number(3.0),
        1e-5,
        number(2.0),
        integer(4),
        correlation=correlations.Blt((number(0.5), number(0.25)), (number(0.875), number(0.5))),
        weights=weight_rules.ParticipationWeights(alpha=number(0.5)),
        clip=clip_rules.Fixed(number(0.5)),
        own_epsilon=(number(2.0),) * 10,
      ).to_mechanism()

    found = config(np.int64, np.float32)
    assert found.fingerprint == config(int, float).fingerprint
    json.dumps(dataclasses.asdict(found))  # It takes numbers of Python alone.

  def test_counts_have_their_price(self):
    assert _config().prices.count_cost == 0.0 and not _config().config.counts_norms
    config = _config(clip=clip_rules.PrivateQuantile(count_stddev=4.0))
    # One client moves the centred count by 1/2: μ = 1/8.
    assert config.prices.count_cost == 1 / 64 and config.config.counts_norms


class TestRounding:
  def test_a_part_of_every_budget_is_kept(self):
    kept = 1 - 2.0**-11
    assert _config().prices.limit == privacy_filter.limit_of(3.0 * kept, 1e-5 * kept)
    assert _config().kept_slack == (3.0 * 2.0**-11, 1e-5 * 2.0**-11)
    assert _config(own_epsilon=(1.0, 2.0, 3.0, 3.0)).kept_slack.epsilon == 2.0**-11

  @pytest.mark.slow
  def test_a_client_that_spends_all_is_within_epsilon_with_the_slack(self):
    for epsilon in (0.1, 3.0, 20.0):
      config = _config(epsilon=epsilon, num_rounds=60)
      found = config.slack(2570).of(np.sqrt([config.prices.limit]), config.config.delta)
      assert 0.999 * epsilon < found[0] <= epsilon

  def test_releases_are_the_planned_rounds_and_counts_are_draws(self):
    fixed = _config(num_rounds=7)
    assert fixed.config.most_releases == 7
    counted = _config(num_rounds=7, clip=clip_rules.PrivateQuantile(count_stddev=4.0))
    # ε' grows with the root of the number of draws.
    assert counted.slack(100).epsilon == pytest.approx(fixed.slack(100).epsilon * math.sqrt(101 / 100), rel=1e-9)
    # A count has noise of a scale of its own, so wide here that δ does not pay for so many values.
    wide = dict(num_rounds=7, delta=1e-19)
    _config(**wide, clip=counted.clip).slack(100)
    with pytest.raises(ValueError, match='or a larger delta'):
      _config(**wide, clip=clip_rules.PrivateQuantile(count_stddev=2.0**29)).slack(100)

  def test_the_draws_of_both_shares_count(self):
    _held(0.5, delta=3e-21).slack(100)
    for decay, draws in ((0.0, 1), (0.5, 3)):  # With a memory: V, W, and the noise that replaces W.
      config = _held(decay, delta=3e-21)
      assert sum(count for _, count in config._draws(config.grid(100))) == draws * 100 * 7 * 4
    # W is a thousand times as wide as V here, and δ does not pay for so many values.
    with pytest.raises(ValueError, match='or a larger delta'):
      _held(0.999, delta=3e-21).slack(100)

  @pytest.mark.slow
  @pytest.mark.parametrize('epsilon', [1e-3, 0.5, 3.0, 30.0])
  def test_without_planned_rounds_a_million_are_paid_for(self, epsilon):
    config = _config(epsilon=epsilon)
    assert config.config.most_releases == 10**6
    assert config.slack(2570).epsilon <= config.kept_slack.epsilon

  @pytest.mark.parametrize(
    'make',
    [
      _config,
      functools.partial(_config, correlation=correlations.Ar1(0.9)),
      functools.partial(_held, 0.7, noise_multiplier=0.5, planned_weights=(1.0,) * 1000, most_clients=100),
    ],
  )
  def test_a_hundred_million_weights_over_two_thousand_rounds_are_accepted(self, make):
    config = make(num_clients=1000, num_rounds=2000)
    config.for_model([tf.TensorSpec([10**4, 10**4], tf.float32)], [Layer('a', (0,), True)])
    assert config.slack(10**8).epsilon < 1e-3

  @pytest.mark.parametrize('correlation', [correlations.Ar1(0.9), correlations.Blt((0.5,), (0.9,))])
  def test_correlated_noise_without_a_number_of_rounds_is_refused(self, correlation):
    config = _config(correlation=correlation)
    with pytest.raises(ValueError, match='needs a number of rounds, .* Give num_rounds, or use independent noise'):
      config.for_model([tf.TensorSpec([2], tf.float32)], [Layer('a', (0,), True)])

  @pytest.mark.parametrize('config', [_config(), _held(0.5)])
  def test_the_sum_of_everybody_must_fit(self, config, monkeypatch):
    asked = []
    monkeypatch.setattr(integers.Grid, 'check_sum', lambda self, num_clients: asked.append(num_clients))
    config.grid(10)
    assert asked == [4]

  def test_the_grid_is_that_of_the_noise(self):
    assert _config().grid(64).steps == 4096


class TestWeightRules:
  @pytest.mark.parametrize('name', weight_rules.RULES)
  def test_specs_read_back(self, name):
    rule = registry.parse_spec('weight rule', name, weight_rules.RULES)
    assert registry.parse_spec('weight rule', registry.format_spec(name, rule), weight_rules.RULES) == rule

  def test_participation(self):
    rule = registry.parse_spec('weight rule', 'participation:alpha=1,beta=2', weight_rules.RULES)
    rates = np.float32([0.0, 0.5, 1.0])
    expected = [1.0, (1 + math.exp(-1)) / 2, (1 + math.exp(-2)) / 2]
    np.testing.assert_allclose(rule.weights(_view(rates)), expected, rtol=1e-6)
    np.testing.assert_allclose(rule.weights(_view(rates, True)), [0.5] * 3, rtol=1e-6)

  @pytest.mark.parametrize('values', [dict(alpha=-1.0), dict(beta=0.0)])
  def test_participation_checks_its_parameters(self, values):
    with pytest.raises(ValueError, match='must be a finite number'):
      weight_rules.ParticipationWeights(**values)

  def test_uniform(self):
    np.testing.assert_array_equal(weight_rules.UniformWeights().weights(_view(np.float32([0.1, 0.9]), True)), [1, 1])

  def test_spend_evenly(self):
    # μ_max² = 1 and z = 2: w² = 4/Q.
    rounds, costs = np.array([1, 4, 16, 8]), np.array([1.0, 4.0, 16.0, 64.0])
    for planned in ((rounds, costs), (tf.constant(rounds), tf.constant(costs))):
      np.testing.assert_allclose(weight_rules.SpendEvenly().weights(_view(planned=planned)), [1.0, 1.0, 0.5, 0.25])

  def test_spend_evenly_sets_the_counts_apart(self):
    # Of μ_max² = 1, 4 counts at 0.21 leave 0.16: w² = 4·0.16/4. And 5 of them leave nothing.
    planned = np.array([4, 5]), np.array([4.0, 5.0])
    view = _view(planned=planned, prices=Prices(1.0, 2.0, 0.21))
    np.testing.assert_allclose(weight_rules.SpendEvenly().weights(view), [0.4, 0.0], atol=1e-12)

  def test_online_spreads_what_is_left_over_the_rounds_that_are_expected(self):
    # In round 5 of 21 with a = 1, b = 2: rates (3-1+1)/(5-1+3) = 3/7 and 1/7; n = 1 + 16·rate. w² = z²·left/n.
    expected = [4 * 0.5 / (1 + 16 * 3 / 7), 4 * 0.25 / (1 + 16 / 7)]
    for convert in (np.array, tf.constant):
      standing = Standing(left=convert(np.array([0.5, 0.25])), sums=[])
      view = _view(standing=standing, counts=convert([3, 1]), round_num=convert(5), rounds_left=convert(16))
      np.testing.assert_allclose(np.square(weight_rules.Online().weights(view)), expected, rtol=1e-12)

  def test_online_spends_everything_in_the_last_round_and_never_more_than_the_whole_clip(self):
    standing = Standing(left=np.array([0.01, 9.0, -1.0]), sums=[])
    view = _view(standing=standing, counts=np.array([7, 7, 7]), round_num=21, rounds_left=0)
    np.testing.assert_allclose(weight_rules.Online().weights(view), [0.2, 1.0, 0.0])

  def test_online_under_correlated_noise_leaves_room_for_overlaps(self):
    correlation = correlations.Ar1(0.9)
    own = dict(counts=np.array([10]), round_num=10, rounds_left=30)
    independent = _view(standing=Standing(np.array([0.5]), []), **own)
    fresh, seen = (
      _view(standing=Standing(np.array([0.5]), [np.array([sums])]), prices=Prices(1.0, 2.0, 0.0, correlation), **own)
      for sums in (0.0, 3.0)
    )
    weights = [float(weight_rules.Online().weights(view)[0]) for view in (independent, fresh, seen)]
    assert weights[0] > 2 * weights[1] > 2 * weights[2] > 0

  def test_online_needs_to_know_how_many_rounds(self):
    with pytest.raises(ValueError, match='Online spreads what is left of a budget over .* Give num_rounds'):
      _config(weights=weight_rules.Online())
    assert _config(weights=weight_rules.Online(), num_rounds=9).config.num_rounds == 9
    with pytest.raises(ValueError, match='prior_a must be a finite number greater than 0'):
      weight_rules.Online(prior_a=0.0)
