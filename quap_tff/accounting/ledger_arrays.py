"""The arrays in which a run's ledger is kept, and the checks on them."""

from collections.abc import Mapping
import math
from typing import Any

import numpy as np

from quap_tff.common import checks
from quap_tff.mechanisms import correlation as correlations

# One value for each entry (a client in a round), for each round, and for the whole ledger, as in `state_dict`.
ENTRIES = {'clients': np.int32, 'budgets': np.float64, 'weights': np.float64}
ROUNDS = {'noise_multipliers': np.float64, 'count_noise_multipliers': np.float64, 'clipping_norms': np.float64}
ARRAYS = {'offsets': np.int64, **ENTRIES, **ROUNDS}
# The terms of the noise's correlation; none under independent noise.
CORRELATION = {'gains': (None, np.float64), 'decays': (None, np.float64)}
IDENTITY = {'num_clients': ((), np.int64), 'delta': ((), np.float64), 'fingerprint': ((32,), np.uint8), **CORRELATION}


class Growing:
  """An array that grows at its end, at a cost in proportion to what is added."""

  def __init__(self, values: np.ndarray):
    self._buffer, self._size = values.copy(), len(values)

  def extend(self, values: np.ndarray):
    """Adds values at the end."""
    end = self._size + len(values)
    if end > len(self._buffer):
      grown = np.empty(max(end, 2 * len(self._buffer), 16), self._buffer.dtype)
      grown[: self._size] = self._buffer[: self._size]
      self._buffer = grown
    self._buffer[self._size : end] = values
    self._size = end

  @property
  def values(self) -> np.ndarray:
    """Read-only, without a copy; what is added later leaves it as it is."""
    view = self._buffer[: self._size]
    view.flags.writeable = False
    return view


def checked_state(state: Mapping[str, Any]) -> dict[str, np.ndarray]:
  """The state's arrays; raises `ValueError` if one is missing, has the wrong type or shape, or contradicts the others.

  A ledger of version 0.1 holds no terms of a correlation: its noise was independent.
  """
  if not set(CORRELATION) & set(state):
    state = {**state, **{name: np.zeros(0, dtype) for name, (_, dtype) in CORRELATION.items()}}
  expected = {**{name: (None, dtype) for name, dtype in ARRAYS.items()}, **IDENTITY}
  if set(state) != set(expected):
    raise ValueError(f'The saved ledger must hold {sorted(expected)}, found {sorted(state)}.')
  arrays = {name: np.asarray(value) for name, value in state.items()}
  for name, (shape, dtype) in expected.items():
    found = arrays[name]
    if found.dtype != dtype or (found.ndim != 1 if shape is None else found.shape != shape):
      shown = '[n]' if shape is None else list(shape)
      raise ValueError(
        f'The saved ledger is damaged: {name} must be {np.dtype(dtype)}{shown}, found '
        f'{found.dtype}{list(found.shape)}.'
      )
  offsets = arrays['offsets']
  if not len(offsets) or offsets[0] != 0 or (np.diff(offsets) < 0).any():
    raise ValueError('The saved ledger is damaged: offsets must ascend from 0.')
  lengths = {**dict.fromkeys(ENTRIES, offsets[-1]), **dict.fromkeys(ROUNDS, len(offsets) - 1)}
  for name, length in lengths.items():
    if len(arrays[name]) != length:
      raise ValueError(f'The saved ledger is damaged: {name} must have {length} values, found {len(arrays[name])}.')
  try:
    num_clients = checks.integer('num_clients', int(arrays['num_clients']), at_least=1, at_most=2**31 - 1)
    checks.number('delta', float(arrays['delta']), above=0, below=1)
    check_values(arrays, num_clients)
    correlations.of_terms(arrays['gains'], arrays['decays'])
  except ValueError as error:
    raise ValueError(f'The saved ledger is damaged: {error}') from None
  return arrays


def check_values(arrays: Mapping[str, np.ndarray], num_clients: int):
  """Raises `ValueError` unless the arrays, which fit each other, hold values that rounds can have."""
  clients = arrays['clients']
  checks.ids('clients', clients, num_clients)
  of_round = np.repeat(np.arange(len(arrays['offsets']) - 1), np.diff(arrays['offsets']))
  places = np.sort(of_round * num_clients + clients)
  twice = places[1:][np.diff(places) == 0]
  if len(twice):
    raise ValueError(f'A client can be in a round only once, found client {twice[0] % num_clients} twice in one round.')
  bounds = {
    'budgets': (lambda v: v > 0, 'greater than 0'),
    'weights': (lambda v: (v >= 0) & (v <= 1), 'at least 0 and at most 1'),
    'noise_multipliers': (lambda v: (v >= 0) & (v < math.inf), 'finite and at least 0'),
    'count_noise_multipliers': (lambda v: v >= 0, 'at least 0'),
    'clipping_norms': (lambda v: v >= 0, 'at least 0'),
  }
  for name, (holds, words) in bounds.items():
    bad = arrays[name][~holds(arrays[name])]
    if len(bad):
      raise ValueError(f'{name} must be {words}, found {bad[0]:g}.')
