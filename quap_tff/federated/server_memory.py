"""The server's side of an extension (`quap_tff.training.heterogeneity`), as stages of a round at the server.

The memory is in the client work's state: `client_work = <work=<round, seed>, memory=…>`.
"""

import collections
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.federated.sums import client_ids
from quap_tff.federated.sums import collecting
from quap_tff.training import client_update
from quap_tff.training import extension as extensions
from quap_tff.training import model_functions


class ServerMemory:
  """The stages of a round that an extension adds. Their arguments and results are federated values.

  The state is the client work's after local training: its round is the current one, and its memory is from before the
  round.

  Args:
    extension: The method.
    model_fn: Makes the model anew on each call.
    num_clients: N.
    learning_rate_at: A function from a round to the clients' learning rate.
  """

  def __init__(
    self,
    extension: extensions.Extension,
    model_fn: model_functions.ModelFn,
    num_clients: Optional[int],
    learning_rate_at: Callable[[Any], tf.Tensor],
  ):
    self._extension, self._model_fn, self._num_clients = extension, model_fn, num_clients
    self._learning_rate_at = learning_rate_at

  def _cohort(self, state, reports):
    learning_rate = lambda: self._learning_rate_at(state['work']['round'])
    return extensions.Cohort(reports['client_id'], reports, learning_rate)

  def collected(self, weights: tff.Value) -> tff.Value:
    """The ids and reports of all clients, at the server. The mechanism's own part of a weight stays at the client."""

    @tff.tensorflow.computation(weights.type_signature.member)
    def asked_for(weight):
      return collections.OrderedDict(client_id=weight['client_id'], **weight['report'])

    reports = tff.federated_map(asked_for, weights)
    are_scalars = all(not one.shape for one in reports.type_signature.member)
    assert self._num_clients is not None
    return collecting.summed_by_id(reports, self._num_clients) if are_scalars else collecting.collected(reports)

  def scaled(self, state: tff.Value, updates: tff.Value, weights: tff.Value, reports: tff.Value) -> tff.Value:
    """The clients' updates times `extension.scales`, which follow from the reports of all."""
    if not self._extension.takes_absent:
      return updates

    @tff.tensorflow.computation(state.type_signature.member, reports.type_signature.member)
    def weigh(work, collected):
      scales = self._extension.scales(work['memory'], self._cohort(work, collected))
      return collections.OrderedDict(client_ids=collected['client_id'], scales=scales)

    message = tff.federated_broadcast(tff.federated_map(weigh, (state, reports)))

    @tff.tensorflow.computation(updates.type_signature.member, np.int64, message.type_signature.member)
    def scale(update, client_id, scales):
      own = client_ids.own_value(scales['client_ids'], scales['scales'], client_id)
      return tf.nest.map_structure(lambda u: u * tf.cast(own, u.dtype), update)

    return tff.federated_map(scale, (updates, weights['client_id'], message))

  def step(self, state: tff.Value, mean: tff.Value, reports: tff.Value) -> tff.Value:
    """The direction for the server's optimizer, and the client work's state with the memory after the round."""

    @tff.tensorflow.computation(state.type_signature.member, mean.type_signature.member, reports.type_signature.member)
    def server_step(work, value, collected):
      cohort = self._cohort(work, collected)
      direction, memory = self._extension.server_step(work['memory'], tf.nest.flatten(value), cohort)
      return tf.nest.pack_sequence_as(value, direction), collections.OrderedDict(work, memory=memory)

    return tff.federated_map(server_step, (state, mean, reports))

  def trained(self, weights: tff.Value, state: tff.Value, reports: tff.Value) -> tff.Value:
    """x, after the server's own training if nobody came: the local training of a client with the id N."""
    training = self._extension.server_training()
    if training is None:
      return weights
    blank_model_fn = model_functions.without_initial_weights(self._model_fn)
    optimizer = tff.learning.optimizers.build_sgdm(training.learning_rate)

    @tff.tensorflow.computation(
      weights.type_signature.member, state.type_signature.member, reports.type_signature.member
    )
    def train_server(old, work, collected):
      examples = tf.nest.map_structure(tf.constant, training.examples)
      client_id, nobody_came = tf.constant(self._num_clients, tf.int64), tf.equal(tf.size(collected['client_id']), 0)
      update, _ = client_update.build_client_update(blank_model_fn(), optimizer, training.config)(
        old, examples, client_id, work['work']['round'], work['work']['seed']
      )
      new = tf.nest.map_structure(lambda w, u: tf.where(nobody_came, w - u, w), old.trainable, update)
      return tff.learning.models.ModelWeights(new, old.non_trainable)

    return tff.federated_map(train_server, (weights, state, reports))
