"""Features that are centred and reduced by features of drawings: an independent computation, and no client's data."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from data import federation as federation_lib
from data.features import maps as features
from data.features.drawing import drawings
from data.features.drawing import drawn
from data.features.drawing import glyphs
from data.features.drawing import leaves
from experiments import pretrain
from quap_tff.common import registry

SHAPE = 8, 8, 1


def images(n, shape=SHAPE, seed=0):
  return np.random.default_rng(seed).random((n, *shape), np.float32)


def unit(x):
  return x / np.linalg.norm(x, axis=1, keepdims=True)


def drawn_glyphs():
  """The drawings, made again from the words of the certificate: 200 random glyphs, seed 7."""
  rng = np.random.default_rng(7)
  return glyphs.draw(glyphs.alphabet(200, rng), 1, 8, rng)[0][..., None] / np.float32(255)


def federation(*parts):
  examples = [federation_lib.Examples(x, np.zeros(len(x), np.int32)) for x in parts]
  return federation_lib.Federation('f', 2, tuple('abc'[: len(parts)]), tuple(examples), examples[0])


@pytest.fixture(name='network')
def fixture_network(tmp_path, monkeypatch):
  """A folder with a small random network of positive outputs, as those of ReLUs are."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  monkeypatch.setattr(drawings, 'COUNT', 200)
  drawings.of_shape.cache_clear()
  tf.keras.utils.set_random_seed(0)
  layers = [tf.keras.layers.InputLayer(SHAPE), tf.keras.layers.Flatten(), tf.keras.layers.Dense(6, 'softplus')]
  pretrain.write(str(tmp_path / 'network'), tf.keras.Sequential(layers), {'public_data': 'Learned on nothing.'})
  yield str(tmp_path / 'network')
  drawings.of_shape.cache_clear()


def outputs(network, x):
  """The network's own outputs, to unit norm."""
  model = tf.keras.models.load_model(f'{network}/{features.EXTRACTOR}')
  return unit(model(x).numpy().astype(np.float64))


class TestPretrained:
  @pytest.mark.parametrize('centred', [False, True])
  def test_size_keeps_the_first_principal_components_of_drawings(self, network, centred):
    chosen, x = features.Pretrained(network, size=3, centred=centred), images(20)
    seen, ours = outputs(network, drawn_glyphs()), outputs(network, x)
    _, _, directions = np.linalg.svd(seen - seen.mean(axis=0))
    directions *= np.sign(directions[np.arange(6), np.abs(directions).argmax(axis=1)])[:, None]
    expected = unit((ours - seen.mean(axis=0) if centred else ours) @ directions[:3].T)
    np.testing.assert_allclose(chosen.extractor(SHAPE)(x), expected, atol=2e-4)

  def test_centred_features_of_drawings_have_the_mean_zero(self, network):
    chosen = features.Pretrained(network, centred=True)
    rows = chosen.map(SHAPE)(drawn_glyphs())
    found = chosen.statistics()
    assert np.linalg.norm(rows.mean(axis=0)) > 0.9
    np.testing.assert_allclose(found.applied(rows).mean(axis=0), 0, atol=1e-6)
    z = chosen.extractor(SHAPE)(drawn_glyphs())
    np.testing.assert_allclose(z, unit(rows - rows.mean(axis=0)), atol=1e-4)

  def test_without_them_rows_are_those_of_the_network(self, network):
    chosen, x = features.Pretrained(network), images(20)
    model = tf.keras.models.load_model(f'{network}/{features.EXTRACTOR}', compile=False)
    np.testing.assert_array_equal(chosen.extractor(SHAPE)(x), features.unit_rows(model(x, training=False).numpy()))
    sha256 = chosen.card()['sha256']
    assert chosen.fingerprint() == f'pretrained {sha256} tensorflow={tf.__version__}'
    assert chosen.public_data() == f'Learned on nothing. Extractor of SHA-256 {sha256}.'
    fed = features.of_federation(f'pretrained:path={network}', federation(x))
    assert fed.features == f'pretrained:path={network},size=None,centred=False'

  @pytest.mark.parametrize(
    'parameters,done',
    [
      ('size=3', 'Reduced to 3 principal components'),
      ('centred=true', 'Centred'),
      ('size=3,centred=true', 'Centred and reduced to 3 principal components'),
    ],
  )
  def test_the_certificate_names_drawings_and_statistics(self, network, parameters, done):
    fed = features.of_federation(f'pretrained:path={network},{parameters}', federation(images(4)))
    found = features.parse(f'pretrained:path={network},{parameters}').statistics()
    assert fed.public_data.endswith(
      f" {done} by the features of 200 drawings of random glyphs (seed 7): a program's output, no data. Statistics of "
      f'SHA-256 {found.digest()}.'
    )
    assert fed.input_shape == ((3,) if 'size' in parameters else (6,))
    assert features.parse(fed.features) == features.parse(f'pretrained:path={network},{parameters}')

  def test_every_choice_has_a_fingerprint_of_its_own(self, network):
    chosen = [features.Pretrained(network, size, centred) for size in (None, 3, 4) for centred in (False, True)]
    assert len({one.fingerprint() for one in chosen}) == len({one.public_data() for one in chosen}) == 6

  def test_another_clients_data_do_not_change_a_clients_features(self, network):
    spec, ours = f'pretrained:path={network},size=3,centred=true', images(7)
    alone = features.of_federation(spec, federation(ours)).clients[0].x
    for seed in (1, 2):
      together = features.of_federation(spec, federation(ours, 100 * images(9, seed=seed)))
      np.testing.assert_allclose(together.clients[0].x, alone, atol=1e-6)

  def test_statistics_are_kept(self, network, monkeypatch):
    before = features.Pretrained(network, size=3).statistics()
    monkeypatch.setattr(drawings, '_computed', None)  # It is not called again.
    after = features.Pretrained(network, size=3).statistics()
    np.testing.assert_array_equal(after.directions, before.directions)

  def test_other_drawings_give_other_statistics(self, network, monkeypatch):
    before = features.Pretrained(network, size=3).fingerprint()
    monkeypatch.setattr(drawings, 'SEED', 8)
    drawings.of_shape.cache_clear()
    assert features.Pretrained(network, size=3).fingerprint() != before

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
      features.of_federation(f'pretrained:path={network},{parameters}', federation(images(4)))

  def test_more_directions_than_drawings_tell(self, network, monkeypatch):
    monkeypatch.setattr(drawings, 'COUNT', 4)
    with pytest.raises(ValueError, match='size must be at most 3, found 4'):
      features.Pretrained(network, size=4).check(SHAPE)


class TestDrawn:
  SPEC = 'drawn:size=5,filters=4,kinds=8,views=4'

  @pytest.fixture(autouse=True)
  def few_drawings(self, tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    monkeypatch.setattr(drawn, 'SCENES', 20)
    monkeypatch.setattr(drawn, '_PATCHES', 500)
    monkeypatch.setattr(drawings, 'COUNT', 30)
    for cached in (drawn.kept, drawings.of_shape):
      cached.cache_clear()
    yield
    for cached in (drawn.kept, drawings.of_shape):
      cached.cache_clear()

  def test_centred_takes_off_the_mean_of_drawn_things_at_any_size_of_images(self):
    plain, centred = features.parse(self.SPEC), features.parse(f'{self.SPEC},centred=true')
    rng = np.random.default_rng(7)
    things = leaves.views(leaves.things(30, rng), np.arange(30), (32, 32), rng) / np.float32(255)
    mean = plain.extractor((32, 32, 3))(things).mean(axis=0)
    for shape in ((16, 16, 3), (32, 32, 3)):
      x = images(6, shape)
      expected = unit(plain.extractor(shape)(x) - mean)
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
