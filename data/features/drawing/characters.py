"""Drawings of random characters, as a hand would write them: nobody's data.

Glyphs of `data.features.drawing.glyphs` are strokes anywhere. A character is nearer to those of alphabets: stems, bars,
arcs, loops, corners and hooks between the lines of a grid, which begin on one another, and a second half of the
alphabet that differs from the first in one stroke. Ink is a sum of Gaussians on the strokes' points, S = Σ_p
|Δp|/(√(2π)σ)· exp(-|x - p|²/2σ²), which is a product of matrices because a Gaussian is a product over rows and columns.
"""

import dataclasses

import numpy as np

from data.features.drawing import glyphs
from quap_tff.common import checks

MAX_STROKES = 4
POINTS = 32  # On each stroke; they are less than two deviations of the pen apart.
_KINDS = {'line': 0.34, 'arc': 0.24, 'loop': 0.1, 'curve': 0.14, 'corner': 0.12, 'dot': 0.06}  # Shares of strokes.
_T = np.linspace(0, 1, POINTS, dtype=np.float32)[:, None]


@dataclasses.dataclass(frozen=True, eq=False)
class Alphabet:
  """Characters, each of one to four strokes.

  Attributes:
    strokes: float32[k, 4, 32, 2], points along the strokes, most of them in [-1, 1].
    present: bool[k, 4], which of the strokes there are.
  """

  strokes: np.ndarray
  present: np.ndarray

  def __len__(self) -> int:
    return len(self.strokes)


def alphabet(size: int, rng: np.random.Generator) -> Alphabet:
  """`size` random characters."""
  checks.integer('size', size, at_least=1)
  strokes = np.zeros((size, MAX_STROKES, POINTS, 2), np.float32)
  present = np.arange(MAX_STROKES) < rng.choice([1, 2, 3, 4], size, p=[0.15, 0.4, 0.3, 0.15])[:, None]
  first = (size + 1) // 2
  for i in range(size):
    if i < first:
      for s in range(MAX_STROKES):
        strokes[i, s] = _stroke(strokes[i, :s], rng)
    else:
      strokes[i], present[i] = strokes[i - first], present[i - first]
      s = rng.integers(present[i].sum() + (not present[i].all()))
      strokes[i, s] = _stroke(strokes[i, :s], rng)
      present[i, s] = True
  return Alphabet(strokes, present)


def _place(rng):
  """A place on the lines that letters keep to, or anywhere."""
  if rng.random() < 0.7:
    return np.array([rng.choice([-0.6, 0, 0.6]), rng.choice([-1, -0.5, 0, 0.5, 1])]) + rng.normal(0, 0.06, 2)
  return rng.uniform(-1, 1, 2) * (0.8, 1)


def _stroke(earlier, rng):
  """Points float32[32, 2] of one more stroke."""
  begin, end = _place(rng), _place(rng)
  while np.hypot(*(end - begin)) < 0.4:
    end = _place(rng)
  if len(earlier):
    touched = earlier[rng.integers(len(earlier))]
    if rng.random() < 0.65:
      begin = touched[rng.choice([0, POINTS // 2, POINTS - 1, rng.integers(POINTS)])]
    if rng.random() < 0.3:
      end = touched[rng.choice([0, POINTS // 2, POINTS - 1, rng.integers(POINTS)])]
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


def draw(characters: Alphabet, copies: int, side: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
  """Draws each character `copies` times, every time in another hand.

  Returns:
    uint8[len(characters) * copies, side, side], 255 = ink, and int32 labels, the indices of the characters.
  """

  def painted(rows):
    points, present = _written(characters, rows, side, rng)
    return _inked(points, present, side, rng)

  return glyphs.in_batches(len(characters), copies, side, painted)


def _waves(n, deviations, rng):
  """Slow random curves along each stroke: float32[n, 4, 32, 2], Σ_j c_j·cos(πjt) with deviations for each j."""
  basis = np.cos(np.pi * _T * np.arange(len(deviations), dtype=np.float32))
  coefficients = rng.normal(size=(n, MAX_STROKES, len(deviations), 2)) * np.array(deviations)[:, None]
  return basis @ coefficients.astype(np.float32)


def _written(characters, rows, side, rng):
  """Points on the strokes, float32[n, 4, 32, 2] in pixels, and which strokes there are, bool[n, 4]."""
  n, present = len(rows), characters.present[rows]
  points = characters.strokes[rows] + _waves(n, (0.07, 0.07, 0.05, 0.02), rng)
  # The hand bends, turns, slants and stretches the whole.
  x, y = points[..., 0], points[..., 1]
  bent = np.stack([x * x, x * y, y * y], axis=-1).reshape(n, -1, 3)
  flat = points.reshape(n, -1, 2) + bent @ rng.normal(0, 0.08, (n, 3, 2)).astype(np.float32)
  angle, slant = rng.normal(0, 0.12, n), rng.normal(0, 0.22, n)
  width, height = np.exp(rng.normal(0, 0.15, (2, n)))
  cosine, sine = np.cos(angle), np.sin(angle)
  affine = np.stack([cosine * width, sine * width, (slant - sine) * height, cosine * height], axis=1)
  flat = flat @ affine.reshape(n, 2, 2).astype(np.float32)
  there = np.repeat(present, POINTS, axis=1)[..., None]
  lowest, highest = np.where(there, flat, np.inf).min(axis=1), np.where(there, flat, -np.inf).max(axis=1)
  extent = np.maximum((highest - lowest).max(axis=1), 0.3)  # A dot stays a dot.
  scale = rng.uniform(0.62, 0.82, n) * side / extent
  # MNIST centres a digit by its mass, EMNIST a character by its box.
  mass, share = (flat * there).sum(axis=1) / there.sum(axis=1), rng.random((n, 1))
  centre = share * mass + (1 - share) * (lowest + highest) / 2
  flat = (flat - centre[:, None]) * scale[:, None, None]
  flat += (side - 1) / 2 + rng.normal(0, 0.02 * side, (n, 1, 2))
  return flat.reshape(points.shape).astype(np.float32), present


def _inked(points, present, side, rng):
  n, unit = len(points), side / 28
  pen = 0.95 * unit * np.exp(rng.normal(0, 0.25, (n, 1, 1)) + _waves(n, (0.08, 0.1), rng)[..., 0])
  pen = np.clip(pen, 0.5 * unit, 2 * unit).astype(np.float32)
  step = np.linalg.norm(np.gradient(points, axis=2), axis=-1)
  weight = np.maximum(step / pen, np.float32(2.5 / POINTS)) * np.float32(1 / np.sqrt(2 * np.pi)) * present[..., None]
  weight, pen, points = weight.reshape(n, 1, -1), pen.reshape(n, 1, -1), points.reshape(n, 1, -1, 2)
  at = np.arange(side, dtype=np.float32)[:, None]
  columns, rows = (np.exp(-0.5 * ((at - points[..., axis]) / pen) ** 2) for axis in (0, 1))
  ink = (weight * rows) @ columns.transpose(0, 2, 1)
  slope = rng.uniform(1.05, 2.2, (n, 1, 1)).astype(np.float32)
  return np.rint(np.clip(slope * (ink - 0.5) + 0.5, 0, 1) * 255).astype(np.uint8)
