"""First weights that somebody else's program has made, of a model that only this program knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.mechanisms.parts import layers

# By name, as in an .npz file, or in order.
Weights = Union[Mapping[str, Any], Sequence[Any]]


def named(weights: Weights) -> dict[str, np.ndarray]:
  """The tensors by name, in order; those of a sequence are arr_0, arr_1, ….

  Raises:
    ValueError: If there are none, or one is not a float32 array of finite numbers.
  """
  given = weights if isinstance(weights, Mapping) else {f'arr_{index}': one for index, one in enumerate(weights)}
  arrays = {name: np.asarray(given[name]) for name in given}
  if not arrays:
    raise ValueError('There are no weights. Give the trained tensors of the model.')
  for name, array in arrays.items():
    if array.dtype != np.float32:
      raise ValueError(
        f'Weights must be float32, and {name} is {array.dtype.name}. Updates are computed in float32: write weights '
        "with .astype('float32'), and let the program that trains use the same."
      )
    if not array.size or not np.isfinite(array).all():
      raise ValueError(f'Weights must be finite numbers, and {name}{list(array.shape)} has others, or none.')
  return arrays


def shape_of(weights: Weights) -> layers.ModelShape:
  """The shape of the model. Tensors belong to one layer if their names are the same before the last dot or slash."""
  arrays = named(weights)
  shapes = tuple(array.shape for array in arrays.values())
  names = [name.replace('.', '/') for name in arrays]
  return layers.ModelShape(layers.from_names(names, shapes), shapes)


def initial(weights: Weights) -> tff.Computation:
  """A computation without arguments that gives the weights, a `tff.learning.models.ModelWeights`."""
  arrays = list(named(weights).values())

  @tff.tensorflow.computation
  def initial_weights() -> tff.learning.models.ModelWeights:
    return tff.learning.models.ModelWeights(trainable=[tf.constant(one) for one in arrays], non_trainable=[])

  return initial_weights
