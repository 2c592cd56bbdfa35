"""Sparsified updates around any aggregation: `SparseAggregationFactory(inner, sparsity, seed).create(…)`.

    next: (state@SERVER, value@CLIENTS, weight@CLIENTS) -> <state@SERVER, result@SERVER, measurements@SERVER>

Each client sends only the kept entries of its update, a shorter vector for each tensor, to the inner aggregation, which
clips and noises these (`quap_tff.mechanisms.sparsity` has the equation, and why the account stays what it is). The result is zero
everywhere else.
"""

import collections
import math
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.common import checks
from quap_tff.common import seeds
from quap_tff.federated import aggregation
from quap_tff.mechanisms import sparsity as sparsities


class SparseState(NamedTuple):
  """The server's state between rounds.

  Attributes:
    mechanism: The inner aggregation's state.
    round: int32 scalar, finished rounds.
    released: float32 tensors as in an update, the sum of all results; empty unless the choice depends on them.
  """

  mechanism: Any
  round: tf.Tensor
  released: list[tf.Tensor]


class SparseAggregationFactory(tff.aggregators.WeightedAggregationFactory):
  """Aggregates only a part of each tensor in each round."""

  def __init__(self, inner: tff.aggregators.WeightedAggregationFactory, sparsity: sparsities.Sparsity, seed: int):
    """Initializes the factory.

    Args:
      inner: Aggregates what is kept.
      sparsity: How that is chosen.
      seed: A non-negative integer, public: everyone may know which entries are kept.
    """
    self._inner, self._sparsity = inner, sparsity
    self._seed = int(checks.integer('sparsity seed', seed, at_least=0, at_most=2**63 - 1))

  def create(self, value_type: tff.Type, weight_type: tff.Type) -> tff.templates.AggregationProcess:
    """See the module's docstring; the arguments are those of the inner factory's `create`.

    Raises:
      TypeError: If the value does not consist of float tensors.
    """
    sparsity = self._sparsity
    specs = aggregation.tensor_specs(value_type)
    leaves = tf.nest.flatten(specs)
    sizes = [math.prod(leaf.shape) for leaf in leaves]
    kept_type = tff.types.tensorflow_to_type(
      tf.nest.pack_sequence_as(
        specs, [tf.TensorSpec([sparsity.kept(size)], leaf.dtype) for size, leaf in zip(sizes, leaves)]
      )
    )
    inner = self._inner.create(kept_type, weight_type)

    def indices_of(round_num, released):
      seed = seeds.fold_in(seeds.initial_seed(self._seed, 'sparsity'), tf.cast(round_num, tf.int64))
      return sparsities.round_indices(sparsity, seed, sizes, released)

    @tff.tensorflow.computation
    def initialize_own():
      released = [tf.zeros(leaf.shape, tf.float32) for leaf in leaves] if sparsity.uses_releases else []
      return collections.OrderedDict(round=tf.constant(0, tf.int32), released=released)

    own_type = initialize_own.type_signature.result

    # A choice that needs no releases is made by each client from the number of the round, and nothing else is sent.
    @tff.tensorflow.computation(own_type)
    def announce(own):
      message = collections.OrderedDict(round=own['round'] + 1)
      if sparsity.uses_releases:
        message['indices'] = indices_of(own['round'] + 1, list(own['released']))
      return message

    message_type = announce.type_signature.result

    def kept_indices(message):
      return list(message['indices']) if sparsity.uses_releases else indices_of(message['round'], [])

    @tff.tensorflow.computation(value_type, message_type)
    def keep(value, message):
      flat = [tf.reshape(u, [-1]) for u in tf.nest.flatten(value)]
      return tf.nest.pack_sequence_as(specs, [tf.gather(u, i) for u, i in zip(flat, kept_indices(message))])

    @tff.tensorflow.computation(own_type, message_type, kept_type)
    def spread(own, message, result):
      whole = [
        tf.reshape(tf.scatter_nd(places[:, tf.newaxis], u, [size]), leaf.shape)
        for places, u, size, leaf in zip(kept_indices(message), tf.nest.flatten(result), sizes, leaves)
      ]
      released = [before + tf.cast(u, tf.float32) for before, u in zip(own['released'], whole)]
      new = collections.OrderedDict(round=own['round'] + 1, released=released)
      return new, tf.nest.pack_sequence_as(specs, whole)

    pick = tff.tensorflow.computation(
      lambda state: collections.OrderedDict(round=state.round, released=state.released),
      tff.to_type(SparseState(inner.initialize.type_signature.result.member, own_type.round, own_type.released)),
    )

    @tff.federated_computation
    def init_fn():
      own = tff.federated_eval(initialize_own, tff.SERVER)
      return tff.federated_zip(SparseState(inner.initialize(), own['round'], own['released']))

    @tff.federated_computation(
      init_fn.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
      tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_fn(state, value, weight):
      own = tff.federated_map(pick, state)
      message = tff.federated_map(announce, own)
      kept = tff.federated_map(keep, (value, tff.federated_broadcast(message)))
      output = inner.next(state.mechanism, kept, weight)
      new, result = tff.federated_map(spread, (own, message, output.result))
      new_state = tff.federated_zip(SparseState(output.state, new['round'], new['released']))
      return tff.templates.MeasuredProcessOutput(new_state, result, output.measurements)

    return tff.templates.AggregationProcess(init_fn, next_fn)
