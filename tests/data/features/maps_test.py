"""Feature maps: functions of one example, of unit norm; kept on disk, and computed again if the file is no good."""

import json
import os

import numpy as np
import pytest

import data
from data import feature_store
from data import federation as federation_lib
from data.features import maps as features
from data.features.drawing import drawings
from data.features.drawing import drawn
from data.features.drawing import glyphs
from experiments import pretrain
from quap_tff.common.lazy import tf


def images(n, shape=(8, 8, 1), seed=0):
  return np.random.default_rng(seed).random((n, *shape), np.float32)


def glyph_images(n, side):
  rng = np.random.default_rng(0)
  return glyphs.draw(glyphs.alphabet(n, rng), 1, side, rng)[0][..., None] / np.float32(255)


def examples(x):
  return federation_lib.Examples(x, np.zeros(len(x), np.int32))


def small_federation(shape=(8, 8, 1)):
  return federation_lib.Federation(
    'f', 2, ('a', 'b'), (examples(images(3, shape, 1)), examples(images(2, shape, 2))), examples(images(2, shape, 3))
  )


@pytest.fixture(name='network')
def fixture_network(tmp_path):
  """A folder with a small random network."""
  tf.keras.utils.set_random_seed(0)
  layers = [tf.keras.layers.InputLayer((8, 8, 1)), tf.keras.layers.Flatten(), tf.keras.layers.Dense(5)]
  pretrain.write(str(tmp_path / 'network'), tf.keras.Sequential(layers), {'public_data': 'Learned on nothing.'})
  return tmp_path / 'network'


@pytest.fixture(name='maps')
def fixture_maps(network, monkeypatch):
  monkeypatch.setattr(drawings, 'COUNT', 200)
  return {
    'scattering': features.Scattering(scales=1),
    'centred': features.Scattering(scales=1, centred=True),
    'pretrained': features.Pretrained(str(network)),
  }


class TestMaps:
  @pytest.mark.parametrize('name', ['scattering', 'centred', 'pretrained'])
  def test_features_of_an_example_do_not_depend_on_the_others(self, maps, name, tmp_path):
    x, y = images(60), images(60, seed=1)
    y[7] = x[7]
    compute = lambda part: feature_store.compute(maps[name], [part], str(tmp_path / 'kept'))[0]
    ours = compute(x)[7]
    np.testing.assert_allclose(compute(y)[7], ours, atol=1e-6)
    np.testing.assert_allclose(compute(x[7:8])[0], ours, atol=1e-6)
    # In the same place of the same batch, to the last bit.
    extract = maps[name].extractor((8, 8, 1))
    np.testing.assert_array_equal(extract(x)[7], extract(y)[7])
    assert (extract(x)[8] != extract(y)[8]).any()

  @pytest.mark.parametrize('name', ['scattering', 'centred', 'pretrained'])
  def test_features_are_of_unit_norm(self, maps, name):
    z = maps[name].extractor((8, 8, 1))(images(20))
    assert z.dtype == np.float32 and z.ndim == 2
    np.testing.assert_allclose(np.linalg.norm(z, axis=1), 1, rtol=1e-5)

  def test_centred_scattering_is_of_its_drawings(self, monkeypatch):
    plain, centred = features.Scattering(), features.Scattering(centred=True)
    before = plain.fingerprint(), centred.fingerprint()
    monkeypatch.setattr(features.drawings, 'random_glyphs', lambda shape: np.zeros(shape, np.float32))
    assert plain.fingerprint() == before[0] and centred.fingerprint() != before[1]

  def test_a_blank_image_has_scattering_zero(self, maps):
    assert not maps['scattering'].extractor((8, 8, 1))(np.zeros((1, 8, 8, 1), np.float32)).any()

  @pytest.mark.parametrize(
    'parameters,shape,size',
    [
      ({}, (28, 28, 1), 3969),
      ({}, (32, 32, 3), 15552),
      ({}, (8, 8, 1), 324),
      (dict(scales=1), (8, 8, 1), 144),
      (dict(order=1), (8, 8, 1), 17 * 4),
      (dict(angles=4), (8, 8, 1), 25 * 4),
    ],
  )
  def test_numbers_of_scattering_features(self, parameters, shape, size):
    chosen = features.Scattering(**parameters)
    chosen.check(shape)
    assert chosen.extractor(shape)(images(1, shape)).shape == (1, size)

  def test_three_channels_are_normalised_together(self):
    z = features.Scattering().extractor((28, 28, 1))(glyph_images(4, 28)).reshape(4, 27, 3 * 49)
    np.testing.assert_allclose(z.mean(axis=2), 0, atol=1e-6)
    # All groups have nearly the same norm, 1/√27; one channel of a group by itself has not.
    np.testing.assert_allclose(np.linalg.norm(z, axis=2), 27**-0.5, rtol=0.25)
    assert np.abs(z.reshape(4, 81, 49).mean(axis=2)).max() > 0.01

  def test_each_colour_is_transformed_by_itself(self):
    x = images(1, (8, 8, 3))
    y = x.copy()
    y[..., 2] = images(1, (8, 8, 1), seed=5)[..., 0]
    first, other = (features.Scattering().extractor((8, 8, 3))(v).reshape(3, -1) for v in (x, y))
    unit = lambda v: v / np.linalg.norm(v)
    np.testing.assert_allclose(unit(first[:2]), unit(other[:2]), atol=1e-6)
    assert np.abs(unit(first[2]) - unit(other[2])).max() > 0.01

  def test_centring_takes_off_what_images_of_strokes_have_in_common(self, monkeypatch):
    monkeypatch.setattr(drawings, 'COUNT', 300)
    x = glyph_images(40, 16)
    common = lambda centred: np.linalg.norm(
      features.Scattering(scales=1, centred=centred).extractor((16, 16, 1))(x).mean(axis=0)
    )
    assert common(True) < 0.3 < 0.5 < common(False)

  @pytest.mark.parametrize(
    'spec,shape,message',
    [
      ('scattering:scales=4', (8, 8, 1), 'needs images of at least 16 pixels, found 8x8'),
      ('scattering', (5,), r'needs images \[height, width, channels\], but examples have the shape \(5,\)'),
      ('scattering:order=3', (8, 8, 1), 'scattering order must be an integer at least 1 and at most 2'),
      ('scatering', (8, 8, 1), "Did you mean 'scattering'"),
      ('pretrained', (8, 8, 1), 'pretrained:path=FOLDER'),
      ('pretrained:path=nowhere', (8, 8, 1), r'card.json not found. Give a folder that python -m experiments.pretrain'),
    ],
  )
  def test_errors(self, spec, shape, message):
    with pytest.raises(ValueError, match=message):
      features.of_federation(spec, small_federation(shape))


class TestPretrained:
  def test_features_are_the_networks_output_to_unit_norm(self, network):
    x = images(4)
    out = tf.keras.models.load_model(network / features.EXTRACTOR)(x).numpy()
    np.testing.assert_allclose(
      features.Pretrained(str(network)).extractor((8, 8, 1))(x),
      out / np.linalg.norm(out, axis=1, keepdims=True),
      atol=1e-6,
    )

  def test_another_extractor_than_the_cards_is_refused(self, network):
    path = network / features.EXTRACTOR
    path.write_bytes(path.read_bytes() + b' ')
    with pytest.raises(data.DataFileError, match='expected SHA-256 .* as card.json has it, found'):
      features.of_federation(f'pretrained:path={network}', small_federation())

  @pytest.mark.parametrize('content', ['', '[]', '{"sha256": "0"}', '{"public_data": ""}'])
  def test_a_damaged_card(self, network, content):
    (network / features.CARD).write_text(content)
    with pytest.raises(data.DataFileError, match='card.json is damaged or another file: expected JSON with sha256'):
      features.Pretrained(str(network)).card()

  def test_examples_of_another_shape(self, network):
    with pytest.raises(ValueError, match=r'takes examples of shape \(8, 8, 1\), found \(9, 9, 1\)'):
      features.of_federation(f'pretrained:path={network}', small_federation((9, 9, 1)))

  def test_the_fingerprint_is_of_the_network_not_of_its_place(self, network):
    before = features.Pretrained(str(network)).fingerprint()
    moved = network.with_name('moved')
    os.rename(network, moved)
    assert features.Pretrained(str(moved)).fingerprint() == before
    card = json.loads((moved / features.CARD).read_text())
    assert card['sha256'] in before


@pytest.fixture(name='few_drawings')
def fixture_few_drawings(monkeypatch, tmp_path):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  monkeypatch.setattr(drawn, 'SCENES', 20)
  monkeypatch.setattr(drawn, '_PATCHES', 500)
  drawn.kept.cache_clear()
  yield
  drawn.kept.cache_clear()


@pytest.mark.usefixtures('few_drawings')
class TestDrawn:
  SPEC = 'drawn:size=5,filters=4,kinds=8,views=4'

  def test_a_federation_gets_features_of_unit_norm_and_what_they_were_learned_from(self):
    fed = features.of_federation(self.SPEC, small_federation((16, 16, 3)))
    assert fed.input_shape == (5,) and fed.features == f'{self.SPEC},seed=0,centred=False'
    np.testing.assert_allclose(np.linalg.norm(fed.clients[0].x, axis=1), 1, rtol=1e-5)
    learned = drawn.kept(drawn.Recipe(5, 4, 8, 4, 0))
    assert drawn.digest(learned) in fed.public_data
    assert "32 of 8 random things: a program's output, no data." in fed.public_data

  def test_features_of_an_example_do_not_depend_on_the_others(self):
    extract = features.parse(self.SPEC).extractor((16, 16, 3))
    x, y = images(6, (16, 16, 3)), images(6, (16, 16, 3), seed=1)
    y[3] = x[3]
    np.testing.assert_array_equal(extract(x)[3], extract(y)[3])
    np.testing.assert_allclose(extract(x[3:4])[0], extract(x)[3], atol=1e-5)

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
      features.of_federation(spec, small_federation(shape))


class TestLoad:
  def test_features_take_the_place_of_examples(self, tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    plain = data.load('digits', num_clients=4)
    seen = []
    fed = data.load('digits', num_clients=4, features='scattering:scales=1', progress=lambda *a: seen.append(a))
    assert fed.input_shape == (144,) and (fed.client_ids, fed.partition) == (plain.client_ids, plain.partition)
    assert (plain.features, fed.features) == ('none', 'scattering:order=2,scales=1,angles=8,centred=False')
    assert fed.public_data == ''
    for a, b in zip(fed.clients + (fed.test,), plain.clients + (plain.test,)):
      np.testing.assert_array_equal(a.y, b.y)
    expected = features.Scattering(scales=1).extractor((8, 8, 1))(plain.clients[2].x)
    np.testing.assert_allclose(fed.clients[2].x, expected, atol=1e-6)
    assert seen[:4] == [(i, 4) for i in (1, 2, 3, 4)] and seen[-1] == (1797, 1797)
    assert len(os.listdir(tmp_path / 'quap_tff' / 'features')) == 1

  def test_what_the_features_have_seen_is_said(self, network, tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    fed = data.load('digits', num_clients=4, features=f'pretrained:path={network}')
    assert fed.input_shape == (5,)
    assert fed.public_data.startswith('Learned on nothing. Extractor of SHA-256 ')

  def test_a_bad_spec_is_found_before_data_are_read(self, tmp_path):
    with pytest.raises(ValueError, match="Unknown features 'scater'"):
      data.load('mnist', data_dir=str(tmp_path), features='scater')
