"""Functions for NumPy arrays and TensorFlow tensors alike, so that each formula is written once.

The mechanism computes weights and rates inside TensorFlow graphs. Planning and verification compute the same values in
NumPy, from a schedule. `namespace` gives the functions of whichever library its arguments belong to, under NumPy's
names.
"""

from __future__ import annotations

import functools
import operator
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from quap_tff.common import array_types
from quap_tff.common.lazy import tf


class _TensorFlow:
  """TensorFlow's functions under NumPy's names."""

  _NAMES = {name: f'reduce_{name}' for name in ('mean', 'sum', 'min', 'max', 'any')}
  _NAMES.update(std='math.reduce_std', nextafter='math.nextafter')

  def __getattr__(self, name: str) -> Any:
    return operator.attrgetter(self._NAMES.get(name, name))(tf)


_TENSORFLOW = _TensorFlow()
_HALF = 2**10
# `tf.is_tensor` takes 20 microseconds to say no, and plans ask it hundreds of thousands of times.
_NUMPY = (np.ndarray, np.generic, int, float)


def namespace(*values: array_types.Numbers) -> Any:
  """`numpy`, or TensorFlow under NumPy's names if any of the values is a tensor."""
  others = [value for value in values if not isinstance(value, _NUMPY)]
  if others and 'tensorflow' in sys.modules and any(tf.is_tensor(value) for value in others):
    return _TENSORFLOW
  return np


def cast(value: array_types.Numbers, dtype: npt.DTypeLike) -> array_types.Array:
  """The value as `dtype`, a NumPy type."""
  return np.asarray(value).astype(dtype) if namespace(value) is np else tf.cast(value, dtype)


def take(values: array_types.Array, indices: array_types.Array) -> array_types.Array:
  """values[indices], for indices int[M] along the first axis."""
  return np.asarray(values)[indices] if namespace(values, indices) is np else tf.gather(values, indices)


@functools.cache
def _powers(base: float) -> tuple[np.ndarray, np.ndarray]:
  exponents = np.arange(_HALF, dtype=np.float64)
  return np.power(base, exponents), np.power(base, exponents * _HALF)


def whole_power(base: float, exponents: array_types.Numbers) -> array_types.Array:
  """base^n for a base in (0, 0.999] and whole numbers n ≥ 0 (floats, +inf among them), as float64; NaN stays NaN.

  TensorFlow and NumPy give the same bits, which their exponential functions do not.
  """
  (low, high), xp = _powers(base), namespace(exponents)
  exponents = cast(exponents, np.float64)
  is_number = xp.equal(exponents, exponents)
  # From here on, powers are 0.
  whole = cast(xp.where(is_number, xp.minimum(exponents, float(_HALF**2 - 1)), 0.0), np.int64)
  power = take(low, whole % _HALF) * take(high, whole // _HALF)
  return xp.where(is_number, power, np.float64(np.nan))


def with_added(values: array_types.Array, indices: array_types.Array, amount: array_types.Numbers) -> array_types.Array:
  """A copy of `values` with the scalar `amount` added at distinct `indices`, int[M]."""
  if namespace(values, indices, amount) is np:
    result = np.array(values)
    result[indices] += np.asarray(amount, result.dtype)
    return result
  positions = tf.reshape(tf.cast(indices, tf.int64), [-1, 1])
  return tf.tensor_scatter_nd_add(values, positions, tf.fill([tf.shape(positions)[0]], tf.cast(amount, values.dtype)))


def size(values: array_types.Array) -> array_types.Numbers:
  """The number of entries: an integer, or an int32 scalar in TensorFlow."""
  return np.size(values) if namespace(values) is np else tf.size(values)
