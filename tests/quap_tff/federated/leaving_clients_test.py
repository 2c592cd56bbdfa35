"""Tests of `quap_tff.federated.leaving_clients`: every way by which a value leaves clients, and none that is none."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.federated import aggregation
from quap_tff.federated import leaving_clients as module
from quap_tff.federated import sums
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers
from quap_tff.mechanisms.quap import config as configs

_INTS = tff.FederatedType(np.int32, tff.CLIENTS)
_FLOATS = tff.FederatedType(np.float32, tff.CLIENTS)
_AT_SERVER = tff.FederatedType(np.int32, tff.SERVER)
_doubled = tff.tensorflow.computation(lambda x: 2 * x, np.int32)


def _leaving(computation):
  return [(uri, type_spec.compact_representation()) for uri, type_spec in module.leaving_clients(computation)]


def _aggregated(values):
  pair = tff.to_type((np.int32, np.float32))
  zero = tff.tensorflow.computation(lambda: (0, 0.0))
  add = tff.tensorflow.computation(lambda total, x: (total[0] + x, total[1]), pair, np.int32)
  merge = tff.tensorflow.computation(lambda a, b: (a[0] + b[0], a[1] + b[1]), pair, pair)
  return tff.federated_aggregate(values, zero(), add, merge, tff.tensorflow.computation(lambda t: t[0], pair))


def _collected(values):
  reports = tff.federated_map(tff.tensorflow.computation(lambda x: collections.OrderedDict(own=x), np.int32), values)
  return sums.collected(reports)


def _sum_of_a_pair(values):
  return tff.federated_sum(tff.federated_zip((values, tff.federated_map(_doubled, values))))


@pytest.mark.parametrize(
  'build, argument, expected',
  [
    (tff.federated_sum, _INTS, [('federated_sum', 'int32')]),
    (lambda x: tff.federated_mean(x), _FLOATS, [('federated_mean', 'float32')]),
    (lambda x: tff.federated_mean(x, x), _FLOATS, [('federated_weighted_mean', 'float32')] * 2),
    (tff.federated_min, _INTS, [('federated_min', 'int32')]),
    (tff.federated_max, _INTS, [('federated_max', 'int32')]),
    (_aggregated, _INTS, [('federated_aggregate', 'int32')]),
    (_collected, _INTS, [('federated_aggregate', '<own=int32>')]),
    (lambda x: tff.federated_secure_sum(x, 9), _INTS, [('federated_secure_sum', 'int32')]),
    (lambda x: tff.federated_secure_sum_bitwidth(x, 9), _INTS, [('federated_secure_sum_bitwidth', 'int32')]),
    (
      lambda x: tff.backends.mapreduce.federated_secure_modular_sum(x, 9),
      _INTS,
      [('federated_secure_modular_sum', 'int32')],
    ),
    (_sum_of_a_pair, _INTS, [('federated_sum', '<int32,int32>')]),
    (tff.federated_sum, tff.FederatedType((np.float32, [3]), tff.CLIENTS), [('federated_sum', 'float32[3]')]),
    (tff.federated_sum, tff.FederatedType(np.int32, tff.CLIENTS, all_equal=True), [('federated_sum', 'int32')]),
  ],
)
def test_each_aggregation(build, argument, expected):
  assert _leaving(tff.federated_computation(build, argument)) == expected


@pytest.mark.parametrize('select', [tff.federated_select, tff.federated_secure_select])
def test_keys_of_a_selection(select):
  take = tff.tensorflow.computation(lambda table, key: table[key], [(np.float32, [5]), np.int32])

  @tff.federated_computation(
    tff.FederatedType((np.int32, [2]), tff.CLIENTS), tff.FederatedType((np.float32, [5]), tff.SERVER)
  )
  def computation(keys, table):
    return select(keys, tff.federated_value(5, tff.SERVER), table, take)

  assert _leaving(computation) == [(select.__name__, 'int32[2]')]


@pytest.mark.parametrize(
  'computation',
  [
    tff.federated_computation(lambda x: tff.federated_map(_doubled, x), _INTS),
    tff.federated_computation(lambda x: tff.federated_zip((x, x)), _INTS),
    tff.federated_computation(tff.federated_broadcast, _AT_SERVER),
    tff.federated_computation(lambda x: tff.federated_map(_doubled, x), _AT_SERVER),
    tff.federated_computation(lambda: tff.federated_value(1, tff.CLIENTS)),
    _doubled,
  ],
)
def test_nothing_leaves(computation):
  assert module.leaving_clients(computation) == []


@tff.federated_computation(_INTS)
def _inner(x):
  return tff.federated_max(tff.federated_map(_doubled, x)), tff.federated_sum(x)


def test_computations_that_are_called():
  @tff.federated_computation(_INTS)
  def middle(x):
    most, total = _inner(x)
    return tff.federated_zip((most, total))

  @tff.federated_computation(_INTS, _FLOATS)
  def outer(x, y):
    return middle(x), tff.federated_mean(y), _inner(x)[1]

  assert sorted(_leaving(outer)) == [
    ('federated_max', 'int32'),
    ('federated_mean', 'float32'),
    ('federated_sum', 'int32'),
    ('federated_sum', 'int32'),
  ]


def test_what_the_result_does_not_need():
  @tff.federated_computation(_INTS)
  def computation(x):
    tff.federated_min(x)
    return _inner(x)[0]

  assert _leaving(computation) == [('federated_max', 'int32')]


def test_second_levels_of_a_round():
  minus = tff.tensorflow.computation(lambda x, mean: x - mean, np.float32, np.float32)

  @tff.federated_computation(_FLOATS)
  def computation(x):
    centred = tff.federated_map(minus, (x, tff.federated_broadcast(tff.federated_mean(x))))
    return tff.federated_max(centred)

  assert _leaving(computation) == [('federated_mean', 'float32'), ('federated_max', 'float32')]


def test_functions_are_refused():
  with pytest.raises(ValueError, match='depends on the functions that it takes'):
    module.leaving_clients(
      tff.federated_computation(
        lambda x, f: f(x), _INTS, tff.FunctionType(_INTS, tff.FederatedType(np.int32, tff.SERVER))
      )
    )


def _quap_process(**options):
  config = configs.QuapConfig(num_clients=9, clip=clip_rules.Fixed(1.0))
  factory = aggregation.AggregationFactory(config, [layers.Layer('head', (0,), True)], **options)
  return factory.create(tff.to_type([(np.float32, [3])]), tff.TensorType(np.int64))


@pytest.mark.slow
class TestProcesses:
  def test_a_quap_round(self):
    process = _quap_process()
    (report_uri, report), (sum_uri, update) = _leaving(process.next)
    assert (report_uri, sum_uri, update) == ('federated_aggregate', 'federated_sum', '<float32[3]>')
    assert 'client_id=int64' in report and '[' not in report  # A report has scalars alone.

  def test_a_round_with_a_secure_sum(self):
    process = _quap_process(inner_sum=tff.aggregators.SecureSumFactory(1.0, -1.0))
    vectors = [(uri, t) for uri, t in _leaving(process.next) if '[' in t]
    assert vectors == [('federated_secure_sum_bitwidth', '<int64[3]>')]

  def test_tffs_federated_averaging(self):
    model = tff.learning.models.functional_model_from_keras(
      tf.keras.Sequential([tf.keras.layers.InputLayer([2]), tf.keras.layers.Dense(1)]),
      loss_fn=tf.keras.losses.MeanSquaredError(),
      input_spec=(tf.TensorSpec([None, 2], tf.float32), tf.TensorSpec([None, 1], tf.float32)),
    )
    process = tff.learning.algorithms.build_unweighted_fed_avg(
      model, client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1)
    )
    assert ('federated_sum', '<float32[2,1],float32[1]>') in _leaving(process.next)
    assert _leaving(process.initialize) == []
