"""Comparison of true and recovered images: PSNR and SSIM, the assignment of one to the other, and pictures of both.

PSNR = 10·log10(1/MSE) in decibels for pixels in [0, 1]; SSIM: Wang et al. 2004. Both come from `tf.image`.
"""

import numpy as np
from scipy import optimize
import tensorflow as tf

# Identical images have no finite PSNR. At 60 dB the mean error is a quarter of a grey level of 256.
LARGEST_PSNR = 60.0
_SSIM_WINDOW = 11


def psnr(true: np.ndarray, recovered: np.ndarray) -> np.ndarray:
  """Decibels, float64[n], for images float[n, H, W, C] in [0, 1]; at most `LARGEST_PSNR`."""
  decibels = tf.image.psnr(tf.constant(true, tf.float32), tf.constant(recovered, tf.float32), max_val=1.0)
  return np.minimum(decibels.numpy().astype(np.float64), LARGEST_PSNR)


def ssim(true: np.ndarray, recovered: np.ndarray) -> np.ndarray:
  """Structural similarity, float64[n] in [-1, 1], for images float[n, H, W, C] in [0, 1].

  The window has 11 pixels, as in the paper, or as many odd pixels as a smaller image has.
  """
  side = min(true.shape[1:3])
  window = min(_SSIM_WINDOW, side - 1 + side % 2)
  similarity = tf.image.ssim(
    tf.constant(true, tf.float32), tf.constant(recovered, tf.float32), max_val=1.0, filter_size=window
  )
  return similarity.numpy().astype(np.float64)


def nearest(true: np.ndarray, recovered: np.ndarray) -> np.ndarray:
  """Assigns a recovered image to each true one, with the least squared error in all.

  No recovered image belongs to two true ones, so an attack that returns one good image many times gains nothing.

  Args:
    true: float[n, …].
    recovered: float[m, …], m >= n.

  Returns:
    int64[n], distinct positions in `recovered`.

  Raises:
    ValueError: If fewer images were recovered than there are true ones.
  """
  a, b = (np.reshape(v, [len(v), -1]).astype(np.float64) for v in (true, recovered))
  if len(b) < len(a):
    raise ValueError(f'Expected at least as many recovered images as true ones ({len(a)}), found {len(b)}.')
  cost = np.square(a).sum(1)[:, None] - 2 * a @ b.T + np.square(b).sum(1)[None]
  return optimize.linear_sum_assignment(cost)[1]


def grid(true: np.ndarray, recovered: np.ndarray) -> np.ndarray:
  """One picture, float32[2·H + 3, n·(W + 1) + 1, 3]: the true images above, the recovered ones below, in grey frames.

  Args:
    true: float[n, H, W, C] in [0, 1], C 1 or 3.
    recovered: The same shape. Values outside [0, 1] are cut off.
  """
  n, height, width, _ = true.shape
  picture = np.full([2 * height + 3, n * (width + 1) + 1, 3], 0.5, np.float32)
  for row, images in enumerate((true, recovered)):
    for column in range(n):
      top, left = 1 + row * (height + 1), 1 + column * (width + 1)
      picture[top : top + height, left : left + width] = np.clip(np.nan_to_num(images[column]), 0, 1)
  return picture


def label_accuracy(true: np.ndarray, recovered: np.ndarray) -> np.ndarray:
  """The share of each target's labels that were found, as multisets, float64[T].

  Args:
    true: int[T, n].
    recovered: int[T, n], in any order.
  """
  shares = []
  for a, b in zip(true, recovered):
    classes = 1 + max(a.max(), b.max())
    both = np.minimum(np.bincount(a, minlength=classes), np.bincount(b, minlength=classes))
    shares.append(both.sum() / len(a))
  return np.array(shares, np.float64)
