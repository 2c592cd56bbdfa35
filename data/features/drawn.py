"""Features of colour images, learned from drawings alone: filters from dead leaves, directions from drawn things.

An image goes through six fixed steps; its features are a function of it alone. Steps 1 to 4 are done at two scales: on
the image itself, and on its means over 2x2 pixels. Each scale has k filters of its own.

1. Every 6x6 patch p has its mean taken off and is divided by its contrast, √(variance + c).
2. Each of k filters answers a = dᵀ·ZCA·(p - p̄). A filter d is itself a whitened patch of a drawing, of unit length
   (Coates, Lee and Ng, "An Analysis of Single-Layer Networks in Unsupervised Feature Learning", 2011).
3. Both signs are kept, above a threshold: max(a - ½, 0) and max(-a - ½, 0).
4. Their means over each cell of a 3x3 grid, square roots taken: 18·k numbers at a scale. The cells overlap if 3 does
   not divide the number of places.
5. The mean of these numbers over the image and its mirror image: s. A mirror hardly changes the thing that is shown.
6. Linear discriminants: φ = Λ^p·Uᵀ·(s - s̄), with S_b·u = λ·(S_w + α·I)·u. S_b and S_w are the covariances of s, each
   number in units of its own deviation, between and within drawn things that are seen in many views. Directions that
   change from view to view get little weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import functools
from typing import Any, Optional

import numpy as np

from data.features import drawings
from data.features import leaves
from data.features import maps
from data.features import store
from quap_tff.common import checks
from quap_tff.common import lazy
from quap_tff.common.lazy import tf

linalg = lazy.module('scipy.linalg')

PATCH = 6
GRID = 3
# Sides of the squares of pixels whose means the filters see.
SCALES = (1, 2)
_NUMBERS_A_SCALE = 2 * GRID**2
# For each of k: every scale has k filters.
NUMBERS_A_FILTER = len(SCALES) * _NUMBERS_A_SCALE
SCENES = 4000
# The lowest side that leaves each cell of the grid a place of a patch at the coarsest scale.
SMALLEST_SIDE = max(SCALES) * (PATCH - 1 + GRID)

# Raised whenever the same recipe comes to give other features.
_VERSION = 2

SIZE = 32, 32
_PATCHES = 100_000
# On pixels in [0, 1]; as in Coates, Lee and Ng, whose pixels go to 255.
_CONTRAST = 10 / 255**2
_ZCA = 0.1
_THRESHOLD = 0.5
_SMALLEST_DEVIATION = 1e-3
# Of the mean variance within things. An estimate out of 24,000 drawings is noisy in thousands of directions.
_RIDGE = 1.0
_POWER = 0.25
# Ratios of the variance between things to the variance within. Of 1,600 directions the lower half has about 0.
_LEAST_RATIO = 1e-3
# Directions that are kept of each scale before the discriminants; of 18·k, they hold nearly all variance.
_PRINCIPAL, _ROUNDS, _SPARE = 800, 2, 50
_BATCH = 100


@dataclasses.dataclass(frozen=True)
class Drawn(maps.Learned):
  """Features of colour images, learned from drawings alone.

  The learned arrays follow from the parameters, take minutes to compute, and are kept in the folder of features.

  Attributes:
    size: Number of features.
    filters: k, the number of filters of each scale, each a patch of a drawing.
    kinds: Number of drawn things that the features are to tell apart.
    views: Drawings of each.
    seed: The seed of all drawings and of the choice of patches.
    centred: Whether the mean of the features of other drawings is taken off, see `data.features.drawings`.
  """

  size: int = checks.integer_field('drawn size', 256, at_least=1)
  filters: int = checks.integer_field('drawn filters', 400, at_least=1)
  kinds: int = checks.integer_field('drawn kinds', 2000, at_least=2)
  views: int = checks.integer_field('drawn views', 12, at_least=2)
  seed: int = checks.integer_field('drawn seed', 0, at_least=0)
  centred: bool = False

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.size >= self.kinds:
      raise ValueError(
        f'drawn features tell kinds={self.kinds} things apart, which takes fewer directions than that: found '
        f'size={self.size}. Use a smaller size, or more kinds.'
      )
    if self.size > NUMBERS_A_FILTER * self.filters:
      raise ValueError(
        f'drawn filters={self.filters} give {NUMBERS_A_FILTER * self.filters} numbers, found '
        f'size={self.size}. Use a smaller size, or more filters.'
      )

  def check(self, input_shape: tuple[int, ...]) -> None:
    if len(input_shape) != 3 or input_shape[2] != 3 or min(input_shape[:2]) < SMALLEST_SIDE:
      raise ValueError(
        f'Drawn features need colour images [height, width, 3] of at least {SMALLEST_SIDE} pixels a side, but '
        f'examples have the shape {tuple(input_shape)}.'
      )

  def learned(self) -> tuple[str, str]:
    digest = store.digest_of_arrays(kept(self))
    return (
      f'drawn {digest} numpy={np.__version__} tensorflow={tf.__version__}',
      f'Learned on {SCENES:,} drawings of random leaves and {self.kinds * self.views:,} of {self.kinds:,} '
      f"random things: a program's output, no data. Filters and directions of SHA-256 {digest}.",
    )

  def map(self, input_shape: tuple[int, ...]) -> drawings.Extractor:
    extract = extractor(kept(self), (input_shape[0], input_shape[1]))
    return lambda x: maps.unit_rows(extract(x))

  def statistics(self) -> Optional[drawings.FeatureStatistics]:
    if not self.centred:
      return None
    shape = (*SIZE, 3)  # Whatever the size of the images: the mean is a part of the map.
    return drawings.statistics(lambda: self.map(shape), self.learned()[0], shape, None, True)


@functools.lru_cache(maxsize=1)
def kept(recipe: Drawn) -> dict[str, np.ndarray]:
  """The arrays of `learn`, from memory, or from the user's feature store, or learned and kept there."""
  # The key of files that are kept already.
  parameters = ', '.join(f'{name}={getattr(recipe, name)}' for name in ('size', 'filters', 'kinds', 'views', 'seed'))
  fingerprint = f'drawn {_VERSION} Recipe({parameters}) numpy={np.__version__} tensorflow={tf.__version__}'
  return store.kept(fingerprint, lambda: learn(recipe))


def learn(recipe: Drawn) -> dict[str, np.ndarray]:
  """Draws, and learns the filters and directions, in some minutes on two cores at the default sizes.

  Returns:
    float32 arrays: filters_1 [6, 6, 3, k], offsets_1 [k] and sums_1 [k] of the filters on pixels, filters_2, offsets_2
    and sums_2 on means over 2x2 pixels, mean [36·k], directions [36·k, size].
  """
  rng = np.random.default_rng(recipe.seed)
  scenes = leaves.scenes(SCENES, SIZE, rng)
  learned = {}
  for scale in SCALES:
    learned.update(_filters(_coarser(scenes, scale), scale, recipe.filters, rng))
  kinds = np.tile(np.arange(recipe.kinds), recipe.views)
  things = leaves.views(leaves.things(recipe.kinds, rng), kinds, SIZE, rng)
  respond = _responses(learned, SIZE)
  responses = np.empty((len(things), NUMBERS_A_FILTER * recipe.filters), np.float32)
  for start in range(0, len(things), _BATCH):
    rows = slice(start, start + _BATCH)
    responses[rows] = respond(things[rows] / np.float32(255))
  learned['mean'], learned['directions'] = _discriminants(responses, kinds, recipe.size, rng)
  return learned


def extractor(learned: dict[str, np.ndarray], image_size: tuple[int, int]) -> drawings.Extractor:
  """The function float32[b, height, width, 3] in [0, 1] -> float32[b, size], not yet of unit norm.

  Args:
    learned: From `learn`.
    image_size: (height, width), each at least `SMALLEST_SIDE`. The grid's cells are larger on larger images.
  """
  respond = _responses(learned, image_size)
  offset = learned['mean'] @ learned['directions']
  return lambda x: respond(x) @ learned['directions'] - offset


def _coarser(images: np.ndarray, scale: int) -> np.ndarray:
  """Means over squares of scale x scale pixels, float32; rows and columns that are left over are cut off."""
  n, height, width, colours = images.shape
  height, width = height // scale, width // scale
  squares = images[:, : height * scale, : width * scale].reshape(n, height, scale, width, scale, colours)
  return squares.mean(axis=(2, 4), dtype=np.float32)


def _filters(scenes: np.ndarray, scale: int, k: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
  """Steps 1 and 2: patches of the scenes, whitened, k of them chosen; whitening is folded into the filters."""
  places = (rng.integers(0, side - PATCH + 1, _PATCHES) for side in scenes.shape[1:3])
  axes: Any = (1, 2)  # NumPy's types know no axis that is a tuple.
  windows = np.lib.stride_tricks.sliding_window_view(scenes, (PATCH, PATCH), axis=axes)
  # [n, 3, 6, 6] -> [n, 6, 6, 3]
  patches = np.moveaxis(windows[(rng.integers(0, len(scenes), _PATCHES), *places)], 1, -1).reshape(_PATCHES, -1)
  patches = patches / np.float32(255)
  patches -= patches.mean(axis=1, keepdims=True)
  patches /= np.sqrt(np.mean(patches**2, axis=1, keepdims=True) + np.float32(_CONTRAST))
  mean = patches.mean(axis=0, dtype=np.float64)
  eigenvalues, eigenvectors = np.linalg.eigh(np.cov(patches, rowvar=False))
  zca = (eigenvectors / np.sqrt(eigenvalues + _ZCA)) @ eigenvectors.T
  chosen = (patches[rng.choice(_PATCHES, k, replace=False)] - mean) @ zca
  filters = zca @ (chosen / np.linalg.norm(chosen, axis=1, keepdims=True)).T
  kept = dict(filters=filters.reshape(PATCH, PATCH, 3, k), sums=filters.sum(axis=0), offsets=mean @ filters)
  return {f'{name}_{scale}': array.astype(np.float32) for name, array in kept.items()}


def _responses(learned: Mapping[str, np.ndarray], image_size: Sequence[int]) -> drawings.Extractor:
  """Steps 1 to 5: images float32[b, height, width, 3] -> float32[b, 36·k], the numbers of one scale after the other."""

  @tf.function(input_signature=[tf.TensorSpec([None, *image_size, 3], tf.float32)])
  def respond(x: tf.Tensor) -> tf.Tensor:
    mirrored = x[:, :, ::-1]
    numbers = tf.concat([_pooled(x, learned, scale) for scale in SCALES], axis=-1)
    numbers_of_mirrored = tf.concat([_pooled(mirrored, learned, scale) for scale in SCALES], axis=-1)
    return (numbers + numbers_of_mirrored) / 2

  return lambda x: respond(x).numpy()


def _pooled(x: tf.Tensor, learned: Mapping[str, np.ndarray], scale: int) -> tf.Tensor:
  """Steps 1 to 4 at one scale."""
  filters, sums, offsets = (learned[f'{name}_{scale}'] for name in ('filters', 'sums', 'offsets'))
  x = tf.nn.avg_pool2d(x, scale, scale, 'VALID')
  average = np.full((PATCH, PATCH, 3, 1), 1 / (3 * PATCH**2), np.float32)
  places = [side - PATCH + 1 for side in x.shape[1:3]]
  steps = [count // GRID for count in places]
  # Cells overlap where the grid does not divide the places.
  cell = [count - (GRID - 1) * step for count, step in zip(places, steps)]

  def convolve(images: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    return tf.nn.conv2d(images, kernel, 1, 'VALID')

  mean = convolve(x, average)
  contrast = tf.sqrt(tf.maximum(convolve(x * x, average) - mean**2, 0) + _CONTRAST)
  answers = (convolve(x, filters) - mean * sums) / contrast - offsets
  both = tf.concat([tf.nn.relu(answers - _THRESHOLD), tf.nn.relu(-answers - _THRESHOLD)], axis=-1)
  means = tf.nn.avg_pool2d(both, cell, steps, 'VALID')
  return tf.reshape(tf.sqrt(means), [tf.shape(x)[0], _NUMBERS_A_SCALE * filters.shape[-1]])


def _discriminants(
  responses: np.ndarray, kinds: np.ndarray, size: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
  """Step 6: the mean, float32[m], and the directions, float32[m, size], of responses float32[n, m]."""
  mean = responses.mean(axis=0)
  # In place: at the default sizes this is 1.4 GB.
  responses -= mean
  deviation = np.sqrt(np.einsum('ij,ij->j', responses, responses) / len(responses)) + np.float32(_SMALLEST_DEVIATION)
  responses /= deviation
  scales = np.split(responses, len(SCALES), axis=1)
  bases = [_principal(part, max(size, _PRINCIPAL), rng) for part in scales]
  z = np.concatenate([part @ basis for part, basis in zip(scales, bases)], axis=1).astype(np.float64)
  num_kinds = kinds.max() + 1
  views = len(kinds) // num_kinds
  z = z[np.argsort(kinds, kind='stable')].reshape(num_kinds, views, -1)
  centres = z.mean(axis=1)
  within = (z - centres[:, None]).reshape(len(kinds), -1)
  within = within.T @ within / (len(kinds) - num_kinds)
  # The mean of a few views has a part of the variance within.
  between = np.cov(centres, rowvar=False) - within / views
  within += _RIDGE * np.trace(within) / len(within) * np.eye(len(within))
  whitening = np.linalg.inv(np.linalg.cholesky(within)).T
  ratios, rotation = np.linalg.eigh(whitening.T @ between @ whitening)
  best = np.argsort(-ratios)[:size]
  scaled = whitening @ rotation[:, best] * np.maximum(ratios[best], _LEAST_RATIO) ** _POWER
  directions = linalg.block_diag(*bases) @ scaled
  return mean, (directions / deviation[:, None]).astype(np.float32)


def _principal(x: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
  """An orthonormal basis of nearly the `count` first principal directions of x, [n, m], by subspace iteration."""
  width = min(count + _SPARE, *x.shape)
  basis = rng.normal(size=(x.shape[1], width)).astype(np.float32)
  for _ in range(_ROUNDS):
    basis, _ = np.linalg.qr(x.T @ (x @ basis))
  projected = x @ basis
  _, rotation = np.linalg.eigh(projected.T @ projected)
  return basis @ rotation[:, ::-1][:, :count]
