"""Figures as text never claim more than was found."""

import fractions
import math

import hypothesis
from hypothesis import strategies
import pytest

from quap_tff.common.numbers import rounding

_FIGURES = strategies.floats(-1e300, 1e300, allow_subnormal=False)
_DIGITS = strategies.integers(1, 12)


class TestUp:
  @pytest.mark.parametrize(
    'value, digits, text',
    [
      (0.22522370438424397, 4, '0.2253'),
      (0.3, 4, '0.3'),
      (3, 4, '3'),
      (9.9991, 4, '10'),
      (12345.6, 4, '1.235e+04'),
      (2.000001, 5, '2.0001'),
      (3e-7, 4, '3e-07'),
      (0, 4, '0'),
      (math.inf, 4, 'inf'),
      (1e-5, 4, '1e-05'),
      (1.0000004e-5, 4, '1.001e-05'),
      (0.1 + 0.2, 4, '0.3'),
      (56 * 1e-5, 4, '0.00056'),
      (-0.25221, 4, '-0.2522'),
    ],
  )
  def test_is_rounded_up(self, value, digits, text):
    assert rounding.up(value, digits) == text

  @hypothesis.given(_FIGURES, _DIGITS)
  def test_is_never_too_small_and_less_than_a_unit_too_large(self, value, digits):
    found = fractions.Fraction(rounding.up(value, digits))
    # What a float64 holds for sure.
    exact = fractions.Fraction(f'{value:.15g}')
    unit = fractions.Fraction(10) ** (math.floor(math.log10(abs(value) or 1)) - digits + 2)
    assert exact <= found < exact + unit


class TestDown:
  @pytest.mark.parametrize(
    'value, digits, text',
    [
      (0.22522370438424397, 4, '0.2252'),
      (0.3, 4, '0.3'),
      (9.9999, 4, '9.999'),
      (0.9999999, 2, '0.99'),
      (0, 4, '0'),
      (math.inf, 4, 'inf'),
      (-0.25221, 4, '-0.2523'),
    ],
  )
  def test_is_rounded_down(self, value, digits, text):
    assert rounding.down(value, digits) == text

  @hypothesis.given(_FIGURES, _DIGITS)
  def test_is_the_mirror_image_of_up(self, value, digits):
    assert float(rounding.down(value, digits)) == -float(rounding.up(-value, digits))


@pytest.mark.parametrize('text', [rounding.up, rounding.down])
def test_nan_is_an_error(text):
  with pytest.raises(ValueError, match='found NaN'):
    text(math.nan)
