"""`mnist`: 60,000 training and 10,000 test digits, 28x28, from `mnist.npz` or Keras."""

import dataclasses

import tensorflow as tf

from data import arrays
from data.datasets import base

FILENAME = 'mnist.npz'


@dataclasses.dataclass(frozen=True)
class Mnist(base.PooledDataset):
  """float32[28, 28, 1], 1.0 = ink."""

  def read(self, data_dir):
    return arrays.read_images(FILENAME, _download, data_dir, (28, 28, 1), num_classes=10)


def _download():
  (x_train, y_train), (x_test, y_test) = tf.keras.datasets.mnist.load_data()
  return dict(x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
