"""Partitions of one pool of labelled examples: every example goes to exactly one client, and no client stays empty."""

import abc
import dataclasses
import heapq

import numpy as np

from quap_tff.common import checks
from quap_tff.common import registry
from quap_tff.common.numbers import rng as rng_lib


class Partition(checks.Checked, abc.ABC):
  """How examples are given to clients."""

  @abc.abstractmethod
  def assign(self, labels: np.ndarray, num_clients: int, rng: np.random.Generator) -> np.ndarray:
    """Returns int64[n], the client of each example. A client may be left without any."""


@dataclasses.dataclass(frozen=True)
class Iid(Partition):
  """Examples shuffled and dealt out: sizes differ by at most one."""

  def assign(self, labels: np.ndarray, num_clients: int, rng: np.random.Generator) -> np.ndarray:
    return rng.permutation(np.arange(len(labels), dtype=np.int64) % num_clients)


@dataclasses.dataclass(frozen=True)
class Dirichlet(Partition):
  """Label skew: for each label, a draw of Dirichlet(alpha, ..., alpha) over the clients gives their shares of it.

  This is the partition of Yurochkin et al. (2019, arXiv:1905.12022). A small alpha leaves each client with few labels;
  a large alpha approaches equal shares. Cumulated shares are rounded to whole numbers, so each client gets its share of
  each label to within one example.

  Attributes:
    alpha: The concentration, in [0.001, 1e6].
  """

  # Outside these bounds float64 cannot hold the shares. At the bounds themselves each label has one owner, or the sizes
  # are those of iid.
  alpha: float = checks.number_field('dirichlet alpha', 0.5, at_least=1e-3, at_most=1e6)

  def assign(self, labels: np.ndarray, num_clients: int, rng: np.random.Generator) -> np.ndarray:
    owners = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
      rows = rng.permutation(np.flatnonzero(labels == label))
      shares = rng.dirichlet(np.full(num_clients, float(self.alpha)))
      ends = np.rint(np.cumsum(shares) * len(rows)).astype(np.int64)
      ends[-1] = len(rows)
      owners[rows] = np.repeat(np.arange(num_clients), np.diff(ends, prepend=0))
    return owners


PARTITIONS: dict[str, type[Partition]] = {'dirichlet': Dirichlet, 'iid': Iid}


def parse_partition(spec: str) -> Partition:
  """The partition that `spec` names, e.g. `dirichlet:alpha=0.5`."""
  return registry.parse_spec('partition', spec, PARTITIONS)


def split(spec: str, labels: np.ndarray, num_clients: int, seed: int) -> tuple[np.ndarray, ...]:
  """Gives each example to exactly one client; a pure function of its arguments.

  A client that the partition leaves empty gets one example, drawn uniformly from the client that has most at that
  moment (the lowest index among equals). Nothing is drawn again and no other example moves, so the number of moved
  examples is the number of empty clients.

  Args:
    spec: A partition spec, see `PARTITIONS`.
    labels: Integers [n], the label of each example.
    num_clients: N.
    seed: Non-negative integer.

  Returns:
    N sorted int64 arrays: the rows of each client, at least one each.

  Raises:
    ValueError: For an unknown or bad spec, or fewer examples than clients.
  """
  partition = parse_partition(spec)
  labels = np.asarray(labels)
  checks.integer('num_clients', num_clients, at_least=1)
  if num_clients > len(labels):
    raise ValueError(
      f'Each client needs at least one example: found {num_clients} clients and only {len(labels)} examples. '
      'Give a smaller --num_clients.'
    )
  rng = rng_lib.generator(seed, 'partition')
  owners = partition.assign(labels, num_clients, rng)
  order = np.argsort(owners, kind='stable')
  rows = np.split(order.astype(np.int64), np.cumsum(np.bincount(owners, minlength=num_clients))[:-1])
  return tuple(_give_each_client_one(rows, rng))


def _give_each_client_one(rows: list[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
  largest = [(-len(r), i) for i, r in enumerate(rows) if len(r)]
  heapq.heapify(largest)
  for i in [i for i, r in enumerate(rows) if not len(r)]:
    size, donor = heapq.heappop(largest)
    moved = rng.integers(-size)
    rows[i] = rows[donor][moved : moved + 1]
    rows[donor] = np.delete(rows[donor], moved)
    heapq.heappush(largest, (size + 1, donor))
  return rows
