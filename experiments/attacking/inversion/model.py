"""A Keras model and local training as functions of stacked weights: all targets of an attack at once.

Every tensor has a leading axis of targets: weights are [T, …] and examples [T, B, …]. So the local training of T
clients, each with weights of its own after the first step, is one graph of batched matrix products, and so is its
derivative by the examples.
"""

from collections.abc import Sequence
import itertools
from typing import Any

import tensorflow as tf

_KERNEL = 3  # All convolutions of `quap_tff.training.models` are 3x3.


class StackedModel:
  """A sequential model of `quap_tff.training.models` as a function of weights with a leading axis of targets.

  Dropout is left out: the attacked clients train without it, which makes the attack easier.

  Attributes:
    initial_weights: The model's trainable weights.
    first_dense: Positions of the kernel and the bias of the first Dense layer among the weights, or None if that layer
      has no bias.
    final_dense: Positions of the kernel and, if there is one, the bias of the final Dense layer.
    reads_images: Whether the first Dense layer takes the (flattened) example itself.
  """

  def __init__(self, model: tf.keras.Model):
    """Reads a model.

    Args:
      model: A sequential model of the layers that `quap_tff.training.models.LayerMaker` makes.

    Raises:
      ValueError: For a layer of another kind, or a model without Dense layers.
    """
    self.input_shape = tuple(model.input_shape[1:])
    self.num_classes = model.output_shape[-1]
    self.initial_weights = [tf.constant(v.numpy()) for v in model.trainable_variables]
    self._steps: list[tuple[Any, ...]] = []
    dense: list[tuple[int, ...]] = []
    position = 0
    for layer in model.layers:
      kind = type(layer).__name__
      if kind in ('InputLayer', 'SeededDropout', 'Dropout'):
        continue
      if kind == 'Conv2D' and layer.kernel_size == (_KERNEL, _KERNEL) and layer.strides == (1, 1):
        self._steps.append(('conv', position, layer.padding))
      elif kind == 'MaxPooling2D' and layer.pool_size == (2, 2) and layer.strides == (2, 2):
        self._steps.append(('pool',))
      elif kind == 'Flatten':
        self._steps.append(('flatten',))
      elif kind == 'Rescaling':
        self._steps.append(('scale', float(layer.scale)))
      elif kind == 'Dense':
        is_relu = layer.activation is tf.keras.activations.relu
        self._steps.append(('dense', position, layer.use_bias, is_relu))
        dense.append(tuple(range(position, position + 1 + layer.use_bias)))
      else:
        raise ValueError(
          f'Layer {layer.name!r} is a {kind} of a kind that gradient inversion does not know. Expected 3x3 '
          'convolutions with stride 1, 2x2 max pooling, Flatten, Rescaling, Dropout and Dense.'
        )
      position += len(layer.trainable_weights)
    if not dense:
      raise ValueError('The model has no Dense layer, so gradient inversion has nothing to divide. Give another model.')
    self.first_dense = dense[0] if len(dense[0]) == 2 else None
    self.final_dense = dense[-1]
    self._steps_to_features = list(itertools.takewhile(lambda step: step[0] != 'dense', self._steps))
    self.reads_images = all(step[0] == 'flatten' for step in self._steps_to_features)

  def stacked(self, targets: int) -> list[tf.Tensor]:
    """The initial weights for each of `targets` targets, float32[T, …]."""
    return [tf.tile(w[tf.newaxis], [targets] + [1] * w.shape.rank) for w in self.initial_weights]

  def logits(self, weights: Sequence[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """float32[T, B, classes] of examples [T, B, …] under weights [T, …]."""
    return self._apply(self._steps, weights, x)

  def features(self, weights: Sequence[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """float32[T, B, d], the input of the first Dense layer."""
    return self._apply(self._steps_to_features, weights, x)

  def _apply(self, steps: Sequence[tuple], weights: Sequence[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    for step in steps:
      if step[0] == 'conv':
        x = tf.nn.relu(_convolved(x, weights[step[1]], step[2]) + weights[step[1] + 1][:, None, None, None, :])
      elif step[0] == 'pool':
        x = _pooled(x)
      elif step[0] == 'flatten':
        x = tf.reshape(x, [*x.shape[:2], -1])
      elif step[0] == 'scale':
        x = x * step[1]
      else:
        x = tf.matmul(x, weights[step[1]])
        if step[2]:
          x = x + weights[step[1] + 1][:, None, :]
        if step[3]:
          x = tf.nn.relu(x)
    return x


def _convolved(x: tf.Tensor, kernel: tf.Tensor, padding: str) -> tf.Tensor:
  """The 3x3 convolutions of [T, B, H, W, C] with kernels [T, 3, 3, C, F] (or one kernel, [1, 3, 3, C, F])."""
  if kernel.shape[0] == 1:
    merged = tf.reshape(x, [-1, *x.shape[2:]])
    out = tf.nn.conv2d(merged, kernel[0], 1, padding.upper())
    return tf.reshape(out, [*x.shape[:2], *out.shape[1:]])
  if padding == 'same':
    x = tf.pad(x, [[0, 0], [0, 0], [1, 1], [1, 1], [0, 0]])
  t, b, h, w, _ = x.shape
  height, width = h - _KERNEL + 1, w - _KERNEL + 1
  # Shifted copies side by side: a convolution is then one matrix product for each target. TensorFlow has no batched
  # convolution, and the derivative of its patches is a sparse product, which is slow.
  patches = tf.concat([x[:, :, i : i + height, j : j + width] for i in range(_KERNEL) for j in range(_KERNEL)], axis=-1)
  flat = tf.reshape(patches, [t, b * height * width, patches.shape[-1]])
  out = tf.matmul(flat, tf.reshape(kernel, [kernel.shape[0], -1, kernel.shape[-1]]))
  return tf.reshape(out, [t, b, height, width, kernel.shape[-1]])


def _pooled(x: tf.Tensor) -> tf.Tensor:
  """Maxima over 2x2 squares. A last odd row or column is left out, as Keras leaves it out."""
  t, b, h, w, c = x.shape
  x = x[:, :, : h // 2 * 2, : w // 2 * 2]
  return tf.reduce_max(tf.reshape(x, [t, b, h // 2, 2, w // 2, 2, c]), axis=[3, 5])


def local_update(
  model: StackedModel, weights: Sequence[tf.Tensor], x: tf.Tensor, labels: tf.Tensor, learning_rate: float, steps: int
) -> tuple[tf.Tensor, ...]:
  """The updates of T clients: w_global - w_local after `steps` steps of SGD on the whole batch, differentiable by x.

  Args:
    model: The model.
    weights: float32[T, …], the global weights.
    x: float32[T, B, …], each client's examples. Every step takes all of them.
    labels: float32[T, B, classes], a distribution for each example.
    learning_rate: The clients' learning rate.
    steps: Local steps, at least 1.

  Returns:
    float32[T, …] for each tensor of weights. For one step it is the gradient times the learning rate.
  """
  current = [tf.identity(w) for w in weights]
  for _ in range(steps):
    with tf.GradientTape() as tape:
      tape.watch(current)
      # Not TensorFlow's own cross-entropy: its second derivative by the labels leaves a term out.
      loss = -tf.reduce_sum(labels * tf.nn.log_softmax(model.logits(current, x)), axis=-1)
      # Targets do not share anything, so the gradient of the sum holds each target's own gradient.
      total = tf.reduce_sum(tf.reduce_mean(loss, axis=1))
    current = [w - learning_rate * g for w, g in zip(current, tape.gradient(total, current))]
  return tuple(w - c for w, c in zip(weights, current))
