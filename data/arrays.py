"""Image arrays on their way into a federation: `.npz` files checked as they are read, pixels scaled to [0, 1]."""

from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import os
import socket
import sys
from typing import Callable, Optional
import zipfile
import zlib

import numpy as np

from data import errors
from data import federation

# By default urllib waits forever: a network that drops packets would make the program hang instead of failing.
DOWNLOAD_TIMEOUT_SECONDS = 30.0


@dataclasses.dataclass(frozen=True, eq=False)
class Pool:
  """Examples that no client holds yet, as they are in their files, and the test set.

  Attributes:
    train_x: [n, height, width, channels], uint8 or float, from 0 to `white`.
    train_y: Integers [n].
    test_x, test_y: The same for the test set.
    white: The pixel value that becomes 1.0.
    num_classes: Labels are in [0, num_classes).
  """

  train_x: np.ndarray
  train_y: np.ndarray
  test_x: np.ndarray
  test_y: np.ndarray
  white: float
  num_classes: int

  def train(self, rows: np.ndarray) -> federation.Examples:
    """The training examples at `rows`. Only these are converted, so that the pool is never copied as float32."""
    return _examples(self.train_x[rows], self.train_y[rows], self.white)

  def test(self) -> federation.Examples:
    return _examples(self.test_x, self.test_y, self.white)


def _examples(x: np.ndarray, y: np.ndarray, white: float) -> federation.Examples:
  return federation.Examples(np.divide(x, np.float32(white), dtype=np.float32), y.astype(np.int32))


def read_npz(path: str, keys: Sequence[str], holds: str) -> dict[str, np.ndarray]:
  """Reads `keys` of an `.npz` file; nothing in it is unpickled.

  Args:
    path: The file.
    keys: The arrays to read.
    holds: What the file should be, in words, for error messages.

  Raises:
    errors.DataFileError: If the file is missing, no regular file, damaged, not an `.npz`, or without one of the keys.
  """
  expected = f'expected {holds}: an .npz with {", ".join(keys)}'
  errors.check_is_file(path, expected)
  try:
    # Check for a zip first: np.load would also accept a single .npy.
    if not zipfile.is_zipfile(path):
      raise errors.DataFileError(
        f'{path} is not an .npz, or is cut short: {expected}, found {os.path.getsize(path)} bytes without a zip '
        'directory.'
      )
    with np.load(path, allow_pickle=False) as arrays:
      missing = [k for k in keys if k not in arrays.files]
      if missing:
        raise errors.DataFileError(
          f'{path} is the wrong file: {expected}, found {", ".join(sorted(arrays.files)) or "no arrays"}.'
        )
      return {k: arrays[k] for k in keys}
  except errors.DataFileError:
    raise
  except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as e:
    raise errors.DataFileError(f'{path} is damaged: {expected}, found {type(e).__name__}: {e}') from e


def image_pool(arrays: dict[str, np.ndarray], source: str, shape: tuple[int, int, int], num_classes: int) -> Pool:
  """Checks Keras-style arrays `x_train`, `y_train`, `x_test`, `y_test` of 8-bit images and makes a pool of them.

  Args:
    arrays: Images uint8[n, height, width] or [n, height, width, channels], labels [n] or [n, 1].
    source: The file or loader, for error messages.
    shape: (height, width, channels).
    num_classes: Labels must be in [0, num_classes).

  Raises:
    errors.DataFileError: For other types, shapes, lengths or labels.
  """
  fixed = {}
  for split in ('train', 'test'):
    x, y = arrays[f'x_{split}'], arrays[f'y_{split}']
    shapes = [shape, shape[:2]] if shape[2] == 1 else [shape]
    if x.dtype != np.uint8 or x.shape[1:] not in shapes or not len(x):
      raise errors.DataFileError(
        f'{source}: expected x_{split} to be uint8{_dims(shape)}, found {x.dtype}{list(x.shape)}.'
      )
    if y.dtype.kind not in 'iu' or y.shape not in ((len(x),), (len(x), 1)):
      raise errors.DataFileError(
        f'{source}: expected y_{split} to be {len(x)} integers, one for each image, found {y.dtype}{list(y.shape)}.'
      )
    if y.min() < 0 or y.max() >= num_classes:
      raise errors.DataFileError(
        f'{source}: expected labels of y_{split} in [0, {num_classes}), found {y.min()} to {y.max()}.'
      )
    fixed[split] = x.reshape((len(x),) + shape), y.reshape(-1)
  return Pool(*fixed['train'], *fixed['test'], white=255.0, num_classes=num_classes)


def _dims(shape: tuple[int, ...]) -> str:
  return f'[n, {", ".join(map(str, shape[:2] if shape[2] == 1 else shape))}]'


KERAS_KEYS = ('x_train', 'y_train', 'x_test', 'y_test')


def read_images(
  filename: str,
  download: Callable[[], dict[str, np.ndarray]],
  data_dir: Optional[str],
  shape: tuple[int, int, int],
  num_classes: int,
) -> Pool:
  """An image dataset from `data_dir/filename`, or without a `data_dir` from Keras' download and cache.

  A `data_dir` without the file is an error and no reason to download: a user who names a folder means that folder.

  Args:
    filename: The `.npz` with `KERAS_KEYS`.
    download: Returns the same arrays through Keras.
    data_dir: A folder, or `None`.
    shape: (height, width, channels) of an image.
    num_classes: Labels are in [0, num_classes).
  """
  if data_dir is not None:
    path = os.path.join(data_dir, filename)
    return image_pool(read_npz(path, KERAS_KEYS, f'the arrays of {filename[:-4]}'), path, shape, num_classes)
  advice = f'Put {filename} (an .npz with {", ".join(KERAS_KEYS)}) into a folder and give that folder as --data_dir.'
  with downloading(f'{filename} was not given, and Keras could neither find it in its cache nor download it', advice):
    arrays = download()
  return image_pool(arrays, f'{filename} from Keras', shape, num_classes)


@contextlib.contextmanager
def downloading(failed: str, advice: str) -> Iterator[None]:
  """Limits every wait for the network, keeps progress off standard output, and on failure says what to do instead.

  Args:
    failed: What has failed if the body raises, in words.
    advice: Which file to put where.

  Raises:
    errors.DataFileError: If the body raises.
  """
  before = socket.getdefaulttimeout()
  socket.setdefaulttimeout(DOWNLOAD_TIMEOUT_SECONDS)
  try:
    # Standard output belongs to results.
    with contextlib.redirect_stdout(sys.stderr):
      yield
  except errors.DataFileError:
    raise
  except Exception as e:  # Keras raises bare Exception.
    raise errors.DataFileError(f'{failed} ({type(e).__name__}: {e}). {advice}') from e
  finally:
    socket.setdefaulttimeout(before)
