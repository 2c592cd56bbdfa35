"""The spending of clients before a run, together with what the earlier runs protected.

A number alone cannot be added to another account: it may be of a server that saw updates, or of no account at all. So
μ² goes from one run to the next in a `SpentBefore`. All of it is of zero-out and of runs with a finite ε; `accounting`
reads it from files, and refuses others.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

import numpy as np

from quap_tff.common import checks

# The server sees updates, or secure sums alone. The first is the weaker one.
TRUSTS = ('server', 'secure_sum')


@dataclasses.dataclass(frozen=True)
class SpentBefore:
  """The cost of everything that was released about each client in earlier runs, and its conditions.

  Attributes:
    mu_squared: float[N], μ_i² of each client, by zero-out.
    trust: 'server' if the server of one of the runs saw updates; 'secure_sum' if all servers saw secure sums alone.
    is_ideal: Whether one of the runs counts its noise as ideal.
    against: (k, float[N]) for ascending k: μ_i² against servers that any k other clients tell their noise. Only with
      'secure_sum'. A number of colluders that is not covered by one of these has no figure.
    files: SHA-256, in hex, of each file that this was read from; empty if it was not read from files.

  Raises:
    ValueError: If a value is out of range.
  """

  mu_squared: tuple[float, ...]
  trust: str
  is_ideal: bool = True
  against: tuple[tuple[int, tuple[float, ...]], ...] = ()
  files: tuple[str, ...] = ()

  def __post_init__(self) -> None:
    if self.trust not in TRUSTS:
      raise ValueError(f'trust must be one of {", ".join(TRUSTS)}, found {self.trust!r}.')
    if not isinstance(self.is_ideal, bool):
      raise ValueError(f'is_ideal must be true or false, found {self.is_ideal!r}.')
    if self.against and self.trust == 'server':
      raise ValueError('against is for trust=secure_sum: a server that sees updates needs no colluders.')
    if not all(isinstance(one, str) for one in self.files):
      raise ValueError(f'files must be SHA-256 in hex, found {self.files!r}.')
    numbers = [checks.integer('colluders', number, at_least=1) for number, _ in self.against]
    costs = [_checked_costs(part) for _, part in self.against]
    if numbers != sorted(set(numbers)):
      raise ValueError('against must be ascending by the number of colluders.')
    object.__setattr__(self, 'mu_squared', _checked_costs(self.mu_squared))
    object.__setattr__(self, 'against', tuple(zip(numbers, costs)))
    object.__setattr__(self, 'files', tuple(self.files))
    num_clients = len(self.mu_squared)
    if any(len(part) != num_clients for part in costs):
      raise ValueError(f'against must have {num_clients} numbers for each number of colluders, as mu_squared.')

  @classmethod
  def from_value(cls, value: Any) -> SpentBefore:
    """The one that `registry.value_of` made a value of."""
    against = tuple((k, tuple(part)) for k, part in value['against'])
    tuples = {name: tuple(value[name]) for name in ('mu_squared', 'files')}
    return cls(**{**value, **tuples, 'against': against})

  def __add__(self, other: SpentBefore) -> SpentBefore:
    """The spending of both sets of runs, of the same clients. None of them may count from another one."""
    against = []
    for count in sorted({number for number, _ in self.against + other.against}):
      own, others = self.against_any(count), other.against_any(count)
      # A sum against so many colluders needs both summands.
      if own is not None and others is not None:
        against.append((count, tuple((own + others).tolist())))
    return SpentBefore(
      mu_squared=tuple(np.add(self.mu_squared, other.mu_squared).tolist()),
      # The figures hold only against an adversary that both hold against.
      trust=min(self.trust, other.trust, key=TRUSTS.index),
      is_ideal=self.is_ideal or other.is_ideal,
      against=tuple(against),
      files=self.files + other.files,
    )

  def against_any(self, num_colluders: int) -> Optional[np.ndarray]:
    """float64[N], μ_i² against servers and any k colluders, or more than k; None if no figure covers as many."""
    covering = [part for k, part in self.against if k >= num_colluders]
    return np.array(covering[0]) if covering else None

  def padded(self, num_clients: int) -> SpentBefore:
    """The same spending for N clients: those after the known ones have spent nothing."""
    more = (0.0,) * (num_clients - len(self.mu_squared))
    against = tuple((k, part + more) for k, part in self.against)
    return dataclasses.replace(self, mu_squared=self.mu_squared + more, against=against)


def _checked_costs(values: Any) -> tuple[float, ...]:
  """Numbers of at least 0, one for each client."""
  spent = checks.numbers_of_clients('spent_before', values, len(values))
  is_wrong = ~((spent >= 0) & np.isfinite(spent))
  if is_wrong.any():
    client = int(np.argmax(is_wrong))
    raise ValueError(f'spent_before must be at least 0 for each client, found {spent[client]:g} for {client}.')
  return tuple(spent.tolist())
