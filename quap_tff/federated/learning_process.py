"""QuAP-FL as a TFF `LearningProcess`: TFF's distributor and finalizer, our client work and aggregator."""

import collections
from typing import Any, Callable, Optional

import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.federated import aggregation
from quap_tff.federated import client_work as client_works
from quap_tff.federated import extended_learning_process as extended
from quap_tff.mechanisms import config as configs
from quap_tff.mechanisms import layers as layers_lib
from quap_tff.training import autograph
from quap_tff.training.heterogeneity import extension as extensions


def build_quap_fed_avg(
  model_fn: Callable[[], tff.learning.models.VariableModel],
  config: configs.QuapConfig,
  client_optimizer: tff.learning.optimizers.Optimizer = tff.learning.optimizers.build_sgdm(0.05),
  server_optimizer: tff.learning.optimizers.Optimizer = tff.learning.optimizers.build_sgdm(1.0),
  client_work: Optional[client_works.ClientWorkConfig] = None,
  extension: Optional[extensions.Extension] = None,
  around: Callable[[Any], Any] = lambda aggregator: aggregator,
) -> tff.learning.templates.LearningProcess:
  """Federated averaging with participation-aware noise.

  One client's data are `<client_id=int64*, examples=D*>`: a sequence that holds the client's id, and its examples in
  any batching (the client work cuts the mini-batches).

  Metrics of a round are `distributor`, `client_work` (`train`: the model's metrics), `aggregator` (what
  `quap_tff.mechanisms.quap_round.finish_round` reports) and `finalizer`. Training metrics are exact functions of clients' data.

  Args:
    model_fn: Makes the model anew on each call.
    config: The mechanism.
    client_optimizer: Local optimizer.
    server_optimizer: Applied to the noised mean update, a pseudo-gradient; SGD at rate 1 is federated averaging.
    client_work: Local epochs, batch size, learning-rate decay and the like.
    extension: A method around the mechanism, one of `quap_tff.training.heterogeneity`; by default none.
    around: Makes the aggregator that is used from the mechanism's own, such as one that sparsifies updates.

  Raises:
    ValueError: If a critical layer is not one of the model's, or `config` and the optimizers do not fit.
  """
  layers = layers_lib.of_model(model_fn).layers
  client_work = client_work if client_work is not None else client_works.ClientWorkConfig()
  learning_rate_fn = None
  if config.update_scale == 'pseudo_gradient':
    learning_rate_fn = lambda round_num: client_works.learning_rate_at(client_optimizer, client_work, round_num)
  aggregator = aggregation.QuapAggregationFactory(config, layers, learning_rate_fn)
  return compose(
    model_fn, around(aggregator), client_optimizer, server_optimizer, client_work, extension, config.num_clients
  )


def compose(
  model_fn: Callable[[], tff.learning.models.VariableModel],
  aggregator: tff.aggregators.WeightedAggregationFactory,
  client_optimizer: tff.learning.optimizers.Optimizer,
  server_optimizer: tff.learning.optimizers.Optimizer,
  client_work: Optional[client_works.ClientWorkConfig] = None,
  extension: Optional[extensions.Extension] = None,
  num_clients: Optional[int] = None,
) -> tff.learning.templates.LearningProcess:
  """Federated averaging with our client work and any aggregator of updates. All methods share this.

  Args:
    model_fn: Makes the model anew on each call.
    aggregator: It aggregates updates w_global - w_local (trainable weights) with weights `<client_id=int64>`.
    client_optimizer: Local optimizer.
    server_optimizer: Applied to the aggregate, a pseudo-gradient, unless the aggregate is not finite or all zero.
    client_work: Local epochs, batch size, learning-rate decay and the like.
    extension: A method around the aggregator, one of `quap_tff.training.heterogeneity`; by default none.
    num_clients: N, which an extension needs.
  """

  @tff.tensorflow.computation
  def initial_weights():
    return tff.learning.models.ModelWeights.from_model(model_fn())

  weights_type = initial_weights.type_signature.result
  client_work = client_work if client_work is not None else client_works.ClientWorkConfig()
  finalizer = tff.learning.templates.build_apply_optimizer_finalizer(
    autograph.spared(server_optimizer), weights_type, should_reject_update=reject_update
  )
  if extension is not None:
    return extended.build_extended(
      model_fn, initial_weights, aggregator, finalizer, client_optimizer, client_work, extension, num_clients
    )
  work = client_works.build_client_work(model_fn, client_optimizer, client_work)
  result_type = work.next.type_signature.result.result.member
  return tff.learning.templates.compose_learning_process(
    initial_weights,
    tff.learning.templates.build_broadcast_process(weights_type),
    work,
    aggregator.create(result_type.update, result_type.update_weight),
    finalizer,
  )


@tf.autograph.experimental.do_not_convert
def reject_update(optimizer_state: Any, update: Any) -> tuple[tf.Tensor, 'collections.OrderedDict[str, tf.Tensor]']:
  """Rejects an update that is not finite, or all zero: a round without clients must not move weights by momentum."""
  del optimizer_state
  leaves = tf.nest.flatten(update)
  finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(u)) for u in leaves])
  nothing = tf.reduce_all([tf.reduce_all(tf.equal(u, 0)) for u in leaves])
  reject = tf.logical_or(tf.logical_not(finite), nothing)
  return reject, collections.OrderedDict(update_rejected=tf.cast(reject, tf.int32))
