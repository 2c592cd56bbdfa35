"""Federated data: `load` makes a federation of a named dataset, `cohorts.make` draws the clients of each round."""

from typing import Callable, Optional, TYPE_CHECKING

from quap_tff.common import lazy as _lazy

if TYPE_CHECKING:
  from data.federation import Federation

__getattr__, __dir__ = _lazy.exports(
  __name__,
  {
    'cohorts': [],
    'datasets': ['DATASETS'],
    'reading': ['DataFileError'],
    'features': [],
    'federation': ['Examples', 'Federation', 'OnDemand'],
    'partition': ['PARTITIONS'],
  },
)


def load(
  spec: str,
  *,
  data_dir: Optional[str] = None,
  num_clients: Optional[int] = None,
  partition: str = 'dirichlet:alpha=0.5',
  seed: int = 0,
  features: str = 'none',
  auxiliary: float = 0.0,
  progress: Optional[Callable[[int, int], None]] = None,
) -> 'Federation':
  """Loads a dataset as a federation; a pure function of the files and the arguments.

  Args:
    spec: A dataset, e.g. `digits`, `mnist`, `femnist`, `femnist:test_writers=0.1`; see `DATASETS`.
    data_dir: The folder that holds the dataset's file (mnist.npz, cifar10.npz, mnist_writers.npz, unipen62.npz,
      emnist_all.sqlite, cifar100.sqlite, shakespeare.sqlite, stackoverflow.sqlite with stackoverflow.word_count; or
      that of `npz:path=`).
      `None`: the cache of Keras or TFF, filled by their download if empty.
    num_clients: N. `None`: 100, or all clients of a dataset that has its own. If a smaller number is given for such a
      dataset, the seed chooses the clients.
    partition: How the examples of a dataset without clients of its own are divided, see `PARTITIONS`. Other datasets
      ignore it. `Federation.partition` says which was the case.
    seed: Seed of the partition and of the choice among natural clients; non-negative.
    features: A feature map for the examples, see `data.features.FEATURES`; computed once and kept on disk.
    auxiliary: The share of examples that the server has, in [0, 1), drawn by the seed: of the pool, before it is
      divided; or, as whole clients of a dataset that has its own, of the number of clients asked for. The people
      of these examples are not clients.
    progress: Called with (done, total) as clients are read, and then as features of examples are computed.

  Returns:
    The federation. Its arrays are in memory, except for the clients of a dataset that reads or makes them on demand.

  Raises:
    DataFileError: (a `ValueError`) If a file is missing, damaged, the wrong one, or cannot be downloaded.
    ValueError: For an unknown name, a value out of range, more clients than there are examples or writers, or a share
      of auxiliary examples that leaves too few of them.
  """
  from data import datasets as datasets_lib  # pylint: disable=g-import-not-at-top
  from data import features as features_lib  # pylint: disable=g-import-not-at-top
  from data.datasets import base  # pylint: disable=g-import-not-at-top
  from quap_tff.common import checks  # pylint: disable=g-import-not-at-top
  from quap_tff.common import registry  # pylint: disable=g-import-not-at-top

  dataset = registry.parse_spec('dataset', spec, datasets_lib.DATASETS)
  if num_clients is not None:
    checks.integer('num_clients', num_clients, at_least=1)
  checks.integer('seed', seed, at_least=0)
  checks.number('auxiliary', auxiliary, at_least=0, below=1)
  features_lib.parse(features)  # A bad spec is reported before anything is read.
  progress = progress or (lambda done, total: None)
  federation = dataset.load(
    base.Request(
      name=spec.partition(':')[0],
      data_dir=data_dir,
      num_clients=num_clients,
      partition=partition,
      seed=seed,
      progress=progress,
      auxiliary=auxiliary,
    )
  )
  return features_lib.map_federation(features, federation, progress)
