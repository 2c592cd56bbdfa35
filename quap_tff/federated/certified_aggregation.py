"""The certified mechanism as a TFF aggregation: `CertifiedAggregationFactory(config).create(value_type, weight_type)`.

    next: (state@SERVER, value@CLIENTS, weight@CLIENTS) -> <state@SERVER, noised sum over D@SERVER, measurements@SERVER>

`weight` carries the client's id, as for `quap_tff.QuapAggregationFactory`. A round has two levels of aggregation, and
the second depends on the first, so a round runs in a single context. The clients send their ids. The server sends the
cohort's weights to every client and sums what they return. By the neighbouring relation, everyone may know who takes
part. The first level needs no update. With `quap_tff.build_client_work`, where ids come before training, a client can
therefore train and hand over its update at once, and nobody has to hold a cohort's updates.
"""

import collections
from collections.abc import Sequence
import math
from typing import Optional

import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.federated import aggregation
from quap_tff.federated import client_ids
from quap_tff.mechanisms import certified_config as configs
from quap_tff.mechanisms import certified_round as mechanism
from quap_tff.mechanisms import clip_split
from quap_tff.mechanisms import layers as layers_lib


class CertifiedAggregationFactory(tff.aggregators.WeightedAggregationFactory):
  """Makes aggregation processes whose results and measurements are (ε, δ)-differentially private for each client.

  The state of the process is a `quap_tff.mechanisms.certified_round.ServerState`. Whoever holds it can recompute the noise:
  keep the state, and checkpoints of it, as secret as the clients' data. Each round must start from the state that the
  round before returned. If two rounds start from one state, two results are released, but clients are charged for one.
  """

  def __init__(self, config: configs.CertifiedConfig, layers: Optional[Sequence[layers_lib.Layer]] = None):
    """Initializes the factory.

    Args:
      config: The mechanism.
      layers: The model's layers, in the order of the flattened value. They are needed unless the clip split is 'joint'.
    """
    if not isinstance(config, configs.CertifiedConfig):
      raise TypeError(f'config must be a quap_tff.CertifiedConfig, found {type(config).__name__}.')
    self._config = config
    self._layers = layers

  def create(self, value_type: tff.Type, weight_type: tff.Type) -> tff.templates.AggregationProcess:
    """See the module's docstring.

    Args:
      value_type: A struct of float32 or float64 tensors (with Python containers), or one such tensor.
      weight_type: A struct with an integer scalar `client_id`, or an integer scalar.

    Raises:
      TypeError: If either type is something else.
      ValueError: If layers are needed but do not fit the value.
    """
    config = self._config
    specs = aggregation.tensor_specs(value_type)
    leaves = tf.nest.flatten(specs)
    if any(leaf.dtype not in (tf.float32, tf.float64) for leaf in leaves):
      raise TypeError(
        f'Updates must be float32 or float64, found {value_type}. With fewer bits, rounding could make an update '
        'larger than its clipping norm.'
      )
    read_client_id = client_ids.reader(weight_type)
    groups = clip_split.clip_groups(config.clip_split, [math.prod(leaf.shape) for leaf in leaves], self._layers)

    @tff.tensorflow.computation
    def initialize_server():
      return mechanism.initial_state(config, [leaf.shape for leaf in leaves])

    state_type = initialize_server.type_signature.result

    @tff.tensorflow.computation(weight_type)
    def report(weight):
      return collections.OrderedDict(client_id=tf.cast(read_client_id(weight), tf.int64))

    reports_type = aggregation.collected_type(report.type_signature.result)

    @tff.tensorflow.computation(state_type, reports_type)
    def plan_round(state, reports):
      return mechanism.plan_round(config, state, reports['client_id'])

    plan_type = plan_round.type_signature.result

    @tff.tensorflow.computation(state_type, plan_type)
    def announce(state, plan):
      return collections.OrderedDict(client_ids=plan.client_ids, weights=plan.weights, clip=state.clip)

    @tff.tensorflow.computation(value_type, weight_type, announce.type_signature.result)
    def contribute(value, weight, message):
      own = tf.equal(message['client_ids'], tf.cast(read_client_id(weight), tf.int64))
      own_weight = tf.reduce_sum(tf.where(own, message['weights'], 0.0))
      update = tf.nest.flatten(value)
      contribution = collections.OrderedDict(update=mechanism.contribute(groups, update, own_weight, message['clip']))
      if config.counts_norms:
        norm = mechanism.update_norm(groups, update)
        contribution['count'] = collections.OrderedDict(norm=norm, weight=own_weight)
      return contribution

    contribution_type = contribute.type_signature.result

    @tff.tensorflow.computation
    def zero():
      return [tf.zeros(leaf.shape, tf.float64) for leaf in leaves]

    total_type = zero.type_signature.result

    # Clients send their own dtype. The sum is float64, whose rounding is negligible beside the clipping norm.
    @tff.tensorflow.computation(total_type, contribution_type.update)
    def add(total, contribution):
      return [t + tf.cast(c, tf.float64) for t, c in zip(total, contribution)]

    @tff.tensorflow.computation(total_type, total_type)
    def merge(a, b):
      return [x + y for x, y in zip(a, b)]

    identity = tff.tensorflow.computation(lambda total: total, total_type)

    if config.counts_norms:
      counts_type = aggregation.collected_type(contribution_type.count)

      @tff.tensorflow.computation(state_type, plan_type, counts_type)
      def move_clip(state, plan, counts):
        return plan._replace(next_clip=mechanism.next_clip(config, state, plan, counts['norm'], counts['weight']))

    @tff.tensorflow.computation(state_type, plan_type, total_type)
    def finish_round(state, plan, total):
      new_state, mean, measurements = mechanism.finish_round(config, state, plan, list(total))
      result = [tf.cast(m, leaf.dtype) for m, leaf in zip(mean, leaves)]
      return new_state, tf.nest.pack_sequence_as(specs, result), measurements

    @tff.federated_computation
    def init_fn():
      return tff.federated_eval(initialize_server, tff.SERVER)

    @tff.federated_computation(
      init_fn.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
      tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_fn(state, value, weight):
      reports = aggregation.federated_collect(tff.federated_map(report, weight), reports_type)
      plan = tff.federated_map(plan_round, (state, reports))
      message = tff.federated_broadcast(tff.federated_map(announce, (state, plan)))
      contributions = tff.federated_map(contribute, (value, weight, message))
      if config.counts_norms:
        counts = aggregation.federated_collect(contributions['count'], counts_type)
        plan = tff.federated_map(move_clip, (state, plan, counts))
      total = tff.federated_aggregate(contributions['update'], zero(), add, merge, identity)
      new_state, mean, measurements = tff.federated_map(finish_round, (state, plan, total))
      return tff.templates.MeasuredProcessOutput(new_state, mean, measurements)

    return tff.templates.AggregationProcess(init_fn, next_fn)
