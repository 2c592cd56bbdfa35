"""Labels from an update: iDLG's rule, and two extensions for updates that it does not cover.

With cross-entropy the gradient of the final layer's bias is g = mean_b (p_b - y_b): p_b are the predicted probabilities
and y_b the labels, one-hot. One example makes only its own class negative (Zhao, Mopuri and Bilen 2020). For a batch
this is an extension of ours, close to Wainakh et al. 2022: the counts n of the labels are those for which p̄ - n/B
points most nearly where g points.
"""

from collections.abc import Sequence

import numpy as np

from quap_tff.auditing.inversion import model as inversion_model

# The unknown scale of the update over that of the gradient, relative to the largest entry.
_SCALES = np.geomspace(0.3, 30, 60)


def class_scores(model: inversion_model.StackedModel, update: Sequence[np.ndarray]) -> np.ndarray:
  """g up to a positive factor, float64[T, classes]: the bias of the final layer, or the sum of its kernel's rows.

  The sum works where the layer's inputs are positive, as they are after ReLU.

  Args:
    model: The model.
    update: float[T, …] for each tensor of weights, w_global - w_local.
  """
  last = np.asarray(update[model.final_dense[-1]], np.float64)
  return last if len(model.final_dense) == 2 else last.sum(axis=1)


def from_scores(scores: np.ndarray, count: int, mean_probabilities: np.ndarray) -> np.ndarray:
  """Labels int64[T, count], ascending for each target.

  Args:
    scores: float[T, classes] from `class_scores`.
    count: B, how many examples the update holds.
    mean_probabilities: float[classes], p̄: the model's mean prediction for images without content.
  """
  if count == 1:
    return scores.argmin(axis=1)[:, None]
  return np.stack([_most_parallel(g, count, np.asarray(mean_probabilities, np.float64)) for g in scores])


def _most_parallel(g, count, mean_probabilities):
  best, labels = -np.inf, None
  if not np.abs(g).max() > 0:
    return np.zeros(count, np.int64)
  for scale in _SCALES * np.abs(g).max():
    counts = _rounded(count * (mean_probabilities - g / scale), count)
    direction = mean_probabilities - counts / count
    cosine = direction @ g / (np.linalg.norm(direction) * np.linalg.norm(g) + 1e-30)
    if cosine > best:
      best, labels = cosine, np.repeat(np.arange(len(g)), counts)
  return labels


def _rounded(wanted, total):
  """Non-negative integers near `wanted` that add up to `total`: whole parts, then the largest remainders."""
  wanted = np.maximum(wanted, 0)
  wanted = wanted * total / wanted.sum() if wanted.sum() > 0 else np.full(len(wanted), total / len(wanted))
  counts = np.floor(wanted).astype(np.int64)
  for index in np.argsort(counts - wanted, kind='stable')[: total - counts.sum()]:
    counts[index] += 1
  return counts


def accuracy(true: np.ndarray, found: np.ndarray) -> np.ndarray:
  """The share of each target's labels that were found, as multisets, float64[T].

  Args:
    true: int[T, n].
    found: int[T, n], in any order.
  """
  shares = []
  for a, b in zip(true, found):
    classes = 1 + max(a.max(), b.max())
    both = np.minimum(np.bincount(a, minlength=classes), np.bincount(b, minlength=classes))
    shares.append(both.sum() / len(a))
  return np.array(shares, np.float64)
