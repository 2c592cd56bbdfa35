"""The parts that datasets share: the request, the interface, the choice among natural clients, pools of examples."""

from __future__ import annotations

import abc
from collections.abc import Sequence
import dataclasses
import math
from typing import Any, Callable, ClassVar, NamedTuple, Optional

import numpy as np

from data import federation
from data import partition
from quap_tff.common import checks
from quap_tff.common import registry
from quap_tff.common.numbers import rng as rng_lib

# N of the documents' experiments.
DEFAULT_NUM_CLIENTS = 100


@dataclasses.dataclass(frozen=True)
class Request:
  """A run's request for a dataset; see `data.load`."""

  name: str
  data_dir: Optional[str]
  num_clients: Optional[int]
  partition: str
  seed: int
  progress: Callable[[int, int], None]
  auxiliary: float = 0.0


class Dataset(checks.Checked, abc.ABC):
  """A source of federations. Subclasses are frozen dataclasses in `DATASETS`.

  Attributes:
    title: Its name in print, where {key} stands for a parameter; '' if that is its spec.
    has_own_clients: Whether its clients are its own, whatever partition is asked for.
    default_num_clients: N if no number is asked for; None for all of its own clients.
    is_sequences: Whether examples are sequences of tokens.
    tests_clients: Whether the test set is of the clients themselves.
    num_classes: Labels are in [0, num_classes); None if the data or a parameter decide.
    image_shape: (height, width, channels) of an example; None if examples are not images, or if the file decides.
    white: The pixel value in its files that becomes 1.0.
    auxiliary_source: A sentence on the source of the server's own examples, for runs in which it has some.
  """

  title: ClassVar[str] = ''
  has_own_clients: ClassVar[bool] = False
  default_num_clients: ClassVar[Optional[int]] = None
  is_sequences: ClassVar[bool] = False
  tests_clients: ClassVar[bool] = False
  num_classes: ClassVar[Optional[int]] = None
  image_shape: ClassVar[Optional[tuple[int, int, int]]] = None
  white: ClassVar[float] = 255.0
  auxiliary_source: ClassVar[str] = (
    "They are those of others of the dataset's own clients, drawn by --seed, who take part in no round."
  )

  @abc.abstractmethod
  def load(self, request: Request) -> federation.Federation:
    """Reads the files and makes the federation."""

  def check_file(self, data_dir: Optional[str]) -> None:
    """Raises `DataFileError` if the user names a file, and it is not there. Nothing is read."""

  def portable(self) -> Dataset:
    """The dataset as a run's folder names it, without the places of files on this machine."""
    return self


class Division(NamedTuple):
  """The roles of a dataset's own clients, each of whom has at most one. All are in the dataset's order.

  Attributes:
    clients: The clients that take part.
    testers: The clients whose examples are the test set.
    helpers: The clients whose examples the server has.
  """

  clients: list[Any]
  testers: list[Any]
  helpers: list[Any]


def client_order(available: int, seed: int) -> np.ndarray:
  """int64[available], a uniformly random order of natural clients, by the seed.

  The first few in the file's order would not be a sample (writers are ordered by where they were recruited).
  """
  return rng_lib.generator(seed, 'client_choice').permutation(available)


def divide_clients(request: Request, ids: Sequence[Any], test_share: float = 0.0) -> Division:
  """Divides clients: some take part, some only test, and of some the server has the examples.

  The division is a pure function of the seed and the numbers. For one seed a larger choice of clients contains every
  smaller one.

  Args:
    request: Its `num_clients` of those that do not test take part; by default all but the helpers. Its `auxiliary` is
      the number of helpers as a share of the clients asked for, rounded up.
    ids: The natural clients.
    test_share: The share of them that only test, rounded up; at least one client is left over.

  Raises:
    ValueError: If more clients are asked for than there are.
  """
  testers = min(math.ceil(test_share * len(ids)), len(ids) - 1)
  left = len(ids) - testers
  if request.num_clients is None:
    helpers = math.ceil(request.auxiliary * left)
    num_clients = left - helpers
  else:
    helpers, num_clients = math.ceil(request.auxiliary * request.num_clients), request.num_clients
  if num_clients < 1 or num_clients + helpers > left:
    more = ''
    if helpers:
      more = (
        f' The server would have the examples of {helpers} more, who are not clients. Ask for fewer clients, or for a '
        'smaller share of auxiliary examples.'
      )
    raise ValueError(f'{request.name} has {left} clients, found num_clients={num_clients}.{more}')
  order = client_order(len(ids), request.seed)

  def named(part: np.ndarray) -> list[Any]:
    return [ids[i] for i in np.sort(part)]

  return Division(named(order[:num_clients]), named(order[left:]), named(order[left - helpers : left]))


@dataclasses.dataclass(frozen=True, eq=False)
class Pool:
  """Examples that no client holds yet, as they are in their files, and the test set.

  Attributes:
    train_x: [n, ...], uint8 or float, pixels from 0 to `white`.
    train_y: Integers [n].
    test_x, test_y: The same for the test set.
    white: The value that becomes 1.0.
    num_classes: Labels are in [0, num_classes).
  """

  train_x: np.ndarray
  train_y: np.ndarray
  test_x: np.ndarray
  test_y: np.ndarray
  white: float
  num_classes: int

  def _examples(self, x: np.ndarray, y: np.ndarray) -> federation.Examples:
    return federation.Examples(np.divide(x, np.float32(self.white), dtype=np.float32), y.astype(np.int32))

  def _federation(
    self, request: Request, rows: Sequence[np.ndarray], client_ids: Sequence[str], helpers: np.ndarray, **facts: Any
  ) -> federation.Federation:
    def examples_of(client_rows: np.ndarray) -> federation.Examples:
      # Only the rows of one client at a time are converted, so that the pool is never copied as float32.
      return self._examples(self.train_x[client_rows], self.train_y[client_rows])

    clients = []
    for client_rows in rows:
      clients.append(examples_of(client_rows))
      request.progress(len(clients), len(rows))
    auxiliary = examples_of(helpers) if len(helpers) else None
    return federation.Federation(
      num_classes=self.num_classes,
      client_ids=client_ids,
      clients=clients,
      test=self._examples(self.test_x, self.test_y),
      auxiliary=auxiliary,
      **{'name': request.name, **facts},
    )

  def dealt(self, request: Request, **facts: Any) -> federation.Federation:
    """The federation in which the request's partition deals the training examples out to clients.

    Args:
      request: Its `auxiliary` is the server's share of the examples, drawn before they are dealt out.
      **facts: Other fields of the federation.
    """
    number = DEFAULT_NUM_CLIENTS if request.num_clients is None else request.num_clients
    dealt, held_out = _held_out(request, len(self.train_y))
    rows = partition.split(request.partition, self.train_y[dealt], number, request.seed)
    spec = registry.format_spec(request.partition.partition(':')[0], partition.parse_partition(request.partition))
    facts = {'test_set': f'{len(self.test_y):,} examples that no client holds.', **facts}
    ids = tuple(federation.NumberedIds(number))
    return self._federation(request, [dealt[own] for own in rows], ids, held_out, partition=spec, **facts)

  def owned(
    self, request: Request, owners: np.ndarray, prefix: str, test_share: float = 0.0, **facts: Any
  ) -> federation.Federation:
    """The federation in which each training example belongs to its owner.

    Args:
      request: Chooses among the owners.
      owners: int[n] or str[n], the owner of each training example. Owners are in the order of their sorted ids.
      prefix: Before an owner's number in its id. An owner's name is its id, unchanged.
      test_share: The share of the owners that only test. If it is not 0, their examples replace the test set.
      **facts: Other fields of the federation.
    """
    names, owner_indices = np.unique(owners, return_inverse=True)
    rows = np.split(np.argsort(owner_indices, kind='stable'), np.cumsum(np.bincount(owner_indices))[:-1])
    chosen, testers, helpers = divide_clients(request, range(len(names)), test_share)

    def together(some: Sequence[int]) -> np.ndarray:
      """The rows of several owners; owners may be none."""
      return np.concatenate([np.zeros([0], np.int64), *(rows[i] for i in some)])

    pool = self
    if testers:
      tested = together(testers)
      pool = dataclasses.replace(self, test_x=self.train_x[tested], test_y=self.train_y[tested])
      facts['test_set'] = f'{len(tested):,} examples of {len(testers):,} other clients, who take part in no round.'
    has_names = names.dtype.kind == 'U'
    client_ids = []
    for i in chosen:
      named = str(names[i]) if has_names else f'{prefix}_{names[i]:04d}'
      client_ids.append(named)
    return pool._federation(request, [rows[i] for i in chosen], tuple(client_ids), together(helpers), **facts)


def _held_out(request: Request, num_examples: int) -> tuple[np.ndarray, np.ndarray]:
  """(rows that are dealt out to clients, rows that the server has), both sorted; a function of seed and numbers.

  So neither the clients nor the content of examples change which examples the server has.
  """
  count = int(request.auxiliary * num_examples)
  if request.auxiliary and not count:
    raise ValueError(
      f'{request.name}: a share of {request.auxiliary:g} of {num_examples} examples, rounded down, is none, so the '
      'server has no auxiliary examples. Give a larger share.'
    )
  order = rng_lib.generator(request.seed, 'auxiliary').permutation(num_examples) if count else np.arange(num_examples)
  return np.sort(order[count:]), np.sort(order[:count])


class PooledDataset(Dataset):
  """A dataset without clients of its own: one pool of examples, shared out by the run's partition."""

  default_num_clients = DEFAULT_NUM_CLIENTS
  auxiliary_source = 'They were drawn from the pool by --seed, before the others were dealt out to the clients.'

  @abc.abstractmethod
  def read(self, data_dir: Optional[str]) -> Pool:
    """Reads the pool."""

  def load(self, request: Request) -> federation.Federation:
    partition.parse_partition(request.partition)  # A bad spec is reported before anything is downloaded.
    return self.read(request.data_dir).dealt(request)
