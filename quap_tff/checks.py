"""Validation of configuration values: every error says what was wrong, what was expected, and what was found."""

import math
import numbers
from typing import Any, Optional


def number(
    name: str,
    value: Any,
    *,
    above: Optional[float] = None,
    at_least: Optional[float] = None,
    below: Optional[float] = None,
    at_most: Optional[float] = None,
) -> float:
  """Returns `value` as a float; raises `ValueError` unless it is a finite real number inside the given bounds."""
  bounds = [
      (above, 'greater than', lambda v, b: v > b),
      (at_least, 'at least', lambda v, b: v >= b),
      (below, 'less than', lambda v, b: v < b),
      (at_most, 'at most', lambda v, b: v <= b),
  ]
  expected = ' and '.join(f'{words} {bound:g}' for bound, words, _ in bounds if bound is not None)
  is_number = isinstance(value, numbers.Real) and not isinstance(value, bool) and _is_finite(value)
  if not is_number or not all(holds(value, bound) for bound, _, holds in bounds if bound is not None):
    raise ValueError(f'{name} must be a finite number{" " + expected if expected else ""}, found {value!r}.')
  return float(value)


def _is_finite(value) -> bool:
  try:
    return math.isfinite(value)
  except OverflowError:  # An integer above the largest float.
    return False


def integer(name: str, value: Any, *, at_least: Optional[int] = None, at_most: Optional[int] = None) -> int:
  """Returns `value`; raises `ValueError` unless it is an integer inside the given bounds."""
  is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
  if not is_integer or (at_least is not None and value < at_least) or (at_most is not None and value > at_most):
    bounds = [f'at least {at_least}'] if at_least is not None else []
    bounds += [f'at most {at_most}'] if at_most is not None else []
    raise ValueError(f'{name} must be an integer {" and ".join(bounds)}'.rstrip() + f', found {value!r}.')
  return value
