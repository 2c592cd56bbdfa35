"""The datasets by name. A new one is a class here (or in a file of its own, if it is long) and a line in `DATASETS`.

A dataset is a frozen dataclass that makes a federation, by a partition of a pool or with clients of its own.
"""

from __future__ import annotations

import abc
import dataclasses
import os
from typing import Optional

import numpy as np

from data import arrays
from data import base
from data import errors
from data import federation
from data import glyphs
from data import leaves
from data import natural
from data import partition
from data import rng as rng_lib
from data import synthetic
from quap_tff.common import checks
from quap_tff.common import lazy
from quap_tff.common import registry
from quap_tff.common.lazy import tf

sklearn_datasets = lazy.module('sklearn.datasets')  # It takes a second, and only the digits need it.

# N of the documents' experiments.
DEFAULT_NUM_CLIENTS = 100
# A fifth of 1,797, rounded up. The choice is fixed: results of different seeds share their test set.
DIGITS_TEST_EXAMPLES = 360
WRITERS_FILE = 'mnist_writers.npz'


class PooledDataset(base.Dataset):
  """A dataset without clients of its own: one pool of examples, shared out by the run's partition."""

  default_num_clients = DEFAULT_NUM_CLIENTS
  auxiliary_source = 'They were drawn from the pool by --seed, before the others were dealt out to the clients.'

  @abc.abstractmethod
  def read(self, data_dir: Optional[str]) -> arrays.Pool:
    """Reads the pool."""

  def load(self, request: base.Request) -> federation.Federation:
    num_clients = self.default_num_clients if request.num_clients is None else request.num_clients
    chosen = partition.parse(request.partition)  # A bad spec is reported before anything is downloaded.
    pool = self.read(request.data_dir)
    dealt, held_out = _held_out(request, len(pool.train_y))
    rows = partition.split(request.partition, pool.train_y[dealt], num_clients, request.seed)
    clients = []
    for done, places in enumerate(rows, 1):
      clients.append(pool.train(dealt[places]))
      request.progress(done, num_clients)
    digits = len(str(num_clients - 1))
    return federation.Federation(
      name=request.name,
      num_classes=pool.num_classes,
      client_ids=tuple(f'client_{i:0{digits}d}' for i in range(num_clients)),
      clients=tuple(clients),
      test=pool.test(),
      auxiliary=pool.train(held_out) if len(held_out) else None,
      partition=registry.format_spec(request.partition.partition(':')[0], chosen),
      test_set=f'{len(pool.test_y):,} examples that no client holds.',
    )


def _held_out(request: base.Request, num_examples: int) -> tuple[np.ndarray, np.ndarray]:
  """(rows that are dealt out to clients, rows that the server has), both sorted; a function of seed and numbers.

  So neither the clients nor what is in the examples change who the server's examples are from.
  """
  count = int(request.auxiliary * num_examples)
  if request.auxiliary and not count:
    raise ValueError(
      f'{request.name}: a share of {request.auxiliary:g} of {num_examples} examples, rounded down, is none, so the '
      'server has no auxiliary examples. Give a larger share.'
    )
  order = rng_lib.generator(request.seed, 'auxiliary').permutation(num_examples) if count else np.arange(num_examples)
  return np.sort(order[count:]), np.sort(order[:count])


@dataclasses.dataclass(frozen=True)
class Digits(PooledDataset):
  """scikit-learn's 1,797 real handwritten digits, 8x8, shipped with it: needs no network and no file.

  1,437 training and 360 test examples, float32[8, 8, 1], 1.0 = ink.
  """

  image_shape = (8, 8, 1)
  white = 16.0

  def read(self, data_dir):
    bunch = sklearn_datasets.load_digits()
    x, y = bunch.images[..., None], bunch.target
    order = rng_lib.generator(0, 'test_split').permutation(len(y))
    test, train = order[:DIGITS_TEST_EXAMPLES], order[DIGITS_TEST_EXAMPLES:]
    return arrays.Pool(x[train], y[train], x[test], y[test], white=self.white, num_classes=10)


@dataclasses.dataclass(frozen=True)
class Glyphs(PooledDataset):
  """Drawings of random glyphs by the program: nobody's data, to choose clipping norms and learning rates on.

  18,000 training and 3,000 test images by default, float32[28, 28, 1], 1.0 = ink. The glyphs are others than those
  that `experiments.pretrain` learns from.

  Attributes:
    classes: Number of glyphs, which are the labels.
    copies: Drawings of each, a seventh of them for the test.
    alphabet: Seed of the glyphs and of their drawings; not that of the run, so that runs of all seeds share them.
  """

  image_shape = (28, 28, 1)

  classes: int = 10
  copies: int = 2100
  alphabet: int = 0

  def __post_init__(self):
    checks.integer('classes', self.classes, at_least=2)
    checks.integer('copies', self.copies, at_least=7)
    checks.integer('alphabet', self.alphabet, at_least=0)

  def read(self, data_dir):
    del data_dir
    rng = rng_lib.generator(self.alphabet, 'glyphs')
    x, y = glyphs.draw(glyphs.alphabet(self.classes, rng), self.copies, self.image_shape[0], rng)
    x = x[..., np.newaxis]
    # Drawings come in rounds over the alphabet, so that each glyph has the same share of both parts.
    test = self.classes * (self.copies // 7)
    return arrays.Pool(x[test:], y[test:], x[:test], y[:test], white=self.white, num_classes=self.classes)


@dataclasses.dataclass(frozen=True)
class Mnist(PooledDataset):
  """60,000 training and 10,000 test digits from `mnist.npz` or Keras: float32[28, 28, 1], 1.0 = ink."""

  image_shape = (28, 28, 1)

  def read(self, data_dir):
    return arrays.read_images('mnist.npz', _download_mnist, data_dir, self.image_shape, num_classes=10)


def _download_mnist():
  (x_train, y_train), (x_test, y_test) = tf.keras.datasets.mnist.load_data()
  return dict(x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)


@dataclasses.dataclass(frozen=True)
class Cifar10(PooledDataset):
  """50,000 training and 10,000 test photographs from `cifar10.npz` or Keras: float32[32, 32, 3], RGB."""

  image_shape = (32, 32, 3)

  def read(self, data_dir):
    return arrays.read_images('cifar10.npz', _download_cifar10, data_dir, self.image_shape, num_classes=10)


def _download_cifar10():
  (x_train, y_train), (x_test, y_test) = tf.keras.datasets.cifar10.load_data()
  return dict(x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)


@dataclasses.dataclass(frozen=True)
class Things(PooledDataset):
  """Drawings of random things by the program: nobody's data, for photographs what `Glyphs` is for digits.

  18,000 training and 3,000 test images by default, float32[32, 32, 3], RGB. The things are others than those that
  `--features=drawn` learns from. See `data.leaves`.

  Attributes:
    classes: Number of labels.
    looks: Number of things that share a label, as many kinds of birds are birds. With one, a linear head finds it easy.
    copies: Drawings of each label, a seventh of them for the test.
    kinds: Seed of the things and of their drawings; not that of the run, so that runs of all seeds share them.
  """

  image_shape = (32, 32, 3)

  classes: int = 10
  looks: int = 3
  copies: int = 2100
  kinds: int = 0

  def __post_init__(self):
    checks.integer('classes', self.classes, at_least=2)
    checks.integer('looks', self.looks, at_least=1)
    checks.integer('copies', self.copies, at_least=7)
    checks.integer('kinds', self.kinds, at_least=0)

  def read(self, data_dir):
    del data_dir
    rng = rng_lib.generator(self.kinds, 'things')
    things = leaves.things(self.classes * self.looks, rng)
    shown = np.arange(self.classes * self.copies) % len(things)
    x, y = leaves.views(things, shown, self.image_shape[:2], rng), shown % self.classes
    test = self.classes * (self.copies // 7)
    return arrays.Pool(x[test:], y[test:], x[:test], y[:test], white=self.white, num_classes=self.classes)


@dataclasses.dataclass(frozen=True)
class MnistWriters(base.Dataset):
  """MNIST with its real writers as clients: float32[28, 28, 1], 1.0 = ink; 539 training writers.

  Each MNIST digit is a digit of NIST Special Database 19, whose writers are known. `mnist_writers.npz` holds the writer
  of each row of `mnist.npz`. MNIST's test digits are by writers of their own, so test accuracy here is accuracy on
  people whom no client has met.
  """

  has_own_clients = True
  image_shape = (28, 28, 1)

  def load(self, request):
    if request.data_dir is None:
      raise errors.DataFileError(
        f'mnist_writers needs {WRITERS_FILE} (the writer of each row of mnist.npz), which no loader downloads. '
        f'Put {WRITERS_FILE} and mnist.npz into a folder and give that folder as --data_dir.'
      )
    path = os.path.join(request.data_dir, WRITERS_FILE)
    writers = arrays.read_npz(path, ['writer_train'], 'the writers of mnist.npz')['writer_train']
    pool = Mnist().read(request.data_dir)
    if writers.shape != pool.train_y.shape or writers.dtype.kind not in 'iu':
      raise errors.DataFileError(
        f'{path}: expected writer_train to be {len(pool.train_y)} integers, one for each row of mnist.npz, '
        f'found {writers.dtype}{list(writers.shape)}.'
      )
    names, owners = np.unique(writers, return_inverse=True)
    rows = np.split(np.argsort(owners, kind='stable'), np.cumsum(np.bincount(owners))[:-1])
    chosen, _, helpers = base.divide_clients(request, len(names))
    clients = []
    for i in chosen:
      clients.append(pool.train(rows[i]))
      request.progress(len(clients), len(chosen))
    return federation.Federation(
      name=request.name,
      num_classes=pool.num_classes,
      client_ids=tuple(f'writer_{names[i]:04d}' for i in chosen),
      clients=tuple(clients),
      test=pool.test(),
      auxiliary=pool.train(np.concatenate([rows[i] for i in helpers])) if len(helpers) else None,
      test_set=f'{len(pool.test_y):,} digits by other writers, who take part in no round.',
    )


DATASETS: dict[str, type[base.Dataset]] = {
  'digits': Digits,
  'glyphs': Glyphs,
  'mnist': Mnist,
  'mnist_writers': MnistWriters,
  'cifar10': Cifar10,
  'things': Things,
  'femnist': natural.Femnist,
  'femnist_digits': natural.FemnistDigits,
  'cifar100': natural.Cifar100,
  'shakespeare': natural.Shakespeare,
  'stackoverflow_words': natural.StackOverflowWords,
  'synthetic': synthetic.Synthetic,
}
