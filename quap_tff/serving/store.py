"""The file that a run's state is kept in: arrays by name, one version after the other."""

from __future__ import annotations

from collections.abc import Mapping
import contextlib
import io
from typing import Optional

import numpy as np

from quap_tff.common import durable
from quap_tff.common import files

# How many rounds were played, int64[].
DONE = 'done'


class Store:
  """The file of a state, open and locked until `close`.

  Attributes:
    path: The file.
  """

  def __init__(self, path: str, anew: bool = False):
    """Opens a state; the file is made by the first `write`. Arguments and errors are those of `durable.StateFile`."""
    self.path = path
    self._file = durable.StateFile(path, anew=anew)

  def read(self) -> Optional[dict[str, np.ndarray]]:
    """The arrays of the latest state; None before the first one is written."""
    return arrays_of(self._file.content) if self._file.content is not None else None

  def write(self, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes the next state. Only when this returns may anything be released that depends on it."""
    self._file.write(files.npz(arrays))

  @property
  def is_open(self) -> bool:
    """Whether this object may write the next state."""
    return self._file.is_open

  def check_open(self) -> None:
    """Raises `durable.StateError` if it may not."""
    self._file.check_open()

  def close(self) -> None:
    """Lets others open the state."""
    self._file.close()


def arrays_of(content: bytes) -> dict[str, np.ndarray]:
  """The arrays of a state's file."""
  with np.load(io.BytesIO(content), allow_pickle=False) as kept:
    return dict(kept)


def rounds_in(path: str) -> Optional[int]:
  """How many rounds the state at a path has; None without a state. Raises `ValueError` if it is damaged."""
  with contextlib.suppress(FileNotFoundError):
    return int(arrays_of(durable.content_of(path))[DONE])
  return None
