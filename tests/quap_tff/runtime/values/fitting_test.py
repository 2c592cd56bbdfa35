"""Arguments that do not fit their type are refused as TFF refuses them, and computations that cannot run say why."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff import runtime

pytestmark = pytest.mark.usefixtures('context')

_FIT = (
  (np.int32, 2**31 - 1),
  (np.int32, -(2**31)),
  (np.uint64, 2**64 - 1),
  (np.float32, float('inf')),
  (np.float32, float('nan')),
  (np.float32, -3e38),
  (np.float32, 0.1),
  (np.bool_, np.True_),
  (np.complex64, 1j),
  (np.int32, np.int8(1)),
  (np.int32, np.uint16(1)),
  (np.float64, np.float32(1)),
  (np.int32, tf.constant(1, tf.int16)),
  (np.str_, 'a'),
  (np.str_, b'a'),
  ((np.float32, [2]), [0.5, 1.5]),
  ((np.int32, [2]), np.array([1, 2], np.int16)),
  ((np.int32, [1, 2]), [[1, 2]]),
  ((np.str_, [2]), np.array(['a', 'b'])),
)
_DO_NOT_FIT = (
  (np.int32, 2**32),
  (np.int32, 2**31),
  (np.int32, -(2**31) - 1),
  (np.uint8, 300),
  (np.uint8, -1),
  (np.uint64, 2**64),
  (np.int64, 2**63),
  (np.int32, True),
  (np.int32, 1.0),
  (np.int32, '1'),
  (np.int32, [1, 2]),
  (np.float32, 1),
  (np.float32, True),
  (np.float32, 1e39),
  (np.float16, 1e5),
  (np.bool_, 1),
  (np.complex64, 1.0),
  (np.str_, 1),
  (np.int32, np.int64(1)),
  (np.uint8, np.int8(1)),
  (np.float32, np.float64(1)),
  (np.float32, np.int32(1)),
  (np.int32, np.bool_(True)),
  (np.int32, tf.constant(1, tf.int64)),
  ((np.int32, [2]), [1, 2**31]),
  ((np.int32, [2]), [1, True]),
  ((np.float32, [2]), [float('nan'), 1e39]),
  ((np.float32, [2]), [0.5, 1]),
  ((np.int32, [2]), np.array([1, 2])),
  ((np.int32, [1, 2]), [[1, 2**31]]),
  ((np.str_, [2]), ['a', 1]),
  ((np.int32, [2]), [1]),
)


def _outcome(type_spec, argument):
  try:
    result = tff.tensorflow.computation(lambda x: x, type_spec)(argument)
  except TypeError:
    return 'TypeError'
  return repr((getattr(result, 'dtype', None), result))


@pytest.mark.slow
def test_what_fits_is_what_fits_in_tff():
  outcomes = {}
  for kind in ('in_process', 'native'):
    with runtime.activate(kind):
      outcomes[kind] = [(argument, _outcome(t, argument)) for t, argument in _FIT + _DO_NOT_FIT]
  assert outcomes['in_process'] == outcomes['native']
  assert [argument for argument, outcome in outcomes['native'] if outcome == 'TypeError'] == [
    argument for _, argument in _DO_NOT_FIT
  ]


@pytest.mark.parametrize('argument', [[2**32], [1, 2**31], runtime.client_values])
def test_sums_of_clients_integers_do_not_wrap(argument):
  total = tff.federated_computation(tff.federated_sum, tff.FederatedType(np.int32, tff.CLIENTS))
  if argument is runtime.client_values:
    argument = runtime.client_values(lambda i: 2**31 + i, [0, 1])
  with pytest.raises(TypeError, match=r'int32 for argument\[[01]\], found \d+, which is out of range \(-2147483648 to'):
    total(argument)


@pytest.mark.parametrize(
  'elements, found', [([1, 300], '300'), ([1, -1], '-1'), ([np.int64(1), 1], '1 of dtype int64')]
)
def test_elements_of_a_list_for_a_sequence_do_not_wrap(elements, found):  # TFF wraps them.
  last = tff.tensorflow.computation(lambda ds: ds.reduce(np.uint8(0), lambda _, x: x), tff.SequenceType(np.uint8))
  with pytest.raises(TypeError, match=rf'uint8 for argument\[[01]\], found {found}'):
    last(elements)


def test_a_message_says_where_in_the_argument():
  client = collections.OrderedDict(id=tff.SequenceType(np.int64), pair=(np.float32, (np.int8, [2])))

  @tff.federated_computation(
    tff.FederatedType(np.float32, tff.SERVER), tff.FederatedType(tff.to_type(client), tff.CLIENTS)
  )
  def first(state, clients):
    return state

  good = collections.OrderedDict(id=[5], pair=(0.5, [1, 2]))
  assert first(0.5, [good, good]) == 0.5
  for bad, place in (
    ({'id': [2**63], 'pair': (0.5, [1, 2])}, r'int64 for argument\.clients\[1\]\.id\[0\], found 9223372036854775808'),
    (
      {'id': [5], 'pair': (0.5, [1, 200])},
      r'argument\.clients\[1\]\.pair\[1\]\[1\], found 200, which is out of range ' r'\(-128 to 127\)\.',
    ),
    ({'id': [5], 'pair': (1, [1, 2])}, r'float32 for argument\.clients\[1\]\.pair\[0\], found 1 \(int\)'),
    ({'id': [5], 'pair': (0.5,)}, r'2 elements .* for argument\.clients\[1\]\.pair, found 1'),
    ({'id': 5, 'pair': (0.5, [1, 2])}, r'argument\.clients\[1\]\.id, a sequence of type int64\*, found a int'),
  ):
    with pytest.raises(TypeError, match=place):
      first(0.5, [good, bad])
  with pytest.raises(TypeError, match=r'float32 for argument\.state, found 1 \(int\)'):
    first(1, [good])


def _takes_a_function():
  increment = tff.tensorflow.computation(lambda x: x + 1, np.int32)
  return tff.federated_computation(lambda f, x: f(x), tff.FunctionType(np.int32, np.int32), np.int32)(increment, 3)


def _returns_a_function():
  increment = tff.tensorflow.computation(lambda x: x + 1, np.int32)
  return tff.federated_computation(lambda: increment)()


def _secure_select():
  take = tff.tensorflow.computation(lambda table, key: table[key], [(np.int32, [2]), np.int32])

  @tff.federated_computation(
    tff.FederatedType((np.int32, [1]), tff.CLIENTS), tff.FederatedType((np.int32, [2]), tff.SERVER)
  )
  def select(keys, table):
    return tff.federated_secure_select(keys, tff.federated_value(2, tff.SERVER), table, take)

  return select([np.int32([1])], np.int32([3, 4]))


def _ragged_result():
  return tff.tensorflow.computation(
    lambda x: tf.RaggedTensor.from_row_lengths(x, [1, 2]), tff.TensorType(np.int32, [3])
  )([1, 2, 3])


def _sparse_result():
  return tff.tensorflow.computation(lambda x: tf.sparse.from_dense(x), tff.TensorType(np.int32, [3]))([1, 0, 3])


@pytest.mark.parametrize(
  'call, message',
  [
    (_takes_a_function, r'takes no functions as arguments, and argument\.f is of type \(int32 -> int32\).*"native"'),
    (_returns_a_function, r'returns no functions, and a result is of type \(int32 -> int32\)'),
    (_secure_select, 'no intrinsic .federated_secure_select.*It runs only under tff.backends.test'),
    (_ragged_result, 'returns no RaggedTensor. Return its parts, or a dense tensor'),
    (_sparse_result, 'returns no SparseTensor. Return its parts, or a dense tensor'),
  ],
)
def test_what_cannot_run_is_a_clear_error(call, message):
  with pytest.raises(runtime.UnsupportedComputationError, match=message):
    call()


def test_jax_is_refused():
  doubled = tff.jax.computation(lambda x: x + x, np.float32)
  with pytest.raises(runtime.UnsupportedComputationError, match='runs TensorFlow only.*tff.jax.computation'):
    doubled(np.float32(2))


@pytest.mark.parametrize('value', [tf.ragged.constant([[1], [2, 3]]), tf.sparse.from_dense([1, 0, 3])])
def test_ragged_and_sparse_arguments_are_refused(value):
  with pytest.raises(TypeError, match=r'Expected a value of dtype int32 for argument, found .*(Ragged|Sparse)Tensor'):
    tff.tensorflow.computation(lambda x: x, tff.TensorType(np.int32, [None]))(value)


def test_ragged_and_sparse_tensors_work_inside_a_section():
  @tff.tensorflow.computation(tff.TensorType(np.int32, [3]))
  def inside(x):
    return tf.reduce_sum(tf.RaggedTensor.from_row_lengths(x, [1, 2])), tf.sparse.reduce_sum(tf.sparse.from_dense(x))

  assert inside([1, 2, 3]) == (6, 6)
