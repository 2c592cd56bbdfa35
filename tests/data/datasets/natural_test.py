"""Federated EMNIST, CIFAR-100, Shakespeare and Stack Overflow, from small files in the formats of TFF's loaders."""

import os
import pathlib
import sqlite3

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.simulation.baselines.shakespeare import char_prediction_preprocessing
from tensorflow_federated.python.simulation.baselines.stackoverflow import word_prediction_preprocessing

import data
from data.datasets import natural
from data.datasets import shakespeare_file
from data.datasets import tff_files
from tests.data import tff_file

_EMNIST = 'emnist_all.sqlite'


class TestFiles:
  """Every file is found, downloaded and checked by the same functions; here it is that of Federated EMNIST."""

  def test_a_folder_with_awkward_characters(self, tmp_path):
    folder = tmp_path / 'a folder?with#signs%20'
    folder.mkdir()
    tff_file.emnist(folder / _EMNIST)
    assert data.load('femnist', data_dir=str(folder)).num_clients == 5

  @pytest.mark.parametrize('name', ['emnist_all', 'shakespeare'])
  def test_a_missing_file(self, load, name):
    with pytest.raises(data.DataFileError, match=f'{name}.sqlite not found; expected the file of TFF'):
      load({'emnist_all': 'femnist'}.get(name, name))

  @pytest.mark.parametrize(
    'damage, message',
    [
      (lambda whole: b'', 'no SQLite header'),
      (lambda whole: b'<html>' * 100, 'the wrong file: expected a SQLite database.*no SQLite header'),
      (lambda whole: whole[: int(0.3 * len(whole))], r'cut short: expected \d+ bytes, found'),
      (lambda whole: whole[: int(0.9 * len(whole))], r'cut short: expected \d+ bytes, found'),
      (
        lambda whole: whole[:200] + np.random.default_rng(0).bytes(len(whole) - 4296) + whole[-4096:],
        'emnist_all.sqlite is (damaged|the wrong file)',
      ),
    ],
  )
  def test_a_damaged_file(self, load, tmp_path, damage, message):
    tff_file.emnist(tmp_path / _EMNIST)
    (tmp_path / _EMNIST).write_bytes(damage((tmp_path / _EMNIST).read_bytes()))
    with pytest.raises(data.DataFileError, match=message):
      load('femnist')

  def test_databases_of_something_else(self, load, tmp_path):
    tff_file.emnist(tmp_path / _EMNIST, feature='snippets')
    with pytest.raises(data.DataFileError, match='expected examples with pixels'):
      load('femnist')
    tff_files.write_splits(str(tmp_path / _EMNIST), {'train': {}})
    with pytest.raises(data.DataFileError, match='splits all_train and all_test, found the splits'):
      load('femnist')
    connection = sqlite3.connect(tmp_path / _EMNIST)
    connection.execute('DROP TABLE examples')
    connection.commit()
    connection.close()
    with pytest.raises(data.DataFileError, match="found no table 'examples'"):
      load('femnist')

  @pytest.mark.parametrize('name, file', [('femnist', 'emnist_all'), ('shakespeare', 'shakespeare')])
  def test_without_network_and_cache_the_error_says_which_file_to_put_where(self, name, file, no_network, tmp_path):
    with pytest.raises(data.DataFileError, match=rf'Put {file}\.sqlite into a folder .* --data_dir, or put it into'):
      data.load(name)
    assert not list((tmp_path / '.tff').iterdir())  # Nothing half-made that TFF would take for the file next time.

  def test_an_interrupted_femnist_download_leaves_no_file_and_a_complete_one_does(self, monkeypatch, tmp_path):
    monkeypatch.setenv('HOME', str(tmp_path))
    original = tff.simulation.datasets.emnist.load_data

    def interrupted(only_digits=True, cache_dir=None):
      pathlib.Path(cache_dir, _EMNIST).write_bytes(b'half')
      raise KeyboardInterrupt

    monkeypatch.setattr(tff.simulation.datasets.emnist, 'load_data', interrupted)
    with pytest.raises(KeyboardInterrupt):
      data.load('femnist')
    assert not list((tmp_path / '.tff').iterdir())

    def cut_short(only_digits=True, cache_dir=None):
      path = pathlib.Path(cache_dir, _EMNIST)
      tff_file.emnist(path)
      path.write_bytes(path.read_bytes()[:8192])

    monkeypatch.setattr(tff.simulation.datasets.emnist, 'load_data', cut_short)
    with pytest.raises(data.DataFileError, match='cut short'):
      data.load('femnist')
    assert not list((tmp_path / '.tff').iterdir())

    def complete(only_digits=True, cache_dir=None):
      if not os.path.exists(os.path.join(cache_dir, _EMNIST)):
        tff_file.emnist(os.path.join(cache_dir, _EMNIST))
      return original(only_digits, cache_dir)

    monkeypatch.setattr(tff.simulation.datasets.emnist, 'load_data', complete)
    assert data.load('femnist').num_clients == 5
    assert [p.name for p in (tmp_path / '.tff').iterdir()] == [_EMNIST]


class TestFemnist:
  @pytest.mark.slow
  def test_the_arrays_are_those_of_tffs_loader_with_ink_as_one(self, load, tmp_path):
    tff_file.emnist(tmp_path / _EMNIST)
    fed = load('femnist')
    train, test = tff.simulation.datasets.emnist.load_data(only_digits=False, cache_dir=str(tmp_path))
    assert (fed.num_classes, fed.input_shape, fed.partition) == (62, (28, 28, 1), 'natural')
    assert list(fed.client_ids) == train.client_ids
    for client_id, client in zip(fed.client_ids, fed.clients):
      rows = list(train.create_tf_dataset_for_client(client_id).as_numpy_iterator())
      np.testing.assert_array_equal(client.x[..., 0], 1 - np.stack([r['pixels'] for r in rows]))
      np.testing.assert_array_equal(client.y, [r['label'] for r in rows])
    rows = [r for c in test.client_ids for r in test.create_tf_dataset_for_client(c).as_numpy_iterator()]
    np.testing.assert_array_equal(fed.test.x[..., 0], 1 - np.stack([r['pixels'] for r in rows]))
    np.testing.assert_array_equal(fed.test.y, [r['label'] for r in rows])
    published = load('femnist:published_polarity=true')
    np.testing.assert_array_equal(1 - published.test.x, fed.test.x)

  def test_digits_are_a_split_of_their_own_with_ten_classes(self, load, tmp_path):
    tff_file.emnist(tmp_path / _EMNIST, tff_file.writers(num_classes=10), prefix='digits_only')
    fed = load('femnist_digits')
    assert (fed.num_classes, fed.num_clients) == (10, 5)
    with pytest.raises(data.DataFileError, match=r"splits all_train and all_test, found the splits \['digits_only_"):
      load('femnist')

  def test_only_the_chosen_clients_are_read_and_tested_on(self, load, tmp_path):
    contents = tff_file.emnist(tmp_path / _EMNIST)
    seen = []
    fed = load('femnist', num_clients=2, seed=3, progress=lambda done, total: seen.append((done, total)))
    assert fed.num_clients == 2 and list(fed.client_ids) == sorted(fed.client_ids)
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert len(fed.test) == sum(len(contents[c]['test'][0]) for c in fed.client_ids)
    assert fed.digest() == load('femnist', num_clients=2, seed=3).digest()
    with pytest.raises(ValueError, match='femnist has 5 clients, found num_clients=6'):
      load('femnist', num_clients=6)

  def test_writers_that_are_held_out_take_part_in_no_round(self, load, tmp_path):
    contents = tff_file.emnist(tmp_path / _EMNIST)
    fed = load('femnist:test_writers=0.4')
    others = sorted(set(contents) - set(fed.client_ids))
    assert (fed.num_clients, len(others)) == (3, 2) and not fed.test_is_of_clients
    assert 'of 2 other writers, who take part in no round' in fed.test_set
    # All examples of the others, and none of the clients'.
    labels = [y for c in others for split in ('train', 'test') for y in contents[c][split][1]]
    assert sorted(fed.test.y) == sorted(labels)
    trained = {x.tobytes() for client in fed.clients for x in client.x}
    assert not trained & {x.tobytes() for x in fed.test.x}
    whole = load('femnist')
    assert whole.test_is_of_clients and 'the clients themselves' in whole.test_set

  @pytest.mark.parametrize('bad', [255.0, -0.5, np.nan])
  def test_pixels_out_of_range(self, load, tmp_path, bad):
    contents = tff_file.writers()
    contents['writer_c']['train'][0][1, 2, 3] = bad
    tff_file.emnist(tmp_path / _EMNIST, contents)
    with pytest.raises(data.DataFileError, match=r'expected pixels in \[0, 1\], found'):
      load('femnist')

  def test_a_client_with_no_data_is_an_error_that_names_it(self, load, tmp_path):
    contents = tff_file.writers()
    contents['writer_b']['train'] = (np.zeros([0, 28, 28], np.float32), np.zeros(0, int))
    tff_file.emnist(tmp_path / _EMNIST, contents)
    with pytest.raises(ValueError, match=r"client 'writer_b' \(index 1\) has no examples"):
      load('femnist')


class TestShakespeare:
  SPEC = 'shakespeare:length=4'

  @pytest.fixture(autouse=True)
  def speeches(self, tmp_path):
    tff_file.shakespeare(tmp_path / 'shakespeare.sqlite')

  def test_roles_are_clients_and_their_held_out_speeches_the_test(self, load):
    fed = load(self.SPEC)
    assert (fed.client_ids, fed.num_classes, fed.input_shape) == (('HAMLET', 'OPHELIA', 'YORICK'), 90, (4,))
    assert fed.is_sequences and fed.is_on_demand and fed.num_examples is None and fed.test_is_of_clients
    expected = natural.examples_of_speeches([b'To be', b'or not'], 4)
    np.testing.assert_array_equal(fed.clients[0].x, expected.x)
    np.testing.assert_array_equal(fed.clients[0].y, expected.y)
    np.testing.assert_array_equal(fed.test.x, natural.examples_of_speeches([b'that is', b'No', b'a fellow'], 4).x)

  def test_other_roles_are_the_test(self, load):
    fed = load('shakespeare:length=4,test_roles=0.3', seed=1)
    (other,) = {'HAMLET', 'OPHELIA', 'YORICK'} - set(fed.client_ids)
    spoken = {
      'HAMLET': [b'To be', b'or not', b'that is'],
      'OPHELIA': [b'My lord!', b'No'],
      'YORICK': [b'Alas', b'poor', b'me', b'a fellow'],
    }[other]
    np.testing.assert_array_equal(fed.test.x, natural.examples_of_speeches(spoken, 4).x)
    assert not fed.test_is_of_clients and '1 other roles' in fed.test_set

  def test_the_seed_chooses_and_another_choice_has_another_digest(self, load):
    chosen = {load(self.SPEC, num_clients=1, seed=seed).client_ids for seed in range(5)}
    assert len(chosen) > 1
    assert load(self.SPEC).digest() == load(self.SPEC).digest() != load(self.SPEC, num_clients=2).digest()

  def test_another_file_has_another_digest(self, load, tmp_path):
    digests = []
    for name, speech in (('a', b'ah'), ('b', b'oh')):
      (tmp_path / name).mkdir()
      tff_file.shakespeare(tmp_path / name / 'shakespeare.sqlite', {'X': [speech]}, {'X': [b'the end']})
      digests.append(load(self.SPEC, tmp_path / name).digest())
    assert digests[0] != digests[1]

  def test_clients_are_read_when_they_are_asked_for_and_not_kept(self, load, monkeypatch):
    read = []
    of_file = tff_files.Split.read
    monkeypatch.setattr(tff_files.Split, 'read', lambda self, ids: read.extend(ids) or of_file(self, ids))
    fed = load(self.SPEC)
    # Every test speech, and one client for the shape of an example.
    assert len(read) == 4
    fed.clients[2]
    fed.clients[2]
    assert read[4:] == ['YORICK', 'YORICK']

  def test_a_client_without_speeches(self, load, tmp_path):
    tff_file.shakespeare(tmp_path / 'shakespeare.sqlite', {'HAMLET': [b'To be'], 'GHOST': []})
    with pytest.raises(ValueError, match="client 'GHOST' .* has no examples"):
      load(self.SPEC)

  def test_bad_parameters(self):
    for spec, words in (('length=0', 'length'), ('test_roles=1', 'test_roles')):
      with pytest.raises(ValueError, match=f'shakespeare {words}'):
        data.load(f'shakespeare:{spec}')


class TestStandIn:
  def test_is_read_through_tff_s_loader(self, load, tmp_path):
    speeches = {'HAMLET': [f'line {i}' for i in range(20)], 'YORICK': ['alas', 'poor'], 'GHOST': ['mark me']}
    shakespeare_file.write_roles(str(tmp_path / 'shakespeare.sqlite'), speeches)
    fed = load('shakespeare:length=80')
    # A role needs a speech in each split.
    assert fed.client_ids == ('HAMLET', 'YORICK')
    assert [len(client) for client in fed.clients] == [17, 1] and len(fed.test) == 4
    spoken = np.concatenate([fed.clients[0].x, fed.test.x[:3]])
    np.testing.assert_array_equal(
      np.sort(spoken, 0), np.sort(natural.examples_of_speeches([line.encode() for line in speeches['HAMLET']], 80).x, 0)
    )

  def test_replaces_what_was_there(self, tmp_path):
    path = str(tmp_path / 'shakespeare.sqlite')
    for name in ('A', 'B'):
      shakespeare_file.write_roles(path, {name: ['one', 'two']})
    connection = sqlite3.connect(path)
    assert connection.execute('SELECT DISTINCT client_id FROM examples').fetchall() == [('B',)]
    connection.close()


class TestCifar100:
  def test_values(self, load, tmp_path):
    splits = tff_file.cifar100(tmp_path / 'cifar100.sqlite')
    fed = load('cifar100')
    assert (fed.client_ids, fed.num_classes, fed.input_shape) == (tuple('01234'), 100, (32, 32, 3))
    assert fed.is_on_demand and not fed.test_is_of_clients and len(fed.test) == 2
    for client, name in zip(fed.clients, fed.client_ids):
      photographs = splits['train'][name]
      np.testing.assert_array_equal(client.x, np.float32([p['image'] for p in photographs]) / np.float32(255))
      np.testing.assert_array_equal(client.y, [p['label'] for p in photographs])

  def test_pixels_out_of_range(self, load, tmp_path):
    wrong = {'0': [{'image': np.full((32, 32, 3), 256), 'label': 1}]}
    tff_files.write_splits(str(tmp_path / 'cifar100.sqlite'), {'train': wrong, 'test': wrong})
    with pytest.raises(data.DataFileError, match='expected pixels from 0 to 255, found 256'):
      load('cifar100')


class TestStackOverflow:
  def load(self, folder, spec='stackoverflow_words:words=3,length=4', **kwargs):
    tff_file.stackoverflow(folder / 'stackoverflow.sqlite', folder / 'stackoverflow.word_count')
    return data.load(spec, data_dir=str(folder), **kwargs)

  def test_users_are_clients_and_held_out_users_the_test(self, tmp_path):
    fed = self.load(tmp_path)
    the, is_, code, unknown, start, end = 1, 2, 3, 4, 5, 6
    assert (fed.client_ids, fed.num_classes, fed.input_shape) == (('1', '2', '3'), 7, (4,))
    np.testing.assert_array_equal(fed.clients[0].x, [[start, the, code, is_], [start, unknown, unknown, end]])
    np.testing.assert_array_equal(fed.clients[0].y, [[the, code, is_, the], [unknown, unknown, end, -1]])
    assert not fed.test_is_of_clients and len(fed.test) == 3
    assert 'counted them over all training users' in fed.public_data

  def test_bounds_on_sentences(self, tmp_path):
    fed = self.load(tmp_path, 'stackoverflow_words:words=3,length=4,sentences=1,test_sentences=2')
    assert [len(client) for client in fed.clients] == [1, 1, 1] and len(fed.test) == 2

  def test_the_list_of_words(self, load, tmp_path):
    with pytest.raises(data.DataFileError, match='too short.*found 3. Give words=3'):
      self.load(tmp_path, 'stackoverflow_words:words=4')
    (tmp_path / 'stackoverflow.word_count').write_text('the\n')
    with pytest.raises(data.DataFileError, match='word_count is damaged'):
      load('stackoverflow_words:words=1')
    (tmp_path / 'stackoverflow.word_count').unlink()
    with pytest.raises(data.DataFileError, match='word_count not found'):
      load('stackoverflow_words:words=1')


_SPEECHES = [b'To be,', b'x', b'or not \xe2 to be: that is']


def _of_tff(preprocess, features, length):
  dataset = preprocess(tf.data.Dataset.from_tensor_slices(features))
  batches = list(dataset.as_numpy_iterator())
  x, y = (np.concatenate([batch[i] for batch in batches]) for i in range(2))
  assert x.shape[1] == length
  return x, y


def _spec():
  return tff.simulation.baselines.ClientSpec(num_epochs=1, batch_size=4, shuffle_buffer_size=1)


@pytest.mark.slow
@pytest.mark.parametrize('length', [3, 80])
def test_speeches_are_cut_as_by_tff(length):
  preprocess = char_prediction_preprocessing.create_preprocess_fn(_spec(), length)
  x, y = _of_tff(preprocess, {'snippets': _SPEECHES}, length)
  found = natural.examples_of_speeches(_SPEECHES, length)
  assert (found.x.dtype, found.y.dtype) == (np.int32, np.int32)
  np.testing.assert_array_equal(found.y == -1, y == natural.PADDING)
  assert (found.y == -1).any()
  # The order of TFF's vocabulary is another: one token follows from the other, both ways.
  theirs, own = (np.concatenate([a.ravel(), b.ravel()]) for a, b in ((x, y), (found.x, found.y * (found.y >= 0))))
  same = dict(zip(theirs.tolist(), own.tolist()))
  np.testing.assert_array_equal([same[token] for token in theirs], own)
  assert len(set(same.values())) == len(same)


def test_the_vocabulary_is_that_of_tff_s_baseline():
  assert set(natural.CHARACTERS) == set(char_prediction_preprocessing.CHAR_VOCAB)
  assert natural.CHARACTER_TOKENS == tff.simulation.baselines.shakespeare.VOCAB_LENGTH == 90


def test_a_label_is_the_next_character():
  found = natural.examples_of_speeches([b'abcde'], 3)
  a, b, c, d, e = (natural.CHARACTERS.index(letter) + 1 for letter in 'abcde')
  start, end = 88, 89
  # Start a b c | d e end, padding: the last of four is a label only.
  np.testing.assert_array_equal(found.x, [[start, a, b], [d, e, end]])
  np.testing.assert_array_equal(found.y, [[a, b, c], [e, end, -1]])


def test_an_unknown_character_has_a_token_of_its_own():
  assert natural.examples_of_speeches([b'\xe2'], 3).x[0, 1] == 87


def test_no_speech():
  assert natural.examples_of_speeches([], 5).x.shape == (0, 5)


@pytest.mark.slow
@pytest.mark.parametrize('length', [1, 6])
def test_sentences_are_cut_as_by_tff(length):
  sentences = [b'the code is the code', b'unheard of', b'is']
  preprocess = word_prediction_preprocessing.create_preprocess_fn(_spec(), ['the', 'is', 'code'], length)
  x, y = _of_tff(preprocess, {'tokens': sentences}, length)
  vocabulary = natural.Vocabulary(['the', 'is', 'code'])
  found = natural.examples_of_sentences(sentences, vocabulary, length)
  np.testing.assert_array_equal(found.x, x)
  np.testing.assert_array_equal(found.y, np.where(y == 0, -1, y))
  assert vocabulary.num_tokens == 7
