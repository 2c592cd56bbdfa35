"""Drawings in the place of a run's images, and statistics of their features. A program draws them: nobody's data.

A feature map f is centred and reduced by z = Vᵀ·(f(x) - m), which is then scaled to unit norm, as f(x) was before. Here
m is the mean of f over the drawings, and the columns of V are the first principal directions: the eigenvectors of the
largest eigenvalues of the covariance of f over the drawings.
"""

import dataclasses
import functools
import hashlib
from typing import Callable, Optional

import numpy as np

from data.features import characters
from data.features import leaves
from data.features import store

COUNT, SEED = 2000, 7

# Raised whenever the same drawings and features come to give other statistics.
_VERSION = 1
_BATCH = 50
_COLOURS = 3

Extractor = Callable[[np.ndarray], np.ndarray]


def random_glyphs(input_shape: tuple[int, ...]) -> np.ndarray:
  """`COUNT` glyphs, each drawn once, 1.0 = ink, alike in all channels: float32[COUNT, *input_shape]."""
  rng = np.random.default_rng(SEED)
  height, width, channels = input_shape
  side = min(height, width)
  images, _ = characters.draw(characters.random_glyphs(COUNT, rng), 1, side, rng)
  framed = np.pad(images, ((0, 0), (0, height - side), (0, width - side))) / np.float32(255)
  return np.repeat(framed[..., None], channels, axis=-1)


@functools.lru_cache(maxsize=1)
def drawings_for(input_shape: tuple[int, ...]) -> np.ndarray:
  """Drawings for images of this shape, float32[COUNT, *input_shape]: glyphs, or for three channels things.

  Each glyph of `random_glyphs`, and each thing of `data.features.leaves`, is drawn once.
  """
  if input_shape[2] != _COLOURS:
    return random_glyphs(input_shape)
  rng = np.random.default_rng(SEED)
  height, width, _ = input_shape
  return leaves.views(leaves.things(COUNT, rng), np.arange(COUNT), (height, width), rng) / np.float32(255)


@dataclasses.dataclass(frozen=True, eq=False)
class FeatureStatistics:
  """Statistics of the features of drawings.

  Attributes:
    input_shape: (height, width, channels) of the drawings.
    mean: m, float32[d], or None if features are not centred.
    directions: V, float32[d, k], or None if all features are kept. The largest entry of each column is positive.
  """

  input_shape: tuple[int, ...]
  mean: Optional[np.ndarray]
  directions: Optional[np.ndarray]

  def applied(self, rows: np.ndarray) -> np.ndarray:
    """z of features f, float32[n, d]: float32[n, k], not yet of unit norm."""
    rows = rows if self.mean is None else rows - self.mean
    return rows if self.directions is None else rows @ self.directions

  def digest(self) -> str:
    """The SHA-256 of the statistics."""
    arrays = {'mean': self.mean, 'directions': self.directions}
    return store.digest_of_arrays({name: array for name, array in arrays.items() if array is not None})

  def sentences(self) -> str:
    """Sentences for a certificate: what was done with the features, and by which drawings."""
    done = [] if self.mean is None else ['centred']
    if self.directions is not None:
      done.append(f'reduced to {self.directions.shape[1]} principal components')
    subjects = 'things' if self.input_shape[2] == _COLOURS else 'glyphs'
    return (
      f'{" and ".join(done).capitalize()} by the features of {COUNT:,} drawings of random {subjects} (seed {SEED}): a '
      f"program's output, no data. Statistics of SHA-256 {self.digest()}."
    )


def statistics(
  make: Callable[[], Extractor], fingerprint: str, input_shape: tuple[int, ...], size: Optional[int], centred: bool
) -> FeatureStatistics:
  """The statistics of drawings' features, from the user's feature store, or computed and kept there.

  Args:
    make: Makes the map f, float32[n, *input_shape] -> float32[n, d]. Called only if the statistics are not kept.
    fingerprint: Everything that f depends on.
    input_shape: (height, width, channels).
    size: k, at most d and less than `COUNT`; None: all features are kept.
    centred: Whether the mean is to be taken off.
  """
  x = drawings_for(input_shape)
  seen = hashlib.sha256(x.tobytes()).hexdigest()

  def compute() -> dict[str, np.ndarray]:
    extract = make()
    return _computed(np.concatenate([extract(x[i : i + _BATCH]) for i in range(0, len(x), _BATCH)]), size, centred)

  key = f'drawings {_VERSION} {seen} {fingerprint} size={size} centred={centred} numpy={np.__version__}'
  found = store.kept(key, compute)
  return FeatureStatistics(input_shape, found.get('mean'), found.get('directions'))


def _computed(rows: np.ndarray, size: Optional[int], centred: bool) -> dict[str, np.ndarray]:
  rows = rows.astype(np.float64)
  mean = rows.mean(axis=0)
  found = {'mean': mean} if centred else {}
  if size is not None:
    _, eigenvectors = np.linalg.eigh(np.cov(rows - mean, rowvar=False))
    directions = eigenvectors[:, ::-1][:, :size]
    largest = np.abs(directions).argmax(axis=0)
    found['directions'] = directions * np.sign(directions[largest, np.arange(size)])
  return {name: array.astype(np.float32) for name, array in found.items()}
