"""Tests of characters; what they have in common with glyphs is in `glyphs_test`."""

import numpy as np

from data.features.drawing import characters


def test_the_second_half_differs_from_the_first_in_one_stroke():
  alphabet = characters.alphabet(41, np.random.default_rng(0))
  first, second = alphabet.strokes[:20], alphabet.strokes[21:]
  np.testing.assert_array_equal((first != second).any(axis=(2, 3)).sum(axis=1), 1)
  added = alphabet.present[21:].sum(axis=1) - alphabet.present[:20].sum(axis=1)
  assert set(added) == {0, 1}


def test_a_stroke_is_dark_on_its_line_whatever_its_length():
  for length in (0.0, 3.0, 15.0):
    points = np.full((50, 4, 32, 2), 14, np.float32)
    points[..., 0] += length * np.linspace(-0.5, 0.5, 32, dtype=np.float32)
    present = np.arange(4) < np.ones((50, 1))
    x = characters._inked(points, present, 28, np.random.default_rng(0))
    assert x[:, 14, 14].min() > 150 and x[:, :7].max() == 0
    reached = (x[:, 14] > 128).sum(axis=1).mean()
    assert length - 1 < reached < length + 4
