"""The file of UNIPEN's isolated characters: images of pen strokes by real writers, with the writer of each.

UNIPEN is a collection of online handwriting of the 1990s, by the International Unipen Foundation. Its public release is
train_r01_v07. `unipen62.npz` has the characters of its categories 1a (digits), 1b (upper case) and 1c (lower case),
which `unipen_release` draws as images like those of EMNIST. They are by other people, of another time and medium.
"""

import os
from typing import NamedTuple, Optional

import numpy as np

from data import reading

FILENAME = 'unipen62.npz'
NUM_CLASSES = 62
PROVENANCE = (
  "Isolated characters of UNIPEN's release train_r01_v07 (International Unipen Foundation), categories 1a, 1b and 1c: "
  'pen strokes of real writers, drawn as images. The license of its public copy is CC BY 4.0. An older notice on its '
  'CD allows research only.'
)
_SIDE = 28


class UnipenFile(NamedTuple):
  """The arrays of the file.

  Attributes:
    x: uint8[n, 28, 28], 255 = ink.
    y: int64[n] in [0, 62), in the order of EMNIST's ByClass: digits, upper case, lower case.
    writer: int64[n], the number of each character's writer.
  """

  x: np.ndarray
  y: np.ndarray
  writer: np.ndarray


def read_unipen(data_dir: Optional[str]) -> UnipenFile:
  """Reads the file.

  Args:
    data_dir: The folder that holds it.

  Raises:
    reading.DataFileError: If it is missing, damaged or the wrong one.
  """
  if data_dir is None:
    raise reading.DataFileError(
      f"UNIPEN's characters need {FILENAME} (x, y and writer), which no loader downloads. Give the folder that has it "
      'as --data_dir, or make it of the release by python -m experiments.convert_unipen.'
    )
  path = os.path.join(data_dir, FILENAME)
  file = reading.read_npz(path, UnipenFile._fields, "UNIPEN's characters")
  x, y, writer = (file[name] for name in UnipenFile._fields)
  if x.dtype != np.uint8 or x.shape[1:] != (_SIDE, _SIDE) or not len(x):
    raise reading.wrong(path, f'x uint8[n, {_SIDE}, {_SIDE}]', reading.described_array(x))
  for name, values in (('y', y), ('writer', writer)):
    if values.shape != x.shape[:1] or values.dtype.kind not in 'iu':
      raise reading.wrong(path, f'{name} to be {len(x)} integers, one for each image', reading.described_array(values))
  if y.min() < 0 or y.max() >= NUM_CLASSES:
    raise reading.wrong(path, f'labels in [0, {NUM_CLASSES})', f'{y.min()} to {y.max()}')
  return UnipenFile(x, y.astype(np.int64), writer.astype(np.int64))
