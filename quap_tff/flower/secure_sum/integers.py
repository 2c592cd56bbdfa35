"""How the integers of a bundle go through SecAgg+, which sums what it calls floats, modulo 2³².

    sent       q = x + T/2 in [0, T],  T = 2³¹ - 2             Flower's quantiser, which is the identity on integers x
    summed     Σ q mod 2³²                                     Flower's masks cancel
    found      Σ x = (Σ q - M·T/2) mod 2³², in [-2³¹, 2³¹)     exact if |x| ≤ T/2 and |Σ x| < 2³¹

The count of clients goes the same way. Every other modulus above 2³² is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from quap_tff.bundle import player
from quap_tff.bundle import structures
from quap_tff.flower.secure_sum import masks
from quap_tff.mechanisms import mechanism

TARGET = 2**31 - 2
HALF = TARGET // 2


def check_fits(bundle: player.Bundle, nodes: Mapping[int, np.ndarray], most_clients: int) -> None:
  """Raises `ValueError` if a round's sums could be wrong.

  Args:
    bundle: The run.
    nodes: int64[M_k] by node id: the clients of each node.
    most_clients: The size of the plan's largest cohort.
  """
  # The count of clients is summed modulo 2⁶², and is never as large as 2³¹.
  wide = [int(np.max(leaf.modulus)) for leaf in _leaves(bundle) if not leaf.is_count]
  largest = max(wide, default=1)
  # Also of a single number: a sum of its digits would say more than the number.
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
    # Around 0: the bound holds for numbers with a sign, and Flower's range has room for as much on both sides.
    centred = np.where(remainder > leaf.modulus // 2, remainder - leaf.modulus, remainder)
    arrays.append(centred.reshape(leaf.sent_shape))
  # Flower's quantiser would clip it, and nobody would notice.
  if any(np.abs(one).max(initial=0) > HALF for one in arrays):
    raise ValueError(f'An entry of the sum of this node is larger than {HALF}.')
  return arrays


def decoded(bundle: player.Bundle, total: Sequence[np.ndarray], num_nodes: int) -> Any:
  """`Sums.secure` from the sum of what nodes sent: `Σ q mod 2³²`, int64 arrays."""
  leaves = []
  for array, leaf in zip(total, _leaves(bundle)):
    # Each node has added T/2 once for each entry.
    centred = (array - num_nodes * HALF) % masks.RANGE
    centred = np.where(centred >= masks.RANGE // 2, centred - masks.RANGE, centred)
    leaves.append((centred.reshape(leaf.shape) % leaf.modulus).astype(leaf.dtype))
  return structures.pack(bundle.sums_types.secure, iter(leaves))


def nothing(bundle: player.Bundle) -> Any:
  """`Sums.secure` of nobody, of the shapes of sums."""
  return structures.pack(bundle.sums_types.secure, iter([np.zeros(one.shape, one.dtype) for one in _leaves(bundle)]))


def shapes(bundle: player.Bundle) -> list[tuple[int, ...]]:
  """The shapes of the arrays that `encoded` gives."""
  return [leaf.sent_shape for leaf in _leaves(bundle)]


class _Leaf(NamedTuple):
  """An array of the sums, and its modulus, int64: one, or one of each entry."""

  shape: tuple[int, ...]
  dtype: str
  modulus: np.ndarray

  @property
  def sent_shape(self) -> tuple[int, ...]:
    """Flower's quantiser takes no array without an axis."""
    return self.shape or (1,)

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
