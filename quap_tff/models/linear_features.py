"""A linear head on fixed features, logits = s·x·W with a public scale s: all that is trained is one Dense layer."""

from typing import Optional, Tuple

import tensorflow as tf

from quap_tff.models import layers

# A choice of units, by which updates on features of unit norm are of norm 1 or so: scale s, learning rate r and
# clipping norm C do what scale 1, s²·r and s·C do.
LOGIT_SCALE = 10.0


def linear_features(
    input_shape: Tuple[int, ...],
    num_classes: int = 10,
    compute_dtype: str = 'float32',
    seed: Optional[int] = None,
) -> tf.keras.Model:
  """No bias, and the kernel starts at zero: the start is public and no noise of its own. Returns float32 logits."""
  make = layers.Layers(compute_dtype, seed)
  return tf.keras.Sequential([
      make.input(input_shape),
      make.flatten(),
      make.scale(LOGIT_SCALE),
      make.zero_logits(num_classes),
  ])
