"""What all datasets have in common: the request, the interface, and the choice among natural clients."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Callable, ClassVar, NamedTuple, Optional

import numpy as np

from data import federation
from data import rng as rng_lib


@dataclasses.dataclass(frozen=True)
class Request:
  """What a run asks of a dataset; see `data.load`."""

  name: str
  data_dir: Optional[str]
  num_clients: Optional[int]
  partition: str
  seed: int
  progress: Callable[[int, int], None]
  auxiliary: float = 0.0


class Dataset(abc.ABC):
  """A source of federations.

  Attributes:
    has_own_clients: Whether its clients are its own, whatever partition is asked for.
    default_num_clients: N if no number is asked for; None for all of its own clients.
    is_sequences: Whether examples are sequences of tokens.
    tests_clients: Whether the test set is of the clients themselves.
    image_shape: (height, width, channels) of an example; None if examples are no images.
    white: The pixel value in its files that becomes 1.0.
    auxiliary_source: Whose examples the server gets if it is to have examples of its own, a sentence.
  """

  has_own_clients: ClassVar[bool] = False
  default_num_clients: ClassVar[Optional[int]] = None
  is_sequences: ClassVar[bool] = False
  tests_clients: ClassVar[bool] = False
  image_shape: ClassVar[Optional[tuple[int, int, int]]] = None
  white: ClassVar[float] = 255.0
  auxiliary_source: ClassVar[str] = (
    "They are those of others of the dataset's own clients, drawn by --seed, who take part in no round."
  )

  @abc.abstractmethod
  def load(self, request: Request) -> federation.Federation:
    """Reads the files and makes the federation."""


def client_order(available: int, seed: int) -> np.ndarray:
  """int64[available], a uniformly random order of natural clients, by the seed.

  The first few in the file's order would be no sample (writers are ordered by where they were recruited).
  """
  return rng_lib.generator(seed, 'client_choice').permutation(available)


class Division(NamedTuple):
  """Which of a dataset's own clients do what: sorted indices, none of them in two places.

  Attributes:
    clients: Those that take part.
    testers: Those whose examples are the test set.
    helpers: Those whose examples the server has.
  """

  clients: np.ndarray
  testers: np.ndarray
  helpers: np.ndarray


def divide_clients(request: Request, available: int, test_share: float = 0.0) -> Division:
  """Who takes part, who only tests, and whose examples the server has; a pure function of the seed and the numbers.

  For one seed a larger choice of clients contains every smaller one.

  Args:
    request: Its `num_clients` of those that do not test take part; by default all but the helpers. Its `auxiliary` is
      the number of helpers as a share of the clients asked for, rounded up.
    available: The number of natural clients.
    test_share: The share of them that only test, rounded up; at least one client is left over.

  Raises:
    ValueError: If more clients are asked for than there are.
  """
  testers = min(math.ceil(test_share * available), available - 1)
  left = available - testers
  helpers = math.ceil(request.auxiliary * (left if request.num_clients is None else request.num_clients))
  num_clients = left - helpers if request.num_clients is None else request.num_clients
  if num_clients < 1 or num_clients + helpers > left:
    more = ''
    if helpers:
      more = (
        f' Of {helpers} more, who are no clients, the server would have the examples. Ask for fewer clients, or for '
        'a smaller share of auxiliary examples.'
      )
    raise ValueError(f'{request.name} has {left} clients, found num_clients={num_clients}.{more}')
  order = client_order(available, request.seed)
  return Division(*map(np.sort, (order[:num_clients], order[left:], order[left - helpers : left])))
