"""A Keras classifier as a TFF model, with metrics of its own, and the loss of next-token prediction.

`tff.learning.models.from_keras_model` makes such a model, too, but its metrics are Keras objects: TFF makes them again
for each of a process's computations, and TensorFlow's AutoGraph rewrites their code. That took almost a third of the
time to build a learning process.
"""

import collections
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional

import tensorflow as tf
import tensorflow_federated as tff

# The label of a place after which nothing follows.
NO_LABEL = -1


class Classifier(tff.learning.models.VariableModel):
  """Scores of classes in the last dimension, and metrics over all batches since they were last reset.

  The metrics are `accuracy`, `loss`, `num_examples` and `num_batches`. The loss counts as often as its batch has
  examples.

  Args:
    keras_model: The scores.
    loss: A function (labels, scores) -> scalar.
    input_spec: `<x=…, y=…>`, a batch of examples and their labels.
    label_weights: A function from labels to their weights in the accuracy, float32 of the same shape. By default, every
      label counts as 1.
  """

  # Nothing here has Python control flow that depends on tensors; see `model_functions`.
  needs_autograph = False

  def __init__(
    self,
    keras_model: tf.keras.Model,
    loss: Callable[..., tf.Tensor],
    input_spec: Any,
    label_weights: Optional[Callable[[tf.Tensor], tf.Tensor]] = None,
  ):
    self._keras_model = keras_model
    self._loss = loss
    self._input_spec = input_spec
    self._label_weights = label_weights if label_weights is not None else lambda y: tf.ones_like(y, tf.float32)
    self._metrics = collections.OrderedDict(
      accuracy=[_counter('accuracy_total', tf.float32), _counter('accuracy_count', tf.float32)],
      loss=[_counter('loss_total', tf.float32), _counter('loss_count', tf.float32)],
      num_examples=[_counter('num_examples', tf.int64)],
      num_batches=[_counter('num_batches', tf.int64)],
    )

  @property
  def trainable_variables(self) -> Sequence[tf.Variable]:
    return self._keras_model.trainable_variables

  @property
  def non_trainable_variables(self) -> Sequence[tf.Variable]:
    return self._keras_model.non_trainable_variables

  @property
  def local_variables(self) -> Sequence[tf.Variable]:
    return tf.nest.flatten(self._metrics)

  @property
  def input_spec(self) -> Any:
    return self._input_spec

  @tf.autograph.experimental.do_not_convert
  def predict_on_batch(self, batch_input: Any, training: bool = True) -> tf.Tensor:
    return self._keras_model(batch_input, training=training)

  # A function of its own, as in TFF's model. Without it TensorFlow optimizes other graphs, and last bits change.
  @tf.function(autograph=False)
  def forward_pass(
    self, batch_input: Mapping[str, tf.Tensor], training: bool = True
  ) -> tff.learning.models.BatchOutput:
    x, y = batch_input['x'], batch_input['y']
    scores = self.predict_on_batch(x, training)
    loss = self._loss(y_true=y, y_pred=scores)
    num_examples = tf.shape(y)[0]
    hits = tf.cast(tf.equal(tf.cast(tf.math.argmax(scores, axis=-1), y.dtype), y), tf.float32)
    weights = self._label_weights(y)
    examples = tf.cast(num_examples, tf.float32)
    self._add('accuracy', tf.reduce_sum(hits * weights), tf.reduce_sum(weights))
    self._add('loss', loss * examples, examples)
    self._add('num_examples', tf.cast(num_examples, tf.int64))
    self._add('num_batches', tf.constant(1, tf.int64))
    return tff.learning.models.BatchOutput(loss=loss, predictions=scores, num_examples=num_examples)

  def _add(self, name, *amounts):
    for variable, amount in zip(self._metrics[name], amounts):
      variable.assign_add(amount)

  @tf.autograph.experimental.do_not_convert
  def report_local_unfinalized_metrics(self) -> collections.OrderedDict[str, list[tf.Tensor]]:
    return tf.nest.map_structure(lambda variable: variable.read_value(), self._metrics)

  def metric_finalizers(self) -> collections.OrderedDict[str, Callable[[Any], tf.Tensor]]:
    mean = lambda values: tf.math.divide_no_nan(*values)
    only = lambda values: values[0]
    return collections.OrderedDict(accuracy=mean, loss=mean, num_examples=only, num_batches=only)

  @tf.autograph.experimental.do_not_convert
  def reset_metrics(self) -> None:
    for variable in self.local_variables:
      variable.assign(tf.zeros_like(variable))


def _counter(name: str, dtype: tf.DType) -> tf.Variable:
  return tf.Variable(lambda: tf.zeros([], dtype), trainable=False, name=name, dtype=dtype)


class LabelledCrossEntropy(tf.keras.losses.Loss):
  """Mean cross-entropy, in nats, of logits float32[..., classes] over labels int[...] other than `NO_LABEL`.

      loss = Σ_{places with a label} -log softmax(logits)_y / (number of such places)

  It is 0 if there is no label, and then its gradient is 0, too.
  """

  def __init__(self, reduction: str = tf.keras.losses.Reduction.NONE, name: str = 'labelled_cross_entropy'):
    super().__init__(reduction, name)

  def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """The mean, a scalar."""
    has_label = tf.not_equal(y_true, NO_LABEL)
    # A class number must be in range even where its loss is not counted.
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.where(has_label, y_true, 0), y_pred)
    counted = tf.cast(has_label, losses.dtype)
    return tf.math.divide_no_nan(tf.reduce_sum(losses * counted), tf.reduce_sum(counted))


def label_weights(labels: tf.Tensor) -> tf.Tensor:
  """The labels' weights in the accuracy, float32 of the same shape: 1, and 0 for `NO_LABEL`."""
  return tf.cast(tf.not_equal(labels, NO_LABEL), tf.float32)
