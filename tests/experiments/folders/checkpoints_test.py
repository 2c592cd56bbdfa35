"""Checkpoints of a large population: bit for bit the same state, in a size that follows who took part."""

import collections
import contextlib

import numpy as np
import pytest
import tensorflow as tf

from experiments.folders import checkpoints
from experiments.folders import directory as run_directory

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
  kept = checkpoints.packed(leaves, N)
  assert kept['spent/positions'].shape == kept['spent/values'].shape == (4,)
  found = checkpoints.unpacked(kept, leaves, N)
  assert list(found) == list(leaves)
  for name, leaf in leaves.items():
    assert found[name].dtype == leaf.dtype and found[name].tobytes() == leaf.tobytes()


def test_a_small_population_and_other_shapes_are_kept_as_they_are():
  for leaves, num_clients in ((_leaves(size=10, took_part=[3]), 10), (_leaves(), N + 1)):
    kept = checkpoints.packed(leaves, num_clients)
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
    checkpoints.unpacked({'spent/positions': bad[0], 'spent/values': bad[1]}, {'spent': np.zeros(N)}, N)


def test_a_checkpoint_of_a_million_clients_is_small_and_whole(tmp_path):
  def state(took_part):
    leaves = _leaves(took_part)
    return collections.OrderedDict(a=leaves['a'], spent=leaves['spent'], more=(leaves['counts'], leaves['c']))

  records = {'ledger': np.arange(3)}
  directory = run_directory.RunDirectory(str(tmp_path), {}, {'rounds': 8}, {'num_clients': N}, b'data')
  with contextlib.closing(directory):
    directory.save(1, state(range(0, 10_000)), records)
    directory.save(2, state(range(0, 20_000)), records)
    sizes = [(tmp_path / 'checkpoints' / one).stat().st_size for one in ('round_1', 'round_2')]
    # 12 and 8 bytes for each client that took part, of two arrays, and a few kilobytes; 12 MB if all were kept.
    assert 200_000 < sizes[0] < 260_000 < sizes[1] < 460_000
    round_num, found, kept = directory.restore(state([]), records)
  assert round_num == 2 and list(kept['ledger']) == [0, 1, 2]
  for leaf, expected in zip(tf.nest.flatten(found), tf.nest.flatten(state(range(0, 20_000)))):
    assert leaf.dtype == expected.dtype
    np.testing.assert_array_equal(leaf, expected)
