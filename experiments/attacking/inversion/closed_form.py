"""Closed forms of what gradients give away: the inputs of a Dense layer, and labels.

The input of a Dense layer is the quotient of its gradients (Phong et al. 2018, section 3). Unit j has the gradients
ΔW_j = Σ_b δ_bj·a_b and Δb_j = Σ_b δ_bj. For one example, ΔW_j/Δb_j = a. For a batch, the quotient is a mean of the a_b
with weights δ_bj/Σ_b δ_bj: it is an example where one of them dominates, as where ReLU lets only one example through.
Units with (nearly) the same quotient betray that: mixtures differ.

If the layer takes in features and not the image, the image is sought whose features are those found (Mahendran and
Vedaldi 2015). This needs only first derivatives, so ReLU and max pooling do not hinder it.

With cross-entropy the gradient of the final layer's bias is g = mean_b (p_b - y_b): p_b are the predicted probabilities
and y_b the labels, one-hot. One example makes only its own class negative (iDLG's rule: Zhao, Mopuri and Bilen 2020).
For a batch this is an extension of ours, close to Wainakh et al. 2022: the counts n of the labels are those for which
p̄ - n/B points most nearly where g points.
"""

from collections.abc import Sequence
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf

from experiments.attacking.inversion import model as inversion_model

# A unit whose bias has moved less than this share of the largest one says too little.
_SMALLEST_BIAS = 1e-3
# Relative distances: within the first, two quotients are the same; within the second, not both are worth having.
_SAME, _SIMILAR = 0.01, 0.05
# The unknown scale of the update over that of the gradient, relative to the largest entry.
_SCALES = np.geomspace(0.3, 30, 60)


def dense_inputs(kernel: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The quotients of one update.

  Args:
    kernel: float[I, O], the update of the kernel.
    bias: float[O], the update of the bias.

  Returns:
    (float64[J, I], float64[J]): a quotient for each unit with a bias that moved, and |Δb_j|. One row of zeros if no
    bias moved.
  """
  kernel, bias = np.asarray(kernel, np.float64), np.asarray(bias, np.float64)
  strength = np.abs(bias)
  kept = strength >= _SMALLEST_BIAS * strength.max() if strength.max() > 0 else np.zeros(len(bias), bool)
  if not kept.any():
    return np.zeros([1, len(kernel)]), np.zeros(1)
  return (kernel[:, kept] / bias[kept]).T, strength[kept]


def choose(candidates: np.ndarray, strengths: np.ndarray, count: int, upper: Optional[float] = None) -> np.ndarray:
  """The `count` candidates that look most like single examples, float64[count, I]; repeated if there are too few.

  First come those that another unit repeats, then those that keep to the range of examples (mixtures with negative
  weights leave it), then those of units that moved most. Near copies of one that is already chosen come last.

  Args:
    candidates: float64[J, I] from `dense_inputs`.
    strengths: float64[J].
    count: How many examples the update holds.
    upper: The largest value of an example. The smallest is 0, for images and after ReLU.
  """
  if count == 1:
    # All quotients are the same up to rounding and noise, and a unit that moved more has less of both.
    return candidates[strengths.argmax()][None]
  norms = np.linalg.norm(candidates, axis=1)
  squares = np.square(norms)[:, None] + np.square(norms)[None] - 2 * candidates @ candidates.T
  distances = np.sqrt(np.maximum(squares, 0)) / np.maximum(np.maximum(norms[:, None], norms[None]), 1e-30)
  repeated = (distances < _SAME).sum(axis=1) > 1
  outside = np.maximum(-candidates, 0) + (np.maximum(candidates - upper, 0) if upper is not None else 0)
  outside = np.round(outside.mean(axis=1) / np.maximum(np.abs(candidates).mean(axis=1), 1e-30), 3)
  order = np.lexsort((-strengths, outside, ~repeated))
  chosen: list[int] = []
  copies: list[int] = []
  for j in order:
    (copies if chosen and distances[j, chosen].min() < _SIMILAR else chosen).append(j)
  return candidates[np.resize(chosen + copies, count)]


def labels(model: inversion_model.StackedModel, update: Sequence[np.ndarray], count: int) -> np.ndarray:
  """Labels int64[T, count], ascending for each target, whatever noise the final layer has.

  If that layer has no bias, the sum of its kernel's rows stands for g. This works where the layer's inputs are
  positive, as they are after ReLU.

  Args:
    model: The model.
    update: float[T, …] for each tensor of weights, w_global - w_local.
    count: B, how many examples the update holds.
  """
  last = np.asarray(update[model.final_dense[-1]], np.float64)
  blank = tf.random.stateless_uniform([1, 64, *model.input_shape], [0, 0])
  mean = tf.reduce_mean(tf.nn.softmax(model.logits(model.stacked(1), blank)), axis=[0, 1])
  has_bias = len(model.final_dense) == 2
  scores = last if has_bias else last.sum(axis=1)
  return labels_from_scores(scores, count, mean.numpy())


def labels_from_scores(scores: np.ndarray, count: int, mean_probabilities: np.ndarray) -> np.ndarray:
  """Labels int64[T, count], ascending for each target.

  Args:
    scores: float[T, classes], g up to a positive factor.
    count: B, how many examples the update holds.
    mean_probabilities: float[classes], p̄: the model's mean prediction for images without content.
  """
  if count == 1:
    return scores.argmin(axis=1)[:, None]
  return np.stack([_most_parallel(g, count, np.asarray(mean_probabilities, np.float64)) for g in scores])


def _most_parallel(g: np.ndarray, count: int, mean_probabilities: np.ndarray) -> np.ndarray:
  largest = np.abs(g).max()
  if not largest > 0:
    return np.zeros(count, np.int64)

  def cosine(counts: np.ndarray) -> float:
    direction = mean_probabilities - counts / count
    return direction @ g / (np.linalg.norm(direction) * np.linalg.norm(g) + 1e-30)

  tried = [_rounded(count * (mean_probabilities - g / scale), count) for scale in _SCALES * largest]
  return np.repeat(np.arange(len(g)), max(tried, key=cosine))


def _rounded(wanted: np.ndarray, total: int) -> np.ndarray:
  """Non-negative integers near `wanted` that add up to `total`: whole parts, then the largest remainders."""
  wanted = np.maximum(wanted, 0)
  wanted = wanted * total / wanted.sum() if wanted.sum() > 0 else np.full(len(wanted), total / len(wanted))
  counts = np.floor(wanted).astype(np.int64)
  for index in np.argsort(counts - wanted, kind='stable')[: total - counts.sum()]:
    counts[index] += 1
  return counts


def total_variation(x: tf.Tensor) -> tf.Tensor:
  """The mean absolute difference of neighbouring pixels, downwards plus to the right, of images [..., H, W, C]."""
  down = tf.reduce_mean(tf.abs(x[..., 1:, :, :] - x[..., :-1, :, :]), axis=[-3, -2, -1])
  right = tf.reduce_mean(tf.abs(x[..., :, 1:, :] - x[..., :, :-1, :]), axis=[-3, -2, -1])
  return down + right


def build_feature_inversion(
  model: inversion_model.StackedModel, iterations: int, smoothness: float = 1e-3, learning_rate: float = 0.05
) -> Callable[[np.ndarray], np.ndarray]:
  """A function from features float[n, d] to images float32[n, …] in [0, 1] that have nearly those features.

  It minimises ‖φ(x) - f‖²/‖f‖² + smoothness·TV(x) from grey images, by Adam with a rate that falls to zero.

  Args:
    model: The model. Its initial weights are those that the server has sent.
    iterations: Steps of Adam.
    smoothness: Weight of the total variation.
    learning_rate: The learning rate of Adam, in units of pixels.
  """
  weights = [w[tf.newaxis] for w in model.initial_weights]

  @tf.function(autograph=False)
  def invert(target: tf.Tensor) -> tf.Tensor:
    size = tf.maximum(tf.reduce_sum(tf.square(target), axis=-1), 1e-12)

    def step(k: tf.Tensor, x: tf.Tensor, first: tf.Tensor, second: tf.Tensor) -> tuple[tf.Tensor, ...]:
      with tf.GradientTape() as tape:
        tape.watch(x)
        error = tf.reduce_sum(tf.square(model.features(weights, x[tf.newaxis])[0] - target), axis=-1) / size
        loss = tf.reduce_sum(error + smoothness * total_variation(x))
      x, first, second = adam_step(
        x, tape.gradient(loss, x), first, second, k, learning_rate * (1 - tf.cast(k, tf.float32) / iterations)
      )
      return k + 1, tf.clip_by_value(x, 0.0, 1.0), first, second

    start = tf.fill([target.shape[0], *model.input_shape], 0.5)
    zeros = tf.zeros_like(start)
    return tf.while_loop(lambda k, *_: k < iterations, step, (tf.constant(0), start, zeros, zeros))[1]

  return lambda features: invert(tf.constant(features, tf.float32)).numpy()


def adam_step(
  x: tf.Tensor, gradient: tf.Tensor, first: tf.Tensor, second: tf.Tensor, k: tf.Tensor, learning_rate: Any
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """One step of Adam: (x, first moment, second moment) after step k = 0, 1, …."""
  first = 0.9 * first + 0.1 * gradient
  second = 0.999 * second + 0.001 * tf.square(gradient)
  power = tf.cast(k + 1, tf.float32)
  scaled = (first / (1 - tf.pow(0.9, power))) / (tf.sqrt(second / (1 - tf.pow(0.999, power))) + 1e-12)
  return x - learning_rate * scaled, first, second
