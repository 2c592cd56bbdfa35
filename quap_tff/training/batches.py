"""Evaluation of examples in batches, by any function that counts the hits of one."""

import collections
from collections.abc import Mapping
from typing import Callable

import numpy as np

from quap_tff.common import array_types
from quap_tff.common.lazy import tf


def evaluated(
  evaluate_batch: Callable[[array_types.Structure, array_types.Array], tuple[array_types.Numbers, ...]],
  x: array_types.Structure,
  y: np.ndarray,
  batch_size: int,
) -> Mapping[str, float]:
  """`<loss=float, accuracy=float, num_examples=int>` of all examples; loss and accuracy are NaN if there is no label.

  Args:
    evaluate_batch: From examples and labels to the sum of their losses, the number of hits and the number of labels.
    x: Arrays with n rows, of the model's batch structure.
    y: The labels, n rows.
    batch_size: Rows in a batch.

  Raises:
    ValueError: If `x` and `y` differ in length.
  """
  lengths = {len(leaf) for leaf in tf.nest.flatten((x, y))}
  if len(lengths) != 1:
    raise ValueError(f'Expected x and y of equal length, found lengths {sorted(lengths)}.')
  (num_examples,) = lengths
  sums = np.zeros(3)
  for begin in range(0, num_examples, batch_size):
    rows = slice(begin, begin + batch_size)
    x_batch, y_batch = (tf.nest.map_structure(lambda leaf, rows=rows: leaf[rows], part) for part in (x, y))
    sums += [float(t) for t in evaluate_batch(x_batch, y_batch)]
  loss_sum, hits, labels = sums
  loss, accuracy = float('nan'), float('nan')
  if labels:
    loss, accuracy = loss_sum / labels, hits / labels
  return collections.OrderedDict(loss=loss, accuracy=accuracy, num_examples=num_examples)
