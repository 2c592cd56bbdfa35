"""TFF's differentially private aggregators, unmodified, behind our client work.

What is added around them is the same for every method:
  * client ids are ignored: every member of a cohort counts the same;
  * an update whose norm is not finite counts as zero, as in TFF's own client work, because clipping would not bound it.
    So does one whose norm is too large for TFF's float32 arithmetic;
  * if an adaptive clipping norm falls so low that TFF's float32 norms bound no update, the round's sum is left out;
  * a round without clients releases noise, as in TFF; otherwise an observer would learn that nobody came. Only DP-FTRL
    leaves such a round out of its tree, and it claims no amplification by sampling;
  * the state consists of numbers of fixed shapes, as a checkpoint needs. It leaves out the DP event, which is TFF's
    account of a round and no input to the next one.
"""

import collections
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_privacy.privacy.dp_query import nested_query
from tensorflow_privacy.privacy.dp_query import normalized_query
from tensorflow_privacy.privacy.dp_query import quantile_adaptive_clip_sum_query

from quap_tff.common import array_types
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers as layers_lib

_Factory = tff.aggregators.DifferentiallyPrivateFactory


def _unchanged(state: array_types.Structure) -> array_types.Structure:
  return state


class StockAggregator(NamedTuple):
  """A `DifferentiallyPrivateFactory` and the facts about it.

  Attributes:
    value_noise_multiplier: σ of the noise on a sum over its clipping norm: the total noise multiplier, or more where
      noised counts use up a part of the budget.
    clients_per_round: The constant by which sums are divided.
    factory: Makes the aggregator of clients' `grouped` updates from their type.
    clipping_norms: Gives the clipping norms, float32 scalars, of the round that starts from a state of the query: one,
      or one for each layer.
    clip: The clipping norm if it is fixed and nothing but sums is released; else None.
    has_one_sigma: Whether all entries of a round's aggregate have noise of one standard deviation,
      value_noise_multiplier·C/(clients per round).
    grouped: Puts a flat update in the structure that the aggregator takes; flattened, it must have the same order.
    kept: Gives what a checkpoint keeps of the query's state, tensors of fixed shapes.
    taken_up: The inverse of `kept`.
  """

  value_noise_multiplier: float
  clients_per_round: float
  factory: Callable[[tff.Type], tff.aggregators.UnweightedAggregationFactory]
  clipping_norms: Callable[[array_types.Structure], list[tf.Tensor]]
  clip: Optional[float] = None
  has_one_sigma: bool = True
  grouped: Callable[[Sequence[tf.Tensor]], list[tf.Tensor]] = list
  kept: Callable[[array_types.Structure], array_types.Structure] = _unchanged
  taken_up: Callable[[array_types.Structure], array_types.Structure] = _unchanged

  def query(self, record_type: tff.Type) -> Any:
    """The TensorFlow Privacy query inside `factory`, which does all that is private about it. Audits use it."""
    return self.factory(record_type)._query  # pylint: disable=protected-access


class StockAggregationFactory(tff.aggregators.WeightedAggregationFactory):
  """Makes the aggregation process of a `StockAggregator`; weights are ignored.

  State: `round` int32 and `query`. Measurements: `round` int32, `cohort_size` int32 and `clipping_norms` float32[k],
  those that the round's updates were clipped to.
  """

  def __init__(self, stock: StockAggregator, noises_empty_rounds: bool = True):
    """Initializes the factory.

    Args:
      stock: The aggregator.
      noises_empty_rounds: Whether a round without clients releases noise like any other. If not, it leaves the
        aggregator's state and the model unchanged.
    """
    self._stock, self._noises_empty_rounds = stock, noises_empty_rounds

  def create(self, value_type: tff.Type, weight_type: tff.Type) -> tff.templates.AggregationProcess:
    stock, noises_empty_rounds = self._stock, self._noises_empty_rounds
    specs = tff.types.type_to_tf_tensor_specs(value_type)

    @tff.tensorflow.computation(value_type)
    def prepare(value: array_types.Structure) -> list[tf.Tensor]:
      update = tf.nest.flatten(value)
      is_bounded = clip_rules.global_norm(update) <= clip_rules.TFF_LARGEST_NORM  # False for NaN.
      return stock.grouped([tf.where(is_bounded, u, tf.zeros_like(u)) for u in update])

    record_type = prepare.type_signature.result
    inner = stock.factory(record_type).create(record_type)
    inner_type = inner.initialize.type_signature.result.member
    inner_specs = tff.types.type_to_tf_tensor_specs(inner_type)

    @tff.tensorflow.computation(inner_type)
    def keep(inner_state: array_types.Structure) -> array_types.Structure:
      return collections.OrderedDict(round=tf.constant(0), query=stock.kept(inner_state.query_state))

    state_type = keep.type_signature.result

    @tff.tensorflow.computation(state_type)
    def take_up(state: array_types.Structure) -> array_types.Structure:
      event = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), inner_specs.dp_event)
      return inner_specs._replace(query_state=stock.taken_up(state['query']), dp_event=event, is_init_state=False)

    output_type = inner.next.type_signature.result

    @tff.tensorflow.computation(state_type, output_type.state.member, output_type.result.member, np.int32)
    def finish(
      state: array_types.Structure,
      inner_state: array_types.Structure,
      aggregate: array_types.Structure,
      cohort_size: tf.Tensor,
    ) -> tuple[array_types.Structure, array_types.Structure, array_types.Structure]:
      counts = tf.logical_or(noises_empty_rounds, cohort_size > 0)
      query = tf.nest.map_structure(
        lambda before, after: tf.where(counts, after, before), state['query'], stock.kept(inner_state.query_state)
      )
      norms = tf.stack(stock.clipping_norms(state['query']))
      is_released = tf.logical_and(counts, tf.reduce_all(norms >= clip_rules.TFF_SMALLEST_CLIP))
      mean = [tf.where(is_released, u, tf.zeros_like(u)) for u in tf.nest.flatten(aggregate)]
      round_num = state['round'] + 1
      measurements = collections.OrderedDict(round=round_num, cohort_size=cohort_size, clipping_norms=norms)
      new_state = collections.OrderedDict(round=round_num, query=query)
      return new_state, tf.nest.pack_sequence_as(specs, mean), measurements

    @tff.federated_computation
    def init_fn() -> tff.Value:
      return tff.federated_map(keep, inner.initialize())

    @tff.federated_computation(
      tff.FederatedType(state_type, tff.SERVER),
      tff.FederatedType(value_type, tff.CLIENTS),
      tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_fn(state: tff.Value, value: tff.Value, weight: tff.Value) -> tff.templates.MeasuredProcessOutput:
      del weight
      output = inner.next(tff.federated_map(take_up, state), tff.federated_map(prepare, value))
      cohort_size = tff.federated_sum(tff.federated_value(np.int32(1), tff.CLIENTS))
      new_state, mean, measurements = tff.federated_map(finish, (state, output.state, output.result, cohort_size))
      return tff.templates.MeasuredProcessOutput(new_state, mean, measurements)

    return tff.templates.AggregationProcess(init_fn, next_fn)


def fixed_clip(noise_multiplier: float, clients_per_round: float, clip: float) -> StockAggregator:
  """The aggregator of `mechanism.DpFedAvg`."""
  return StockAggregator(
    noise_multiplier,
    clients_per_round,
    lambda record_type: _Factory.gaussian_fixed(noise_multiplier, clients_per_round, clip),
    lambda query_state: [query_state.numerator_state.l2_norm_clip],
    clip,
  )


def adaptive_clip(
  value_multiplier: float, count_stddev: float, clients_per_round: float, quantile: float, clip: float, rate: float
) -> StockAggregator:
  """The aggregator of `mechanism.DpFedAvgAdaptive`; `count_stddev` is s."""
  factory = _Factory.gaussian_adaptive(
    # TFF takes its own z, and finds z_sum from it.
    noise_multiplier=(value_multiplier**-2 + (2 * count_stddev) ** -2) ** -0.5,
    clients_per_round=clients_per_round,
    initial_l2_norm_clip=clip,
    target_unclipped_quantile=quantile,
    learning_rate=rate,
    clipped_count_stddev=count_stddev,
  )
  return StockAggregator(
    value_multiplier,
    clients_per_round,
    lambda record_type: factory,
    lambda query_state: [query_state.numerator_state.sum_state.l2_norm_clip],
  )


def layerwise_clip(
  value_multiplier: float,
  count_stddev: float,
  clients_per_round: float,
  layers: Sequence[layers_lib.Layer],
  quantile: float,
  clip: float,
  rate: float,
) -> StockAggregator:
  """The aggregator of `mechanism.LayerwiseAdaptive`."""
  queries = [
    quantile_adaptive_clip_sum_query.QuantileAdaptiveClipSumQuery(
      initial_l2_norm_clip=clip,
      noise_multiplier=value_multiplier,
      target_unclipped_quantile=quantile,
      learning_rate=rate,
      clipped_count_stddev=count_stddev,
      expected_num_records=clients_per_round,
    )
    for _ in layers
  ]
  query = normalized_query.NormalizedQuery(nested_query.NestedSumQuery(queries), clients_per_round)

  def grouped(update: Sequence[tf.Tensor]) -> list[list[tf.Tensor]]:
    groups = []
    for layer in layers:
      groups.append([update[i] for i in layer.indices])
    return groups

  return StockAggregator(
    value_multiplier,
    clients_per_round,
    lambda record_type: _Factory(query),
    lambda query_state: [state.sum_state.l2_norm_clip for state in query_state.numerator_state],
    has_one_sigma=False,
    grouped=grouped,
  )


def tree(noise_multiplier: float, clients_per_round: float, clip: float, rounds: int, seed: int) -> StockAggregator:
  """The aggregator of `mechanism.DpFtrl`, for up to `rounds` rounds. The state, hence a checkpoint, holds the seed."""
  levels = (rounds + 1).bit_length()

  def factory(record_type: tff.Type) -> tff.aggregators.UnweightedAggregationFactory:
    return _Factory.tree_aggregation(
      noise_multiplier=noise_multiplier,
      clients_per_round=clients_per_round,
      l2_norm_clip=clip,
      record_specs=tff.types.type_to_tf_tensor_specs(record_type),
      noise_seed=seed,
    )

  def map_buffers(
    query_state: array_types.Structure, function: Callable[[tf.Tensor, float, array_types.Structure], tf.Tensor]
  ) -> array_types.Structure:
    numerator = query_state.numerator_state
    tree_state = numerator.tree_state
    moved = tree_state._replace(
      level_buffer=tf.nest.map_structure(lambda rows: function(rows, 0.0, tree_state), tree_state.level_buffer),
      level_buffer_idx=function(tree_state.level_buffer_idx, -1, tree_state),
    )
    return query_state._replace(numerator_state=numerator._replace(tree_state=moved))

  # The tree's buffers hold a row for each open node, more and fewer of them from round to round.
  def padded(rows: tf.Tensor, value: float, tree_state: array_types.Structure) -> tf.Tensor:
    missing = levels - tf.size(tree_state.level_buffer_idx)
    whole = tf.pad(rows, [[0, missing]] + [[0, 0]] * (rows.shape.rank - 1), constant_values=value)
    return tf.ensure_shape(whole, [levels] + rows.shape[1:])

  def used(rows: tf.Tensor, value: float, tree_state: array_types.Structure) -> tf.Tensor:
    return rows[: tf.reduce_sum(tf.cast(tree_state.level_buffer_idx >= 0, tf.int32))]

  return StockAggregator(
    noise_multiplier,
    clients_per_round,
    factory,
    lambda query_state: [query_state.numerator_state.clip_value],
    clip,
    has_one_sigma=False,
    kept=lambda query_state: map_buffers(query_state, padded),
    taken_up=lambda kept: map_buffers(kept, used),
  )
