"""Figures as text, rounded to the safe side: an upper bound up, a lower bound down.

A float is taken as the decimal number of 15 digits that is nearest to it: a float64 surely holds no more. So 1e-5 is
printed as 1e-05, although the float is a little more than that, and 56 · 1e-5 as 0.00056. But 1.0000004e-5 is printed
as 1.001e-05 in four digits.
"""

import decimal
import math


def up(value: float, digits: int = 4) -> str:
  """An upper bound in at most `digits` significant digits: the smallest such number that is at least `value`.

  Raises:
    ValueError: For NaN, which is not a bound.
  """
  return _text(value, digits, decimal.ROUND_CEILING)


def up_fixed(value: float, decimals: int) -> str:
  """An upper bound with that many decimals, for columns of figures below 10^15; like `up` otherwise."""
  if not math.isfinite(value):
    return up(value)
  return str(_decimal(float(value)).quantize(decimal.Decimal(1).scaleb(-decimals), decimal.ROUND_CEILING))


def down(value: float, digits: int = 4) -> str:
  """A lower bound in at most `digits` significant digits: the largest such number that is at most `value`.

  Raises:
    ValueError: For NaN, which is not a bound.
  """
  return _text(value, digits, decimal.ROUND_FLOOR)


def _text(value: float, digits: int, rounding: str) -> str:
  value = float(value)
  if math.isnan(value):
    raise ValueError('A bound must be a number, found NaN: an error in the account that it comes from.')
  if math.isinf(value):
    return f'{value:g}'
  rounded = decimal.Context(prec=digits, rounding=rounding).plus(_decimal(value))
  return f'{float(rounded):.{digits}g}'


def _decimal(value: float) -> decimal.Decimal:
  return decimal.Context(prec=15).create_decimal(repr(value))
