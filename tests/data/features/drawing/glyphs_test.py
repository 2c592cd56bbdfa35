"""Tests of both kinds of drawings, `data.features.drawing.glyphs` and `data.features.drawing.characters`."""

import numpy as np
import pytest

from data.features.drawing import characters
from data.features.drawing import glyphs

both = pytest.mark.parametrize('kind', [glyphs, characters], ids=['glyphs', 'characters'])


def drawn(kind, classes=40, copies=6, side=28, seed=0):
  rng = np.random.default_rng(seed)
  return kind.draw(kind.alphabet(classes, rng), copies, side, rng)


@both
def test_drawings_follow_from_the_generator(kind):
  x, y = drawn(kind)
  again, other = drawn(kind), drawn(kind, seed=1)
  assert x.dtype == np.uint8 and x.shape == (240, 28, 28)
  np.testing.assert_array_equal(np.bincount(y), [6] * 40)
  np.testing.assert_array_equal(x, again[0])
  assert (x != other[0]).any()


@pytest.mark.parametrize(('kind', 'smallest'), [(glyphs, 8), (characters, 14)], ids=['glyphs', 'characters'])
def test_every_drawing_has_ink_and_mostly_paper_and_its_mass_near_the_centre(kind, smallest):
  for side in (smallest, 28, 40):
    x = drawn(kind, side=side)[0] / 255.0
    assert x.max(axis=(1, 2)).min() > 0.5
    assert 0.02 < np.median(x.mean(axis=(1, 2))) < 0.35
    at = np.arange(side) - (side - 1) / 2
    for axis in (1, 2):
      mass = (x.sum(axis=axis) @ at) / x.sum(axis=(1, 2))
      assert np.abs(mass).mean() < 0.06 * side


@pytest.mark.parametrize(('kind', 'margin'), [(glyphs, 0.2), (characters, 0.1)], ids=['glyphs', 'characters'])
def test_drawings_of_one_glyph_are_more_alike_than_of_two(kind, margin):
  x, y = drawn(kind)
  flat = x.reshape(len(x), -1).astype(np.float64)
  flat = (flat - flat.mean(axis=1, keepdims=True)) / flat.std(axis=1, keepdims=True)
  correlation = flat @ flat.T / flat.shape[1]
  same = (y[:, None] == y) & ~np.eye(len(y), dtype=bool)
  assert correlation[same].mean() > correlation[y[:, None] != y].mean() + margin
  assert correlation[same].max() < 1  # Never the same drawing twice.
