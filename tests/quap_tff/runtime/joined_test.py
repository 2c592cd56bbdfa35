"""What a pass makes of a client is one call of TensorFlow, with the bits of the sections run one by one."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff import runtime
from quap_tff.runtime.in_process import context as in_process
from tests.quap_tff.runtime import cases
from tests.quap_tff.runtime import comparison

_INTS = tff.FederatedType(np.int32, tff.CLIENTS)


pytestmark = pytest.mark.usefixtures('context')


@pytest.fixture(name='sections_run_one_by_one')
def _sections_run_one_by_one(monkeypatch):
  """Called, it ends the joining of sections."""
  return lambda: monkeypatch.setattr(in_process._Runner, 'joins', False)


@tff.tensorflow.computation(np.int32)
def _squared(x):
  total = tf.Variable(3)
  with tf.control_dependencies([total.assign_add(x)]):
    return tf.square(total.read_value())


@tff.tensorflow.computation(np.int32, np.int32)
def _minus(x, y):
  return x - y


@tff.federated_computation(np.int32)
def _minus_seven(x):
  return _minus(x, np.int32(7))


@tff.federated_computation(_INTS, tff.FederatedType(np.int32, tff.SERVER))
def _chain(xs, offset):
  squares = tff.federated_map(_squared, xs)
  again = tff.federated_map(_squared, squares)
  shifted = tff.federated_map(_minus, (again, tff.federated_broadcast(offset)))
  two = tff.federated_value(np.int32(2), tff.CLIENTS)
  lowered = tff.federated_map(_minus, (tff.federated_map(_minus_seven, xs), two))
  return tff.federated_sum(shifted), tff.federated_sum(lowered), xs


def _expected(xs, offset):
  return sum((3 + (3 + x) ** 2) ** 2 - offset for x in xs), sum(x - 9 for x in xs), xs


@pytest.mark.parametrize('cohort', [[], [4], list(range(40))])
def test_variables_constants_and_what_is_passed_on(cohort):
  assert _chain(cohort, 5) == _expected(cohort, 5)
  assert _chain(cohort, 6) == _expected(cohort, 6)


@pytest.mark.parametrize('measured', [False, True])
def test_one_call_makes_a_clients_values_and_one_sums_them(calls, sections_run_one_by_one, measured):
  def calls_for(count):
    calls.clear()
    with runtime.measure_traffic() if measured else contextlib.nullcontext():
      _chain(list(range(count)), 5)
    return len(calls)

  assert calls_for(10) - calls_for(2) == 8 * 2
  sections_run_one_by_one()
  assert calls_for(10) - calls_for(2) == 8 * 7  # Five of the client, and two sums.


@pytest.mark.thorough
@pytest.mark.slow
def test_the_bits_are_those_of_the_sections_one_by_one(sections_run_one_by_one):
  process = tff.learning.algorithms.build_unweighted_fed_avg(
    cases.keras_model_fn,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
    model_aggregator=tff.aggregators.zeroing_factory(
      0.3, tff.aggregators.clipping_factory(0.2, tff.aggregators.UnweightedMeanFactory())
    ),
  )
  data = cases.client_data()
  joined = process.next(process.initialize(), data)
  sections_run_one_by_one()
  one_by_one = process.next(process.initialize(), data)
  comparison.assert_same(joined.state, one_by_one.state, tolerance=0)
  comparison.assert_same(joined.metrics, one_by_one.metrics, tolerance=0)


def test_what_is_read_in_python_is_not_joined():
  element = tff.SequenceType(np.int32)

  @tff.tensorflow.computation(element)
  def doubled(dataset):
    return dataset.map(lambda x: 2 * x)

  @tff.federated_computation(element)
  def added(sequence):
    return tff.sequence_sum(sequence)

  @tff.federated_computation(tff.FederatedType(element, tff.CLIENTS))
  def total(sequences):
    sums = tff.federated_map(added, tff.federated_map(doubled, sequences))
    return tff.federated_sum(tff.federated_map(_squared, sums))

  assert total([[1, 2], [3]]) == 9**2 + 9**2
