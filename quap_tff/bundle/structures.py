"""Values of a bundle's graphs: nested structures of NumPy arrays, and their types as JSON has them.

    {"dtype": "float32", "shape": [null, 10]}     a tensor; null for a size that is not fixed
    {"fields": [["x", …], ["y", …]]}              a structure: a `Struct`, or a list if its fields have no names
    {"sequence": …}                               a client's examples: a dataset

Fields have TFF's order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
  has_names = bool(parts and parts[0][0])
  return Struct(parts) if has_names else [part for _, part in parts]


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
  flat = []
  for leaf_kind, leaf, path in _leaves(kind, value, name):
    as_leaf = _variant if 'sequence' in leaf_kind else _tensor
    flat.append(as_leaf(leaf_kind, leaf, path))
  return flat


def _leaves(kind: Type, value: Any, name: str) -> Iterator[tuple[Type, Any, str]]:
  """The type, the value and the path of each leaf: a tensor or a sequence."""
  if 'fields' not in kind:
    yield kind, value, name
    return
  fields = kind['fields']
  # A mapping has its members by their names, and a list by their places.
  members: Mapping[Any, Any] = {}
  names: list[Any] = list(range(len(fields)))
  if isinstance(value, Mapping):
    members, names = value, [field for field, _ in fields]
  elif isinstance(value, (list, tuple)):
    members = dict(enumerate(value))
  if set(members) != set(names):
    found = ', '.join(map(str, members)) or type(value).__name__
    raise ValueError(f'{name} must be {described(kind)}, found {found}.')
  for key, (field, part) in zip(names, fields):
    yield from _leaves(part, members[key], f'{name}.{field or key}')


def _tensor(kind: Type, value: Any, name: str) -> Any:
  """A leaf of the right dtype and shape. Python's numbers and lists get the dtype."""
  if tf.is_tensor(value):
    dtype = np.dtype(value.dtype.as_numpy_dtype)
  else:
    is_typed = isinstance(value, (np.ndarray, np.generic)) or kind['dtype'] == 'str'
    value = np.asarray(value) if is_typed else np.asarray(value, kind['dtype'])
    dtype = value.dtype
  # Texts have a dtype for each length, and tensors of them another one.
  is_same = kind['dtype'] in ('str', dtype.name)
  if not is_same or not _fits(kind['shape'], value.shape):
    raise ValueError(f'{name} must be {described(kind)}, found {dtype.name}{list(value.shape)}.')
  return value


def _fits(expected: Optional[Sequence[Any]], given: Optional[Sequence[Any]]) -> bool:
  """True if a shape may be one of the type's. Sizes that are not known are None, and so is a shape of unknown rank."""
  if expected is None or given is None:
    return True
  if len(expected) != len(given):
    return False
  return all(None in (wanted, size) or wanted == size for wanted, size in zip(expected, given))


def _variant(kind: Type, value: Any, name: str) -> Any:
  """A dataset of elements of a type, as a tensor."""
  return tf.data.experimental.to_variant(_dataset(kind['sequence'], value, name))


def _dataset(element: Type, value: Any, name: str) -> Any:
  if isinstance(value, tf.data.Dataset):
    for kind, spec, path in _leaves(element, value.element_spec, name):
      if not _is_spec_of(kind, spec):
        raise ValueError(f'{path} must be {described(kind)} in each element, found a dataset of {spec}.')
    return value
  elements = value if isinstance(value, list) and not _is_one(element, value) else [value]
  whole: Any = None
  for one in elements:
    leaves = [_tensor(*leaf) for leaf in _leaves(element, one, name)]
    dataset = _dataset_of_one(element, leaves)
    whole = dataset if whole is None else whole.concatenate(dataset)
  if whole is None:
    # A dataset of nothing has a structure, too: that of an element which is not taken.
    return _dataset_of_one(element, list(map(_empty, types(element)))).take(0)
  return whole


def _is_spec_of(kind: Type, spec: Any) -> bool:
  """True if a dataset's spec of a leaf is of a type."""
  if not isinstance(spec, tf.TensorSpec) or spec.dtype.name.replace('string', 'str') != kind['dtype']:
    return False
  shape = None if spec.shape.rank is None else spec.shape.as_list()
  return _fits(kind['shape'], shape)


def _empty(kind: Type) -> np.ndarray:
  """A tensor of the type, of size 0 along each axis whose size is not fixed."""
  sizes = [size or 0 for size in kind['shape'] or ()]
  return np.zeros(sizes, kind['dtype'])


def _dataset_of_one(element: Type, leaves: Sequence[Any]) -> Any:
  # TensorFlow and TFF have one order of an element's tensors: that of the sorted names of a dict.
  return tf.data.Dataset.from_tensors(_for_dataset(pack(element, iter(leaves))))


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
    parts = []
    for name, part in kind['fields']:
      prefix = f'{name}: ' if name else ''
      parts.append(prefix + described(part))
    return f'{{{", ".join(parts)}}}'
  sizes = '…'
  if kind['shape'] is not None:
    sizes = ','.join(map(str, kind['shape'])).replace('None', '?')
  return f'{kind["dtype"]}[{sizes}]'
