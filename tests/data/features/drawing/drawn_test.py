"""Features learned from drawings: each step by its formula, and directions that tell drawn things apart."""

import numpy as np
import pytest

from data.features.drawing import drawn
from data.features.drawing import leaves

SIZE = (32, 32)
RECIPE = drawn.Recipe(size=6, filters=10, kinds=20, views=8, seed=0)


@pytest.fixture(name='few', autouse=True, scope='module')
def fixture_few():
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(drawn, 'SCENES', 100)
    patch.setattr(drawn, '_PATCHES', 2000)
    yield


@pytest.fixture(name='learned', scope='module')
def fixture_learned(few):
  del few
  return drawn.learn(RECIPE)


def numbers_by_hand(image, learned, scale):
  """Steps 1 to 4 at one scale, patch by patch."""
  height, width = (side // scale for side in image.shape[:2])
  image = np.stack(
    [[image[scale * i :, scale * j :][:scale, :scale].mean(axis=(0, 1)) for j in range(width)] for i in range(height)]
  )
  flat = learned[f'filters_{scale}'].reshape(-1, RECIPE.filters)
  kept = np.zeros((height - 5, width - 5, 2 * RECIPE.filters))
  for i, j in np.ndindex(kept.shape[:2]):
    patch = image[i : i + 6, j : j + 6].reshape(-1).astype(np.float64)
    patch = (patch - patch.mean()) / np.sqrt(patch.var() + 10 / 255**2)
    answer = patch @ flat - learned[f'offsets_{scale}']
    kept[i, j] = np.maximum(np.concatenate([answer, -answer]) - 0.5, 0)

  def cells(count):
    step = count // 3
    return [slice(0, count - 2 * step), slice(step, count - step), slice(2 * step, count)]

  means = [kept[rows, columns].mean(axis=(0, 1)) for rows in cells(height - 5) for columns in cells(width - 5)]
  return np.sqrt(np.concatenate(means))


def responses_by_hand(image, learned):
  """Steps 1 to 5."""
  both = [np.concatenate([numbers_by_hand(x, learned, scale) for scale in (1, 2)]) for x in (image, image[:, ::-1])]
  return np.mean(both, axis=0)


def test_features_follow_the_formula(learned):
  # 27 and 11 places at the two scales; 15 and 5 by 20 and 7, where cells overlap.
  for size in ((32, 32), (20, 25)):
    x = np.random.default_rng(0).random((2, *size, 3), np.float32)
    expected = np.stack([responses_by_hand(image, learned) for image in x]) - learned['mean']
    np.testing.assert_allclose(drawn.extractor(learned, size)(x), expected @ learned['directions'], rtol=0, atol=2e-4)


def test_an_image_and_its_mirror_have_the_same_features(learned):
  x = leaves.scenes(5, SIZE, np.random.default_rng(5)) / np.float32(255)
  extract = drawn.extractor(learned, SIZE)
  np.testing.assert_allclose(extract(x), extract(x[:, :, ::-1]), rtol=0, atol=1e-4)
  assert np.abs(extract(x) - extract(x[:, ::-1])).max() > 0.1


@pytest.mark.parametrize('scale', [1, 2])
def test_filters_answer_whitened_patches(learned, scale):
  scenes = leaves.scenes(100, SIZE, np.random.default_rng(3)) / 255.0
  if scale == 2:
    scenes = (scenes[:, ::2] + scenes[:, 1::2])[:, :, ::2] / 4 + (scenes[:, ::2] + scenes[:, 1::2])[:, :, 1::2] / 4
  patches = scenes[:, 5:11, 5:11].reshape(100, -1)
  patches = (patches - patches.mean(axis=1, keepdims=True)) / np.sqrt(patches.var(axis=1, keepdims=True) + 10 / 255**2)
  answers = patches @ learned[f'filters_{scale}'].reshape(108, -1) - learned[f'offsets_{scale}']
  # Centred, and each of variance near 1, whatever the variance of patches in the filter's direction.
  assert np.abs(answers.mean(axis=0)).max() < 0.5 and 0.3 < answers.std(axis=0).min() < answers.std(axis=0).max() < 1.5


def test_features_tell_things_apart_that_they_were_not_learned_from(learned):
  rng = np.random.default_rng(7)
  kinds = np.tile(np.arange(5), 40)
  x = leaves.views(leaves.things(5, rng), kinds, SIZE, rng) / np.float32(255)
  z = drawn.extractor(learned, SIZE)(x)
  means = np.stack([z[:100][kinds[:100] == k].mean(axis=0) for k in range(5)])
  nearest = np.linalg.norm(z[100:, None] - means, axis=2).argmin(axis=1)
  assert np.mean(nearest == kinds[100:]) > 0.5


def test_discriminants_leave_out_what_changes_between_views():
  rng = np.random.default_rng(0)
  kinds = np.tile(np.arange(200), 10)
  # The first number tells kinds apart, the second is larger and does not, the other two, of another scale, only vary.
  x = np.stack([rng.normal(size=200)[kinds], 10 * rng.normal(size=2000), *rng.normal(size=(2, 2000))], axis=1)
  x[:, 0] += 0.1 * rng.normal(size=2000)
  mean, directions = drawn._discriminants(x.astype(np.float32) + 5, kinds, 1, rng)
  np.testing.assert_allclose(mean, 5, atol=0.6)
  influence = np.abs(directions[:, 0]) * x.std(axis=0)
  assert influence[0] > 10 * influence[1:].max()


def test_what_is_learned_follows_from_the_recipe(learned):
  assert learned['directions'].shape == (360, 6) and all(a.dtype == np.float32 for a in learned.values())
  other = drawn.learn(drawn.Recipe(**{**RECIPE.__dict__, 'seed': 1}))
  assert drawn.digest(other) != drawn.digest(learned)
  # Also to one bit, one name or one shape.
  for name, value in (('mean', np.nextafter(learned['mean'], 1)), ('mean', learned['mean'][None])):
    assert drawn.digest({**learned, name: value}) != drawn.digest(learned)


def test_it_is_learned_again_the_same_and_then_kept(tmp_path, monkeypatch, learned):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  drawn.kept.cache_clear()
  assert drawn.digest(drawn.kept(RECIPE)) == drawn.digest(learned)
  drawn.kept.cache_clear()
  monkeypatch.setattr(drawn, 'learn', None)
  assert drawn.digest(drawn.kept(RECIPE)) == drawn.digest(learned)
  drawn.kept.cache_clear()
