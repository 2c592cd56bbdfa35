"""`experiments.systems.lee_kifer` as a TFF aggregation that also tries steps at the clients.

    next: (state@SERVER, value@CLIENTS, weight@CLIENTS, global weights@CLIENTS, examples@CLIENTS)
          -> <state@SERVER, step·direction@SERVER, measurements@SERVER>

A round has three levels of aggregation: ids, updates, losses. So `next` runs in a single context.
"""

import collections
from collections.abc import Sequence
from typing import Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from experiments.systems import lee_kifer
from quap_tff.common import array_types
from quap_tff.federated import client_ids
from quap_tff.federated import client_work
from quap_tff.federated import sums
from quap_tff.training import client_update
from quap_tff.training import model_functions


class LineSearchAggregationFactory(tff.aggregators.WeightedAggregationFactory):
  """Makes aggregation processes that give the noised direction times the chosen step.

  The measurements are public: `step`, `noise_multiplier` and the like follow from noised releases.
  """

  def __init__(self, config: lee_kifer.LineSearchConfig, model: model_functions.Model):
    """Initializes the factory.

    Args:
      config: The mechanism.
      model: The model whose losses are tried, as in `quap_tff.federated.learning_process.compose`.
    """
    self._config, self._model_fn = config, model_functions.of(model)

  def create(self, value_type: tff.Type, weight_type: tff.Type) -> tff.templates.AggregationProcess:
    """Makes the aggregation process for these types, as the module's docstring describes it.

    Args:
      value_type: The type of the model's trainable weights.
      weight_type: A struct with an integer scalar `client_id`, or an integer scalar.

    Raises:
      TypeError: If the weights hold no client id.
    """
    config, read_client_id = self._config, client_ids.reader(weight_type)
    with tf.Graph().as_default():
      model = self._model_fn()
    blank_model_fn = model_functions.without_initial_weights(self._model_fn)
    weights_type = tff.learning.models.weights_type_from_model(model)
    examples_type = client_work.client_data_type(model.input_spec).examples
    id_type = tff.to_type(collections.OrderedDict(client_id=np.int64))
    initialize_server = tff.tensorflow.computation(lambda: lee_kifer.initial_state(config))
    state_type = initialize_server.type_signature.result

    @tff.tensorflow.computation(weight_type)
    def report(weight: array_types.Structure) -> array_types.Structure:
      return collections.OrderedDict(client_id=tf.cast(read_client_id(weight), tf.int64))

    @tff.tensorflow.computation(state_type, sums.collected_type(id_type))
    def plan_round(state: lee_kifer.LineSearchState, reports: array_types.Structure) -> lee_kifer.RoundPlan:
      return lee_kifer.plan_round(config, state, reports['client_id'])

    plan_type = plan_round.type_signature.result

    @tff.tensorflow.computation(plan_type)
    def announce(plan: lee_kifer.RoundPlan) -> array_types.Structure:
      return collections.OrderedDict(client_ids=plan.client_ids, weights=plan.weights)

    @tff.tensorflow.computation(id_type, announce.type_signature.result)
    def own_weight(own: array_types.Structure, message: array_types.Structure) -> tf.Tensor:
      return client_ids.own_value(message['client_ids'], message['weights'], own['client_id'])

    @tff.tensorflow.computation(value_type, np.float32)
    def contribute(update: array_types.Structure, own: tf.Tensor) -> list[tf.Tensor]:
      return lee_kifer.bounded(tf.nest.flatten(update), config.clip, own)

    direction_type = contribute.type_signature.result

    @tff.tensorflow.computation(state_type, plan_type, direction_type)
    def direction(
      state: lee_kifer.LineSearchState, plan: lee_kifer.RoundPlan, total: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
      return lee_kifer.noised_direction(config, state, plan, list(total))

    @tff.tensorflow.computation(weights_type, direction_type, examples_type, np.float32)
    def gains_of_steps(
      global_weights: tff.learning.models.ModelWeights,
      step_direction: Sequence[tf.Tensor],
      data: tf.data.Dataset,
      own: tf.Tensor,
    ) -> tf.Tensor:
      gains = _build_gains(blank_model_fn(), config.steps)(
        global_weights,
        tf.nest.pack_sequence_as(global_weights.trainable, list(step_direction)),
        client_update.read_examples(data, model.input_spec),
      )
      return lee_kifer.bounded([gains], config.loss_clip, own)[0]

    specs = tff.types.type_to_tf_tensor_specs(value_type)

    @tff.tensorflow.computation(state_type, plan_type, direction_type, gains_of_steps.type_signature.result)
    def finish_round(
      state: lee_kifer.LineSearchState, plan: lee_kifer.RoundPlan, step_direction: Sequence[tf.Tensor], gains: tf.Tensor
    ) -> tuple[lee_kifer.LineSearchState, array_types.Structure, array_types.Structure]:
      step, new_state = lee_kifer.chosen_step(config, state, plan, gains)
      update = [tf.cast(step, d.dtype) * d for d in step_direction]
      measurements = lee_kifer.measurements(config, state, plan, step, new_state)
      return new_state, tf.nest.pack_sequence_as(specs, update), measurements

    @tff.federated_computation
    def init_fn() -> tff.Value:
      return tff.federated_eval(initialize_server, tff.SERVER)

    at_clients = (value_type, weight_type, weights_type, examples_type)

    @tff.federated_computation(
      init_fn.type_signature.result, *(tff.FederatedType(one, tff.CLIENTS) for one in at_clients)
    )
    def next_fn(
      state: tff.Value, value: tff.Value, weight: tff.Value, global_weights: tff.Value, examples: tff.Value
    ) -> tff.templates.MeasuredProcessOutput:
      own_ids = tff.federated_map(report, weight)
      plan = tff.federated_map(plan_round, (state, sums.collected(own_ids)))
      message = tff.federated_broadcast(tff.federated_map(announce, plan))
      own = tff.federated_map(own_weight, (own_ids, message))
      total = tff.federated_sum(tff.federated_map(contribute, (value, own)))
      step_direction = tff.federated_map(direction, (state, plan, total))
      at_client = tff.federated_broadcast(step_direction)
      gains = tff.federated_sum(tff.federated_map(gains_of_steps, (global_weights, at_client, examples, own)))
      return tff.templates.MeasuredProcessOutput(*tff.federated_map(finish_round, (state, plan, step_direction, gains)))

    return tff.templates.AggregationProcess(init_fn, next_fn)


class Subtraction(tff.learning.optimizers.Optimizer):
  """x <- x - update, without a state: the server's optimizer for updates whose size is chosen already."""

  def initialize(self, specs: array_types.StructureSpec) -> array_types.Structure:
    return ()

  def next(
    self, state: array_types.Structure, weights: array_types.Structure, gradients: array_types.Structure
  ) -> tuple[array_types.Structure, array_types.Structure]:
    return state, tf.nest.map_structure(lambda w, g: w - g, weights, gradients)


def _build_gains(
  model: tff.learning.models.VariableModel, steps: Sequence[float]
) -> Callable[[tff.learning.models.ModelWeights, array_types.Structure, array_types.Structure], tf.Tensor]:
  """A function (weights, direction, examples) -> float32[K]: the mean loss now minus that after each step."""
  variables = tff.learning.models.ModelWeights.from_model(model)

  def loss_after(
    step: float,
    global_weights: tff.learning.models.ModelWeights,
    step_direction: array_types.Structure,
    examples: array_types.Structure,
  ) -> tf.Tensor:
    moved = tf.nest.map_structure(lambda w, d: w - step * d, global_weights.trainable, step_direction)
    tf.nest.map_structure(lambda v, w: v.assign(w), variables.trainable, moved)
    return tf.cast(model.forward_pass(examples, training=False).loss, tf.float32)

  @tf.function
  def gains(
    global_weights: tff.learning.models.ModelWeights,
    step_direction: array_types.Structure,
    examples: array_types.Structure,
  ) -> tf.Tensor:
    tf.nest.map_structure(lambda v, w: v.assign(w), variables, global_weights)
    now, *after = (loss_after(step, global_weights, step_direction, examples) for step in (0.0, *steps))
    change = now - tf.stack(after)
    # A client without examples has a loss of 0/0, and adds nothing.
    return tf.where(client_update.num_rows(examples) > 0, change, tf.zeros_like(change))

  return gains
