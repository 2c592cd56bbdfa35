"""A model that can be followed by hand, and its clients' data, shared by the tests of learning processes.

y = w·x with mean squared error, from w = 0: at x = 1 the loss' derivative is 2·(w - mean y).
"""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff


def functional(*widths):
  """The product of kernels of these shapes as a `FunctionalModel`; by default one weight. The last one is zero."""
  widths = widths or (1, 1)
  kernels = [np.ones(shape, np.float32) for shape in zip(widths[:-1], widths[1:])]
  kernels[-1][:] = 0

  @tf.function
  def predict(weights, x, training):
    for kernel in weights[0]:
      x = tf.matmul(x, kernel)
    return x

  return tff.learning.models.FunctionalModel(
    initial_weights=(tuple(kernels), ()),
    predict_on_batch_fn=predict,
    loss_fn=lambda output, label, sample_weight=None: tf.reduce_mean(tf.square(output - label)),
    input_spec=collections.OrderedDict(x=tf.TensorSpec([None, widths[0]]), y=tf.TensorSpec([None, widths[-1]])),
  )


class Linear(tff.learning.models.VariableModel):
  """One weight, as a `model_fn`, with the metrics of TFF's own Keras model; traced in a fraction of its time."""

  needs_autograph = False
  input_spec = collections.OrderedDict(x=tf.TensorSpec([None, 1]), y=tf.TensorSpec([None, 1]))
  non_trainable_variables = []

  def __init__(self):
    self._weight = tf.Variable(tf.zeros([1, 1]), name='logits/kernel')
    counters = (tf.float32, tf.float32, tf.int64, tf.int64)
    self._metrics = [tf.Variable(tf.zeros([], dtype), trainable=False, dtype=dtype) for dtype in counters]

  trainable_variables = property(lambda self: [self._weight])
  local_variables = property(lambda self: self._metrics)

  def predict_on_batch(self, batch_input, training=True):
    return tf.matmul(batch_input, self._weight)

  def forward_pass(self, batch_input, training=True):
    predictions = self.predict_on_batch(batch_input['x'])
    loss, size = tf.reduce_mean(tf.square(predictions - batch_input['y'])), tf.shape(predictions)[0]
    weight = tf.cast(size, tf.float32)
    for variable, amount in zip(self._metrics, (loss * weight, weight, tf.cast(size, tf.int64), 1)):
      variable.assign_add(amount)
    return tff.learning.models.BatchOutput(loss, predictions, size)

  def report_local_unfinalized_metrics(self):
    total, weight, examples, batches = self._metrics
    return collections.OrderedDict(loss=[total, weight], num_examples=[examples], num_batches=[batches])

  def metric_finalizers(self):
    only = lambda values: values[0]
    return collections.OrderedDict(
      loss=lambda values: tf.math.divide_no_nan(*values), num_examples=only, num_batches=only
    )

  def reset_metrics(self):
    for variable in self._metrics:
      variable.assign(tf.zeros_like(variable))


def client(client_id, y, x=1.0, width=1, n=1, absent=None, answer=None):
  """A client of `n` equal examples; `absent` are the ids that an extension gets to know, `answer` is its guard's."""
  examples = collections.OrderedDict(x=np.full([n, 1], x, np.float32), y=np.full([n, width], y, np.float32))
  data = collections.OrderedDict(client_id=tf.data.Dataset.from_tensors(np.int64(client_id)))
  if absent is not None:
    data['absent'] = tf.data.Dataset.from_tensor_slices(np.asarray(absent, np.int64))
  if answer is not None:
    data['answer'] = tf.data.Dataset.from_tensors(answer)
  data['examples'] = tf.data.Dataset.from_tensors(examples)
  return data


def weights(process, state):
  """The trained tensors as arrays."""
  return [np.asarray(w) for w in process.get_model_weights(state).trainable]


def weight(process, state):
  """The model's one weight."""
  return float(weights(process, state)[0].ravel()[0])
