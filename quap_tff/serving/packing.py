"""The arrays of a state as they are kept: of a large population, only entries that are not zero.

Most clients of a large population have not taken part yet.
"""

from collections.abc import Mapping

import numpy as np

from quap_tff.accounting import run_ledger

_POSITIONS, _VALUES = '/positions', '/values'


def packed(state: Mapping[str, np.ndarray], num_clients: int) -> dict[str, np.ndarray]:
  """The arrays of a state, those with one number for each client as positions int32[k] and values [k].

  Args:
    state: The arrays by name.
    num_clients: N. If it is at most `run_ledger.LARGE_POPULATION`, nothing is changed.

  Returns:
    Arrays that `unpacked` turns back into the state, bit for bit.
  """
  arrays = {}
  for name, array in state.items():
    if _is_packed(array, num_clients):
      # As bits: -0.0 is not +0.0.
      positions = np.flatnonzero(array.view(f'u{array.dtype.itemsize}'))
      arrays.update({name + _POSITIONS: positions.astype(np.int32), name + _VALUES: array[positions]})
    else:
      arrays[name] = array
  return arrays


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
  arrays = {}
  for name, array in expected.items():
    is_packed = _is_packed(array, num_clients)
    whole = _unpacked(name, kept[name + _POSITIONS], kept[name + _VALUES], array) if is_packed else kept[name]
    if (whole.dtype, whole.shape) != (array.dtype, array.shape):
      raise ValueError(f'{_shown(array)} was expected for {name}, and {_shown(whole)} found')
    arrays[name] = whole
  return arrays


def _is_packed(array: np.ndarray, num_clients: int) -> bool:
  return num_clients > run_ledger.LARGE_POPULATION and array.shape == (num_clients,)


def _unpacked(name: str, positions: np.ndarray, values: np.ndarray, array: np.ndarray) -> np.ndarray:
  are_lists = positions.ndim == values.ndim == 1 and len(positions) == len(values)
  if not are_lists or (positions.dtype, values.dtype) != (np.int32, array.dtype):
    raise ValueError(f'positions and values of {_shown(array)} were expected for {name}, and others found')
  if len(positions) and not 0 <= positions.min() <= positions.max() < len(array):
    raise ValueError(f'not all positions of {name} are among {len(array)} clients')
  whole = np.zeros_like(array)
  whole[positions] = values
  return whole


def _shown(array: np.ndarray) -> str:
  return f'{array.dtype}{list(array.shape)}'
