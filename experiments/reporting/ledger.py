"""A run's ledger.npz without TensorFlow: who took part when, on what nominal budget. ε_total,i = Σ_t ε_i(t)."""

import dataclasses

import numpy as np


class LedgerError(ValueError):
  """The file is no ledger, or a damaged one."""


@dataclasses.dataclass(frozen=True)
class Ledger:
  """Attributes:
    offsets: int64[T+1]; round t, counted from 1, holds entries offsets[t-1]:offsets[t].
    clients: int64[K], the entry's client.
    budgets: float64[K], its nominal ε_i(t); not finite where there is none (no noise).
    num_clients: N.
  """

  offsets: np.ndarray
  clients: np.ndarray
  budgets: np.ndarray
  num_clients: int

  def __post_init__(self):
    offsets, clients, budgets = self.offsets, self.clients, self.budgets
    if offsets.ndim != 1 or not len(offsets) or offsets[0] != 0 or np.any(np.diff(offsets) < 0):
      raise LedgerError('offsets do not ascend from 0')
    if clients.shape != (offsets[-1],) or budgets.shape != clients.shape:
      raise LedgerError(f'{offsets[-1]} entries expected, found {len(clients)} clients and {len(budgets)} budgets')
    if np.any(clients < 0) or np.any(clients >= self.num_clients):
      raise LedgerError(f'clients outside 0..{self.num_clients - 1}')
    if np.any(budgets < 0):
      raise LedgerError('a budget is negative')

  @property
  def num_rounds(self) -> int:
    return len(self.offsets) - 1

  @property
  def counts(self) -> np.ndarray:
    """int64[N], the rounds that each client took part in."""
    return np.bincount(self.clients, minlength=self.num_clients)

  @property
  def epsilon(self) -> np.ndarray:
    """float64[N], the sum of each client's nominal budgets."""
    return np.bincount(self.clients, self.budgets, minlength=self.num_clients)

  def cumulative(self, members: np.ndarray) -> np.ndarray:
    """float64[T], the mean over `members` (client ids) of the nominal ε spent up to each round."""
    is_member = np.zeros(self.num_clients, bool)
    is_member[members] = True
    spent = np.concatenate([[0.0], np.cumsum(np.where(is_member[self.clients], self.budgets, 0.0))])
    return spent[self.offsets[1:]] / len(members)


def load(path: str) -> Ledger:
  """Reads ledger.npz.

  Raises:
    LedgerError: If it cannot be read, lacks an array, or its arrays do not fit together.
  """
  try:
    with np.load(path, allow_pickle=False) as arrays:
      return Ledger(
          np.asarray(arrays['offsets'], np.int64),
          np.asarray(arrays['clients'], np.int64),
          np.asarray(arrays['budgets'], np.float64),
          int(arrays['num_clients']),
      )
  except LedgerError:
    raise
  except Exception as error:  # NumPy and zipfile raise nearly anything for a damaged archive.
    raise LedgerError(str(error) or type(error).__name__) from error
