"""The papers' CIFAR-10 model: 1,453,834 weights on 32x32x3 and 10 classes, 1,290 of them in the final layer."""

from typing import Optional, Tuple

import tensorflow as tf

from quap_tff.models import layers


def cifar10_cnn(
    input_shape: Tuple[int, ...] = (32, 32, 3),
    num_classes: int = 10,
    compute_dtype: str = 'float32',
    seed: Optional[int] = None,
) -> tf.keras.Model:
  """Three convolutions, each halved by pooling, and two hidden Dense layers. Returns float32 logits."""
  make = layers.Layers(compute_dtype, seed)
  return tf.keras.Sequential([
      make.input(input_shape),
      make.conv(64, padding='same', name='conv1'),
      make.max_pool(name='pool1'),
      make.conv(128, padding='same', name='conv2'),
      make.max_pool(name='pool2'),
      make.conv(256, padding='same', name='conv3'),
      make.max_pool(name='pool3'),
      make.flatten(),
      make.dense(256, name='dense1'),
      make.dropout(0.5, name='dropout'),
      make.dense(128, name='dense2'),
      make.logits(num_classes),
  ])
