"""Features kept on disk, so that they are computed once: a file for each set of examples and feature map.

A file is an `.npy` array and the SHA-256 of all before it. Features are float32[n, d], rows in the order of the
examples' digests. This order makes it the same file however the examples are shared out to clients. Arrays that are
learned from drawings are kept in the same folder, as the bytes of an `.npz`. (joblib's cache would unpickle its files,
and does not notice a damaged one.) The folder is `quap_tff/features` in the user's cache: $XDG_CACHE_HOME, or ~/.cache.
If it cannot be written, everything is computed again.
"""

from collections.abc import Iterator, Sequence
from concurrent import futures
import contextlib
import fcntl
import hashlib
import io
import os
import pathlib
import tempfile
from typing import Any, Callable, IO, Optional

import numpy as np

from quap_tff.common import files

# Fixed, and padded to: the batch that an example is in must not change its features, not even by rounding.
_BATCH = 50
_READ_BYTES = 1 << 24
_UNFINISHED = 'unfinished_'


def _folder() -> str:
  cache = os.environ.get('XDG_CACHE_HOME') or os.path.join(os.path.expanduser('~'), '.cache')
  return os.path.join(cache, 'quap_tff', 'features')


def compute(features: Any, parts: Sequence[np.ndarray], progress: Callable[[int, int], None]) -> Sequence[np.ndarray]:
  """The features of every part's examples, from the file or computed on all cores and kept.

  Takes 4·d bytes of memory and of disk for an example: 1.1 GB for MNIST's 70,000 and scattering's 3,969.

  Args:
    features: The map, a `maps.Features`.
    parts: Arrays float32[n_i, *input_shape], the examples of each client.
    progress: Called with (done, total) as distinct examples are computed; not at all if the file is there.

  Returns:
    float32[n_i, d] for each part.
  """
  shape = parts[0].shape[1:]
  digests = np.concatenate([_digests(part) for part in parts])
  distinct, first, inverse = np.unique(digests, return_index=True, return_inverse=True)
  table = _kept(
    f'{features.fingerprint()} {shape}',
    lambda: _all_rows(features.extractor(shape), parts, first, progress),
    distinct.tobytes(),
  )
  rows = np.split(inverse, np.cumsum([len(part) for part in parts])[:-1])
  return [table[r] for r in rows]


def uncached(features: Any, x: np.ndarray) -> np.ndarray:
  """The features of examples `x`, the same as from `compute`; no file is read or written."""
  return _all_rows(features.extractor(x.shape[1:]), [x], np.arange(len(x)), lambda done, total: None)


def kept(fingerprint: str, make: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
  """The arrays of `make`, which follow from `fingerprint` alone: from the file, or made and kept."""

  def packed() -> np.ndarray:
    return np.frombuffer(files.npz(make()), np.uint8)

  with np.load(io.BytesIO(_kept(f'kept {fingerprint}', packed).data), allow_pickle=False) as arrays:
    return {name: arrays[name] for name in arrays.files}


def digest_of_arrays(arrays: dict[str, np.ndarray]) -> str:
  """The SHA-256 of arrays, with their names and shapes."""
  hashed = hashlib.sha256()
  for name in sorted(arrays):
    content = io.BytesIO()
    np.lib.format.write_array(content, np.ascontiguousarray(arrays[name]), allow_pickle=False)
    hashed.update(name.encode() + content.getvalue())
  return hashed.hexdigest()


def _digests(x: np.ndarray) -> np.ndarray:
  return np.array([hashlib.blake2b(example, digest_size=16).digest() for example in np.ascontiguousarray(x)], 'S16')


def _all_rows(
  extract: Callable[[np.ndarray], np.ndarray],
  parts: Sequence[np.ndarray],
  chosen: np.ndarray,
  progress: Callable[[int, int], None],
) -> np.ndarray:
  """The features of the examples `chosen`, indices into all parts together, in this order."""
  offsets = np.cumsum([0] + [len(part) for part in parts])
  owners = np.searchsorted(offsets, chosen, side='right') - 1

  def batch(start: int) -> np.ndarray:
    rows = [parts[o][c - offsets[o]] for o, c in zip(owners[start : start + _BATCH], chosen[start : start + _BATCH])]
    padded = np.zeros((_BATCH,) + rows[0].shape, np.float32)
    padded[: len(rows)] = rows
    return extract(padded)[: len(rows)]

  begin = batch(0)
  table = np.empty((len(chosen), begin.shape[1]), np.float32)
  table[:_BATCH] = begin

  def fill(start: int) -> None:
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


def _kept(key: str, make: Callable[[], np.ndarray], examples: bytes = b'') -> np.ndarray:
  """The array from its file, mapped, or made and kept. If the file can't be written, the array is made all the same."""
  path = os.path.join(_folder(), f'{hashlib.sha256(key.encode() + examples).hexdigest()}.npy')
  found = _read_rows(path)
  if found is None:
    with _only_one(path):
      found = _read_rows(path)
      if found is None:
        found = make()
        with contextlib.suppress(OSError):
          _write(path, found)
  return found


@contextlib.contextmanager
def _only_one(path: str) -> Iterator[None]:
  """Waits while another process makes the file: runs that begin together do not compute the same features."""
  lock = f'{path}.lock'
  with contextlib.ExitStack() as held:
    with contextlib.suppress(OSError):  # Then each process computes for itself.
      os.makedirs(os.path.dirname(path), exist_ok=True)
      fcntl.flock(held.enter_context(open(lock, 'ab')), fcntl.LOCK_EX)
      # A process that waits for this lock then finds the file.
      held.callback(pathlib.Path(lock).unlink, missing_ok=True)
    yield


def _digest(f: IO[bytes], size: int) -> bytes:
  """SHA-256 of the first `size` bytes of a file, which is left there."""
  found = hashlib.sha256()
  f.seek(0)
  for block in iter(lambda: f.read(min(_READ_BYTES, size - f.tell())), b''):
    found.update(block)
  return found.digest()


def _read_rows(path: str) -> Optional[np.ndarray]:
  """The array, mapped from the file; `None` if there is none, or it is damaged."""
  with contextlib.suppress(OSError, ValueError), open(path, 'rb') as f:
    if _digest(f, os.fstat(f.fileno()).st_size - hashlib.sha256().digest_size) == f.read():
      return np.load(path, mmap_mode='r', allow_pickle=False)
  return None


def _write(path: str, array: np.ndarray) -> None:
  """Writes the array and its seal. The file is there whole or not at all, whichever processes write it."""
  folder = os.path.dirname(path)
  os.makedirs(folder, exist_ok=True)
  for name in os.listdir(folder):
    # A process that was killed may have left a file. A file that another process is writing stays.
    if name.startswith(_UNFINISHED):
      with contextlib.suppress(OSError), open(os.path.join(folder, name), 'rb') as f:
        fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(f.name)
  with tempfile.NamedTemporaryFile(dir=folder, prefix=_UNFINISHED, delete=False) as f:
    try:
      fcntl.flock(f, fcntl.LOCK_EX)  # Held until it is closed or the process ends.
      np.lib.format.write_array(f, array, allow_pickle=False)
      f.write(_digest(f, f.tell()))
      f.flush()
      os.replace(f.name, path)
    except BaseException:
      os.unlink(f.name)
      raise
