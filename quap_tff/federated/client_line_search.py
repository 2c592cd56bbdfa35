"""`quap_tff.mechanisms.line_search` as a TFF `LearningProcess`. A round has three levels of aggregation: ids, updates, losses."""

import collections
from typing import Any, Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.federated import aggregation
from quap_tff.federated import client_work as client_works
from quap_tff.mechanisms import line_search
from quap_tff.training import client_update


def build_line_search(
  model_fn: Callable[[], tff.learning.models.VariableModel],
  config: line_search.LineSearchConfig,
  client_optimizer: tff.learning.optimizers.Optimizer,
  client_work: client_works.ClientWorkConfig = client_works.ClientWorkConfig(),
) -> tff.learning.templates.LearningProcess:
  """Noisy descent with privately chosen steps. Data have the form that `quap_tff.build_quap_fed_avg` takes.

  Metrics of a round are `client_work`, `aggregator` and `finalizer`. Those of the aggregator are public: `step`,
  `noise_multiplier` and the like follow from noised releases.

  Args:
    model_fn: Makes the model anew on each call.
    config: The mechanism.
    client_optimizer: Local optimizer.
    client_work: Local epochs, batch size and the like.
  """

  @tff.tensorflow.computation
  def initial_weights():
    return tff.learning.models.ModelWeights.from_model(model_fn())

  weights_type = initial_weights.type_signature.result
  work = client_works.build_client_work(model_fn, client_optimizer, client_work)
  result_type = work.next.type_signature.result.result.member
  data_type = work.next.type_signature.parameter[2].member
  blank_model_fn = client_update.without_initial_weights(model_fn)
  with tf.Graph().as_default():
    input_spec = model_fn().input_spec

  @tff.tensorflow.computation
  def initialize_server():
    return line_search.initial_state(config)

  state_type = initialize_server.type_signature.result

  @tff.tensorflow.computation(result_type.update_weight)
  def report(weight):
    return collections.OrderedDict(client_id=tf.cast(weight['client_id'], tf.int64))

  reports_type = tff.to_type(collections.OrderedDict(client_id=(np.int64, [None])))

  @tff.tensorflow.computation(state_type, reports_type)
  def plan_round(state, reports):
    return line_search.plan_round(config, state, reports['client_id'])

  plan_type = plan_round.type_signature.result

  @tff.tensorflow.computation(plan_type)
  def announce(plan):
    return collections.OrderedDict(client_ids=plan.client_ids, weights=plan.weights)

  message_type = announce.type_signature.result

  @tff.tensorflow.computation(result_type.update, result_type.update_weight, message_type)
  def contribute(update, weight, message):
    return line_search.bounded(tf.nest.flatten(update), config.clip, _own(weight, message))

  total_type = contribute.type_signature.result

  @tff.tensorflow.computation(state_type, plan_type, total_type)
  def direction(state, plan, total):
    return line_search.noised_direction(config, state, plan, list(total))

  direction_type = direction.type_signature.result

  @tff.tensorflow.computation(weights_type, direction_type, data_type, result_type.update_weight, message_type)
  def losses(global_weights, step_direction, data, weight, message):
    examples = client_update.read_examples(data['examples'], input_spec)
    gain = _build_gains(blank_model_fn(), config.steps)(
      global_weights, tf.nest.pack_sequence_as(global_weights.trainable, list(step_direction)), examples
    )
    return line_search.bounded([gain], config.loss_clip, _own(weight, message))[0]

  @tff.tensorflow.computation(state_type, plan_type, direction_type, losses.type_signature.result, weights_type)
  def finish_round(state, plan, step_direction, gains, weights):
    step, new_state = line_search.chosen_step(config, state, plan, gains)
    moved = [w - tf.cast(step, w.dtype) * d for w, d in zip(tf.nest.flatten(weights.trainable), list(step_direction))]
    size = tf.size(plan.weights)
    measurements = collections.OrderedDict(
      round=new_state.round,
      cohort_size=size,
      step=step,
      noise_multiplier=tf.where(tf.reduce_any(plan.weights > 0), tf.cast(state.multiplier, tf.float32), 0.0),
      clipping_norm=tf.constant(config.clip, tf.float32),
      exhausted_clients=size - tf.cast(tf.reduce_sum(plan.weights), tf.int32),
      spent_max=tf.cast(tf.reduce_max(plan.spent) / config.limit, tf.float32),
    )
    new_weights = tff.learning.models.ModelWeights(
      tf.nest.pack_sequence_as(weights.trainable, moved), weights.non_trainable
    )
    rejected = collections.OrderedDict(update_rejected=tf.cast(tf.equal(step, 0), tf.int32))
    return new_weights, new_state, measurements, rejected

  @tff.federated_computation
  def initialize():
    return tff.federated_zip(
      tff.learning.templates.LearningAlgorithmState(
        tff.federated_eval(initial_weights, tff.SERVER),
        tff.federated_value((), tff.SERVER),
        work.initialize(),
        tff.federated_eval(initialize_server, tff.SERVER),
        tff.federated_value((), tff.SERVER),
      )
    )

  @tff.federated_computation(initialize.type_signature.result, tff.FederatedType(data_type, tff.CLIENTS))
  def next_fn(state, client_data):
    weights_at_clients = tff.federated_broadcast(state.global_model_weights)
    trained = work.next(state.client_work, weights_at_clients, client_data)
    ids = aggregation.federated_collect(tff.federated_map(report, trained.result.update_weight), reports_type)
    plan = tff.federated_map(plan_round, (state.aggregator, ids))
    message = tff.federated_broadcast(tff.federated_map(announce, plan))
    contributions = tff.federated_map(contribute, (trained.result.update, trained.result.update_weight, message))
    step_direction = tff.federated_map(direction, (state.aggregator, plan, tff.federated_sum(contributions)))
    gains = tff.federated_map(
      losses,
      (weights_at_clients, tff.federated_broadcast(step_direction), client_data, trained.result.update_weight, message),
    )
    new_weights, new_state, measurements, rejected = tff.federated_map(
      finish_round, (state.aggregator, plan, step_direction, tff.federated_sum(gains), state.global_model_weights)
    )
    metrics = collections.OrderedDict(client_work=trained.measurements, aggregator=measurements, finalizer=rejected)
    new = tff.learning.templates.LearningAlgorithmState(
      new_weights, state.distributor, trained.state, new_state, state.finalizer
    )
    return tff.learning.templates.LearningProcessOutput(tff.federated_zip(new), tff.federated_zip(metrics))

  full_type = initialize.type_signature.result.member

  @tff.tensorflow.computation(full_type)
  def get_model_weights(state):
    return state.global_model_weights

  @tff.tensorflow.computation(full_type, weights_type)
  def set_model_weights(state, weights):
    return tff.learning.templates.LearningAlgorithmState(
      weights, state.distributor, state.client_work, state.aggregator, state.finalizer
    )

  return tff.learning.templates.LearningProcess(initialize, next_fn, get_model_weights, set_model_weights)


def _own(weight: Any, message: Any) -> tf.Tensor:
  """w_i of the client whose id `weight` holds."""
  own = tf.equal(message['client_ids'], tf.cast(weight['client_id'], tf.int64))
  return tf.reduce_sum(tf.where(own, message['weights'], 0.0))


def _build_gains(model, steps):
  """A function (weights, direction, examples) -> float32[K]: the mean loss now minus that after each step."""
  variables = tff.learning.models.ModelWeights.from_model(model)

  @tf.function
  def gains(global_weights, step_direction, examples):
    tf.nest.map_structure(lambda v, w: v.assign(w), variables, global_weights)
    found = []
    for step in (0.0, *steps):
      tf.nest.map_structure(
        lambda v, w, d: v.assign(w - step * d), variables.trainable, global_weights.trainable, step_direction
      )
      found.append(tf.cast(model.forward_pass(examples, training=False).loss, tf.float32))
    change = found[0] - tf.stack(found[1:])
    # A client without examples has a loss of 0/0, and adds nothing.
    return tf.where(tf.shape(tf.nest.flatten(examples)[0])[0] > 0, change, tf.zeros_like(change))

  return gains
