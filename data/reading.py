"""Files of data: errors that say what to do, `.npz` archives that are checked as they are read, bounded downloads."""

from collections.abc import Iterator, Sequence
import contextlib
import os
import socket
import stat
import sys
from typing import Optional
import zipfile
import zlib

import numpy as np

# By default urllib waits forever: a network that drops packets would make the program hang instead of failing.
DOWNLOAD_TIMEOUT_SECONDS = 30.0

_KINDS = (
  (stat.S_ISDIR, 'a folder'),
  (stat.S_ISFIFO, 'a pipe'),
  (stat.S_ISSOCK, 'a socket'),
  (stat.S_ISCHR, 'a device'),
  (stat.S_ISBLK, 'a device'),
)


class DataFileError(ValueError):
  """A data file is missing, damaged or the wrong one. Says which file, what was expected and found, and what to do."""


def wrong(source: str, expected: str, found: str) -> DataFileError:
  """The error of a source whose content is another than the expected one."""
  return DataFileError(f'{source}: expected {expected}, found {found}.')


def described_array(array: np.ndarray) -> str:
  """The type and shape of an array, for an error message."""
  return f'{array.dtype}{list(array.shape)}'


def check_is_file(path: str, expected: str) -> None:
  """Raises `DataFileError` with `expected`, a clause, unless the path is a file or a link to one. Opens nothing."""
  try:
    mode = os.stat(path).st_mode
  except FileNotFoundError:
    wrong_kind = 'is a link to a file that does not exist' if os.path.islink(path) else 'not found'
  except OSError as error:
    wrong_kind = f'cannot be used: {error.strerror}'
  else:
    if stat.S_ISREG(mode):
      return
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), 'a special file')
    wrong_kind = f'is {kind} and not a file'
  raise DataFileError(f'{path} {wrong_kind}; {expected}.')


def read_npz(path: str, keys: Sequence[str], holds: str, optional: Sequence[str] = ()) -> dict[str, np.ndarray]:
  """Reads arrays of an `.npz` file; nothing in it is unpickled.

  Args:
    path: The file.
    keys: The arrays that must be there.
    holds: The expected content, in words, for error messages.
    optional: Arrays that are read if they are there.

  Raises:
    DataFileError: If the file is missing, not a regular file, damaged, not an `.npz`, without one of the keys, or if an
      array holds Python objects.
  """
  expected = f'expected {holds}: an .npz with {", ".join(keys)}'
  check_is_file(path, expected)
  try:
    # Check for a zip first: np.load would also accept a single .npy.
    if not zipfile.is_zipfile(path):
      raise DataFileError(
        f'{path} is not an .npz, or is cut short: {expected}, found {os.path.getsize(path)} bytes without a zip '
        'directory.'
      )
    with np.load(path, allow_pickle=False) as arrays:
      if not set(keys) <= set(arrays.files):
        raise DataFileError(
          f'{path} is the wrong file: {expected}, found {", ".join(sorted(arrays.files)) or "no arrays"}.'
        )
      return {name: arrays[name] for name in (*keys, *optional) if name in arrays.files}
  except DataFileError:
    raise
  except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as e:
    if 'Object arrays' in str(e):
      raise DataFileError(
        f'{path} holds Python objects, which are never read: {expected}. Save arrays of numbers; names as text, by '
        'array.astype(str).'
      ) from e
    raise DataFileError(f'{path} is damaged: {expected}, found {type(e).__name__}: {e}') from e


@contextlib.contextmanager
def downloading(failed: str, advice: str) -> Iterator[None]:
  """Limits every wait for the network, keeps progress off standard output, and on failure says what to do instead.

  Args:
    failed: The step that has failed if the body raises, in words.
    advice: Which file to put where.

  Raises:
    DataFileError: If the body raises.
  """
  before: Optional[float] = socket.getdefaulttimeout()
  socket.setdefaulttimeout(DOWNLOAD_TIMEOUT_SECONDS)
  try:
    # Standard output belongs to results.
    with contextlib.redirect_stdout(sys.stderr):
      yield
  except DataFileError:
    raise
  except Exception as e:  # Keras raises bare Exception.
    raise DataFileError(f'{failed} ({type(e).__name__}: {e}). {advice}') from e
  finally:
    socket.setdefaulttimeout(before)
