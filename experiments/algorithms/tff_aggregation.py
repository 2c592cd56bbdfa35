"""TFF's differentially private aggregators, unmodified, behind our client work.

What is added around them is what every method that is compared with them has:
  * client ids are ignored: every member of a cohort counts the same;
  * an update whose norm is not finite counts as zero (as TFF's own client work has it), or clipping would not bound it;
  * a round with nobody releases noise, as TFF has it; without, an observer would learn that nobody came. DP-FTRL alone
    leaves such a round out of its tree, and claims no amplification by sampling;
  * state is numbers of fixed shapes, as a checkpoint asks for: without the DP event, which is TFF's account of a round
    and no input of the next one.
"""

import abc
import collections
from typing import Any, List, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff import clipping


class StockAggregator(abc.ABC):
  """A `DifferentiallyPrivateFactory` and what must be known about it.

  Attributes:
    value_noise_multiplier: σ of the noise on a sum over the clipping norm that it goes with: the total noise
      multiplier, or more where noised counts take their part of that.
    has_one_sigma: Whether all entries of a round's aggregate have noise of one standard deviation,
      value_noise_multiplier·C/(clients per round).
  """

  value_noise_multiplier: float
  has_one_sigma: bool = True

  @abc.abstractmethod
  def factory(self, record_type: tff.Type) -> tff.aggregators.UnweightedAggregationFactory:
    """The aggregator of clients' `grouped` updates, of type `record_type`."""

  @abc.abstractmethod
  def clipping_norms(self, query_state: Any) -> List[tf.Tensor]:
    """The clipping norms, float32 scalars, of the round that starts from a state: one, or one for each layer."""

  def grouped(self, update: Sequence[Any]) -> List[Any]:
    """A flat update as the aggregator takes it; flattened, it must be in the same order."""
    return list(update)

  def kept(self, query_state: Any) -> Any:
    """What a checkpoint keeps of the query's state, tensors of fixed shapes."""
    return query_state

  def taken_up(self, kept: Any) -> Any:
    """The inverse of `kept`."""
    return kept


class StockAggregationFactory(tff.aggregators.WeightedAggregationFactory):
  """Makes the aggregation process of a `StockAggregator`; weights are ignored.

  State: `round` int32 and `query`. Measurements: `round` int32, `cohort_size` int32 and `clipping_norms` float32[k],
  those that the round's updates were clipped to.
  """

  def __init__(self, stock: StockAggregator, noises_empty_rounds: bool = True):
    """Initializes the factory.

    Args:
      stock: The aggregator.
      noises_empty_rounds: Whether a round with nobody releases what every other does. If not, it leaves the aggregator
        as it is and changes nothing.
    """
    self._stock, self._noises_empty_rounds = stock, noises_empty_rounds

  def create(self, value_type: tff.Type, weight_type: tff.Type) -> tff.templates.AggregationProcess:
    stock, noises_empty_rounds = self._stock, self._noises_empty_rounds
    specs = tff.types.type_to_tf_tensor_specs(value_type)

    @tff.tensorflow.computation(value_type)
    def prepare(value):
      update = tf.nest.flatten(value)
      finite = tf.math.is_finite(clipping.global_norm(update))
      return stock.grouped([tf.where(finite, u, tf.zeros_like(u)) for u in update])

    record_type = prepare.type_signature.result
    inner = stock.factory(record_type).create(record_type)
    inner_type = inner.initialize.type_signature.result.member
    inner_specs = tff.types.type_to_tf_tensor_specs(inner_type)

    @tff.tensorflow.computation(inner_type)
    def keep(inner_state):
      return collections.OrderedDict(round=tf.constant(0), query=stock.kept(inner_state.query_state))

    state_type = keep.type_signature.result

    @tff.tensorflow.computation(state_type)
    def take_up(state):
      event = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), inner_specs.dp_event)
      return inner_specs._replace(query_state=stock.taken_up(state['query']), dp_event=event, is_init_state=False)

    output_type = inner.next.type_signature.result

    @tff.tensorflow.computation(state_type, output_type.state.member, output_type.result.member, np.int32)
    def finish(state, inner_state, aggregate, cohort_size):
      counts = tf.logical_or(noises_empty_rounds, cohort_size > 0)
      query = tf.nest.map_structure(
          lambda before, after: tf.where(counts, after, before), state['query'], stock.kept(inner_state.query_state)
      )
      mean = [tf.where(counts, u, tf.zeros_like(u)) for u in tf.nest.flatten(aggregate)]
      round_num = state['round'] + 1
      measurements = collections.OrderedDict(
          round=round_num, cohort_size=cohort_size, clipping_norms=tf.stack(stock.clipping_norms(state['query']))
      )
      new_state = collections.OrderedDict(round=round_num, query=query)
      return new_state, tf.nest.pack_sequence_as(specs, mean), measurements

    @tff.federated_computation
    def init_fn():
      return tff.federated_map(keep, inner.initialize())

    @tff.federated_computation(
        tff.FederatedType(state_type, tff.SERVER),
        tff.FederatedType(value_type, tff.CLIENTS),
        tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_fn(state, value, weight):
      del weight
      output = inner.next(tff.federated_map(take_up, state), tff.federated_map(prepare, value))
      cohort_size = tff.federated_sum(tff.federated_value(np.int32(1), tff.CLIENTS))
      new_state, mean, measurements = tff.federated_map(finish, (state, output.state, output.result, cohort_size))
      return tff.templates.MeasuredProcessOutput(new_state, mean, measurements)

    return tff.templates.AggregationProcess(init_fn, next_fn)
