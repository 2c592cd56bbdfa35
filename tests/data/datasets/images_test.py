"""Images from memory and from files; downloads; and `data.load` itself."""

import io
import os
import pathlib
import socket
import urllib.request

import numpy as np
import pytest
from sklearn import datasets
import tensorflow as tf

import data
from data import reading
from data.datasets import base
from data.features import maps
from data.features import public_images
from tests.data import tff_file

SHARED_DATA = pathlib.Path(__file__).resolve().parents[3] / 'shared' / 'data'


def _npy():
  buffer = io.BytesIO()
  np.save(buffer, np.zeros(3))
  return buffer.getvalue()


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


class TestNpz:
  def test_pixels_are_scaled_and_labels_stay_with_them(self, load, tmp_path):
    contents = tff_file.keras_images()
    np.savez(tmp_path / 'mnist.npz', **contents)
    fed = load('mnist', num_clients=4, partition='iid')
    assert fed.input_shape == (28, 28, 1) and fed.num_classes == 10 and fed.partition == 'iid'
    np.testing.assert_array_equal(fed.test.x, contents['x_test'][..., None].astype(np.float32) / np.float32(255))
    np.testing.assert_array_equal(fed.test.y, contents['y_test'])
    label_of = {x.tobytes(): y for x, y in zip(contents['x_train'], contents['y_train'])}
    got = [(np.rint(x * 255).astype(np.uint8).tobytes(), y) for c in fed.clients for x, y in zip(c.x, c.y)]
    assert len(got) == len(label_of) and all(label_of[x] == y for x, y in got)

  def test_cifar10_keeps_its_channels_and_takes_keras_column_of_labels(self, load, tmp_path):
    contents = tff_file.keras_images(shape=(32, 32, 3), y_test=np.arange(10, dtype=np.uint8)[:, None])
    np.savez_compressed(tmp_path / 'cifar10.npz', **contents)
    fed = load('cifar10', num_clients=2)
    assert fed.input_shape == (32, 32, 3)
    np.testing.assert_array_equal(fed.test.y, np.arange(10))
    np.testing.assert_allclose(fed.test.x, contents['x_test'] / 255, rtol=1e-6)

  def test_a_data_dir_without_the_file_is_an_error_naming_it(self, load):
    with pytest.raises(data.DataFileError, match=r'mnist\.npz not found; expected the arrays of mnist: an \.npz with'):
      load('mnist')

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
  def test_what_is_not_a_file_is_called_what_it_is(self, dataset, name, make, found, load, tmp_path):
    make(tmp_path / name)
    with pytest.raises(data.DataFileError, match=f'{name} {found}; expected the '):
      load(dataset)

  @pytest.mark.parametrize(
    'damage',
    [lambda whole, n=n: whole[:n] for n in (0, 10, 1000, -1)] + [lambda _: b'<html>404</html>', lambda _: _npy()],
  )
  def test_a_file_that_is_cut_short_or_of_another_kind(self, load, tmp_path, damage):
    path = tmp_path / 'mnist.npz'
    np.savez(path, **tff_file.keras_images())
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(data.DataFileError, match=r'mnist\.npz is not an \.npz, or is cut short: expected the arrays'):
      load('mnist')

  @pytest.mark.parametrize('save', [np.savez, np.savez_compressed])
  def test_a_file_damaged_in_the_middle(self, load, tmp_path, save):
    path = tmp_path / 'mnist.npz'
    save(path, **tff_file.keras_images())
    contents = bytearray(path.read_bytes())
    contents[5000:5100] = bytes(b ^ 0xFF for b in contents[5000:5100])
    path.write_bytes(contents)
    with pytest.raises(data.DataFileError, match=r'mnist\.npz is damaged: expected the arrays of mnist'):
      load('mnist')

  @pytest.mark.parametrize(
    'changes, message',
    [
      (dict(x_train=np.zeros([40, 28, 28], np.float32)), r'x_train to be uint8\[n, 28, 28\], found float32\[40, 28'),
      (dict(x_train=np.zeros([40, 14, 14], np.uint8)), r'found uint8\[40, 14, 14\]'),
      (dict(x_test=np.zeros([0, 28, 28], np.uint8)), r'x_test to be .*found uint8\[0, 28, 28\]'),
      (dict(y_train=np.zeros(39, np.uint8)), r'y_train to be 40 integers, one for each image, found uint8\[39\]'),
      (dict(y_train=np.zeros(40)), r'found float64\[40\]'),
      (dict(y_train=np.array([object()] * 40)), 'holds Python objects, which are never read'),
      (dict(y_test=np.full(10, 10, np.uint8)), r'y_test in \[0, 10\), found 10 to 10'),
      (dict(y_test=None), r'the wrong file: expected .*, found x_test, x_train, y_train'),
    ],
  )
  def test_arrays_that_are_not_mnists(self, load, tmp_path, changes, message):
    np.savez(tmp_path / 'mnist.npz', **tff_file.keras_images(**changes))
    with pytest.raises(data.DataFileError, match=message):
      load('mnist')

  def test_more_clients_than_examples(self, load, tmp_path):
    np.savez(tmp_path / 'mnist.npz', **tff_file.keras_images())
    with pytest.raises(ValueError, match='41 clients and only 40 examples'):
      load('mnist', num_clients=41)


class TestDownload:
  @pytest.mark.parametrize('name', ['mnist', 'cifar10'])
  def test_without_network_and_cache_the_error_says_which_file_to_put_where(self, name, no_network, capfd):
    with pytest.raises(data.DataFileError, match=rf'Put {name}\.npz .* into a folder and give that folder as --data'):
      data.load(name)
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

  @pytest.mark.slow
  def test_a_server_that_never_answers_does_not_hang(self, monkeypatch):
    monkeypatch.setattr(reading, 'DOWNLOAD_TIMEOUT_SECONDS', 0.3)
    with socket.socket() as server:
      server.bind(('127.0.0.1', 0))
      server.listen()
      with pytest.raises(data.DataFileError, match='timed out'):
        with reading.downloading('no answer', 'do this'):
          urllib.request.urlopen(f'http://127.0.0.1:{server.getsockname()[1]}')

  @pytest.mark.parametrize(
    'name, keras, shape',
    [('mnist', tf.keras.datasets.mnist, (28, 28)), ('cifar10', tf.keras.datasets.cifar10, (32, 32, 3))],
  )
  def test_keras_arrays_are_used_without_a_data_dir(self, monkeypatch, name, keras, shape):
    contents = tff_file.keras_images(shape=shape, y_train=np.zeros([40, 1], np.uint8))
    monkeypatch.setattr(
      keras, 'load_data', lambda: ((contents['x_train'], contents['y_train']), (contents['x_test'], contents['y_test']))
    )
    fed = data.load(name, num_clients=2)
    assert (fed.num_examples, len(fed.test)) == (40, 10)


class TestUnipen:
  def test_each_writer_holds_their_own_characters_and_others_test(self, load, tmp_path):
    contents = tff_file.unipen(tmp_path)
    fed = load('unipen:test_writers=0.25')
    ids = [f'writer_{number:04d}' for number in range(8)]
    assert fed.num_clients == 6 and set(fed.client_ids) < set(ids) and fed.num_classes == 62
    assert fed.test_set == '10 examples of 2 other clients, who take part in no round.' and not fed.test_is_of_clients
    for name, client in zip(fed.client_ids, fed.clients):
      own = contents['writer'] == int(name[-4:])
      np.testing.assert_array_equal(np.rint(client.x[..., 0] * 255), contents['x'][own])
      np.testing.assert_array_equal(client.y, contents['y'][own])
    testers = np.isin(contents['writer'], [int(name[-4:]) for name in set(ids) - set(fed.client_ids)])
    np.testing.assert_array_equal(np.sort(fed.test.y), np.sort(contents['y'][testers]))

  @pytest.mark.parametrize(
    'changes, message',
    [
      (dict(x=np.zeros((40, 28, 27), np.uint8)), r'x uint8\[n, 28, 28\], found uint8\[40, 28, 27\]'),
      (dict(writer=np.zeros(39, int)), r'writer to be 40 integers.*found int64\[39\]'),
      (dict(y=np.full(40, 62)), r'labels in \[0, 62\), found 62 to 62'),
    ],
  )
  def test_another_file(self, load, tmp_path, changes, message):
    tff_file.unipen(tmp_path, **changes)
    with pytest.raises(data.DataFileError, match=message):
      load('unipen')

  def test_it_cannot_be_downloaded(self):
    with pytest.raises(data.DataFileError, match='unipen62.npz.*which no loader downloads'):
      data.load('unipen')

  def test_features_of_its_own_writers_are_refused(self, load, tmp_path, monkeypatch):
    tff_file.unipen(tmp_path)
    learned = public_images.UnipenCharacters().read(str(tmp_path), 0).description
    monkeypatch.setattr(maps.Scattering, 'public_data', lambda self: f'{learned} Extractor of SHA-256 x.')
    with pytest.raises(ValueError, match="were learned from UNIPEN's writers, who are the clients"):
      load('unipen', features='scattering:scales=1')


class TestMnistWriters:
  def test_each_writer_holds_their_own_digits(self, load, tmp_path):
    tff_file.mnist_writers(tmp_path, np.arange(40) % 7)
    fed = load('mnist_writers')
    assert fed.client_ids == tuple(f'writer_{i:04d}' for i in range(7)) and fed.partition == 'natural'
    contents = tff_file.keras_images()
    for i, client in enumerate(fed.clients):
      np.testing.assert_array_equal(np.rint(client.x[..., 0] * 255), contents['x_train'][i::7])
      np.testing.assert_array_equal(client.y, contents['y_train'][i::7])

  def test_fewer_writers_are_drawn_by_the_seed_and_a_larger_choice_contains_the_smaller(self, tmp_path):
    tff_file.mnist_writers(tmp_path, np.arange(40) % 7)
    load = lambda n, seed: data.load('mnist_writers', data_dir=str(tmp_path), num_clients=n, seed=seed)
    choose = lambda n, seed: set(load(n, seed).client_ids)
    assert len(choose(3, 0)) == 3 and choose(3, 0) < choose(5, 0)
    assert len({frozenset(choose(3, seed)) for seed in range(5)}) > 1

  def test_errors(self, load, tmp_path):
    tff_file.mnist_writers(tmp_path, np.arange(40) % 7)
    with pytest.raises(ValueError, match='mnist_writers has 7 clients, found num_clients=8'):
      load('mnist_writers', num_clients=8)
    tff_file.mnist_writers(tmp_path, np.zeros(39, int))
    with pytest.raises(data.DataFileError, match=r'writer_train to be 40 integers.*found int64\[39\]'):
      load('mnist_writers')


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


@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason='the real benchmark files are not alongside this repository')
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
