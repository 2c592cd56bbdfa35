"""Canary clients: clients whose update an auditor has chosen, in a real run (Andrew et al. 2023).

A canary's update is replaced, before the mechanism clips it, by a large vector in a random direction. The mechanism
then clips it to exactly what one client may add. The server's aggregate is projected on the canaries' directions, and
on the directions of canaries that nobody inserted, which show how large projections are by chance. The adversary of
differential privacy knows all other clients' data. So the projections of what the other clients send are known here,
too, and are subtracted. (Otherwise the others would hide a canary: their later updates pull the model back.)

Direction k has ±1/√b on the coordinates of block k, and 0 elsewhere: the coordinates are dealt at random into blocks
of b coordinates each, and the signs are random. So the directions are exactly orthogonal, the noise on them is
independent, and they need no more memory than one update.
"""

import collections
from collections.abc import Sequence
import dataclasses
import math
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.common import checks
from quap_tff.common import seeds
from quap_tff.federated import aggregation
from quap_tff.federated import client_ids

# The norm of a canary's update before clipping. Far above any clipping norm, and its square far below float32's limit.
NORM = 1e6
# The uses of the seed of the directions.
_BLOCKS, _SIGNS = range(2)


@dataclasses.dataclass(frozen=True)
class Canaries:
  """Which clients are canaries, and where their directions live.

  Attributes:
    clients: K distinct client ids. Client `clients[k]` adds direction k.
    unseen: U ≥ 1, how many further directions there are, which nobody adds.
    tensors: Positions of the update's tensors in which the directions live. None: in all of them.
    norm: The norm of a canary's update before clipping.
    clipped: Positions of the tensors whose joint norm the mechanism clips. None: all of them.
  """

  clients: tuple[int, ...]
  unseen: int
  tensors: Optional[tuple[int, ...]] = None
  norm: float = NORM
  clipped: Optional[tuple[int, ...]] = None

  def __post_init__(self):
    for client in self.clients:
      checks.integer('client', client, at_least=0)
    if not self.clients or len(set(self.clients)) != len(self.clients):
      raise ValueError(f'The canaries must be distinct clients, at least one, found {self.clients}.')
    checks.integer('unseen', self.unseen, at_least=1)
    checks.number('norm', self.norm, above=0, at_most=1e15)

  @property
  def count(self) -> int:
    """K + U, the number of directions."""
    return len(self.clients) + self.unseen

  def places(self, sizes: Sequence[int]) -> tuple[int, ...]:
    """The positions of the tensors in which the directions live.

    Args:
      sizes: The number of entries of each tensor of an update.

    Raises:
      ValueError: If there are more directions than coordinates.
    """
    places = self.tensors if self.tensors is not None else tuple(range(len(sizes)))
    size = sum(sizes[i] for i in places)
    if size < self.count:
      raise ValueError(
        f'{len(self.clients)} canaries and {self.unseen} unseen directions need as many coordinates, but the audited '
        f'layers have only {size}. Ask for at most {max(size - len(self.clients), 0)} unseen directions '
        '(--unseen=…), or for fewer canaries.'
      )
    return places


class Directions(NamedTuple):
  """All directions, by coordinate.

  Attributes:
    block: int32[d], the block of each coordinate.
    sign: float32[d], ±1.
    sizes: float32[K + U], the number of coordinates in each block.
  """

  block: tf.Tensor
  sign: tf.Tensor
  sizes: tf.Tensor


def directions(seed: tf.Tensor, size: int, count: int) -> Directions:
  """`count` orthogonal unit vectors of `size` coordinates each, a pure function of `seed` (int64[2])."""
  shuffled = tf.random.experimental.stateless_shuffle(tf.range(size, dtype=tf.int64), _own_seed(seed, _BLOCKS))
  block = tf.cast(shuffled * count // size, tf.int32)
  coin = tf.random.stateless_uniform([size], _own_seed(seed, _SIGNS), 0, 2, tf.int32)
  edges = [-(-k * size // count) for k in range(count + 1)]
  return Directions(block, tf.cast(2 * coin - 1, tf.float32), tf.constant(np.diff(edges), tf.float32))


def one_direction(found: Directions, index: tf.Tensor) -> tf.Tensor:
  """Direction `index` (int32 scalar), float32[d], of norm 1."""
  inside = tf.equal(found.block, index)
  return tf.where(inside, found.sign, 0.0) * tf.math.rsqrt(tf.gather(found.sizes, index))


def projections(found: Directions, flat: tf.Tensor) -> tf.Tensor:
  """float64[K + U], the inner products of a flat vector, float[d], with all directions."""
  signed = tf.cast(flat, tf.float64) * tf.cast(found.sign, tf.float64)
  sums = tf.math.unsorted_segment_sum(signed, found.block, found.sizes.shape[0])
  return sums / tf.sqrt(tf.cast(found.sizes, tf.float64))


class CanaryAggregationFactory(tff.aggregators.WeightedAggregationFactory):
  """Any aggregation of updates with client ids, with canaries among the clients.

  State: `inner`, and `directions` int64[2], the seed of the directions, drawn anew by `initialize`. Measurements:
  `inner`; `projections` float64[K + U], the aggregate's inner products with all directions; and of each client
  `client_ids` int64[M], `norms` float64[M] of what is clipped, and `client_projections` float64[M, K + U] of its update
  before clipping. Both are 0 for canaries.
  """

  def __init__(self, inner: tff.aggregators.WeightedAggregationFactory, canaries: Canaries):
    """Initializes the factory.

    Args:
      inner: The mechanism under audit.
      canaries: The canaries.
    """
    self._inner, self._canaries = inner, canaries

  def create(self, value_type: tff.Type, weight_type: tff.Type) -> tff.templates.AggregationProcess:
    canaries = self._canaries
    inner = self._inner.create(value_type, weight_type)
    specs = tff.types.type_to_tf_tensor_specs(value_type)
    leaves = tf.nest.flatten(specs)
    sizes = [math.prod(leaf.shape) for leaf in leaves]
    places = canaries.places(sizes)
    size = sum(sizes[i] for i in places)
    read_client_id = client_ids.reader(weight_type)

    @tff.tensorflow.computation
    def initialize_seed():
      return seeds.initial_seed(None, 'canaries')

    seed_type = initialize_seed.type_signature.result

    @tff.tensorflow.computation(seed_type)
    def make_directions(seed):
      return directions(seed, size, canaries.count)

    directions_type = make_directions.type_signature.result

    def is_own(weight):
      return tf.equal(tf.constant(canaries.clients, tf.int64), tf.cast(read_client_id(weight), tf.int64))

    def flat_of(update):
      leaves = tf.nest.flatten(update)
      return tf.concat([tf.reshape(tf.cast(leaves[i], tf.float64), [-1]) for i in places], 0)

    @tff.tensorflow.computation(value_type, weight_type, directions_type)
    def replace(value, weight, found):
      update = tf.nest.flatten(value)
      own = is_own(weight)

      def canary():
        flat = canaries.norm * one_direction(Directions(*found), tf.argmax(own, output_type=tf.int32))
        parts = dict(zip(places, tf.split(flat, [sizes[i] for i in places])))
        return [
          tf.cast(tf.reshape(parts[i], leaf.shape), leaf.dtype) if i in parts else tf.zeros(leaf.shape, leaf.dtype)
          for i, leaf in enumerate(leaves)
        ]

      chosen = tf.cond(tf.reduce_any(own), canary, lambda: [tf.identity(part) for part in update])
      return tf.nest.pack_sequence_as(specs, chosen)

    @tff.tensorflow.computation(value_type, weight_type, directions_type)
    def observe(value, weight, found):
      update = tf.nest.flatten(value)
      clipped = range(len(leaves)) if canaries.clipped is None else canaries.clipped
      norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(tf.cast(update[i], tf.float64))) for i in clipped]))
      counts = tf.cast(~tf.reduce_any(is_own(weight)) & tf.math.is_finite(norm), tf.float64)
      projected = tf.math.multiply_no_nan(projections(Directions(*found), flat_of(value)), counts)
      return collections.OrderedDict(
        client_ids=tf.cast(read_client_id(weight), tf.int64),
        norms=tf.math.multiply_no_nan(norm, counts),
        client_projections=projected,
      )

    others_type = tff.to_type(
      collections.OrderedDict(
        (name, (one.dtype, [None, *one.shape]))
        for name, one in tff.structure.iter_elements(observe.type_signature.result)
      )
    )
    result_type = inner.next.type_signature.result.result.member

    @tff.tensorflow.computation(result_type, directions_type)
    def project(result, found):
      return projections(Directions(*found), flat_of(result))

    @tff.federated_computation
    def init_fn():
      return tff.federated_zip(
        collections.OrderedDict(inner=inner.initialize(), directions=tff.federated_eval(initialize_seed, tff.SERVER))
      )

    @tff.federated_computation(
      init_fn.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
      tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_fn(state, value, weight):
      found = tff.federated_map(make_directions, state['directions'])
      found_at_clients = tff.federated_broadcast(found)
      output = inner.next(state['inner'], tff.federated_map(replace, (value, weight, found_at_clients)), weight)
      others = aggregation.federated_collect(tff.federated_map(observe, (value, weight, found_at_clients)), others_type)
      projected = tff.federated_map(project, (output.result, found))
      return tff.templates.MeasuredProcessOutput(
        tff.federated_zip(collections.OrderedDict(inner=output.state, directions=state['directions'])),
        output.result,
        tff.federated_zip(collections.OrderedDict(inner=output.measurements, projections=projected, others=others)),
      )

    return tff.templates.AggregationProcess(init_fn, next_fn)


class Round(NamedTuple):
  """What an audited round gave.

  Attributes:
    output: The round as the audited method's plan reads it (`quap_tff.plans.Plan.record`).
    projections: float64[K + U], the aggregate's inner products with the directions.
    client_ids: int64[M], the cohort, in the order of the next two.
    norms: float64[M], the norm of what is clipped of each update; 0 for canaries.
    client_projections: float64[M, K + U], the inner products of the updates before clipping; 0 for canaries.
  """

  output: 'Inner'
  projections: np.ndarray
  client_ids: np.ndarray
  norms: np.ndarray
  client_projections: np.ndarray

  def of_others(self, bounds: np.ndarray) -> np.ndarray:
    """float64[K + U], the inner products of the sum of the others' clipped updates with the directions.

    Args:
      bounds: float64[M], the norm that each client's update is clipped to, in the order of `client_ids`; may be inf.
    """
    factors = np.minimum(1.0, bounds / np.maximum(self.norms, np.finfo(np.float64).tiny))
    return factors @ self.client_projections


class Inner(NamedTuple):
  """The audited aggregation's own state and measurements."""

  state: Any
  measurements: Any


def read_round(output: Any) -> Round:
  """Takes apart what the `next` of a learning process with canaries returned."""
  measurements = output.metrics['aggregator']
  others = {name: np.asarray(value) for name, value in measurements['others'].items()}
  return Round(
    Inner(output.state.aggregator['inner'], measurements['inner']), np.asarray(measurements['projections']), **others
  )


def with_directions(state: Any, seed: Sequence[int]) -> Any:
  """The learning process' state with this seed (two integers) of the directions."""
  aggregator = collections.OrderedDict(state.aggregator, directions=np.asarray(seed, np.int64))
  return state._replace(aggregator=aggregator)


def _own_seed(seed, use):
  return seeds.fold_in(seed, tf.constant(use, tf.int64))
