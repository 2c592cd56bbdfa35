"""Clients that train on old versions of the model, as in FedBuff (Nguyen et al. 2022, Algorithm 1).

A round of the process is a batch of arrivals. Version 1 is the initial model, and each release makes the next. The
distributor keeps the last τ_max + 1 versions in its state. A client whose update arrives in round t trained on version
V_t - τ_i(t), which it downloaded when it began. In this simulation it is computed from that version's weights when it
arrives, so nothing else of a client in flight needs to be kept.

The simulation sends all kept versions to each client, which takes its own, so that its counted bytes down are those of
τ_max + 1 models; a deployment sends one.
"""

import collections

import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.common import array_types
from quap_tff.mechanisms import facts
from quap_tff.training import client_update


def build_distributor(initial_weights: tff.Computation, kept: int) -> tff.learning.templates.DistributionProcess:
  """Keeps the last `kept` versions, newest first, and sends them with their number: `<versions, num_versions>`.

  A round without a release makes no version: the weights that come in are the newest version bit for bit.
  """
  weights_type = initial_weights.type_signature.result

  @tff.tensorflow.computation
  def initialize() -> array_types.Structure:
    # No version yet: the first call has the initial weights.
    return collections.OrderedDict(
      versions=tf.nest.map_structure(
        lambda spec: tf.zeros([kept, *spec.shape], spec.dtype), tff.types.type_to_tf_tensor_specs(weights_type)
      ),
      num_versions=tf.constant(0, tf.int32),
    )

  state_type = initialize.type_signature.result

  @tff.tensorflow.computation(state_type, weights_type)
  def push(state: array_types.Structure, weights: array_types.Structure) -> array_types.Structure:
    versions, newest = tf.nest.flatten(state['versions']), tf.nest.flatten(weights)
    same = tf.reduce_all([tf.reduce_all(tf.equal(kept_ones[0], one)) for kept_ones, one in zip(versions, newest)])
    is_new = tf.logical_or(tf.equal(state['num_versions'], 0), tf.logical_not(same))
    pushed = [
      tf.where(is_new, tf.concat([one[tf.newaxis], kept_ones[:-1]], axis=0), kept_ones)
      for kept_ones, one in zip(versions, newest)
    ]
    return collections.OrderedDict(
      versions=tf.nest.pack_sequence_as(state['versions'], pushed),
      num_versions=state['num_versions'] + tf.cast(is_new, tf.int32),
    )

  @tff.federated_computation
  def init_fn() -> tff.Value:
    return tff.federated_eval(initialize, tff.SERVER)

  @tff.federated_computation(init_fn.type_signature.result, tff.FederatedType(weights_type, tff.SERVER))
  def next_fn(state: tff.Value, weights: tff.Value) -> tff.templates.MeasuredProcessOutput:
    new_state = tff.federated_map(push, (state, weights))
    return tff.templates.MeasuredProcessOutput(
      new_state, tff.federated_broadcast(new_state), tff.federated_value((), tff.SERVER)
    )

  return tff.learning.templates.DistributionProcess(init_fn, next_fn)


def on_old_versions(
  work: tff.learning.templates.ClientWorkProcess,
  distributor: tff.learning.templates.DistributionProcess,
  staleness: facts.StalenessModel,
) -> tff.learning.templates.ClientWorkProcess:
  """The work, done on each client's own version; the weight of an update also says how stale that is."""
  state_type, _, data_type = work.next.type_signature.parameter
  versions_type = distributor.next.type_signature.result.result.member
  result_type = work.next.type_signature.result.result.member

  @tff.tensorflow.computation(versions_type, state_type.member, data_type.member)
  def begin(
    sent: array_types.Structure, state: array_types.Structure, data: array_types.Structure
  ) -> array_types.Structure:
    client_id = client_update.read_client_id(data['client_id'])
    age = staleness.of(state['round'] + 1, client_id, sent['num_versions'])
    weights = tf.nest.map_structure(lambda versions: tf.gather(versions, age), sent['versions'])
    return collections.OrderedDict(weights=weights, staleness=age)

  begin_type = begin.type_signature.result
  weights_of = tff.tensorflow.computation(lambda begun: begun['weights'], begin_type)

  @tff.tensorflow.computation(result_type, begin_type)
  def with_staleness(
    result: tff.learning.templates.ClientResult, begun: array_types.Structure
  ) -> tff.learning.templates.ClientResult:
    weight = collections.OrderedDict(client_id=result.update_weight['client_id'], staleness=begun['staleness'])
    return tff.learning.templates.ClientResult(update=result.update, update_weight=weight)

  @tff.federated_computation(
    state_type, tff.FederatedType(versions_type, tff.CLIENTS), tff.FederatedType(data_type.member, tff.CLIENTS)
  )
  def next_fn(state: tff.Value, sent: tff.Value, data: tff.Value) -> tff.templates.MeasuredProcessOutput:
    begun = tff.federated_map(begin, (sent, tff.federated_broadcast(state), data))
    output = work.next(state, tff.federated_map(weights_of, begun), data)
    result = tff.federated_map(with_staleness, (output.result, begun))
    return tff.templates.MeasuredProcessOutput(output.state, result, output.measurements)

  return tff.learning.templates.ClientWorkProcess(work.initialize, next_fn)
