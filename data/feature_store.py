"""Features kept on disk, so that they are computed once: a file for each set of examples and feature map.

A file is an `.npy` float32[n, d], rows in the order of the examples' digests, and the SHA-256 of all before it. The
order makes it the same file however the examples are shared out to clients. What is learned from drawings is kept
beside these files, in `.npz` files with the same seal.
"""

from collections.abc import Sequence
from concurrent import futures
import contextlib
import fcntl
import hashlib
import io
import os
import tempfile
from typing import Any, Callable, Optional
import zipfile

import numpy as np

# Fixed, and padded to: what batch an example is in must not change its features, not even by rounding.
_BATCH = 50
_SEAL_BYTES = hashlib.sha256().digest_size
_READ_BYTES = 1 << 24
_UNFINISHED = 'unfinished_'


def default_folder() -> str:
  """`quap_tff/features` in the user's cache: $XDG_CACHE_HOME, or ~/.cache."""
  cache = os.environ.get('XDG_CACHE_HOME') or os.path.join(os.path.expanduser('~'), '.cache')
  return os.path.join(cache, 'quap_tff', 'features')


def compute(
  features: Any,
  parts: Sequence[np.ndarray],
  folder: Optional[str] = None,
  progress: Callable[[int, int], None] = lambda done, total: None,
) -> Sequence[np.ndarray]:
  """The features of every part's examples, from the file or computed on all cores and kept.

  Takes 4·d bytes of memory and of disk for an example: 1.1 GB for MNIST's 70,000 and scattering's 3,969.

  Args:
    features: The map, a `data.features.Features`.
    parts: Arrays float32[n_i, *input_shape], the examples of each client.
    folder: Where files are kept; `None`: `default_folder()`. A folder that cannot be written costs the time again.
    progress: Called with (done, total) as distinct examples are computed; not at all if the file is there.

  Returns:
    float32[n_i, d] for each part.
  """
  shape = parts[0].shape[1:]
  digests = np.concatenate([_digests(part) for part in parts])
  distinct, first, inverse = np.unique(digests, return_index=True, return_inverse=True)
  key = hashlib.sha256(f'{features.fingerprint()} {shape}'.encode() + distinct.tobytes()).hexdigest()
  path = os.path.join(folder or default_folder(), f'{key}.npy')
  table = _read(path, len(distinct))
  if table is None:
    table = _all_rows(features.extractor(shape), parts, first, progress)
    # Without room or rights there is only no file.
    with contextlib.suppress(OSError):
      _write(path, lambda f: np.lib.format.write_array(f, table, allow_pickle=False))
  rows = np.split(inverse, np.cumsum([len(part) for part in parts])[:-1])
  return [table[r] for r in rows]


def uncached(features: Any, x: np.ndarray) -> np.ndarray:
  """The features of examples `x`, the same as from `compute`; no file is read or written."""
  return _all_rows(features.extractor(x.shape[1:]), [x], np.arange(len(x)), lambda done, total: None)


def kept(
  fingerprint: str, make: Callable[[], dict[str, np.ndarray]], folder: Optional[str] = None
) -> dict[str, np.ndarray]:
  """Arrays that `make` makes, from the file or made and kept.

  Args:
    fingerprint: All that they follow from.
    make: Makes them.
    folder: Where files are kept; `None`: `default_folder()`. A folder that cannot be written costs the time again.
  """
  key = hashlib.sha256(f'kept {fingerprint}'.encode()).hexdigest()
  path = os.path.join(folder or default_folder(), f'{key}.npz')
  with contextlib.suppress(OSError, ValueError, EOFError, zipfile.BadZipFile):
    with open(path, 'rb') as f:
      content = f.read()
    content, seal = content[:-_SEAL_BYTES], content[-_SEAL_BYTES:]
    if hashlib.sha256(content).digest() == seal:
      with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}
  arrays = make()
  packed = io.BytesIO()
  np.savez(packed, **arrays)
  with contextlib.suppress(OSError):
    _write(path, lambda f: f.write(packed.getbuffer()))
  return arrays


def _digests(x: np.ndarray) -> np.ndarray:
  return np.array([hashlib.blake2b(example, digest_size=16).digest() for example in np.ascontiguousarray(x)], 'S16')


def _all_rows(extract, parts, chosen, progress):
  """The features of the examples `chosen`, indices into all parts together, in this order."""
  offsets = np.cumsum([0] + [len(part) for part in parts])
  owners = np.searchsorted(offsets, chosen, side='right') - 1

  def batch(start):
    rows = [parts[o][c - offsets[o]] for o, c in zip(owners[start : start + _BATCH], chosen[start : start + _BATCH])]
    padded = np.zeros((_BATCH,) + rows[0].shape, np.float32)
    padded[: len(rows)] = rows
    return extract(padded)[: len(rows)]

  begin = batch(0)
  table = np.empty((len(chosen), begin.shape[1]), np.float32)
  table[:_BATCH] = begin

  def fill(start):
    table[start : start + _BATCH] = batch(start)

  # NumPy, SciPy's transforms and TensorFlow let go of the interpreter while they compute.
  with futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
    try:
      pending = [pool.submit(fill, start) for start in range(_BATCH, len(chosen), _BATCH)]
      progress(len(begin), len(chosen))
      for done, future in enumerate(pending, 2):
        future.result()
        progress(min(done * _BATCH, len(chosen)), len(chosen))
    except BaseException:
      pool.shutdown(cancel_futures=True)
      raise
  return table


def _read(path: str, num_rows: int) -> Optional[np.ndarray]:
  """The table, mapped from the file; `None` if there is none, or it is damaged."""
  try:
    with open(path, 'rb') as f:
      end = os.fstat(f.fileno()).st_size - _SEAL_BYTES
      digest = hashlib.sha256()
      while f.tell() < end:
        digest.update(f.read(min(_READ_BYTES, end - f.tell())))
      if f.read() != digest.digest():
        return None
    table = np.load(path, mmap_mode='r', allow_pickle=False)
  except (OSError, ValueError):
    return None
  return table if table.dtype == np.float32 and table.ndim == 2 and len(table) == num_rows else None


class _Sealing:
  """A file to write to, which takes the digest of what goes through."""

  def __init__(self, f):
    self._file, self._digest = f, hashlib.sha256()

  def write(self, content):
    self._digest.update(content)
    return self._file.write(content)

  def seal(self):
    self._file.write(self._digest.digest())


def _remove_unfinished(folder: str):
  """Removes what processes that were killed have left. A file that another process is writing stays."""
  for name in os.listdir(folder):
    if name.startswith(_UNFINISHED):
      with contextlib.suppress(OSError), open(os.path.join(folder, name), 'rb') as f:
        fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(f.name)


def _write(path: str, write: Callable[[Any], Any]):
  """What `write` writes to the file that it is given. The file stands whole or not at all."""
  folder = os.path.dirname(path)
  os.makedirs(folder, exist_ok=True)
  _remove_unfinished(folder)
  with tempfile.NamedTemporaryFile(dir=folder, prefix=_UNFINISHED, delete=False) as f:
    try:
      # Held until it is closed or the process ends: a file that nobody holds was left by a process that was killed.
      fcntl.flock(f, fcntl.LOCK_EX)
      sealing = _Sealing(f)
      write(sealing)
      sealing.seal()
      f.flush()
      os.replace(f.name, path)
    except BaseException:
      os.unlink(f.name)
      raise
