"""Arrays of a large population in checkpoints: the entries that are not zero, since most clients took no part yet."""

from collections.abc import Mapping

import numpy as np

from quap_tff.accounting import run_ledger

# Smaller populations are kept as they are.
LARGE_POPULATION = run_ledger.LARGE_POPULATION

_POSITIONS, _VALUES = '/positions', '/values'


def packed(state: Mapping[str, np.ndarray], num_clients: int) -> dict[str, np.ndarray]:
  """The arrays of a state, those with one number for each client as positions int32[k] and values [k].

  Args:
    state: The arrays by name.
    num_clients: N. If it is at most `LARGE_POPULATION`, nothing is changed.

  Returns:
    Arrays that `unpacked` turns back into the state, bit for bit.
  """
  found = {}
  for name, array in state.items():
    if _is_packed(array, num_clients):
      # As bits: -0.0 is not +0.0.
      positions = np.flatnonzero(array.view(f'u{array.dtype.itemsize}'))
      found.update({name + _POSITIONS: positions.astype(np.int32), name + _VALUES: array[positions]})
    else:
      found[name] = array
  return found


def unpacked(
  kept: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], num_clients: int
) -> dict[str, np.ndarray]:
  """The state from which `packed` made `kept`.

  Args:
    kept: From `packed`.
    expected: Arrays of the same names, shapes and types as those that were packed.
    num_clients: N.

  Raises:
    ValueError: If `kept` does not fit `expected`. The message says where, and holds no value.
  """
  wanted = packed(expected, num_clients).keys()
  if kept.keys() != wanted:
    raise ValueError(f'{len(wanted)} tensors were expected, and {len(kept)} found')
  found = {
    name: _unpacked(name, kept[name + _POSITIONS], kept[name + _VALUES], array)
    if _is_packed(array, num_clients)
    else kept[name]
    for name, array in expected.items()
  }
  for name, array in expected.items():
    if (found[name].dtype, found[name].shape) != (array.dtype, array.shape):
      raise ValueError(f'{_shown(array)} was expected for {name}, and {_shown(found[name])} found')
  return found


def _is_packed(array, num_clients) -> bool:
  return num_clients > LARGE_POPULATION and array.shape == (num_clients,)


def _unpacked(name, positions, values, array):
  are_lists = positions.ndim == values.ndim == 1 and len(positions) == len(values)
  if not are_lists or (positions.dtype, values.dtype) != (np.int32, array.dtype):
    raise ValueError(f'positions and values of {_shown(array)} were expected for {name}, and others found')
  if len(positions) and not 0 <= positions.min() <= positions.max() < len(array):
    raise ValueError(f'not all positions of {name} are among {len(array)} clients')
  whole = np.zeros_like(array)
  whole[positions] = values
  return whole


def _shown(array):
  return f'{array.dtype}{list(array.shape)}'
