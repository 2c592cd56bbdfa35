"""`cifar10`: 50,000 training and 10,000 test photographs, 32x32 RGB, from `cifar10.npz` or Keras."""

import dataclasses

import tensorflow as tf

from data import arrays
from data.datasets import base

FILENAME = 'cifar10.npz'


@dataclasses.dataclass(frozen=True)
class Cifar10(base.PooledDataset):
  """float32[32, 32, 3], RGB."""

  def read(self, data_dir):
    return arrays.read_images(FILENAME, _download, data_dir, (32, 32, 3), num_classes=10)


def _download():
  (x_train, y_train), (x_test, y_test) = tf.keras.datasets.cifar10.load_data()
  return dict(x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
