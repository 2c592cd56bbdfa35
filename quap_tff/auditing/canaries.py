"""Canary clients: clients whose update an auditor has chosen, in a real run (Andrew et al. 2023).

Each canary tosses a fair coin. With heads, its update is replaced, before the mechanism clips it, by a large vector in
a random direction, which the mechanism clips to exactly what one client may add. With tails, it is replaced by zeros.

The server's aggregate is projected on the canaries' directions, and on further directions that nobody adds, which show
how large projections are by chance. The adversary of differential privacy knows all other clients' data. So the
projections of the other clients' updates are known here, too, and are subtracted. (Otherwise the others would hide a
canary: their later updates pull the model back.)

Direction k has ±1/√b on the coordinates of block k, and 0 elsewhere: the coordinates are dealt at random into blocks
of b coordinates each, and the signs are random. So the directions are exactly orthogonal, the noise on them is
independent, and they need no more memory than one update.

The score of a direction is N(0, 1) for a canary that is not there, and N(μ, 1) for one that is. In round t, a canary
that is there moves the projection on its direction by a_t. The noise on the projections of all rounds has the
covariance Σ. The best test of Neyman and Pearson is then the matched filter aᵀΣ⁻¹p / √(aᵀΣ⁻¹a), and μ = √(aᵀΣ⁻¹a).
"""

import collections
from collections.abc import Sequence
import dataclasses
import types
from typing import Any, NamedTuple, Optional

import numpy as np
from sklearn import covariance as covariances
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.common.numbers import seeds
from quap_tff.federated import client_ids
from quap_tff.federated import sums

# The norm of a canary's update before clipping. Far above any clipping norm, and its square far below float32's limit.
NORM = 1e6
# The uses of the seed of the directions.
_BLOCKS, _SIGNS, _COINS = range(3)
# The share of the mean variance that is added to a covariance, so that it can be inverted for a release without noise.
_RIDGE = 1e-9


@dataclasses.dataclass(frozen=True)
class Canaries:
  """Which clients are canaries, and where their directions live.

  Attributes:
    clients: K distinct client ids. Client `clients[k]` adds direction k if its coin falls heads.
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

  def __post_init__(self) -> None:
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
    heads: bool[K + U], the coin of each direction's canary. Those of unseen directions mean nothing.
  """

  block: tf.Tensor
  sign: tf.Tensor
  sizes: tf.Tensor
  heads: tf.Tensor


def directions(seed: tf.Tensor, size: int, count: int) -> Directions:
  """`count` orthogonal unit vectors of `size` coordinates each, and coins, a pure function of `seed` (int64[2])."""
  of_blocks, of_signs = (seeds.fold_in(seed, tf.constant(use, tf.int64)) for use in (_BLOCKS, _SIGNS))
  shuffled = tf.random.experimental.stateless_shuffle(tf.range(size, dtype=tf.int64), of_blocks)
  block = tf.cast(shuffled * count // size, tf.int32)
  coin = tf.random.stateless_uniform([size], of_signs, 0, 2, tf.int32)
  edges = [-(-k * size // count) for k in range(count + 1)]
  sizes = tf.constant(np.diff(edges), tf.float32)
  return Directions(block, tf.cast(2 * coin - 1, tf.float32), sizes, coins(seed, count))


def coins(seed: tf.Tensor, count: int) -> tf.Tensor:
  """The coins of `directions`, bool[count]: True for heads."""
  of_coins = seeds.fold_in(seed, tf.constant(_COINS, tf.int64))
  return tf.equal(tf.random.stateless_uniform([count], of_coins, 0, 2, tf.int32), 1)


def one_direction(basis: Directions, index: tf.Tensor) -> tf.Tensor:
  """Direction `index` (int32 scalar), float32[d], of norm 1."""
  inside = tf.equal(basis.block, index)
  return tf.where(inside, basis.sign, 0.0) * tf.math.rsqrt(tf.gather(basis.sizes, index))


def replaced(canaries: Canaries, basis: Directions, update: Sequence[tf.Tensor], client_id: tf.Tensor) -> list[Any]:
  """The update that a client sends: anybody's own, but for canaries.

  A canary sends `canaries.norm` times its direction if its coin fell heads, and zeros otherwise.

  Args:
    canaries: The canaries.
    basis: All directions.
    update: The tensors of the client's own update.
    client_id: int64 scalar.
  """
  sizes = [leaf.shape.num_elements() for leaf in update]
  places = canaries.places(sizes)
  is_own = tf.equal(tf.constant(canaries.clients, tf.int64), client_id)

  def canary() -> list[tf.Tensor]:
    index = tf.argmax(is_own, output_type=tf.int32)
    norm = tf.where(tf.gather(basis.heads, index), canaries.norm, 0.0)
    flat = norm * one_direction(basis, index)
    tensors = [tf.zeros(leaf.shape, leaf.dtype) for leaf in update]
    for i, part in zip(places, tf.split(flat, [sizes[i] for i in places])):
      leaf = update[i]
      tensors[i] = tf.cast(tf.reshape(part, leaf.shape), leaf.dtype)
    return tensors

  return tf.cond(tf.reduce_any(is_own), canary, lambda: [tf.identity(part) for part in update])


def observed(
  canaries: Canaries, basis: Directions, update: Sequence[tf.Tensor], client_id: tf.Tensor
) -> 'collections.OrderedDict[str, Any]':
  """The facts that are kept of a client's update before clipping; 0 for a canary, and for an update that is not finite.

  Returns:
    `client_ids`, int64 scalar; `norms`, float64 scalar, of the clipped tensors; `client_projections`, float64[K + U].
  """
  clipped = range(len(update)) if canaries.clipped is None else canaries.clipped
  norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(tf.cast(update[i], tf.float64))) for i in clipped]))
  is_canary = tf.reduce_any(tf.equal(tf.constant(canaries.clients, tf.int64), client_id))
  counts = tf.cast(~is_canary & tf.math.is_finite(norm), tf.float64)
  return collections.OrderedDict(
    client_ids=client_id,
    norms=tf.math.multiply_no_nan(norm, counts),
    client_projections=tf.math.multiply_no_nan(projected(canaries, basis, update), counts),
  )


def projected(canaries: Canaries, basis: Directions, update: Sequence[tf.Tensor]) -> tf.Tensor:
  """float64[K + U], the inner products of the tensors of an update, or of an aggregate, with all directions."""
  places = canaries.places([leaf.shape.num_elements() for leaf in update])
  flat = tf.concat([tf.reshape(tf.cast(update[i], tf.float64), [-1]) for i in places], 0)
  sums = tf.math.unsorted_segment_sum(flat * tf.cast(basis.sign, tf.float64), basis.block, basis.sizes.shape[0])
  return sums / tf.sqrt(tf.cast(basis.sizes, tf.float64))


class CanaryAggregationFactory(tff.aggregators.WeightedAggregationFactory):
  """Any aggregation of updates with client ids, TFF's own among them, with canaries among the clients.

  State: `inner`, and `directions` int64[2], the seed of the directions, drawn anew by `initialize`. Measurements:
  `inner`; `projections` float64[K + U], the aggregate's inner products with all directions; and `others`, an array with
  an entry for each client of what `observed` keeps.
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
    specs = tff.types.type_to_tf_tensor_specs(value_type)
    sizes = [leaf.shape.num_elements() for leaf in tf.nest.flatten(specs)]
    size = sum(sizes[i] for i in canaries.places(sizes))
    inner = self._inner.create(value_type, weight_type)
    client_id = client_ids.reader(weight_type)
    flat = tf.nest.flatten

    @tff.tensorflow.computation
    def initial_seed() -> tf.Tensor:
      return seeds.initial_seed(None, 'canaries')

    seed_type = initial_seed.type_signature.result

    @tff.tensorflow.computation(seed_type)
    def make_directions(seed: tf.Tensor) -> Directions:
      return directions(seed, size, canaries.count)

    found_type = make_directions.type_signature.result

    @tff.tensorflow.computation(value_type, weight_type, found_type)
    def replace(
      value: array_types.Structure, weight: array_types.Structure, placed: Directions
    ) -> array_types.Structure:
      sent = replaced(canaries, Directions(*placed), flat(value), tf.cast(client_id(weight), tf.int64))
      return tf.nest.pack_sequence_as(specs, sent)

    @tff.tensorflow.computation(value_type, weight_type, found_type)
    def observe(value: array_types.Structure, weight: array_types.Structure, placed: Directions) -> tf.Tensor:
      return observed(canaries, Directions(*placed), flat(value), tf.cast(client_id(weight), tf.int64))

    @tff.tensorflow.computation(inner.next.type_signature.result.result.member, found_type)
    def project(result: array_types.Structure, placed: Directions) -> tf.Tensor:
      return projected(canaries, Directions(*placed), flat(result))

    @tff.federated_computation
    def init_fn() -> tff.Value:
      seed = tff.federated_eval(initial_seed, tff.SERVER)
      return tff.federated_zip(collections.OrderedDict(inner=inner.initialize(), directions=seed))

    at_clients = (tff.FederatedType(one, tff.CLIENTS) for one in (value_type, weight_type))

    @tff.federated_computation(init_fn.type_signature.result, *at_clients)
    def next_fn(state: tff.Value, value: tff.Value, weight: tff.Value) -> tff.templates.MeasuredProcessOutput:
      placed = tff.federated_map(make_directions, state['directions'])
      clients = (value, weight, tff.federated_broadcast(placed))
      output = inner.next(state['inner'], tff.federated_map(replace, clients), weight)
      measurements = collections.OrderedDict(
        inner=output.measurements,
        projections=tff.federated_map(project, (output.result, placed)),
        others=sums.collected(tff.federated_map(observe, clients)),
      )
      after = collections.OrderedDict(inner=output.state, directions=state['directions'])
      return tff.templates.MeasuredProcessOutput(
        tff.federated_zip(after), output.result, tff.federated_zip(measurements)
      )

    return tff.templates.AggregationProcess(init_fn, next_fn)


class CanaryRound(NamedTuple):
  """The figures of an audited round.

  Attributes:
    output: The audited aggregation's own `state` and `measurements`, as its plan reads them (`quap_tff.plans.Plan`).
    projections: float64[K + U], the aggregate's inner products with the directions.
    client_ids: int64[M], the cohort, in the order of the next two.
    norms: float64[M], the joint norm of each update's clipped tensors; 0 for canaries.
    client_projections: float64[M, K + U], the inner products of the updates before clipping; 0 for canaries.
  """

  output: Any
  projections: np.ndarray
  client_ids: np.ndarray
  norms: np.ndarray
  client_projections: np.ndarray

  def sum_of_others(self, bounds: np.ndarray) -> np.ndarray:
    """float64[K + U], the inner products of the sum of the others' clipped updates with the directions.

    Args:
      bounds: float64[M], the norm that each client's update is clipped to, in the order of `client_ids`; may be inf.
    """
    factors = np.minimum(1.0, bounds / np.maximum(self.norms, np.finfo(np.float64).tiny))
    return factors @ self.client_projections


def read_round(output: Any) -> CanaryRound:
  """The figures in the output of `next` of a learning process with canaries."""
  metrics = output.metrics['aggregator']
  # As the `next` of an aggregation process would have it.
  inner = types.SimpleNamespace(state=output.state.aggregator['inner'], measurements=metrics['inner'])
  return CanaryRound(
    inner, np.asarray(metrics['projections']), **tf.nest.map_structure(np.asarray, dict(metrics['others']))
  )


def with_directions(state: Any, seed: Sequence[int]) -> Any:
  """The learning process' state with this seed (two integers) of the directions."""
  aggregator = collections.OrderedDict(state.aggregator, directions=np.asarray(seed, np.int64))
  return state._replace(aggregator=aggregator)


class Filter(NamedTuple):
  """A matched filter for some directions.

  Attributes:
    weights: float64[T, B], Σ⁻¹a of each direction.
    mu: float64[B], √(aᵀΣ⁻¹a): the mean score of a canary that is there.
  """

  weights: np.ndarray
  mu: np.ndarray

  def scores(self, projections: np.ndarray) -> np.ndarray:
    """float64[B], the scores of projections float64[T, B]."""
    return (self.weights * projections).sum(axis=0) / self.mu


def matched_filter(templates: np.ndarray, covariance: np.ndarray) -> Filter:
  """The best filter.

  Args:
    templates: float64[T, B], a_t of each direction; not all zero for any of them.
    covariance: float64[T, T], Σ.
  """
  # Without any noise, every ridge will do.
  ridge = _RIDGE * (np.trace(covariance) / len(covariance) or 1.0)
  weights = np.linalg.solve(covariance + ridge * np.eye(len(covariance)), templates)
  return Filter(weights, np.sqrt((weights * templates).sum(axis=0)))


def estimated_covariance(projections: Any) -> np.ndarray:
  """Σ estimated from directions that nobody added (Ledoit and Wolf 2004), float64[T, T].

  Args:
    projections: float64[T, B]. A direction that is used here must not be counted as a trial.
  """
  covariance, _ = covariances.ledoit_wolf(np.asarray(projections).T, assume_centered=True)
  return covariance
