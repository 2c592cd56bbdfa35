"""Plain bodies for TFF's secure sums: with them a simulation has the results of a secure protocol, without its secrecy.

`with_plain_bodies` replaces `tff.backends.mapreduce.federated_secure_modular_sum`, `tff.federated_secure_sum` and
`tff.federated_secure_sum_bitwidth` by a `federated_aggregate`, which every runtime here can run. The results are those
of TFF's own context for tests (`tff.backends.test.create_sync_test_cpp_execution_context`):

* A modular sum is Σ value mod modulus, in [0, modulus). Each client's value counts as value mod modulus, which may be
  negative or too large before. So to wrap around the modulus is what the caller asks for, and never an error.
* A plain sum has a largest value, max_input or 2^bitwidth - 1, and a client's value above it is an error. Negative
  values are summed as they are, as in TFF.

There is one difference. Before the modulus is taken, clients' values are added in their own dtype. If that sum leaves
the range of the dtype, TFF goes on with a wrong number, and here it is an error. With a power of two as the modulus the
result is right nevertheless, and it is returned: such a modulus divides the number of integers of the dtype.
"""

from collections.abc import Sequence
from typing import Callable

import numpy as np
import numpy.typing as npt
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.common import array_types

# A tensor, or a structure of them as TFF has it.
_Structure = array_types.Structure
# The sum of each tensor of a value, and an int32 scalar: how often it left its range.
_Sum = tuple[Sequence[tf.Tensor], Sequence[tf.Tensor]]
# TFF's limit: of the 63 bits of an int64, one at least is for the sum of two values.
_MOST_BITS = 62


def with_plain_bodies(block: tff.framework.ComputationBuildingBlock) -> tff.framework.ComputationBuildingBlock:
  """`block`, in which each secure sum is a `federated_aggregate`.

  Raises:
    TypeError: If the modulus of a sum has another dtype than its summand.
  """

  def visit(inner: tff.framework.ComputationBuildingBlock) -> tuple[tff.framework.ComputationBuildingBlock, bool]:
    if isinstance(inner, tff.framework.Intrinsic) and inner.uri in _BODIES:
      return _BODIES[inner.uri](inner.type_signature.parameter).to_building_block(), True
    return inner, False

  return tff.framework.transform_postorder(block, visit)[0]


def in_plain(comp: tff.Computation) -> tff.Computation:
  """`comp` with plain bodies in the place of its secure sums; `comp` itself if it has none."""
  block = comp.to_building_block()
  plain = with_plain_bodies(block)
  if plain is block:
    return comp
  concrete = tff.framework.ConcreteComputation
  return concrete.with_type(concrete.from_building_block(plain), comp.type_signature)  # It has Python's containers.


def _modular_sum(parameter: tff.StructType) -> tff.Computation:
  value_type, modulus_type = parameter
  for summand, modulus in zip(_tensors(value_type.member), _tensors(modulus_type)):
    if summand.dtype != modulus.dtype:
      raise TypeError(
        f'The modulus of a secure sum must have the dtype of what it sums, {_name(summand.dtype)}, found '
        f'{_name(modulus.dtype)}: write np.{_name(summand.dtype)}(…) around the modulus, which must fit it.'
      )

  @tff.federated_computation(parameter)
  def body(argument: tff.Value) -> tff.Value:
    summed = _sum(argument[0], value_type.member)

    @tff.tensorflow.computation(summed.type_signature.member, modulus_type)
    def reduced(summed: _Sum, modulus: _Structure) -> _Structure:
      total, wraps = summed
      # A power of two has no bit in common with the number below it, and no other positive number is so.
      wrong = [tf.where(tf.equal(tf.bitwise.bitwise_and(m, m - 1), 0), 0, w) for w, m in zip(wraps, _tensors(modulus))]
      with tf.control_dependencies(_no_wraps(wrong, value_type.member, 'a smaller modulus')):
        return _packed(value_type.member, [tf.math.floormod(t, m) for t, m in zip(total, _tensors(modulus))])

    return tff.federated_map(reduced, (summed, tff.federated_value(argument[1], tff.SERVER)))

  return body


def _sum_up_to(parameter: tff.StructType, largest_of: Callable[[tf.Tensor], tf.Tensor]) -> tff.Computation:
  """A sum of values of which none is above `largest_of` the tensor that comes with it."""
  value_type, limit_type = parameter

  @tff.tensorflow.computation(value_type.member, limit_type)
  def checked(value: _Structure, limit: _Structure) -> _Structure:
    checks = [
      tf.debugging.assert_less_equal(
        tf.reduce_max(tf.cast(one, tf.int64)),
        largest_of(own_limit),
        message='A value is larger than the maximum that was specified for the secure sum. The largest entry:',
      )
      for one, own_limit in zip(_tensors(value), _tensors(limit))
    ]
    with tf.control_dependencies(checks):
      return _packed(value_type.member, [tf.identity(one) for one in _tensors(value)])

  def total(summed: _Sum) -> _Structure:
    with tf.control_dependencies(_no_wraps(summed[1], value_type.member, 'smaller values')):
      return _packed(value_type.member, [tf.identity(one) for one in summed[0]])

  @tff.federated_computation(parameter)
  def body(argument: tff.Value) -> tff.Value:
    # At the clients: the server of a secure sum never sees the value that is too large.
    limit = tff.federated_value(argument[1], tff.CLIENTS)
    return _sum(tff.federated_map(checked, (argument[0], limit)), value_type.member, total)

  return body


def _largest_of_bitwidth(bits: tf.Tensor) -> tf.Tensor:
  message = f'The bitwidth of a secure sum can be at most {_MOST_BITS}, found'
  with tf.control_dependencies([tf.debugging.assert_less_equal(bits, _MOST_BITS, message=message)]):
    return tf.pow(tf.constant(2, tf.int64), tf.cast(bits, tf.int64)) - 1


_BODIES: dict[str, Callable[[tff.StructType], tff.Computation]] = {
  'federated_secure_modular_sum': _modular_sum,
  'federated_secure_sum': lambda parameter: _sum_up_to(parameter, lambda limit: tf.cast(limit, tf.int64)),
  'federated_secure_sum_bitwidth': lambda parameter: _sum_up_to(parameter, _largest_of_bitwidth),
}


def _sum(
  values: tff.Value, member: tff.Type, report: Callable[[_Sum], _Structure] = lambda summed: summed
) -> tff.Value:
  """The sum of clients' values in their own dtypes, and how often it left their range.

  Returns:
    At the server, `report` of `<total, wraps>`: of each tensor of a value the sum, and an int32 scalar.
  """

  @tff.tensorflow.computation
  def zero() -> _Sum:
    return [tf.zeros(one.shape, one.dtype) for one in _tensors(member)], [tf.constant(0) for _ in _tensors(member)]

  sum_type = zero.type_signature.result

  @tff.tensorflow.computation(sum_type, member)
  def add(summed: _Sum, value: _Structure) -> _Sum:
    return _added(summed, _tensors(value), summed[1])

  @tff.tensorflow.computation(sum_type, sum_type)
  def merge(a: _Sum, b: _Sum) -> _Sum:
    return _added(a, b[0], [x + y for x, y in zip(a[1], b[1])])

  # `merge` is for TFF's workers, which sum parts of a cohort.
  return tff.federated_aggregate(values, zero(), add, merge, tff.tensorflow.computation(report, sum_type))


def _added(summed: _Sum, value: Sequence[tf.Tensor], wraps: Sequence[tf.Tensor]) -> _Sum:
  before, after, totals = summed[0], [], []
  for total, one, count in zip(before, value, wraps):
    after.append(total + one)
    # A sum is below its first term if and only if the second term is negative.
    wrapped = tf.not_equal(after[-1] < total, one < 0)
    totals.append(count + tf.math.count_nonzero(wrapped, dtype=tf.int32))
  return after, totals


def _no_wraps(wraps: Sequence[tf.Tensor], member: tff.Type, advice: str) -> list[tf.Operation]:
  return [
    tf.debugging.assert_less(
      count,
      1,
      message=(
        f'A secure sum of tensors {one} left the range of {_name(one.dtype)}, {np.iinfo(one.dtype).min} to '
        f'{np.iinfo(one.dtype).max}, and would have wrapped around. Take {advice}, fewer clients or a wider dtype. '
        'Additions that left the range:'
      ),
    )
    for count, one in zip(wraps, _tensors(member))
  ]


def _tensors(structure: _Structure) -> list[tf.Tensor]:
  """The leaves of a value, a modulus or a type, in the order of the type."""
  return tff.structure.flatten(structure)


def _packed(member: tff.Type, tensors: Sequence[tf.Tensor]) -> _Structure:
  return tff.structure.pack_sequence_as(member, tensors) if isinstance(member, tff.StructType) else tensors[0]


def _name(dtype: npt.DTypeLike) -> str:
  return np.dtype(dtype).name
