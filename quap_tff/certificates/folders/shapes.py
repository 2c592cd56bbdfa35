"""The shape of a model, as the files of a folder have it."""

from collections.abc import Mapping
import math
from typing import Any

from quap_tff.mechanisms.parts import layers as layers_lib

# More weights than this fill no file that is read.
_MOST_WEIGHTS = 2**31


def model_shape(value: Mapping[str, Any]) -> layers_lib.ModelShape:
  """The shape of a model, from `layers` and `shapes` of a JSON value. Raises any error if they do not fit together."""
  shapes = tuple(map(tuple, value['shapes']))
  if not shapes or not all(type(size) is int and size >= 1 for shape in shapes for size in shape):
    raise ValueError(f'shapes must be lists of integers, at least 1, found {value["shapes"]!r}')
  if sum(map(math.prod, shapes)) > _MOST_WEIGHTS:
    raise ValueError(f'the model has more than {_MOST_WEIGHTS:,} weights')
  layers = [layers_lib.Layer(**{**one, 'indices': tuple(one['indices'])}) for one in value['layers']]
  indices = [index for layer in layers for index in layer.indices]
  if not all(isinstance(layer.name, str) and isinstance(layer.is_dense, bool) for layer in layers):
    raise ValueError('each layer must have a text as its name, and is_dense must be true or false')
  if sorted(indices) != list(range(len(shapes))) or not all(type(index) is int for index in indices):
    raise ValueError(f'the layers do not hold each of the {len(shapes)} tensors of the model once')
  return layers_lib.ModelShape(tuple(layers), shapes)
