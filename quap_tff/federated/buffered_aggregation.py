"""FedBuff as a TFF aggregation: `BufferedAggregationFactory(config, size).create(value_type, weight_type)`.

    next: (state@SERVER, value@CLIENTS, weight@CLIENTS) -> <state@SERVER, buffer's mean@SERVER, measurements@SERVER>

`weight` is `<client_id, staleness>`: whose update it is, and how many versions old the weights were that it was trained
on (`quap_tff.federated.old_versions` gives both). Equations and account: `quap_tff.mechanisms.buffer`.
"""

import collections
from collections.abc import Sequence
from typing import Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.common import checks
from quap_tff.federated import aggregation
from quap_tff.federated import client_ids
from quap_tff.mechanisms import buffer as buffers
from quap_tff.mechanisms import buffer_restrictions as restrictions
from quap_tff.mechanisms import config as configs
from quap_tff.mechanisms import layers as layers_lib
from quap_tff.mechanisms import quap_round as mechanism
from quap_tff.mechanisms import staleness as stalenesses


class BufferedAggregationFactory(tff.aggregators.WeightedAggregationFactory):
  """Makes aggregation processes that release the mean of a buffer of updates once it is full.

  The state is a `buffers.BufferedState`. It holds clipped updates without noise, and the seed of the noise. Keep it,
  and its checkpoints, as secret as the clients' data.
  """

  def __init__(self, config: configs.QuapConfig, size: int, layers: Optional[Sequence[layers_lib.Layer]] = None):
    """Initializes the factory.

    Args:
      config: The mechanism.
      size: K >= 1, the updates that a release needs.
      layers: The model's layers in the order of the flattened value; needed unless all layers are critical.

    Raises:
      ValueError: If the mechanism cannot work on a buffer, or K is out of range.
    """
    restrictions.check_config(config)
    self._config, self._layers = config, layers
    self._size = int(checks.integer('buffer', size, at_least=1, at_most=2**31 - 1))

  def create(self, value_type: tff.Type, weight_type: tff.Type) -> tff.templates.AggregationProcess:
    """See the module's docstring.

    Args:
      value_type: A struct of float tensors (with Python containers), or one float tensor.
      weight_type: A struct with integer scalars `client_id` and `staleness`.

    Raises:
      TypeError: If a type is none of these.
    """
    config, size = self._config, self._size
    specs = aggregation.tensor_specs(value_type)
    leaves = tf.nest.flatten(specs)
    read_client_id = client_ids.reader(weight_type)
    if not hasattr(weight_type, 'staleness'):
      raise TypeError(
        f'The weight of an update must say how stale it is, as `staleness`; found the weight type {weight_type}. Use '
        'quap_tff.federated.learning_process.compose with a staleness.'
      )
    critical = tuple(range(len(leaves)))
    if config.critical_layers != layers_lib.ALL:
      critical = layers_lib.critical_indices(self._layers, config.critical_layers)

    @tff.tensorflow.computation
    def initialize_server():
      return buffers.BufferedState(
        mechanism=mechanism.initial_state(config, [leaves[i].shape for i in critical]),
        buffer=buffers.empty(config.num_clients, leaves),
        released=tf.zeros([config.num_clients], tf.float32),
      )

    state_type = initialize_server.type_signature.result

    @tff.tensorflow.computation(value_type, weight_type)
    def report(value, weight):
      return collections.OrderedDict(
        client_id=tf.cast(read_client_id(weight), tf.int64),
        norm=mechanism.update_norm(config, critical, tf.nest.flatten(value)),
        staleness=tf.cast(weight['staleness'], tf.int32),
      )

    report_type = report.type_signature.result
    reports_type = tff.to_type(
      collections.OrderedDict((name, (one.dtype, [None])) for name, one in tff.structure.to_elements(report_type))
    )

    @tff.tensorflow.computation(state_type, reports_type)
    def plan_round(state, reports):
      return mechanism.plan_round(config, state.mechanism, reports['client_id'], reports['norm'])

    plan_type = plan_round.type_signature.result
    select_clip = tff.tensorflow.computation(lambda plan: plan.clip, plan_type)
    current_clip = tff.tensorflow.computation(lambda state: state.mechanism.clip, state_type)

    @tff.tensorflow.computation(value_type, report_type, np.float32)
    def contribute(value, own_report, clip):
      clipped = mechanism.clip_update(config, critical, tf.nest.flatten(value), own_report['norm'], clip)
      own_share = stalenesses.share(own_report['staleness'])
      return [u * tf.cast(own_share, u.dtype) for u in clipped]

    @tff.tensorflow.computation(state_type, reports_type, plan_type, contribute.type_signature.result)
    def finish_round(state, reports, plan, total):
      shares = stalenesses.share(reports['staleness'])
      filled = buffers.with_arrivals(state.buffer, list(total), reports['client_id'], shares, plan.clip)
      new_state, mean, measurements = buffers.finish_round(config, size, critical, state, plan, filled)
      arrived = tf.maximum(tf.cast(tf.size(shares), tf.float32), 1.0)
      measurements['staleness_mean'] = tf.cast(tf.reduce_sum(reports['staleness']), tf.float32) / arrived
      return new_state, tf.nest.pack_sequence_as(specs, mean), measurements

    @tff.federated_computation
    def init_fn():
      return tff.federated_eval(initialize_server, tff.SERVER)

    @tff.federated_computation(
      init_fn.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
      tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_fn(state, value, weight):
      own_reports = tff.federated_map(report, (value, weight))
      reports = aggregation.federated_collect(own_reports, reports_type)
      plan = tff.federated_map(plan_round, (state, reports))
      clip = (
        tff.federated_map(select_clip, plan)
        if config.clip.uses_current_norms
        else tff.federated_map(current_clip, state)
      )
      total = tff.federated_sum(tff.federated_map(contribute, (value, own_reports, tff.federated_broadcast(clip))))
      return tff.templates.MeasuredProcessOutput(*tff.federated_map(finish_round, (state, reports, plan, total)))

    return tff.templates.AggregationProcess(init_fn, next_fn)
