"""How clients' values reach the server: their reports one by one, and the exact sum of their integers.

`DistributeAggregateForm` of TFF 0.87 takes no `federated_aggregate`, whose arguments are functions, but it takes plain
sums. So `summed_by_id` gives each client a place of its own in a sum. In a large population a client would send N
numbers for each of its own: there, reports are joined all the same.
"""

import collections
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.mechanisms import mechanism

# Up to this population reports are summed.
_LARGEST_SUMMED = 10_000


def collected_type(report_type: tff.Type) -> tff.Type:
  """The type of `collected`'s result: for each tensor of a report, an array over the clients."""
  tensors = tff.structure.to_elements(report_type)
  return tff.to_type(collections.OrderedDict((name, (one.dtype, [None, *one.shape])) for name, one in tensors))


def collected(reports: tff.Value) -> tff.Value:
  """All clients' reports, in any order.

  Args:
    reports: A struct of tensors at the clients.

  Returns:
    At the server, the same struct with each shape S as [M, *S].
  """
  reports_type = collected_type(reports.type_signature.member)
  specs = tff.types.type_to_tf_tensor_specs(reports_type)

  @tff.tensorflow.computation
  def zero() -> array_types.Structure:
    return tf.nest.map_structure(lambda spec: tf.zeros([0, *spec.shape[1:]], spec.dtype), specs)

  @tff.tensorflow.computation(reports_type, reports.type_signature.member)
  def accumulate(joined: array_types.Structure, one: array_types.Structure) -> array_types.Structure:
    return tf.nest.map_structure(lambda a, b: tf.concat([a, b[tf.newaxis]], axis=0), joined, one)

  @tff.tensorflow.computation(reports_type, reports_type)
  def merge(a: array_types.Structure, b: array_types.Structure) -> array_types.Structure:
    return tf.nest.map_structure(lambda x, y: tf.concat([x, y], axis=0), a, b)

  identity = tff.tensorflow.computation(lambda joined: joined, reports_type)
  return tff.federated_aggregate(reports, zero(), accumulate, merge, identity)


def collected_by_id(reports: tff.Value) -> tff.Value:
  """The reports of all clients at the server, in the order of their int64 `client_id`."""
  joined = collected(reports)

  @tff.tensorflow.computation(joined.type_signature.member)
  def in_order(reports: array_types.Structure) -> array_types.Structure:
    order = tf.argsort(reports['client_id'], stable=True)
    return tf.nest.map_structure(lambda values: tf.gather(values, order), reports)

  return tff.federated_map(in_order, joined)


def summed_by_id(reports: tff.Value, num_clients: int) -> tff.Value:
  """The result of `collected_by_id`, for reports of scalars. In a small population a sum makes it.

  An id that several clients have appears as often, and so does -1, which stands for no id.

  Args:
    reports: A struct of scalars at the clients, with `client_id`.
    num_clients: N.

  Raises:
    tf.errors.InvalidArgumentError: When run, if another id is outside [0, num_clients): where reports are summed, the
      server cannot see it. The in-process runtime raises a `runtime.ClientError`.
  """
  report_type = reports.type_signature.member
  if num_clients > _LARGEST_SUMMED:
    return collected_by_id(reports)

  @tff.tensorflow.computation(report_type)
  def at_own_place(report: array_types.Structure) -> array_types.Structure:
    client_id = report['client_id']
    message = f'Client ids must lie in [0, {num_clients}), the configured population; found'
    in_range = [
      tf.debugging.assert_greater_equal(client_id, np.int64(-1), message),
      tf.debugging.assert_less(client_id, np.int64(num_clients), message),
    ]
    with tf.control_dependencies(in_range):
      # The last place is for those without an id.
      place = tf.reshape(tf.where(client_id >= 0, client_id, num_clients), [1, 1])
    size = [tf.constant(num_clients + 1, tf.int64)]
    placed = collections.OrderedDict()
    for name in report:
      # Ids become counts: how many reports a place has.
      value = tf.constant(1, tf.int32) if name == 'client_id' else report[name]
      placed[name] = tf.scatter_nd(place, tf.reshape(value, [1]), size)
    return placed

  total = tff.federated_sum(tff.federated_map(at_own_place, reports))

  @tff.tensorflow.computation(total.type_signature.member)
  def select_present(summed: array_types.Structure) -> array_types.Structure:
    places = tf.repeat(tf.range(num_clients + 1, dtype=tf.int64), summed['client_id'])
    ids = tf.where(places < num_clients, places, -1)
    present = collections.OrderedDict()
    for name in summed:
      present[name] = ids if name == 'client_id' else tf.gather(summed[name], places)
    return present

  return tff.federated_map(select_present, total)


def secure_sum(values: tff.Value, bounds: Sequence[int], max_clients: int) -> tff.Value:
  """Sums clients' tensors with `tff.backends.mapreduce.federated_secure_modular_sum`, and nothing else leaves clients.

      Σ_i v_i = recentred((Σ_i v_i mod m) mod m),  m = 2·n·b + 1,  |v_i| ≤ b,  at most n clients

  All sums are in [-n·b, n·b], which has m integers, so each remainder belongs to one sum. The intrinsic itself cannot
  refuse a sum that wraps around: it takes values mod m by definition, and a caller's -1 is its m - 1. Here the bounds
  say what is meant, so whatever would wrap around is an error, and never another sum.

  Call it where a federated computation is made. The number of clients goes into the same secure sum, to be checked.

  Args:
    values: At the clients a struct of int64 tensors.
    bounds: For each tensor the largest absolute value that a client's entries may have, at least 0. Everyone may know
      it.
    max_clients: The size of the largest cohort, n, at least 1.

  Returns:
    At the server the list of the sums, int64 tensors in the struct's order. They are exact, and do not depend on the
    order of the clients. Without clients they are 0.

  Raises:
    TypeError: If `values` is not a struct of int64 tensors at the clients.
    ValueError: If a number is not such an integer, there is not one bound for each tensor, or a bound is so large that
      the sum of n clients' remainders, at most 2·n²·b, would not fit into an int64. TFF adds them as int64 before it
      takes the modulus.
    tf.errors.InvalidArgumentError: When run, if an entry exceeds its bound or the cohort is larger than `max_clients`.
      The in-process runtime raises a `runtime.ClientError` for the former, which names the client.
  """
  tensors = _tensor_types(values)
  max_clients = int(checks.integer('max_clients', max_clients, at_least=1))
  largest = np.iinfo(np.int64).max // (2 * max_clients**2)
  if len(bounds) != len(tensors):
    raise ValueError(f'bounds must have one number for each of the {len(tensors)} tensors, found {len(bounds)}.')
  for i, bound in enumerate(bounds):
    checks.integer(f'bounds[{i}]', bound, at_least=0)
    if bound > largest:
      raise ValueError(
        f'bounds[{i}] is {bound}, but with {max_clients} clients the secure sum fits into an int64 up to a bound of '
        f'{largest}, which is (2^63 - 1) / (2·{max_clients}²). Take coarser units or fewer clients.'
      )
  halves = [max_clients * int(bound) for bound in bounds]
  moduli = [2 * half + 1 for half in halves]

  @tff.tensorflow.computation(values.type_signature.member)
  def bounded(value: array_types.Structure) -> list[tf.Tensor]:
    leaves = tff.structure.flatten(tff.structure.from_container(value))
    in_bounds = [check for i, (one, b) in enumerate(zip(leaves, bounds)) for check in _bound_checks(i, one, b)]
    with tf.control_dependencies(in_bounds):
      return [*(tf.identity(one) for one in leaves), tf.constant(1, tf.int64)]

  summed = tff.backends.mapreduce.federated_secure_modular_sum(
    tff.federated_map(bounded, values), [np.int64(modulus) for modulus in [*moduli, mechanism.COUNT_MODULUS]]
  )

  @tff.tensorflow.computation(summed.type_signature.member)
  def recentred(remainders: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    *remainders, count = remainders
    message = f'A secure sum for at most {max_clients} clients was given more. Raise max_clients; number of clients:'
    with tf.control_dependencies([tf.debugging.assert_less_equal(count, np.int64(max_clients), message)]):
      return [tf.where(one > half, one - m, one) for one, half, m in zip(remainders, halves, moduli)]

  return tff.federated_map(recentred, summed)


def _tensor_types(values: tff.Value) -> list[tff.TensorType]:
  type_spec = getattr(values, 'type_signature', None)
  if isinstance(type_spec, tff.FederatedType) and type_spec.placement is tff.CLIENTS:
    tensors = list(type_spec.member) if isinstance(type_spec.member, tff.StructType) else []
    if tensors and all(isinstance(one, tff.TensorType) and one.dtype == np.int64 for one in tensors):
      return tensors
  raise TypeError(f'Expected a struct of int64 tensors at the clients to sum securely, found {type_spec or values}.')


def _bound_checks(index: int, tensor: tf.Tensor, bound: int) -> list[tf.Operation]:
  # Not by way of tf.abs, which leaves the smallest int64 negative.
  message = f'An entry of tensor {index} of a secure sum must lie in [{-bound}, {bound}], its bound; found'
  return [
    tf.debugging.assert_less_equal(tf.reduce_max(tensor), np.int64(bound), message),
    tf.debugging.assert_greater_equal(tf.reduce_min(tensor), np.int64(-bound), message),
  ]
