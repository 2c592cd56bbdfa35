"""What a dataset is: a frozen dataclass that makes a federation, by a partition of a pool or with its own clients."""

import abc
import dataclasses
from typing import Callable, Optional

import numpy as np

from data import arrays
from data import federation
from data import partition
from data import rng as rng_lib
from quap_tff import checks
from quap_tff import registry

# N of the documents' experiments (DESIGN 2.6).
DEFAULT_NUM_CLIENTS = 100


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
  """A source of federations."""

  @abc.abstractmethod
  def load(self, request: Request) -> federation.Federation:
    """Reads the files and makes the federation."""


class PooledDataset(Dataset):
  """A dataset without clients of its own: one pool of examples, shared out by the run's partition."""

  @abc.abstractmethod
  def read(self, data_dir: Optional[str]) -> arrays.Pool:
    """Reads the pool."""

  def load(self, request: Request) -> federation.Federation:
    num_clients = DEFAULT_NUM_CLIENTS if request.num_clients is None else request.num_clients
    chosen = partition.parse(request.partition)  # A bad spec is reported before anything is downloaded.
    pool = self.read(request.data_dir)
    rows = partition.split(request.partition, pool.train_y, num_clients, request.seed)
    clients = []
    for done, r in enumerate(rows, 1):
      clients.append(pool.train(r))
      request.progress(done, num_clients)
    digits = len(str(num_clients - 1))
    return federation.Federation(
        name=request.name,
        num_classes=pool.num_classes,
        client_ids=tuple(f'client_{i:0{digits}d}' for i in range(num_clients)),
        clients=tuple(clients),
        test=pool.test(),
        partition=registry.format_spec(request.partition.partition(':')[0], chosen),
    )


def choose_clients(what: str, available: int, num_clients: Optional[int], seed: int) -> np.ndarray:
  """Sorted indices of the natural clients that take part: all, or `num_clients` drawn uniformly by the seed.

  The first few in the file's order would be no sample (writers are ordered by where they were recruited). For one
  seed a larger choice contains every smaller one.

  Raises:
    ValueError: If more clients are asked for than there are.
  """
  if num_clients is None:
    return np.arange(available)
  checks.integer('num_clients', num_clients, at_least=1)
  if num_clients > available:
    raise ValueError(f'{what} has {available} clients, found num_clients={num_clients}.')
  return np.sort(rng_lib.generator(seed, 'client_choice').permutation(available)[:num_clients])
