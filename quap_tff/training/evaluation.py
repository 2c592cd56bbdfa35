"""Evaluation of a classifier on a whole test set, in large batches in this process, without TFF's runtime."""

import collections
from collections.abc import Mapping
from typing import Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.training import batches
from quap_tff.training import model_functions

EvaluateFn = Callable[[tff.learning.models.ModelWeights, array_types.Structure, np.ndarray], Mapping[str, float]]
# From a batch, x and y, to the model's output.
_ForwardPass = Callable[[array_types.Structure, tf.Tensor], tff.learning.models.BatchOutput]


def build_evaluation(model: model_functions.Model, batch_size: int = 1000) -> EvaluateFn:
  """A function that evaluates weights on examples; it is traced once, whatever their number.

  Args:
    model: A classifier whose predictions are scores over classes in the last dimension and whose labels are class
      numbers: a function that makes it, or a `FunctionalModel`.
    batch_size: Examples in a batch, at least 1. It bounds the memory and changes the result by rounding only, as the
      model's loss is a mean over the labels of a batch.

  Returns:
    `evaluate(weights, x, y)`: `weights` a `tff.learning.models.ModelWeights` of arrays; `x` and `y` arrays of the
    model's batch structure with any number n of examples. Returns `<loss=float, accuracy=float, num_examples=int>`:
    the mean loss, and the share of labels that the highest score hits. Both are over labels, not over examples, where
    an example has several, and leave out negative labels (padding). Both are NaN if there is no label. It raises
    `ValueError` if `x` and `y` differ in length. Calls must not overlap: the model's variables hold the weights.
  """

  assign, evaluate_batch, _ = _traced(model, batch_size, lambda forward_pass, x, y: totals(forward_pass(x, y), y))

  def evaluate(
    weights: tff.learning.models.ModelWeights, x: array_types.Structure, y: np.ndarray
  ) -> Mapping[str, float]:
    assign(weights)
    return batches.evaluated(evaluate_batch, x, y, batch_size)

  return evaluate


def totals(output: tff.learning.models.BatchOutput, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """The sum of the losses of a batch, float64, and how many labels it hits, and has, int64.

  Args:
    output: A `tff.learning.models.BatchOutput`, whose predictions are scores over classes in the last dimension.
    y: The labels.
  """
  # A negative label says that there is none: padding is not a class, so its places never count as hits.
  # Not `==`, which in graphs of TFF compares objects.
  hits = tf.equal(tf.cast(tf.argmax(output.predictions, axis=-1), y.dtype), y)
  labels = tf.math.count_nonzero(y >= 0)
  return tf.cast(output.loss, tf.float64) * tf.cast(labels, tf.float64), tf.math.count_nonzero(hits), labels


def build_logits(
  model: model_functions.Model, batch_size: int = 1000
) -> Callable[[tff.learning.models.ModelWeights, np.ndarray], np.ndarray]:
  """A function that gives a classifier's scores; it is traced once. The arguments are those of `build_evaluation`.

  Returns:
    `logits(weights, x)`: `weights` a `tff.learning.models.ModelWeights` of arrays, x float32[n, ...]. Returns
    float32[n, classes]. Calls must not overlap: the model's variables hold the weights.
  """

  assign, predict, label_spec = _traced(model, batch_size, lambda forward_pass, x, y: forward_pass(x, y).predictions)

  def logits(weights: tff.learning.models.ModelWeights, x: np.ndarray) -> np.ndarray:
    assign(weights)
    batches = [tf.constant(x[begin : begin + batch_size]) for begin in range(0, max(len(x), 1), batch_size)]
    # The labels do not matter, but the model takes some.
    labels = [tf.zeros([len(batch), *label_spec.shape[1:]], label_spec.dtype) for batch in batches]
    return np.concatenate([predict(*both).numpy() for both in zip(batches, labels)])

  return logits


def _traced(
  model: model_functions.Model,
  batch_size: int,
  function: Callable[[_ForwardPass, array_types.Structure, tf.Tensor], array_types.Structure],
) -> tuple[
  Callable[[tff.learning.models.ModelWeights], array_types.Structure],
  Callable[..., array_types.Structure],
  tf.TensorSpec,
]:
  """Assigns the model's weights; `function(forward_pass, x, y)` as a concrete function of x, y; the labels' spec."""
  checks.integer('batch_size', batch_size, at_least=1)
  model = model_functions.of(model)()
  variables = tff.learning.models.ModelWeights.from_model(model)
  named = isinstance(model.input_spec, Mapping)
  x_spec, y_spec = (model.input_spec['x'], model.input_spec['y']) if named else model.input_spec

  def forward_pass(x: array_types.Structure, y: tf.Tensor) -> tff.learning.models.BatchOutput:
    batch = collections.OrderedDict(x=x, y=y) if named else (x, y)
    return model.forward_pass(batch, training=False)

  @tf.function(input_signature=[x_spec, y_spec], autograph=model_functions.needs_autograph(model))
  def traced_batch(x: array_types.Structure, y: tf.Tensor) -> array_types.Structure:
    return function(forward_pass, x, y)

  # Trace now: TFF makes Keras models in graphs of its own, and after that Keras refuses to call models made earlier.
  traced = traced_batch.get_concrete_function()
  return lambda weights: tf.nest.map_structure(lambda v, w: v.assign(w), variables, weights), traced, y_spec
