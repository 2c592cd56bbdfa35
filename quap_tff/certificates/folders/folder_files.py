"""Reading a folder that somebody else may have made: kinds and sizes first, then contents.

A pipe, a device, a link or a file that claims to unpack to more than the memory holds must not stop or mislead a person
who checks a folder. So nothing is opened before `entries` has looked at it.
"""

from collections.abc import Iterable, Iterator, Sequence
import contextlib
import hashlib
import json
import math
import os
import stat
from typing import Any, NamedTuple
import zipfile

import numpy as np

from quap_tff.common import files
from quap_tff.common import registry

_MEBIBYTE = 1 << 20
# Far above what runs write: a million clients make a ledger and a clients.csv of some 30 MiB each.
_MOST_TEXT, _MOST_UNPACKED = 512 * _MEBIBYTE, 2048 * _MEBIBYTE
# The first bytes of an archive's first member and of its last part, which is so long if there is no comment.
_MEMBER, _END, _BYTES_OF_END = b'PK\x03\x04', b'PK\x05\x06', 22
_KINDS = {
  stat.S_IFLNK: 'link',
  stat.S_IFIFO: 'pipe',
  stat.S_IFSOCK: 'socket',
  stat.S_IFBLK: 'device',
  stat.S_IFCHR: 'device',
}


class FolderError(ValueError):
  """A file is missing from a folder, or damaged, or not a file at all."""


class CannotTellError(ValueError):
  """Nothing can be said of a folder. The reason lies outside it, or it has nothing to check."""


class Entries(NamedTuple):
  """The contents of a folder and its subfolders.

  Attributes:
    files: Relative paths of the regular files, sorted.
    empty: Relative paths of subfolders that hold nothing, sorted.
    special: Relative path and kind of everything that is neither a regular file nor a folder, sorted.
  """

  files: list[str]
  empty: list[str]
  special: dict[str, str]


def entries(path: str) -> Entries:
  """Lists a folder without following a link and without opening a file.

  Raises:
    CannotTellError: If there is no such folder, or it may not be read.
  """
  if not os.path.isdir(path):
    if os.path.lexists(path):
      raise CannotTellError(f'{path} is not a folder.')
    raise CannotTellError(f'{path} does not exist.')
  files: list[str] = []
  empty: list[str] = []
  special: dict[str, str] = {}
  waiting = ['']
  while waiting:
    folder = waiting.pop()
    try:
      names = os.listdir(os.path.join(path, folder))
      if not names and folder:
        empty.append(folder)
      for place in (os.path.join(folder, name) for name in names):
        # Another program's temporary file may be gone by now, and so may its folder.
        with contextlib.suppress(FileNotFoundError):
          mode = os.lstat(os.path.join(path, place)).st_mode
          if stat.S_ISREG(mode):
            files.append(place)
          elif not stat.S_ISDIR(mode):
            special[place] = _KINDS.get(stat.S_IFMT(mode), 'special file')
          else:
            waiting.append(place)
    except OSError as error:
      if not folder or not isinstance(error, FileNotFoundError):
        raise CannotTellError(f'{path} cannot be read: {error}.') from None
  return Entries(sorted(files), sorted(empty), dict(sorted(special.items())))


def check_regular(path: str, name: str, most: int = _MOST_TEXT) -> str:
  """The path of a file in the folder, if it is a regular one of at most `most` bytes.

  Raises:
    FolderError: If it is not.
    CannotTellError: If nobody can tell.
  """
  whole = os.path.join(path, name)
  try:
    status = os.lstat(whole)
  except (FileNotFoundError, NotADirectoryError):
    raise FolderError(f'{name} is missing in {path}.') from None
  except OSError as error:
    raise CannotTellError(f'{name} cannot be read: {error}.') from None
  if not stat.S_ISREG(status.st_mode):
    raise FolderError(f'{name} is not a regular file.')
  if status.st_size > most:
    raise FolderError(f'{name} has {status.st_size:,} bytes. At most {most:,} are read.')
  return whole


@contextlib.contextmanager
def damage(name: str, words: str = 'is damaged') -> Iterator[None]:
  """Says of a file that it is damaged, whatever its content makes a reader raise.

  Raises:
    FolderError: In place of nearly any error: the readers of archives and arrays raise a dozen kinds.
    CannotTellError: If this person may not read the file, or it names a choice of somebody's own program.
  """
  try:
    yield
  except (FolderError, CannotTellError, ImportError):
    raise
  except registry.UnknownChoiceError as error:
    raise CannotTellError(
      f"{name} names a choice that is not registered here. {error} If the issuer's program registers it, get the "
      'module that does, read it, and give --import=MODULE, which runs its code.'
    ) from None
  except PermissionError as error:
    raise CannotTellError(f'{name} may not be read here: {error.strerror}.') from None
  except Exception as error:
    raise FolderError(f'{name} {words}: {str(error) or type(error).__name__}') from None


def read_json(path: str, name: str) -> Any:
  """A JSON file in the folder.

  Raises:
    FolderError: If it is missing or damaged, or if it holds a number that is not finite, or a key twice.
  """
  whole = check_regular(path, name)
  with damage(name), open(whole, encoding='utf-8') as f:
    return json.load(
      f, parse_int=_integer, parse_float=_finite, parse_constant=_finite, object_pairs_hook=_without_repetition
    )


def _integer(text: str) -> int:
  if len(text) > 20:
    raise ValueError(f'{text[:20]}… has too many digits')
  return int(text)


def _finite(text: str) -> float:
  if not math.isfinite(float(text)):
    raise ValueError(f'{text} is not a finite number')
  return float(text)


def _without_repetition(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
  value = dict(pairs)
  if len(value) != len(pairs):
    raise ValueError('a key appears twice')
  return value


def read_text(path: str, name: str) -> str:
  """A text file in the folder, with its line ends as they are. Raises `FolderError` if it is missing or no UTF-8."""
  whole = check_regular(path, name)
  with damage(name, 'cannot be read'), open(whole, encoding='utf-8', newline='') as f:
    return f.read()


def check_archive(path: str, name: str) -> str:
  """The path of an .npz file in the folder, if it does not unpack to more than is read.

  Raises:
    FolderError: If it is missing or damaged, or too large.
  """
  whole = check_regular(path, name, _MOST_UNPACKED)
  with damage(name, 'cannot be read'), open(whole, 'rb') as f, zipfile.ZipFile(f) as archive:
    f.seek(0)
    begin = f.read(len(_MEMBER))
    f.seek(-_BYTES_OF_END, os.SEEK_END)
    # Readers take no notice of other bytes before the first member, or after the last.
    if (begin, f.read(len(_END))) != (_MEMBER, _END):
      raise ValueError('it holds more than an archive')
    num_bytes = sum(item.file_size for item in archive.infolist())
    if num_bytes > _MOST_UNPACKED:
      raise ValueError(f'it unpacks to {num_bytes:,} bytes, and at most {_MOST_UNPACKED:,} are read')
  return whole


def read_arrays(path: str, name: str, expected: Sequence[Iterable[str]]) -> dict[str, np.ndarray]:
  """The arrays of an .npz file in the folder, which is written again and compared: it holds them and nothing else.

  Args:
    path: The folder.
    name: The file.
    expected: The lists of arrays that it may hold, each in the order of the file.

  Raises:
    FolderError: If it is missing or damaged, holds other arrays, or is not the file that `files.npz` writes.
  """
  whole = check_archive(path, name)
  with damage(name):
    # The loader lists other members of the archive, and those with the same name twice, in ways of its own.
    with zipfile.ZipFile(whole) as archive:
      members = archive.namelist()
    lists = [list(names) for names in expected]
    names = [member.removesuffix('.npy') for member in members]
    if names not in lists or not all(member.endswith('.npy') for member in members):
      raise ValueError(f'it must hold the arrays {" or ".join(map(str, lists))}, found {members}')
    with np.load(whole, allow_pickle=False) as kept:
      arrays = {name: kept[name] for name in names}
    with open(whole, 'rb') as f:
      if f.read() != files.npz(arrays):
        raise ValueError('it holds more than its arrays, or is written in another way')
    return arrays


def digest(path: str, name: str) -> str:
  """SHA-256 of a file in the folder, in hex. Raises `FolderError` if it cannot be read."""
  sha256 = hashlib.sha256()
  whole = check_regular(path, name, _MOST_UNPACKED)
  with damage(name, 'cannot be read'), open(whole, 'rb') as f:
    for block in iter(lambda: f.read(_MEBIBYTE), b''):
      sha256.update(block)
  return sha256.hexdigest()
