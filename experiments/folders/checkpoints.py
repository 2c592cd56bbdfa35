"""Checkpoints of a run: the file `round_N` holds the arrays after round N, and is written whole or not at all.

Certified runs write one in each round. TFF's `FileProgramStateManager` writes a SavedModel, which takes 0.2 s of CPU.
"""

from collections.abc import Mapping
import io
import os
import re

import numpy as np

from quap_tff.common import files

_KEPT = 2


def rounds(folder: str) -> list[int]:
  """The rounds of which `folder` holds a checkpoint, ascending; none if there is no such folder."""
  names = os.listdir(folder) if os.path.isdir(folder) else []
  found = (re.fullmatch(r'round_(\d+)', name) for name in names)
  return sorted(int(match[1]) for match in found if match)


def save(folder: str, round_num: int, arrays: Mapping[str, np.ndarray]) -> None:
  """Writes the checkpoint of a round, which `folder` does not have yet, and removes all but the latest two."""
  files.write_sealed(_path(folder, round_num), files.npz(arrays))
  for old in rounds(folder)[:-_KEPT]:
    remove(folder, old)


def load(folder: str, round_num: int) -> dict[str, np.ndarray]:
  """The arrays of a checkpoint by name.

  Raises:
    OSError, ValueError: If it cannot be read, or is damaged. The message holds nothing of the content.
  """
  with np.load(io.BytesIO(files.read_sealed(_path(folder, round_num))), allow_pickle=False) as kept:
    return dict(kept)


def remove(folder: str, round_num: int) -> None:
  """Removes the checkpoint of a round."""
  os.remove(_path(folder, round_num))


def _path(folder: str, round_num: int) -> str:
  return os.path.join(folder, f'round_{round_num}')
