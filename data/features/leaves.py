"""Colour drawings: dead leaves, which are discs and boxes that cover each other, and things made of a few of them.

Dead leaves (Matheron 1968; Lee, Mumford and Huang 2001) have statistics that photographs share: edges that hide the
background, sizes without a scale of their own, smooth areas. Baradad et al., "Learning to See by Looking at Noise"
(2021, arXiv:2106.05963) learn features from them. A program draws them; they are nobody's data.
"""

from __future__ import annotations

import dataclasses

import numpy as np

# Lengths are in pixels of an image of 32; other sizes are drawn in proportion.
_SIDE = 32.0
# Radii have a density proportional to radius^-2.7, the exponent near 3 of sizes without a scale.
_SMALLEST, _LARGEST, _EXPONENT = 2.0, 24.0, -1 / 1.7
_MARGIN = 4.0
_BOXES = 0.4
_NOISE = 0.01
_BATCH = 100


@dataclasses.dataclass(frozen=True, eq=False)
class Leaves:
  """Leaves on each of n images, put down in their order.

  Attributes:
    values: float32[n, leaves, 12]: the columns `_PLACE`, …, `_SLOPE` below.
    present: bool[n, leaves], which of the leaves there are.
  """

  values: np.ndarray
  present: np.ndarray


_PLACE, _COLOUR = slice(0, 2), slice(6, 9)
_RADIUS, _FLATNESS, _ANGLE, _BOX = 2, 3, 4, 5
_WAVE, _FREQUENCY, _SLOPE = 9, 10, 11
_COLUMNS = 12


def random_leaves(numbers: np.ndarray, rng: np.random.Generator) -> Leaves:
  """Leaves anywhere on an image and a little beyond it; `numbers`, int[n], says how many."""
  shape = len(numbers), int(numbers.max(initial=1))
  values = np.empty((*shape, _COLUMNS), np.float32)
  values[..., _PLACE] = rng.uniform(-_MARGIN, _SIDE + _MARGIN, (*shape, 2))
  values[..., _RADIUS] = np.minimum(_LARGEST, _SMALLEST * (1 - rng.random(shape)) ** _EXPONENT)
  values[..., _FLATNESS] = rng.uniform(0.25, 1, shape)
  values[..., _ANGLE] = rng.uniform(0, np.pi, shape)
  values[..., _BOX] = rng.random(shape) < _BOXES
  values[..., _COLOUR] = _colours(rng.beta(1.2, 1.2, shape), rng)
  values[..., _WAVE] = rng.normal(0, 0.05, shape)
  values[..., _FREQUENCY] = rng.uniform(0.3, 2.5, shape)
  values[..., _SLOPE] = rng.normal(0, 0.0025, shape)
  return Leaves(values, np.arange(shape[1]) < numbers[:, None])


def _colours(brightness: np.ndarray, rng: np.random.Generator) -> np.ndarray:
  return np.clip(brightness[..., None] + rng.normal(0, 0.12, (*brightness.shape, 3)), 0, 1)


def draw(leaves: Leaves, ground: np.ndarray, size: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
  """Draws leaves on a ground; edges are softened and a little noise is added.

  Args:
    leaves: The leaves of n images.
    ground: float32[n, 3], its colour in [0, 1].
    size: (height, width).
    rng: The generator of the noise.

  Returns:
    uint8[n, height, width, 3], RGB.
  """
  images = np.empty((len(ground), *size, 3), np.uint8)
  for start in range(0, len(images), _BATCH):
    rows = slice(start, start + _BATCH)
    canvas: np.ndarray = np.empty(images[rows].shape, np.float32)
    canvas[:] = ground[rows, None, None]
    for values, present in zip(leaves.values[rows].swapaxes(0, 1), leaves.present[rows].T):
      _put_down(values[present], np.flatnonzero(present), canvas)
    canvas = 0.5 * canvas + 0.5 * _blurred(canvas) + rng.normal(0, _NOISE, canvas.shape).astype(np.float32)
    images[rows] = np.rint(np.clip(canvas, 0, 1) * 255)
  return images


def _put_down(values: np.ndarray, where: np.ndarray, canvas: np.ndarray) -> None:
  """Paints one leaf, a row of `values`, on each of the images `where` of the canvas."""
  unit = np.float32(_SIDE / min(canvas.shape[1:3]))

  def column(i: int) -> np.ndarray:
    return values[:, i, None, None]

  x = np.arange(canvas.shape[2], dtype=np.float32) * unit - column(0)
  y = np.arange(canvas.shape[1], dtype=np.float32)[:, None] * unit - column(1)
  cosine, sine = np.cos(column(_ANGLE)), np.sin(column(_ANGLE))
  u, v = x * cosine + y * sine, y * cosine - x * sine
  along, across = np.abs(u), np.abs(v) / column(_FLATNESS)
  extent = np.where(column(_BOX) > 0, np.maximum(along, across), np.hypot(along, across))
  image, row, place = np.nonzero(extent < column(_RADIUS))
  u, v = u[image, row, place], v[image, row, place]
  texture = values[image, _WAVE] * np.sin((np.float32(np.cos(1)) * u + v) * values[image, _FREQUENCY])
  texture += values[image, _SLOPE] * u
  canvas[where[image], row, place] = values[image, _COLOUR] + texture[:, None]


def _blurred(images: np.ndarray) -> np.ndarray:
  """The mean over 3x3 pixels; images go on beyond their borders as they end there."""
  padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)), mode='edge')
  rows = padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]
  return (rows[:, :, :-2] + rows[:, :, 1:-1] + rows[:, :, 2:]) / np.float32(9)


def scenes(num_images: int, size: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
  """Draws dead leaves, 8 to 49 on each image: uint8[num_images, height, width, 3]."""
  leaves = random_leaves(rng.integers(8, 50, num_images), rng)
  return draw(leaves, _colours(rng.random(num_images), rng).astype(np.float32), size, rng)


@dataclasses.dataclass(frozen=True, eq=False)
class LeafyThings:
  """Kinds of things, each of two to seven leaves, and where they are met.

  Attributes:
    parts: The leaves of each kind; places are from the thing's centre.
    ground: float32[kinds, 3], the colour of the ground that the thing is mostly seen on.
  """

  parts: Leaves
  ground: np.ndarray

  def __len__(self) -> int:
    return len(self.ground)


def things(kinds: int, rng: np.random.Generator) -> LeafyThings:
  """Random kinds of things."""
  parts = random_leaves(rng.integers(2, 8, kinds), rng)
  parts.values[..., _PLACE] = rng.normal(0, 5, (*parts.present.shape, 2))
  parts.values[..., _RADIUS] = np.exp(rng.normal(1.5, 0.5, parts.present.shape))
  return LeafyThings(parts, _colours(rng.random(kinds), rng).astype(np.float32))


def views(of: LeafyThings, kinds: np.ndarray, size: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
  """Draws things before other leaves: moved, turned, nearer or farther, mirrored, in another light.

  Args:
    of: The things.
    kinds: int[n], which of them each image shows.
    size: (height, width).
    rng: The generator of all that differs between views.

  Returns:
    uint8[n, height, width, 3], RGB.
  """
  n, parts = len(kinds), of.parts.values.shape[1]

  def normal(deviation: float, *shape: int) -> np.ndarray:
    return rng.normal(0, deviation, shape).astype(np.float32)

  before = random_leaves(rng.integers(2, 25, n), rng)
  values = of.parts.values[kinds]
  # No two of a kind are quite alike.
  values[..., _PLACE] += normal(0.8, n, parts, 2)
  values[..., _RADIUS] *= np.exp(normal(0.12, n, parts))
  values[..., _ANGLE] += normal(0.15, n, parts)
  values[..., _FLATNESS] = np.clip(values[..., _FLATNESS] * np.exp(normal(0.15, n, parts)), 0.15, 1.5)
  values[..., _COLOUR] += normal(0.05, n, parts, 3)
  mirrored = rng.random(n) < 0.5
  values[mirrored, :, 0] *= -1
  values[mirrored, :, _ANGLE] *= -1
  angle, scale = normal(0.25, n, 1), np.exp(normal(0.25, n, 1))
  x, y = np.moveaxis(values[..., _PLACE], -1, 0)
  turned = np.stack([x * np.cos(angle) - y * np.sin(angle), x * np.sin(angle) + y * np.cos(angle)], axis=-1)
  values[..., _PLACE] = _SIDE / 2 + normal(2.5, n, 1, 2) + scale[..., None] * turned
  values[..., _ANGLE] += angle
  values[..., _RADIUS] *= scale
  light = normal(0.15, n, 1, 1) + normal(0.075, n, 1, 3)
  values[..., _COLOUR] = np.clip(values[..., _COLOUR] + light, 0, 1)
  ground = np.clip(of.ground[kinds] + normal(0.2, n, 1) + normal(0.08, n, 3), 0, 1)
  leaves = Leaves(
    np.concatenate([before.values, values], axis=1), np.concatenate([before.present, of.parts.present[kinds]], axis=1)
  )
  return draw(leaves, ground, size, rng)
