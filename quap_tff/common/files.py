"""Files and folders that are written under another name first, and then renamed. A reader never finds half of one."""

from collections.abc import Iterator, Mapping
import contextlib
import hashlib
import io
import json
import os
import shutil
from typing import Any, Union

import numpy as np

UNFINISHED = '.part'

_DIGEST_BYTES = hashlib.sha256().digest_size


@contextlib.contextmanager
def replacing(path: str, keep_suffix: bool = False) -> Iterator[str]:
  """A path to write under, in the same folder, which takes the place of `path` when the block has ended well.

  If the block raises, what it has written is removed, and an earlier file stays as it was. A process that is killed may
  leave the other name behind, and the next writer replaces it. One process at a time may write a file.

  Args:
    path: The file's final name.
    keep_suffix: Whether the other name ends as `path` does, for writers that go by it: `plot.part.png` in place of
      `plot.png.part`.
  """
  stem, suffix = os.path.splitext(path) if keep_suffix else (path, '')
  unfinished = f'{stem}{UNFINISHED}{suffix}'
  try:
    yield unfinished
    os.replace(unfinished, path)
  except BaseException:
    with contextlib.suppress(OSError):
      os.remove(unfinished)
    raise


@contextlib.contextmanager
def private() -> Iterator[None]:
  """Files made in the block can be read only by their owner, from the start."""
  before = os.umask(0o077)
  try:
    yield
  finally:
    os.umask(before)


@contextlib.contextmanager
def new_folder(path: str) -> Iterator[str]:
  """An empty folder to write to, next to `path`, which gets that name when the block has ended well.

  If the block raises, the folder is removed. What a killed process left is replaced. `path` must be new or empty.
  """
  unfinished = path.rstrip(os.sep) + UNFINISHED
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
  with replacing(path) as unfinished, open(unfinished, 'wb') as f:
    f.write(content.encode() if isinstance(content, str) else content)


def write_sealed(path: str, content: bytes) -> None:
  """Writes a file whole, with the SHA-256 of its content at the end."""
  write(path, content + hashlib.sha256(content).digest())


def read_sealed(path: str) -> bytes:
  """The content of a file that `write_sealed` wrote. Raises `OSError`, or `ValueError` if any bit of it is another."""
  with open(path, 'rb') as f:
    kept = f.read()
  content, digest = kept[:-_DIGEST_BYTES], kept[-_DIGEST_BYTES:]
  if hashlib.sha256(content).digest() != digest:
    raise ValueError('its digest is not that of its content')
  return content


def npz(arrays: Mapping[str, np.ndarray]) -> bytes:
  """The content of an .npz file. On a full disk, NumPy's own writer leaves an archive that complains when it goes."""
  content = io.BytesIO()
  np.savez(content, **arrays)
  return content.getvalue()


def read_json(path: str) -> Any:
  """The value of a JSON file. Raises `OSError`, or `ValueError` or `RecursionError` if it is damaged."""
  with open(path, encoding='utf-8') as f:
    return json.load(f)


def write_json(path: str, value: Any) -> None:
  """Writes a value as a JSON file, see `json_text`."""
  write(path, json_text(value))


def json_text(value: Any) -> str:
  """A value as JSON, indented; NaN and infinity raise `ValueError`."""
  return json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + '\n'
