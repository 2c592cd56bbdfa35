"""Client work as a TFF `ClientWorkProcess` that reports client ids, as `client_ids` says: local training, or none.

An id is read before the training, so that an aggregator can ask for the ids first.
"""

import collections
from typing import cast, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.common import array_types
from quap_tff.common.numbers import seeds
from quap_tff.training import client_update
from quap_tff.training import extension as extensions
from quap_tff.training import model_functions

ClientWorkConfig = client_update.ClientWorkConfig


def client_data_type(
  input_spec: array_types.StructureSpec, with_absent: bool = False, with_answers: bool = False
) -> tff.StructWithPythonType:
  """The type of one client's data, `<client_id=int64*, examples=D*>`.

  Args:
    input_spec: D, a batch: a structure of `tf.TensorSpec`s whose first dimension is unknown.
    with_absent: Whether there is also `absent=int64*`, before the examples.
    with_answers: Whether there is also `answer`, before the examples: a sequence of one answer of the client's guard.

  Raises:
    ValueError: If a leaf of `input_spec` is not a dense tensor, or has a fixed first dimension.
  """
  for leaf in tf.nest.flatten(input_spec):
    if not isinstance(leaf, tf.TensorSpec) or not leaf.shape.rank or leaf.shape[0] is not None:
      raise ValueError(
        f'Expected an input_spec of dense tensors with a first dimension of None, found {leaf}.\nTip: mini-batches'
        ' are cut by the client work itself, and the last one of an epoch is smaller than the others.'
      )
  examples = tff.types.tensorflow_to_type(input_spec)
  return _data_type(with_absent=with_absent, with_answers=with_answers, examples=examples)


def _data_type(*, with_absent: bool = False, with_answers: bool, **brought: tff.Type) -> tff.StructWithPythonType:
  """The type of one client's data, whose last part is what the client itself brings."""
  parts = collections.OrderedDict(client_id=np.int64)
  if with_absent:
    parts['absent'] = np.int64
  if with_answers:
    parts['answer'] = tff.types.tensorflow_to_type(client_update.answer_spec())
  parts.update(brought)
  return tff.to_type(collections.OrderedDict((name, tff.SequenceType(one)) for name, one in parts.items()))


def build_update_work(
  weights_type: tff.StructWithPythonType, with_answers: bool = False
) -> tff.learning.templates.ClientWorkProcess:
  """Client work without training: clients bring their updates, which somebody else's program has computed.

  The state is empty, and so are the measurements. One client's data are `<client_id=int64*, update=U*>`, where U has
  the tensors of the trainable weights in order: w_global - w_local. An update sequence that does not hold exactly one
  becomes a zero update. An update that is not finite is passed on unchanged.

  Args:
    weights_type: The type of the model's weights, a `tff.learning.models.ModelWeights`.
    with_answers: See `build_client_work`.
  """
  trainable = weights_type.trainable
  specs = tuple(tf.nest.flatten(tff.types.type_to_tf_tensor_specs(trainable)))
  parts = {'update': tff.types.tensorflow_to_type(specs)}
  data_type = _data_type(with_answers=with_answers, **parts)
  read_id = tff.tensorflow.computation(client_update.read_client_id, data_type.client_id)

  # The weights are an argument so that they are sent to clients, who train from them.
  @tff.tensorflow.computation(weights_type, data_type.update)
  def read_update(weights: array_types.Structure, update: tf.data.Dataset) -> array_types.Structure:
    return tf.nest.pack_sequence_as(weights.trainable, client_update.read_update(update, specs))

  @tff.federated_computation
  def initialize() -> tff.Value:
    return tff.federated_value((), tff.SERVER)

  @tff.federated_computation(
    initialize.type_signature.result,
    tff.FederatedType(weights_type, tff.CLIENTS),
    tff.FederatedType(data_type, tff.CLIENTS),
  )
  def next_fn(
    state: tff.Value, global_weights: tff.Value, client_data: tff.Value
  ) -> tff.templates.MeasuredProcessOutput:
    updates = tff.federated_map(read_update, (global_weights, client_data['update']))
    weight = collections.OrderedDict(client_id=tff.federated_map(read_id, client_data['client_id']))
    if with_answers:
      weight['answer'] = _answer_in(client_data)
    results = tff.federated_zip(tff.learning.templates.ClientResult(update=updates, update_weight=weight))
    return tff.templates.MeasuredProcessOutput(state, results, tff.federated_value((), tff.SERVER))

  return tff.learning.templates.ClientWorkProcess(initialize, next_fn)


def build_client_work(
  model: model_functions.Model,
  optimizer: tff.learning.optimizers.Optimizer,
  config: ClientWorkConfig = ClientWorkConfig(),
  extension: Optional[extensions.Extension] = None,
  num_clients: Optional[int] = None,
  with_answers: bool = False,
) -> tff.learning.templates.ClientWorkProcess:
  """Local training of every client in the cohort.

  `initialize` gives `<round=int32, seed=int64[2]>@SERVER`, the number of finished rounds and the run's seed. `next`
  takes the state, the global weights and `client_data_type(model.input_spec)` at the clients. It gives the state with
  one more round; a `ClientResult` whose update is w_global - w_local (trainable weights, as in TFF's own model-delta
  work) and whose weight is `<client_id=int64>`; and the measurement `train`: the model's metrics over all examples
  seen. Where they count `num_examples`, as Keras models do, and there is none, means over them are NaN.

  A client without examples gives a zero update. An update that is not finite is passed on unchanged. An id sequence
  that does not hold exactly one id becomes the id -1.

  With an extension, the state is `<work=<round, seed>, memory=…>`, with `own`, float32[N, d], if clients have vectors
  of their own. `next` leaves both as they are, because they change only after the aggregation. The weight of an update
  then also holds `report`, the tensors that the extension asks of the client, and `own`, its next vector. If the
  extension `takes_absent`, clients' data are `<client_id=int64*, absent=int64*, examples=D*>`, and the report has
  `absent`, too.

  Models of `quap_tff.training.models` draw their dropout masks from `config.seed`. A model with stock Keras `Dropout`
  works too, but then the masks, and so the update, differ from run to run.

  Args:
    model: A function that makes the model anew on each call, as in all of `tff.learning`, or a
      `tff.learning.models.FunctionalModel`.
    optimizer: The clients' optimizer; its state starts afresh in each round.
    config: See `ClientWorkConfig`.
    extension: A method around the mechanism; by default none.
    num_clients: N, which an extension needs.
    with_answers: Whether clients bring answers of their guards, see `client_data_type`. The weight of an update then
      holds `answer`, too.

  Raises:
    TypeError: If the optimizer is not one of TFF's.
    ValueError: For an input_spec that `client_data_type` refuses, or if a decay or the extension needs a learning rate
      that the optimizer does not have.
  """
  model_functions.check_optimizer('client_optimizer', optimizer)
  is_extended = extension is not None
  population = cast(int, num_clients)  # An extension needs it; nothing else takes it.
  extension = extensions.Nothing() if extension is None else extension
  config = extension.client_work(config)
  model_fn = model_functions.of(model)
  with tf.Graph().as_default():
    made = model_fn()
    metrics_aggregation = tff.learning.metrics.sum_then_finalize(made.metric_finalizers())
  weights_type = tff.learning.models.weights_type_from_model(made)
  data_type = client_data_type(made.input_spec, extension.takes_absent, with_answers)
  if config.learning_rate_decay != 1.0:
    client_update.base_learning_rate(optimizer)
  blank_model_fn = model_functions.without_initial_weights(model_fn)
  client_round = client_update.build_client_round(blank_model_fn, optimizer, config, extension)

  @tff.tensorflow.computation
  def initial_state() -> array_types.Structure:
    work = collections.OrderedDict(round=tf.constant(0), seed=seeds.initial_seed(config.seed, 'client_update'))
    if not is_extended:
      return work
    shapes = [v.shape for v in made.trainable_variables]
    state = collections.OrderedDict(work=work, memory=extension.initial_memory(population, shapes))
    if extension.has_own_vectors:
      state['own'] = tf.zeros([population, sum(shape.num_elements() for shape in shapes)], tf.float32)
    return state

  state_type = initial_state.type_signature.result

  @tff.tensorflow.computation(state_type)
  def next_state(state: array_types.Structure) -> array_types.Structure:
    work = state['work'] if is_extended else state
    work = collections.OrderedDict(work, round=work['round'] + 1)
    return collections.OrderedDict(state, work=work) if is_extended else work

  @tff.tensorflow.computation(state_type)
  def announce(state: array_types.Structure) -> array_types.Structure:
    if not is_extended:
      return state
    return collections.OrderedDict(work=state['work'], message=extension.message(state['memory']))

  read_id = tff.tensorflow.computation(client_update.read_client_id, data_type.client_id)

  def train(
    given: array_types.Structure,
  ) -> tuple[array_types.Structure, array_types.Structure, array_types.Structure, array_types.Structure]:
    announced, own = given['announced'], given.get('own')
    work, message = (announced['work'], announced['message']) if is_extended else (announced, None)
    return client_round(
      given['weights'],
      client_update.read_examples(given['examples'], made.input_spec),
      given['client_id'],
      work['round'] + 1,
      work['seed'],
      message,
      own,
    )

  @tff.federated_computation
  def initialize() -> tff.Value:
    return tff.federated_eval(initial_state, tff.SERVER)

  @tff.federated_computation(
    tff.FederatedType(state_type, tff.SERVER),
    tff.FederatedType(weights_type, tff.CLIENTS),
    tff.FederatedType(data_type, tff.CLIENTS),
  )
  def next_fn(
    state: tff.Value, global_weights: tff.Value, client_data: tff.Value
  ) -> tff.templates.MeasuredProcessOutput:
    ids = tff.federated_map(read_id, client_data['client_id'])
    given = collections.OrderedDict(
      announced=tff.federated_broadcast(tff.federated_map(announce, state)),
      weights=global_weights,
      client_id=ids,
      examples=client_data['examples'],
    )
    if extension.has_own_vectors:
      given['own'] = _own_vectors(population, state, ids)
    zipped = tff.federated_zip(given)
    trained = tff.tensorflow.computation(train, zipped.type_signature.member)
    updates, report, kept, metrics = tff.federated_map(trained, zipped)
    weight = collections.OrderedDict(client_id=ids)
    if is_extended:
      names = tff.structure.name_list(report.type_signature.member)
      _check_reports(extension, report.type_signature.member)
      weight['report'] = collections.OrderedDict((name, report[name]) for name in names)
      if extension.takes_absent:
        weight['report']['absent'] = _absent_of(population, client_data['absent'])
      if extension.has_own_vectors:
        weight['own'] = kept
    if with_answers:
      weight['answer'] = _answer_in(client_data)
    results = tff.federated_zip(tff.learning.templates.ClientResult(update=updates, update_weight=weight))
    measurements = tff.federated_zip(collections.OrderedDict(train=_example_metrics(metrics_aggregation(metrics))))
    return tff.templates.MeasuredProcessOutput(tff.federated_map(next_state, state), results, measurements)

  return tff.learning.templates.ClientWorkProcess(initialize, next_fn)


def _answer_in(client_data: tff.Value) -> tff.Value:
  """The answer of each client's guard."""
  answers = client_data['answer']
  read_answer = tff.tensorflow.computation(client_update.read_answer, answers.type_signature.member)
  return tff.federated_map(read_answer, answers)


def _example_metrics(metrics: tff.Value) -> tff.Value:
  """The metrics of a round. Means over no examples, for which models have 0, become NaN if examples are counted."""
  if 'num_examples' not in tff.structure.name_list(metrics.type_signature.member):
    return metrics

  @tff.tensorflow.computation(metrics.type_signature.member)
  def replaced(reported: array_types.Structure) -> array_types.Structure:
    is_none = tf.equal(reported['num_examples'], 0)
    return tf.nest.map_structure(
      lambda one: tf.where(is_none, tf.constant(np.nan, one.dtype), one) if one.dtype.is_floating else one, reported
    )

  return tff.federated_map(replaced, metrics)


def _check_reports(extension: extensions.Extension, report_type: tff.StructType) -> None:
  """Raises `ValueError` for reports that `exact_releases` does not name, or whose name means something else."""
  name, names = type(extension).__name__, tff.structure.name_list(report_type)
  nested = [one for one in names if not isinstance(report_type[one], tff.TensorType)]
  if nested:
    raise ValueError(f'{name} reports {nested[0]!r}, which is not a tensor. Give each tensor a name of its own.')
  if taken := sorted({'client_id', 'absent', 'own'}.intersection(names)):
    raise ValueError(f'{name} reports {taken[0]!r}, a name that the composer uses. Give the report another name.')
  if names and not extension.exact_releases:
    raise ValueError(
      f'{name} says that it releases nothing exact (exact_releases is empty), but its clients report '
      f'{", ".join(names)}. Name these in exact_releases, or let report return nothing as it is configured.'
    )


def _own_vectors(num_clients: int, state: tff.Value, ids: tff.Value) -> tff.Value:
  """Each client's own vector, float32[d]."""

  table_of = tff.tensorflow.computation(lambda work: work['own'], state.type_signature.member)

  @tff.tensorflow.computation(np.int64)
  def key_of(client_id: tf.Tensor) -> tf.Tensor:
    # An id out of range is refused by the aggregator; here it only must not fail first.
    return tf.cast(tf.clip_by_value(client_id, 0, num_clients - 1), tf.int32)[tf.newaxis]

  row_of = tff.tensorflow.computation(
    lambda table, key: tf.gather(table, key), table_of.type_signature.result, np.int32
  )
  row_type = row_of.type_signature.result

  @tff.tensorflow.computation(tff.SequenceType(row_type))
  def only(rows: tf.data.Dataset) -> tf.Tensor:
    return rows.reduce(tf.zeros(row_type.shape), lambda _, row: row)

  rows = tff.federated_select(
    tff.federated_map(key_of, ids),
    tff.federated_value(num_clients, tff.SERVER),
    tff.federated_map(table_of, state),
    row_of,
  )
  return tff.federated_map(only, rows)


def _absent_of(num_clients: int, absent: tff.Value) -> tff.Value:
  """int64[N], 1 for the clients in each client's sequence of absent ids."""

  @tff.tensorflow.computation(absent.type_signature.member)
  def indicator(sequence: tf.data.Dataset) -> tf.Tensor:
    ids = client_update.read_examples(sequence.batch(num_clients), tf.TensorSpec([None], tf.int64))
    return tf.scatter_nd(ids[:, tf.newaxis], tf.ones_like(ids), tf.constant([num_clients], tf.int64))

  return tff.federated_map(indicator, absent)
