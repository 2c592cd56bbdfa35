"""Features learned from drawings: each step by its formula, and directions that tell drawn things apart."""

import dataclasses

import numpy as np
import pytest

from data import features
from data import federation as federation_lib
from data.features import drawings
from data.features import drawn
from data.features import leaves
from data.features import store
from quap_tff.common import registry

pytestmark = pytest.mark.slow

SIZE = (32, 32)
RECIPE = drawn.Drawn(size=6, filters=10, kinds=20, views=8, seed=0)


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
  other = drawn.learn(dataclasses.replace(RECIPE, seed=1))
  assert store.digest_of_arrays(other) != store.digest_of_arrays(learned)
  # Also to one bit, one name or one shape.
  for name, value in (('mean', np.nextafter(learned['mean'], 1)), ('mean', learned['mean'][None])):
    assert store.digest_of_arrays({**learned, name: value}) != store.digest_of_arrays(learned)


def test_it_is_learned_again_the_same_and_then_kept(tmp_path, monkeypatch, learned):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  drawn.kept.cache_clear()
  assert store.digest_of_arrays(drawn.kept(RECIPE)) == store.digest_of_arrays(learned)
  drawn.kept.cache_clear()
  monkeypatch.setattr(drawn, 'learn', None)
  assert store.digest_of_arrays(drawn.kept(RECIPE)) == store.digest_of_arrays(learned)
  drawn.kept.cache_clear()


def images(n, shape, seed=0):
  return np.random.default_rng(seed).random((n, *shape), np.float32)


def map_federation(spec, shape):
  examples = federation_lib.Examples(images(3, shape), np.zeros(3, np.int32))
  return features.map_federation(spec, federation_lib.Federation('f', 2, ('a',), (examples,), examples))


class TestDrawn:
  SPEC = 'drawn:size=5,filters=4,kinds=8,views=4'

  @pytest.fixture(autouse=True)
  def few_drawings(self, tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    for module, name, number in ((drawn, 'SCENES', 20), (drawn, '_PATCHES', 500), (drawings, 'COUNT', 30)):
      monkeypatch.setattr(module, name, number)
    for cached in (drawn.kept, drawings.drawings_for):
      cached.cache_clear()
    yield
    for cached in (drawn.kept, drawings.drawings_for):
      cached.cache_clear()

  def test_a_federation_gets_features_of_unit_norm_and_what_they_were_learned_from(self):
    fed = map_federation(self.SPEC, (16, 16, 3))
    assert fed.input_shape == (5,) and fed.features == f'{self.SPEC},seed=0,centred=False'
    np.testing.assert_allclose(np.linalg.norm(fed.clients[0].x, axis=1), 1, rtol=1e-5)
    assert store.digest_of_arrays(drawn.kept(drawn.Drawn(5, 4, 8, 4, 0))) in fed.public_data
    assert "32 of 8 random things: a program's output, no data." in fed.public_data

  def test_features_of_an_example_do_not_depend_on_the_others(self):
    extract = features.parse(self.SPEC).extractor((16, 16, 3))
    x, y = images(6, (16, 16, 3)), images(6, (16, 16, 3), seed=1)
    y[3] = x[3]
    np.testing.assert_array_equal(extract(x)[3], extract(y)[3])
    np.testing.assert_allclose(extract(x[3:4])[0], extract(x)[3], atol=1e-5)

  @pytest.mark.thorough
  def test_another_seed_is_another_map(self):
    fingerprints = {features.parse(f'{self.SPEC},seed={seed}').fingerprint() for seed in (0, 1)}
    assert len(fingerprints) == 2

  @pytest.mark.parametrize(
    'spec,shape,message',
    [
      ('drawn', (28, 28, 1), r'colour images \[height, width, 3\] of at least 16 pixels a side, but .*\(28, 28, 1\)'),
      ('drawn', (15, 16, 3), r'examples have the shape \(15, 16, 3\)'),
      ('drawn', (5,), r'examples have the shape \(5,\)'),
      ('drawn:size=2000', (16, 16, 3), 'kinds=2000 things apart.*found size=2000'),
      ('drawn:size=73,filters=2', (16, 16, 3), 'filters=2 give 72 numbers, found size=73'),
      ('drawn:views=1', (16, 16, 3), 'drawn views must be an integer at least 2'),
      ('drawn:seed=-1', (16, 16, 3), 'drawn seed must be an integer at least 0'),
    ],
  )
  def test_errors(self, spec, shape, message):
    with pytest.raises(ValueError, match=message):
      map_federation(spec, shape)

  def test_centred_takes_off_the_mean_of_drawn_things_at_any_size_of_images(self):
    plain, centred = features.parse(self.SPEC), features.parse(f'{self.SPEC},centred=true')
    rng = np.random.default_rng(7)
    things = leaves.views(leaves.things(30, rng), np.arange(30), (32, 32), rng) / np.float32(255)
    mean = plain.extractor((32, 32, 3))(things).mean(axis=0)
    for shape in ((16, 16, 3), (32, 32, 3)):
      x = images(6, shape)
      expected = plain.extractor(shape)(x) - mean
      expected /= np.linalg.norm(expected, axis=1, keepdims=True)
      np.testing.assert_allclose(centred.extractor(shape)(x), expected, atol=1e-4)
    assert '30 drawings of random things (seed 7)' in centred.public_data()
    assert centred.public_data().startswith(plain.public_data())
    assert centred.fingerprint() != plain.fingerprint()

  def test_the_spec_says_whether_it_is(self):
    chosen = features.parse(self.SPEC)
    for centred in (False, True):
      spec = registry.format_spec('drawn', dataclasses.replace(chosen, centred=centred))
      assert spec == f'{self.SPEC},seed=0,centred={centred}'
    assert chosen.fingerprint().split()[::2] == ['drawn', f'numpy={np.__version__}']
