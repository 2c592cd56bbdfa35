"""Pretraining on public images: what is learned from, and a folder that stands whole or not at all."""

import json
import os
import signal

import numpy as np
import pytest

import data
from data.features import maps
from data.features import public_images
from experiments import pretrain
from experiments.command import command_line
from experiments.command import interrupts
from quap_tff.common import files
from quap_tff.common.lazy import tf
from tests.data import tff_file
from tests.experiments import harness

FEW = ('--public_data=glyphs:classes=2,copies=10', '--num_features=4', '--epochs=1')
GLYPHS = ('--public_data=glyphs:classes=4,copies=40,latin=false', '--num_features=8', '--epochs=12')


def run(*arguments):
  return command_line.status_of(pretrain.main, ['pretrain', *arguments])


def write_emnist(folder, labels, **changes):
  contents = dict(
    x=np.random.default_rng(0).integers(0, 256, (len(labels), 28, 28), np.uint8), y=np.array(labels, np.uint8)
  )
  contents.update(changes)
  np.savez(folder / public_images.EMNIST_FILENAME, **contents)
  return contents


@pytest.mark.slow
class TestCommand:
  @pytest.mark.thorough
  def test_the_folder_holds_an_extractor_and_its_card(self, tmp_path, capsys):
    assert run(*FEW, f'--output={tmp_path / "deep" / "glyphs"}') == 0
    printed, progress = capsys.readouterr()
    card = json.loads(printed)
    assert os.listdir(tmp_path / 'deep') == ['glyphs'] and 'step 1/1 ' in progress
    network = maps.Pretrained(str(tmp_path / 'deep' / 'glyphs'))
    assert card == network.card() and card['images'] == 20 + 87
    z = network.extractor((28, 28, 1))(np.zeros((3, 28, 28, 1), np.float32))
    assert z.shape[0] == 3 and np.isfinite(z).all()

  @pytest.mark.thorough
  def test_it_knows_the_images(self, tmp_path, capsys):
    assert run(*GLYPHS, f'--output={tmp_path / "deep" / "glyphs"}') == 0
    printed, progress = capsys.readouterr()
    card = json.loads(printed)
    assert os.listdir(tmp_path / 'deep') == ['glyphs']
    assert card == maps.Pretrained(str(tmp_path / 'deep' / 'glyphs')).card()
    assert "a program's output, no data" in card['public_data']
    assert (card['source'], card['images'], card['epochs']) == ('glyphs:classes=4,copies=40,latin=False', 160, 12)
    assert 'step 12/12 ' in progress and ' 0 s left' in progress
    # Loaded anew, it tells the four glyphs apart by the nearest class mean.
    images = public_images.GlyphImages(4, 40, latin=False).read(None, 0)
    extract = maps.Pretrained(str(tmp_path / 'deep' / 'glyphs')).extractor((28, 28, 1))
    z = extract(images.x[..., None] / np.float32(255))
    means = np.stack([z[images.y == c].mean(axis=0) for c in range(4)])
    assert np.mean((z @ means.T).argmax(axis=1) == images.y) > 0.8

  @pytest.mark.thorough
  def test_one_seed_gives_one_file(self, tmp_path, capsys):
    for name in ('one', 'two'):
      assert run(*FEW, f'--output={tmp_path / name}') == 0
    one, two = (maps.Pretrained(str(tmp_path / name)) for name in ('one', 'two'))
    assert one.card()['sha256'] == two.card()['sha256'] and one.public_data() == two.public_data()

  @pytest.mark.parametrize(
    'arguments,message',
    [
      ((), '--output is missing'),
      (('--output=here',), 'emnist_letters needs emnist_byclass_test.npz'),
      (('--output=here', '--data_dir=.'), 'emnist_byclass_test.npz not found'),
      (('--output=here', '--public_data=glyph'), "Did you mean 'glyphs'"),
      (('--output=here', '--epochs=0'), 'epochs must be an integer at least 1'),
      (('--output=here', '--whitening=1'), 'whitening must be a finite number at least 0 and at most 0.5'),
      (('--output=full', *GLYPHS), '--output=full already exists'),
      (('--output=here', 'more'), "Unexpected argument 'more'"),
      (('--putput=here',), 'putput'),
    ],
  )
  def test_errors(self, tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'full').mkdir()
    (tmp_path / 'full' / 'file').write_text('')
    assert run(*arguments) == 1
    assert message in capsys.readouterr().err
    assert os.listdir(tmp_path) == ['full'] and os.listdir(tmp_path / 'full') == ['file']

  @pytest.mark.parametrize('where', ['pretrain', 'write_json'])
  def test_an_interrupted_run_leaves_nothing(self, tmp_path, monkeypatch, capsys, where):
    def interrupt(*args, **kwargs):
      raise KeyboardInterrupt

    # What is trained does not matter here.
    network = tf.keras.Sequential([tf.keras.Input((28, 28, 1)), tf.keras.layers.Flatten()])
    monkeypatch.setattr(pretrain, 'pretrain', lambda *args, **kwargs: (network, 0.5))
    monkeypatch.setattr(pretrain if where == 'pretrain' else files, where, interrupt)
    assert run(*FEW, f'--output={tmp_path / "glyphs"}') == 130
    assert 'nothing was written' in capsys.readouterr().err
    assert not os.listdir(tmp_path)

  def test_a_signal_that_comes_in_tensorflow_ends_it_after_the_step(self, tmp_path, monkeypatch, capsys):
    steps = []

    def scaled(images):
      """Runs while TensorFlow traces, where an exception would be lost."""
      if not steps:
        signal.raise_signal(signal.SIGTERM)
      steps.append(images.shape)
      return tf.cast(images, tf.float32)[..., tf.newaxis] / 255

    monkeypatch.setattr(pretrain, '_scaled', scaled)
    monkeypatch.setattr(interrupts, '_SECONDS_UNTIL_AGAIN', 1e6)
    with harness.signal_handlers_kept():
      assert run(*FEW, f'--output={tmp_path / "glyphs"}') == 130
    assert 'nothing was written' in capsys.readouterr().err and len(steps) == 1


class TestEpochs:
  @pytest.mark.parametrize('images,epochs', [(300_000, 2), (150_000, 4), (58_000, 10), (1_300_000, 1)])
  def test_by_default_the_network_sees_about_600_000_images(self, tmp_path, monkeypatch, capsys, images, epochs):
    labels = np.zeros(images, np.int32)
    monkeypatch.setattr(
      public_images.GlyphImages, 'read', lambda *_: public_images.PublicImages(labels, labels, 1, 'No images.')
    )

    def refuse(*_, epochs, **__):
      raise ValueError(f'{epochs} epochs')

    monkeypatch.setattr(pretrain, 'pretrain', refuse)
    assert run('--public_data=glyphs', f'--output={tmp_path / "glyphs"}') == 1
    assert f'{epochs} epochs' in capsys.readouterr().err


class TestLayers:
  def test_logits_are_sixteen_cosines(self):
    layer = pretrain._cosines(2)
    layer.build((None, 2))
    layer.set_weights([np.array([[3.0, 0.0], [4.0, 2.0]])])
    logits = layer(np.array([[1.0, 0.0], [0.0, 5.0], [0.0, 0.0]], np.float32))
    np.testing.assert_allclose(logits, [[9.6, 0], [12.8, 16], [0, 0]], atol=1e-5)

  def test_a_network_is_averaged_over_an_image_and_its_copies_moved_by_a_pixel(self):
    x = np.random.default_rng(0).random((3, 6, 6, 1), np.float32)
    square = tf.keras.Sequential([tf.keras.layers.InputLayer((6, 6, 1)), tf.keras.layers.Lambda(lambda x: x**2 - x**3)])
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    moved = [x, padded[:, 2:, 1:-1], padded[:, :-2, 1:-1], padded[:, 1:-1, 2:], padded[:, 1:-1, :-2]]
    expected = np.mean([view**2 - view**3 for view in moved], axis=0)
    np.testing.assert_allclose(pretrain._averaged(square)(x), expected, atol=1e-6)

  @pytest.mark.parametrize('power', [0.0, 0.15, 0.5])
  def test_features_are_centred_and_their_variances_brought_together(self, power):
    rng = np.random.default_rng(0)
    hidden = rng.normal(3, 1, (4000, 3)) @ np.diag([1.0, 2.0, 4.0]) @ np.linalg.qr(rng.normal(size=(3, 3)))[0]
    z = pretrain._whitening(hidden, power)(hidden.astype(np.float32)).numpy()
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-4)
    covariance, before = np.cov(z, rowvar=False), np.linalg.eigvalsh(np.cov(hidden, rowvar=False))
    np.testing.assert_allclose(covariance, np.diag(before ** (1 - 2 * power)), atol=1e-3 * before[-1])


class TestGlyphs:
  def test_half_of_the_drawings_are_of_digits_and_latin_letters(self):
    images, random = (
      public_images.GlyphImages(10, 20).read(None, 0),
      public_images.GlyphImages(10, 20, latin=False).read(None, 0),
    )
    assert images.num_classes == 10 + 87 and len(images.x) == len(images.y) == 200 + 2 * 87
    np.testing.assert_array_equal(np.bincount(images.y), [20] * 10 + [2] * 87)
    assert images.description == (
      'Learned on 374 drawings: of 10 random glyphs, and of 87 shapes of digits and Latin letters that are part of the '
      "program. A program's output, no data."
    )
    assert random.num_classes == 10
    np.testing.assert_array_equal(np.bincount(random.y), [20] * 10)
    np.testing.assert_array_equal(random.x, images.x[:200])
    assert random.description == "Learned on 200 drawings of 10 random glyphs: a program's output, no data."

  def test_the_default_is_300_000_drawings(self):
    default = public_images.GlyphImages()
    random = default.classes * default.copies
    assert (random, random // 87 * 87) == (150_000, 149_988)


class TestUnipen:
  def test_letters_alike_in_both_cases_are_one_class_and_the_card_has_the_provenance(self, tmp_path):
    # 3, C, c, A, a, 9, and others up to forty.
    tff_file.unipen(tmp_path, y=np.array([3, 12, 38, 10, 36, 9] + [0] * 34))
    images = public_images.UnipenCharacters().read(str(tmp_path), 0)
    np.testing.assert_array_equal(images.y[:6], [1, 4, 4, 3, 5, 2])
    assert images.num_classes == 6 and 'Learned on 40 characters of 8 writers.' in images.description
    assert 'train_r01_v07' in images.description and 'CC BY 4.0' in images.description


class TestEmnistLetters:
  def test_digits_are_left_out_and_letters_alike_in_both_cases_are_one_class(self, tmp_path):
    # 3, C, c, A, a, 9.
    contents = write_emnist(tmp_path, [3, 12, 38, 10, 36, 9])
    images = public_images.EmnistLetters().read(str(tmp_path), 0)
    np.testing.assert_array_equal(images.x, contents['x'][1:5])
    np.testing.assert_array_equal(images.y, [1, 1, 0, 2])
    assert images.num_classes == 3 and 'the 4 letters of EMNIST' in images.description

  @pytest.mark.parametrize(
    'labels,changes,message',
    [
      ([10, 62], {}, r'expected labels in \[0, 62\)'),
      ([1, 2], {}, 'letters from 10 on'),
      ([10, 11], dict(x=np.zeros((2, 28, 27), np.uint8)), r'found x uint8\[2, 28, 27\]'),
      ([10, 11], dict(y=np.zeros(3, np.uint8)), r'and y uint8\[3\]'),
    ],
  )
  def test_another_file(self, tmp_path, labels, changes, message):
    write_emnist(tmp_path, labels, **changes)
    with pytest.raises(data.DataFileError, match=message):
      public_images.EmnistLetters().read(str(tmp_path), 0)
