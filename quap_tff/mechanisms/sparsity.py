"""The weights that a round updates: full noise on every layer, while only a part of each layer moves.

The November 2025 document (3.6 and 7) plans "sparsification" so that noise on the whole model costs less, and says no
more. The published form is Fed-SMP (Hu, Gong and Guo 2022, arXiv:2202.07178): all clients keep the same coordinates of
their updates, then clip, and noise is added to these coordinates. With m_t ∈ {0, 1}^d the mask of round t:

    g̃_t = (1/D)·(Σ_i clip(m_t∘g_i, w_i·C) + m_t∘N(0, (z·C)²·I))

The formal figure stays. Given all earlier releases, m_t is a constant (it follows from a public seed and from those
releases), so clip(m_t∘g_i) is a function of client i's data of norm at most w_i·C, and the round is the same Gaussian
mechanism of μ = w_i/z as without a mask, on the vectors that have only the kept coordinates. Nothing is released of the
other coordinates, so the account of the unmasked run holds word for word.

The gain: a mask of share r leaves √r of the noise norm. The price: a round moves r of the weights. The mask is public,
so unlike the random projections of Chen, Song, Özgür and Kairouz 2023 it amplifies nothing.
"""

from __future__ import annotations

import abc
import collections
from collections.abc import Sequence
import dataclasses
import math
from typing import NamedTuple, Optional

import numpy as np

from quap_tff.common import checks
from quap_tff.common.lazy import tf
from quap_tff.common.numbers import seeds
from quap_tff.mechanisms import mechanism


class Sparsity(checks.Checked, abc.ABC):
  """How the kept coordinates are chosen. Subclasses are frozen dataclasses in `SPARSITIES`.

  Attributes:
    uses_releases: Whether the choice follows from earlier releases; if not, from the round and the public seed alone.
    share: The part of each tensor that a round updates, in (0, 1].
  """

  uses_releases: bool = False
  share: float = 1.0

  @property
  def is_sparse(self) -> bool:
    """True if anything is left out."""
    return True

  @abc.abstractmethod
  def sentence(self) -> str:
    """A description, a sentence or two."""

  def kept(self, size: int) -> int:
    """How many of a tensor's `size` entries are updated in a round, at least 1."""
    return max(1, math.ceil(self.share * size - 1e-9))

  @abc.abstractmethod
  def indices(self, seed: tf.Tensor, size: int, released: Sequence[tf.Tensor]) -> tf.Tensor:
    """int32[kept(size)], distinct: the entries of one flattened tensor that a round updates.

    Args:
      seed: int64[2], public, of this round and tensor.
      size: The tensor's number of entries.
      released: float[size], the sum of all that was released of this tensor before; None unless `uses_releases`.
    """


@dataclasses.dataclass(frozen=True)
class NotSparse(Sparsity):
  """Every weight is updated in every round."""

  @property
  def is_sparse(self) -> bool:
    return False

  def sentence(self) -> str:
    return ''

  def kept(self, size: int) -> int:
    return size

  def indices(self, seed: tf.Tensor, size: int, released: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.range(size)


@dataclasses.dataclass(frozen=True)
class RandomMask(Sparsity):
  """A new uniformly random part of each layer in each round, from a public seed: Fed-SMP's random sparsification.

  Attributes:
    share: The part of each tensor that a round updates, in (0, 1].
  """

  share: float = checks.number_field('sparsity share', 0.1, above=0, at_most=1)

  def sentence(self) -> str:
    return (
      f"A round aggregates and noises {self.share:.3g} of each layer's weights, which are drawn anew in each round "
      'from a public seed. The aggregate is zero for the others.'
    )

  def indices(self, seed: tf.Tensor, size: int, released: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.sort(_random_part(seed, size, self.kept(size)))


@dataclasses.dataclass(frozen=True)
class TopReleased(Sparsity):
  """The part of each layer that the releases so far have moved the most, and some random others.

  Fed-SMP chooses its top k from public data. There are none here, so what was released takes their place: an
  interpretation. Earlier releases are private already, so the choice is post-processing and costs nothing.

  Attributes:
    share: The part of each tensor that a round updates, in (0, 1].
    explore: The part of these that is drawn at random, in (0, 1]. Without it, what was left out of the first round
      would never be updated.
  """

  uses_releases = True

  share: float = checks.number_field('sparsity share', 0.1, above=0, at_most=1)
  explore: float = checks.number_field('sparsity explore', 0.5, above=0, at_most=1)

  def sentence(self) -> str:
    return (
      f"A round aggregates and noises {self.share:.3g} of each layer's weights: those that earlier releases moved "
      f'the most, and, for {self.explore:.3g} of them, others drawn from a public seed. The aggregate is zero for '
      'the rest.'
    )

  def indices(self, seed: tf.Tensor, size: int, released: Sequence[tf.Tensor]) -> tf.Tensor:
    kept = self.kept(size)
    # At least one at random, so that every weight can be reached.
    chosen = kept - max(1, math.ceil(self.explore * kept - 1e-9))
    top = tf.math.top_k(tf.abs(tf.reshape(released, [size])), chosen).indices
    taken = tf.scatter_nd(top[:, tf.newaxis], tf.ones([chosen]), [size])
    return tf.sort(tf.concat([top, _random_part(seed, size, kept - chosen, taken)], axis=0))


SPARSITIES = {'none': NotSparse, 'random': RandomMask, 'top_released': TopReleased}


def round_indices(
  sparsity: Sparsity, seed: tf.Tensor, sizes: Sequence[int], released: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
  """The indices of each tensor; `released` is empty unless they depend on it. `seed` is that of the round."""
  found = []
  for index, size in enumerate(sizes):
    own_seed = seeds.fold_in(seed, tf.constant(index, tf.int64))
    last = released[index] if sparsity.uses_releases else None
    found.append(sparsity.indices(own_seed, size, last))
  return found


def _random_part(seed: tf.Tensor, size: int, count: int, taken: Optional[tf.Tensor] = None) -> tf.Tensor:
  """int32[count], distinct, uniformly random among those that are not `taken` (float[size], 1 for taken)."""
  keys = tf.random.stateless_uniform([size], seed)
  if taken is not None:
    keys -= 2.0 * taken
  return tf.math.top_k(keys, count).indices


class SparseState(NamedTuple):
  """The server's state between rounds.

  Attributes:
    mechanism: The inner mechanism's state.
    round: int32 scalar, finished rounds.
    released: float32 tensors as in an update, the sum of all results; empty unless the choice depends on them.
  """

  mechanism: mechanism.State
  round: tf.Tensor
  released: list[tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Sparse(mechanism.Mechanism):
  """Any mechanism, on the kept entries of each update: a shorter vector for each tensor. The rest of a result is zero.

  Attributes:
    inner: The mechanism, which clips and noises what is kept.
    sparsity: Which part is kept.
    seed: A non-negative integer, public: everyone may know which entries are kept.
  """

  choices = (SPARSITIES,)

  inner: mechanism.Mechanism
  sparsity: Sparsity
  seed: int = checks.integer_field('sparsity seed', 0, at_least=0, at_most=2**63 - 1)

  @property
  def num_clients(self) -> int:
    return self.inner.num_clients

  @property
  def core(self) -> mechanism.Mechanism:
    return self.inner.core

  @property
  def facts(self) -> mechanism.Facts:
    return self.inner.facts

  def for_model(
    self, specs: mechanism.Specs, layers: mechanism.Layers, learning_rate_fn: mechanism.LearningRateFn = None
  ) -> mechanism.Rounds:
    kept = [tf.TensorSpec([self.sparsity.kept(math.prod(spec.shape))], spec.dtype) for spec in specs]
    return SparseRounds(self.inner.for_model(kept, layers, learning_rate_fn), self.sparsity, self.seed, specs)

  def scaled(self, factor: float) -> Sparse:
    return dataclasses.replace(self, inner=self.inner.scaled(factor))

  def seen(self, state: mechanism.State) -> mechanism.Evidence:
    return self.inner.seen(state.mechanism)

  def spent(self, state: mechanism.State, metrics: mechanism.Measurements, cohort: np.ndarray) -> mechanism.RoundRecord:
    return self.inner.spent(state.mechanism, metrics, cohort)

  def planned(self, cohorts: Sequence[np.ndarray]) -> list[mechanism.RoundRecord]:
    return self.inner.planned(cohorts)


class SparseRounds(mechanism.Rounds):
  """The functions of an inner mechanism for what is kept of each update."""

  prepares = True

  def __init__(self, inner: mechanism.Rounds, sparsity: Sparsity, seed: int, specs: mechanism.Specs):
    self.specs, self._inner, self._sparsity, self._seed = specs, inner, sparsity, seed
    for name in ('own_fields', 'needs_each_update', 'sum_dtype', 'reports_by_sum', 'clips_by_this_round', 'waiting'):
      setattr(self, name, getattr(inner, name))

  def _indices(self, round_num: tf.Tensor, released: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    seed = seeds.fold_in(seeds.initial_seed(self._seed, 'sparsity'), tf.cast(round_num, tf.int64))
    return round_indices(self._sparsity, seed, [math.prod(spec.shape) for spec in self.specs], released)

  def _announced_indices(self, announced: mechanism.Struct) -> list[tf.Tensor]:
    # A choice that needs no releases is made by each client from the number of the round, and nothing else is sent.
    return announced['indices'] if self._sparsity.uses_releases else self._indices(announced['round'], [])

  def initial_state(self) -> mechanism.State:
    released = [tf.zeros(spec.shape, tf.float32) for spec in self.specs] if self._sparsity.uses_releases else []
    return SparseState(self._inner.initial_state(), tf.constant(0, tf.int32), released)

  def announce(self, state: mechanism.State) -> mechanism.Struct:
    message = collections.OrderedDict(inner=self._inner.announce(state.mechanism), round=state.round + 1)
    if self._sparsity.uses_releases:
      message['indices'] = self._indices(state.round + 1, state.released)
    return message

  def prepared(self, update: list[tf.Tensor], announced: mechanism.Struct) -> list[tf.Tensor]:
    return [tf.gather(tf.reshape(u, [-1]), i) for u, i in zip(update, self._announced_indices(announced))]

  def report(self, update: list[tf.Tensor], own: mechanism.Struct, announced: mechanism.Struct) -> mechanism.Struct:
    return self._inner.report(update, own, announced['inner'])

  def admit(
    self, state: mechanism.State, announced: mechanism.Struct, reports: mechanism.Struct
  ) -> mechanism.AdmittedRound:
    return self._inner.admit(state.mechanism, announced['inner'], reports)

  def early(self, update: mechanism.Parts, report: mechanism.Struct) -> mechanism.Parts:
    return self._inner.early(update, report)

  def contribution(
    self,
    update: mechanism.Parts,
    report: mechanism.Struct,
    announced: mechanism.Struct,
    clip: Optional[tf.Tensor] = None,
  ) -> list[tf.Tensor]:
    return self._inner.contribution(update, report, announced['inner'], clip)

  def combined(self, contributions: list[tf.Tensor], weights: tf.Tensor) -> list[tf.Tensor]:
    return self._inner.combined(contributions, weights)

  def release(
    self, state: mechanism.State, admitted: mechanism.AdmittedRound, total: list[tf.Tensor]
  ) -> tuple[mechanism.State, list[tf.Tensor], mechanism.Struct]:
    inner, kept, metrics = self._inner.release(state.mechanism, admitted, total)
    indices = self._announced_indices(self.announce(state))
    result = [
      tf.reshape(tf.scatter_nd(places[:, tf.newaxis], u, [math.prod(spec.shape)]), spec.shape)
      for places, u, spec in zip(indices, kept, self.specs)
    ]
    released = [before + tf.cast(u, tf.float32) for before, u in zip(state.released, result)]
    return SparseState(inner, state.round + 1, released), result, metrics
