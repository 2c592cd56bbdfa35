"""How the integers of a bundle become a vector whose sum is exact modulo 2³².

    sent    1, x mod 2³²             x centred, in [-m/2, m/2] for its modulus m
    found   M, (Σ x) mod 2³²         taken in [-2³¹, 2³¹), which is Σ x, as |Σ x| < 2³¹ for every plan that fits

The first entry is 1 at each node. A sum in which it is not the number of nodes has masks left in it.
"""

from __future__ import annotations

from collections.abc import Iterator
import math
from typing import Any, NamedTuple

import numpy as np

from quap_tff.bundle import player
from quap_tff.bundle import structures
from quap_tff.flower.secure_sum import masks
from quap_tff.mechanisms import mechanism


def check_fits(bundle: player.Bundle, most_clients: int) -> None:
  """Raises `ValueError` if a round's sums could be wrong. `most_clients` is the size of the plan's largest cohort."""
  # The count of clients is summed modulo 2⁶², and is never as large as 2³¹.
  wide = [int(np.max(leaf.modulus)) for leaf in _leaves(bundle) if not leaf.is_count]
  largest = max(wide, default=1)
  # A modulus is 2·n·b + 1, where b is the bound of one of n clients.
  if largest > masks.MODULUS:
    raise ValueError(
      f'A secure sum takes sums below 2^32, and with up to {most_clients} clients, the weights and the rounds of this '
      f"plan they need {largest}. Plan smaller cohorts or fewer rounds: a client's noise has more grid steps where "
      'more is drawn.'
    )


def encoded(bundle: player.Bundle, secure: Any) -> np.ndarray:
  """A node's integers to send, uint32[1 + D], from `Sums.secure`, which is modulo `Bundle.modulus`.

  Raises:
    ValueError: If a number is too large. No plan that fits makes one.
  """
  parts = [np.ones(1, np.int64)]
  for number, leaf in zip(structures.flatten(bundle.sums_types.secure, secure, 'sums'), _leaves(bundle)):
    remainder = np.asarray(number, np.int64) % leaf.modulus
    # Around 0: the bound holds for numbers with a sign.
    parts.append(np.where(remainder > leaf.modulus // 2, remainder - leaf.modulus, remainder).ravel())
  entries = np.concatenate(parts)
  if np.abs(entries).max() >= masks.MODULUS // 2:
    raise ValueError('An entry of the sum of this node is 2^31 or larger.')
  return entries.astype(np.uint32)


def num_entries(bundle: player.Bundle) -> int:
  """1 + D: the length of what `encoded` gives."""
  return 1 + sum(leaf.size for leaf in _leaves(bundle))


def decoded(bundle: player.Bundle, total: np.ndarray, num_nodes: int) -> Any:
  """`Sums.secure` from the sum of what nodes sent, uint32[1 + D].

  Raises:
    ValueError: If the sum is not that of so many nodes.
  """
  if int(total[0]) != num_nodes:
    raise ValueError('What nodes have sent does not add up: masks are left in their sum')
  centred = total[1:].astype(np.int32).astype(np.int64)
  leaves = _leaves(bundle)
  parts = np.split(centred, np.cumsum([leaf.size for leaf in leaves])[:-1])
  arrays = [(part.reshape(leaf.shape) % leaf.modulus).astype(leaf.dtype) for part, leaf in zip(parts, leaves)]
  return structures.pack(bundle.sums_types.secure, iter(arrays))


def nothing(bundle: player.Bundle) -> Any:
  """`Sums.secure` of nobody, of the shapes of sums."""
  return structures.pack(bundle.sums_types.secure, iter([np.zeros(one.shape, one.dtype) for one in _leaves(bundle)]))


class _Leaf(NamedTuple):
  """An array of the sums, and its modulus, int64: one, or one of each entry."""

  shape: tuple[int, ...]
  dtype: str
  modulus: np.ndarray

  @property
  def size(self) -> int:
    return math.prod(self.shape)

  @property
  def is_count(self) -> bool:
    """True for the number of clients. Its modulus says so: all others are odd."""
    return self.shape == () and int(self.modulus) == mechanism.COUNT_MODULUS


def _leaves(bundle: player.Bundle) -> list[_Leaf]:
  leaves = zip(structures.types(bundle.sums_types.secure), _in_order(bundle.modulus))
  return [_Leaf(tuple(kind['shape']), kind['dtype'], np.asarray(modulus, np.int64)) for kind, modulus in leaves]


def _in_order(value: Any) -> Iterator[Any]:
  """The leaves of a structure."""
  if not isinstance(value, (list, dict)):
    yield value
    return
  for part in value.values() if isinstance(value, dict) else value:
    yield from _in_order(part)
