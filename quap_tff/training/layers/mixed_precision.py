"""A classifier whose layers compute in bfloat16, with less work around the convolutions.

In bfloat16 the convolutions are twice as fast as in float32, and biases and ReLUs are not. So the latter come after the
max-pooling, where there are fewer numbers:

    pool(relu(c + b)) = relu(pool(c) + b)    c the convolution, b a bias for each channel

Adding b, rounding and ReLU never swap the order of two numbers, so both sides are equal, bit for bit. The gradients are
equal, too, unless numbers of a window tie. If they are equal only because c + b was rounded, the left side gives the
gradient to the first of them, and the right side to the one with the largest c. So models in float32 keep the left
side, and with it the bits of their runs.
"""

import inspect
from typing import Any

import tensorflow as tf

from quap_tff.training.layers import classifier


class MixedPrecisionClassifier(classifier.Classifier):
  """A `classifier.Classifier` of a `tf.keras.Sequential` whose layers compute in bfloat16 and have float32 weights."""

  @tf.autograph.experimental.do_not_convert
  def predict_on_batch(self, batch_input: Any, training: bool = True) -> tf.Tensor:
    return pooled_first(self._keras_model, batch_input, training)


def pooled_first(model: tf.keras.Sequential, x: tf.Tensor, training: bool) -> tf.Tensor:
  """What `model(x, training=training)` gives, with pooling before biases and ReLUs.

  Args:
    model: Its layers need not compute in bfloat16.
    x: A batch of examples.
    training: Whether layers such as dropout train.
  """
  layers = list(model.layers)
  while layers:
    layer = layers.pop(0)
    if layers and _adds_bias_and_relu(layer) and type(layers[0]) is tf.keras.layers.MaxPooling2D:
      compute = lambda tensor, dtype=layer.compute_dtype: tf.cast(tensor, dtype)
      pooled = layers.pop(0)(layer.convolution_op(compute(x), compute(layer.kernel)))
      x = tf.nn.relu(tf.nn.bias_add(pooled, compute(layer.bias)))
    elif 'training' in inspect.signature(layer.call).parameters:
      x = layer(x, training=training)
    else:
      x = layer(x)
  return x


def _adds_bias_and_relu(layer: tf.keras.layers.Layer) -> bool:
  """Whether the layer is a convolution with a bias for each channel, the last dimension, and ReLU."""
  return (
    type(layer) is tf.keras.layers.Conv2D
    and layer.use_bias
    and layer.activation is tf.keras.activations.relu
    and layer.data_format == 'channels_last'
  )
