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

import abc
import collections
from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_privacy.privacy.dp_query import nested_query
from tensorflow_privacy.privacy.dp_query import normalized_query
from tensorflow_privacy.privacy.dp_query import quantile_adaptive_clip_sum_query

from quap_tff.mechanisms import clip_rules
from quap_tff.mechanisms import layers as layers_lib

_Factory = tff.aggregators.DifferentiallyPrivateFactory


class StockAggregator(abc.ABC):
  """A `DifferentiallyPrivateFactory` and what must be known about it.

  Attributes:
    value_noise_multiplier: σ of the noise on a sum over its clipping norm: the total noise multiplier, or more where
      noised counts use up a part of the budget.
    has_one_sigma: Whether all entries of a round's aggregate have noise of one standard deviation,
      value_noise_multiplier·C/(clients per round).
  """

  value_noise_multiplier: float
  has_one_sigma: bool = True

  @abc.abstractmethod
  def factory(self, record_type: tff.Type) -> tff.aggregators.UnweightedAggregationFactory:
    """The aggregator of clients' `grouped` updates, of type `record_type`."""

  def query(self, record_type: tff.Type) -> Any:
    """The TensorFlow Privacy query inside `factory`, which does all that is private about it. Audits use it."""
    return self.factory(record_type)._query  # pylint: disable=protected-access

  @abc.abstractmethod
  def clipping_norms(self, query_state: Any) -> list[tf.Tensor]:
    """The clipping norms, float32 scalars, of the round that starts from a state: one, or one for each layer."""

  def grouped(self, update: Sequence[Any]) -> list[Any]:
    """A flat update in the structure that the aggregator takes; flattened, it must have the same order."""
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
      noises_empty_rounds: Whether a round without clients releases noise like any other. If not, it leaves the
        aggregator's state and the model unchanged.
    """
    self._stock, self._noises_empty_rounds = stock, noises_empty_rounds

  def create(self, value_type: tff.Type, weight_type: tff.Type) -> tff.templates.AggregationProcess:
    stock, noises_empty_rounds = self._stock, self._noises_empty_rounds
    specs = tff.types.type_to_tf_tensor_specs(value_type)

    @tff.tensorflow.computation(value_type)
    def prepare(value):
      update = tf.nest.flatten(value)
      is_bounded = clip_rules.global_norm(update) <= clip_rules.TFF_LARGEST_NORM  # False for NaN.
      return stock.grouped([tf.where(is_bounded, u, tf.zeros_like(u)) for u in update])

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
      norms = tf.stack(stock.clipping_norms(state['query']))
      is_released = tf.logical_and(counts, tf.reduce_all(norms >= clip_rules.TFF_SMALLEST_CLIP))
      mean = [tf.where(is_released, u, tf.zeros_like(u)) for u in tf.nest.flatten(aggregate)]
      round_num = state['round'] + 1
      measurements = collections.OrderedDict(round=round_num, cohort_size=cohort_size, clipping_norms=norms)
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


@dataclasses.dataclass(frozen=True)
class FixedClip(StockAggregator):
  """See `quap_tff.plans.stock_tff.DpFedAvg`."""

  value_noise_multiplier: float
  clients_per_round: float
  clip: float

  def factory(self, record_type):
    return _Factory.gaussian_fixed(self.value_noise_multiplier, self.clients_per_round, self.clip)

  def clipping_norms(self, query_state):
    return [query_state.numerator_state.l2_norm_clip]


@dataclasses.dataclass(frozen=True)
class AdaptiveClip(StockAggregator):
  """See `quap_tff.plans.stock_tff.DpFedAvgAdaptive`; `count_stddev` is s."""

  value_noise_multiplier: float
  count_stddev: float
  clients_per_round: float
  quantile: float
  initial_clip: float
  learning_rate: float

  def factory(self, record_type):
    return _Factory.gaussian_adaptive(
      # TFF takes its own z, and finds z_sum from it.
      noise_multiplier=(self.value_noise_multiplier**-2 + (2 * self.count_stddev) ** -2) ** -0.5,
      clients_per_round=self.clients_per_round,
      initial_l2_norm_clip=self.initial_clip,
      target_unclipped_quantile=self.quantile,
      learning_rate=self.learning_rate,
      clipped_count_stddev=self.count_stddev,
    )

  def clipping_norms(self, query_state):
    return [query_state.numerator_state.sum_state.l2_norm_clip]


@dataclasses.dataclass(frozen=True)
class LayerwiseClip(AdaptiveClip):
  """See `quap_tff.plans.stock_tff.LayerwiseAdaptive`."""

  has_one_sigma = False

  layers: tuple[layers_lib.Layer, ...] = ()

  def grouped(self, update):
    return [[update[i] for i in layer.indices] for layer in self.layers]

  def factory(self, record_type):
    queries = [
      quantile_adaptive_clip_sum_query.QuantileAdaptiveClipSumQuery(
        initial_l2_norm_clip=self.initial_clip,
        noise_multiplier=self.value_noise_multiplier,
        target_unclipped_quantile=self.quantile,
        learning_rate=self.learning_rate,
        clipped_count_stddev=self.count_stddev,
        expected_num_records=self.clients_per_round,
      )
      for _ in self.layers
    ]
    return _Factory(normalized_query.NormalizedQuery(nested_query.NestedSumQuery(queries), self.clients_per_round))

  def clipping_norms(self, query_state):
    return [state.sum_state.l2_norm_clip for state in query_state.numerator_state]


@dataclasses.dataclass(frozen=True)
class Tree(StockAggregator):
  """See `quap_tff.plans.stock_tff.DpFtrl`, for up to `rounds` rounds. The state, hence a checkpoint, holds the seed."""

  has_one_sigma = False

  value_noise_multiplier: float
  clients_per_round: float
  clip: float
  rounds: int
  seed: int

  def factory(self, record_type):
    return _Factory.tree_aggregation(
      noise_multiplier=self.value_noise_multiplier,
      clients_per_round=self.clients_per_round,
      l2_norm_clip=self.clip,
      record_specs=tff.types.type_to_tf_tensor_specs(record_type),
      noise_seed=self.seed,
    )

  def clipping_norms(self, query_state):
    return [query_state.numerator_state.clip_value]

  # The tree's buffers hold a row for each open node, more and fewer of them from round to round.
  def kept(self, query_state):
    tree = query_state.numerator_state.tree_state
    levels = (self.rounds + 1).bit_length()
    missing = levels - tf.size(tree.level_buffer_idx)

    def padded(rows, value):
      whole = tf.pad(rows, [[0, missing]] + [[0, 0]] * (rows.shape.rank - 1), constant_values=value)
      return tf.ensure_shape(whole, [levels] + rows.shape[1:])

    return _with_tree(
      query_state,
      tree._replace(
        level_buffer=tf.nest.map_structure(lambda rows: padded(rows, 0.0), tree.level_buffer),
        level_buffer_idx=padded(tree.level_buffer_idx, -1),
      ),
    )

  def taken_up(self, kept):
    tree = kept.numerator_state.tree_state
    used = tf.reduce_sum(tf.cast(tree.level_buffer_idx >= 0, tf.int32))
    return _with_tree(
      kept,
      tree._replace(
        level_buffer=tf.nest.map_structure(lambda rows: rows[:used], tree.level_buffer),
        level_buffer_idx=tree.level_buffer_idx[:used],
      ),
    )


def _with_tree(query_state, tree):
  return query_state._replace(numerator_state=query_state.numerator_state._replace(tree_state=tree))
