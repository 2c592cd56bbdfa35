"""Client ids on their way to the aggregator: from the client's data, by way of the update's weight.

TFF takes only sequences as client data, so an id travels as a sequence of one: `<client_id=int64*, examples=D*>`. The
client work passes it on in the weight of the update. That is how an aggregator learns whose update it has.
"""

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.common import array_types
from quap_tff.training import client_update

_ADVICE = (
  'Tip: the builders of tff.learning.algorithms pass a plain number as the weight. Wrap the client work in '
  'client_ids.with_client_ids and build the process with tff.learning.templates.compose_learning_process, or use '
  'quap_tff.Plan.build_process.'
)


def with_ids(
  cohort: Iterable[int], datasets: Union[Mapping[int, Any], Sequence[Any]]
) -> 'list[collections.OrderedDict[str, Any]]':
  """The clients' data of a round, for the process of a plan: `<client_id=int64*, examples=D*>` for each.

  Args:
    cohort: int[M], the ids of those who take part.
    datasets: A `tf.data.Dataset`, or a list of its elements, by id. A list of datasets has the ids 0, 1, ….
  """
  ids = [int(client) for client in cohort]
  return [collections.OrderedDict(client_id=[np.int64(i)], examples=datasets[i]) for i in ids]


def with_client_ids(work: tff.learning.templates.ClientWorkProcess) -> tff.learning.templates.ClientWorkProcess:
  """Any client work, with ids for QuAP-FL's aggregators.

      work = client_ids.with_client_ids(tff.learning.templates.build_model_delta_client_work(…))
      result_type = work.next.type_signature.result.result.member
      process = tff.learning.templates.compose_learning_process(
          initial_weights, distributor, work,
          aggregator.create(result_type.update, result_type.update_weight), finalizer)

  Args:
    work: For client data of some type D.

  Returns:
    The same work for client data `<client_id=int64*, examples=D>`. The weight of its updates is
    `<client_id=int64, weight=W>`, with W the weight that `work` gives. An id sequence that does not hold exactly one id
    becomes the id -1, which the aggregators refuse.

  Raises:
    TypeError: If `work` is not client work, or its clients have ids already.
  """
  if not isinstance(work, tff.learning.templates.ClientWorkProcess):
    raise TypeError(
      f'work must be a tff.learning.templates.ClientWorkProcess, found {type(work).__name__}. Functions such as '
      'tff.learning.templates.build_model_delta_client_work return one.'
    )
  state_type, weights_type, examples_type = work.next.type_signature.parameter
  if isinstance(examples_type.member, tff.StructType) and hasattr(examples_type.member, 'client_id'):
    raise TypeError(
      f'The client data of this work have ids already: {examples_type.member}. Use the work without '
      'client_ids.with_client_ids, like the work of client_work.build_client_work.'
    )
  own_type = tff.to_type(collections.OrderedDict(client_id=tff.SequenceType(np.int64), examples=examples_type.member))
  result_type = work.next.type_signature.result.result.member

  read_id = tff.tensorflow.computation(client_update.read_client_id, own_type.client_id)

  @tff.tensorflow.computation(result_type, np.int64)
  def with_id(result: tff.learning.templates.ClientResult, client_id: tf.Tensor) -> tff.learning.templates.ClientResult:
    weight = collections.OrderedDict(client_id=client_id, weight=result.update_weight)
    return tff.learning.templates.ClientResult(update=result.update, update_weight=weight)

  @tff.federated_computation(state_type, weights_type, tff.FederatedType(own_type, tff.CLIENTS))
  def next_fn(state: tff.Value, weights: tff.Value, data: tff.Value) -> tff.templates.MeasuredProcessOutput:
    output = work.next(state, weights, data.examples)
    result = tff.federated_map(with_id, (output.result, tff.federated_map(read_id, data.client_id)))
    return tff.templates.MeasuredProcessOutput(output.state, result, output.measurements)

  return tff.learning.templates.ClientWorkProcess(work.initialize, next_fn)


def own_value(ids: tf.Tensor, values: tf.Tensor, client_id: tf.Tensor) -> tf.Tensor:
  """The value of one client, a scalar of the dtype of `values`; 0 if its id is not in `ids`.

  Args:
    ids: int64[M], distinct.
    values: A float tensor of shape [M], the clients' values in the order of `ids`.
    client_id: An int64 scalar.
  """
  return tf.reduce_sum(tf.where(tf.equal(ids, client_id), values, tf.zeros_like(values)))


def reader(weight_type: tff.Type) -> Callable[[array_types.Structure], tf.Tensor]:
  """A function that reads the client's id out of a weight of the given type.

  Raises:
    TypeError: If there is none in it.
  """
  id_type, read = weight_type, lambda weight: weight
  if isinstance(weight_type, tff.StructType):
    if not hasattr(weight_type, 'client_id'):
      raise TypeError(
        f"The weight of an update must carry the client's id as `client_id`, found the weight type {weight_type}.\n"
        f'{_ADVICE}'
      )
    id_type, read = weight_type.client_id, lambda weight: weight['client_id']
  is_id = isinstance(id_type, tff.TensorType) and np.issubdtype(id_type.dtype, np.integer) and not id_type.shape
  if not is_id:
    raise TypeError(
      f'The weight of an update must say which client it comes from: an integer scalar, or a struct with one as '
      f'`client_id`. Found the type {id_type}.\n{_ADVICE}'
    )
  return read
