"""All clients' reports at the server, one by one.

`DistributeAggregateForm` of TFF 0.87 takes no `federated_aggregate`, whose arguments are functions, but it takes plain
sums. So `summed_by_id` gives each client a place of its own in a sum. In a large population a client would send N
numbers for each of its own: there, reports are joined all the same.
"""

import collections

import tensorflow as tf
import tensorflow_federated as tff

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
  def zero():
    return tf.nest.map_structure(lambda spec: tf.zeros([0, *spec.shape[1:]], spec.dtype), specs)

  @tff.tensorflow.computation(reports_type, reports.type_signature.member)
  def accumulate(joined, one):
    return tf.nest.map_structure(lambda a, b: tf.concat([a, b[tf.newaxis]], axis=0), joined, one)

  @tff.tensorflow.computation(reports_type, reports_type)
  def merge(a, b):
    return tf.nest.map_structure(lambda x, y: tf.concat([x, y], axis=0), a, b)

  identity = tff.tensorflow.computation(lambda joined: joined, reports_type)
  return tff.federated_aggregate(reports, zero(), accumulate, merge, identity)


def collected_by_id(reports: tff.Value) -> tff.Value:
  """As `collected`, for reports with an int64 `client_id`, in the order of the ids."""
  joined = collected(reports)

  @tff.tensorflow.computation(joined.type_signature.member)
  def in_order(found):
    order = tf.argsort(found['client_id'], stable=True)
    return tf.nest.map_structure(lambda values: tf.gather(values, order), found)

  return tff.federated_map(in_order, joined)


def summed_by_id(reports: tff.Value, num_clients: int) -> tff.Value:
  """As `collected_by_id`, for reports of scalars, by a sum if the population is small.

  An id outside [0, num_clients) becomes -1, and one that several clients have appears as often, so that both are found.

  Args:
    reports: A struct of scalars at the clients, with `client_id`.
    num_clients: N.
  """
  report_type = reports.type_signature.member
  if num_clients > _LARGEST_SUMMED:
    return collected_by_id(reports)

  @tff.tensorflow.computation(report_type)
  def at_own_place(report):
    client_id = report['client_id']
    is_known = tf.logical_and(client_id >= 0, client_id < num_clients)
    # The last place is that of ids that nobody has.
    place = tf.reshape(tf.where(is_known, client_id, num_clients), [1, 1])
    spread = lambda value: tf.scatter_nd(place, tf.reshape(value, [1]), [tf.constant(num_clients + 1, tf.int64)])
    one = tf.constant(1, tf.int32)
    return collections.OrderedDict((name, spread(one if name == 'client_id' else report[name])) for name in report)

  total = tff.federated_sum(tff.federated_map(at_own_place, reports))

  @tff.tensorflow.computation(total.type_signature.member)
  def of_those_who_came(summed):
    places = tf.repeat(tf.range(num_clients + 1, dtype=tf.int64), summed['client_id'])
    ids = tf.where(places < num_clients, places, -1)
    return collections.OrderedDict(
      (name, ids if name == 'client_id' else tf.gather(summed[name], places)) for name in summed
    )

  return tff.federated_map(of_those_who_came, total)
