"""An example of a feature map."""

import dataclasses

import numpy as np

from data import features
from data.features import drawings
from data.features import maps


@dataclasses.dataclass(frozen=True)
class RowSums(maps.Features):
  """The sum of each row of an image, scaled to norm 1."""

  def check(self, input_shape: tuple[int, ...]) -> None:
    if len(input_shape) != 3:
      raise ValueError(f'Row sums need images [height, width, channels], found the shape {tuple(input_shape)}.')

  def fingerprint(self) -> str:
    return f'row sums numpy={np.__version__}'

  def extractor(self, input_shape: tuple[int, ...]) -> drawings.Extractor:
    return lambda x: maps.unit_rows(x.sum(axis=(2, 3)))


features.FEATURES['row_sums'] = RowSums
