"""Reading a folder that somebody else may have made: kinds and sizes first, then contents.

A pipe, a device, a link or a file that claims to unpack to more than the memory holds must not stop or mislead a person
who checks a folder. So nothing is opened before `entries` has looked at it.
"""

from collections.abc import Iterator
import contextlib
import csv
import hashlib
import json
import math
import os
import stat
from typing import Any, NamedTuple
import zipfile

_MEBIBYTE = 1 << 20
# Far above what runs write: a million clients make a ledger and a clients.csv of some 30 MiB each.
_MOST_TEXT, _MOST_UNPACKED = 512 * _MEBIBYTE, 2048 * _MEBIBYTE
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
    special: Relative path and kind of everything that is neither a regular file nor a folder.
  """

  files: list[str]
  empty: list[str]
  special: dict[str, str]


def entries(path: str, without: str = '') -> Entries:
  """Lists a folder without following a link and without opening a file.

  Args:
    path: The folder.
    without: Name of a subfolder that is not looked into.

  Raises:
    CannotTellError: If there is no such folder, or it may not be read.
  """
  if not os.path.isdir(path):
    raise CannotTellError(f'{path} is not a folder.' if os.path.lexists(path) else f'{path} does not exist.')
  found = Entries([], [], {})

  def walk(folder, relative):
    names = sorted(os.listdir(folder))
    if not names and relative:
      found.empty.append(relative)
    for name in names:
      whole, place = os.path.join(folder, name), os.path.join(relative, name)
      try:
        mode = os.lstat(whole).st_mode
      except FileNotFoundError:  # Another program's temporary file, which is gone by now.
        continue
      if stat.S_ISREG(mode):
        found.files.append(place)
      elif not stat.S_ISDIR(mode):
        found.special[place] = _KINDS.get(stat.S_IFMT(mode), 'special file')
      elif place != without:
        walk(whole, place)

  try:
    walk(path, '')
  except OSError as error:
    raise CannotTellError(f'{path} cannot be read: {error}.') from None
  return found._replace(files=sorted(found.files))


def check_regular(path: str, name: str, most: int = _MOST_TEXT) -> str:
  """The path of a file in the folder, if it is a regular one of at most `most` bytes.

  Raises:
    FolderError: If it is not.
  """
  whole = os.path.join(path, name)
  try:
    found = os.lstat(whole)
  except FileNotFoundError:
    raise FolderError(f'{name} is missing in {path}.') from None
  except OSError as error:
    raise FolderError(f'{name} cannot be read: {error}') from None
  if not stat.S_ISREG(found.st_mode):
    raise FolderError(f'{name} is not a regular file.')
  if found.st_size > most:
    raise FolderError(f'{name} has {found.st_size:,} bytes. At most {most:,} are read.')
  return whole


@contextlib.contextmanager
def _damage(name: str, errors: tuple[type[Exception], ...], words: str) -> Iterator[None]:
  """Says of the file that it is damaged, where its contents raise one of these errors."""
  caught: tuple[type[Exception], ...] = (OSError, ValueError, *errors)
  try:
    yield
  except FolderError:
    raise
  except caught as error:
    raise FolderError(f'{name} {words}: {error}') from None


def read_json(path: str, name: str) -> Any:
  """A JSON file in the folder.

  Raises:
    FolderError: If it is missing or damaged, or if it holds a number that is not finite, or a key twice.
  """
  whole = check_regular(path, name)
  with _damage(name, (RecursionError,), 'is damaged'), open(whole, encoding='utf-8') as f:
    return json.load(
      f, parse_int=_integer, parse_float=_finite, parse_constant=_finite, object_pairs_hook=_without_repetition
    )


def _integer(text):
  if len(text) > 20:
    raise ValueError(f'{text[:20]}… has too many digits')
  return int(text)


def _finite(text):
  if not math.isfinite(float(text)):
    raise ValueError(f'{text} is not a finite number')
  return float(text)


def _without_repetition(pairs):
  value = dict(pairs)
  if len(value) != len(pairs):
    raise ValueError('a key appears twice')
  return value


def read_text(path: str, name: str) -> str:
  """A text file in the folder, with its line ends as they are. Raises `FolderError` if it is missing or no UTF-8."""
  whole = check_regular(path, name)
  with _damage(name, (), 'cannot be read'), open(whole, encoding='utf-8', newline='') as f:
    return f.read()


def read_rows(path: str, name: str) -> list[dict[str, str]]:
  """The rows of a CSV file in the folder. Raises `FolderError` if it is missing or damaged."""
  whole = check_regular(path, name)
  with _damage(name, (csv.Error,), 'cannot be read'), open(whole, newline='', encoding='utf-8') as f:
    rows = list(csv.DictReader(f))
  if any(None in row or None in row.values() for row in rows):
    raise FolderError(f'{name} is damaged: its rows have different lengths.')
  return rows


def check_archive(path: str, name: str) -> str:
  """The path of a ZIP file in the folder (.npz, .keras), if it does not unpack to more than is read.

  Raises:
    FolderError: If it is missing or damaged, or too large.
  """
  whole = check_regular(path, name, _MOST_UNPACKED)
  with _damage(name, (zipfile.BadZipFile, NotImplementedError), 'cannot be read'), zipfile.ZipFile(whole) as archive:
    unpacked = sum(item.file_size for item in archive.infolist())
  if unpacked > _MOST_UNPACKED:
    raise FolderError(f'{name} unpacks to {unpacked:,} bytes. At most {_MOST_UNPACKED:,} are read.')
  return whole


def digest(path: str, name: str) -> str:
  """SHA-256 of a file in the folder, in hex. Raises `FolderError` if it cannot be read."""
  found = hashlib.sha256()
  whole = check_regular(path, name, _MOST_UNPACKED)
  with _damage(name, (), 'cannot be read'), open(whole, 'rb') as f:
    for block in iter(lambda: f.read(_MEBIBYTE), b''):
      found.update(block)
  return found.hexdigest()
