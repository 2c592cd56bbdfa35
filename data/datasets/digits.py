"""`digits`: scikit-learn's 1,797 real handwritten digits, 8x8, shipped with it: needs no network and no file."""

import dataclasses

from data import arrays
from data import rng as rng_lib
from data.datasets import base

# A fifth of 1,797, rounded up. The choice is fixed: results of different seeds share their test set.
TEST_EXAMPLES = 360


@dataclasses.dataclass(frozen=True)
class Digits(base.PooledDataset):
  """1,437 training and 360 test examples, float32[8, 8, 1], 1.0 = ink."""

  def read(self, data_dir):
    # Imported here because it takes a second and only this dataset needs it.
    from sklearn import datasets  # pylint: disable=g-import-not-at-top

    bunch = datasets.load_digits()
    x, y = bunch.images[..., None], bunch.target
    order = rng_lib.generator(0, 'test_split').permutation(len(y))
    test, train = order[:TEST_EXAMPLES], order[TEST_EXAMPLES:]
    return arrays.Pool(x[train], y[train], x[test], y[test], white=16.0, num_classes=10)
