"""Drawings of random glyphs, strokes along cubic Bézier curves: nobody's data."""

import dataclasses
from typing import Callable

import numpy as np

from quap_tff.common import checks

_MAX_STROKES = 3
_POINTS = 40  # On each stroke; at 28 pixels they are less than a pixel apart.
# A glyph fills 20 of 28 pixels, and is centred by its mass, as MNIST's digits and EMNIST's characters are.
_FILLED = 20 / 28
_BATCH = 500


@dataclasses.dataclass(frozen=True, eq=False)
class Alphabet:
  """Glyphs, each of one to three strokes.

  Attributes:
    strokes: float32[k, 3, 4, 2], the control points, as drawn from [-1, 1].
    present: bool[k, 3], which of the strokes there are.
  """

  strokes: np.ndarray
  present: np.ndarray

  def __len__(self) -> int:
    return len(self.strokes)


def alphabet(size: int, rng: np.random.Generator) -> Alphabet:
  """`size` random glyphs; strokes often begin where the one before passes, and some are straight or closed."""
  checks.integer('size', size, at_least=1)
  present = np.arange(_MAX_STROKES) < rng.integers(1, _MAX_STROKES + 1, size)[:, None]
  strokes = rng.uniform(-1, 1, (size, _MAX_STROKES, 4, 2)).astype(np.float32)
  for s in range(1, _MAX_STROKES):
    joined = rng.random(size) < 0.6
    at = rng.integers(0, 4, size)
    strokes[joined, s, 0] = strokes[np.arange(size), s - 1, at][joined]
  closed = rng.random((size, _MAX_STROKES)) < 0.2
  strokes[closed, 3] = strokes[closed, 0]
  straight = rng.random((size, _MAX_STROKES)) < 0.3
  for point, share in ((1, 1 / 3), (2, 2 / 3)):
    strokes[straight, point] = (1 - share) * strokes[straight, 0] + share * strokes[straight, 3]
  return Alphabet(strokes, present)


def draw(letters: Alphabet, copies: int, side: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
  """Draws each glyph `copies` times, every time in another hand: bent, slanted, stretched, by another pen.

  Returns:
    uint8[len(letters) * copies, side, side], 255 = ink, and int32 labels, the indices of the glyphs.
  """

  def painted(rows):
    points, present = _written(letters, rows, side, rng)
    return _rasterize(points, present, side, rng)

  return in_batches(len(letters), copies, side, painted)


def in_batches(
  size: int, copies: int, side: int, paint: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
  """`copies` drawings of each of `size` things, of which `paint` draws int32[n] at a time: uint8[n, side, side].

  Returns:
    uint8[size * copies, side, side] and their int32 labels, in [0, size).
  """
  checks.integer('copies', copies, at_least=1)
  checks.integer('side', side, at_least=4)
  labels = np.tile(np.arange(size, dtype=np.int32), copies)
  images = np.empty((len(labels), side, side), np.uint8)
  for start in range(0, len(labels), _BATCH):
    images[start : start + _BATCH] = paint(labels[start : start + _BATCH])
  return images, labels


def _written(letters, rows, side, rng):
  """Points on the strokes, float32[n, p, 2] in pixels, and which of them there are, bool[n, p]."""
  n = len(rows)
  control = letters.strokes[rows] + rng.normal(0, 0.13, (n, _MAX_STROKES, 4, 2)).astype(np.float32)
  angle, slant = rng.normal(0, 0.15, n), rng.normal(0, 0.2, n)
  width, height = np.exp(rng.normal(0, 0.12, (2, n)))
  cosine, sine = np.cos(angle), np.sin(angle)
  affine = np.stack([cosine * width, (slant - sine) * height, sine * width, cosine * height], axis=1)
  control = np.einsum('nij,nskj->nski', affine.reshape(n, 2, 2).astype(np.float32), control)
  t = np.linspace(0, 1, _POINTS, dtype=np.float32)
  bernstein = np.stack([(1 - t) ** 3, 3 * (1 - t) ** 2 * t, 3 * (1 - t) * t**2, t**3], axis=1)
  points = np.einsum('tk,nskj->nstj', bernstein, control).reshape(n, -1, 2)
  present = np.repeat(letters.present[rows], _POINTS, axis=1)
  there = present[..., None]
  lowest, highest = np.where(there, points, np.inf).min(axis=1), np.where(there, points, -np.inf).max(axis=1)
  extent = np.maximum((highest - lowest).max(axis=1), 0.3)  # A dot stays a dot.
  points *= (_FILLED * side / extent)[:, None, None].astype(np.float32)
  mass = (points * there).sum(axis=1) / present.sum(axis=1, keepdims=True)
  points += ((side - 1) / 2 + rng.normal(0, 0.025 * side, (n, 2)) - mass)[:, None].astype(np.float32)
  return points, present


def _rasterize(points, present, side, rng):
  rows, columns = np.mgrid[:side, :side].reshape(2, 1, -1).astype(np.float32)
  squared = np.full((len(points), side * side), np.inf, np.float32)
  for p in range(points.shape[1]):
    distance = (columns - points[:, p, :1]) ** 2 + (rows - points[:, p, 1:]) ** 2
    np.minimum(squared, np.where(present[:, p, None], distance, np.inf), out=squared)
  unit = np.float32(side / 28)
  half_width = unit * np.exp(rng.normal(0.15, 0.3, (len(points), 1))).astype(np.float32)
  ink = np.clip((half_width + 0.7 * unit - np.sqrt(squared)) / (1.2 * unit), 0, 1)
  return np.rint(ink * 255).astype(np.uint8).reshape(-1, side, side)
