"""Drawings of glyphs and of characters: ink, its place, and that drawings of one shape are alike."""

import string

import numpy as np
import pytest

from data.features import characters

GLYPHS, CHARACTERS = characters.random_glyphs, characters.random_characters
both = lambda names, *values: pytest.mark.parametrize(names, values, ids=['glyphs', 'characters'])


def drawn(make, classes=40, copies=6, side=28, seed=0):
  rng = np.random.default_rng(seed)
  return characters.draw(make(classes, rng), copies, side, rng)


@pytest.mark.slow
@both('make', GLYPHS, CHARACTERS)
def test_drawings_follow_from_the_generator(make):
  x, y = drawn(make)
  again, other = drawn(make), drawn(make, seed=1)
  assert x.dtype == np.uint8 and x.shape == (240, 28, 28)
  np.testing.assert_array_equal(np.bincount(y), [6] * 40)
  np.testing.assert_array_equal(x, again[0])
  assert (x != other[0]).any()


@pytest.mark.slow
@both('make, smallest', (GLYPHS, 8), (CHARACTERS, 14))
def test_every_drawing_has_ink_and_mostly_paper_and_its_mass_near_the_centre(make, smallest):
  for side in (smallest, 28, 40):
    x = drawn(make, side=side)[0] / 255.0
    assert x.max(axis=(1, 2)).min() > 0.5
    assert 0.02 < np.median(x.mean(axis=(1, 2))) < 0.35
    at = np.arange(side) - (side - 1) / 2
    for axis in (1, 2):
      mass = (x.sum(axis=axis) @ at) / x.sum(axis=(1, 2))
      assert np.abs(mass).mean() < 0.06 * side


@both('make, margin', (GLYPHS, 0.2), (CHARACTERS, 0.1))
def test_drawings_of_one_shape_are_more_alike_than_of_two(make, margin):
  x, y = drawn(make)
  flat = x.reshape(len(x), -1).astype(np.float64)
  flat = (flat - flat.mean(axis=1, keepdims=True)) / flat.std(axis=1, keepdims=True)
  correlation = flat @ flat.T / flat.shape[1]
  same = (y[:, None] == y) & ~np.eye(len(y), dtype=bool)
  assert correlation[same].mean() > correlation[y[:, None] != y].mean() + margin
  assert correlation[same].max() < 1  # Never the same drawing twice.


def test_the_second_half_of_random_characters_differs_from_the_first_in_one_stroke():
  alphabet = CHARACTERS(41, np.random.default_rng(0))
  first, second = alphabet.strokes[:20], alphabet.strokes[21:]
  np.testing.assert_array_equal((first != second).any(axis=(2, 3)).sum(axis=1), 1)
  added = alphabet.present[21:].sum(axis=1) - alphabet.present[:20].sum(axis=1)
  assert set(added) == {0, 1}


def test_a_character_s_stroke_is_dark_on_its_line_whatever_its_length():
  for length in (0.0, 3.0, 15.0):
    points = np.full((50, 4, 32, 2), 14, np.float32)
    points[..., 0] += length * np.linspace(-0.5, 0.5, 32, dtype=np.float32)
    present = np.arange(4) < np.ones((50, 1))
    x = characters._inked(points, present, 28, np.random.default_rng(0))
    assert x[:, 14, 14].min() > 150 and x[:, :7].max() == 0
    reached = (x[:, 14] > 128).sum(axis=1).mean()
    assert length - 1 < reached < length + 4


class TestLatin:
  SHAPES = characters.latin()
  NAMES = [name for name, _ in characters.latin_shapes()]  # One for each class of drawings.

  def test_every_digit_and_letter_in_both_cases_has_a_shape(self):
    assert len(self.NAMES) == len(self.SHAPES) == 87
    assert sorted(''.join(set(self.NAMES))) == sorted(string.digits + string.ascii_letters)

  def test_every_shape_draws_ink_and_no_two_are_the_same(self):
    x, y = characters.draw(self.SHAPES, 4, 28, np.random.default_rng(0))
    assert (x.max(axis=(1, 2)) > 128).all()
    np.testing.assert_array_equal(np.bincount(y), [4] * 87)
    strokes = (self.SHAPES.strokes * self.SHAPES.present[..., None, None]).reshape(87, -1)
    assert len(np.unique(strokes, axis=0)) == 87

  def test_strokes_keep_to_the_grid_and_are_made_of_equal_steps(self):
    present = self.SHAPES.present
    assert present.any(axis=1).all() and present.sum(axis=1).max() == 3
    there = self.SHAPES.strokes[present]
    assert np.abs(there).max(axis=(0, 1)).max() < 1.2  # A curve may leave the grid a little.
    length = np.linalg.norm(np.diff(there, axis=1), axis=-1).sum(axis=1)
    assert length.min() > 0.2 and length.max() < 8

  def test_a_straight_stroke_runs_between_its_places(self):
    one, v = (self.SHAPES.strokes[self.NAMES.index(name), 0] for name in ('1', 'Vv'))
    np.testing.assert_allclose(one, np.stack([np.zeros(32), np.linspace(-1, 1, 32)], axis=1), atol=1e-6)
    np.testing.assert_allclose(v[[0, -1]], [[-0.75, -1], [0.75, -1]])
    assert v[:, 1].max() > 0.9

  def test_a_curve_passes_its_places_and_a_closed_one_has_no_corner(self):
    places = np.array([[4, 0], [0, 4], [4, 8], [8, 4], [4, 0]], np.float64)
    for path in (places, places[:-1]):
      np.testing.assert_allclose(characters._catmull_rom(path)[::20], path)
    curve = characters._catmull_rom(places)
    # A circle, nearly; where it closes, it goes on in the same direction.
    assert np.abs(np.linalg.norm(curve - 4, axis=1) - 4).max() < 0.5
    np.testing.assert_allclose(curve[1] - curve[0], (curve[-1] - curve[-2]) * (1, -1), atol=1e-6)
