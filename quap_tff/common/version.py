"""The version of the library, and the digest of its source."""

from collections.abc import Sequence
import functools
import hashlib
import pathlib
from typing import Optional

VERSION = '0.5.0'


@functools.cache
def source_digest(folders: Sequence[str] = ('quap_tff',), root: Optional[str] = None) -> str:
  """SHA-256 over the path and the content of every Python file in these folders, in the order of the paths.

  Args:
    folders: A tuple of names of folders in `root`.
    root: The folder that holds them; by default the one in which quap_tff lies.
  """
  base = pathlib.Path(root) if root is not None else pathlib.Path(__file__).resolve().parents[2]
  sha256 = hashlib.sha256()
  for path in sorted(path.relative_to(base).as_posix() for name in folders for path in (base / name).rglob('*.py')):
    content = hashlib.sha256((base / path).read_bytes()).hexdigest()
    sha256.update(f'{content}  {path}\n'.encode())
  return sha256.hexdigest()
