"""Bytes between server and clients, against counts by hand."""

import collections
import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff import runtime
from quap_tff.federated import aggregation
from quap_tff.mechanisms.parts import budgets
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.quap import config
from quap_tff.runtime.values import traffic
from tests.quap_tff.runtime import cases

_FLOAT, _INT = 4, 4  # Bytes of a float32 and an int32.
_VECTOR = tff.TensorType(np.float32, [4])
_VECTORS_AT_CLIENTS = tff.FederatedType(_VECTOR, tff.CLIENTS)
_VECTOR_AT_SERVER = tff.FederatedType(_VECTOR, tff.SERVER)
_ONES = np.ones(4, np.float32)


pytestmark = pytest.mark.usefixtures('context')


def _measure(computation, *arguments):
  with runtime.measure_traffic() as measured:
    computation(*arguments)
  return measured.traffic


class TestIntrinsics:
  def test_broadcast_and_sum(self):
    add = tff.tensorflow.computation(lambda x, y: (tf.reduce_sum(x + y), tf.constant(1, tf.int64)), _VECTOR, _VECTOR)

    @tff.federated_computation(_VECTORS_AT_CLIENTS, _VECTOR_AT_SERVER)
    def computation(x, y):
      return tff.federated_sum(tff.federated_map(add, (x, tff.federated_broadcast(y))))

    # Down the vector, up a float32 and an int64; the clients' own vectors move nowhere.
    assert _measure(computation, [_ONES] * 3, _ONES) == traffic.Traffic(4 * _FLOAT, _FLOAT + 8, 3)

  def test_nothing_moves_where_clients_keep_to_themselves(self):
    double = tff.tensorflow.computation(lambda x: 2 * x, _VECTOR)
    computation = tff.federated_computation(lambda x: tff.federated_map(double, x), _VECTORS_AT_CLIENTS)
    assert _measure(computation, [_ONES]) == traffic.Traffic(0, 0, 1)

  def test_a_broadcast_that_is_zipped_and_mapped_twice_counts_once(self):
    add = tff.tensorflow.computation(lambda x, y: x + y, _VECTOR, _VECTOR)

    @tff.federated_computation(_VECTORS_AT_CLIENTS, _VECTOR_AT_SERVER)
    def computation(x, y):
      at_clients = tff.federated_broadcast(y)
      once = tff.federated_map(add, (x, at_clients))
      return tff.federated_map(add, tff.federated_zip((once, at_clients)))

    assert _measure(computation, [_ONES, _ONES], _ONES) == traffic.Traffic(4 * _FLOAT, 0, 2)

  def test_a_broadcast_that_comes_back_counts_both_ways(self):
    @tff.federated_computation(_VECTORS_AT_CLIENTS, _VECTOR_AT_SERVER)
    def computation(x, y):
      return tff.federated_sum(tff.federated_zip((x, tff.federated_broadcast(y))))

    assert _measure(computation, [_ONES, _ONES], _ONES) == traffic.Traffic(4 * _FLOAT, 8 * _FLOAT, 2)

  def test_constants_count_where_the_server_sends_them_and_not_where_clients_have_them(self):
    @tff.federated_computation(_VECTORS_AT_CLIENTS)
    def computation(x):
      return x, tff.federated_broadcast(tff.federated_value(3, tff.SERVER)), tff.federated_value(3, tff.CLIENTS)

    assert _measure(computation, [_ONES]) == traffic.Traffic(_INT, 0, 1)

  def test_a_sum_that_nobody_reads_is_not_made(self):
    @tff.federated_computation(_VECTORS_AT_CLIENTS, tff.FederatedType(np.float32, tff.CLIENTS))
    def computation(x, y):
      tff.federated_sum(x)
      return tff.federated_sum(y)

    assert _measure(computation, [_ONES], [np.float32(1)]) == traffic.Traffic(0, _FLOAT, 1)

  def test_what_an_aggregation_takes_counts_even_if_it_ignores_a_part(self):
    pair = tff.to_type((_VECTOR, np.float32))
    ignore = tff.tensorflow.computation(lambda total, x: total + x[1], np.float32, pair)
    add = tff.tensorflow.computation(lambda a, b: a + b, np.float32, np.float32)
    identity = tff.tensorflow.computation(lambda x: x, np.float32)

    @tff.federated_computation(tff.FederatedType(pair, tff.CLIENTS))
    def computation(x):
      return tff.federated_aggregate(x, np.float32(0), ignore, add, identity)

    assert _measure(computation, [(_ONES, np.float32(1))]) == traffic.Traffic(0, 5 * _FLOAT, 1)

  def test_weighted_mean_is_a_sum_of_products_and_one_of_weights(self):
    @tff.federated_computation(_VECTORS_AT_CLIENTS, tff.FederatedType(np.float32, tff.CLIENTS))
    def computation(x, weight):
      return tff.federated_mean(x, weight)

    assert _measure(computation, [_ONES] * 3, [np.float32(1)] * 3) == traffic.Traffic(0, 5 * _FLOAT, 3)

  def test_values_that_differ_in_size_are_averaged_over_clients(self):
    flexible = tff.TensorType(np.float32, [None])
    count = tff.tensorflow.computation(lambda total, x: total + tf.size(x), np.int32, flexible)
    add = tff.tensorflow.computation(lambda a, b: a + b, np.int32, np.int32)
    identity = tff.tensorflow.computation(lambda x: x, np.int32)

    @tff.federated_computation(tff.FederatedType(flexible, tff.CLIENTS))
    def computation(x):
      return tff.federated_aggregate(x, 0, count, add, identity)

    sizes = [1, 2, 9]
    clients = [np.ones(size, np.float32) for size in sizes]
    assert _measure(computation, clients) == traffic.Traffic(0, _FLOAT * np.mean(sizes), 3)

  def test_strings_and_sequences(self):
    numbers = tff.FederatedType(tff.SequenceType(np.int64), tff.SERVER)
    text = tff.FederatedType(tff.TensorType(np.str_, [2]), tff.SERVER)

    @tff.federated_computation(_VECTORS_AT_CLIENTS, numbers, text)
    def computation(x, sequence, words):
      return x, tff.federated_broadcast(sequence), tff.federated_broadcast(words)

    assert _measure(computation, [_ONES], [1, 2, 3], np.array(['ab', 'cde'])) == traffic.Traffic(3 * 8 + 5, 0, 1)

  def test_select_sends_keys_up_and_slices_down(self):
    table = tff.TensorType(np.float32, [3, 5])
    choose = tff.tensorflow.computation(lambda rows, key: tf.gather(rows, key), table, np.int32)

    @tff.federated_computation(tff.FederatedType((np.int32, [2]), tff.CLIENTS), tff.FederatedType(table, tff.SERVER))
    def computation(keys, rows):
      return tff.federated_select(keys, tff.federated_value(3, tff.SERVER), rows, choose)

    keys = [np.array([0, 2], np.int32)] * 4
    assert _measure(computation, keys, np.zeros([3, 5], np.float32)) == traffic.Traffic(2 * 5 * _FLOAT, 2 * _INT, 4)

  def test_without_clients(self):
    computation = tff.federated_computation(tff.federated_sum, _VECTORS_AT_CLIENTS)
    down, up, clients = _measure(computation, [])
    assert math.isnan(down) and math.isnan(up) and clients == 0


class TestMeasurement:
  def test_is_of_the_last_invocation_in_the_block(self):
    computation = tff.federated_computation(tff.federated_sum, _VECTORS_AT_CLIENTS)
    with runtime.measure_traffic() as measured:
      assert measured.traffic is None
      computation([_ONES])
      assert measured.traffic.clients == 1
      computation([_ONES] * 2)
    computation([_ONES] * 3)
    assert measured.traffic.clients == 2

  def test_of_an_inner_block_is_its_own(self):
    computation = tff.federated_computation(tff.federated_sum, _VECTORS_AT_CLIENTS)
    with runtime.measure_traffic() as outer:
      with runtime.measure_traffic() as inner:
        computation([_ONES])
      assert outer.traffic is None
      computation([_ONES] * 2)
    assert (inner.traffic.clients, outer.traffic.clients) == (1, 2)

  def test_is_none_under_another_context(self):
    computation = tff.federated_computation(tff.federated_sum, _VECTORS_AT_CLIENTS)
    inner = tff.framework.get_context_stack().current

    class Other(tff.framework.SyncContext):
      def invoke(self, comp, arg):
        return inner.invoke(comp, arg)

    with tff.framework.get_context_stack().install(Other()):
      assert _measure(computation, [_ONES]) is None


@pytest.mark.slow
class TestProcesses:
  @pytest.mark.thorough
  def test_stock_fed_avg(self):
    process = cases.fed_avg_iterator_process()
    state = process.initialize()
    weights = state.global_model_weights
    trainable = sum(array.nbytes for array in weights.trainable)
    non_trainable = sum(np.asarray(array).nbytes for array in weights.non_trainable)
    assert trainable == (3 + 3 + 3 * 2 + 2) * _FLOAT and non_trainable == (3 + 3) * _FLOAT
    down, up, clients = _measure(process.next, state, cases.client_data())
    # In addition to the model: the local optimizer's learning rate.
    assert (down, clients) == (trainable + non_trainable + _FLOAT, 3)
    # In addition to the update: the count of clients for the mean, loss and accuracy as (sum, count), and the numbers
    # of examples and batches.
    assert up == trainable + _INT + 2 * 2 * _FLOAT + 2 * 8

  @pytest.mark.thorough
  @pytest.mark.parametrize(
    'clip, down',
    [
      (clip_rules.QuantileEma(), 3 * _FLOAT),  # C_{t-1}, the scale of updates, then C_t.
      (clip_rules.Fixed(1.0), 2 * _FLOAT),
    ],
  )
  def test_quap_aggregation_adds_id_and_norm(self, clip, down):
    factory = aggregation.AggregationFactory(
      config.QuapConfig(
        num_clients=10, budget=budgets.BudgetConfig(epsilon_total=6.0, num_rounds=200), clip=clip, critical_layers='all'
      )
    )
    value_type = tff.to_type(collections.OrderedDict(kernel=(np.float32, [3, 2]), bias=(np.float32, [2])))
    process = factory.create(value_type, tff.TensorType(np.int64))
    update = collections.OrderedDict(kernel=np.ones([3, 2], np.float32), bias=np.ones(2, np.float32))
    measured = _measure(process.next, process.initialize(), [update] * 3, [0, 4, 9])
    assert measured == traffic.Traffic(down, 8 * _FLOAT + 8 + 4, 3)
