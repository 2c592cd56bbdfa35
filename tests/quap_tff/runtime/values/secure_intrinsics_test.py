"""TFF's secure sums in every runtime: what TFF's own context for tests gives, and an error where that is wrong."""

import collections
import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff import runtime
from quap_tff.runtime.in_process import context as in_process
from quap_tff.runtime.values import secure_intrinsics
from tests.quap_tff.runtime import comparison

_modular = tff.backends.mapreduce.federated_secure_modular_sum
_STRUCT = collections.OrderedDict(b=np.int32, a=(np.int64, [2]))


def _struct(b, a):
  return collections.OrderedDict(b=b, a=np.int64(a))


def _trained(x):
  """Sums of both kinds of what clients make, in one pass with a plain sum; and the server's step on one of them."""
  squared = tff.federated_map(tff.tensorflow.computation(lambda v: v * v - 3, np.int64), x)
  remainder = _modular((squared, x), (np.int64(11), np.int64(2**40)))
  halved = tff.federated_map(tff.tensorflow.computation(lambda v: v // 2, np.int64), remainder[0])
  return halved, remainder[1], tff.federated_secure_sum(squared, 10**6), tff.federated_sum(x)


# For each a function of the clients' value, the value's type, and cohorts.
_SUMS = {
  'int32': (lambda x: _modular(x, 7), np.int32, [[], [3], [3, 6, 6], [100, 20, -3], [-1], [-8, -20], [-(2**31)]]),
  'int64': (lambda x: _modular(x, np.int64(7)), np.int64, [[], [3], [100, 20, -3], [-(2**63), 2**63 - 1]]),
  'uint8': (lambda x: _modular(x, np.uint8(100)), np.uint8, [[255], [99, 99]]),
  'large': (lambda x: _modular(x, 2**40 + 1), np.int64, [[2**40] * 3, [-1] * 3]),
  'to the end of the range': (lambda x: _modular(x, 2**63 - 1), np.int64, [[2**62, 2**62 - 1], [-1]]),
  'power of two': (lambda x: _modular(x, 2**62), np.int64, [[2**62 - 1] * 5, [-1] * 5]),
  'negative': (lambda x: _modular(x, -7), np.int32, [[5], [8, -2]]),
  'one': (lambda x: _modular(x, 1), np.int32, [[5]]),
  'computed': (lambda x: _modular(x, tff.tensorflow.computation(lambda: tf.constant(7))()), np.int32, [[5, -6]]),
  'tensor': (lambda x: _modular(x, 7), (np.int32, [3]), [[np.int32([1, -1, 20])] * 3, []]),
  'one for all': (lambda x: _modular(x, 7), (np.int32, (np.int32, [2])), [[(3, np.int32([6, -1]))] * 2]),
  'one for each': (
    lambda x: _modular(x, collections.OrderedDict(b=7, a=np.int64(11))),
    _STRUCT,
    [[], [_struct(-5, [100, -100])] * 2],
  ),
  'nested': (
    lambda x: _modular(x, ((7, [np.int64(11)]), 5)),
    ((np.int32, [np.int64]), (np.int32, [2])),
    [[((-1, [1000]), np.int32([6, -6]))] * 3],
  ),
  'secure_sum': (lambda x: tff.federated_secure_sum(x, 10), np.int32, [[], [3], [3, 10], [-11, 3]]),
  'secure_sum of a struct': (lambda x: tff.federated_secure_sum(x, 300), _STRUCT, [[_struct(-5, [100, -100])] * 2]),
  'bitwidth': (lambda x: tff.federated_secure_sum_bitwidth(x, 4), np.int32, [[], [3], [15, 10], [-11, 3]]),
  'bitwidths': (
    lambda x: tff.federated_secure_sum_bitwidth(x, collections.OrderedDict(b=3, a=7)),
    _STRUCT,
    [[_struct(7, [100, -100])] * 2],
  ),
  'with other steps': (_trained, np.int64, [[], [5], [5, -6, 7, 900]]),
}
# What does not fit into its dtype: the sum, the type, and a cohort.
_WRAPS = {
  'int32': (lambda x: _modular(x, 2**31 - 1), np.int32, [2**31 - 2] * 2),
  'remainders': (lambda x: _modular(x, 2**31 - 1), np.int32, [-1, -1]),
  'int64': (lambda x: _modular(x, 3**39), np.int64, [3**39 - 1] * 3),
  'uint8': (lambda x: _modular(x, np.uint8(200)), np.uint8, [199, 199]),
  'one entry': (lambda x: _modular(x, 2**31 - 1), (np.int32, [2]), [np.int32([0, 2**31 - 2])] * 2),
  'secure_sum': (lambda x: tff.federated_secure_sum(x, 2**62), np.int64, [2**62] * 2),
  'bitwidth': (lambda x: tff.federated_secure_sum_bitwidth(x, 62), np.int64, [2**62 - 1] * 3),
}
_ABOVE = {
  'secure_sum': (lambda x: tff.federated_secure_sum(x, 10), np.int32, [3, 11]),
  'bitwidth': (lambda x: tff.federated_secure_sum_bitwidth(x, 4), np.int32, [15, 16]),
  'one of two': (
    lambda x: tff.federated_secure_sum(x, collections.OrderedDict(b=9, a=90)),
    _STRUCT,
    [_struct(1, [1, 1]), _struct(1, [1, 100])],
  ),
}
_RUNTIMES = {
  'in_process': runtime.RuntimeConfig(device='cpu', num_threads=2),
  'native': runtime.RuntimeConfig('native'),
  'workers': runtime.RuntimeConfig('workers', num_workers=2),
}


def _computation(build, type_spec):
  return tff.federated_computation(build, tff.FederatedType(tff.to_type(type_spec), tff.CLIENTS))


def _results(names=_SUMS):
  found = {}
  for name in names:
    build, type_spec, cohorts = _SUMS[name]
    total = _computation(build, type_spec)
    found[name] = [total(cohort) for cohort in cohorts]
  return found


def _tffs_own():
  # Installed for the block only: its worker ends with it.
  return tff.framework.get_context_stack().install(tff.backends.test.create_sync_test_cpp_execution_context())


# One of each kind of sum, and one with other steps around it: the rest is the same computation in each runtime.
_KINDS = ('nested', 'secure_sum', 'with other steps')
_OTHERS = tuple(name for name in _SUMS if name not in _KINDS)


@pytest.fixture(name='expected', scope='module')
def _expected():
  """A function from names to what TFF's own context gives."""

  @functools.cache
  def results(names):
    with _tffs_own():
      return _results(names)

  return results


@pytest.mark.slow
@pytest.mark.parametrize(
  'kind, names',
  [
    ('in_process', _KINDS),
    pytest.param('in_process', _OTHERS, marks=pytest.mark.thorough),
    pytest.param('native', tuple(_SUMS), marks=pytest.mark.thorough),
  ],
)
def test_results_are_those_of_tffs_own_context(kind, names, expected):
  with runtime.activate(_RUNTIMES[kind]):
    comparison.assert_same(_results(names), expected(names), tolerance=0)


@pytest.mark.thorough
@pytest.mark.slow
def test_workers_and_sections_run_one_by_one_give_the_same(monkeypatch, expected):
  with runtime.activate(_RUNTIMES['workers']):
    comparison.assert_same(_results(_KINDS), expected(_KINDS), tolerance=0)
  monkeypatch.setattr(in_process._Runner, 'joins', False)
  with runtime.activate(_RUNTIMES['in_process']):
    comparison.assert_same(_results(_KINDS), expected(_KINDS), tolerance=0)


def _aggregated(process):
  random, rounds, state = np.random.RandomState(3), [], process.initialize()
  for num_clients in (3, 1):
    values = [random.normal(scale=3.0, size=4).astype(np.float32) for _ in range(num_clients)]
    rounds.append(process.next(state, values, [np.float32(1 + i) for i in range(num_clients)]))
    state = rounds[-1].state
  return rounds


@pytest.fixture(scope='module')
def aggregation():
  """TFF's secure aggregator and two rounds of it: quantiles of the norms bound the next round's values."""
  process = tff.learning.secure_aggregator(zeroing=False).create(
    tff.TensorType(np.float32, [4]), tff.TensorType(np.float32)
  )
  with _tffs_own():
    return process, _aggregated(process)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize('kind', _RUNTIMES)
def test_tffs_secure_aggregator(kind, aggregation):
  process, expected = aggregation
  with runtime.activate(_RUNTIMES[kind]):
    comparison.assert_same(_aggregated(process), expected, tolerance=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize('modulus, cohort', [(7, []), (7, [3]), (7, [3, -6, 20]), (2**40 + 1, [-1, 2**62, -(2**62)])])
def test_a_modular_sum_is_the_remainder_of_the_sum(context, modulus, cohort):
  found = _computation(lambda x: _modular(x, np.int64(modulus)), np.int64)(cohort)
  assert found == sum(cohort) % modulus and found.dtype == np.int64


def test_the_order_of_clients_changes_no_bit(context):
  cohort = [2**40 + 7, -(2**62), 5, 2**61 - 1]
  total = _computation(lambda x: _modular(x, 2**61 - 3), np.int64)
  found = set()
  for num_threads in (1, 2):
    with comparison.threads(context, num_threads):
      found.update(int(total(list(order))) for order in itertools.permutations(cohort))
  assert found == {sum(cohort) % (2**61 - 3)}


@pytest.mark.slow
@pytest.mark.parametrize('name', _WRAPS)
def test_a_sum_that_would_wrap_around_is_refused(context, name):
  build, type_spec, cohort = _WRAPS[name]
  total = _computation(build, type_spec)
  with pytest.raises(tf.errors.InvalidArgumentError, match='left the range of u?int.*would have wrapped around. Take'):
    total(cohort)
  total(cohort[:1])


def test_a_wrap_in_either_part_of_a_cohort_is_kept(context):
  member = tff.FederatedType(np.int32, tff.CLIENTS)
  plain = secure_intrinsics.in_plain(tff.federated_computation(lambda x: _modular(x, 7), member))
  merges = []

  def visit(block):
    if isinstance(block, tff.framework.Call) and getattr(block.function, 'uri', '') == 'federated_aggregate':
      merges.append(block.argument[3])
    return block, False

  tff.framework.transform_postorder(plain.to_building_block(), visit)
  merge = tff.framework.ConcreteComputation.from_building_block(merges[0])
  for wraps in ((1, 0), (0, 1), (2, 3)):
    one, other = (([np.int32(5)], [np.int32(count)]) for count in wraps)
    assert np.asarray(tff.structure.flatten(merge(one, other))).tolist() == [10, sum(wraps)]


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize('kind', [pytest.param('native', marks=pytest.mark.thorough), 'workers'])
def test_workers_refuse_it_too(kind):
  with runtime.activate(_RUNTIMES[kind]):
    for name in ('int64', 'one entry', 'secure_sum'):
      build, type_spec, cohort = _WRAPS[name]
      with pytest.raises(Exception, match='left the range of u?int.*would have wrapped around. Take'):
        _computation(build, type_spec)(cohort)


@pytest.mark.slow
def test_tff_returns_a_wrong_number_instead():
  with _tffs_own():
    for name in ('int32', 'remainders', 'int64'):
      build, type_spec, cohort = _WRAPS[name]
      modulus = 3**39 if name == 'int64' else 2**31 - 1
      assert _computation(build, type_spec)(cohort) != sum(cohort) % modulus


@pytest.mark.slow
@pytest.mark.parametrize('name', _ABOVE)
def test_a_value_above_the_maximum_is_refused(context, name):
  build, type_spec, cohort = _ABOVE[name]
  with pytest.raises(runtime.ClientError, match='^Client 1 .*larger than the maximum.* for the secure sum') as caught:
    _computation(build, type_spec)(cohort)
  assert caught.value.client_index == 1


def test_more_than_62_bits_are_refused(context):
  with pytest.raises(runtime.ClientError, match=r'bitwidth of a secure sum can be at most 62, found \[63\]'):
    _computation(lambda x: tff.federated_secure_sum_bitwidth(x, 63), np.int64)([1])


@pytest.mark.parametrize(
  'kind',
  [pytest.param(kind, marks=(pytest.mark.slow, pytest.mark.thorough)) for kind in ('native', 'workers')]
  + ['in_process'],
)
def test_a_modulus_of_another_dtype_is_refused(kind):  # As in TFF, whose message is about FloorMod.
  with runtime.activate(_RUNTIMES[kind]):
    with pytest.raises(TypeError, match=r'modulus of a secure sum must have the dtype .* int64, found int32: write np'):
      _computation(lambda x: _modular(x, 7), np.int64)([1])


def test_what_clients_send_is_counted(context):
  with runtime.measure_traffic() as measured:
    _computation(lambda x: _modular(x, np.int64(7)), (np.int64, [5]))([np.int64([1, 2, 3, 4, 5])] * 2)
  assert measured.traffic.up_bytes_per_client == 5 * 8


def test_a_computation_without_secure_sums_is_compiled_as_it_is():
  total = _computation(tff.federated_sum, np.int32)
  assert secure_intrinsics.in_plain(total) is total
