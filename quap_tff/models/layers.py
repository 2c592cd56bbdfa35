"""The layers that models are made of: named, in one compute dtype, with seeded initial weights."""

from typing import Any, Optional, Tuple

import numpy as np
import tensorflow as tf

from quap_tff import checks
from quap_tff import dropout
from quap_tff import registry

_POLICIES = {'float32': 'float32', 'bfloat16': 'mixed_bfloat16'}


class Layers:
  """Makes one model's layers.

  Weights are float32 whatever the compute dtype. The k-th layer with weights starts from a seed made of (`seed`, k), so
  the initial weights are a pure function of `seed`.

  Args:
    compute_dtype: 'float32' or 'bfloat16'.
    seed: A non-negative integer, or `None` for TensorFlow's own unseeded initial weights.
  """

  def __init__(self, compute_dtype: str = 'float32', seed: Optional[int] = None):
    self._policy = tf.keras.mixed_precision.Policy(registry.lookup('compute dtype', compute_dtype, _POLICIES))
    self._seed = None if seed is None else checks.integer('model seed', seed, at_least=0)
    self._weighted = 0

  def _initializer(self) -> tf.keras.initializers.Initializer:
    index, self._weighted = self._weighted, self._weighted + 1
    if self._seed is None:
      return tf.keras.initializers.GlorotUniform()
    mixed = np.random.SeedSequence([self._seed, index]).generate_state(1)[0]
    return tf.keras.initializers.GlorotUniform(seed=int(mixed) & 0x7FFFFFFF)

  def input(self, shape: Tuple[int, ...]) -> Any:
    """The input: examples of `shape`, float32."""
    return tf.keras.layers.InputLayer(input_shape=shape, name='input')

  def conv(self, filters: int, *, name: str, padding: str = 'valid') -> Any:
    """A 3x3 convolution and ReLU."""
    return tf.keras.layers.Conv2D(
        filters,
        3,
        padding=padding,
        activation='relu',
        kernel_initializer=self._initializer(),
        dtype=self._policy,
        name=name,
    )

  def max_pool(self, *, name: str) -> Any:
    """Maxima over 2x2 squares."""
    return tf.keras.layers.MaxPooling2D(2, dtype=self._policy, name=name)

  def flatten(self) -> Any:
    return tf.keras.layers.Flatten(dtype=self._policy, name='flatten')

  def dropout(self, rate: float, *, name: str) -> Any:
    return dropout.SeededDropout(rate, dtype=self._policy, name=name)

  def dense(self, units: int, *, name: str) -> Any:
    """A fully connected layer and ReLU."""
    return tf.keras.layers.Dense(
        units, activation='relu', kernel_initializer=self._initializer(), dtype=self._policy, name=name
    )

  def logits(self, num_classes: int) -> Any:
    """The final Dense layer; always computed in float32, for a loss in bfloat16 loses most of its digits."""
    return tf.keras.layers.Dense(num_classes, kernel_initializer=self._initializer(), dtype='float32', name='logits')

  def scale(self, factor: float) -> Any:
    """Multiplication by a constant."""
    return tf.keras.layers.Rescaling(factor, dtype=self._policy, name='scale')

  def zero_logits(self, num_classes: int) -> Any:
    """The final Dense layer of a linear model: without bias, from zero, in float32."""
    return tf.keras.layers.Dense(
        num_classes, use_bias=False, kernel_initializer='zeros', dtype='float32', name='logits'
    )
