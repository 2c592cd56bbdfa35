"""How the integers of a bundle go through SecAgg+, which sums what it calls floats, modulo 2³².

    sent       q = x + T/2 in [0, T],  T = 2³¹ - 2             Flower's quantiser, which is the identity on integers x
    summed     Σ q mod 2³²                                     Flower's masks cancel
    found      Σ x = (Σ q - M·T/2) mod 2³², in [-2³¹, 2³¹)     exact if |x| ≤ T/2 and |Σ x| < 2³¹

A single number with a larger modulus, such as the count of clients, is sent in digits of 16 bits. Of arrays, a modulus
above 2³² is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import math
from typing import Any, NamedTuple

import numpy as np

from quap_tff.bundle import player
from quap_tff.bundle import structures
from quap_tff.flower.secure_sum import masks

TARGET = 2**31 - 2
HALF = TARGET // 2
_DIGIT_BITS, _DIGITS = 16, 4
# The sum of this many digits stays below 2³¹.
MOST_NODES = 2**15 - 1


def check_fits(bundle: player.Bundle, nodes: Mapping[int, np.ndarray], most_clients: int) -> None:
  """Raises `ValueError` if a round's sums could be wrong.

  Args:
    bundle: The run.
    nodes: int64[M_k] by node id: the clients of each node.
    most_clients: The size of the plan's largest cohort.
  """
  if len(nodes) > MOST_NODES:
    raise ValueError(
      f'A secure sum takes at most {MOST_NODES} nodes, found {len(nodes)}. Let a node hold more clients.'
    )
  wide = [int(np.max(one.modulus)) for one in _leaves(bundle) if not one.is_in_digits]
  largest = max(wide, default=1)
  if largest > masks.RANGE:
    raise ValueError(
      f'A secure sum of Flower takes sums below 2^32, and with up to {most_clients} clients, the weights and the '
      f"rounds of this plan they need {largest}. Plan smaller cohorts or fewer rounds: a client's noise has more grid "
      'steps where more is drawn.'
    )
  # m = 2·n·b + 1, where b is the bound of one client.
  bound = (largest - 1) // (2 * most_clients)
  crowded = max(map(len, nodes.values()), default=0)
  if crowded * bound > HALF:
    raise ValueError(
      f'A node has {crowded} clients of a cohort, whose sum may be {crowded * bound}, and a secure sum of Flower takes '
      f'at most {HALF} from each node. Spread the clients over more nodes.'
    )


def encoded(bundle: player.Bundle, secure: Any) -> list[np.ndarray]:
  """A node's integers to send, int64 arrays in [-HALF, HALF], from `Sums.secure`, which is modulo `Bundle.modulus`.

  Raises:
    ValueError: If a number is too large. No plan that fits makes one.
  """
  arrays = []
  for number, leaf in zip(structures.flatten(bundle.sums_types.secure, secure, 'sums'), _leaves(bundle)):
    remainder = np.asarray(number, np.int64) % leaf.modulus
    if leaf.is_in_digits:
      one = int(remainder.reshape(()))
      arrays.append(np.array([one >> _DIGIT_BITS * k & (1 << _DIGIT_BITS) - 1 for k in range(_DIGITS)], np.int64))
    else:
      arrays.append(np.where(remainder > leaf.modulus // 2, remainder - leaf.modulus, remainder))
  if any(np.abs(one).max(initial=0) > HALF for one in arrays):
    raise ValueError(f'An entry of the sum of this node is larger than {HALF}.')
  return arrays


def decoded(bundle: player.Bundle, total: Sequence[np.ndarray], num_nodes: int) -> Any:
  """`Sums.secure` from the sum of what nodes sent: `Σ q mod 2³²`, int64 arrays."""
  leaves = []
  for array, leaf in zip(total, _leaves(bundle)):
    centred = (array - num_nodes * HALF) % masks.RANGE
    centred = np.where(centred >= masks.RANGE // 2, centred - masks.RANGE, centred)
    if leaf.is_in_digits:
      number = sum(int(digit) << _DIGIT_BITS * k for k, digit in enumerate(centred)) % int(np.max(leaf.modulus))
      centred = np.full(leaf.shape, number, np.int64)
    leaves.append((centred % leaf.modulus).astype(leaf.dtype))
  return structures.pack(bundle.sums_types.secure, iter(leaves))


def nothing(bundle: player.Bundle) -> Any:
  """`Sums.secure` of nobody, of the shapes of sums."""
  return structures.pack(bundle.sums_types.secure, iter([np.zeros(one.shape, one.dtype) for one in _leaves(bundle)]))


def shapes(bundle: player.Bundle) -> list[tuple[int, ...]]:
  """Those of `encoded`."""
  return [(_DIGITS,) if one.is_in_digits else one.shape for one in _leaves(bundle)]


class _Leaf(NamedTuple):
  """An array of the sums, and its modulus, int64: one, or one of each entry."""

  shape: tuple[int, ...]
  dtype: str
  modulus: np.ndarray

  @property
  def is_in_digits(self) -> bool:
    return math.prod(self.shape) == 1 and int(np.max(self.modulus)) > masks.RANGE


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
