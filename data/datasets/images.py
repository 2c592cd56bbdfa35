"""Images from scikit-learn and from Keras' files, which are pools of examples; and characters with their writers."""

from __future__ import annotations

import dataclasses
import os
from typing import ClassVar, Optional

import numpy as np

from data import federation
from data import reading
from data import unipen
from data.datasets import base
from quap_tff.common import checks
from quap_tff.common import lazy
from quap_tff.common.lazy import tf
from quap_tff.common.numbers import rng as rng_lib

sklearn_datasets = lazy.module('sklearn.datasets')  # It takes a second, and only the digits need it.

# A fifth of 1,797, rounded up. The choice is fixed: results of different seeds share their test set.
DIGITS_TEST_EXAMPLES = 360
WRITERS_FILE = 'mnist_writers.npz'
_KERAS_ARRAYS = ('x_train', 'y_train', 'x_test', 'y_test')


@dataclasses.dataclass(frozen=True)
class Digits(base.PooledDataset):
  """scikit-learn's 1,797 real handwritten digits, 8x8. They come with that package: no network or file is needed.

  1,437 training and 360 test examples, float32[8, 8, 1], 1.0 = ink.
  """

  title = '8×8 digits'
  num_classes = 10
  image_shape = (8, 8, 1)
  white = 16.0

  def read(self, data_dir: Optional[str]) -> base.Pool:
    bunch = sklearn_datasets.load_digits()
    x, y = bunch.images[..., None], bunch.target
    order = rng_lib.generator(0, 'test_split').permutation(len(y))
    test, train = order[:DIGITS_TEST_EXAMPLES], order[DIGITS_TEST_EXAMPLES:]
    return base.Pool(x[train], y[train], x[test], y[test], white=self.white, num_classes=self.num_classes)


class _KerasImages(base.PooledDataset):
  """8-bit images from `FILE.npz` in a folder, or without a folder from Keras' download and cache.

  A `data_dir` without the file is an error. Nothing is downloaded then: a user who names a folder means that folder.

  Attributes:
    keras_name: The file without its suffix, and the module in `tf.keras.datasets`.
  """

  keras_name: ClassVar[str]
  num_classes = 10
  image_shape: ClassVar[tuple[int, int, int]]

  def read(self, data_dir: Optional[str]) -> base.Pool:
    filename = f'{self.keras_name}.npz'
    if data_dir is not None:
      path = os.path.join(data_dir, filename)
      return self._pool(reading.read_npz(path, _KERAS_ARRAYS, f'the arrays of {self.keras_name}'), path)
    names = ', '.join(_KERAS_ARRAYS)
    failed = f'{filename} was not given, and Keras could neither find it in its cache nor download it'
    advice = f'Put {filename} (an .npz with {names}) into a folder and give that folder as --data_dir.'
    with reading.downloading(failed, advice):
      (x_train, y_train), (x_test, y_test) = getattr(tf.keras.datasets, self.keras_name).load_data()
    return self._pool(dict(x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test), f'{filename} from Keras')

  def _pool(self, arrays: dict[str, np.ndarray], source: str) -> base.Pool:
    """The pool of arrays as Keras has them; raises `reading.DataFileError` for other types, shapes or labels."""
    shape, fixed = self.image_shape, []
    shapes: list[tuple[int, ...]] = [shape, shape[:2]] if shape[2] == 1 else [shape]
    for split in ('train', 'test'):
      x, y = arrays[f'x_{split}'], arrays[f'y_{split}']
      if x.dtype != np.uint8 or x.shape[1:] not in shapes or not len(x):
        dims = ', '.join(map(str, shapes[-1]))
        raise reading.wrong(source, f'x_{split} to be uint8[n, {dims}]', reading.described_array(x))
      if y.dtype.kind not in 'iu' or y.shape not in ((len(x),), (len(x), 1)):
        expected = f'y_{split} to be {len(x)} integers, one for each image'
        raise reading.wrong(source, expected, reading.described_array(y))
      if y.min() < 0 or y.max() >= self.num_classes:
        raise reading.wrong(source, f'labels of y_{split} in [0, {self.num_classes})', f'{y.min()} to {y.max()}')
      fixed.append((x.reshape((len(x),) + shape), y.reshape(-1)))
    (train_x, train_y), (test_x, test_y) = fixed
    return base.Pool(train_x, train_y, test_x, test_y, white=self.white, num_classes=self.num_classes)


@dataclasses.dataclass(frozen=True)
class Mnist(_KerasImages):
  """60,000 training and 10,000 test digits from `mnist.npz` or Keras: float32[28, 28, 1], 1.0 = ink."""

  title = 'MNIST'
  keras_name = 'mnist'
  image_shape = (28, 28, 1)


@dataclasses.dataclass(frozen=True)
class Cifar10(_KerasImages):
  """50,000 training and 10,000 test photographs from `cifar10.npz` or Keras: float32[32, 32, 3], RGB."""

  title = 'CIFAR-10'
  keras_name = 'cifar10'
  image_shape = (32, 32, 3)


@dataclasses.dataclass(frozen=True)
class MnistWriters(base.Dataset):
  """MNIST with its real writers as clients: float32[28, 28, 1], 1.0 = ink; 539 training writers.

  Each MNIST digit is a digit of NIST Special Database 19, whose writers are known. `mnist_writers.npz` holds the writer
  of each row of `mnist.npz`. MNIST's test digits are by writers of their own, so test accuracy here is accuracy on
  people who are not clients.
  """

  title = 'MNIST by writer'
  has_own_clients = True
  num_classes = Mnist.num_classes
  image_shape = (28, 28, 1)

  def load(self, request: base.Request) -> federation.Federation:
    if request.data_dir is None:
      raise reading.DataFileError(
        f'mnist_writers needs {WRITERS_FILE} (the writer of each row of mnist.npz), which no loader downloads. '
        f'Put {WRITERS_FILE} and mnist.npz into a folder and give that folder as --data_dir.'
      )
    path = os.path.join(request.data_dir, WRITERS_FILE)
    writers = reading.read_npz(path, ['writer_train'], 'the writers of mnist.npz')['writer_train']
    pool = Mnist().read(request.data_dir)
    if writers.shape != pool.train_y.shape or writers.dtype.kind not in 'iu':
      expected = f'writer_train to be {len(pool.train_y)} integers, one for each row of mnist.npz'
      raise reading.wrong(path, expected, reading.described_array(writers))
    test_set = f'{len(pool.test_y):,} digits by other writers, who take part in no round.'
    return pool.owned(request, writers, 'writer', test_set=test_set)


@dataclasses.dataclass(frozen=True)
class Unipen(base.Dataset):
  """UNIPEN's isolated characters with their real writers as clients: float32[28, 28, 1], 1.0 = ink; 62 classes.

  The writers are some 300, with 20 to 4,884 characters each. It is not Federated EMNIST: other people wrote, at another
  time and with another medium.

  Attributes:
    test_writers: The share of the writers, in (0, 1), who are not clients and on whose characters models are tested.
  """

  title = 'UNIPEN'
  has_own_clients = True
  num_classes = unipen.NUM_CLASSES
  image_shape = (28, 28, 1)

  test_writers: float = checks.number_field('unipen test_writers', 0.2, above=0, below=1)

  def load(self, request: base.Request) -> federation.Federation:
    x, y, writer = unipen.read_unipen(request.data_dir)
    x = x[..., None]
    # No test examples of its own: those of the writers who only test take their place.
    pool = base.Pool(x, y, x[:0], y[:0], white=255.0, num_classes=self.num_classes)
    return pool.owned(request, writer, 'writer', test_share=self.test_writers)
