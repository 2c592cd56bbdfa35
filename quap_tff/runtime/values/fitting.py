"""Whether a value can become a tensor of a dtype without a change. TensorFlow wraps integers that are out of range.

The rule is that of TFF's own contexts. The kind must be the same: a float does not become an integer, an integer does
not become a float, and a boolean becomes neither. The value must be in range; of an array the dtype decides.
"""

import cmath
import functools
from typing import Any

import numpy as np
import tensorflow as tf

# By kind of dtypes, the Python types whose values fit one. No value of Python fits a dtype of another kind.
_PYTHON_TYPES: dict[str, Any] = {
  'integer': int,
  'float': float,
  'complex': complex,
  'string': (str, bytes),
  'bool': bool,
}
_NUMBERS = frozenset(['integer', 'float', 'complex'])


@functools.cache
def _kind(dtype: tf.DType) -> str:
  if dtype.is_floating:
    return 'float'
  return 'integer' if dtype.is_integer else 'complex' if dtype.is_complex else dtype.name


@functools.cache
def widens(dtype: tf.DType, expected: tf.DType) -> bool:
  """Whether every value of the one dtype is a value of the other one, and of the same kind."""
  if dtype == expected or _kind(expected) not in _NUMBERS:
    return dtype == expected
  return _kind(dtype) == _kind(expected) and np.can_cast(dtype.as_numpy_dtype, expected.as_numpy_dtype)


def misfit(value: Any, dtype: tf.DType) -> str:
  """Says why a number, a string or an array does not fit `dtype`; '' if it fits."""
  if hasattr(value, '__array__'):  # A NumPy value, or one of a library like it.
    return '' if widens(tf.as_dtype(value.dtype), dtype) else f'{_shortened(value)} of dtype {value.dtype}'
  kind = _kind(dtype)
  if not isinstance(value, _PYTHON_TYPES.get(kind, ())) or isinstance(value, bool) and kind != 'bool':
    return f'{_shortened(value)} ({type(value).__name__})'
  if kind not in _NUMBERS or kind != 'integer' and not cmath.isfinite(value):
    return ''
  high = dtype.max if kind == 'integer' else float(dtype.real_dtype.max)
  low = dtype.min if kind == 'integer' else -high
  if all(low <= part <= high for part in (value.real, value.imag)):
    return ''
  shown = '{} to {}' if kind == 'integer' else '{:.9g} to {:.9g}'
  return f'{_shortened(value)}, which is out of range ({shown.format(low, high)})'


def _shortened(value: Any) -> str:
  shown = repr(value)
  return shown if len(shown) <= 80 else f'{shown[:77]}...'
