"""Models by name.

A new one is its own file, with a function (input_shape, num_classes, compute_dtype, seed) -> uncompiled
`tf.keras.Model` of float32 logits, and a line in `MODELS`.
"""

import collections
from typing import Any, Callable, Optional, Sequence, Tuple

import tensorflow as tf
import tensorflow_federated as tff

from quap_tff import checks
from quap_tff import registry
from quap_tff.models import cifar10_cnn
from quap_tff.models import digits_cnn
from quap_tff.models import linear_features
from quap_tff.models import logistic_regression
from quap_tff.models import mnist_cnn

MODELS = {
    'cifar10_cnn': cifar10_cnn.cifar10_cnn,
    'digits_cnn': digits_cnn.digits_cnn,
    'femnist_cnn': mnist_cnn.mnist_cnn,  # The same architecture with 10 or 62 classes.
    'linear_features': linear_features.linear_features,
    'logistic_regression': logistic_regression.logistic_regression,
    'mnist_cnn': mnist_cnn.mnist_cnn,
}


def build_keras_model(
    name: str,
    input_shape: Sequence[int],
    num_classes: int,
    compute_dtype: str = 'float32',
    seed: Optional[int] = None,
) -> tf.keras.Model:
  """The named model, uncompiled.

  Args:
    name: A key of `MODELS`.
    input_shape: The shape of one example.
    num_classes: The number of classes, at least 2.
    compute_dtype: 'float32' or 'bfloat16'. Weights and logits are float32 either way.
    seed: A non-negative integer from which the initial weights follow, or `None` for other weights each time.

  Raises:
    ValueError: For an unknown model or dtype (with the nearest names), or a number out of range.
  """
  build = registry.lookup('model', name, MODELS)
  shape = tuple(checks.integer('every dimension of the input shape', int(d), at_least=1) for d in input_shape)
  return build(shape, checks.integer('num_classes', num_classes, at_least=2), compute_dtype, seed)


def input_spec(input_shape: Sequence[int]) -> Any:
  """A batch of examples as the models take it: `<x=float32[?, *input_shape], y=int32[?]>`."""
  return collections.OrderedDict(
      x=tf.TensorSpec((None, *input_shape), tf.float32), y=tf.TensorSpec((None,), tf.int32)
  )


def build_model_fn(
    name: str,
    input_shape: Sequence[int],
    num_classes: int,
    compute_dtype: str = 'float32',
    seed: Optional[int] = None,
) -> Callable[[], tff.learning.models.VariableModel]:
  """A `model_fn` for TFF's learning API: the named classifier with cross-entropy loss.

  Its metrics are `accuracy`, `loss`, `num_examples` and TFF's own `num_batches`. The arguments and errors are those of
  `build_keras_model`; they are checked here, not when the model is first made.
  """
  with tf.Graph().as_default():
    build_keras_model(name, input_shape, num_classes, compute_dtype, seed)
  spec = input_spec(input_shape)

  def model_fn() -> tff.learning.models.VariableModel:
    return tff.learning.models.from_keras_model(
        build_keras_model(name, input_shape, num_classes, compute_dtype, seed),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        input_spec=spec,
        metrics=[_accuracy],
    )

  return model_fn


def _accuracy() -> tf.keras.metrics.Metric:
  return tf.keras.metrics.SparseCategoricalAccuracy(name='accuracy')
