"""The server's own examples: of people who are not clients, drawn by the seed, whatever clients' data are."""

import numpy as np
import pytest

import data
from data import features
from data.datasets import base
from data.datasets import images
from data.features import store
from tests.data import tff_file

_SHARE = 0.25


def _contents(*parts):
  """Each example with its label."""
  return [(x.tobytes(), y.tobytes()) for part in parts for x, y in zip(part.x, part.y)]


def _same(one, other):
  return np.array_equal(one.x, other.x) and np.array_equal(one.y, other.y)


class TestPools:
  """Pixels of an example spell its row in the pool."""

  _ROWS = 200

  @pytest.fixture(autouse=True)
  def numbered(self, monkeypatch):
    self.labels = np.arange(self._ROWS) % 10
    self.pixels = np.zeros((self._ROWS, 8, 8, 1))
    self.pixels[:, 0, 0, 0] = np.arange(self._ROWS)
    pool = lambda *_: base.Pool(self.pixels, self.labels, self.pixels[:10], self.labels[:10], white=1.0, num_classes=10)
    monkeypatch.setattr(images.Digits, 'read', pool)

  def load(self, **options):
    return data.load('digits', **{'num_clients': 8, 'auxiliary': _SHARE, 'seed': 3, **options})

  def rows(self, *parts):
    return [int(row) for part in parts for row in part.x[:, 0, 0, 0]]

  def test_every_row_is_a_client_s_or_the_server_s_and_none_is_of_both(self):
    fed = self.load()
    held, given = self.rows(*fed.clients), self.rows(fed.auxiliary)
    assert sorted(held + given) == list(range(self._ROWS)) and len(given) == _SHARE * self._ROWS
    assert fed.num_clients == 8 and fed.num_examples == len(held)
    np.testing.assert_array_equal(fed.auxiliary.y, self.labels[given])

  def test_what_one_client_holds_does_not_change_the_server_s(self):
    before = self.load()
    theirs = self.rows(before.clients[3])
    self.labels[theirs] = (self.labels[theirs] + 1) % 10
    self.pixels[theirs, 5] = 0.5
    after = self.load()
    assert _same(before.auxiliary, after.auxiliary)
    assert before.digest() != after.digest()

  @pytest.mark.parametrize('options', [dict(num_clients=7), dict(partition='iid')])
  def test_nor_do_the_number_of_clients_and_the_deal(self, options):
    assert _same(self.load().auxiliary, self.load(**options).auxiliary)

  def test_the_seed_draws(self):
    drawn = [tuple(self.rows(self.load(seed=seed).auxiliary)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]

  def test_without_a_share_everything_is_dealt_out(self):
    fed = self.load(auxiliary=0.0)
    assert fed.auxiliary is None and fed.num_examples == self._ROWS

  @pytest.mark.slow
  def test_features_are_of_the_server_s_examples_too(self, tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    fed = self.load()
    mapped = features.map_federation('scattering', fed)
    np.testing.assert_array_equal(mapped.auxiliary.y, fed.auxiliary.y)
    assert mapped.auxiliary.x.shape == (len(fed.auxiliary), *mapped.input_shape)
    alone = store.uncached(features.parse('scattering'), fed.auxiliary.x)
    np.testing.assert_array_equal(mapped.auxiliary.x, alone)

  @pytest.mark.parametrize(
    'options, message',
    [
      (dict(auxiliary=0.001), 'Give a larger share'),
      (dict(auxiliary=0.9, num_clients=50), 'found 50 clients and only 20 examples'),
      (dict(auxiliary=1.0), 'auxiliary must be .* less than 1'),
    ],
  )
  def test_too_few(self, options, message):
    with pytest.raises(ValueError, match=message):
      self.load(**options)


def _written(folder, name):
  if name == 'femnist':
    tff_file.emnist(folder / 'emnist_all.sqlite', tff_file.writers('abcdefgh'))
  elif name == 'shakespeare':
    roles = {f'ROLE_{i}': [f'speech {i} {k}'.encode() for k in range(3)] for i in range(8)}
    tff_file.shakespeare(folder / 'shakespeare.sqlite', roles, {role: [b'the end'] for role in roles})
  elif name == 'cifar100':
    tff_file.cifar100(folder / 'cifar100.sqlite')
  elif name == 'stackoverflow_words:words=3':
    tff_file.stackoverflow(folder / 'stackoverflow.sqlite', folder / 'stackoverflow.word_count')
  elif name == 'mnist_writers':
    tff_file.mnist_writers(folder, np.arange(40) % 8)
  return lambda **options: data.load(name, data_dir=str(folder), **options)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['femnist', 'shakespeare', 'cifar100', 'stackoverflow_words:words=3', 'mnist_writers'])
def test_the_server_has_whole_others_of_a_dataset_s_own_clients(tmp_path, name):
  load = _written(tmp_path, name)
  everyone, fed = load(), load(auxiliary=_SHARE)
  others = [i for i, client_id in enumerate(everyone.client_ids) if client_id not in fed.client_ids]
  assert len(others) == -(-everyone.num_clients // 4) == everyone.num_clients - fed.num_clients
  given = _contents(fed.auxiliary)
  assert sorted(given) == sorted(_contents(*(everyone.clients[i] for i in others)))
  assert not set(given) & set(_contents(*(fed.clients[i] for i in range(fed.num_clients))))
  # One client less changes nothing for the server.
  several, fewer = (load(num_clients=n, auxiliary=_SHARE, seed=5) for n in (2, 1))
  assert (several.num_clients, fewer.num_clients) == (2, 1) and _same(several.auxiliary, fewer.auxiliary)
  available = everyone.num_clients
  with pytest.raises(ValueError, match=f'has {available} clients, found num_clients={available}. .* of .* more'):
    load(num_clients=available, auxiliary=_SHARE)


def test_synthetic_others_are_nobody_s_of_any_number_of_clients(tmp_path):
  load = _written(tmp_path, 'synthetic')
  fed, several, fewer = load(num_clients=12, auxiliary=_SHARE), *(load(num_clients=n, auxiliary=_SHARE) for n in (2, 1))
  assert fed.num_clients == 12 and len(fed.auxiliary) == 3 * 8
  clients = load(num_clients=20).clients
  assert not set(_contents(fed.auxiliary)) & set(_contents(*(clients[i] for i in range(20))))
  assert _same(several.auxiliary, fewer.auxiliary)


def test_writers_who_test_are_neither_clients_nor_the_server_s(tmp_path):
  _written(tmp_path, 'femnist')
  fed = data.load('femnist:test_writers=0.25', data_dir=str(tmp_path), auxiliary=_SHARE)
  groups = [set(_contents(*fed.clients)), set(_contents(fed.test)), set(_contents(fed.auxiliary))]
  assert fed.num_clients == 4 and all(groups)
  assert not groups[0] & groups[1] and not groups[0] & groups[2] and not groups[1] & groups[2]
