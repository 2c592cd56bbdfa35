"""The kept state of a large population: bit for bit the same state, in a size that follows who took part."""

import numpy as np
import pytest

from quap_tff.common import files
from quap_tff.serving import packing

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
  kept = packing.packed(leaves, N)
  assert kept['spent/positions'].shape == kept['spent/values'].shape == (4,)
  found = packing.unpacked(kept, leaves, N)
  assert list(found) == list(leaves)
  for name, leaf in leaves.items():
    assert found[name].dtype == leaf.dtype and found[name].tobytes() == leaf.tobytes()


def test_a_small_population_and_other_shapes_are_kept_as_they_are():
  for leaves, num_clients in ((_leaves(size=10, took_part=[3]), 10), (_leaves(), N + 1)):
    kept = packing.packed(leaves, num_clients)
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
    packing.unpacked({'spent/positions': bad[0], 'spent/values': bad[1]}, {'spent': np.zeros(N)}, N)


def test_a_million_clients_are_kept_in_little_room():
  sizes = [len(files.npz(packing.packed(_leaves(range(count)), N))) for count in (10_000, 20_000)]
  # 12 and 8 bytes for each client that took part, of two arrays, and a few kilobytes; 12 MB if all were kept.
  assert 200_000 < sizes[0] < 260_000 < sizes[1] < 460_000
