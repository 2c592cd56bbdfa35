"""Dropout whose masks are a pure function of a seed, so that a client's training can be repeated bit for bit.

The training step puts (seed, step) in scope while it is traced; each dropout layer reached inside that scope takes the
next index and draws its mask from Philox at (seed, step, index). Philox is counter-based: a new step is a new counter,
not a new seed, so that a mask costs few ops in addition to the random bits themselves.
"""

from collections.abc import Iterator
import contextlib
import threading
from typing import NamedTuple, Optional

import tensorflow as tf

from quap_tff.common import array_types
from quap_tff.common import checks

_PHILOX = 1  # The `alg` of TensorFlow's stateless ops; fixed, because the default differs between devices.
_LOCAL = threading.local()


class DropoutStream(NamedTuple):
  """Philox key (uint64[1]) and first counter (uint64[2]) of one client's masks in one round."""

  key: tf.Tensor
  counter: tf.Tensor


class _Scope:
  """The masks of one training step; counts the layers reached while it is traced."""

  def __init__(self, stream: DropoutStream, step: tf.Tensor):
    self.key = stream.key
    # The low word counts random blocks inside one mask; the high word tells masks apart: 2^32 steps of 2^32 layers.
    self._block, self._mask = stream.counter[0], stream.counter[1] + tf.cast(step, tf.uint64) * 2**32
    self._layers = 0

  def counter(self) -> tf.Tensor:
    """The Philox counter of the next layer."""
    self._layers += 1
    return tf.stack([self._block, self._mask + (self._layers - 1)])


def dropout_stream(seed: tf.Tensor) -> DropoutStream:
  """The stream of masks that an int64[2] `seed` names. Make it once, outside the training loop."""
  key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
  return DropoutStream(key, counter)


@contextlib.contextmanager
def seeded_dropout(stream: DropoutStream, step: tf.Tensor) -> Iterator[None]:
  """Within this scope each `SeededDropout` layer of this thread draws its mask from (`stream`, `step`, call's index).

  Args:
    stream: From `dropout_stream`; may be symbolic.
    step: An integer scalar, at least 0; may be symbolic. Equal steps draw equal masks.
  """
  outer = current_scope()
  _LOCAL.scope = _Scope(stream, step)
  try:
    yield
  finally:
    _LOCAL.scope = outer


def current_scope() -> Optional[_Scope]:
  return getattr(_LOCAL, 'scope', None)


@tf.keras.utils.register_keras_serializable('quap_tff')
class SeededDropout(tf.keras.layers.Layer):
  """Drops each entry with probability `rate` and scales the others by 1/(1 - rate); the identity unless training.

  Inside `seeded_dropout` the mask is stateless. Outside it the layer is ordinary, unseeded dropout, so that a model
  built with it trains anywhere. The rate is kept to 16 bits (an error below 2e-5). The scale is that of the rate really
  used, rounded to the inputs' dtype: the expectation is right to 1e-7 in float32, and to 0.4% in bfloat16.

  Args:
    rate: In [0, 1).
  """

  def __init__(self, rate: float, **kwargs: object):
    super().__init__(**kwargs)
    self.rate = checks.number('dropout rate', rate, at_least=0.0, below=1.0)
    self.supports_masking = True

  def call(self, inputs: tf.Tensor, training: Optional[array_types.Booleans] = None) -> tf.Tensor:
    if training is None:
      training = tf.keras.backend.learning_phase()
    if self.rate == 0.0 or (not tf.is_tensor(training) and not training):
      return tf.identity(inputs)
    if tf.is_tensor(training):
      return tf.cond(tf.cast(training, tf.bool), lambda: self._drop(inputs), lambda: tf.identity(inputs))
    return self._drop(inputs)

  def _drop(self, inputs: tf.Tensor) -> tf.Tensor:
    scope = current_scope()
    if scope is None:
      return tf.nn.dropout(inputs, self.rate)
    # Eight bits are enough for the usual rates (1/4, 1/2) and cost a quarter of a float's 32.
    bits = 8 if (self.rate * 256).is_integer() else 16
    threshold = min(round(self.rate * 2**bits), 2**bits - 1)
    narrow = tf.uint8 if bits == 8 else tf.uint16
    per_word = 32 // bits
    size = tf.size(inputs)
    words = tf.raw_ops.StatelessRandomUniformFullIntV2(
      shape=[(size + per_word - 1) // per_word], key=scope.key, counter=scope.counter(), alg=_PHILOX, dtype=tf.uint32
    )
    draws = tf.reshape(tf.reshape(tf.bitcast(words, narrow), [-1])[:size], tf.shape(inputs))
    kept = tf.cast(draws >= tf.constant(threshold, narrow), inputs.dtype)
    return inputs * (kept * tf.constant(2**bits / (2**bits - threshold), inputs.dtype))

  def compute_output_shape(self, input_shape: tf.TensorShape) -> tf.TensorShape:
    return input_shape

  def get_config(self) -> dict[str, object]:
    return {**super().get_config(), 'rate': self.rate}
