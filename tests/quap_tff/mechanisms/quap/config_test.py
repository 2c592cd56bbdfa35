"""Tests of the configurations: every field that is out of range is an error before anything runs."""

import dataclasses
import math

import numpy as np
import pytest

from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts.budgets import BudgetConfig
from quap_tff.mechanisms.parts.participation import ParticipationConfig
from quap_tff.mechanisms.quap.config import NoiseConfig
from quap_tff.mechanisms.quap.config import QuapConfig

_NAN, _INF = math.nan, math.inf


class TestDefaults:
  def test_are_the_documents(self):
    config = QuapConfig(num_clients=100)
    assert (config.budget.alpha, config.budget.beta, config.budget.round_rule) == (0.5, 2.0, 'cohort_mean_rate')
    assert (config.clip.quantile, config.clip.momentum, config.clip.min_clip) == (0.9, 0.95, 0.1)
    assert config.clip.max_clip is None and config.clip.initial_clip is None and config.clip.timing == 'current'
    assert (config.participation.rate, config.participation.warmup_rounds) == ('cumulative', 5)
    assert config.participation.count_during_warmup
    assert (config.noise.placement, config.noise.delta, config.noise.calibration) == ('server', 1e-5, 'classic')
    assert (config.clip_scope, config.critical_layers, config.update_scale) == ('critical', 'final_dense', 'delta')
    assert config.noise.seed is None and config.max_agg_norm is None

  def test_are_frozen(self):
    with pytest.raises(dataclasses.FrozenInstanceError):
      QuapConfig(num_clients=100).num_clients = 7


class TestBudgetConfig:
  @pytest.mark.parametrize(
    'field, values',
    [
      ('epsilon_total', [0.0, -1.0, _NAN, _INF, None, '6']),
      ('num_rounds', [0, -1, 2.0, _NAN, None]),
      ('alpha', [-0.1, _NAN, _INF]),
      ('beta', [0.0, -1.0, _NAN, _INF]),
    ],
  )
  def test_out_of_range(self, field, values):
    for value in values:
      with pytest.raises(ValueError, match=f'{field.removesuffix("_total")} must be .*found {value!r}'):
        BudgetConfig(**{field: value})

  def test_unknown_rule(self):
    with pytest.raises(ValueError, match="Unknown round budget rule 'cohort_mean'. Did you mean 'cohort_m"):
      BudgetConfig(round_rule='cohort_mean')


class TestParticipationConfig:
  @pytest.mark.parametrize('value', [0.0, -0.1, 1.1, _NAN])
  def test_ema_weight_out_of_range(self, value):
    with pytest.raises(ValueError, match='ema_weight must be'):
      ParticipationConfig(ema_weight=value)

  @pytest.mark.parametrize('value', [-1, 1.5, _NAN])
  def test_warmup_out_of_range(self, value):
    with pytest.raises(ValueError, match='warmup_rounds must be'):
      ParticipationConfig(warmup_rounds=value)

  def test_unknown_rate(self):
    with pytest.raises(ValueError, match="Unknown participation rate 'cumulativ'. Did you mean 'cumulative'"):
      ParticipationConfig(rate='cumulativ')


class TestNoiseConfig:
  @pytest.mark.parametrize('value', [0.0, 1.0, -1e-5, 1.5, _NAN, None])
  def test_delta_out_of_range(self, value):
    with pytest.raises(ValueError, match='delta must be'):
      NoiseConfig(delta=value)

  @pytest.mark.parametrize('value', [-1, 1.0, 2**63, True])
  def test_bad_seed(self, value):
    with pytest.raises(ValueError, match='noise_seed must be'):
      NoiseConfig(seed=value)

  @pytest.mark.parametrize(
    'arguments, message',
    [
      (dict(placement='sever'), "Unknown noise placement 'sever'. Did you mean 'server'"),
      (dict(calibration='analytical'), "Unknown gaussian calibration 'analytical'. Did you mean 'analytic'"),
    ],
  )
  def test_unknown_names(self, arguments, message):
    with pytest.raises(ValueError, match=message):
      NoiseConfig(**arguments)


class TestQuapConfig:
  @pytest.mark.parametrize('value', [0, -1, 2**31, 1.5, None])
  def test_population_out_of_range(self, value):
    with pytest.raises(ValueError, match='num_clients must be'):
      QuapConfig(num_clients=value)

  def test_takes_numpy_integers(self):
    assert QuapConfig(num_clients=np.int64(7)).num_clients == 7

  @pytest.mark.parametrize('value', [0.0, -1.0, _NAN, _INF])
  def test_max_agg_norm_out_of_range(self, value):
    with pytest.raises(ValueError, match='max_agg_norm must be'):
      QuapConfig(num_clients=7, max_agg_norm=value)

  @pytest.mark.parametrize(
    'arguments, message',
    [
      (dict(clip_scope='all_layer'), "Unknown clip scope 'all_layer'. Did you mean 'all_layers'"),
      (dict(update_scale='deltas'), "Unknown update scale 'deltas'. Did you mean 'delta'"),
      (dict(critical_layers=''), 'critical_layers is empty'),
    ],
  )
  def test_bad_names(self, arguments, message):
    with pytest.raises(ValueError, match=message):
      QuapConfig(num_clients=7, **arguments)

  def test_a_clip_that_is_no_rule(self):
    with pytest.raises(TypeError, match='clip must be a rule of quap_tff.mechanisms.parts.clip_rules, found 1.0'):
      QuapConfig(num_clients=7, clip=1.0)

  @pytest.mark.parametrize('placement', ['server', 'client'])
  def test_noise_without_a_clip(self, placement):
    with pytest.raises(ValueError, match='clip rule "none" has no norm: choose another clip rule, or'):
      QuapConfig(num_clients=7, clip=clip_rules.Unclipped(), noise=NoiseConfig(placement))

  def test_no_noise_without_a_clip(self):
    QuapConfig(num_clients=7, clip=clip_rules.Unclipped(), noise=NoiseConfig('none'))


class TestClassicCalibration:
  @pytest.mark.parametrize('placement', ['server', 'client'])
  def test_is_refused_where_a_round_can_exceed_one(self, placement):
    with pytest.raises(ValueError, match='epsilon can reach 1.5, .*gaussian_calibration=analytic'):
      QuapConfig(num_clients=7, budget=BudgetConfig(2.0, 2, alpha=0.5), noise=NoiseConfig(placement))

  @pytest.mark.parametrize(
    'budget, noise',
    [
      (BudgetConfig(2.0, 2, alpha=0.0), NoiseConfig()),  # At most exactly 1.
      (BudgetConfig(2.0, 2, alpha=0.5, round_rule='uniform'), NoiseConfig()),
      (BudgetConfig(2.0, 2, alpha=0.5), NoiseConfig(calibration='analytic')),
      (BudgetConfig(2.0, 2, alpha=0.5), NoiseConfig('none')),
    ],
  )
  def test_is_allowed_where_none_can_or_another_one_holds(self, budget, noise):
    QuapConfig(num_clients=7, budget=budget, noise=noise)

  def test_is_refused_just_above(self):
    with pytest.raises(ValueError, match='gaussian_calibration=analytic'):
      QuapConfig(num_clients=7, budget=BudgetConfig(2.0, 2, alpha=1e-6))
