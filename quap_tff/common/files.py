"""Files and folders that are written under another name first, and then renamed. A reader never finds half of one."""

from collections.abc import Iterator, Mapping
import contextlib
import errno
import hashlib
import io
import json
import os
import shutil
import struct
from typing import BinaryIO, Union
import zipfile

import numpy as np
import numpy.typing as npt

from quap_tff.common import json_types

UNFINISHED = '.part'

_DIGEST_BYTES = hashlib.sha256().digest_size


@contextlib.contextmanager
def replacing(path: str, keep_suffix: bool = False) -> Iterator[str]:
  """A path to write under, in the same folder, which takes the place of `path` when the block has ended well.

  If the block raises, what it has written is removed, and an earlier file stays as it was. A process that is killed may
  leave the other name behind, and the next writer replaces it. One process at a time may write a file. A symbolic link
  stays, and the file that it names is written.

  Args:
    path: The file's final name.
    keep_suffix: Whether the other name ends as `path` does, for writers that go by it: `plot.part.png` in place of
      `plot.png.part`.

  Raises:
    OSError: If `path` is a device, a pipe or a socket, which a file would replace.
  """
  path = os.path.realpath(path)
  if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
    raise FileExistsError(errno.EEXIST, 'it is a device, a pipe or a socket; give the path of a file', path)
  stem, suffix = os.path.splitext(path) if keep_suffix else (path, '')
  unfinished = f'{stem}{UNFINISHED}{suffix}'
  try:
    yield unfinished
    os.replace(unfinished, path)
  except BaseException:
    with contextlib.suppress(OSError):
      os.remove(unfinished)
    raise


def new_private(path: str) -> BinaryIO:
  """A new file, open for writing, that only its owner can read from the start. An earlier one is removed."""
  with contextlib.suppress(FileNotFoundError):
    os.remove(path)
  return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), 'wb')


@contextlib.contextmanager
def new_folder(path: str) -> Iterator[str]:
  """An empty folder to write to, next to `path`, which gets that name when the block has ended well.

  If the block raises, the folder is removed. What a killed process left is replaced. `path` must be new or empty. A
  symbolic link stays, and the folder that it names is written.
  """
  path = os.path.realpath(path)
  unfinished = path + UNFINISHED
  shutil.rmtree(unfinished, ignore_errors=True)
  os.makedirs(unfinished)
  try:
    yield unfinished
    os.rename(unfinished, path)
  except BaseException:
    shutil.rmtree(unfinished, ignore_errors=True)
    raise


def write(path: str, content: Union[str, bytes]) -> None:
  """Writes a file whole; text is UTF-8."""
  encoded = content.encode() if isinstance(content, str) else content
  with replacing(path) as unfinished, open(unfinished, 'wb') as f:
    f.write(encoded)


def write_sealed(path: str, content: bytes) -> None:
  """Writes a file whole, with the SHA-256 of its content at the end. It may hold keys: only its owner can read it."""
  with replacing(path) as unfinished, new_private(unfinished) as f:
    f.write(content + hashlib.sha256(content).digest())


def read_sealed(path: str) -> bytes:
  """The content of a file that `write_sealed` wrote. Raises `OSError`, or `ValueError` if any bit of it is another."""
  with open(path, 'rb') as f:
    kept = f.read()
  content, digest = kept[:-_DIGEST_BYTES], kept[-_DIGEST_BYTES:]
  if hashlib.sha256(content).digest() != digest:
    raise ValueError('its digest is not that of its content')
  return content


def npz(arrays: Mapping[str, npt.ArrayLike]) -> bytes:
  """The content of an .npz file: one for the same arrays, with any version of Python and NumPy.

  So a file that holds anything else than arrays differs from the one that is written of its arrays.

  Raises:
    ValueError: For an array of objects.
  """
  content = io.BytesIO()
  with zipfile.ZipFile(content, 'w') as archive:
    for name, array in arrays.items():
      member = zipfile.ZipInfo(f'{name}.npy')  # Its time is 1980, and nothing is compressed.
      member.create_system = 3
      archive.writestr(member, _npy(name, np.asarray(array)))
  return content.getvalue()


def _npy(name: str, array: np.ndarray) -> bytes:
  if array.dtype.hasobject:
    raise ValueError(f'{name} must be an array of numbers or texts, found one of objects.')
  if array.dtype == bool:
    array = array.view(np.uint8) != 0  # A byte of a bool that is neither 0 nor 1 counts as true.
  dtype = np.lib.format.dtype_to_descr(array.dtype)
  header = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {array.shape}, }}"
  # NumPy asks for a multiple of 64 bytes: the first 10, the header, and the end of its line.
  header += ' ' * (-(len(header) + 11) % 64) + '\n'
  return b'\x93NUMPY\x01\x00' + struct.pack('<H', len(header)) + header.encode('latin1') + array.tobytes()


def read_json(path: str) -> json_types.Json:
  """The value of a JSON file. Raises `OSError`, or `ValueError` or `RecursionError` if it is damaged."""
  with open(path, encoding='utf-8') as f:
    return json.load(f)


def write_json(path: str, value: object) -> None:
  """Writes a value as a JSON file, see `json_text`."""
  write(path, json_text(value))


def json_text(value: object) -> str:
  """A value as JSON, indented; NaN and infinity raise `ValueError`."""
  return json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + '\n'
