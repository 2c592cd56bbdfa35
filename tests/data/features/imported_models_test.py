"""Imported Keras models: from the file to the features of a run and the sentence of its certificate."""

import hashlib
import json
import os

import numpy as np
import pytest
import tensorflow as tf

from data import features
from data import federation as federation_lib
from data.features import drawings
from data.features import imported_models
from data.features import maps
from experiments import pretrain
from experiments.command import command_line

pytestmark = pytest.mark.slow

layers = tf.keras.layers
TEXT = 'Learned on photographs of cats'


def small_model(shape=(12, 10, 3)):
  tf.keras.utils.set_random_seed(0)
  images = tf.keras.Input(shape, name='images')
  x = layers.Conv2D(4, 3, activation='relu', name='spatial')(images)
  x = layers.Dense(5, activation='tanh', name='hidden')(layers.GlobalAveragePooling2D(name='mean')(x))
  return tf.keras.Model(images, layers.Dense(2, name='logits')(x))


@pytest.fixture(name='model', params=['model.keras', 'model.h5'])
def fixture_model(request, tmp_path):
  return saved(small_model(), tmp_path / request.param)


def saved(model, path):
  model.save(path)
  return str(path)


def run(model, folder, *arguments, **changes):
  given = {'import_model': model, 'layer': 'hidden', 'public_data_description': TEXT, 'output': folder, **changes}
  written = [f'--{name}={value}' for name, value in given.items() if value is not None]
  return command_line.status_of(pretrain.main, ['pretrain', *written, *arguments])


def federation(x):
  examples = federation_lib.Examples(x, np.zeros(len(x), np.int32))
  return federation_lib.Federation('f', 2, ('a',), (examples,), examples)


def images(*shape, n=6):
  return np.random.default_rng(0).random((n, *shape), np.float32)


def unit(x):
  return x / np.linalg.norm(x, axis=1, keepdims=True)


class TestCommand:
  def test_from_the_file_to_the_features_and_the_certificate(self, model, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    folder = str(tmp_path / 'mine')
    assert run(model, folder) == 0
    with open(model, 'rb') as f:
      digest = hashlib.sha256(f.read()).hexdigest()
    card = json.loads(capsys.readouterr().out)
    assert card == maps.Pretrained(folder).card()
    assert (card['layer'], card['num_features'], card['model_sha256']) == ('hidden', 5, digest)
    assert card['image_shape'] == card['model_input'] == [12, 10, 3]
    x = images(12, 10, 3)
    fed = features.map_federation(f'pretrained:path={folder}', federation(x))
    whole = tf.keras.models.load_model(model, compile=False)
    expected = tf.keras.Model(whole.input, whole.get_layer('hidden').output)(x).numpy()
    np.testing.assert_allclose(fed.clients[0].x, unit(expected), atol=1e-5)
    assert fed.public_data == (
      f"{TEXT}. The output of layer 'hidden' of the Keras model of SHA-256 {digest}. Extractor of SHA-256 "
      f'{card["sha256"]}.'
    )

  def test_the_same_model_gives_the_same_file(self, tmp_path, capsys):
    model = saved(small_model(), tmp_path / 'model.keras')
    for name in ('one', 'two'):
      assert run(model, str(tmp_path / name), '--image_shape=28x28x1', '--preprocessing=caffe') == 0
    one, two = (maps.Pretrained(str(tmp_path / name)).card() for name in ('one', 'two'))
    assert one == two
    capsys.readouterr()

  @pytest.mark.parametrize(
    'arguments,options,message',
    [
      ([], dict(layer='hiden'), "--layer: Unknown layer 'hiden'. Did you mean 'hidden'"),
      ([], dict(layer=None), '--layer is missing'),
      ([], dict(public_data_description=' '), '--public_data_description is empty'),
      ([], dict(public_data_description=None), '--public_data_description is empty'),
      (['--epochs=4'], {}, '--epochs has no effect with --import_model'),
      (['--public_data=glyphs'], {}, '--public_data has no effect with --import_model'),
      (['--image_shape=28x28'], {}, '--image_shape must be height, width and channels'),
      (['--image_shape=28x28x2'], {}, "images of 2 channels cannot become the model's 3"),
      (['--preprocessing=pytorch'], {}, "Did you mean 'torch'"),
      ([], dict(import_model=None), '--layer has no effect without --import_model'),
    ],
  )
  def test_errors_of_flags(self, tmp_path, capsys, arguments, options, message):
    model = saved(small_model(), tmp_path / 'model.keras')
    assert run(model, str(tmp_path / 'mine'), *arguments, **options) == 1
    assert message in capsys.readouterr().err
    assert os.listdir(tmp_path) == ['model.keras']

  @pytest.mark.parametrize(
    'content,message',
    [
      (None, 'No such file'),
      ('{"cat": "0"}', 'fewer than two classes'),
      ('["0", "1"]', 'fewer than two classes'),
      ('{"cat": "0", "dog": "1-"}', "dog has '1-'"),
      ('{"cat": "0", "dog": 1}', 'dog has 1'),
      ('{"cat": "0", "dog": "1 0-1"}', "twice, or a range that ends before it begins: '1 0-1'"),
      ('{"cat": "0", "dog": "1-0"}', "ends before it begins: '1-0'"),
      ('{"cat": "0", "dog": "2"}', "output 2 is named, and the model's output has the shape [2]"),
    ],
  )
  def test_meanings_of_another_kind(self, tmp_path, capsys, content, message):
    model, path = saved(small_model(), tmp_path / 'model.keras'), tmp_path / 'meanings.json'
    if content is not None:
      path.write_text(content)
    assert run(model, str(tmp_path / 'mine'), f'--scores={path}') == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / 'mine').exists()

  @pytest.mark.parametrize('content', [None, b'', b'no model'])
  def test_a_file_that_is_no_model(self, tmp_path, capsys, content):
    path = tmp_path / 'model.keras'
    if content is not None:
      path.write_bytes(content)
    assert run(str(path), str(tmp_path / 'mine')) == 1
    found = capsys.readouterr().err
    assert ('not found' if content is None else 'cannot be read as a Keras model') in found and found.count('\n') == 1

  def test_models_of_other_kinds(self, tmp_path, capsys):
    two = [tf.keras.Input((8, 8, 1)) for _ in range(2)]
    flat, one = tf.keras.Input((5,)), tf.keras.Input((8, 8, 1))
    of_bytes, free = tf.keras.Input((8, 8, 1), dtype='uint8'), tf.keras.Input((None, None, 1))
    models = {
      'found 2 inputs': tf.keras.Model(two, layers.Flatten(name='hidden')(layers.Add()(two))),
      'float32[5]': tf.keras.Model(flat, layers.Dense(2, name='hidden')(flat)),
      'and 2 outputs': tf.keras.Model(one, [layers.Flatten(name='hidden')(one), layers.Flatten()(one)]),
      'uint8[8, 8, 1]': tf.keras.Model(of_bytes, layers.Flatten(name='hidden')(of_bytes)),
      'float32[None, None, 1]': tf.keras.Model(free, layers.GlobalMaxPooling2D(name='hidden')(free)),
      'found [[64, 1]]': tf.keras.Model(one, layers.Reshape((64, 1), name='hidden')(one)),
    }
    for number, (message, model) in enumerate(models.items()):
      path = saved(model, tmp_path / f'{number}.keras')
      assert run(path, str(tmp_path / 'mine')) == 1
      assert message in capsys.readouterr().err
    assert not (tmp_path / 'mine').exists()


class TestConversion:
  """The model that is cut gives its input, as means of each channel over an image of one colour."""

  @pytest.fixture(name='identity')
  def fixture_identity(self, tmp_path):
    x = tf.keras.Input((6, 6, 3))
    return saved(tf.keras.Model(x, layers.Activation('linear', name='same')(x)), tmp_path / 'identity.keras')

  def converted(self, identity, shape, preprocessing, x):
    return imported_models.imported(identity, 'same', TEXT, shape, preprocessing)[0](x).numpy()

  @pytest.mark.parametrize('mode', ['tf', 'torch', 'caffe'])
  def test_preprocessing_is_that_of_keras(self, identity, mode):
    x = images(6, 6, 3)
    expected = tf.keras.applications.imagenet_utils.preprocess_input(255 * x, mode=mode).mean(axis=(1, 2))
    np.testing.assert_allclose(self.converted(identity, '6x6x3', mode, x), expected, rtol=1e-4, atol=1e-3)

  @pytest.mark.parametrize('mode,expected', [('none', 0.25), ('bytes', 63.75), ('tf', -0.5)])
  def test_grey_images_of_another_size_become_three_colours(self, identity, mode, expected):
    x = np.full((2, 28, 20, 1), 0.25, np.float32)
    np.testing.assert_allclose(self.converted(identity, '28x20x1', mode, x), np.full((2, 3), expected), rtol=1e-5)

  def test_images_are_resized_as_keras_resizes(self, tmp_path):
    x = tf.keras.Input((6, 6, 1))
    path = saved(tf.keras.Model(x, layers.Flatten(name='pixels')(x)), tmp_path / 'pixels.keras')
    shown = images(3, 4, 1)
    found = imported_models.imported(path, 'pixels', TEXT, '3x4x1', 'none')[0](shown).numpy()
    np.testing.assert_allclose(found, layers.Resizing(6, 6)(shown).numpy().reshape(6, 36), atol=1e-5)

  def test_the_mean_over_places_is_taken_of_a_spatial_layer(self, tmp_path):
    model = small_model()
    path = saved(model, tmp_path / 'model.keras')
    x = images(12, 10, 3)
    expected = tf.keras.Model(model.input, model.get_layer('spatial').output)(x).numpy().mean(axis=(1, 2))
    np.testing.assert_allclose(imported_models.imported(path, 'spatial', TEXT, '', 'none')[0](x), expected, atol=1e-5)

  @pytest.mark.parametrize('sequential', [False, True])
  def test_a_layer_that_is_a_model(self, tmp_path, sequential):
    base = small_model()
    if sequential:
      base = tf.keras.Sequential([layers.Input((12, 10, 3)), *base.layers[1:]])
    base._name = 'base'
    tuned = tf.keras.Sequential([layers.Rescaling(0.5, input_shape=(12, 10, 3)), base, layers.Dense(7)])
    x, path = images(12, 10, 3), saved(tuned, tmp_path / 'model.keras')
    found = imported_models.imported(path, 'base', TEXT, '', 'none')[0](x)
    np.testing.assert_allclose(found, base(0.5 * x), atol=1e-6)

  def test_a_layer_that_is_used_twice(self, tmp_path):
    x, twice = tf.keras.Input((6, 6, 1)), layers.Conv2D(1, 1, name='twice')
    path = saved(tf.keras.Model(x, layers.Flatten()(twice(twice(x)))), tmp_path / 'model.keras')
    with pytest.raises(ValueError, match="layer 'twice' is used more than once in the model"):
      imported_models.imported(path, 'twice', TEXT, '', 'none')

  def test_figures_of_colours_need_colours(self, tmp_path):
    x = tf.keras.Input((6, 6, 1))
    path = saved(tf.keras.Model(x, layers.Flatten(name='pixels')(x)), tmp_path / 'pixels.keras')
    with pytest.raises(ValueError, match='torch is for models of three colours, and this one takes 1 channels'):
      imported_models.imported(path, 'pixels', TEXT, '', 'torch')


class TestScores:
  @pytest.fixture(name='scored')
  def fixture_scored(self, tmp_path, capsys, monkeypatch):
    """A folder with scores of three classes, and the model's logits and features of images."""
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    images_of_model = tf.keras.Input((12, 10, 3))
    hidden = layers.Dense(5, activation='tanh', name='hidden')(layers.GlobalAveragePooling2D()(images_of_model))
    model = tf.keras.Model(images_of_model, layers.Dense(7, name='logits')(hidden))
    meanings = tmp_path / 'meanings.json'
    meanings.write_text('{"cat": "4-6", "dog": "0", "frog": "3 1"}')
    assert run(saved(model, tmp_path / 'm.keras'), str(tmp_path / 'mine'), f'--scores={meanings}') == 0
    assert json.loads(capsys.readouterr().out)['scores'] == json.loads(meanings.read_text())
    x = images(12, 10, 3)
    return str(tmp_path / 'mine'), x, model(x).numpy(), tf.keras.Model(model.input, hidden)(x).numpy()

  def expected_scores(self, logits):
    outputs = [4, 5, 6], [0], [3, 1]
    kinds = [np.stack([kind(logits[:, k], axis=1) for k in outputs], axis=1) for kind in (np.max, np.mean)]
    return unit(np.concatenate([unit(kind - kind.mean(axis=1, keepdims=True)) for kind in kinds], axis=1))

  def test_scores_come_before_the_features_and_each_has_half_of_the_squared_norm(self, scored):
    folder, x, logits, hidden = scored
    rows = features.map_federation(f'pretrained:path={folder}', federation(x)).clients[0].x
    expected = np.concatenate([self.expected_scores(logits), unit(hidden)], axis=1) / np.sqrt(2)
    np.testing.assert_allclose(rows, expected, atol=1e-5)

  def test_drawings_reduce_the_features_and_not_the_scores(self, scored, monkeypatch):
    monkeypatch.setattr(drawings, 'COUNT', 20)
    drawings.drawings_for.cache_clear()
    folder, x, logits, hidden = scored
    chosen = maps.Pretrained(folder, size=3, centred=True)
    rows = chosen.extractor((12, 10, 3))(x)
    reduced = unit(chosen.statistics().applied(unit(hidden)))
    drawings.drawings_for.cache_clear()
    np.testing.assert_allclose(rows, np.concatenate([self.expected_scores(logits), reduced], 1) / np.sqrt(2), atol=1e-5)

  def test_the_certificate_names_the_classes(self, scored):
    assert (
      "The model's scores of cat, dog, frog, by the names of its outputs" in maps.Pretrained(scored[0]).public_data()
    )

  def test_the_classes_of_imagenet_that_mean_one_of_cifar10s(self):
    names = ['airplane', 'automobile', 'bird', 'cat', 'deer', 'dog', 'frog', 'horse', 'ship', 'truck']
    meanings = imported_models.read_meanings(os.path.join(os.path.dirname(maps.__file__), 'imagenet_of_cifar10.json'))
    assert list(meanings) == names  # In the order of CIFAR-10's labels.
    outputs = [number for name, text in meanings.items() for number in imported_models.numbers_in(name, text)]
    assert len(outputs) == len(set(outputs)) == 222 and max(outputs) < 1000
