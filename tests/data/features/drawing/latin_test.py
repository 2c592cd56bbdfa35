import string

import numpy as np

from data.features.drawing import characters
from data.features.drawing import latin


def names():
  """The characters that each class of drawings stands for."""
  return [name for name, forms in latin.SHAPES.items() for _ in forms]


def test_every_digit_and_letter_in_both_cases_has_a_shape():
  assert len(names()) == len(latin.alphabet()) == 87
  assert sorted(''.join(latin.SHAPES)) == sorted(string.digits + string.ascii_letters)


def test_every_shape_draws_ink_and_no_two_are_the_same():
  shapes = latin.alphabet()
  x, y = characters.draw(shapes, 4, 28, np.random.default_rng(0))
  assert (x.max(axis=(1, 2)) > 128).all()
  np.testing.assert_array_equal(np.bincount(y), [4] * len(shapes))
  strokes = (shapes.strokes * shapes.present[..., None, None]).reshape(len(shapes), -1)
  assert len(np.unique(strokes, axis=0)) == len(shapes)


def test_strokes_keep_to_the_grid_and_are_made_of_equal_steps():
  shapes = latin.alphabet()
  assert shapes.present.any(axis=1).all() and shapes.present.sum(axis=1).max() == 3
  there = shapes.strokes[shapes.present]
  assert np.abs(there).max(axis=(0, 1)).max() < 1.2  # A curve may leave the grid a little.
  length = np.linalg.norm(np.diff(there, axis=1), axis=-1).sum(axis=1)
  assert length.min() > 0.2 and length.max() < 8


def test_a_straight_stroke_runs_between_its_places():
  one = latin.alphabet().strokes[names().index('1'), 0]
  np.testing.assert_allclose(one, np.stack([np.zeros(32), np.linspace(-1, 1, 32)], axis=1), atol=1e-6)
  v = latin.alphabet().strokes[names().index('Vv'), 0]
  np.testing.assert_allclose(v[[0, -1]], [[-0.75, -1], [0.75, -1]])
  assert v[:, 1].max() > 0.9


def test_a_curve_passes_its_places_and_a_closed_one_has_no_corner():
  places = np.array([[4, 0], [0, 4], [4, 8], [8, 4], [4, 0]], np.float64)
  for path in (places, places[:-1]):
    curve = latin._catmull_rom(path)
    np.testing.assert_allclose(curve[::20], path)
  curve = latin._catmull_rom(places)
  # A circle, nearly; where it closes, it goes on in the same direction.
  assert np.abs(np.linalg.norm(curve - 4, axis=1) - 4).max() < 0.5
  np.testing.assert_allclose(curve[1] - curve[0], (curve[-1] - curve[-2]) * (1, -1), atol=1e-6)
