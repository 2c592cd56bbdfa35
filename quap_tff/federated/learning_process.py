"""The composer of learning processes: one round of any method, as a TFF `LearningProcess`.

    distributor    sends the weights, or the last versions of them            `staleness`
    client work    local training, and the changes of an extension in it      `extension`
    aggregator     the mechanism; it may also try steps at the clients
    extension      makes the direction from the aggregate and its memory      `extension`
    finalizer      applies the server's optimizer to the direction

The state is TFF's `LearningAlgorithmState`, and the metrics of a round are `distributor`, `client_work` (`train`: the
model's metrics), `aggregator` and `finalizer`.
"""

import collections
import dataclasses
from typing import Callable, cast, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.common import array_types
from quap_tff.federated import client_ids
from quap_tff.federated import client_work as client_works
from quap_tff.federated import old_versions
from quap_tff.federated import sums
from quap_tff.mechanisms import facts
from quap_tff.training import client_update
from quap_tff.training import extension as extensions
from quap_tff.training import model_functions

_SGD = tff.learning.optimizers.build_sgdm


@dataclasses.dataclass(frozen=True)
class _ServerMemory:
  """The stages of a round that an extension adds. Their arguments and results are federated values.

  The state is the client work's after local training (`client_work.build_client_work`): its round is the current one,
  and the rest is from before the round. `learning_rate_at` is a function from a round to the clients' learning rate.
  """

  extension: extensions.Extension
  model_fn: model_functions.ModelFn
  num_clients: int
  learning_rate_at: Callable[[tf.Tensor], tf.Tensor]

  def _cohort(self, state: array_types.Structure, reports: array_types.Structure) -> extensions.Cohort:
    def learning_rate() -> tf.Tensor:
      return self.learning_rate_at(state['work']['round'])

    # Clients' own vectors pass by the extension: whatever it makes of a report is a release.
    reported = collections.OrderedDict((name, reports[name]) for name in reports if name not in ('client_id', 'own'))
    return extensions.Cohort(self.num_clients, reports['client_id'], reported, learning_rate)

  def collected(self, weights: tff.Value) -> tff.Value:
    """Ids, reports and own vectors of all clients, at the server. The mechanism's part of a weight is left out."""

    @tff.tensorflow.computation(weights.type_signature.member)
    def asked_for(weight: array_types.Structure) -> array_types.Structure:
      own = {'own': weight['own']} if self.extension.has_own_vectors else {}
      return collections.OrderedDict(client_id=weight['client_id'], **weight['report'], **own)

    reports = tff.federated_map(asked_for, weights)
    are_scalars = all(not one.shape for one in reports.type_signature.member)
    assert self.num_clients is not None
    return sums.summed_by_id(reports, self.num_clients) if are_scalars else sums.collected(reports)

  def scaled(self, state: tff.Value, updates: tff.Value, weights: tff.Value, reports: tff.Value) -> tff.Value:
    """The clients' updates times `extension.scales`, which follow from the reports of all."""
    if not self.extension.takes_absent:
      return updates

    @tff.tensorflow.computation(state.type_signature.member, reports.type_signature.member)
    def weigh(work: array_types.Structure, collected: array_types.Structure) -> array_types.Structure:
      scales = self.extension.scales(work['memory'], self._cohort(work, collected))
      return collections.OrderedDict(client_ids=collected['client_id'], scales=scales)

    message = tff.federated_broadcast(tff.federated_map(weigh, (state, reports)))

    @tff.tensorflow.computation(updates.type_signature.member, np.int64, message.type_signature.member)
    def scale(
      update: array_types.Structure, client_id: tf.Tensor, scales: array_types.Structure
    ) -> array_types.Structure:
      own = client_ids.own_value(scales['client_ids'], scales['scales'], client_id)
      return tf.nest.map_structure(lambda u: u * tf.cast(own, u.dtype), update)

    return tff.federated_map(scale, (updates, weights['client_id'], message))

  def step(self, state: tff.Value, mean: tff.Value, reports: tff.Value) -> tff.Value:
    """The direction for the server's optimizer, and the client work's state after the round."""

    @tff.tensorflow.computation(state.type_signature.member, mean.type_signature.member, reports.type_signature.member)
    def server_step(
      work: array_types.Structure, value: array_types.Structure, collected: array_types.Structure
    ) -> tuple[array_types.Structure, array_types.Structure]:
      cohort = self._cohort(work, collected)
      direction, memory = self.extension.server_step(work['memory'], tf.nest.flatten(value), cohort)
      after = collections.OrderedDict(work, memory=memory)
      if self.extension.has_own_vectors:
        places = collected['client_id'][:, tf.newaxis]
        after['own'] = tf.tensor_scatter_nd_update(work['own'], places, collected['own'])
      return tf.nest.pack_sequence_as(value, direction), after

    return tff.federated_map(server_step, (state, mean, reports))

  def trained(self, weights: tff.Value, state: tff.Value, reports: tff.Value) -> tff.Value:
    """x, after the server's own training if nobody came: the local training of a client with the id N."""
    training = self.extension.server_training()
    if training is None:
      return weights
    blank_model_fn = model_functions.without_initial_weights(self.model_fn)
    optimizer = tff.learning.optimizers.build_sgdm(training.learning_rate)

    @tff.tensorflow.computation(
      weights.type_signature.member, state.type_signature.member, reports.type_signature.member
    )
    def train_server(
      old: tff.learning.models.ModelWeights, work: array_types.Structure, collected: array_types.Structure
    ) -> tff.learning.models.ModelWeights:
      examples = tf.nest.map_structure(tf.constant, training.examples)
      client_id, nobody_came = tf.constant(self.num_clients, tf.int64), tf.equal(tf.size(collected['client_id']), 0)
      update, _ = client_update.build_client_update(blank_model_fn(), optimizer, training.config)(
        old, examples, client_id, work['work']['round'], work['work']['seed']
      )
      new = tf.nest.map_structure(lambda w, u: tf.where(nobody_came, w - u, w), old.trainable, update)
      return tff.learning.models.ModelWeights(new, old.non_trainable)

    return tff.federated_map(train_server, (weights, state, reports))


def compose(
  model: model_functions.Model,
  aggregator: tff.aggregators.WeightedAggregationFactory,
  client_optimizer: tff.learning.optimizers.Optimizer = _SGD(0.05),
  server_optimizer: tff.learning.optimizers.Optimizer = _SGD(1.0),
  client_work: Optional[client_works.ClientWorkConfig] = None,
  *,
  extension: Optional[extensions.Extension] = None,
  num_clients: Optional[int] = None,
  staleness: Optional[facts.StalenessModel] = None,
  client_metrics: bool = True,
  with_answers: bool = False,
) -> tff.learning.templates.LearningProcess:
  """Federated averaging with our client work and any aggregator of updates. All methods share this.

  One client's data are `<client_id=int64*, examples=D*>`: a sequence that holds the client's id, and its examples in
  any batching (the client work cuts the mini-batches).

  Args:
    model: A function that makes the model anew on each call, or a `tff.learning.models.FunctionalModel`, or a function
      that returns one.
    aggregator: It aggregates updates w_global - w_local (trainable weights) with weights that hold `client_id=int64`.
      If its `next` takes two more arguments after the weights, it gets the global weights and the clients' examples: it
      may try steps on them.
    client_optimizer: Local optimizer.
    server_optimizer: Applied to the aggregate, a pseudo-gradient, unless the aggregate is not finite or all zero. SGD
      at rate 1 is federated averaging.
    client_work: Local epochs, batch size, learning-rate decay and the like.
    extension: A method around the aggregator; by default none.
    num_clients: N, which an extension needs.
    staleness: If given, clients train on old versions of the model, and the weights of updates also hold `staleness`.
    client_metrics: Whether clients send the model's training metrics, which are exact functions of their data.
    with_answers: Whether clients hold the noise: one client's data are then `<client_id=int64*, answer=A*,
      examples=D*>`, with one answer of the client's guard (`quap_tff.ClientGuard.answer`).

  Raises:
    TypeError: If an optimizer is not one of TFF's.
    ValueError: If the extension or the decay needs a learning rate, and the local optimizer has none; or if training
      changes a variable of the model that is not trainable, as a BatchNormalization does.
  """
  model_functions.check_optimizer('server_optimizer', server_optimizer)
  model_fn = model_functions.of(model)
  if not client_metrics:
    model_fn = model_functions.without_metrics(model_fn)
  client_work = client_work if client_work is not None else client_works.ClientWorkConfig()
  initial_weights = model_functions.initial_weights(model_fn)
  weights_type = initial_weights.type_signature.result
  if len(weights_type.non_trainable):
    model_functions.check_non_trainable(model_fn)
  work = client_works.build_client_work(model_fn, client_optimizer, client_work, extension, num_clients, with_answers)
  distributor = tff.learning.templates.build_broadcast_process(weights_type)
  if staleness is not None:
    distributor = old_versions.build_distributor(initial_weights, staleness.max_staleness + 1)
    work = old_versions.on_old_versions(work, distributor, staleness)
  server = None
  if extension is not None:
    own_work = extension.client_work(client_work)

    def learning_rate_at(round_num: tf.Tensor) -> tf.Tensor:
      return client_update.learning_rate_at(client_optimizer, own_work, round_num)

    server = _ServerMemory(extension, model_fn, cast(int, num_clients), learning_rate_at)
  return _composed(initial_weights, distributor, work, aggregator, server_optimizer, server)


def compose_updates(
  initial_weights: tff.Computation,
  aggregator: tff.aggregators.WeightedAggregationFactory,
  server_optimizer: tff.learning.optimizers.Optimizer = _SGD(1.0),
  *,
  with_answers: bool = False,
) -> tff.learning.templates.LearningProcess:
  """The same rounds without training: clients bring their updates, see `client_work.build_update_work`.

  Args:
    initial_weights: A computation without arguments that gives the first `tff.learning.models.ModelWeights`.
    aggregator: As for `compose`. It cannot try steps, because there are no examples.
    server_optimizer: As for `compose`.
    with_answers: As for `compose`.

  Raises:
    TypeError: If the optimizer is not one of TFF's.
  """
  model_functions.check_optimizer('server_optimizer', server_optimizer)
  weights_type = initial_weights.type_signature.result
  work = client_works.build_update_work(weights_type, with_answers)
  distributor = tff.learning.templates.build_broadcast_process(weights_type)
  return _composed(initial_weights, distributor, work, aggregator, server_optimizer)


def _composed(
  initial_weights: tff.Computation,
  distributor: tff.learning.templates.DistributionProcess,
  work: tff.learning.templates.ClientWorkProcess,
  factory: tff.aggregators.WeightedAggregationFactory,
  server_optimizer: tff.learning.optimizers.Optimizer,
  server: Optional[_ServerMemory] = None,
) -> tff.learning.templates.LearningProcess:
  """The process of these stages."""
  weights_type = initial_weights.type_signature.result
  data_type, result_type = work.next.type_signature.parameter[2], work.next.type_signature.result.result.member
  aggregator = factory.create(result_type.update, result_type.update_weight)
  tries_steps = len(aggregator.next.type_signature.parameter) > 3
  finalizer = tff.learning.templates.build_apply_optimizer_finalizer(
    model_functions.without_autograph(server_optimizer), weights_type, should_reject_update=reject_update
  )

  @tff.federated_computation
  def init_fn() -> tff.Value:
    return tff.federated_zip(
      tff.learning.templates.LearningAlgorithmState(
        tff.federated_eval(initial_weights, tff.SERVER),
        distributor.initialize(),
        work.initialize(),
        aggregator.initialize(),
        finalizer.initialize(),
      )
    )

  @tff.federated_computation(init_fn.type_signature.result, data_type)
  def next_fn(state: tff.Value, client_data: tff.Value) -> tff.learning.templates.LearningProcessOutput:
    weights = state.global_model_weights
    sent = distributor.next(state.distributor, weights)
    worked = work.next(state.client_work, sent.result, client_data)
    updates, update_weights, work_state = worked.result.update, worked.result.update_weight, worked.state
    if server is not None:
      reports = server.collected(update_weights)
      updates = server.scaled(work_state, updates, update_weights, reports)
    trial = (sent.result, client_data['examples']) if tries_steps else ()
    aggregated = aggregator.next(state.aggregator, updates, update_weights, *trial)
    direction = aggregated.result
    if server is not None:
      direction, work_state = server.step(work_state, direction, reports)
    final = finalizer.next(state.finalizer, weights, direction)
    new_weights = final.result
    if server is not None:
      new_weights = server.trained(new_weights, work_state, reports)
    new_state = tff.learning.templates.LearningAlgorithmState(
      new_weights, sent.state, work_state, aggregated.state, final.state
    )
    metrics = collections.OrderedDict(
      distributor=sent.measurements,
      client_work=worked.measurements,
      aggregator=aggregated.measurements,
      finalizer=final.measurements,
    )
    return tff.learning.templates.LearningProcessOutput(tff.federated_zip(new_state), tff.federated_zip(metrics))

  return _process(init_fn, next_fn, work, finalizer)


def _process(
  init_fn: tff.Computation,
  next_fn: tff.Computation,
  work: tff.learning.templates.ClientWorkProcess,
  finalizer: tff.learning.templates.FinalizerProcess,
) -> tff.learning.templates.LearningProcess:
  """The process, with the functions of its state that TFF's own composer gives."""
  state_type = init_fn.type_signature.result.member

  get_model_weights = tff.tensorflow.computation(lambda state: state.global_model_weights, state_type)

  @tff.tensorflow.computation(state_type, state_type.global_model_weights)
  def set_model_weights(
    state: tff.learning.templates.LearningAlgorithmState, weights: tff.learning.models.ModelWeights
  ) -> tff.learning.templates.LearningAlgorithmState:
    return state._replace(global_model_weights=weights)

  @tff.tensorflow.computation(state_type)
  def get_hparams(state: tff.learning.templates.LearningAlgorithmState) -> array_types.Structure:
    return collections.OrderedDict(
      client_work=work.get_hparams(state.client_work), finalizer=finalizer.get_hparams(state.finalizer)
    )

  @tff.tensorflow.computation(state_type, get_hparams.type_signature.result)
  def set_hparams(
    state: tff.learning.templates.LearningAlgorithmState, hparams: array_types.Structure
  ) -> tff.learning.templates.LearningAlgorithmState:
    return state._replace(
      client_work=work.set_hparams(state.client_work, hparams['client_work']),
      finalizer=finalizer.set_hparams(state.finalizer, hparams['finalizer']),
    )

  return tff.learning.templates.LearningProcess(
    init_fn, next_fn, get_model_weights, set_model_weights, get_hparams_fn=get_hparams, set_hparams_fn=set_hparams
  )


@tf.autograph.experimental.do_not_convert
def reject_update(
  optimizer_state: array_types.Structure, update: array_types.Structure
) -> tuple[tf.Tensor, 'collections.OrderedDict[str, tf.Tensor]']:
  """Rejects an update that is not finite, or all zero: a round without clients must not move weights by momentum."""
  leaves = tf.nest.flatten(update)
  finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(u)) for u in leaves])
  nothing = tf.reduce_all([tf.reduce_all(tf.equal(u, 0)) for u in leaves])
  reject = tf.logical_or(tf.logical_not(finite), nothing)
  return reject, collections.OrderedDict(update_rejected=tf.cast(reject, tf.int32))
