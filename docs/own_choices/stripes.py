"""An example of a dataset."""

import dataclasses
from typing import Optional

import numpy as np

from data import datasets
from data.datasets import base


@dataclasses.dataclass(frozen=True)
class Stripes(base.PooledDataset):
  """Images with a bright row, whose place is the label."""

  examples: int = 400

  image_shape = (8, 8, 1)

  def read(self, data_dir: Optional[str]) -> base.Pool:
    labels = np.arange(self.examples) % 8
    images = np.zeros([self.examples, 8, 8, 1], np.uint8)
    images[np.arange(self.examples), labels] = 255
    return base.Pool(images[80:], labels[80:], images[:80], labels[:80], white=self.white, num_classes=8)


datasets.DATASETS['stripes'] = Stripes
