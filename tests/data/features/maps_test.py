"""Feature maps: functions of one example, of unit norm, that may be centred and reduced by features of drawings."""

import json
import os

import numpy as np
import pytest

import data
from data import features
from data import federation as federation_lib
from data.features import characters
from data.features import drawings
from data.features import maps
from data.features import store
from experiments import pretrain
from quap_tff.common.lazy import tf

SHAPE = 8, 8, 1


def images(n, shape=SHAPE, seed=0):
  return np.random.default_rng(seed).random((n, *shape), np.float32)


def drawn_glyphs(n, side, seed):
  rng = np.random.default_rng(seed)
  return characters.draw(characters.random_glyphs(n, rng), 1, side, rng)[0][..., None] / np.float32(255)


def unit(x):
  return x / np.linalg.norm(x, axis=1, keepdims=True)


def federation(*parts):
  """A client for each part of the images, the first of which are the test set, too."""
  examples = [federation_lib.Examples(x, np.zeros(len(x), np.int32)) for x in parts]
  return federation_lib.Federation('f', 2, tuple('abc'[: len(parts)]), tuple(examples), examples[0])


def small_federation(shape=SHAPE):
  return federation(images(3, shape, 1), images(2, shape, 2))


@pytest.fixture(name='network')
def fixture_network(tmp_path, monkeypatch):
  """A folder with a small random network of positive outputs, as those of ReLUs are, and few drawings."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  monkeypatch.setattr(drawings, 'COUNT', 200)
  drawings.drawings_for.cache_clear()
  tf.keras.utils.set_random_seed(0)
  layers = [tf.keras.layers.InputLayer(SHAPE), tf.keras.layers.Flatten(), tf.keras.layers.Dense(6, 'softplus')]
  pretrain.write_network(str(tmp_path / 'network'), tf.keras.Sequential(layers), {'public_data': 'Learned on nothing.'})
  yield tmp_path / 'network'
  drawings.drawings_for.cache_clear()


@pytest.fixture(name='chosen', params=['scattering', 'centred', 'pretrained'])
def fixture_chosen(request, network):
  """Each of three maps."""
  if request.param == 'pretrained':
    return maps.Pretrained(str(network))
  return maps.Scattering(scales=1, centred=request.param == 'centred')


class TestMaps:
  @pytest.mark.slow
  def test_features_of_an_example_do_not_depend_on_the_others(self, chosen):
    x, y = images(60), images(60, seed=1)
    y[7] = x[7]
    compute = lambda part: store.compute(chosen, [part], lambda done, total: None)[0]
    ours = compute(x)[7]
    np.testing.assert_allclose(compute(y)[7], ours, atol=1e-6)
    np.testing.assert_allclose(compute(x[7:8])[0], ours, atol=1e-6)
    # In the same place of the same batch, to the last bit.
    extract = chosen.extractor(SHAPE)
    np.testing.assert_array_equal(extract(x)[7], extract(y)[7])
    assert (extract(x)[8] != extract(y)[8]).any()

  def test_features_are_of_unit_norm(self, chosen):
    z = chosen.extractor(SHAPE)(images(20))
    assert z.dtype == np.float32 and z.ndim == 2
    np.testing.assert_allclose(np.linalg.norm(z, axis=1), 1, rtol=1e-5)

  def test_centred_scattering_is_of_its_drawings(self, monkeypatch):
    plain, centred = maps.Scattering(), maps.Scattering(centred=True)
    before = plain.fingerprint(), centred.fingerprint()
    monkeypatch.setattr(drawings, 'random_glyphs', lambda shape: np.zeros(shape, np.float32))
    assert plain.fingerprint() == before[0] and centred.fingerprint() != before[1]

  def test_a_blank_image_has_scattering_zero(self):
    assert not maps.Scattering(scales=1).extractor(SHAPE)(np.zeros((1, 8, 8, 1), np.float32)).any()

  @pytest.mark.slow
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
    chosen = maps.Scattering(**parameters)
    chosen.check(shape)
    assert chosen.extractor(shape)(images(1, shape)).shape == (1, size)

  def test_three_channels_are_normalised_together(self):
    z = maps.Scattering().extractor((28, 28, 1))(drawn_glyphs(4, 28, seed=0)).reshape(4, 27, 3 * 49)
    np.testing.assert_allclose(z.mean(axis=2), 0, atol=1e-6)
    # All groups have nearly the same norm, 1/√27; one channel of a group by itself has not.
    np.testing.assert_allclose(np.linalg.norm(z, axis=2), 27**-0.5, rtol=0.25)
    assert np.abs(z.reshape(4, 81, 49).mean(axis=2)).max() > 0.01

  def test_each_colour_is_transformed_by_itself(self):
    x = images(1, (8, 8, 3))
    y = x.copy()
    y[..., 2] = images(1, (8, 8, 1), seed=5)[..., 0]
    first, other = (maps.Scattering().extractor((8, 8, 3))(v).reshape(3, -1) for v in (x, y))
    one = lambda v: v / np.linalg.norm(v)
    np.testing.assert_allclose(one(first[:2]), one(other[:2]), atol=1e-6)
    assert np.abs(one(first[2]) - one(other[2])).max() > 0.01

  def test_centring_takes_off_what_images_of_strokes_have_in_common(self, monkeypatch):
    monkeypatch.setattr(drawings, 'COUNT', 300)
    x = drawn_glyphs(40, 16, seed=0)
    common = lambda centred: np.linalg.norm(
      maps.Scattering(scales=1, centred=centred).extractor((16, 16, 1))(x).mean(axis=0)
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
      features.map_federation(spec, small_federation(shape))


class TestPretrained:
  def test_another_extractor_than_the_cards_is_refused(self, network):
    path = network / maps.EXTRACTOR
    path.write_bytes(path.read_bytes() + b' ')
    with pytest.raises(data.DataFileError, match='expected SHA-256 .* as card.json has it, found'):
      features.map_federation(f'pretrained:path={network}', small_federation())

  @pytest.mark.parametrize('content', ['', '[]', '{"sha256": "0"}', '{"public_data": ""}'])
  def test_a_damaged_card(self, network, content):
    (network / maps.CARD).write_text(content)
    with pytest.raises(data.DataFileError, match='card.json is damaged or another file: expected JSON with sha256'):
      maps.Pretrained(str(network)).card()

  def test_examples_of_another_shape(self, network):
    with pytest.raises(ValueError, match=r'takes examples of shape \(8, 8, 1\), found \(9, 9, 1\)'):
      features.map_federation(f'pretrained:path={network}', small_federation((9, 9, 1)))

  def test_the_fingerprint_is_of_the_network_not_of_its_place(self, network):
    before = maps.Pretrained(str(network)).fingerprint()
    moved = network.with_name('moved')
    os.rename(network, moved)
    assert maps.Pretrained(str(moved)).fingerprint() == before
    card = json.loads((moved / maps.CARD).read_text())
    assert card['sha256'] in before


def outputs(network, x):
  """The network's own outputs, to unit norm."""
  model = tf.keras.models.load_model(f'{network}/{maps.EXTRACTOR}')
  return unit(model(x).numpy().astype(np.float64))


class TestReducedByDrawings:
  @pytest.mark.slow
  @pytest.mark.parametrize('centred', [False, True])
  def test_size_keeps_the_first_principal_components_of_drawings(self, network, centred):
    chosen, x = maps.Pretrained(str(network), size=3, centred=centred), images(20)
    seen, ours = outputs(network, drawn_glyphs(200, 8, seed=7)), outputs(network, x)
    _, _, directions = np.linalg.svd(seen - seen.mean(axis=0))
    directions *= np.sign(directions[np.arange(6), np.abs(directions).argmax(axis=1)])[:, None]
    expected = unit((ours - seen.mean(axis=0) if centred else ours) @ directions[:3].T)
    np.testing.assert_allclose(chosen.extractor(SHAPE)(x), expected, atol=2e-4)

  @pytest.mark.slow
  def test_centred_features_of_drawings_have_the_mean_zero(self, network):
    chosen = maps.Pretrained(str(network), centred=True)
    rows = chosen.map(SHAPE)(drawn_glyphs(200, 8, seed=7))
    found = chosen.statistics()
    assert np.linalg.norm(rows.mean(axis=0)) > 0.9
    np.testing.assert_allclose(found.applied(rows).mean(axis=0), 0, atol=1e-6)
    z = chosen.extractor(SHAPE)(drawn_glyphs(200, 8, seed=7))
    np.testing.assert_allclose(z, unit(rows - rows.mean(axis=0)), atol=1e-4)

  def test_without_them_rows_are_those_of_the_network(self, network):
    chosen, x = maps.Pretrained(str(network)), images(20)
    model = tf.keras.models.load_model(f'{network}/{maps.EXTRACTOR}', compile=False)
    rows, expected = chosen.extractor(SHAPE)(x), model(x, training=False).numpy()
    np.testing.assert_array_equal(rows, maps.unit_rows(expected))
    np.testing.assert_allclose(rows, unit(expected), atol=1e-6)
    sha256 = chosen.card()['sha256']
    assert chosen.fingerprint() == f'pretrained {sha256} tensorflow={tf.__version__}'
    assert chosen.public_data() == f'Learned on nothing. Extractor of SHA-256 {sha256}.'
    fed = features.map_federation(f'pretrained:path={network}', federation(x))
    assert fed.features == f'pretrained:path={network},size=None,centred=False'

  @pytest.mark.slow
  @pytest.mark.parametrize(
    'parameters,done',
    [
      ('size=3', 'Reduced to 3 principal components'),
      ('centred=true', 'Centred'),
      ('size=3,centred=true', 'Centred and reduced to 3 principal components'),
    ],
  )
  def test_the_certificate_names_drawings_and_statistics(self, network, parameters, done):
    fed = features.map_federation(f'pretrained:path={network},{parameters}', federation(images(4)))
    found = features.parse(f'pretrained:path={network},{parameters}').statistics()
    assert fed.public_data.endswith(
      f" {done} by the features of 200 drawings of random glyphs (seed 7): a program's output, no data. Statistics of "
      f'SHA-256 {found.digest()}.'
    )
    assert fed.input_shape == ((3,) if 'size' in parameters else (6,))
    assert features.parse(fed.features) == features.parse(f'pretrained:path={network},{parameters}')

  @pytest.mark.slow
  def test_every_choice_has_a_fingerprint_of_its_own(self, network):
    chosen = [maps.Pretrained(str(network), size, centred) for size in (None, 3, 4) for centred in (False, True)]
    assert len({one.fingerprint() for one in chosen}) == len({one.public_data() for one in chosen}) == 6

  @pytest.mark.slow
  def test_another_clients_data_do_not_change_a_clients_features(self, network):
    spec, ours = f'pretrained:path={network},size=3,centred=true', images(7)
    alone = features.map_federation(spec, federation(ours)).clients[0].x
    for seed in (1, 2):
      together = features.map_federation(spec, federation(ours, 100 * images(9, seed=seed)))
      np.testing.assert_allclose(together.clients[0].x, alone, atol=1e-6)

  def test_statistics_are_kept(self, network, monkeypatch):
    before = maps.Pretrained(str(network), size=3).statistics()
    monkeypatch.setattr(drawings, '_computed', None)  # It is not called again.
    after = maps.Pretrained(str(network), size=3).statistics()
    np.testing.assert_array_equal(after.directions, before.directions)

  def test_other_drawings_give_other_statistics(self, network, monkeypatch):
    before = maps.Pretrained(str(network), size=3).fingerprint()
    monkeypatch.setattr(drawings, 'SEED', 8)
    drawings.drawings_for.cache_clear()
    assert maps.Pretrained(str(network), size=3).fingerprint() != before

  @pytest.mark.parametrize(
    'parameters,message',
    [
      ('size=7', 'size must be at most 6, found 7: .* gives 6 features, .* from 200 drawings. Give a smaller size'),
      ('size=0', 'pretrained size must be an integer at least 1, found 0'),
      ('size=2.5', "size must be of type int, found '2.5'"),
      ('centred=yes', 'centred must be true or false'),
    ],
  )
  def test_errors(self, network, parameters, message):
    with pytest.raises(ValueError, match=message):
      features.map_federation(f'pretrained:path={network},{parameters}', federation(images(4)))

  def test_more_directions_than_drawings_tell(self, network, monkeypatch):
    monkeypatch.setattr(drawings, 'COUNT', 4)
    with pytest.raises(ValueError, match='size must be at most 3, found 4'):
      maps.Pretrained(str(network), size=4).check(SHAPE)


class TestLoad:
  @pytest.mark.slow
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
    expected = maps.Scattering(scales=1).extractor(SHAPE)(plain.clients[2].x)
    np.testing.assert_allclose(fed.clients[2].x, expected, atol=1e-6)
    assert seen[:4] == [(i, 4) for i in (1, 2, 3, 4)] and seen[-1] == (1797, 1797)
    assert len(os.listdir(tmp_path / 'quap_tff' / 'features')) == 1

  def test_what_the_features_have_seen_is_said(self, network):
    fed = data.load('digits', num_clients=4, features=f'pretrained:path={network}')
    assert fed.input_shape == (6,)
    assert fed.public_data.startswith('Learned on nothing. Extractor of SHA-256 ')

  def test_a_bad_spec_is_found_before_data_are_read(self, tmp_path):
    with pytest.raises(ValueError, match="Unknown features 'scater'"):
      data.load('mnist', data_dir=str(tmp_path), features='scater')
