"""What all datasets have in common: the request, the interface, and the choice among natural clients."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Callable, ClassVar, Optional, Tuple

import numpy as np

from data import federation
from data import rng as rng_lib
from quap_tff import checks


@dataclasses.dataclass(frozen=True)
class Request:
  """What a run asks of a dataset; see `data.load`."""

  name: str
  data_dir: Optional[str]
  num_clients: Optional[int]
  partition: str
  seed: int
  progress: Callable[[int, int], None]


class Dataset(abc.ABC):
  """A source of federations.

  Attributes:
    has_own_clients: Whether its clients are its own, whatever partition is asked for.
    image_shape: (height, width, channels) of an example; None if examples are no images.
    white: The pixel value in its files that becomes 1.0.
  """

  has_own_clients: ClassVar[bool] = False
  image_shape: ClassVar[Optional[Tuple[int, int, int]]] = None
  white: ClassVar[float] = 255.0

  @abc.abstractmethod
  def load(self, request: Request) -> federation.Federation:
    """Reads the files and makes the federation."""


def client_order(available: int, seed: int) -> np.ndarray:
  """int64[available], a uniformly random order of natural clients, by the seed.

  The first few in the file's order would be no sample (writers are ordered by where they were recruited).
  """
  return rng_lib.generator(seed, 'client_choice').permutation(available)


def split_clients(request: Request, available: int, test_share: float) -> Tuple[np.ndarray, np.ndarray]:
  """(sorted indices of the natural clients that take part, sorted indices of those that only test).

  Args:
    request: Its `num_clients` of those left over take part.
    available: The number of natural clients.
    test_share: The share of them that only test, rounded up; at least one client is left over.
  """
  held_out = min(math.ceil(test_share * available), available - 1)
  order = client_order(available, request.seed)
  chosen = choose_clients(request.name, available - held_out, request.num_clients, order)
  return chosen, np.sort(order[available - held_out:])


def choose_clients(what: str, available: int, num_clients: Optional[int], order: np.ndarray) -> np.ndarray:
  """Sorted indices of the natural clients that take part: the first `num_clients` in the order, of `available`.

  For one seed a larger choice contains every smaller one.

  Raises:
    ValueError: If more clients are asked for than there are.
  """
  if num_clients is None:
    num_clients = available
  checks.integer('num_clients', num_clients, at_least=1)
  if num_clients > available:
    raise ValueError(f'{what} has {available} clients, found num_clients={num_clients}.')
  return np.sort(order[:num_clients])
