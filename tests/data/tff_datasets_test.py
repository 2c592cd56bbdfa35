"""CIFAR-100, Shakespeare and Stack Overflow through TFF's loaders, from small files in the published formats."""

import sqlite3

import numpy as np
import pytest

import data
from data import sequences
from data import shakespeare_file
from data import tff_files
from tests.data import tff_file


class TestShakespeare:
  def load(self, folder, spec='shakespeare:length=4', **kwargs):
    return data.load(spec, data_dir=str(folder), **kwargs)

  def test_roles_are_clients_and_their_held_out_speeches_the_test(self, tmp_path):
    tff_file.shakespeare(tmp_path / 'shakespeare.sqlite')
    fed = self.load(tmp_path)
    assert (fed.client_ids, fed.num_classes, fed.input_shape) == (('HAMLET', 'OPHELIA', 'YORICK'), 90, (4,))
    assert fed.is_sequences and fed.is_on_demand and fed.num_examples is None and fed.test_is_of_clients
    expected = sequences.of_speeches([b'To be', b'or not'], 4)
    np.testing.assert_array_equal(fed.clients[0].x, expected.x)
    np.testing.assert_array_equal(fed.clients[0].y, expected.y)
    np.testing.assert_array_equal(fed.test.x, sequences.of_speeches([b'that is', b'No', b'a fellow'], 4).x)

  def test_other_roles_are_the_test(self, tmp_path):
    tff_file.shakespeare(tmp_path / 'shakespeare.sqlite')
    fed = self.load(tmp_path, 'shakespeare:length=4,test_roles=0.3', seed=1)
    (other,) = {'HAMLET', 'OPHELIA', 'YORICK'} - set(fed.client_ids)
    spoken = {
      'HAMLET': [b'To be', b'or not', b'that is'],
      'OPHELIA': [b'My lord!', b'No'],
      'YORICK': [b'Alas', b'poor', b'me', b'a fellow'],
    }[other]
    np.testing.assert_array_equal(fed.test.x, sequences.of_speeches(spoken, 4).x)
    assert not fed.test_is_of_clients and '1 other roles' in fed.test_set

  def test_the_seed_chooses_and_another_choice_has_another_digest(self, tmp_path):
    tff_file.shakespeare(tmp_path / 'shakespeare.sqlite')
    chosen = {self.load(tmp_path, num_clients=1, seed=seed).client_ids for seed in range(20)}
    assert len(chosen) == 3
    assert self.load(tmp_path).digest() == self.load(tmp_path).digest() != self.load(tmp_path, num_clients=2).digest()

  def test_another_file_has_another_digest(self, tmp_path):
    digests = []
    for name, speech in (('a', b'ah'), ('b', b'oh')):
      (tmp_path / name).mkdir()
      tff_file.shakespeare(tmp_path / name / 'shakespeare.sqlite', {'X': [speech]}, {'X': [b'the end']})
      digests.append(self.load(tmp_path / name).digest())
    assert digests[0] != digests[1]

  def test_clients_are_read_when_they_are_asked_for_and_not_kept(self, tmp_path, monkeypatch):
    tff_file.shakespeare(tmp_path / 'shakespeare.sqlite')
    read = []
    of_file = tff_files.Split.read
    monkeypatch.setattr(tff_files.Split, 'read', lambda self, client: read.append(client) or of_file(self, client))
    fed = self.load(tmp_path)
    # Every test speech, and one client for the shape of an example.
    assert len(read) == 4
    fed.clients[2]
    fed.clients[2]
    assert read[4:] == ['YORICK', 'YORICK']

  def test_a_client_without_speeches(self, tmp_path):
    tff_file.shakespeare(tmp_path / 'shakespeare.sqlite', {'HAMLET': [b'To be'], 'GHOST': []})
    with pytest.raises(ValueError, match="client 'GHOST' .* has no examples"):
      self.load(tmp_path)

  def test_missing_wrong_and_damaged_files(self, tmp_path):
    with pytest.raises(data.DataFileError, match='shakespeare.sqlite not found; expected the file of TFF'):
      self.load(tmp_path)
    path = tmp_path / 'shakespeare.sqlite'
    tff_file.write(path, {'train': {'HAMLET': [{'words': b'To be'}]}, 'test': {}})
    with pytest.raises(data.DataFileError, match='found the splits ..train'):
      self.load(tmp_path)
    path.unlink()
    tff_file.write(path, {'train': {'HAMLET': [{'words': b'To be'}]}, 'test': {'HAMLET': [{'words': b'To be'}]}})
    with pytest.raises(data.DataFileError, match="expected examples with snippets string in split 'test'"):
      self.load(tmp_path)
    path.write_bytes(b'<html>' * 100)
    with pytest.raises(data.DataFileError, match='no SQLite header'):
      self.load(tmp_path)

  def test_without_network(self, tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    monkeypatch.setattr('urllib.request.urlopen', _refuse)
    with pytest.raises(data.DataFileError, match=r'Put shakespeare\.sqlite into a folder .* --data_dir'):
      data.load('shakespeare')
    assert not list((tmp_path / '.tff').iterdir())

  def test_bad_parameters(self):
    for spec, words in (('length=0', 'length'), ('test_roles=1', 'test_roles')):
      with pytest.raises(ValueError, match=f'shakespeare {words}'):
        data.load(f'shakespeare:{spec}')


def _refuse(*_, **__):
  raise OSError('no network')


class TestStandIn:
  def test_is_read_through_tff_s_loader(self, tmp_path):
    speeches = {'HAMLET': [f'line {i}' for i in range(20)], 'YORICK': ['alas', 'poor'], 'GHOST': ['mark me']}
    shakespeare_file.write(str(tmp_path / 'shakespeare.sqlite'), speeches)
    fed = data.load('shakespeare:length=80', data_dir=str(tmp_path))
    # A role needs a speech in each split.
    assert fed.client_ids == ('HAMLET', 'YORICK')
    assert [len(client) for client in fed.clients] == [17, 1] and len(fed.test) == 4
    spoken = np.concatenate([fed.clients[0].x, fed.test.x[:3]])
    np.testing.assert_array_equal(
      np.sort(spoken, 0), np.sort(sequences.of_speeches([line.encode() for line in speeches['HAMLET']], 80).x, 0)
    )

  def test_replaces_what_was_there(self, tmp_path):
    path = str(tmp_path / 'shakespeare.sqlite')
    for name in ('A', 'B'):
      shakespeare_file.write(path, {name: ['one', 'two']})
    connection = sqlite3.connect(path)
    assert connection.execute('SELECT DISTINCT client_id FROM examples').fetchall() == [('B',)]
    connection.close()


class TestCifar100:
  def test_values(self, tmp_path):
    splits = tff_file.cifar100(tmp_path / 'cifar100.sqlite')
    fed = data.load('cifar100', data_dir=str(tmp_path))
    assert (fed.client_ids, fed.num_classes, fed.input_shape) == (tuple('01234'), 100, (32, 32, 3))
    assert fed.is_on_demand and not fed.test_is_of_clients and len(fed.test) == 2
    for client, name in zip(fed.clients, fed.client_ids):
      photographs = splits['train'][name]
      np.testing.assert_array_equal(client.x, np.float32([p['image'] for p in photographs]) / np.float32(255))
      np.testing.assert_array_equal(client.y, [p['label'] for p in photographs])

  def test_pixels_out_of_range(self, tmp_path):
    wrong = {'0': [{'image': np.full((32, 32, 3), 256), 'label': 1}]}
    tff_file.write(tmp_path / 'cifar100.sqlite', {'train': wrong, 'test': wrong})
    with pytest.raises(data.DataFileError, match='expected pixels from 0 to 255, found 256'):
      data.load('cifar100', data_dir=str(tmp_path))


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

  def test_the_list_of_words(self, tmp_path):
    with pytest.raises(data.DataFileError, match='too short.*found 3. Give words=3'):
      self.load(tmp_path, 'stackoverflow_words:words=4')
    (tmp_path / 'stackoverflow.word_count').write_text('the\n')
    with pytest.raises(data.DataFileError, match='word_count is damaged'):
      data.load('stackoverflow_words:words=1', data_dir=str(tmp_path))
    (tmp_path / 'stackoverflow.word_count').unlink()
    with pytest.raises(data.DataFileError, match='word_count not found'):
      data.load('stackoverflow_words:words=1', data_dir=str(tmp_path))
