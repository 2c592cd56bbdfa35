"""The papers' MNIST model: 1,199,882 weights on 28x28x1 and 10 classes, 1,290 of them in the final layer."""

from typing import Optional, Tuple

import tensorflow as tf

from quap_tff.models import layers


def mnist_cnn(
    input_shape: Tuple[int, ...] = (28, 28, 1),
    num_classes: int = 10,
    compute_dtype: str = 'float32',
    seed: Optional[int] = None,
) -> tf.keras.Model:
  """Two convolutions and a hidden Dense layer. Also TFF's own EMNIST 'cnn_dropout'. Returns float32 logits."""
  make = layers.Layers(compute_dtype, seed)
  return tf.keras.Sequential([
      make.input(input_shape),
      make.conv(32, name='conv1'),
      make.conv(64, name='conv2'),
      make.max_pool(name='pool'),
      make.dropout(0.25, name='dropout1'),
      make.flatten(),
      make.dense(128, name='dense'),
      make.dropout(0.5, name='dropout2'),
      make.logits(num_classes),
  ])
