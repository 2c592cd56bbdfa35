"""Whether a value can become a tensor of a dtype without a change. TensorFlow wraps integers that are out of range.

The rule is that of TFF's own contexts. The kind must be the same: a float does not become an integer, an integer does
not become a float, and a boolean becomes neither. The value must be in range; of an array the dtype decides.
"""

import cmath
import functools
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf


class _Rule(NamedTuple):
  """The values that fit a dtype: the kind of dtypes, Python types, and the range (of both parts, if complex)."""

  kind: str
  python: tuple[type[Any], ...] = ()
  low: float = 0
  high: float = 0

  @property
  def is_numeric(self) -> bool:
    return self.low < self.high


@functools.cache
def _rule(dtype: tf.DType) -> _Rule:
  if dtype.is_integer:
    return _Rule('integer', (int,), dtype.min, dtype.max)
  if dtype.is_floating or dtype.is_complex:
    largest = float(dtype.real_dtype.max)
    return (
      _Rule('complex', (complex,), -largest, largest)
      if dtype.is_complex
      else _Rule('float', (float,), -largest, largest)
    )
  if dtype == tf.string:
    return _Rule('string', (str, bytes))
  return _Rule('bool', (bool,)) if dtype == tf.bool else _Rule(dtype.name)


@functools.cache
def widens(found: tf.DType, expected: tf.DType) -> bool:
  """Whether every value of the one dtype is a value of the other one, and of the same kind."""
  rule = _rule(expected)
  if found == expected or not rule.is_numeric:
    return found == expected
  return _rule(found).kind == rule.kind and np.can_cast(found.as_numpy_dtype, expected.as_numpy_dtype)


def misfit(value: Any, dtype: tf.DType) -> str:
  """Says why a number, a string or an array does not fit `dtype`; '' if it fits."""
  rule = _rule(dtype)
  if hasattr(value, '__array__'):  # A NumPy value, or one of a library like it.
    return '' if widens(tf.as_dtype(value.dtype), dtype) else f'{_shortened(value)} of dtype {value.dtype}'
  if not isinstance(value, rule.python) or isinstance(value, bool) and rule.kind != 'bool':
    return f'{_shortened(value)} ({type(value).__name__})'
  is_finite_number = rule.is_numeric and (rule.kind == 'integer' or cmath.isfinite(value))
  if is_finite_number and not all(rule.low <= part <= rule.high for part in (value.real, value.imag)):
    low, high = (f'{limit}' if rule.kind == 'integer' else f'{limit:.9g}' for limit in (rule.low, rule.high))
    return f'{_shortened(value)}, which is out of range ({low} to {high})'
  return ''


def _shortened(value: Any) -> str:
  shown = repr(value)
  return shown if len(shown) <= 80 else f'{shown[:77]}...'
