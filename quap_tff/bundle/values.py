"""Values of a bundle's graphs: nested Python structures of NumPy arrays, and their types as JSON has them.

    {"dtype": "float32", "shape": [null, 10]}                                a tensor; null for a size that is not fixed
    {"fields": [["x", …], ["y", …]], "container": "dict", "named" or "list"} a structure; names are null in a list
    {"sequence": …}                                                          a client's examples: a dataset

Fields have TFF's order. A value's structures are `OrderedDict`s, named tuples and lists. As arguments, all that has the
fields will do.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
import functools
from typing import Any, Optional

import numpy as np

from quap_tff.common.lazy import tf

# A type as JSON has it.
Type = Mapping[str, Any]


def pack(kind: Type, leaves: Iterator[Any]) -> Any:
  """The value of a type, from its leaves in order."""
  if 'fields' not in kind:
    return next(leaves)
  found = [(name, pack(part, leaves)) for name, part in kind['fields']]
  if kind['container'] == 'dict':
    return collections.OrderedDict(found)
  parts = [part for _, part in found]
  return _named_tuple(tuple(name for name, _ in found))(*parts) if kind['container'] == 'named' else parts


@functools.cache
def _named_tuple(names: tuple[str, ...]) -> Any:
  return collections.namedtuple('Struct', names)  # type: ignore[misc]


def flatten(kind: Type, value: Any, name: str) -> list[Any]:
  """The leaves of a value, in order: arrays or tensors, and of a sequence the dataset's variant.

  Args:
    kind: The type.
    value: Of a sequence a `tf.data.Dataset`, a list of elements, or one element.
    name: What it is, for errors.

  Raises:
    ValueError: If the value is not of the type.
  """
  return [_leaf(*leaf) for leaf in _leaves(kind, value, name)]


def _leaves(kind: Type, value: Any, name: str) -> Iterator[tuple[Type, Any, str]]:
  """The type, the value and the path of each leaf: a tensor or a sequence."""
  if 'fields' not in kind:
    yield kind, value, name
    return
  fields = kind['fields']
  if isinstance(value, (list, tuple)) and not hasattr(value, '_fields'):
    own: dict[Any, Any] = dict(enumerate(value))
    names: list[Any] = list(range(len(fields)))
  else:
    own = dict(value) if isinstance(value, Mapping) else _attributes(value)
    names = [field for field, _ in fields]
  if own.keys() != set(names):
    wanted, found = (', '.join(map(str, one)) or 'no fields' for one in (names, own))
    raise ValueError(f'{name} must be {described(kind)}, with {wanted}; found {found}.')
  for place, (field, part) in zip(names, fields):
    yield from _leaves(part, own[place], f'{name}.{field or place}')


def _attributes(value: Any) -> dict[str, Any]:
  return value._asdict() if hasattr(value, '_asdict') else dict(getattr(value, '__dict__', {}))


def _leaf(kind: Type, value: Any, name: str) -> Any:
  if 'sequence' in kind:
    return tf.data.experimental.to_variant(_dataset(kind['sequence'], value, name))
  return _tensor(kind, value, name)


def _tensor(kind: Type, value: Any, name: str) -> Any:
  """A leaf of the right dtype and shape. Python's numbers and lists get the dtype."""
  if not tf.is_tensor(value):
    is_typed = isinstance(value, (np.ndarray, np.generic)) or kind['dtype'] == 'str'
    value = np.asarray(value) if is_typed else np.asarray(value, kind['dtype'])
  found = value.dtype.as_numpy_dtype if tf.is_tensor(value) else value.dtype
  is_same = kind['dtype'] in ('str', np.dtype(found).name)
  if not is_same or not _fits(kind['shape'], value.shape):
    raise ValueError(f'{name} must be {described(kind)}, found {np.dtype(found).name}{list(value.shape)}.')
  return value


def _fits(expected: Optional[Sequence[Any]], found: Optional[Sequence[Any]]) -> bool:
  """Whether a shape may be one of the type's. Sizes that are not known are None, and so is a shape of unknown rank."""
  if expected is None or found is None:
    return True
  return len(expected) == len(found) and all(None in pair or pair[0] == pair[1] for pair in zip(expected, found))


def _dataset(element: Type, value: Any, name: str) -> Any:
  """A dataset of elements of a type."""
  if isinstance(value, tf.data.Dataset):
    for kind, spec, path in _leaves(element, value.element_spec, name):
      is_same = isinstance(spec, tf.TensorSpec) and spec.dtype.name.replace('string', 'str') == kind['dtype']
      if not is_same or not _fits(kind['shape'], None if spec.shape.rank is None else spec.shape.as_list()):
        raise ValueError(f'{path} must be {described(kind)} in each element, found a dataset of {spec}.')
    return value
  elements = value if isinstance(value, list) else [value]
  leaves = [[_tensor(*leaf) for leaf in _leaves(element, one, name)] for one in elements]
  nothing = [np.zeros([size or 0 for size in kind['shape'] or ()], kind['dtype']) for kind in _types(element)]
  # TensorFlow and TFF have one order of an element's tensors: that of the sorted names of a dict.
  made = [tf.data.Dataset.from_tensors(_for_dataset(pack(element, iter(one)))) for one in leaves or [nothing]]
  return functools.reduce(lambda joined, one: joined.concatenate(one), made).take(len(elements))


def _types(kind: Type) -> Iterator[Type]:
  """The types of the leaves."""
  if 'fields' not in kind:
    yield kind
    return
  for _, part in kind['fields']:
    yield from _types(part)


def _for_dataset(value: Any) -> Any:
  """A structure with tuples in place of lists, which TensorFlow would take for one array."""
  if isinstance(value, Mapping):
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
