"""Inversion by matching gradients: images whose local training gives the update that was seen.

* `l2`: Σ ‖g(x) - g‖²/‖g‖² (Zhu, Liu and Han 2019, DLG);
* `cosine`: 1 - <g(x), g>/(‖g(x)‖·‖g‖) plus total variation, minimised by the signs of the derivatives (Geiping et al.
  2020).

g(x) is the whole local training of x, all steps of it, so that several local steps are simulated and not taken for one
gradient. Tensors with noise can be left out.
"""

from collections.abc import Sequence
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from quap_tff.auditing.inversion import closed_form
from quap_tff.auditing.inversion import model as inversion_model

# The learning rate falls to a tenth after these shares of the iterations, as in Geiping et al.'s code.
_DROPS = (3 / 8, 5 / 8, 7 / 8)
# Iterations in one call: an interrupt waits for no more than these.
_CHUNK = 50


def distances(kind: str, found: Sequence[tf.Tensor], wanted: Sequence[tf.Tensor], visible: tf.Tensor) -> tf.Tensor:
  """The distance of each target's simulated update from the one that was seen, float32[T].

  Args:
    kind: 'l2' or 'cosine'.
    found: float32[T, …] for each tensor.
    wanted: The same shapes.
    visible: float32 for each tensor: 1 if the attack looks at it, else 0.
  """
  inner = lambda a, b: tf.reduce_sum(tf.reshape(a * b, [a.shape[0], -1]), axis=1)
  add = lambda left, right: tf.add_n([visible[i] * inner(a, b) for i, (a, b) in enumerate(zip(left, right))])
  size = tf.maximum(add(wanted, wanted), 1e-30)
  if kind == 'l2':
    apart = [a - b for a, b in zip(found, wanted)]
    return add(apart, apart) / size
  return 1 - add(found, wanted) / tf.sqrt(size * tf.maximum(add(found, found), 1e-30))


def build(
  model: inversion_model.StackedModel, matching: Any, learning_rate: float, steps: int
) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
  """A function that recovers images and labels.

  Args:
    model: The model.
    matching: How, an `inversion.Matching`.
    learning_rate: The clients' learning rate.
    steps: The clients' local steps.

  Returns:
    A function (observed, visible, labels, learns_labels, seed) -> (images float32[T, B, …], label probabilities
    float32[T, B, classes]). `observed` are float[T, …] for each tensor, `visible` bools for each tensor, `labels`
    float[T, B, classes] are distributions to start from, and `learns_labels` says whether they are optimised together
    with the images, as DLG does.
  """

  @tf.function(autograph=False)
  def advance(observed, visible, label_rate, begin, end, state):
    weights = model.stacked(observed[0].shape[0])

    def step(k, x, x1, x2, z, z1, z2):
      with tf.GradientTape() as tape:
        tape.watch([x, z])
        update = inversion_model.local_update(model, weights, x, tf.nn.softmax(z), learning_rate, steps)
        distance = distances(matching.distance, update, observed, visible)
        prior = matching.smoothness * tf.reduce_mean(closed_form.total_variation(x), axis=1)
        loss = tf.reduce_sum(distance + prior)
      by_x, by_z = tape.gradient(loss, [x, z])
      if matching.signed:
        by_x = tf.sign(by_x)
      rate = _rate(matching, k)
      x, x1, x2 = closed_form.adam_step(x, by_x, x1, x2, k, rate)
      z, z1, z2 = closed_form.adam_step(z, by_z, z1, z2, k, label_rate * rate)
      return k + 1, tf.clip_by_value(x, 0.0, 1.0), x1, x2, z, z1, z2

    return tf.while_loop(lambda k, *_: k < end, step, (begin, *state))[1:]

  def recover(observed: list[Any], visible, labels, learns_labels: bool, seed: int):
    observed = [tf.constant(o, tf.float32) for o in observed]
    labels = tf.constant(labels, tf.float32)
    shape = [*labels.shape[:2], *model.input_shape]
    x = tf.random.stateless_uniform(shape, [seed, 0], 0.3, 0.7)
    z = tf.math.log(labels + 1e-9)
    state = (x, *[tf.zeros_like(x)] * 2, z, *[tf.zeros_like(z)] * 2)
    visible = tf.constant(np.asarray(visible, np.float32))
    # Labels live on another scale than pixels: ten times the rate moves a probability as far as a pixel.
    rate = tf.constant(1.0 if learns_labels else 0.0)
    for begin in range(0, matching.iterations, _CHUNK):
      end = min(begin + _CHUNK, matching.iterations)
      state = advance(observed, visible, rate, tf.constant(begin), tf.constant(end), state)
    return state[0].numpy(), tf.nn.softmax(state[3]).numpy()

  return recover


def _rate(matching, k):
  passed = [tf.cast(tf.cast(k, tf.float32) >= share * matching.iterations, tf.float32) for share in _DROPS]
  return matching.learning_rate * tf.pow(0.1, tf.add_n(passed))
