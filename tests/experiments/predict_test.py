"""Tests of predictions by a run's model, and of the model's file in plain Keras."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
from PIL import Image
import pytest
from sklearn import datasets as sklearn_datasets

from experiments import predict
from quap_tff.common.lazy import tf
from tests import processes
from tests.experiments import harness

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module', name='runs')
def _runs(library):
  """The folder of a run: with dropout, or with features and a certificate."""

  class Runs:
    def __truediv__(self, name):
      return library.run({'dropout': 'mnist_cnn'}.get(name, name)).path

  return Runs()


@pytest.fixture(scope='module', name='test_set')
def _test_set():
  return harness.experiment(*harness.TINY).federation.test


def _main(*arguments):
  return predict.main(['predict', *map(str, arguments)])


def _python(code, path=harness.PYTHONPATH, cwd=None):
  """Standard output of a program in a process of its own."""
  done = processes.run([sys.executable, '-c', code], cwd=cwd, env={**os.environ, 'PYTHONPATH': path})
  assert done.returncode == 0, done.stderr
  return done.stdout


class TestPredictions:
  def test_are_those_of_the_model(self, runs, test_set):
    probabilities = predict.predict(runs / 'dropout', test_set.x)
    model = tf.keras.models.load_model(runs / 'dropout' / 'final_model.keras', compile=False)
    logits = model.predict(test_set.x, verbose=0)
    np.testing.assert_allclose(probabilities, np.exp(logits) / np.exp(logits).sum(1, keepdims=True), rtol=1e-4)
    assert probabilities.dtype == np.float32 and probabilities.shape == (len(test_set.x), 10)

  @pytest.mark.parametrize('name', ['dropout', 'features'])
  def test_raw_pixels_give_the_accuracy_and_loss_of_the_run(self, runs, test_set, name, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', '/dev/null')  # Nothing is kept of the images.
    raw = (test_set.x * 16).astype(np.uint8)
    assert np.array_equal(sklearn_datasets.load_digits().images.max(), raw.max())
    probabilities = predict.predict(runs / name, raw)
    accuracy = np.mean(probabilities.argmax(axis=1) == test_set.y)
    loss = -np.log(probabilities[np.arange(len(raw)), test_set.y]).mean()
    summary = harness.strict_json((runs / name / 'summary.json').read_text(encoding='utf-8'))
    # Rounding may decide about one image, for a model with noise of its own.
    assert accuracy == pytest.approx(summary['test_accuracy'], abs=1.5 / len(raw))
    assert loss == pytest.approx(summary['test_loss'], rel=1e-4)

  @pytest.mark.thorough
  def test_do_not_depend_on_how_images_are_given(self, runs, test_set):
    predictor = predict.load(runs / 'features')
    x = test_set.x[:7]
    expected = predictor(x)
    for images in (x[..., 0], x.astype(np.float64), np.rint(x * 16).astype(np.int64)):
      np.testing.assert_array_equal(predictor(images), expected)
    np.testing.assert_array_equal(predictor(1 - x, invert=True), expected)
    # On some processors, products of one row are rounded in another way than those of several.
    np.testing.assert_allclose(predictor(x[3]), expected[3:4], rtol=1e-5)
    np.testing.assert_allclose(predictor(x[3, ..., 0]), expected[3:4], rtol=1e-5)
    assert predictor(x[:0]).shape == (0, 10)
    assert abs(predictor(1 - x) - expected).max() > 1e-3

  @pytest.mark.thorough
  def test_chunks_do_not_matter(self, runs, test_set, monkeypatch):
    predictor = predict.load(runs / 'features')
    expected = predictor(test_set.x)
    monkeypatch.setattr(predict, '_CHUNK', 100)
    np.testing.assert_allclose(predictor(test_set.x), expected, rtol=1e-5)

  @pytest.mark.parametrize(
    'images, message',
    [
      (np.zeros((2, 9, 9)), r'shape \[n, 8, 8, 1\] or \[n, 8, 8\], or one image without n, .* \[2, 9, 9\]. Resize'),
      (np.zeros((2, 8, 8, 3)), r'the shape \[2, 8, 8, 3\]'),
      (np.float32(0), r'the shape \[\]'),
      (np.full((2, 8, 8), 'a'), 'must be integers or floats, but the input holds <U1'),
      (np.full((2, 8, 8), 255, np.uint8), 'Integers must be pixels from 0 to 16, .* from 255 to 255. Or give floats'),
      (np.full((2, 8, 8), -1), 'Integers must be pixels from 0 to 16'),
      (np.full((2, 8, 8), 255.0), r'Floats must be pixels from 0 to 1, .* Divide pixels from 0 to 16 by 16'),
      (np.full((2, 8, 8), np.nan), 'Floats must be pixels'),
    ],
  )
  def test_wrong_images(self, runs, images, message):
    with pytest.raises(ValueError, match=message):
      predict.predict(runs / 'dropout', images)


class TestCommand:
  def test_files_of_all_kinds(self, runs, test_set, tmp_path, capsys):
    x = np.rint(test_set.x[:3, ..., 0] * 16) / 16
    np.save(tmp_path / 'a.npy', x)
    np.savez(tmp_path / 'b.npz', y=x[:1], x=x)
    np.savez(tmp_path / 'c.npz', images=x)
    expected = predict.predict(runs / 'dropout', x)
    rows = [f'{row.argmax()},{row.max():.6g}' for row in expected]
    for name in ('a.npy', 'b.npz', 'c.npz'):
      assert _main(runs / 'dropout', f'--input={tmp_path / name}') == 0
      out, err = capsys.readouterr()
      assert out.splitlines() == ['label,probability', *rows] and not err
    assert _main(runs / 'dropout', f'--input={tmp_path / "a.npy"}', f'--output={tmp_path / "out.csv"}') == 0
    assert (tmp_path / 'out.csv').read_text(encoding='utf-8').splitlines() == ['label,probability', *rows]
    assert _main(runs / 'dropout', f'--input={tmp_path / "a.npy"}', f'--output={tmp_path / "out.npz"}') == 0
    with np.load(tmp_path / 'out.npz') as found:
      np.testing.assert_array_equal(found['probabilities'], expected)
      np.testing.assert_array_equal(found['labels'], expected.argmax(axis=1))
    assert not capsys.readouterr().out

  @pytest.mark.parametrize('mode', ['RGB', *(pytest.param(mode, marks=pytest.mark.thorough) for mode in ('L', '1'))])
  def test_a_picture(self, runs, tmp_path, capsys, mode):
    pixels = np.zeros((8, 8), np.uint8)
    pixels[2:6, 3:5] = 255
    Image.fromarray(255 - pixels).convert(mode).save(tmp_path / 'dark_on_light.png')
    assert _main(runs / 'dropout', f'--input={tmp_path / "dark_on_light.png"}', '--invert') == 0
    row = predict.predict(runs / 'dropout', pixels / 255)[0]
    assert capsys.readouterr().out.splitlines()[1] == f'{row.argmax()},{row.max():.6g}'

  def test_wrong_arguments(self, runs, tmp_path):
    np.save(tmp_path / 'a.npy', np.zeros((1, 8, 8)))
    np.savez(tmp_path / 'none.npz')
    np.savez(tmp_path / 'object.npz', x=np.array([{}]))
    (tmp_path / 'damaged.npz').write_bytes(b'PK\x03\x04 cut')
    (tmp_path / 'damaged.png').write_bytes(b'\x89PNG')
    (tmp_path / 'empty.npy').write_bytes(b'')
    np.save(tmp_path / 'no_image.npy', np.zeros((0, 8, 8)))
    np.savez(tmp_path / 'no_image.npz', x=np.zeros((0, 8, 8, 1)))
    Image.new('RGBA', (8, 8)).save(tmp_path / 'transparent.png')
    run, good = runs / 'dropout', f'--input={tmp_path / "a.npy"}'
    for arguments, message in [
      ((good,), 'Give the folder of one run, found 0'),
      ((run, run, good), 'found 2'),
      ((run,), '--input=FILE'),
      ((run, '--input=gone.npy'), 'there is no such file'),
      ((run, '--input=a.txt'), r'ends in .npz, .npy, .png, .jpg or .jpeg'),
      ((run, good, '--output=a.txt'), 'ends in .csv or .npz'),
      ((run, good, '--extractor=x'), 'this run has none'),
      ((tmp_path, good), 'holds no run.json. Give the --output_dir'),
      ((tmp_path / 'nowhere', good), 'is not the folder of a run'),
      ((run, f'--input={tmp_path / "none.npz"}'), 'holds no array'),
      ((run, f'--input={tmp_path / "object.npz"}'), 'cannot be read'),
      ((run, f'--input={tmp_path / "damaged.npz"}'), 'cannot be read'),
      ((run, f'--input={tmp_path / "damaged.png"}'), 'cannot be read'),
      ((run, f'--input={tmp_path / "empty.npy"}'), 'cannot be read: it is empty; expected an array of images'),
      ((run, f'--input={tmp_path / "no_image.npy"}'), r'the shape \[0, 8, 8\], which holds no image'),
      ((run, f'--input={tmp_path / "no_image.npz"}'), r'the shape \[0, 8, 8, 1\], which holds no image'),
      ((run, f'--input={tmp_path / "transparent.png"}'), 'pixels are RGBA; save it with 8 bits'),
    ]:
      with pytest.raises(ValueError, match=message):
        _main(*arguments)

  @pytest.mark.thorough
  def test_features_that_are_others_here(self, runs, tmp_path):
    shutil.copytree(runs / 'features', tmp_path / 'run')
    path = tmp_path / 'run' / 'run.json'
    run = json.loads(path.read_text(encoding='utf-8'))
    run['resolved']['public_data'] += ' Made elsewhere.'
    path.write_text(json.dumps(run), encoding='utf-8')
    with pytest.raises(ValueError, match='scattering:scales=1 differ here .* Made elsewhere'):
      predict.load(str(tmp_path / 'run'))

  @pytest.mark.thorough
  def test_a_run_that_has_not_ended(self, library, tmp_path, capsys):
    np.save(tmp_path / 'a.npy', np.zeros((1, 8, 8)))
    path, images = library.copy('quap_stopped', tmp_path / 'run'), f'--input={tmp_path / "a.npy"}'
    assert _main(path, images) == 0
    assert 'stopped after round 3 of 8: its model is not the final one' in capsys.readouterr().err
    (path / 'summary.json').unlink()
    assert _main(path, images) == 0
    assert 'still going on, or was cut off' in capsys.readouterr().err
    (path / 'final_model.keras').write_bytes(b'no model')
    with pytest.raises(ValueError, match='final_model.keras cannot be read .* Train again'):
      _main(path, images)
    (path / 'final_model.keras').unlink()
    with pytest.raises(ValueError, match='holds no model yet'):
      _main(path, images)
    (path / 'run.json').write_text('{}')
    (path / 'final_model.keras').write_bytes(b'')
    with pytest.raises(ValueError, match='run.json is damaged'):
      _main(path, images)

  def test_help_and_flag_errors_load_no_tensorflow(self):
    code = (
      'import sys\nfrom experiments import predict\nfrom experiments.command import command_line\n'
      'assert command_line.status_of(predict.main, ["predict", "--help"]) == 0\n'
      'try:\n  predict.main(["predict", "run"])\nexcept ValueError:\n  pass\n'
      'assert not [name for name in sys.modules if name.startswith(("tensorflow", "jax", "kymatio", "PIL"))]\n'
    )
    assert '--input' in _python(code)

  @pytest.mark.thorough
  def test_a_reader_that_goes_ends_it_quietly(self, runs, tmp_path):
    np.save(tmp_path / 'a.npy', np.zeros((9000, 8, 8), np.uint8))
    command = [sys.executable, '-m', 'experiments.predict', str(runs / 'dropout'), f'--input={tmp_path / "a.npy"}']
    process = subprocess.Popen(
      command,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      env={**os.environ, 'PYTHONPATH': harness.PYTHONPATH, 'PYTHONUNBUFFERED': '1'},
    )
    assert process.stdout.readline() == 'label,probability\n'
    process.stdout.close()
    assert process.stderr.read() == ''
    assert process.wait(timeout=processes.DEADLINE_SECONDS) == 1
    process.stderr.close()


class TestModelFile:
  @pytest.mark.thorough
  def test_loads_in_plain_keras_and_predicts_the_same(self, runs, tmp_path):
    model = tf.keras.models.load_model(runs / 'dropout' / 'final_model.keras', compile=False)
    assert 'dropout1' in [layer.name for layer in model.layers]
    x = np.random.default_rng(0).random((5, *model.input_shape[1:]), np.float32)
    np.save(tmp_path / 'x.npy', x)
    code = (
      'import os\nimport sys\n'
      'sys.path[:] = [path for path in sys.path if not os.path.isdir(os.path.join(path, "quap_tff"))]\n'
      'import numpy as np\nimport tensorflow as tf\n'
      f'model = tf.keras.models.load_model({str(runs / "dropout" / "final_model.keras")!r})\n'
      'np.save("y.npy", model.predict(np.load("x.npy"), verbose=0))\n'
      'try:\n  import quap_tff\nexcept ImportError:\n  print("without quap_tff")\n'
    )
    elsewhere = [path for path in sys.path if path and not os.path.isdir(os.path.join(path, 'quap_tff'))]
    assert _python(code, os.pathsep.join(elsewhere), tmp_path) == 'without quap_tff\n'
    np.testing.assert_allclose(np.load(tmp_path / 'y.npy'), model.predict(x, verbose=0), rtol=1e-5)
