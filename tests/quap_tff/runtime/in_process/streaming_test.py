"""A round holds as many clients' values as there are threads, not as there are clients, and sums in one order."""

import collections
import contextlib
import functools
import threading
import weakref

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff import runtime
from quap_tff.federated import aggregation
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers
from quap_tff.mechanisms.quap import config as configs
from quap_tff.runtime.in_process import context as in_process
from quap_tff.runtime.in_process import tensorflow_blocks
from quap_tff.runtime.values import values
from tests import processes
from tests.quap_tff import examples
from tests.quap_tff.runtime import comparison

_CLIENTS = 60
_LARGE, _SMALL = [500], [3, 2]  # Shapes of what is not clipped and of what is.
_VALUE = tff.to_type([(np.float32, _LARGE), (np.float32, _SMALL)])
_LAYERS = [layers.Layer('body', (0,), True), layers.Layer('head', (1,), True)]
_IDS = tff.FederatedType(np.int64, tff.CLIENTS)
# On each thread a client's values of one round: as the client makes it, without what is not finite, and clipped. To
# which come the server's: an old and a new sum.
_COPIES, _SUMS = 3, 2
_RULES = {
  'current': clip_rules.QuantileEma(),
  'previous': clip_rules.QuantileEma(timing='previous', initial_clip=1.0),
  'fixed': clip_rules.Fixed(1.0),
  'private_quantile': clip_rules.PrivateQuantile(),
}


@pytest.fixture(name='context', scope='module')
def _context():
  with contextlib.closing(runtime.InProcessContext(2)) as context:
    yield context


def _aggregator(rule):
  if rule.startswith('certified'):
    clip = _RULES[rule[len('certified_') :]]
    config = examples.noised(num_clients=_CLIENTS, clip=clip)
    return aggregation.AggregationFactory(config, _LAYERS)
  config = configs.QuapConfig(num_clients=_CLIENTS, clip=_RULES[rule], noise=configs.NoiseConfig(seed=1))
  return aggregation.AggregationFactory(config, _LAYERS)


@functools.cache
def _round(rule):
  """A round in which each client makes its update from its id, and the process that aggregates them."""

  @tff.tensorflow.computation(np.int64)
  def train(client_id):
    # Of very different sizes, so that another order of the sum gives another result.
    seed = tf.stack([client_id, 7])
    scale = tf.pow(10.0, tf.random.stateless_uniform([], seed, -6, 6))
    normal = lambda shape, use: scale * tf.random.stateless_normal(shape, seed + use)
    not_finite = tf.where(client_id == 5, np.float32(np.nan), 0.0)
    return [normal(_LARGE, 1) + not_finite, normal(_SMALL, 2)]

  process = _aggregator(rule).create(_VALUE, tff.TensorType(np.int64))

  @tff.federated_computation(process.initialize.type_signature.result, _IDS)
  def next_round(state, ids):
    return process.next(state, tff.federated_map(train, ids), ids)

  return process, next_round


class _Alive:
  """Counts the tensors of a shape that the runtime's TensorFlow functions have made and that still exist."""

  def __init__(self, monkeypatch, shape):
    self._references, self._lock = [], threading.Lock()
    self.most = 0
    call = tensorflow_blocks.GraphFunction.__call__

    def counted(function, arguments, device):
      result = call(function, arguments, device)
      leaves = [leaf for leaf in result if leaf.shape == shape]
      with self._lock:
        known = {id(reference()) for reference in self._references}
        self._references += [weakref.ref(leaf) for leaf in leaves if id(leaf) not in known]
        self._references = [reference for reference in self._references if reference() is not None]
        self.most = max(self.most, len(self._references))
      return result

    monkeypatch.setattr(tensorflow_blocks.GraphFunction, '__call__', counted)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize('rule', [*_RULES, 'certified_fixed', 'certified_private_quantile'])
@pytest.mark.parametrize(
  'size, num_threads', [(1, 2), *(pytest.param(*pair, marks=pytest.mark.thorough) for pair in ((1, 1), (4, 1), (4, 2)))]
)
def test_updates_do_not_pile_up(context, rule, num_threads, size, monkeypatch, undrawn):
  with comparison.threads(context, num_threads, clients_per_call=size):
    process, next_round = _round(rule)
    state = next_round(process.initialize(), list(range(4))).state
    alive = _Alive(monkeypatch, _LARGE)
    next_round(state, list(range(_CLIENTS)))
  blocks = 1 if num_threads == 1 else in_process._most_calls(num_threads, size) + 1
  assert 0 < alive.most <= size * (blocks + _COPIES * num_threads) + _SUMS < _CLIENTS


@pytest.mark.slow
def test_what_waits_for_the_clip_is_held(context, monkeypatch):
  # The count above would notice this: the clipped layer of the rule 'current' is held for the whole cohort.
  with comparison.threads(context, 2):
    process, next_round = _round('current')
    alive = _Alive(monkeypatch, _SMALL)
    next_round(process.initialize(), list(range(_CLIENTS)))
  assert alive.most >= _CLIENTS


@pytest.mark.slow
@pytest.mark.parametrize('rule', ['current', pytest.param('previous', marks=pytest.mark.thorough), 'certified_fixed'])
def test_number_of_threads_changes_no_bit(context, rule):
  results = []
  for num_threads in (1, 2, 4):
    with comparison.threads(context, num_threads):
      process, next_round = _round(rule)
      state = next_round(process.initialize(), [3, 5, 0, 9]).state
      output = next_round(state, list(range(_CLIENTS)))
      results.append((output.result, output.measurements))
  for result in results[1:]:
    comparison.assert_same(result, results[0], tolerance=0)
  assert np.all(np.isfinite(results[0][0][0]))


@pytest.mark.slow
def test_a_large_part_that_is_not_finite_takes_the_clipped_part_with_it():
  large, small = tff.to_type((np.float32, [2])), tff.to_type((np.float32, [2]))
  config = configs.QuapConfig(num_clients=4, clip=clip_rules.QuantileEma(), noise=configs.NoiseConfig('none'))
  process = aggregation.AggregationFactory(config, _LAYERS).create(
    tff.to_type([large, small]), tff.TensorType(np.int64)
  )
  ones, not_finite = np.ones(2, np.float32), np.float32([1, np.inf])
  with runtime.activate(runtime.RuntimeConfig(device='cpu', num_threads=2)):
    for update in ([not_finite, ones], [ones, not_finite]):
      output = process.next(process.initialize(), [[2 * ones, 3 * ones], update], [0, 1])
      np.testing.assert_array_equal(output.result[0], [1, 1])
      np.testing.assert_array_equal(output.result[1], [1.5, 1.5])


def test_no_client_runs_far_ahead_of_a_slow_one():
  num_threads = 2
  limit = (1 + in_process._AHEAD) * num_threads
  made, made_by_then, last_started = [], [], threading.Event()

  def items():
    for index in range(4 * limit):
      made.append(index)
      yield index

  def client(block):
    (index,) = block
    if index == 0:
      assert last_started.wait(processes.DEADLINE_SECONDS)  # Everybody who may run ahead does.
      made_by_then.append(len(made))
    elif index == limit - 1:
      last_started.set()
    return [index]

  with runtime.activate(runtime.RuntimeConfig(device='cpu', num_threads=num_threads)) as context:
    assert list(in_process._Runner(context, 4 * limit).map(client, items())) == [[i] for i in range(4 * limit)]
  assert made_by_then[0] <= limit + 1


class TestClientValues:
  @pytest.mark.slow
  def test_are_made_when_their_turn_comes_and_not_kept(self):
    class Examples(list):
      pass

    references, most = [], [0]

    def make(client):
      nonlocal references
      examples = Examples([client, 1])
      references = [r for r in references if r() is not None] + [weakref.ref(examples)]
      most[0] = max(most[0], len(references))
      return examples

    add_up = tff.tensorflow.computation(lambda ds: ds.reduce(0, tf.add), tff.SequenceType(np.int32))
    total = tff.federated_computation(
      lambda x: tff.federated_sum(tff.federated_map(add_up, x)),
      tff.FederatedType(tff.SequenceType(np.int32), tff.CLIENTS),
    )
    with runtime.activate(runtime.RuntimeConfig(device='cpu', num_threads=2)):
      assert total(runtime.client_values(make, range(40))) == sum(range(40)) + 40
    assert most[0] <= 2

  @pytest.mark.slow
  def test_are_made_once_where_only_one_pass_reads_them(self, context):
    made = []
    with comparison.threads(context, 2):
      process, next_round = _round('current')  # The second pass clips what the first one has kept.
      next_round(process.initialize(), runtime.client_values(lambda client: made.append(client) or client, range(6)))
    assert made == list(range(6))

  def test_only_the_parts_that_a_pass_reads_are_converted(self, monkeypatch):
    # Certified runs read the ids of the whole cohort before anybody trains.
    converted, sequence = [], values._sequence
    monkeypatch.setattr(values, '_sequence', lambda *args: converted.append(args[2][-1]) or sequence(*args))
    client = collections.OrderedDict(client_id=tff.SequenceType(np.int32), examples=tff.SequenceType(np.int32))
    add_up = tff.tensorflow.computation(lambda ds: ds.reduce(0, tf.add), tff.SequenceType(np.int32))
    less = tff.tensorflow.computation(lambda x, y: x - y, np.int32, np.int32)

    @tff.federated_computation(tff.FederatedType(client, tff.CLIENTS))
    def computation(clients):
      ids = tff.federated_map(add_up, clients['client_id'])
      total = tff.federated_broadcast(tff.federated_sum(ids))
      return tff.federated_sum(
        tff.federated_map(less, (tff.federated_map(add_up, clients['examples']), total))
      ), clients

    make = lambda i: collections.OrderedDict(client_id=[i], examples=[i, 10])
    with runtime.activate(runtime.RuntimeConfig(device='cpu', num_threads=1)):
      total, returned = computation(runtime.client_values(make, [1, 2, 3]))
    assert total == 6 + 3 * 10 - 3 * 6
    assert converted == 3 * ['client_id'] + 3 * ['examples'] + 3 * ['client_id', 'examples']
    assert [list(part['examples']) for part in returned] == [[i, 10] for i in (1, 2, 3)]

  def test_of_the_wrong_type_are_refused(self):
    total = tff.federated_computation(tff.federated_sum, tff.FederatedType(np.int32, tff.CLIENTS))
    with runtime.activate(runtime.RuntimeConfig(device='cpu', num_threads=2)):
      with pytest.raises(TypeError, match=r"dtype int32 for argument\[1\], found 'text'"):
        total(runtime.client_values(lambda client: 'text' if client else 1, [0, 1]))

  def test_are_a_list_under_other_contexts(self):
    class Other(tff.framework.SyncContext):
      def invoke(self, comp, arg):
        raise NotImplementedError

    with tff.framework.get_context_stack().install(Other()):
      assert runtime.client_values(lambda client: 2 * client, [1, 2]) == [2, 4]

  def test_may_be_all_that_a_computation_returns(self):
    identity = tff.federated_computation(lambda x: x, tff.FederatedType(np.int32, tff.CLIENTS))
    with runtime.activate(runtime.RuntimeConfig(device='cpu', num_threads=2)):
      assert identity(runtime.client_values(lambda client: 2 * client, [1, 2])) == [2, 4]


def test_a_select_from_a_zip_does_not_wait_for_the_rest(monkeypatch):
  # TFF's templates hand ids on zipped with the updates; asking for the ids must not make anybody train.
  train = tff.tensorflow.computation(lambda x: tf.fill(_LARGE, x), np.float32)
  copy = tff.tensorflow.computation(lambda x: x + 0, np.float32)
  less = tff.tensorflow.computation(lambda update, total: update - total, (np.float32, _LARGE), np.float32)

  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def computation(x):
    pair = tff.federated_zip(
      collections.OrderedDict(update=tff.federated_map(train, x), own=tff.federated_map(copy, x))
    )
    total = tff.federated_broadcast(tff.federated_sum(pair['own']))
    return tff.federated_sum(tff.federated_map(less, (pair['update'], total)))

  alive = _Alive(monkeypatch, _LARGE)
  with runtime.activate(runtime.RuntimeConfig(device='cpu', num_threads=1, clients_per_call=1)):
    np.testing.assert_array_equal(computation([1.0, 2.0] + [0.0] * 20), np.full(_LARGE, 3.0 - 22 * 3.0))
  assert alive.most <= _COPIES + _SUMS
