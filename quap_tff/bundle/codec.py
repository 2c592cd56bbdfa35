"""Plans as JSON: frozen dataclasses and named tuples of quap_tff with all of their fields, and what these hold."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import numpy as np

# Only classes of this package are made from a file.
_PACKAGE = 'quap_tff.'


def encoded(value: Any) -> Any:
  """A value that JSON can hold. Raises `ValueError` if it holds anything but data, or a class of another package."""
  if value is None or isinstance(value, (bool, int, float, str)):
    return value
  if isinstance(value, np.generic):
    return value.item()
  if isinstance(value, np.ndarray) and value.dtype.kind in 'biuf':
    return {'array': value.tolist(), 'dtype': value.dtype.name, 'shape': list(value.shape)}
  if isinstance(value, dict):
    return {'dict': [[encoded(key), encoded(part)] for key, part in value.items()]}
  if isinstance(value, frozenset):
    return {'frozenset': [encoded(part) for part in sorted(value)]}
  names = _fields(type(value))
  if names is not None:
    fields = {name: encoded(getattr(value, name)) for name in names}
    return {'class': f'{type(value).__module__}:{type(value).__qualname__}', 'fields': fields}
  if isinstance(value, (tuple, list)):
    return {type(value).__name__: [encoded(part) for part in value]}
  raise ValueError(f'{type(value).__name__} is not made of numbers, texts and the classes of quap_tff alone')


def decoded(value: Any) -> Any:
  """The value that `encoded` wrote. Raises any error if it wrote another one."""
  if not isinstance(value, dict):
    return value
  if 'class' in value:
    module, _, name = value['class'].partition(':')
    cls = getattr(importlib.import_module(module), name) if module.startswith(_PACKAGE) else None
    if not isinstance(cls, type) or _fields(cls) is None:
      raise ValueError(f'{value["class"]} is not a class of plans')
    return cls(**{key: decoded(part) for key, part in value['fields'].items()})
  if 'array' in value:
    return np.array(value['array'], value['dtype']).reshape(value['shape'])
  if 'dict' in value:
    return {decoded(key): decoded(part) for key, part in value['dict']}
  ((kind, parts),) = value.items()
  return {'tuple': tuple, 'list': list, 'frozenset': frozenset}[kind](map(decoded, parts))


def _fields(kind: type[Any]) -> Any:
  """The names of the fields that make a value of a class; None if it is not one that is written."""
  if not kind.__module__.startswith(_PACKAGE):
    return None
  if dataclasses.is_dataclass(kind):
    return [field.name for field in dataclasses.fields(kind) if field.init]
  return getattr(kind, '_fields', None) if issubclass(kind, tuple) else None
