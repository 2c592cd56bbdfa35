"""Colour drawings: what is on them, and that views of one thing are more alike than those of two."""

import numpy as np
import pytest

from data.features import leaves


def one_leaf(**values):
  """A plain disc of radius 4 in the middle, red on black, unless `values` say otherwise."""
  columns = dict(_PLACE=16, _RADIUS=4, _FLATNESS=1, _COLOUR=(1, 0, 0), _FREQUENCY=1)
  array = np.zeros((1, 1, 12), np.float32)
  for name, value in {**columns, **values}.items():
    array[..., getattr(leaves, name)] = value
  return leaves.Leaves(array, np.ones((1, 1), bool))


def drawn(leaf, size=(32, 32)):
  return leaves.draw(leaf, np.zeros((1, 3), np.float32), size, np.random.default_rng(0))[0] / 255.0


class TestDraw:
  @pytest.mark.parametrize(
    'values,area',
    [
      ({}, np.pi * 16),
      (dict(_BOX=1), 64),
      (dict(_FLATNESS=0.5), np.pi * 8),
      (dict(_BOX=1, _FLATNESS=0.5, _ANGLE=np.pi / 2), 32),
    ],
  )
  def test_a_leaf_covers_its_area_in_its_colour(self, values, area):
    image = drawn(one_leaf(**values))
    assert image[..., 0].sum() == pytest.approx(area, rel=0.25)
    assert image[16, 16, 0] > 0.9 and image[..., 1:].max() < 0.1

  def test_angles_turn_and_sizes_keep_proportions(self):
    # Down to the right, since rows count downwards.
    tilted = drawn(one_leaf(_FLATNESS=0.3, _ANGLE=np.pi / 4))[..., 0]
    assert tilted[18, 18] > 0.7 and tilted[18, 14] < 0.2
    lying, standing = (drawn(one_leaf(_FLATNESS=0.3, _ANGLE=angle))[..., 0] for angle in (0, np.pi / 2))
    assert lying[16].sum() > 2 * standing[16].sum()
    np.testing.assert_allclose(drawn(one_leaf(), (64, 64)).mean(), drawn(one_leaf()).mean(), rtol=0.1)
    assert drawn(one_leaf(), (32, 48)).shape == (32, 48, 3)

  def test_the_last_leaf_is_on_top_and_an_absent_one_is_not_there(self):
    red, green = one_leaf(), one_leaf(_COLOUR=(0, 1, 0))
    both = np.concatenate([red.values, green.values], axis=1)
    middle = lambda present: drawn(leaves.Leaves(both, np.array([present])))[16, 16].round()
    np.testing.assert_array_equal(middle([True, True]), [0, 1, 0])
    np.testing.assert_array_equal(middle([True, False]), [1, 0, 0])

  def test_a_wave_and_a_slope_change_the_colour_within_a_leaf(self):
    inside = lambda **values: drawn(one_leaf(_COLOUR=(0.5, 0.5, 0.5), _RADIUS=10, **values))[12:20, 12:20].std()
    assert inside() < 0.02 < 0.05 < min(inside(_WAVE=0.2), inside(_SLOPE=0.05))


class TestScenes:
  def test_drawings_follow_from_the_generator(self):
    first, again, other = (leaves.scenes(120, (16, 16), np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert first.dtype == np.uint8 and first.shape == (120, 16, 16, 3)
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    # The last image is drawn, and in colour.
    assert first[-1].std() > 10 and (first[..., 0] != first[..., 1]).mean() > 0.5


class TestThings:
  def test_views_of_one_thing_are_more_alike_than_of_two(self):
    rng = np.random.default_rng(0)
    things, kinds = leaves.things(10, rng), np.tile(np.arange(10), 6)
    x = leaves.views(things, kinds, (32, 32), rng)
    assert len(things) == 10 and x.dtype == np.uint8 and x.shape == (60, 32, 32, 3)
    middle = x[:, 8:24, 8:24].reshape(60, -1) / 255.0
    distance = np.linalg.norm(middle[:, None] - middle, axis=2)
    same = (kinds[:, None] == kinds) & ~np.eye(60, dtype=bool)
    assert distance[same].mean() < 0.9 * distance[kinds[:, None] != kinds].mean()
    assert distance[same].min() > 0.1  # Never the same view twice.

  def test_a_thing_is_mirrored_in_half_of_its_views(self):
    values = np.repeat(one_leaf(_RADIUS=3).values, 2, axis=1)
    values[0, :, leaves._PLACE] = [[-6, 0], [6, 0]]
    values[0, :, leaves._COLOUR] = [[1, 0, 0], [0, 0, 1]]
    of = leaves.LeafyThings(leaves.Leaves(values, np.ones((1, 2), bool)), np.zeros((1, 3), np.float32))
    x = leaves.views(of, np.zeros(200, int), (32, 32), np.random.default_rng(0)) / 255.0
    left, right = x[:, 8:24, 4:14].mean(axis=(1, 2)), x[:, 8:24, 18:28].mean(axis=(1, 2))
    red_left = left[:, 0] - left[:, 2] > right[:, 0] - right[:, 2]
    assert 0.35 < red_left.mean() < 0.65
