"""Evaluation of a classifier on a whole test set, in large batches in this process, without TFF's runtime."""

import collections
from collections.abc import Mapping
from typing import Any, Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.common import checks
from quap_tff.training import autograph

EvaluateFn = Callable[[Any, Any, Any], Mapping[str, Any]]


def build_evaluation(model_fn: Callable[[], tff.learning.models.VariableModel], batch_size: int = 1000) -> EvaluateFn:
  """A function that evaluates weights on examples; it is traced once, whatever their number.

  Args:
    model_fn: Makes a classifier whose predictions are scores over classes in the last dimension and whose labels are
      class numbers.
    batch_size: Examples in a batch, at least 1. It bounds the memory and changes the result by rounding only, as the
      model's loss is a mean over the labels of a batch.

  Returns:
    `evaluate(weights, x, y)`: `weights` a `tff.learning.models.ModelWeights` of arrays; `x` and `y` arrays of the
    model's batch structure with any number n of examples. Returns `<loss=float, accuracy=float, num_examples=int>`:
    the mean loss, and the share of labels that the highest score hits. Both are over labels, not over examples, where
    an example has several, and leave out negative labels (padding). Both are NaN if there is no label. It raises
    `ValueError` if `x` and `y` differ in length. Calls must not overlap: the model's variables hold the weights.
  """
  checks.integer('batch_size', batch_size, at_least=1)
  model = model_fn()
  variables = tff.learning.models.ModelWeights.from_model(model)
  x_spec, y_spec = _x_and_y(model.input_spec)

  @tf.function(input_signature=[x_spec, y_spec], autograph=autograph.is_needed(model))
  def evaluate_batch(x, y):
    named = isinstance(model.input_spec, Mapping)
    batch = collections.OrderedDict(x=x, y=y) if named else (x, y)
    output = model.forward_pass(batch, training=False)
    # A negative label says that there is none: padding is no class, so its places never count as hits.
    hits = tf.cast(tf.argmax(output.predictions, axis=-1), y.dtype) == y
    labels = tf.math.count_nonzero(y >= 0)
    loss_sum = tf.cast(output.loss, tf.float64) * tf.cast(labels, tf.float64)
    return loss_sum, tf.math.count_nonzero(hits), labels

  # Trace now: TFF makes Keras models in graphs of its own, and after that Keras refuses to call models made earlier.
  evaluate_batch = evaluate_batch.get_concrete_function()

  def evaluate(weights, x, y) -> Mapping[str, Any]:
    lengths = {len(leaf) for leaf in tf.nest.flatten((x, y))}
    if len(lengths) != 1:
      raise ValueError(f'Expected x and y of equal length, found lengths {sorted(lengths)}.')
    (num_examples,) = lengths
    tf.nest.map_structure(lambda v, w: v.assign(w), variables, weights)
    totals = np.zeros(3)
    for begin in range(0, num_examples, batch_size):
      rows = slice(begin, begin + batch_size)
      x_batch, y_batch = tf.nest.map_structure(lambda leaf: leaf[rows], (x, y))
      totals += [float(t) for t in evaluate_batch(x_batch, y_batch)]
    loss_sum, hits, labels = totals
    return collections.OrderedDict(
      loss=loss_sum / labels if labels else float('nan'),
      accuracy=hits / labels if labels else float('nan'),
      num_examples=num_examples,
    )

  return evaluate


def build_logits(
  model_fn: Callable[[], tff.learning.models.VariableModel], batch_size: int = 1000
) -> Callable[[Any, np.ndarray], np.ndarray]:
  """A function that gives a classifier's scores; it is traced once. The arguments are those of `build_evaluation`.

  Returns:
    `logits(weights, x)`: `weights` a `tff.learning.models.ModelWeights` of arrays, x float32[n, ...]. Returns
    float32[n, classes]. Calls must not overlap: the model's variables hold the weights.
  """
  checks.integer('batch_size', batch_size, at_least=1)
  model = model_fn()
  variables = tff.learning.models.ModelWeights.from_model(model)
  x_spec, y_spec = _x_and_y(model.input_spec)

  @tf.function(input_signature=[x_spec], autograph=autograph.is_needed(model))
  def predict(x):
    y = tf.zeros(tf.shape(x)[:1], y_spec.dtype)
    batch = collections.OrderedDict(x=x, y=y) if isinstance(model.input_spec, Mapping) else (x, y)
    return model.forward_pass(batch, training=False).predictions

  predict = predict.get_concrete_function()  # Now, for the reason above.

  def logits(weights, x):
    tf.nest.map_structure(lambda v, w: v.assign(w), variables, weights)
    begins = range(0, max(len(x), 1), batch_size)
    return np.concatenate([predict(tf.constant(x[begin : begin + batch_size])).numpy() for begin in begins])

  return logits


def _x_and_y(input_spec: Any):
  if isinstance(input_spec, Mapping):
    return input_spec['x'], input_spec['y']
  return input_spec[0], input_spec[1]
