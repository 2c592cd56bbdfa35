"""A learning process with an extension: local training, the mechanism, and what the extension puts around both.

The state is TFF's `LearningAlgorithmState`. The extension's memory is beside the client work's state:
`client_work = <work=<round, seed>, memory=…>`. What clients keep for themselves is in it, too, because a simulation has
no other place; a checkpoint then holds it. A client gets its own vector by `tff.federated_select`.
"""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.common import seeds
from quap_tff.federated import aggregation
from quap_tff.federated import client_work as client_works
from quap_tff.training import client_update
from quap_tff.training.heterogeneity import extension as extensions


def build_extended(
  model_fn: client_works.ModelFn,
  initial_weights: tff.Computation,
  aggregator_factory: tff.aggregators.WeightedAggregationFactory,
  finalizer: tff.learning.templates.FinalizerProcess,
  client_optimizer: tff.learning.optimizers.Optimizer,
  config: client_update.ClientWorkConfig,
  extension: extensions.Extension,
  num_clients: int,
) -> tff.learning.templates.LearningProcess:
  """The process of `quap_tff.federated.learning_process.compose`, with an extension.

  Metrics are those of a process without one.

  Args:
    model_fn: Makes the model anew on each call.
    initial_weights: A computation that gives the model's first weights.
    aggregator_factory: It aggregates updates with weights `<client_id=int64>`.
    finalizer: Applies the server's optimizer.
    client_optimizer: The local optimizer.
    config: How clients train.
    extension: What the method adds.
    num_clients: N.

  Raises:
    ValueError: If the extension divides by the learning rate and the local optimizer has none.
  """
  config = extension.client_work(config)
  with tf.Graph().as_default():
    model = model_fn()
    metrics_aggregation = tff.learning.metrics.sum_then_finalize(model.metric_finalizers())
  input_spec = model.input_spec
  blank_model_fn = client_update.without_initial_weights(model_fn)
  weights_type = tff.learning.models.weights_type_from_model(model)
  trainable = tff.types.type_to_tf_tensor_specs(weights_type.trainable)
  shapes = [leaf.shape for leaf in tf.nest.flatten(trainable)]
  num_weights = sum(shape.num_elements() for shape in shapes) if extension.keeps_vectors else 0
  data_type = client_works.client_data_type(input_spec)
  if extension.rescales:
    data_type = tff.to_type(
      collections.OrderedDict(
        client_id=data_type.client_id, absent=tff.SequenceType(np.int64), examples=data_type.examples
      )
    )
  distributor = tff.learning.templates.build_broadcast_process(weights_type)
  if extension.learning_rate_divides:
    client_works.base_learning_rate(client_optimizer)

  def learning_rate(round_number):
    if not extension.learning_rate_divides:
      return tf.constant(1.0)
    return client_works.learning_rate_at(client_optimizer, config, round_number)

  @tff.tensorflow.computation
  def initial_work():
    return collections.OrderedDict(
      work=collections.OrderedDict(round=tf.constant(0), seed=seeds.initial_seed(config.seed, 'client_update')),
      memory=extension.initial_memory(num_clients, shapes),
    )

  work_type = initial_work.type_signature.result

  @tff.tensorflow.computation(work_type)
  def announce(state):
    return collections.OrderedDict(work=state['work'], message=extension.message(state['memory']))

  message_type = announce.type_signature.result
  table_of = tff.tensorflow.computation(
    lambda state: state['memory']['table'] if extension.returns_vectors else tf.zeros([num_clients, 0]), work_type
  )

  @tff.tensorflow.computation(data_type)
  def key_of(data):
    client_id = client_update.read_client_id(data['client_id'])
    return tf.cast(tf.clip_by_value(client_id, 0, num_clients - 1), tf.int32)[tf.newaxis]

  @tff.tensorflow.computation(table_of.type_signature.result, np.int32)
  def row_of(table, key):
    return tf.gather(table, key)

  row_type = tff.SequenceType(row_of.type_signature.result)

  @tff.tensorflow.computation(message_type, weights_type, row_type, data_type)
  def train(announced, global_weights, row, data):
    examples = client_update.read_examples(data['examples'], input_spec)
    client_id = client_update.read_client_id(data['client_id'])
    round_number, seed = announced['work']['round'] + 1, announced['work']['seed']
    like = tf.nest.flatten(global_weights.trainable)
    own = (
      extensions.unflat(row.reduce(tf.zeros([num_weights]), lambda _, r: r), like)
      if (extension.returns_vectors)
      else None
    )
    gradient = None
    if extension.needs_gradient:
      gradient = client_update.build_full_gradient(blank_model_fn())(global_weights, examples)
    update_fn = client_update.build_client_update(blank_model_fn(), client_optimizer, config)
    epochs = client_update.epochs_of(config, seed, client_id)
    steps = client_update.count_steps(config, client_update.num_rows(examples), epochs)
    correction = extension.correction(announced['message'], own, steps)
    update, metrics = update_fn(global_weights, examples, client_id, round_number, seed, correction)
    local = extensions.Local(tf.nest.flatten(update), steps, epochs, learning_rate(round_number), gradient)
    report = collections.OrderedDict(client_id=client_id)
    if extension.counts_steps:
      report['steps'] = tf.cast(steps, tf.float32)
    if extension.reports_vectors:
      report['kept'] = extensions.flat(extension.kept(announced['message'], own, local))
    if extension.rescales:
      absent = client_update.read_ids(data['absent'])
      population = tf.constant([num_clients], tf.int64)
      report['absent'] = tf.scatter_nd(absent[:, tf.newaxis], tf.ones_like(absent), population)
    sent = tf.nest.pack_sequence_as(update, extension.sent(local))
    weight = collections.OrderedDict(client_id=client_id)
    return tff.learning.templates.ClientResult(update=sent, update_weight=weight), report, metrics

  def server_training(weights, work):
    """x after the server's steps on its own examples: the local training of a client with the id N."""
    examples = tf.nest.map_structure(tf.constant, extension.examples)
    own_config = client_update.ClientWorkConfig(
      local_epochs=extension.server_epochs(), max_steps=extension.server_steps, batch_size=extension.server_batch_size
    )
    optimizer = tff.learning.optimizers.build_sgdm(extension.server_learning_rate)
    update_fn = client_update.build_client_update(blank_model_fn(), optimizer, own_config)
    update, _ = update_fn(weights, examples, tf.constant(num_clients, tf.int64), work['round'] + 1, work['seed'])
    trained = tf.nest.map_structure(lambda w, u: w - u, weights.trainable, update)
    return tff.learning.models.ModelWeights(trained, weights.non_trainable)

  result_type, report_type, _ = train.type_signature.result
  aggregator = aggregator_factory.create(result_type.update, result_type.update_weight)
  mean_type = aggregator.next.type_signature.result.result.member
  reports_type = tff.to_type(
    collections.OrderedDict(
      (name, (one.dtype, [None, *one.shape])) for name, one in tff.structure.to_elements(report_type)
    )
  )

  def cohort_of(state, reports):
    ids = reports['client_id']
    absent = reports.get('absent', tf.zeros([tf.size(ids), 0], tf.int64))
    return extensions.Cohort(
      client_ids=ids,
      steps=reports.get('steps', tf.zeros_like(ids, tf.float32)),
      kept=reports.get('kept', tf.zeros([tf.size(ids), 0])),
      absent=tf.reduce_any(absent > 0, axis=0),
      learning_rate=learning_rate(state['work']['round'] + 1),
    )

  def train_server_of():
    """The computation of a server round; made only for an extension that has examples."""

    @tff.tensorflow.computation(weights_type, work_type, reports_type)
    def train_server(weights, state, reports):
      nobody_came = tf.equal(tf.size(reports['client_id']), 0)
      trained = server_training(weights, state['work'])
      return tf.nest.map_structure(lambda new, old: tf.where(nobody_came, new, old), trained, weights)

    return train_server

  @tff.tensorflow.computation(work_type, mean_type, reports_type)
  def server_step(state, mean, reports):
    cohort, round_number = cohort_of(state, reports), state['work']['round'] + 1
    direction, memory = extension.server_step(state['memory'], tf.nest.flatten(mean), cohort)
    work = collections.OrderedDict(round=round_number, seed=state['work']['seed'])
    return tf.nest.pack_sequence_as(mean, direction), collections.OrderedDict(work=work, memory=memory)

  @tff.federated_computation
  def init_fn():
    weights = tff.federated_eval(initial_weights, tff.SERVER)
    return tff.federated_zip(
      tff.learning.templates.LearningAlgorithmState(
        weights,
        distributor.initialize(),
        tff.federated_eval(initial_work, tff.SERVER),
        aggregator.initialize(),
        finalizer.initialize(),
      )
    )

  @tff.federated_computation(init_fn.type_signature.result, tff.FederatedType(data_type, tff.CLIENTS))
  def next_fn(state, client_data):
    sent = distributor.next(state.distributor, state.global_model_weights)
    announced = tff.federated_broadcast(tff.federated_map(announce, state.client_work))
    rows = tff.federated_select(
      tff.federated_map(key_of, client_data),
      tff.federated_value(num_clients, tff.SERVER),
      tff.federated_map(table_of, state.client_work),
      row_of,
    )
    results, reports, metrics = tff.federated_map(train, (announced, sent.result, rows, client_data))
    reports = aggregation.federated_collect(reports, reports_type)
    if extension.rescales:
      results = _rescaled(extension, cohort_of, state.client_work, results, reports)
    aggregated = aggregator.next(state.aggregator, results.update, results.update_weight)
    direction, work = tff.federated_map(server_step, (state.client_work, aggregated.result, reports))
    final = finalizer.next(state.finalizer, state.global_model_weights, direction)
    model_weights = final.result
    if extension.trains_server:
      model_weights = tff.federated_map(train_server_of(), (final.result, state.client_work, reports))
    new_state = tff.federated_zip(
      tff.learning.templates.LearningAlgorithmState(model_weights, sent.state, work, aggregated.state, final.state)
    )
    measured = tff.federated_zip(
      collections.OrderedDict(
        distributor=sent.measurements,
        client_work=tff.federated_zip(collections.OrderedDict(train=metrics_aggregation(metrics))),
        aggregator=aggregated.measurements,
        finalizer=final.measurements,
      )
    )
    return tff.learning.templates.LearningProcessOutput(new_state, measured)

  @tff.tensorflow.computation(init_fn.type_signature.result.member)
  def get_model_weights(state):
    return state.global_model_weights

  @tff.tensorflow.computation(init_fn.type_signature.result.member, weights_type)
  def set_model_weights(state, weights):
    return state._replace(global_model_weights=weights)

  return tff.learning.templates.LearningProcess(init_fn, next_fn, get_model_weights, set_model_weights)


def _rescaled(extension, cohort_of, work, results, reports):
  """The clients' results with their updates times `extension.scales`, which follow from all of them."""

  @tff.tensorflow.computation(work.type_signature.member, reports.type_signature.member)
  def weigh(state, collected):
    cohort = cohort_of(state, collected)
    return collections.OrderedDict(client_ids=cohort.client_ids, scales=extension.scales(state['memory'], cohort))

  @tff.tensorflow.computation(results.type_signature.member, weigh.type_signature.result)
  def scaled(result, weights):
    own = tf.equal(weights['client_ids'], result.update_weight['client_id'])
    scale = tf.reduce_sum(tf.where(own, weights['scales'], 0.0))
    update = tf.nest.map_structure(lambda u: u * tf.cast(scale, u.dtype), result.update)
    return tff.learning.templates.ClientResult(update=update, update_weight=result.update_weight)

  weights = tff.federated_broadcast(tff.federated_map(weigh, (work, reports)))
  return tff.federated_map(scaled, (results, weights))
