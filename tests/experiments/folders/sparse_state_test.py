"""Checkpoints of a large population: bit for bit the same state, in a size that follows who took part."""

import collections
import contextlib

import numpy as np
import pytest

from experiments.folders import directory as run_directory
from experiments.folders import folder as run_folder
from experiments.folders import sparse_state

N = 1_000_000


def _leaves(took_part=(3, 999_999), size=N):
  spent, counts = np.zeros(size), np.zeros(size, np.int32)
  spent[list(took_part)], counts[list(took_part)] = 0.25, 1
  arrays = [np.float32([1, 2]), spent, counts, np.array(-0.0, np.float32), np.array([2**62, 1], np.int64)]
  return dict(zip(['a', 'spent', 'counts', 'b', 'c'], arrays))


def test_comes_back_bit_for_bit():
  leaves = _leaves()
  # Not zero, although it is equal to zero.
  leaves['spent'][5], leaves['spent'][6] = -0.0, np.nan
  kept = sparse_state.packed(leaves, N)
  assert kept['spent/positions'].shape == kept['spent/values'].shape == (4,)
  found = sparse_state.unpacked(kept, leaves, N)
  assert list(found) == list(leaves)
  for name, leaf in leaves.items():
    assert found[name].dtype == leaf.dtype and found[name].tobytes() == leaf.tobytes()


def test_a_small_population_and_other_shapes_are_kept_as_they_are():
  for leaves, num_clients in ((_leaves(size=10, took_part=[3]), 10), (_leaves(), N + 1)):
    kept = sparse_state.packed(leaves, num_clients)
    assert kept.keys() == leaves.keys() and all(kept[name] is leaf for name, leaf in leaves.items())


@pytest.mark.parametrize(
  'bad',
  [
    [np.array([N], np.int32), np.ones(1)],
    [np.array([-1], np.int32), np.ones(1)],
    [np.array([1], np.int32), np.ones(2)],
    [np.array([1], np.int64), np.ones(1)],
    [np.array([1], np.int32), np.ones(1, np.float32)],
  ],
)
def test_what_does_not_fit_is_refused(bad):
  with pytest.raises(ValueError, match='others found|not all positions of spent are among 1000000'):
    sparse_state.unpacked({'spent/positions': bad[0], 'spent/values': bad[1]}, {'spent': np.zeros(N)}, N)


class TestRunDirectory:
  IDENTITY = {'rounds': 8}
  RECORDS = {'ledger': np.arange(3)}

  @contextlib.contextmanager
  def opened(self, path, num_clients=N):
    directory = run_directory.RunDirectory(str(path), {}, self.IDENTITY, {'num_clients': num_clients}, b'data')
    with contextlib.closing(directory):
      yield directory

  def state(self, took_part):
    leaves = _leaves(took_part)
    return collections.OrderedDict(a=leaves['a'], spent=leaves['spent'], more=(leaves['counts'], leaves['c']))

  def test_a_checkpoint_of_a_million_clients_is_small_and_whole(self, tmp_path):
    with self.opened(tmp_path) as directory:
      directory.save(1, self.state(range(0, 10_000)), self.RECORDS)
      directory.save(2, self.state(range(0, 20_000)), self.RECORDS)
      sizes = [(tmp_path / 'checkpoints' / one).stat().st_size for one in ('round_1', 'round_2')]
      # 12 and 8 bytes for each client that took part, of two arrays, and a few kilobytes; 12 MB if all were kept.
      assert 200_000 < sizes[0] < 260_000 < sizes[1] < 460_000
      round_num, state, records = directory.restore(self.state([]), self.RECORDS)
    expected = self.state(range(0, 20_000))
    assert round_num == 2 and list(records['ledger']) == [0, 1, 2]
    np.testing.assert_array_equal(state['spent'], expected['spent'])
    for found, leaf in zip(state['more'], expected['more']):
      assert found.dtype == leaf.dtype
      np.testing.assert_array_equal(found, leaf)

  def test_of_another_configuration(self, tmp_path):
    with self.opened(tmp_path) as directory:
      directory.save(1, self.state([1]), self.RECORDS)
      other = self.state([1])
      other['spent'] = other['spent'].astype(np.float32)
      with pytest.raises(run_folder.RunDirectoryError, match='of another configuration'):
        directory.restore(other, self.RECORDS)
