"""Times ways to compute a convolution's gradient of its filters, which take turns on one thread.

    python docs/benchmarks/filter_gradients.py
    ONEDNN_MAX_CPU_ISA=AVX2 python docs/benchmarks/filter_gradients.py

Each figure is the least of 40, in milliseconds: other programs only ever add to it. On an AMD EPYC (29 November 2026),
nine products with shifted images take 3.92 in place of TensorFlow's 4.43 ms for the second layer of `mnist_cnn` with
AVX-512, and 6.16 in place of 7.32 with AVX2, but 0.43 in place of 0.19 for the first layer. That would save less than a
tenth of a round, so TensorFlow's kernel stays.
"""

import time
from typing import Callable

import numpy as np

import quap_tff  # isort: skip  # It turns on oneDNN, which TensorFlow asks for when it is loaded.
import tensorflow as tf

from quap_tff.common import kernels

_SIDE, _REPETITIONS = 3, 40
# Batch, side of the image, channels in, channels out.
_SHAPES = {
  'mnist_cnn, first': (32, 28, 1, 32),
  'mnist_cnn, second': (32, 26, 32, 64),
  'cifar10_cnn, second': (32, 30, 32, 64),
  'digits_cnn, second': (16, 6, 16, 32),
}


def library(x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
  """TensorFlow's own kernel."""
  sizes = [_SIDE, _SIDE, x.shape[-1], dy.shape[-1]]
  return tf.raw_ops.Conv2DBackpropFilter(
    input=x, filter_sizes=sizes, out_backprop=dy, strides=[1, 1, 1, 1], padding='VALID'
  )


def nine_products(x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
  """A product with the image for each place of the filter, the image shifted to it."""
  _, height, width, channels = dy.shape
  flat = tf.reshape(dy, [-1, channels])
  products = []
  for row in range(_SIDE):
    for column in range(_SIDE):
      shifted = tf.reshape(x[:, row : row + height, column : column + width, :], [-1, x.shape[-1]])
      products.append(tf.matmul(shifted, flat, transpose_a=True))
  return tf.reshape(tf.stack(products), [_SIDE, _SIDE, x.shape[-1], channels])


def patches(x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
  """One product with all patches of the image."""
  found = tf.image.extract_patches(x, [1, _SIDE, _SIDE, 1], [1, 1, 1, 1], [1, 1, 1, 1], 'VALID')
  product = tf.matmul(tf.reshape(found, [-1, found.shape[-1]]), tf.reshape(dy, [-1, dy.shape[-1]]), transpose_a=True)
  return tf.reshape(product, [_SIDE, _SIDE, x.shape[-1], dy.shape[-1]])


def transposed(x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
  """A forward convolution of the transposed image by the transposed gradient."""
  result = tf.nn.conv2d(tf.transpose(x, [3, 1, 2, 0]), tf.transpose(dy, [1, 2, 0, 3]), 1, 'VALID')
  return tf.transpose(result, [1, 2, 0, 3])


_WAYS: tuple[Callable[[tf.Tensor, tf.Tensor], tf.Tensor], ...] = (library, nine_products, patches, transposed)


def main() -> None:
  """Prints a row for each layer."""
  tf.config.threading.set_intra_op_parallelism_threads(1)
  tf.config.threading.set_inter_op_parallelism_threads(1)
  print(f'quap_tff {quap_tff.__version__}, TensorFlow {tf.__version__}, {kernels.described()}')
  for name, (batch, side, channels_in, channels_out) in _SHAPES.items():
    x = tf.random.stateless_normal([batch, side, side, channels_in], [0, 0])
    dy = tf.random.stateless_normal([batch, side - 2, side - 2, channels_out], [0, 1])
    functions = {way.__name__: tf.function(way).get_concrete_function(x, dy) for way in _WAYS}
    expected = library(x, dy).numpy()
    for function in functions.values():
      np.testing.assert_allclose(function(x, dy).numpy(), expected, rtol=1e-3, atol=2e-2)
    least = dict.fromkeys(functions, np.inf)
    for _ in range(_REPETITIONS):
      for way, function in functions.items():
        begin = time.perf_counter()
        function(x, dy).numpy()
        least[way] = min(least[way], 1000 * (time.perf_counter() - begin))
    print(f'{name:<22}', '  '.join(f'{way} {ms:.2f}' for way, ms in least.items()), flush=True)


if __name__ == '__main__':
  main()
