"""Checkpoints of a run: the folder `round_N` holds the arrays after round N, and is written whole or not at all.

Certified runs write one in each round. TFF's `FileProgramStateManager` writes a SavedModel, which takes 0.2 s of CPU.
"""

from collections.abc import Sequence
import os
import re
import shutil

import numpy as np

from quap_tff.common import files

_ARRAYS = 'arrays.npz'
_KEPT = 2


def rounds(folder: str) -> list[int]:
  """The rounds of which `folder` holds a checkpoint, ascending."""
  found = (re.fullmatch(r'round_(\d+)', name) for name in os.listdir(folder))
  return sorted(int(match[1]) for match in found if match)


def save(folder: str, round_num: int, arrays: Sequence[np.ndarray]) -> None:
  """Writes the checkpoint of a round, which `folder` does not have yet, and removes all but the latest two."""
  with files.new_folder(_path(folder, round_num)) as path:
    with open(os.path.join(path, _ARRAYS), 'wb') as f:
      np.savez(f, *arrays)
  for old in rounds(folder)[:-_KEPT]:
    shutil.rmtree(_path(folder, old))


def load(folder: str, round_num: int) -> list[np.ndarray]:
  """The arrays of a checkpoint, in the order in which they were saved.

  Raises:
    OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile: If it is damaged, or if an older version wrote it.
  """
  with np.load(os.path.join(_path(folder, round_num), _ARRAYS), allow_pickle=False) as kept:
    return [kept[f'arr_{i}'] for i in range(len(kept.files))]


def _path(folder: str, round_num: int) -> str:
  return os.path.join(folder, f'round_{round_num}')
