"""Tests of `quap_tff.plans.Plan.fingerprint`, by which a ledger knows its run."""

import dataclasses
import json

import numpy as np
import pytest

from experiments.systems import dynamic_budget
from experiments.systems import fedbuff
from experiments.systems import lee_kifer
from experiments.systems import local_dp
from experiments.systems import robust
from experiments.systems import staleness
from quap_tff import plans
from quap_tff.federated.stock import stock as stocks
from quap_tff.mechanisms import sparsity
from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.certified.config import Certified
from quap_tff.mechanisms.noise import correlation
from quap_tff.mechanisms.parts import budgets
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import participation
from quap_tff.mechanisms.quap.config import NoiseConfig
from quap_tff.mechanisms.quap.config import QuapConfig
from tests.quap_tff import examples

_EVERY_LAYER = dict(clip_scope='all_layers', critical_layers='all')
_LOCAL = QuapConfig(8, clip=clip_rules.Fixed(), noise=NoiseConfig('client'), **_EVERY_LAYER)
_BUFFERED = QuapConfig(8, clip=clip_rules.Fixed(1.0), **_EVERY_LAYER)
_CERTIFIED = examples.certified(
  num_clients=8, noise_multiplier=2.0, divisor=3.0, num_rounds=2, weights=weight_rules.ParticipationWeights()
)
_SCHEDULE = [[0, 1, 2], [3, 4]]


def _stock(stock, **noise):
  config = QuapConfig(8, budgets.BudgetConfig(3.0, 6), noise=NoiseConfig(**noise))
  return plans.stock_plan(stock, config, [[0, 1, 2, 3]] * 6, 4.0, calibration='documents')


def _changed(**changes):
  return plans.Plan.certified(dataclasses.replace(_CERTIFIED, **changes), _SCHEDULE, certificate=False)


_PLANS = [
  lambda: plans.Plan(QuapConfig(8)),
  lambda: plans.Plan(QuapConfig(9)),
  lambda: plans.Plan(QuapConfig(8, noise=NoiseConfig(scale=2.0))),
  lambda: plans.Plan(QuapConfig(8, clip=clip_rules.Fixed(1.0))),
  lambda: plans.Plan(QuapConfig(8, clip=clip_rules.Fixed(2.0))),
  lambda: plans.Plan(QuapConfig(8, clip=clip_rules.Unclipped(), noise=NoiseConfig('none'))),
  lambda: plans.Plan(QuapConfig(8, aggregator=robust.Median())),
  lambda: plans.Plan(QuapConfig(8, participation=participation.ParticipationConfig('ema'))),
  lambda: plans.Plan(QuapConfig(8, budgets.BudgetConfig(schedule=dynamic_budget.Geometric()))),
  lambda: plans.Plan(QuapConfig(8), sparsity=sparsity.RandomMask(0.5)),
  lambda: plans.Plan(QuapConfig(8), sparsity=sparsity.RandomMask(0.5), sparsity_seed=1),
  lambda: plans.Plan(local_dp.LocalPrivacy(_LOCAL)),
  lambda: plans.Plan(fedbuff.Buffered(_BUFFERED, 3, staleness.Staleness())),
  lambda: plans.Plan(fedbuff.Buffered(_BUFFERED, 4, staleness.Staleness())),
  lambda: plans.Plan(fedbuff.Buffered(_BUFFERED, 4, staleness.Staleness(3.0))),
  lambda: plans.Plan(lee_kifer.LineSearchConfig(8, 3.0, 1e-5, 2)),
  lambda: _stock(stocks.DpFtrl()),
  lambda: _stock(stocks.DpFedAvg()),
  lambda: _stock(stocks.DpFedAvgAdaptive()),
  lambda: _stock(stocks.LayerwiseAdaptive()),
  lambda: _changed(),
  lambda: _changed(weights=weight_rules.UniformWeights()),
  lambda: _changed(correlation=correlation.Ar1(0.5)),
  lambda: _changed(own_epsilon=(3.0,) * 7 + (2.0,)),
]


def test_another_plan_has_another_fingerprint():
  texts = [make().fingerprint for make in _PLANS]
  assert len(set(texts)) == len(texts) and texts[0] == plans.Plan(QuapConfig(8)).fingerprint
  assert all(type(json.loads(text)) is dict for text in texts)


@pytest.mark.parametrize(
  'make',
  [
    lambda seed: plans.Plan(QuapConfig(8, noise=NoiseConfig(seed=seed))),
    lambda seed: _changed(noise_seed=seed),
    lambda seed: plans.Plan(lee_kifer.LineSearchConfig(8, 3.0, 1e-5, 2, noise_seed=seed)),
    lambda seed: _stock(stocks.DpFtrl(), seed=seed),
  ],
)
def test_the_seed_of_the_noise_is_not_in_it(make):
  assert make(None).fingerprint == make(7).fingerprint


def test_the_values_are_those_of_the_fields():
  found = json.loads(_changed(epsilon=np.float32(2.0), own_epsilon=None).fingerprint)
  assert found['epsilon'] == 2.0 and found['num_rounds'] == 2 and found['own_epsilon'] is None
  assert found['weights'] == 'participation:alpha=0.5,beta=2.0' and found['clip'] == 'fixed:norm=1.0'
  assert found['participation']['rate'] == 'cumulative' and 'noise_seed' not in found


def test_a_class_can_be_renamed():
  fingerprints = lambda: (_changed().fingerprint, plans.Plan(QuapConfig(8)).fingerprint)
  before = fingerprints()
  classes = (Certified, QuapConfig, clip_rules.Fixed, clip_rules.QuantileEma, weight_rules.ParticipationWeights)
  names = [one.__name__ for one in classes]
  try:
    for one in classes:
      one.__name__ = 'Renamed'
    assert fingerprints() == before
  finally:
    for one, name in zip(classes, names):
      one.__name__ = name
