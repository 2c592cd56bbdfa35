"""Drawings of characters, as a hand would write them: random glyphs and characters, digits and Latin letters.

A program draws them, from shapes that a generator makes up, or that its authors wrote into latin.txt. They are nobody's
data.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
import dataclasses
import pathlib

import numpy as np

from quap_tff.common import checks

_BATCH = 500


@dataclasses.dataclass(frozen=True, eq=False)
class Alphabet(abc.ABC):
  """k shapes, each of a few strokes.

  Attributes:
    strokes: float32[k, s, p, 2], p points that determine each stroke, most of them in [-1, 1].
    present: bool[k, s], which of the strokes there are.
  """

  strokes: np.ndarray
  present: np.ndarray

  def __len__(self) -> int:
    return len(self.strokes)

  @abc.abstractmethod
  def painted(self, labels: np.ndarray, side: int, rng: np.random.Generator) -> np.ndarray:
    """A drawing of each of the shapes `labels`, int32[n]: uint8[n, side, side], 255 = ink."""


def draw(alphabet: Alphabet, copies: int, side: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
  """Draws each shape `copies` times, every time in another hand: bent, slanted, stretched, by another pen.

  Returns:
    uint8[len(alphabet) * copies, side, side], 255 = ink, and int32 labels, the indices of the shapes.
  """
  checks.integer('side', side, at_least=4)
  labels = np.tile(np.arange(len(alphabet), dtype=np.int32), copies)
  images = np.empty((len(labels), side, side), np.uint8)
  for start in range(0, len(labels), _BATCH):
    images[start : start + _BATCH] = alphabet.painted(labels[start : start + _BATCH], side, rng)
  return images, labels


def _slanted(n: int, angle: float, slant: float, stretch: float, rng: np.random.Generator) -> np.ndarray:
  """Matrices float32[n, 2, 2], to the right of points, that turn, slant and stretch by these normal deviations."""
  turns, slants = rng.normal(0, angle, n), rng.normal(0, slant, n)
  width, height = np.exp(rng.normal(0, stretch, (2, n)))
  cosine, sine = np.cos(turns), np.sin(turns)
  affine = np.stack([cosine * width, sine * width, (slants - sine) * height, cosine * height], axis=1)
  return affine.reshape(n, 2, 2).astype(np.float32)


def _box(points: np.ndarray, there: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """The lowest and the highest coordinates [n, 2] of the points [n, p, 2] that are there, and the longer side [n]."""
  lowest, highest = np.where(there, points, np.inf).min(axis=1), np.where(there, points, -np.inf).max(axis=1)
  return lowest, highest, np.maximum((highest - lowest).max(axis=1), 0.3)  # A dot stays a dot.


_GLYPH_STROKES = 3
_GLYPH_POINTS = 40  # On each stroke; at 28 pixels they are less than a pixel apart.
# A glyph fills 20 of 28 pixels, and is centred by its mass, as MNIST's digits and EMNIST's characters are.
_FILLED = 20 / 28


class GlyphStrokes(Alphabet):
  """Glyphs, each of one to three strokes anywhere: float32[k, 3, 4, 2], control points of cubic Bézier curves."""

  def painted(self, labels: np.ndarray, side: int, rng: np.random.Generator) -> np.ndarray:
    points, present = self._written(labels, side, rng)
    rows, columns = np.mgrid[:side, :side].reshape(2, 1, -1).astype(np.float32)
    squared = np.full((len(points), side * side), np.inf, np.float32)
    for p in range(points.shape[1]):
      distance = (columns - points[:, p, :1]) ** 2 + (rows - points[:, p, 1:]) ** 2
      np.minimum(squared, np.where(present[:, p, None], distance, np.inf), out=squared)
    unit = np.float32(side / 28)
    half_width = unit * np.exp(rng.normal(0.15, 0.3, (len(points), 1))).astype(np.float32)
    ink = np.clip((half_width + 0.7 * unit - np.sqrt(squared)) / (1.2 * unit), 0, 1)
    return np.rint(ink * 255).astype(np.uint8).reshape(-1, side, side)

  def _written(self, labels: np.ndarray, side: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Points on the strokes, float32[n, p, 2] in pixels, and which of them there are, bool[n, p]."""
    n = len(labels)
    control = self.strokes[labels] + rng.normal(0, 0.13, (n, _GLYPH_STROKES, 4, 2)).astype(np.float32)
    control = np.einsum('nji,nskj->nski', _slanted(n, 0.15, 0.2, 0.12, rng), control)
    t = np.linspace(0, 1, _GLYPH_POINTS, dtype=np.float32)
    bernstein = np.stack([(1 - t) ** 3, 3 * (1 - t) ** 2 * t, 3 * (1 - t) * t**2, t**3], axis=1)
    points = np.einsum('tk,nskj->nstj', bernstein, control).reshape(n, -1, 2)
    present = np.repeat(self.present[labels], _GLYPH_POINTS, axis=1)
    there = present[..., None]
    _, _, extent = _box(points, there)
    points *= (_FILLED * side / extent)[:, None, None].astype(np.float32)
    mass = (points * there).sum(axis=1) / present.sum(axis=1, keepdims=True)
    points += ((side - 1) / 2 + rng.normal(0, 0.025 * side, (n, 2)) - mass)[:, None].astype(np.float32)
    return points, present


def random_glyphs(size: int, rng: np.random.Generator) -> GlyphStrokes:
  """`size` random glyphs; strokes often begin where the one before passes, and some are straight or closed."""
  present = np.arange(_GLYPH_STROKES) < rng.integers(1, _GLYPH_STROKES + 1, size)[:, None]
  strokes = rng.uniform(-1, 1, (size, _GLYPH_STROKES, 4, 2)).astype(np.float32)
  for s in range(1, _GLYPH_STROKES):
    joined = rng.random(size) < 0.6
    at = rng.integers(0, 4, size)
    strokes[joined, s, 0] = strokes[np.arange(size), s - 1, at][joined]
  closed = rng.random((size, _GLYPH_STROKES)) < 0.2
  strokes[closed, 3] = strokes[closed, 0]
  straight = rng.random((size, _GLYPH_STROKES)) < 0.3
  for point, share in ((1, 1 / 3), (2, 2 / 3)):
    strokes[straight, point] = (1 - share) * strokes[straight, 0] + share * strokes[straight, 3]
  return GlyphStrokes(strokes, present)


_STROKES = 4
_POINTS = 32  # On each stroke; they are less than two deviations of the pen apart.
_KINDS = {'line': 0.34, 'arc': 0.24, 'loop': 0.1, 'curve': 0.14, 'corner': 0.12, 'dot': 0.06}  # Shares of strokes.
_T = np.linspace(0, 1, _POINTS, dtype=np.float32)[:, None]


class Characters(Alphabet):
  """Characters, each of one to four strokes: float32[k, 4, 32, 2], points along the strokes.

  Ink is a sum of Gaussians on the strokes' points, S = Σ_p |Δp|/(√(2π)σ)·exp(-|x - p|²/2σ²), which is a product of
  matrices because a Gaussian is a product over rows and columns.
  """

  def painted(self, labels: np.ndarray, side: int, rng: np.random.Generator) -> np.ndarray:
    points, present = self._written(labels, side, rng)
    return _inked(points, present, side, rng)

  def _written(self, labels: np.ndarray, side: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Points on the strokes, float32[n, 4, 32, 2] in pixels, and which strokes there are, bool[n, 4]."""
    n, present = len(labels), self.present[labels]
    points = self.strokes[labels] + _waves(n, (0.07, 0.07, 0.05, 0.02), rng)
    # The hand bends, turns, slants and stretches the whole.
    x, y = points[..., 0], points[..., 1]
    bent = np.stack([x * x, x * y, y * y], axis=-1).reshape(n, -1, 3)
    flat = points.reshape(n, -1, 2) + bent @ rng.normal(0, 0.08, (n, 3, 2)).astype(np.float32)
    flat = flat @ _slanted(n, 0.12, 0.22, 0.15, rng)
    there = np.repeat(present, _POINTS, axis=1)[..., None]
    lowest, highest, extent = _box(flat, there)
    scale = rng.uniform(0.62, 0.82, n) * side / extent
    # MNIST centres a digit by its mass, EMNIST a character by its box.
    mass, share = (flat * there).sum(axis=1) / there.sum(axis=1), rng.random((n, 1))
    centre = share * mass + (1 - share) * (lowest + highest) / 2
    flat = (flat - centre[:, None]) * scale[:, None, None]
    flat += (side - 1) / 2 + rng.normal(0, 0.02 * side, (n, 1, 2))
    return flat.reshape(points.shape).astype(np.float32), present


def _waves(n: int, deviations: Sequence[float], rng: np.random.Generator) -> np.ndarray:
  """Slow random curves along each stroke: float32[n, 4, 32, 2], Σ_j c_j·cos(πjt) with deviations for each j."""
  basis = np.cos(np.pi * _T * np.arange(len(deviations), dtype=np.float32))
  coefficients = rng.normal(size=(n, _STROKES, len(deviations), 2)) * np.array(deviations)[:, None]
  return basis @ coefficients.astype(np.float32)


def _inked(points: np.ndarray, present: np.ndarray, side: int, rng: np.random.Generator) -> np.ndarray:
  n, unit = len(points), side / 28
  pen = 0.95 * unit * np.exp(rng.normal(0, 0.25, (n, 1, 1)) + _waves(n, (0.08, 0.1), rng)[..., 0])
  pen = np.clip(pen, 0.5 * unit, 2 * unit).astype(np.float32)
  step = np.linalg.norm(np.gradient(points, axis=2), axis=-1)
  weight = np.maximum(step / pen, np.float32(2.5 / _POINTS)) * np.float32(1 / np.sqrt(2 * np.pi)) * present[..., None]
  weight, pen, points = weight.reshape(n, 1, -1), pen.reshape(n, 1, -1), points.reshape(n, 1, -1, 2)
  at = np.arange(side, dtype=np.float32)[:, None]
  columns, rows = (np.exp(-0.5 * ((at - points[..., axis]) / pen) ** 2) for axis in (0, 1))
  ink = (weight * rows) @ columns.transpose(0, 2, 1)
  slope = rng.uniform(1.05, 2.2, (n, 1, 1)).astype(np.float32)
  return np.rint(np.clip(slope * (ink - 0.5) + 0.5, 0, 1) * 255).astype(np.uint8)


def random_characters(size: int, rng: np.random.Generator) -> Characters:
  """`size` random characters, nearer to those of alphabets than glyphs are.

  They have stems, bars, arcs, loops, corners and hooks between the lines of a grid, which begin on one another, and a
  second half of the alphabet that differs from the first in one stroke.
  """
  strokes = np.zeros((size, _STROKES, _POINTS, 2), np.float32)
  present = np.arange(_STROKES) < rng.choice([1, 2, 3, 4], size, p=[0.15, 0.4, 0.3, 0.15])[:, None]
  first = (size + 1) // 2
  for i in range(size):
    if i < first:
      for s in range(_STROKES):
        strokes[i, s] = _stroke(strokes[i, :s], rng)
    else:
      strokes[i], present[i] = strokes[i - first], present[i - first]
      s = rng.integers(present[i].sum() + (not present[i].all()))
      strokes[i, s] = _stroke(strokes[i, :s], rng)
      present[i, s] = True
  return Characters(strokes, present)


def _place(rng: np.random.Generator) -> np.ndarray:
  """A place on the lines that letters keep to, or anywhere."""
  if rng.random() < 0.7:
    return np.array([rng.choice([-0.6, 0, 0.6]), rng.choice([-1, -0.5, 0, 0.5, 1])]) + rng.normal(0, 0.06, 2)
  return rng.uniform(-1, 1, 2) * (0.8, 1)


def _stroke(earlier: np.ndarray, rng: np.random.Generator) -> np.ndarray:
  """Points float32[32, 2] of one more stroke."""
  begin, end = _place(rng), _place(rng)
  while np.hypot(*(end - begin)) < 0.4:
    end = _place(rng)
  if len(earlier):
    touched = earlier[rng.integers(len(earlier))]
    if rng.random() < 0.65:
      begin = touched[rng.choice([0, _POINTS // 2, _POINTS - 1, rng.integers(_POINTS)])]
    if rng.random() < 0.3:
      end = touched[rng.choice([0, _POINTS // 2, _POINTS - 1, rng.integers(_POINTS)])]
  kind = rng.choice(list(_KINDS), p=list(_KINDS.values()))
  if kind == 'loop' or kind != 'dot' and np.hypot(*(end - begin)) < 0.3:
    radii = rng.uniform(0.25, 0.6) * np.exp(rng.normal(0, 0.25, 2)) * (0.9, 1.1)
    angle = rng.uniform(0, 2 * np.pi) + 2 * np.pi * _T
    points = np.hstack([np.cos(angle), np.sin(angle)]) * radii
    return points - points[0] + begin
  if kind == 'dot':
    begin = begin - (0, rng.uniform(0, 0.6))
    end = begin + rng.normal(0, 0.08, 2)
  points = begin + _T * (end - begin)
  across = np.array([begin[1] - end[1], end[0] - begin[0]])
  if kind == 'arc':
    # From a chord to an arc over 60 to 300 degrees, wider along one axis.
    half = np.deg2rad(rng.uniform(30, 150)) * rng.choice([-1, 1])
    along = np.sin((2 * _T - 1) * half) / np.sin(half)
    out = (np.cos((2 * _T - 1) * half) - np.cos(half)) / np.sin(half)
    points = (begin + end) / 2 + along * (end - begin) / 2 + out * across / 2 * rng.uniform(0.7, 1.3)
  elif kind == 'curve':
    one, two = rng.uniform(-1, 1, (2, 2))
    points = (1 - _T) ** 3 * begin + 3 * (1 - _T) ** 2 * _T * one + 3 * (1 - _T) * _T**2 * two + _T**3 * end
  elif kind == 'corner':
    at = rng.uniform(0.3, 0.7)
    points = points + np.minimum(_T / at, (1 - _T) / (1 - at)) * rng.choice([-1, 1]) * rng.uniform(0.3, 1.0) * across
  return points


_CURVE_POINTS = 20  # From one place to the next.


def latin_shapes() -> list[tuple[str, str]]:
  """The shapes of digits and Latin letters in latin.txt, each as the characters that it draws, and its strokes."""
  lines = pathlib.Path(__file__).with_name('latin.txt').read_text(encoding='ascii').splitlines()
  return [(line[:2].rstrip(), line[3:]) for line in lines if not line.startswith('#')]


def latin() -> Characters:
  """The shapes of `latin_shapes`, in their order."""
  shapes = latin_shapes()
  strokes = np.zeros((len(shapes), _STROKES, _POINTS, 2), np.float32)
  present = np.zeros(strokes.shape[:2], bool)
  for i, (_, shape) in enumerate(shapes):
    for s, stroke in enumerate(shape.replace('/', ',/').replace('~', ',~').split(',')[1:]):
      strokes[i, s], present[i, s] = _points(stroke), True
  return Characters(strokes, present)


def _points(stroke: str) -> np.ndarray:
  """Points float[32, 2] at equal distances along a stroke, x in [-0.75, 0.75] and y in [-1, 1]."""
  places = [list(map(int, place)) for place in stroke[1:].split()]
  path = np.array(places, np.float64)
  if stroke[0] == '~':
    path = _catmull_rom(path)
  length = np.append(0, np.cumsum(np.hypot(*np.diff(path, axis=0).T)))
  at = np.linspace(0, length[-1], _POINTS)
  return (np.stack([np.interp(at, length, path[:, axis]) for axis in (0, 1)], axis=1) - 4) / 4 * (0.75, 1)


def _catmull_rom(places: np.ndarray) -> np.ndarray:
  """The curve through `places` whose tangent at each is half the way from the place before to the place after."""
  closed = (places[0] == places[-1]).all()
  before, after = (places[-2], places[1]) if closed else (2 * places[0] - places[1], 2 * places[-1] - places[-2])
  around = np.vstack([before, places, after])
  a, b, c, d = (around[i : len(around) - 3 + i, None] for i in range(4))
  t = np.linspace(0, 1, _CURVE_POINTS, endpoint=False)[:, None]
  curve = b + ((c - a) * t + (2 * a - 5 * b + 4 * c - d) * t**2 + (3 * b - a - 3 * c + d) * t**3) / 2
  return np.vstack([curve.reshape(-1, 2), places[-1:]])
