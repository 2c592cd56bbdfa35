"""Every method that clips bounds updates of any size, from far below the root of float32's range to far above it.

Squares of float32 numbers below 1e-19 or above 1e19 are 0 or +inf in float32. A norm of such squares bounds nothing.
"""

import dataclasses
import math

from hypothesis import example
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest

from experiments.systems import acdp
from experiments.systems import lee_kifer
from experiments.systems import local_dp
from quap_tff.common.lazy import tf
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers
from quap_tff.mechanisms.quap import config as configs
from tests.quap_tff import examples

# Grid steps in the bound, for each √d, unless z = 4 and σ = 2^12 need more.
_INTEGER_STEPS = 512


_LAYERS = [layers.Layer('both', (0, 1), True)]


def _sent(value, update, report, announced):
  specs = [tf.TensorSpec(one.shape, one.dtype) for one in update]
  return value.for_model(specs, _LAYERS).contribution(dict(enumerate(update)), report, announced)


def _of_quap(**overrides):
  config = configs.QuapConfig(num_clients=3, critical_layers='all', clip=clip_rules.Fixed(1.0), **overrides)

  def clip(update, bound):
    specs = [tf.TensorSpec(one.shape, one.dtype) for one in update]
    norm = config.for_model(specs, _LAYERS).norm(update)
    return _sent(config, update, dict(norm=norm), dict(clip=tf.constant(bound, tf.float32)))

  config = dataclasses.replace(config, noise=configs.NoiseConfig('none'))
  return clip


def _of_certified(update, bound):
  """In the units of updates: steps of the grid times bound/K."""
  config = examples.noised(num_clients=3)
  announced = dict(weights=tf.ones([3]), clip=tf.constant(bound, tf.float32))
  sent = _sent(config, update, dict(client_id=tf.constant(1, tf.int64)), announced)
  steps = max(_INTEGER_STEPS * math.sqrt(sum(int(tf.size(one)) for one in update)), 2**10)
  return [tf.cast(one, tf.float64) * (bound / math.ceil(steps)) for one in sent]


def _of_local(update, bound):
  noise = configs.NoiseConfig('client', calibration='analytic', scale=1e-300)
  config = configs.QuapConfig(
    num_clients=3, critical_layers='all', clip=clip_rules.Fixed(1.0), clip_scope='all_layers', noise=noise
  )
  announced = dict(
    clip=bound, rates=tf.ones([3]), in_warmup=False, budget_factor=tf.constant(1.0), seed=tf.constant([3, 4], tf.int64)
  )
  return _sent(local_dp.LocalPrivacy(config), update, dict(client_id=tf.constant(1, tf.int64)), announced)


def _of_line_search(update, bound):
  return lee_kifer.bounded(update, bound, tf.constant(1.0))


_METHODS = {
  'quap': _of_quap(),
  'quap_all_layers': _of_quap(clip_scope='all_layers'),
  'certified': _of_certified,
  'local': _of_local,
  'line_search': _of_line_search,
}


def _norm(update):
  return float(np.linalg.norm(np.concatenate([np.asarray(one, np.float64).ravel() for one in update])))


@pytest.mark.slow
@pytest.mark.parametrize('method', _METHODS)
@given(
  entries=st.lists(st.floats(0.5, 1), min_size=2, max_size=40), exponent=st.floats(-36, 37), clip=st.floats(-20, 20)
)
@example(entries=[0.6] * 30, exponent=-22, clip=-20)
@example(entries=[0.6] * 30, exponent=30, clip=0)
@settings(max_examples=25)
def test_the_bound_holds_at_every_scale(method, entries, exponent, clip):
  values = np.float32(np.array(entries) * 10**exponent)
  update = [tf.constant(values[:1]), tf.constant(values[1:])]
  bound = float(np.float32(max(10**clip, clip_rules.SMALLEST_CLIP)))
  clipped = _METHODS[method](update, bound)
  assert _norm(clipped) <= bound * (1 + 1e-12)
  factor = min(1.0, bound / _norm(update))
  for before, after in zip(update, clipped):
    # Integers are rounded to a step, after room was made for that: half of √40 steps at most, and as much of the clip.
    steps = 5 / (_INTEGER_STEPS * math.sqrt(len(values))) if method == 'certified' else 0.0
    expected = before.numpy().astype(np.float64) * factor
    np.testing.assert_allclose(after.numpy(), expected, rtol=3e-6, atol=steps * bound)


class TestSmallestClip:
  @pytest.mark.parametrize(
    'make',
    [
      clip_rules.Fixed,
      lambda clip: clip_rules.QuantileEma(initial_clip=clip),
      lambda clip: clip_rules.QuantileEma(min_clip=0, max_clip=clip),
      lambda clip: clip_rules.PrivateQuantile(initial_clip=clip),
      lambda clip: acdp.NoisedMean(initial_clip=clip),
      lambda clip: clip_rules.Decaying(initial_clip=clip),
      lambda clip: lee_kifer.LineSearchConfig(num_clients=2, epsilon=1.0, delta=1e-5, planned_rounds=3, clip=clip),
      lambda clip: lee_kifer.LineSearchConfig(num_clients=2, epsilon=1.0, delta=1e-5, planned_rounds=3, loss_clip=clip),
    ],
  )
  def test_is_the_same_for_every_method(self, make):
    make(clip_rules.SMALLEST_CLIP)
    with pytest.raises(ValueError, match='at least 1e-20'):
      make(1e-24)

  @pytest.mark.parametrize(
    'rule',
    [
      clip_rules.QuantileEma(min_clip=0.0, initial_clip=1e-19, momentum=0.1),
      clip_rules.PrivateQuantile(initial_clip=1e-19, learning_rate=10.0, count_stddev=0.0),
      acdp.NoisedMean(initial_clip=1e-19, noise_multiplier=0.0),
      clip_rules.Decaying(initial_clip=1e-19, decay=0.1),
    ],
  )
  def test_no_rule_moves_below_it(self, rule):
    norm = tf.constant(rule.initial_norm, tf.float32)
    for _ in range(20):
      norm = rule.next_norm(norm, tf.fill([5], 1e-30), lambda stddev: tf.constant(0.0, tf.float64))
    assert norm == np.float32(clip_rules.SMALLEST_CLIP)
