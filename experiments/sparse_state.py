"""Arrays of a large population in checkpoints: the entries that are not zero, since most clients took no part yet."""

from typing import Any

import numpy as np

from quap_tff.accounting import run_ledger

# Smaller populations are kept as they are.
LARGE_POPULATION = run_ledger.LARGE_POPULATION


def packed(leaves: list[np.ndarray], num_clients: int) -> list[Any]:
  """The leaves of a state, those with one number for each client as [positions int32[k], values [k]].

  Args:
    leaves: The arrays of a state.
    num_clients: N. If it is at most `LARGE_POPULATION`, nothing is changed.

  Returns:
    A list that `unpacked` turns back into the leaves, bit for bit.
  """
  return [_packed(leaf) if _is_packed(leaf, num_clients) else leaf for leaf in leaves]


def unpacked(kept: list[Any], leaves: list[np.ndarray], num_clients: int) -> list[np.ndarray]:
  """The leaves from which `packed` made `kept`.

  Args:
    kept: From `packed`.
    leaves: Arrays of the same shapes and types as those that were packed.
    num_clients: N.

  Raises:
    ValueError: If `kept` does not fit the leaves.
  """
  return [_unpacked(one, leaf) if _is_packed(leaf, num_clients) else one for one, leaf in zip(kept, leaves)]


def _is_packed(leaf, num_clients) -> bool:
  return num_clients > LARGE_POPULATION and np.shape(leaf) == (num_clients,)


def _packed(leaf):
  # As bits: -0.0 is not +0.0.
  positions = np.flatnonzero(leaf.view(f'u{leaf.dtype.itemsize}'))
  return [positions.astype(np.int32), leaf[positions]]


def _unpacked(kept, leaf):
  positions, values = np.asarray(kept[0]), np.asarray(kept[1])
  are_lists = positions.ndim == values.ndim == 1 and len(positions) == len(values)
  if not are_lists or (positions.dtype, values.dtype) != (np.int32, leaf.dtype):
    raise ValueError(f'{positions.dtype}{list(positions.shape)} and {values.dtype}{list(values.shape)} do not fit')
  if len(positions) and not 0 <= positions.min() <= positions.max() < len(leaf):
    raise ValueError(f'positions from {positions.min()} to {positions.max()} are not all among {len(leaf)} clients')
  whole = np.zeros(len(leaf), leaf.dtype)
  whole[positions] = values
  return whole
