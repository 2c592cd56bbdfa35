"""Datasets of one pool, from memory, from files, from drawings; downloads; and `data.load` itself."""

import io
import os
import pathlib
import socket
import time
import urllib.request

import numpy as np
import pytest
from sklearn import datasets
import tensorflow as tf

import data
from data import reading
from data import rng as rng_lib
from data.datasets import base
from data.features.drawing import leaves

SHARED_DATA = pathlib.Path(__file__).resolve().parents[3] / 'shared' / 'data'


def small_images(n_train=40, n_test=10, shape=(28, 28), **changes):
  rng = np.random.default_rng(0)
  contents = dict(
    x_train=rng.integers(0, 256, (n_train,) + shape, np.uint8),
    y_train=np.arange(n_train, dtype=np.uint8) % 10,
    x_test=rng.integers(0, 256, (n_test,) + shape, np.uint8),
    y_test=np.arange(n_test, dtype=np.uint8) % 10,
  )
  contents.update(changes)
  return {k: v for k, v in contents.items() if v is not None}


def _npy():
  buffer = io.BytesIO()
  np.save(buffer, np.zeros(3))
  return buffer.getvalue()


@pytest.fixture(name='no_network')
def fixture_no_network(monkeypatch, tmp_path):
  """No caches, and every connection is refused at once."""

  def refuse(*args, **kwargs):
    raise socket.gaierror('no network in this test')

  monkeypatch.setattr(socket, 'create_connection', refuse)
  monkeypatch.setattr(socket, 'getaddrinfo', refuse)
  monkeypatch.setenv('HOME', str(tmp_path))


class TestDigits:
  def test_all_of_scikit_learns_digits_are_there(self):
    fed = data.load('digits', num_clients=20)
    assert (fed.name, fed.num_classes, fed.num_clients, fed.input_shape) == ('digits', 10, 20, (8, 8, 1))
    assert (fed.num_examples, len(fed.test)) == (1437, 360)
    assert fed.partition == 'dirichlet:alpha=0.5'
    assert fed.client_ids[0] == 'client_00'
    assert fed.test.x.min() == 0 and fed.test.x.max() == 1
    assert set(fed.test.y) == set(range(10))
    # Every example once: the sum of all pixels is that of the source.
    total = sum(e.x.sum(dtype=np.float64) for e in fed.clients + (fed.test,))
    assert total == pytest.approx(datasets.load_digits().images.sum() / 16)

  def test_the_test_set_is_the_same_for_every_seed_and_the_partition_is_not(self):
    a, b = data.load('digits', seed=1, num_clients=10), data.load('digits', seed=2, num_clients=10)
    np.testing.assert_array_equal(a.test.x, b.test.x)
    assert a.digest() != b.digest()
    assert a.digest() == data.load('digits', seed=1, num_clients=10).digest()

  def test_the_partition_goes_by_the_labels(self):
    fed = data.load('digits', num_clients=30, partition='dirichlet:alpha=0.001')
    # Nearly every label has one owner; 20 clients or so hold the one example that nobody may be without.
    assert np.mean([len(np.unique(c.y)) for c in fed.clients]) < 1.5
    assert fed.partition == 'dirichlet:alpha=0.001'

  def test_the_number_of_clients_defaults_to_the_documents(self):
    assert data.load('digits', partition='iid').num_clients == base.DEFAULT_NUM_CLIENTS == 100

  def test_progress_counts_up_to_the_total(self):
    seen = []
    data.load('digits', num_clients=3, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


class TestGlyphs:
  def test_every_glyph_has_its_share_of_both_parts(self):
    fed = data.load('glyphs:classes=3,copies=14', num_clients=2, partition='iid')
    assert (fed.num_classes, fed.num_examples, fed.input_shape) == (3, 36, (28, 28, 1))
    assert np.bincount(fed.test.y).tolist() == [2, 2, 2]
    assert np.bincount(np.concatenate([c.y for c in fed.clients])).tolist() == [12, 12, 12]
    assert fed.test.x.min() == 0 and 0.9 < fed.test.x.max() <= 1
    # One glyph's drawings differ, and are nearer to each other than to those of the others.
    x, y = np.concatenate([c.x for c in fed.clients]), np.concatenate([c.y for c in fed.clients])
    means = np.stack([x[y == label].mean(axis=0) for label in range(3)])
    distances = np.square(fed.test.x[:, None] - means).sum(axis=(2, 3, 4))
    assert np.mean(distances.argmin(axis=1) == fed.test.y) > 0.6
    assert len({one.tobytes() for one in x}) == 36

  def test_glyphs_are_the_same_for_every_seed_of_a_run(self):
    first, second = (data.load('glyphs:classes=2,copies=7', seed=seed, num_clients=2) for seed in (1, 2))
    np.testing.assert_array_equal(first.test.x, second.test.x)
    other = data.load('glyphs:classes=2,copies=7,alphabet=1', num_clients=2)
    assert not np.array_equal(first.test.x, other.test.x)


class TestThings:
  def test_every_thing_has_its_share_of_both_parts(self):
    fed = data.load('things:classes=3,looks=2,copies=14', num_clients=2, partition='iid')
    assert (fed.name, fed.num_classes, fed.num_examples, fed.input_shape) == ('things', 3, 36, (32, 32, 3))
    np.testing.assert_array_equal(np.bincount(np.concatenate([c.y for c in fed.clients])), [12] * 3)
    np.testing.assert_array_equal(np.bincount(fed.test.y), [2] * 3)
    assert fed.test.x.min() >= 0 and 0.5 < fed.test.x.max() <= 1

  def test_a_label_has_as_many_looks_as_asked_for(self):
    # Two drawings of one thing are nearer to each other than to the other look of their label.
    def nearest_is_own_label(looks):
      x = data.load(f'things:classes=2,looks={looks},copies=70', num_clients=1, partition='iid').clients[0]
      flat = x.x[:, 8:24, 8:24].reshape(len(x), -1)
      distance = np.linalg.norm(flat[:, None] - flat, axis=2) + 1e9 * np.eye(len(x))
      return np.mean(x.y[distance.argmin(axis=1)] == x.y)

    assert nearest_is_own_label(1) > nearest_is_own_label(20) + 0.1

  def test_things_are_the_same_for_every_seed_of_a_run_and_others_than_features_are_learned_from(self):
    load = lambda **changes: data.load('things:copies=7', num_clients=2, partition='iid', **changes)
    np.testing.assert_array_equal(load(seed=1).test.x, load(seed=2).test.x)
    other = data.load('things:copies=7,kinds=1', num_clients=2, partition='iid')
    assert (load().test.x != other.test.x).any()
    ours, learned_from = (
      leaves.things(10, rng).parts.values[:, 0, leaves._RADIUS]
      for rng in (rng_lib.generator(0, 'things'), np.random.default_rng(0))
    )
    assert not np.isin(ours, learned_from).any()

  def test_errors(self):
    with pytest.raises(ValueError, match='copies must be an integer at least 7'):
      data.load('things:copies=6')


class TestNpz:
  def test_pixels_are_scaled_and_labels_stay_with_them(self, tmp_path):
    contents = small_images()
    np.savez(tmp_path / 'mnist.npz', **contents)
    fed = data.load('mnist', data_dir=str(tmp_path), num_clients=4, partition='iid')
    assert fed.input_shape == (28, 28, 1) and fed.num_classes == 10 and fed.partition == 'iid'
    np.testing.assert_array_equal(fed.test.x, contents['x_test'][..., None].astype(np.float32) / np.float32(255))
    np.testing.assert_array_equal(fed.test.y, contents['y_test'])
    label_of = {x.tobytes(): y for x, y in zip(contents['x_train'], contents['y_train'])}
    got = [(np.rint(x * 255).astype(np.uint8).tobytes(), y) for c in fed.clients for x, y in zip(c.x, c.y)]
    assert len(got) == len(label_of) and all(label_of[x] == y for x, y in got)

  def test_cifar10_keeps_its_channels_and_takes_keras_column_of_labels(self, tmp_path):
    contents = small_images(shape=(32, 32, 3), y_test=np.arange(10, dtype=np.uint8)[:, None])
    np.savez_compressed(tmp_path / 'cifar10.npz', **contents)
    fed = data.load('cifar10', data_dir=str(tmp_path), num_clients=2)
    assert fed.input_shape == (32, 32, 3)
    np.testing.assert_array_equal(fed.test.y, np.arange(10))
    np.testing.assert_allclose(fed.test.x, contents['x_test'] / 255, rtol=1e-6)

  def test_a_data_dir_without_the_file_is_an_error_naming_it(self, tmp_path):
    with pytest.raises(data.DataFileError, match=r'mnist\.npz not found; expected the arrays of mnist: an \.npz with'):
      data.load('mnist', data_dir=str(tmp_path))

  @pytest.mark.parametrize(
    'make, found',
    [
      (os.mkdir, 'is a folder and not a file'),
      (os.mkfifo, 'is a pipe and not a file'),
      (lambda path: os.symlink('/dev/null', path), 'is a device and not a file'),
      (lambda path: os.symlink('gone', path), 'is a link to a file that does not exist'),
    ],
    ids=['folder', 'pipe', 'device', 'link'],
  )
  @pytest.mark.parametrize('dataset, name', [('mnist', 'mnist.npz'), ('femnist', 'emnist_all.sqlite')])
  def test_what_is_not_a_file_is_called_what_it_is(self, dataset, name, make, found, tmp_path):
    make(tmp_path / name)
    with pytest.raises(data.DataFileError, match=f'{name} {found}; expected the '):
      data.load(dataset, data_dir=str(tmp_path))

  @pytest.mark.parametrize(
    'damage',
    [lambda whole, n=n: whole[:n] for n in (0, 10, 1000, -1)] + [lambda _: b'<html>404</html>', lambda _: _npy()],
  )
  def test_a_file_that_is_cut_short_or_of_another_kind(self, tmp_path, damage):
    path = tmp_path / 'mnist.npz'
    np.savez(path, **small_images())
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(data.DataFileError, match=r'mnist\.npz is not an \.npz, or is cut short: expected the arrays'):
      data.load('mnist', data_dir=str(tmp_path))

  @pytest.mark.parametrize('save', [np.savez, np.savez_compressed])
  def test_a_file_damaged_in_the_middle(self, tmp_path, save):
    path = tmp_path / 'mnist.npz'
    save(path, **small_images())
    contents = bytearray(path.read_bytes())
    contents[5000:5100] = bytes(b ^ 0xFF for b in contents[5000:5100])
    path.write_bytes(contents)
    with pytest.raises(data.DataFileError, match=r'mnist\.npz is damaged: expected the arrays of mnist'):
      data.load('mnist', data_dir=str(tmp_path))

  def test_a_pickle_in_the_file_is_not_read(self, tmp_path):
    np.savez(tmp_path / 'mnist.npz', **small_images(y_train=np.array([object()] * 40)))
    with pytest.raises(data.DataFileError, match='holds Python objects, which are never read'):
      data.load('mnist', data_dir=str(tmp_path))

  @pytest.mark.parametrize(
    'changes, message',
    [
      (dict(x_train=np.zeros([40, 28, 28], np.float32)), r'x_train to be uint8\[n, 28, 28\], found float32\[40, 28'),
      (dict(x_train=np.zeros([40, 14, 14], np.uint8)), r'found uint8\[40, 14, 14\]'),
      (dict(x_test=np.zeros([0, 28, 28], np.uint8)), r'x_test to be .*found uint8\[0, 28, 28\]'),
      (dict(y_train=np.zeros(39, np.uint8)), r'y_train to be 40 integers, one for each image, found uint8\[39\]'),
      (dict(y_train=np.zeros(40)), r'found float64\[40\]'),
      (dict(y_test=np.full(10, 10, np.uint8)), r'y_test in \[0, 10\), found 10 to 10'),
      (dict(y_test=None), r'the wrong file: expected .*, found x_test, x_train, y_train'),
    ],
  )
  def test_arrays_that_are_not_mnists(self, tmp_path, changes, message):
    np.savez(tmp_path / 'mnist.npz', **small_images(**changes))
    with pytest.raises(data.DataFileError, match=message):
      data.load('mnist', data_dir=str(tmp_path))

  def test_more_clients_than_examples(self, tmp_path):
    np.savez(tmp_path / 'mnist.npz', **small_images())
    with pytest.raises(ValueError, match='41 clients and only 40 examples'):
      data.load('mnist', data_dir=str(tmp_path), num_clients=41)


class TestDownload:
  @pytest.mark.parametrize('name', ['mnist', 'cifar10'])
  def test_without_network_and_cache_the_error_says_which_file_to_put_where(self, name, no_network, capfd):
    start = time.monotonic()
    with pytest.raises(data.DataFileError, match=rf'Put {name}\.npz .* into a folder and give that folder as --data'):
      data.load(name)
    assert time.monotonic() - start < 10
    assert capfd.readouterr().out == ''

  def test_mnist_writers_cannot_be_downloaded(self):
    with pytest.raises(data.DataFileError, match='Put mnist_writers.npz and mnist.npz into a folder'):
      data.load('mnist_writers')

  def test_waiting_for_the_network_is_bounded_and_the_bound_is_taken_back(self):
    seen = []
    for before in (None, 12.5):
      socket.setdefaulttimeout(before)
      try:
        with pytest.raises(data.DataFileError, match='it failed .KeyError.*do this'):
          with reading.downloading('it failed', 'do this'):
            seen.append(socket.getdefaulttimeout())
            raise KeyError('x')
        assert socket.getdefaulttimeout() == before
      finally:
        socket.setdefaulttimeout(None)
    assert seen == [reading.DOWNLOAD_TIMEOUT_SECONDS] * 2

  def test_a_server_that_never_answers_does_not_hang(self, monkeypatch):
    monkeypatch.setattr(reading, 'DOWNLOAD_TIMEOUT_SECONDS', 0.3)
    with socket.socket() as server:
      server.bind(('127.0.0.1', 0))
      server.listen()
      start = time.monotonic()
      with pytest.raises(data.DataFileError, match='timed out'):
        with reading.downloading('no answer', 'do this'):
          urllib.request.urlopen(f'http://127.0.0.1:{server.getsockname()[1]}')
      assert time.monotonic() - start < 5

  @pytest.mark.parametrize(
    'name, keras, shape',
    [('mnist', tf.keras.datasets.mnist, (28, 28)), ('cifar10', tf.keras.datasets.cifar10, (32, 32, 3))],
  )
  def test_keras_arrays_are_used_without_a_data_dir(self, monkeypatch, name, keras, shape):
    contents = small_images(shape=shape, y_train=np.zeros([40, 1], np.uint8))
    monkeypatch.setattr(
      keras, 'load_data', lambda: ((contents['x_train'], contents['y_train']), (contents['x_test'], contents['y_test']))
    )
    fed = data.load(name, num_clients=2)
    assert (fed.num_examples, len(fed.test)) == (40, 10)


class TestMnistWriters:
  def write(self, folder, owners=None):
    np.savez(folder / 'mnist.npz', **small_images())
    np.savez(folder / 'mnist_writers.npz', writer_train=np.arange(40) % 7 if owners is None else owners)

  def test_each_writer_holds_their_own_digits(self, tmp_path):
    self.write(tmp_path)
    fed = data.load('mnist_writers', data_dir=str(tmp_path))
    assert fed.client_ids == tuple(f'writer_{i:04d}' for i in range(7)) and fed.partition == 'natural'
    contents = small_images()
    for i, client in enumerate(fed.clients):
      np.testing.assert_array_equal(np.rint(client.x[..., 0] * 255), contents['x_train'][i::7])
      np.testing.assert_array_equal(client.y, contents['y_train'][i::7])

  def test_fewer_writers_are_drawn_by_the_seed_and_a_larger_choice_contains_the_smaller(self, tmp_path):
    self.write(tmp_path)
    load = lambda n, seed: data.load('mnist_writers', data_dir=str(tmp_path), num_clients=n, seed=seed)
    choose = lambda n, seed: set(load(n, seed).client_ids)
    assert len(choose(3, 0)) == 3 and choose(3, 0) < choose(5, 0)
    assert len({frozenset(choose(3, seed)) for seed in range(5)}) > 1

  def test_errors(self, tmp_path):
    self.write(tmp_path)
    with pytest.raises(ValueError, match='mnist_writers has 7 clients, found num_clients=8'):
      data.load('mnist_writers', data_dir=str(tmp_path), num_clients=8)
    self.write(tmp_path, owners=np.zeros(39, int))
    with pytest.raises(data.DataFileError, match=r'writer_train to be 40 integers.*found int64\[39\]'):
      data.load('mnist_writers', data_dir=str(tmp_path))


@pytest.mark.parametrize(
  'arguments, message',
  [
    (dict(spec='mnits'), "Unknown dataset 'mnits'. Did you mean 'mnist'"),
    (dict(spec='digits:size=8'), "'size=8'"),
    (dict(num_clients=0), 'num_clients must be an integer at least 1, found 0'),
    (dict(seed=-1), 'seed must be an integer at least 0, found -1'),
    (dict(partition='dirichlet:alpha=nan'), 'dirichlet alpha must be a finite number'),
    (dict(partition='noniid'), "Unknown partition 'noniid'. Did you mean 'iid'"),
    (dict(spec='femnist:published_polarity=maybe'), 'published_polarity must be true or false'),
  ],
)
def test_bad_arguments(arguments, message):
  with pytest.raises(ValueError, match=message):
    data.load(**{**dict(spec='digits'), **arguments})


@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason='the real benchmark files are not beside this repository')
class TestRealFiles:
  def test_mnist(self):
    fed = data.load('mnist', data_dir=str(SHARED_DATA), seed=42)
    assert (fed.num_clients, fed.num_examples, len(fed.test)) == (100, 60000, 10000)
    np.testing.assert_array_equal(
      np.bincount(np.concatenate([c.y for c in fed.clients])),
      [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    )
    # The published mean pixel of the training set.
    assert sum(c.x.sum(dtype=np.float64) for c in fed.clients) / (60000 * 784) == pytest.approx(0.1307, abs=1e-4)
    assert fed.test.x.mean() < 0.2  # Ink is 1.

  def test_mnist_writers(self):
    fed = data.load('mnist_writers', data_dir=str(SHARED_DATA))
    assert (fed.num_clients, fed.num_examples) == (539, 60000)
    assert (min(map(len, fed.clients)), max(map(len, fed.clients))) == (19, 131)

  def test_cifar10(self):
    fed = data.load('cifar10', data_dir=str(SHARED_DATA), partition='iid')
    assert (fed.num_examples, len(fed.test), fed.input_shape) == (50000, 10000, (32, 32, 3))
    assert set(map(len, fed.clients)) == {500}
