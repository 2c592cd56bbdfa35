"""Several clients in one call of TensorFlow give the bits of one client at a time."""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import quap_tff
from quap_tff import runtime
from quap_tff.mechanisms.quap.config import NoiseConfig
from quap_tff.runtime.in_process import context as in_process
from quap_tff.training import models
from tests.quap_tff.runtime import comparison

_CLIENTS, _ROUNDS = 10, 2
_INTS = tff.FederatedType(np.int32, tff.CLIENTS)


@functools.cache
def _shared_context():
  with runtime.activate(runtime.RuntimeConfig(device='cpu')) as context:
    return context


def _context(num_threads, clients_per_call):
  return comparison.threads(_shared_context(), num_threads, clients_per_call)


def _client(index):
  """A client with 0 to 14 examples."""
  rng, count = np.random.default_rng(index), (7 * index) % 16
  examples = collections.OrderedDict(
    x=rng.random((count, 8, 8, 1), np.float32), y=rng.integers(0, 10, count, dtype=np.int32)
  )
  return collections.OrderedDict(client_id=[np.int64(index)], examples=[examples])


@functools.cache
def _process(model, algorithm):
  model_fn = models.build_model_fn(model, (8, 8, 1), 10)
  optimizer = tff.learning.optimizers.build_sgdm(0.1)
  work = quap_tff.ClientWorkConfig(batch_size=4, seed=2)
  if algorithm == 'quap':  # The norms come first, and then the clipped updates: two passes.
    config = quap_tff.QuapConfig(num_clients=_CLIENTS, noise=NoiseConfig('none'))
    plan = quap_tff.Plan(config)
  else:
    config = quap_tff.CertifiedConfig(num_clients=_CLIENTS, epsilon=3.0, delta=1e-5, noise_seed=1)
    plan = quap_tff.Plan.certified(config, [list(range(_CLIENTS))] * _ROUNDS, certificate=False)
  process = plan.build_process(model_fn, optimizer, client_work=work).process
  with _context(1, 1):
    return process, process.initialize()


def _state(model, algorithm, num_threads, clients_per_call):
  """The state and metrics after two rounds."""
  process, state = _process(model, algorithm)
  with _context(num_threads, clients_per_call):
    for _ in range(_ROUNDS):
      output = process.next(state, runtime.client_values(_client, range(_CLIENTS)))
      state = output.state
  return output.state, output.metrics


@functools.cache
def _one_at_a_time(model, algorithm):
  return _state(model, algorithm, 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize('algorithm', ['quap', pytest.param('certified', marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
  'model, num_threads, clients_per_call',
  [
    ('logistic_regression', 2, 4),
    pytest.param('logistic_regression', 1, 5, marks=pytest.mark.thorough),
    pytest.param('digits_cnn', 1, 4, marks=pytest.mark.thorough),
    pytest.param('digits_cnn', 2, 4, marks=pytest.mark.thorough),
  ],
)
def test_blocks_change_no_bit(model, algorithm, num_threads, clients_per_call):
  found = _state(model, algorithm, num_threads, clients_per_call)
  for part, expected in zip(found, _one_at_a_time(model, algorithm)):
    comparison.assert_same(part, expected, tolerance=0)


@tff.tensorflow.computation(np.int32)
def _reciprocal(number):
  with tf.control_dependencies([tf.debugging.assert_positive(number, message='a number is too small')]):
    return 1.0 / tf.cast(number, tf.float32)


@tff.federated_computation(_INTS)
def _sum_of_reciprocals(numbers):
  return tff.federated_sum(tff.federated_map(_reciprocal, numbers))


@pytest.mark.parametrize('num_threads', [1, 2])
def test_an_error_names_the_first_client_that_fails(num_threads):
  with _context(num_threads, 4):
    for first in (0, 6, 9):
      numbers = [1] * first + [-1] * (_CLIENTS - first)
      with pytest.raises(
        runtime.ClientError, match=f'^Client {first} of .* 10 clients.*a number is too small'
      ) as caught:
        _sum_of_reciprocals(numbers)
      assert caught.value.client_index == first
    assert _sum_of_reciprocals([1, 2, 4, 4, 1, 1]) == 4


@pytest.fixture(name='calls_of')
def _calls_of(calls):
  """The number of calls of TensorFlow in a round of so many clients."""

  def calls_of(num_clients, computation=_sum_of_reciprocals):
    calls.clear()
    computation([1] * num_clients)
    return sum(bool(function.graph.fetches) for function in calls)

  return calls_of


def test_small_and_many_clients_share_calls_when_many_have_come(calls_of, monkeypatch):
  with _context(2, None):
    few = calls_of(32)
    assert few - calls_of(1) == 2 * 31  # Each makes its value and is summed.
  monkeypatch.setattr(in_process, '_MANY_CLIENTS', 0)
  with _context(2, None):
    assert calls_of(31) - calls_of(1) == 2 * 30
    assert calls_of(32) - calls_of(1) == 2 * (32 // 4 - 1)


@tff.federated_computation(_INTS)
def _looked_up(numbers):
  # More than a call may hold, but there once for all clients.
  make = tff.tensorflow.computation(lambda: tf.range(float(in_process._SMALL_BYTES)))
  table = tff.federated_broadcast(tff.federated_eval(make, tff.SERVER))
  look_up = tff.tensorflow.computation(lambda table, number: table[number])
  return tff.federated_sum(tff.federated_map(look_up, (table, numbers)))


def test_small_clients_share_calls_whatever_the_server_sends(calls_of, monkeypatch):
  monkeypatch.setattr(in_process, '_MANY_CLIENTS', 0)
  with _context(2, None):
    assert _looked_up([1, 2]) == 3
    assert calls_of(32, _looked_up) - calls_of(1, _looked_up) == 2 * (32 // 4 - 1)


def test_large_clients_do_not():
  with _context(2, None):
    runner = in_process._Runner(_shared_context(), 1000)
    assert runner.block_size(in_process._SMALL_BYTES) == 1
    assert runner.block_size(in_process._SMALL_BYTES, 1000) == in_process._BLOCK
    assert runner.block_size(in_process._SMALL_BYTES + 1, 1000) == 1


def test_a_block_that_no_memory_holds_is_refused():
  with _context(1, 10**6):
    runner = in_process._Runner(_shared_context(), 10**6)
    with pytest.raises(ValueError, match=r'^clients_per_call=1000000 needs about 1953\.1 GiB .*\(1\.0 MiB for each\)'):
      runner.block_size(2**20)
    sizes = [in_process._Runner(_shared_context(), count).block_size(2**20) for count in (0, 1, 3, 7, 8)]
    assert sizes == [1, 1, 2, 4, 8]


def test_clients_wait_in_blocks_of_a_bounded_number():
  most, taken = [0], [0]

  def items():
    for index in range(60):
      most[0] = max(most[0], index + 1 - taken[0])
      yield index

  with _context(2, None):
    for block in in_process._Runner(_shared_context(), 60).map(list, items(), size=4):
      taken[0] += len(block)
  assert most[0] <= 4 * (in_process._most_calls(2, 4) + 1) == 20
