"""A dataset of one's own from an `.npz` file: its arrays, its clients, its test set, and what is refused."""

import numpy as np
import pytest

import data
from data import datasets
from data.datasets import npz


def contents(n=40, shape=(6, 5), **changes):
  """Images whose pixels spell their row, with row modulo 4 as the label, and other arrays by `changes`."""
  x = np.zeros((n, *shape), np.uint8)
  x.reshape(n, -1)[:, 0] = np.arange(n)
  return {key: value for key, value in {'x': x, 'y': np.arange(n) % 4, **changes}.items() if value is not None}


def _with_nan(shape, row, column):
  x = np.zeros(shape)
  x[row, column] = np.nan
  return x


def load(folder, arrays, parameters='', **options):
  np.savez(folder / 'mine.npz', **arrays)
  return data.load(f'npz:path={folder}/mine.npz{parameters}', **options)


def rows(*parts):
  return [round(float(x.reshape(-1)[0]) * 255) for part in parts for x in part.x]


class TestPooled:
  def test_a_file_without_clients_is_dealt_out_and_a_share_is_held_out_by_the_seed(self, tmp_path):
    fed = load(tmp_path, contents(), num_clients=4, partition='iid', seed=1)
    assert (fed.name, fed.num_classes, fed.input_shape, fed.partition) == ('npz:mine', 4, (6, 5, 1), 'iid')
    assert fed.client_ids[0] == 'client_0' and fed.test_set == '8 examples that no client holds.'
    assert sorted(rows(*fed.clients, fed.test)) == list(range(40)) and len(fed.test) == 8
    for part in (*fed.clients, fed.test):
      np.testing.assert_array_equal(part.y, np.array(rows(part)) % 4)
    again, other = (load(tmp_path, contents(), num_clients=4, partition='iid', seed=seed) for seed in (1, 2))
    assert again.digest() == fed.digest() and rows(other.test) != rows(fed.test)
    assert len(load(tmp_path, contents(), ',test_share=0.5', num_clients=4).test) == 20
    assert not fed.test_is_of_clients

  def test_a_test_set_in_the_file_is_the_test_set_and_says_what_is_taken_for_granted(self, tmp_path):
    arrays = contents(x_test=np.full((3, 6, 5), 255, np.uint8), y_test=np.array([0, 1, 3]))
    fed = load(tmp_path, arrays, num_clients=2)
    assert (fed.num_classes, fed.num_examples) == (4, 40) and fed.test.x.min() == 1
    assert fed.test_set == '3 examples from x_test of the file, taken to be of nobody who takes part in a round.'
    own = load(tmp_path, arrays, ',test_of_clients=true', num_clients=2)
    assert own.test_is_of_clients and 'of the clients themselves' in own.test_set

  def test_the_number_of_classes_may_be_given(self, tmp_path):
    assert load(tmp_path, contents(), ',classes=7', num_clients=2).num_classes == 7
    few = contents(y=np.arange(40) % 2 * 5, x_test=np.zeros((2, 6, 5), np.uint8), y_test=np.array([5, 6]))
    assert load(tmp_path, few, ',classes=7', num_clients=2).num_classes == 7
    with pytest.raises(data.DataFileError, match='labels in y_test that are also in y, found none'):
      load(tmp_path, {**few, 'y_test': np.array([4, 6])}, ',classes=7', num_clients=2)

  @pytest.mark.parametrize(
    'x, shape',
    [
      (np.linspace(0, 1, 40 * 12, dtype=np.float64).reshape(40, 3, 4), (3, 4, 1)),
      (np.ones((40, 3, 4, 2), np.float16), (3, 4, 2)),
      (np.random.default_rng(0).normal(size=(40, 7)) * 1e5, (7,)),
    ],
  )
  def test_floats_are_kept_as_they_are(self, tmp_path, x, shape):
    fed = load(tmp_path, contents(x=x, y=np.zeros((40, 1), np.uint8)), num_clients=1)
    assert fed.input_shape == shape and fed.test.x.dtype == np.float32
    np.testing.assert_allclose(np.sort(np.concatenate([fed.clients[0].x, fed.test.x]).ravel()), np.sort(x.ravel()))


class TestOwned:
  OWNERS = np.repeat([3, 10, -2, 7, 50], 8)

  def test_a_file_with_clients_keeps_them_and_tests_on_others(self, tmp_path):
    fed = load(tmp_path, contents(client=self.OWNERS), partition='iid')
    assert (fed.partition, fed.num_clients, len(fed.test)) == ('natural', 4, 8)
    assert set(fed.client_ids) < {'client_0003', 'client_0010', 'client_-002', 'client_0007', 'client_0050'}
    assert fed.test_set == '8 examples of 1 other clients, who take part in no round.' and not fed.test_is_of_clients
    for client_id, client in zip(fed.client_ids, fed.clients):
      assert (self.OWNERS[rows(client)] == int(client_id[len('client_') :])).all()
    assert sorted(rows(*fed.clients, fed.test)) == list(range(40))

  def test_some_of_the_clients_and_the_server_s_own_examples(self, tmp_path):
    fed = load(tmp_path, contents(client=self.OWNERS), num_clients=2, auxiliary=0.5)
    assert (fed.num_clients, len(fed.auxiliary)) == (2, 8)
    assert len(set(rows(*fed.clients, fed.test, fed.auxiliary))) == 32
    with pytest.raises(ValueError, match='npz has 4 clients, found num_clients=5'):
      load(tmp_path, contents(client=self.OWNERS), num_clients=5)

  def test_with_a_test_set_all_clients_take_part(self, tmp_path):
    arrays = contents(client=self.OWNERS, x_test=np.zeros((2, 6, 5), np.uint8), y_test=np.zeros(2, int))
    fed = load(tmp_path, arrays)
    assert fed.num_clients == 5 and len(fed.test) == 2


class TestNamedClients:
  NAMES = np.repeat(['zoë', 'f0001_41', 'f0000_14', '10', '9'], 8)

  def test_clients_are_numbered_in_the_order_of_their_sorted_names(self, tmp_path):
    arrays = contents(x_test=np.zeros((2, 6, 5), np.uint8), y_test=np.zeros(2, int))
    fed = load(tmp_path, {**arrays, 'client': self.NAMES})
    assert fed.client_ids == ('10', '9', 'f0000_14', 'f0001_41', 'zoë') and fed.partition == 'natural'
    for name, client in zip(fed.client_ids, fed.clients):
      assert (self.NAMES[rows(client)] == name).all() and len(client) == 8
    as_bytes = load(tmp_path, {**arrays, 'client': np.char.encode(self.NAMES, 'utf-8')[:, None]})
    assert as_bytes.digest() == fed.digest()
    # Whole clients are held out as with numbers.
    ranks = np.unique(self.NAMES, return_inverse=True)[1]
    named, numbered = (load(tmp_path, contents(client=ids)) for ids in (self.NAMES, ranks))
    assert rows(named.test) == rows(numbered.test) and named.num_clients == 4

  @pytest.mark.parametrize(
    'names, message',
    [
      (np.array(['a', None] * 20), 'holds Python objects, which are never read: .* names as text, by array.astype'),
      (np.array(['a', ''] * 20), 'a name in client for each example, found an empty one at example 1'),
      (np.array(['a'] * 39), r'client to be 40 names, one for each example, found <U1\[39\]'),
      (np.array([b'\xff'] * 40), 'names in client to be UTF-8'),
      (np.array(['\ud800'] * 40), 'names in client to be UTF-8'),
    ],
  )
  def test_wrong_names(self, tmp_path, names, message):
    with pytest.raises(data.DataFileError, match=message):
      load(tmp_path, contents(client=names))


class TestChannels:
  @pytest.mark.parametrize('shape', [(3, 8, 8), (1, 28, 28), (4, 8, 6)])
  @pytest.mark.parametrize('dtype', [np.uint8, np.float32])
  def test_images_that_look_channels_first_are_refused_with_the_remedy(self, tmp_path, shape, dtype):
    x = np.zeros((40, *shape), dtype)
    message = rf'{shape[0]} channels before {shape[1]}x{shape[2]} pixels. Save np.moveaxis\(x, 1, -1\); if images'
    with pytest.raises(data.DataFileError, match=message):
      load(tmp_path, contents(x=x), num_clients=2)
    assert load(tmp_path, contents(x=np.moveaxis(x, 1, -1)), num_clients=2).input_shape == (*shape[1:], shape[0])

  @pytest.mark.parametrize('shape', [(3, 8, 3), (4, 4, 64), (3, 4, 2), (8, 8, 8), (1, 9, 1)])
  def test_others_are_taken_as_they_are(self, tmp_path, shape):
    assert load(tmp_path, contents(x=np.zeros((40, *shape), np.uint8)), num_clients=2).input_shape == shape


class TestFacts:
  """The facts that flags are checked by."""

  def test_of_files_with_and_without_clients_and_of_none(self, tmp_path):
    facts = lambda: (
      npz.Npz(str(tmp_path / 'a.npz')).has_own_clients,
      npz.Npz(str(tmp_path / 'a.npz')).default_num_clients,
    )
    assert facts() == (False, None)
    np.savez(tmp_path / 'a.npz', **contents())
    assert facts() == (False, 100)
    np.savez(tmp_path / 'a.npz', **contents(client=np.zeros(40, int)))
    assert facts() == (True, None)

  def test_a_folder_names_the_file_without_its_place(self):
    assert datasets.portable('npz:path=/home/me/mine.npz').startswith('npz:path=mine.npz,test_share=0.2')
    assert datasets.portable('femnist:test_writers=0.1') == 'femnist:test_writers=0.1'

  def test_a_path_may_be_relative_to_data_dir(self, tmp_path):
    np.savez(tmp_path / 'mine.npz', **contents())
    fed = data.load('npz:path=mine.npz', data_dir=str(tmp_path), num_clients=2)
    assert fed.digest() == data.load(f'npz:path={tmp_path}/mine.npz', num_clients=2).digest()


@pytest.mark.parametrize(
  'changes, message',
  [
    (dict(x=None), 'the wrong file: expected a dataset of your own: an .npz with x, y, found y'),
    (dict(clients=np.zeros(40, int)), 'arrays named x, y, client, x_test, y_test, found also clients'),
    (dict(x_test=np.zeros((2, 6, 5), np.uint8)), 'x_test and y_test, or neither, found one of them'),
    (dict(x=np.array([object()] * 40)), 'holds Python objects, which are never read: .* Save arrays of numbers'),
    (dict(x=np.zeros((40, 6), int)), r'x to be images .* or float vectors \[n, d\], found int64\[40, 6\]'),
    (dict(x=np.zeros((40, 6), np.uint8)), r'found uint8\[40, 6\]'),
    (dict(x=np.zeros(40)), r'found float64\[40\]'),
    (dict(x=np.zeros((0, 6))), r'found float64\[0, 6\]'),
    (dict(x=np.full((40, 6, 5), 2.0)), r'floats in x to be pixels in \[0, 1\], found values from 2 to 2. Scale them'),
    (
      dict(x=np.full((40, 6), np.nan)),
      'numbers in x to be finite, found nan in row 0, column 0, counted from 0. 40 of 40',
    ),
    (
      dict(x=_with_nan((40, 6), 7, 3), client=np.arange(40) % 5),
      'found nan in row 7, column 3, counted from 0, an example of client 2. 1 of 40 rows have such a number. Put a',
    ),
    (
      dict(x=_with_nan((40, 6), 7, 3), client=np.array(['a', 'b'] * 20)),
      "found nan in row 7, column 3, counted from 0, an example of client 'b'",
    ),
    (dict(x=np.full((40, 6), -1e30)), r'found values from -1e\+30 to -1e\+30. Scale them first'),
    (dict(y=np.zeros(39, int)), r'y to be 40 integers, one for each example, found int64\[39\]'),
    (dict(y=np.zeros(40)), r'found float64\[40\]'),
    (dict(y=np.full(40, -1)), 'labels of y from 0, found -1 to -1'),
    (dict(client=np.zeros(40)), 'client to be 40 integers or names, one for each example, found float64'),
    (dict(y=np.arange(40) % 3 * 1000), r'each label from 0 to 2000, found 3 labels: 0, 1000, 2000. .* classes=2001 if'),
    (dict(y=np.arange(40) + 1), r'each label from 0 to 40, found 40 labels: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ….'),
    (
      dict(x_test=np.zeros((2, 6, 5), np.uint8), y_test=np.array([4, 5])),
      'each label from 0 to 5, found 4 labels: 0, 1, 2, 3',
    ),
    (dict(client=np.zeros(40, int)), 'two clients or more besides .* found 1 in all, of which test_share=0.2 takes 1'),
    (dict(client=np.arange(40) % 2), 'found 2 in all, of which test_share=0.2 takes 1. Give x_test and y_test, or'),
    (dict(x_test=np.zeros((2, 5, 5), np.uint8), y_test=np.zeros(2, int)), r'x_test to be like x, uint8\[40, 6, 5\]'),
    (dict(x_test=np.zeros((2, 6, 5)), y_test=np.zeros(2, int)), r'x_test to be like x, .*found float64\[2, 6, 5\]'),
  ],
)
def test_wrong_arrays(tmp_path, changes, message):
  with pytest.raises(data.DataFileError, match=message):
    load(tmp_path, contents(**changes), num_clients=2)


@pytest.mark.parametrize(
  'spec, message',
  [
    ('npz', 'needs its file: npz:path=FILE'),
    ('npz:path=gone.npz', 'gone.npz not found; expected a dataset of your own: an .npz with x, y'),
    ('npz:path=a,test_share=0', 'npz test_share must be'),
    ('npz:path=a,classes=-1', 'npz classes must be'),
    ('npz:path={},classes=3', r'labels in \[0, 3\), as classes=3 says, found the label 3'),
    ('npz:path={},test_of_clients=true', 'x_test and y_test, because of test_of_clients=True, found neither'),
    ('npz:path={},test_share=0.99', 'examples for training and for the test, found 40 in all and no x_test'),
  ],
)
def test_wrong_parameters(tmp_path, spec, message):
  np.savez(tmp_path / 'mine.npz', **contents())
  with pytest.raises(ValueError, match=message):
    data.load(spec.format(tmp_path / 'mine.npz'), num_clients=2)
