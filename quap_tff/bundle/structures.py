"""Values of a bundle's graphs: nested structures of NumPy arrays, and their types as JSON has them.

    {"dtype": "float32", "shape": [null, 10]}     a tensor; null for a size that is not fixed
    {"fields": [["x", …], ["y", …]]}              a structure: a `Struct`, or a list if its fields have no names
    {"sequence": …}                               a client's examples: a dataset

Fields have TFF's order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import functools
from typing import Any, Optional

import numpy as np

from quap_tff.common.lazy import tf

# A type as JSON has it.
Type = Mapping[str, Any]


class Struct(dict[str, Any]):
  """A dict whose values are also attributes."""

  def __getattr__(self, name: str) -> Any:
    try:
      return self[name]
    except KeyError:
      raise AttributeError(name) from None


def pack(kind: Type, leaves: Iterator[Any]) -> Any:
  """The value of a type, from its leaves in order."""
  if 'fields' not in kind:
    return next(leaves)
  parts = [(name, pack(part, leaves)) for name, part in kind['fields']]
  return Struct(parts) if parts and parts[0][0] else [part for _, part in parts]


def flatten(kind: Type, value: Any, name: str) -> list[Any]:
  """The leaves of a value, in order: arrays or tensors, and of a sequence the dataset's variant.

  Args:
    kind: The type.
    value: For a sequence, a `tf.data.Dataset`, a list of elements, or one element. A list of arrays is one element
      where elements are structures.
    name: What it is, for errors.

  Raises:
    ValueError: If the value is not of the type.
  """
  as_leaf = lambda part: _variant if 'sequence' in part else _tensor
  return [as_leaf(part)(part, own, path) for part, own, path in _leaves(kind, value, name)]


def _leaves(kind: Type, value: Any, name: str) -> Iterator[tuple[Type, Any, str]]:
  """The type, the value and the path of each leaf: a tensor or a sequence."""
  if 'fields' not in kind:
    yield kind, value, name
    return
  fields, is_named = kind['fields'], isinstance(value, Mapping)
  members = value if is_named else dict(enumerate(value)) if isinstance(value, (list, tuple)) else {}
  names = [field if is_named else place for place, (field, _) in enumerate(fields)]
  if set(members) != set(names):
    raise ValueError(f'{name} must be {described(kind)}, found {", ".join(map(str, members)) or type(value).__name__}.')
  for place, (field, part) in zip(names, fields):
    yield from _leaves(part, members[place], f'{name}.{field or place}')


def _tensor(kind: Type, value: Any, name: str) -> Any:
  """A leaf of the right dtype and shape. Python's numbers and lists get the dtype."""
  if not tf.is_tensor(value):
    is_typed = isinstance(value, (np.ndarray, np.generic)) or kind['dtype'] == 'str'
    value = np.asarray(value) if is_typed else np.asarray(value, kind['dtype'])
  dtype = value.dtype.as_numpy_dtype if tf.is_tensor(value) else value.dtype
  is_same = kind['dtype'] in ('str', np.dtype(dtype).name)
  if not is_same or not _fits(kind['shape'], value.shape):
    raise ValueError(f'{name} must be {described(kind)}, found {np.dtype(dtype).name}{list(value.shape)}.')
  return value


def _fits(expected: Optional[Sequence[Any]], given: Optional[Sequence[Any]]) -> bool:
  """True if a shape may be one of the type's. Sizes that are not known are None, and so is a shape of unknown rank."""
  if expected is None or given is None:
    return True
  return len(expected) == len(given) and all(None in pair or pair[0] == pair[1] for pair in zip(expected, given))


def _variant(kind: Type, value: Any, name: str) -> Any:
  """A dataset of elements of a type, as a tensor."""
  return tf.data.experimental.to_variant(_dataset(kind['sequence'], value, name))


def _dataset(element: Type, value: Any, name: str) -> Any:
  if isinstance(value, tf.data.Dataset):
    for kind, spec, path in _leaves(element, value.element_spec, name):
      is_same = isinstance(spec, tf.TensorSpec) and spec.dtype.name.replace('string', 'str') == kind['dtype']
      if not is_same or not _fits(kind['shape'], None if spec.shape.rank is None else spec.shape.as_list()):
        raise ValueError(f'{path} must be {described(kind)} in each element, found a dataset of {spec}.')
    return value
  elements = value if isinstance(value, list) and not _is_one(element, value) else [value]
  leaves = [[_tensor(*leaf) for leaf in _leaves(element, one, name)] for one in elements]
  nothing = [np.zeros([size or 0 for size in kind['shape'] or ()], kind['dtype']) for kind in types(element)]
  # TensorFlow and TFF have one order of an element's tensors: that of the sorted names of a dict.
  made = [tf.data.Dataset.from_tensors(_for_dataset(pack(element, iter(one)))) for one in leaves or [nothing]]
  return functools.reduce(lambda joined, one: joined.concatenate(one), made).take(len(elements))


def _is_one(element: Type, value: list[Any]) -> bool:
  """Whether a list is one element, a structure of arrays without names, and not a list of elements."""
  return 'fields' in element and any(isinstance(part, np.ndarray) or tf.is_tensor(part) for part in value)


def types(kind: Type) -> Iterator[Type]:
  """The types of the leaves."""
  if 'fields' not in kind:
    yield kind
    return
  for _, part in kind['fields']:
    yield from types(part)


def _for_dataset(value: Any) -> Any:
  """A structure that TensorFlow knows: lists, which it would take for one array, become tuples."""
  if isinstance(value, dict):
    return {name: _for_dataset(part) for name, part in value.items()}
  return tuple(map(_for_dataset, value)) if isinstance(value, list) else value


def described(kind: Type) -> str:
  """A type for people, as in `{x: float32[?,8,8,1], y: int32[?]}`."""
  if 'sequence' in kind:
    return f'sequence of {described(kind["sequence"])}'
  if 'fields' in kind:
    parts = (f'{name}: {described(part)}' if name else described(part) for name, part in kind['fields'])
    return f'{{{", ".join(parts)}}}'
  sizes = '…' if kind['shape'] is None else ','.join('?' if size is None else str(size) for size in kind['shape'])
  return f'{kind["dtype"]}[{sizes}]'
