"""A small model of the 8x8 digits: 8,714 weights on 8x8x1 and 10 classes, 330 of them in the final layer."""

from typing import Optional, Tuple

import tensorflow as tf

from quap_tff.models import layers


def digits_cnn(
    input_shape: Tuple[int, ...] = (8, 8, 1),
    num_classes: int = 10,
    compute_dtype: str = 'float32',
    seed: Optional[int] = None,
) -> tf.keras.Model:
  """One convolution and a hidden Dense layer: small enough to train in seconds. Returns float32 logits."""
  make = layers.Layers(compute_dtype, seed)
  return tf.keras.Sequential([
      make.input(input_shape),
      make.conv(16, padding='same', name='conv'),
      make.max_pool(name='pool'),
      make.flatten(),
      make.dense(32, name='dense'),
      make.logits(num_classes),
  ])
