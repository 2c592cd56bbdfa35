"""Which weights a round updates: full noise on every layer, while only a part of each layer moves.

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
from collections.abc import Sequence
import dataclasses
import math
from typing import Any

from quap_tff.common import checks
from quap_tff.common import seeds
from quap_tff.common.lazy import tf


class Sparsity(abc.ABC):
  """How the kept coordinates are chosen. Subclasses are frozen dataclasses in `SPARSITIES`.

  Attributes:
    uses_releases: Whether the choice follows from earlier releases; if not, from the round and the public seed alone.
  """

  uses_releases: bool = False

  @property
  def is_sparse(self) -> bool:
    """Whether anything is left out."""
    return True

  @abc.abstractmethod
  def sentence(self) -> str:
    """What is done, a sentence or two."""

  def kept(self, size: int) -> int:
    """How many of a tensor's `size` entries are updated in a round, at least 1."""
    return max(1, math.ceil(self.share * size - 1e-9))

  @abc.abstractmethod
  def indices(self, seed: tf.Tensor, size: int, released: Any) -> tf.Tensor:
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
  def is_sparse(self):
    return False

  def sentence(self):
    return ''

  def kept(self, size):
    return size

  def indices(self, seed, size, released):
    return tf.range(size)


@dataclasses.dataclass(frozen=True)
class RandomMask(Sparsity):
  """A new uniformly random part of each layer in each round, from a public seed: Fed-SMP's random sparsification.

  Attributes:
    share: The part of each tensor that a round updates, in (0, 1].
  """

  share: float = 0.1

  def __post_init__(self):
    checks.number('sparsity share', self.share, above=0, at_most=1)

  def sentence(self):
    return (
      f"A round aggregates and noises {self.share:.3g} of each layer's weights, which are drawn anew in each round "
      'from a public seed. The aggregate is zero for the others.'
    )

  def indices(self, seed, size, released):
    return tf.sort(_random_part(seed, size, self.kept(size)))


@dataclasses.dataclass(frozen=True)
class TopReleased(Sparsity):
  """The part of each layer that has moved the most in what was released so far, and some random others.

  Fed-SMP chooses its top k from public data. There are none here, so what was released takes their place: an
  interpretation. Earlier releases are private already, so the choice is post-processing and costs nothing.

  Attributes:
    share: The part of each tensor that a round updates, in (0, 1].
    explore: The part of these that is drawn at random, in (0, 1]. Without it, what was left out of the first round
      would never be updated.
  """

  uses_releases = True

  share: float = 0.1
  explore: float = 0.5

  def __post_init__(self):
    checks.number('sparsity share', self.share, above=0, at_most=1)
    checks.number('sparsity explore', self.explore, above=0, at_most=1)

  def sentence(self):
    return (
      f"A round aggregates and noises {self.share:.3g} of each layer's weights: those that earlier releases moved "
      f'the most, and, for {self.explore:.3g} of them, others drawn from a public seed. The aggregate is zero for '
      'the rest.'
    )

  def indices(self, seed, size, released):
    kept = self.kept(size)
    # At least one at random, so that every weight can be reached.
    chosen = kept - max(1, math.ceil(self.explore * kept - 1e-9))
    top = tf.math.top_k(tf.abs(tf.reshape(released, [size])), chosen).indices
    taken = tf.scatter_nd(top[:, tf.newaxis], tf.ones([chosen]), [size])
    return tf.sort(tf.concat([top, _random_part(seed, size, kept - chosen, taken)], axis=0))


SPARSITIES = {'none': NotSparse, 'random': RandomMask, 'top_released': TopReleased}


def round_indices(
  sparsity: Sparsity, seed: tf.Tensor, sizes: Sequence[int], released: Sequence[Any]
) -> list[tf.Tensor]:
  """The indices of each tensor; `released` is empty unless they depend on it. `seed` is that of the round."""
  return [
    sparsity.indices(
      seeds.fold_in(seed, tf.constant(index, tf.int64)), size, released[index] if sparsity.uses_releases else None
    )
    for index, size in enumerate(sizes)
  ]


def _random_part(seed, size, count, taken=None):
  """int32[count], distinct, uniformly random among those that are not `taken` (float[size], 1 for taken)."""
  keys = tf.random.stateless_uniform([size], seed)
  return tf.math.top_k(keys if taken is None else keys - 2.0 * taken, count).indices
