"""Promises of the in-process runtime beyond equal results: see `quap_tff.runtime.in_process.context`."""

import collections
import gc
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff import runtime
from quap_tff.runtime.in_process import context as in_process
from quap_tff.runtime.values import values
from tests import processes
from tests.quap_tff.runtime import cases
from tests.quap_tff.runtime import comparison

pytestmark = pytest.mark.slow

_INTS_AT_CLIENTS = tff.FederatedType(np.int32, tff.CLIENTS)


@pytest.fixture(name='context', scope='module', autouse=True)
def _context():
  with runtime.activate(runtime.RuntimeConfig(device='cpu', num_threads=4)) as context:
    yield context


def _client_threads():
  return {thread for thread in threading.enumerate() if thread.name.startswith('client_')}


@pytest.mark.parametrize(
  'name',
  ['fed_avg_iterator_loop', 'federated_sums_and_means', pytest.param('fed_avg_keras', marks=pytest.mark.thorough)],
)
def test_number_of_threads_changes_no_bit(context, name):
  results = []
  for num_threads in (1, 2, 4):
    with comparison.threads(context, num_threads):
      results.append(cases.CASES[name]())
  for result in results[1:]:
    comparison.assert_same(result, results[0], tolerance=0)


def test_sums_follow_the_cohorts_order():
  total = tff.federated_computation(tff.federated_sum, tff.FederatedType(np.float32, tff.CLIENTS))
  # In any other order the ones would not be lost.
  assert total([1e8, 1.0, 1.0, 1.0, -1e8]) == 0.0
  assert total([1e8, -1e8, 1.0, 1.0, 1.0]) == 3.0


def test_clients_that_run_together_share_no_variable(context):
  steps = 200

  @tff.tensorflow.computation(np.int32)
  def count(own):
    variable = tf.Variable(0, name='counter')
    with tf.control_dependencies([tf.group([])]):
      loop = tf.while_loop(lambda i: i < steps, lambda i: [_after(variable.assign_add(own), i + 1)], [tf.constant(0)])
    with tf.control_dependencies(loop):
      return variable.read_value()

  computation = tff.federated_computation(lambda x: tff.federated_map(count, x), _INTS_AT_CLIENTS)
  before = context.statistics.traced
  for _ in range(3):  # Later rounds borrow the variables of earlier ones and must find them fresh.
    assert computation(list(range(24))) == [steps * own for own in range(24)]
  assert context.statistics.traced == before + 1


def _after(operation, tensor):
  with tf.control_dependencies([operation]):
    return tf.identity(tensor)


def test_clients_that_run_together_share_no_table():
  @tff.tensorflow.computation(tff.SequenceType(np.int32))
  def distinct(numbers):
    table = tf.lookup.experimental.MutableHashTable(tf.int32, tf.int32, default_value=0)
    last = numbers.reduce(np.int32(0), lambda _, v: _after(table.insert(v, 1), v))
    with tf.control_dependencies([last]):
      return table.size()

  computation = tff.federated_computation(
    lambda x: tff.federated_map(distinct, x), tff.FederatedType(tff.SequenceType(np.int32), tff.CLIENTS)
  )
  assert computation([[i * 100 + j for j in range(i + 1)] * 5 for i in range(8)]) == list(range(1, 9))


def test_seeded_stateful_random_numbers_follow_the_cohorts_order(context):
  @tff.tensorflow.computation(np.int32)
  def draw(number):
    return tf.random.uniform([2], seed=7)

  def draws(num_threads, clients_per_call):
    # A computation of its own: a sequence of random numbers goes on from call to call.
    computation = tff.federated_computation(lambda x: tff.federated_map(draw, x), _INTS_AT_CLIENTS)
    with comparison.threads(context, num_threads, clients_per_call):
      return np.stack(computation(list(range(16))))

  one_by_one = draws(1, 1)
  assert len(np.unique(one_by_one)) == one_by_one.size
  np.testing.assert_array_equal(draws(4, 1), one_by_one)
  np.testing.assert_array_equal(draws(1, 4), one_by_one)


def test_sums_with_seeded_random_numbers_follow_the_cohorts_order(context):
  @tff.tensorflow.computation(np.float32, np.float32)
  def accumulate(total, value):
    return total + value * tf.random.uniform([], seed=5)

  merge = tff.tensorflow.computation(lambda one, other: one + other, [np.float32, np.float32])
  report = tff.tensorflow.computation(lambda total: total, np.float32)

  def drawn(clients_per_call):
    computation = tff.federated_computation(
      lambda x: tff.federated_aggregate(x, np.float32(0), accumulate, merge, report),
      tff.FederatedType(np.float32, tff.CLIENTS),
    )
    with comparison.threads(context, 1, clients_per_call):
      return computation([np.float32(i) for i in range(16)])

  assert drawn(1) == drawn(4) == drawn(None) == drawn(16)


def test_clients_run_at_the_same_time(context):
  # Each client waits until two are there: with one at a time the barrier would break.
  barrier = threading.Barrier(2, timeout=processes.DEADLINE_SECONDS)
  runner = in_process._Runner(context, 2)
  assert list(runner.map(lambda block: (barrier.wait() >= 0, *block), [1, 2])) == [(True, 1), (True, 2)]


@pytest.mark.parametrize('how', ['reduce', 'iterator'])
def test_clients_read_their_data_at_the_same_time(context, how):
  # The ops that read data have one thread for each copy of a function: clients need copies of their own.
  barrier = threading.Barrier(2, timeout=processes.DEADLINE_SECONDS)

  def meet(value):
    return tf.numpy_function(lambda v: v + np.int32(0 * barrier.wait()), [value], tf.int32)

  @tf.function
  def add_up(dataset):
    total = 0
    for value in dataset:
      total += tf.ensure_shape(meet(value), [])
    return total

  @tff.tensorflow.computation(tff.SequenceType(np.int32))
  def read(numbers):
    if how == 'iterator':
      return add_up(numbers.map(lambda value: tf.ensure_shape(meet(value), [])))
    return numbers.reduce(0, lambda total, value: total + tf.ensure_shape(meet(value), []))

  computation = tff.federated_computation(
    lambda x: tff.federated_map(read, x), tff.FederatedType(tff.SequenceType(np.int32), tff.CLIENTS)
  )
  before = context.statistics.traced
  assert computation([[1, 2], [3, 4]]) == [3, 7]
  assert context.statistics.traced - before == context._num_threads


def test_no_more_clients_at_once_than_threads(context):
  lock, running, most = threading.Lock(), [0], [0]
  # Each client waits until three are there.
  barrier = threading.Barrier(3, timeout=processes.DEADLINE_SECONDS)

  def client(block):
    with lock:
      running[0] += 1
      most[0] = max(most[0], running[0])
    barrier.wait()
    with lock:
      running[0] -= 1
    return list(block)

  with comparison.threads(context, 3):
    assert list(in_process._Runner(context, 12).map(client, range(12))) == [[i] for i in range(12)]
  assert most[0] == 3


def _fails_where_negative():
  @tff.tensorflow.computation(np.int32)
  def check(number):
    with tf.control_dependencies([tf.debugging.assert_non_negative(number, message='a negative number came')]):
      return tf.identity(number)

  return check


@pytest.mark.parametrize('num_threads', [1, 4])
def test_client_error_names_the_client(context, num_threads):
  computation = tff.federated_computation(
    lambda x: tff.federated_sum(tff.federated_map(_fails_where_negative(), x)), _INTS_AT_CLIENTS
  )
  with comparison.threads(context, num_threads):
    message = r'Client 3 of the cohort .* failed: InvalidArgumentError: .*a negative number came'
    with pytest.raises(runtime.ClientError, match=message) as caught:
      computation([1, 1, 1, -1, 1, -1, -1])
    assert caught.value.client_index == 3
    assert isinstance(caught.value.__cause__, tf.errors.InvalidArgumentError)
    # The runtime is as good as before.
    assert computation([1, 2]) == 3


def test_server_error_keeps_tensorflows_own():
  computation = tff.federated_computation(
    lambda x: tff.federated_map(_fails_where_negative(), x), tff.FederatedType(np.int32, tff.SERVER)
  )
  with pytest.raises(tf.errors.InvalidArgumentError, match='a negative number came') as caught:
    computation(-1)
  # And nothing of where TensorFlow made the node that failed.
  assert len(str(caught.value).splitlines()) == 1 and 'node' not in str(caught.value)


@pytest.mark.thorough
def test_later_rounds_trace_nothing_and_leave_nothing_whatever_the_cohort(context):
  process = cases.fed_avg_keras_process()
  state = process.initialize()

  def run(*cohorts):
    nonlocal state
    for sizes in cohorts:
      state = process.next(state, cases.client_data(sizes)).state
    gc.collect()
    return sum(issubclass(type(obj), (tf.Variable, tf.Tensor)) for obj in gc.get_objects())

  run((4, 9, 1, 6, 7), (3, 5, 8, 2, 30))
  known = (context.statistics.traced, context.statistics.compiled)
  tensors = [run((5, 8), (1,)), run((31, 2, 2, 17, 4, 4, 9, 12), (), (3,) * 7), run(*[(3,) * n for n in (1, 6, 4, 2)])]
  assert (context.statistics.traced, context.statistics.compiled) == known
  assert tensors[2] <= max(tensors[:2])


@pytest.mark.thorough
def test_rounds_leave_no_memory_to_the_attributes_of_their_tensors():
  """On Python 3.11, TensorFlow alone leaves a block of memory for each tensor that there ever was."""
  numbers = tff.SequenceType(np.float32)
  add_up = tff.tensorflow.computation(lambda own: own.reduce(np.float32(0), lambda a, b: a + b), numbers)
  total = tff.federated_computation(
    lambda own: tff.federated_sum(tff.federated_map(add_up, own)), tff.FederatedType(numbers, tff.CLIENTS)
  )

  def blocks_after(rounds):
    for _ in range(rounds):
      assert total([[np.float32(i)] for i in range(10)]) == 45
    gc.collect()
    return sys.getallocatedblocks()

  before = blocks_after(10)
  assert blocks_after(40) - before < 500  # More than 1,600 if they are left.


def test_nothing_outlives_a_computation(context):
  def times(factor):
    return tff.tensorflow.computation(lambda x: x * factor, np.int32)

  gc.collect()
  before = len(context._programs._results)
  kept = times(2)
  for factor in range(3):
    assert times(factor)(5) == 5 * factor
  assert kept(5) == 10
  gc.collect()
  assert len(context._programs._results) == before + 1


def test_state_comes_back_as_it_was_given():
  identity = tff.tensorflow.computation(lambda x: x, collections.OrderedDict(b=(np.float32, [2]), a=np.str_))
  array = np.array([1.0, 2.0], np.float32)
  for argument in (array, tf.constant(array), tf.Variable(array), [1.0, 2.0]):
    result = identity(collections.OrderedDict(b=argument, a='x'))
    assert list(result) == ['b', 'a'] and result['a'] == b'x'
    assert isinstance(result['b'], np.ndarray)
    again = identity(result)
    np.testing.assert_array_equal(again['b'], array)


@pytest.mark.parametrize('argument', [None, {}])
def test_argument_of_another_type_is_refused(argument):
  with pytest.raises(TypeError):
    tff.tensorflow.computation(lambda x: x, np.int32)(argument)


def test_dataset_of_another_type_is_refused():
  computation = tff.tensorflow.computation(lambda ds: ds.reduce(0, tf.add), tff.SequenceType(np.int32))
  with pytest.raises(TypeError, match='Expected a sequence of type'):
    computation(tf.data.Dataset.range(3))


@pytest.mark.parametrize(
  'batched, shape, says', [(False, [None, 2], True), (True, [None, 2], False), (True, [2], False)]
)
def test_a_dataset_of_single_examples_says_to_batch_it(batched, shape, says):
  element = collections.OrderedDict(x=tff.TensorType(np.float32, shape), y=tff.TensorType(np.int32, shape[:-1]))
  computation = tff.tensorflow.computation(lambda ds: ds.reduce(0, lambda n, _: n + 1), tff.SequenceType(element))
  dataset = tf.data.Dataset.from_tensor_slices({'x': np.zeros((4, 2), np.float32), 'y': np.zeros(4, np.int32)})
  if batched == (shape == [None, 2]):
    assert computation(dataset.batch(2) if batched else dataset) in (2, 4)
    return
  with pytest.raises(TypeError, match='Expected a sequence of type') as caught:
    computation(dataset.batch(2) if batched else dataset)
  assert ('Batch them: dataset.batch(32)' in str(caught.value)) == says


def test_dataset_with_other_names_is_refused():
  # tf.data flattens dictionaries by sorted key, so these would be taken for one another.
  element = collections.OrderedDict(b=np.float32, a=np.float32)
  computation = tff.tensorflow.computation(
    lambda ds: ds.reduce(0.0, lambda total, x: total + 10 * x['b'] + x['a']), tff.SequenceType(element)
  )
  of = lambda **columns: tf.data.Dataset.from_tensors({name: tf.constant(x) for name, x in columns.items()})
  assert computation(of(a=1.0, b=2.0)) == 21
  with pytest.raises(TypeError, match='Expected a sequence of type'):
    computation(of(image=1.0, label=2.0))


def test_cohorts_that_differ_in_size_are_refused():
  computation = tff.federated_computation(
    lambda x, y: tff.federated_sum(tff.federated_zip((x, y))), [_INTS_AT_CLIENTS, _INTS_AT_CLIENTS]
  )
  with pytest.raises(ValueError, match='number of clients'):
    computation([1, 2], [1, 2, 3])


def test_empty_cohort():
  computation = tff.federated_computation(
    lambda x: (tff.federated_sum(x), tff.federated_broadcast(tff.federated_value(1, tff.SERVER))), _INTS_AT_CLIENTS
  )
  assert computation([]) == (0, 1)


@pytest.mark.parametrize('sizes', [[], [2], [2, 2, 2], [2, 1, 1, 3] * 40])
def test_lists_become_datasets_in_order(sizes):
  element_type = tff.to_type((np.float32, [None]))
  elements = [np.arange(size, dtype=np.float32) + i for i, size in enumerate(sizes)]
  variant = values.to_value(elements, tff.SequenceType(element_type))
  found = [element.numpy() for element in values.dataset(variant, element_type)]
  comparison.assert_same(found, elements, tolerance=0)


def test_sequence_intrinsics():
  double = tff.tensorflow.computation(lambda v: v * 2, np.int32)
  add = tff.tensorflow.computation(lambda a, b: a + b, [np.int32, np.int32])

  @tff.federated_computation(tff.SequenceType(np.int32))
  def computation(numbers):
    return (
      tff.sequence_sum(numbers),
      tff.sequence_sum(tff.sequence_map(double, numbers)),
      tff.sequence_reduce(numbers, 10, add),
    )

  assert computation([1, 2, 3]) == (6, 12, 16)
  assert computation([]) == (0, 0, 10)


def test_a_runtime_may_be_given_by_its_name():
  with runtime.activate('in_process') as context:
    assert isinstance(context, runtime.InProcessContext)
  assert runtime.prepare('native') == ()
  with pytest.raises(ValueError, match="Unknown runtime 'in_proces'"):
    with runtime.activate('in_proces'):
      pass
  message = r'RuntimeConfig or the name of a runtime \(in_process, native, workers\), found int'
  with pytest.raises(TypeError, match=message):
    with runtime.activate(3):
      pass


def test_context_is_installed_for_the_block_only():
  stack = tff.framework.get_context_stack()
  before, threads_before = stack.current, _client_threads()
  with runtime.activate(runtime.RuntimeConfig(device='cpu', num_threads=2)) as context:
    assert stack.current is context
    cases.CASES['federated_sums_and_means']()
    assert _client_threads() - threads_before
  assert stack.current is before
  assert _client_threads() == threads_before
  with pytest.raises(KeyboardInterrupt):
    with runtime.activate(runtime.RuntimeConfig(device='cpu', num_threads=2)):
      cases.CASES['federated_sums_and_means']()
      raise KeyboardInterrupt
  assert stack.current is before
  assert _client_threads() == threads_before


def test_clients_take_the_devices_in_turn():
  context = runtime.InProcessContext(num_threads=2, devices=('/device:CPU:0', '/device:CPU:1'))
  runner = in_process._Runner(context, 4)
  try:
    assert list(runner.map(lambda item: runner.device(), [0, 1, 2, 3])) == ['/device:CPU:0', '/device:CPU:1'] * 2
    assert runner.device() == '/device:CPU:0'
  finally:
    context.close()


def test_on_the_cpu_gpus_are_hidden(monkeypatch):
  visible = []
  monkeypatch.setattr(tf.config, 'set_visible_devices', lambda *arguments: visible.append(arguments))
  assert runtime.prepare(runtime.RuntimeConfig(device='cpu')) == ('/device:CPU:0',)
  assert visible == [([], 'GPU')]


@pytest.mark.skipif(bool(tf.config.list_physical_devices('GPU')), reason='there is a GPU here')
def test_missing_gpu_is_an_error():
  with pytest.raises(runtime.DeviceError, match='a build with(out)? CUDA, sees no GPU here'):
    with runtime.activate(runtime.RuntimeConfig(device='gpu')):
      pass
