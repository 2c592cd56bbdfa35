"""Multinomial logistic regression: the convex baseline, one Dense layer on the flattened example."""

from typing import Optional, Tuple

import tensorflow as tf

from quap_tff.models import layers


def logistic_regression(
    input_shape: Tuple[int, ...],
    num_classes: int = 10,
    compute_dtype: str = 'float32',
    seed: Optional[int] = None,
) -> tf.keras.Model:
  """Its only Dense layer is the final one. Returns float32 logits."""
  make = layers.Layers(compute_dtype, seed)
  return tf.keras.Sequential([make.input(input_shape), make.flatten(), make.logits(num_classes)])
