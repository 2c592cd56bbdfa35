import numpy as np

from data import characters


def drawn(classes=40, copies=6, side=28, seed=0):
  rng = np.random.default_rng(seed)
  return characters.draw(characters.alphabet(classes, rng), copies, side, rng)


def test_drawings_follow_from_the_generator():
  x, y = drawn()
  again, other = drawn(), drawn(seed=1)
  assert x.dtype == np.uint8 and x.shape == (240, 28, 28)
  np.testing.assert_array_equal(np.bincount(y), [6] * 40)
  np.testing.assert_array_equal(x, again[0])
  assert (x != other[0]).any()


def test_the_second_half_differs_from_the_first_in_one_stroke():
  alphabet = characters.alphabet(41, np.random.default_rng(0))
  first, second = alphabet.strokes[:20], alphabet.strokes[21:]
  np.testing.assert_array_equal((first != second).any(axis=(2, 3)).sum(axis=1), 1)
  added = alphabet.present[21:].sum(axis=1) - alphabet.present[:20].sum(axis=1)
  assert set(added) == {0, 1}


def test_every_drawing_has_ink_and_mostly_paper_and_is_near_the_centre():
  for side in (14, 28, 40):
    x = drawn(side=side)[0] / 255.0
    assert x.max(axis=(1, 2)).min() > 0.5
    assert 0.02 < np.median(x.mean(axis=(1, 2))) < 0.35
    at = np.arange(side) - (side - 1) / 2
    for axis in (1, 2):
      mass = (x.sum(axis=axis) @ at) / x.sum(axis=(1, 2))
      assert np.abs(mass).mean() < 0.06 * side


def test_a_stroke_is_dark_on_its_line_whatever_its_length():
  for length in (0.0, 3.0, 15.0):
    points = np.full((50, 4, 32, 2), 14, np.float32)
    points[..., 0] += length * np.linspace(-0.5, 0.5, 32, dtype=np.float32)
    present = np.arange(4) < np.ones((50, 1))
    x = characters._inked(points, present, 28, np.random.default_rng(0))
    assert x[:, 14, 14].min() > 150 and x[:, :7].max() == 0
    reached = (x[:, 14] > 128).sum(axis=1).mean()
    assert length - 1 < reached < length + 4


def test_drawings_of_one_character_are_more_alike_than_of_two():
  x, y = drawn()
  flat = x.reshape(len(x), -1).astype(np.float64)
  flat = (flat - flat.mean(axis=1, keepdims=True)) / flat.std(axis=1, keepdims=True)
  correlation = flat @ flat.T / flat.shape[1]
  same = (y[:, None] == y) & ~np.eye(len(y), dtype=bool)
  assert correlation[same].mean() > correlation[y[:, None] != y].mean() + 0.1
  assert correlation[same].max() < 1  # Never the same drawing twice.
