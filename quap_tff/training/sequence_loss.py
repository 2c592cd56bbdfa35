"""Loss and accuracy of next-token prediction: means over the places that have a label, which padding has not.

loss = Σ_{places with a label} -log softmax(logits)_y / (number of such places)
"""

import tensorflow as tf

# The label of a place after which nothing follows.
NO_LABEL = -1


class LabelledCrossEntropy(tf.keras.losses.Loss):
  """Mean cross-entropy, in nats, of logits float32[..., classes] over labels int[...] other than `NO_LABEL`.

  It is 0 if there is no label, and then its gradient is 0, too.
  """

  def __init__(self, reduction=tf.keras.losses.Reduction.NONE, name='labelled_cross_entropy'):
    super().__init__(reduction, name)

  def call(self, y_true, y_pred):
    """The mean, a scalar."""
    has_label = tf.not_equal(y_true, NO_LABEL)
    # A class number must be in range even where its loss is not counted.
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.where(has_label, y_true, 0), y_pred)
    counted = tf.cast(has_label, losses.dtype)
    return tf.math.divide_no_nan(tf.reduce_sum(losses * counted), tf.reduce_sum(counted))


def label_weights(labels: tf.Tensor) -> tf.Tensor:
  """What labels count in the accuracy, float32 of the same shape: 1, and 0 for `NO_LABEL`."""
  return tf.cast(tf.not_equal(labels, NO_LABEL), tf.float32)
