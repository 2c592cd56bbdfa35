"""Tests of `quap_tff.common.checks`."""

import math

import numpy as np
import pytest

from quap_tff.common import checks


class TestNumber:
  @pytest.mark.parametrize('value', [1, 1.5, np.float32(1.5), np.float64(1.5), np.int64(2)])
  def test_returns_a_float(self, value):
    result = checks.number('x', value, above=0, at_most=2)
    assert result == value
    assert type(result) is float  # pylint: disable=unidiomatic-typecheck

  @pytest.mark.parametrize(
    'value', [math.nan, math.inf, -math.inf, None, '1', True, [1.0], 1j, 10**400, np.bool_(True)]
  )
  def test_refuses_what_is_no_finite_number(self, value):
    with pytest.raises(ValueError, match='x must be a finite number'):
      checks.number('x', value)

  @pytest.mark.parametrize(
    'bounds, at_bound',
    [(dict(above=2), False), (dict(at_least=2), True), (dict(below=2), False), (dict(at_most=2), True)],
  )
  def test_bounds_are_open_or_closed_as_their_names_say(self, bounds, at_bound):
    if at_bound:
      assert checks.number('x', 2, **bounds) == 2.0
    else:
      with pytest.raises(ValueError, match='x must be a finite number (greater|less) than 2, found 2'):
        checks.number('x', 2, **bounds)

  @pytest.mark.parametrize(
    'bounds, outside', [(dict(above=0), -1), (dict(at_least=0), -1), (dict(below=0), 1), (dict(at_most=0), 1)]
  )
  def test_outside_is_refused(self, bounds, outside):
    with pytest.raises(ValueError, match='found'):
      checks.number('x', outside, **bounds)

  def test_the_error_says_all_bounds(self):
    message = r'^delta must be a finite number greater than 0 and less than 1, found 1\.0\.$'
    with pytest.raises(ValueError, match=message):
      checks.number('delta', 1.0, above=0, below=1)


class TestInteger:
  @pytest.mark.parametrize('value', [0, 3, np.int32(3), np.int64(0)])
  def test_accepts_integers(self, value):
    assert checks.integer('n', value, at_least=0, at_most=3) == value

  @pytest.mark.parametrize('value', [1.0, math.nan, None, '1', True, np.float32(1), np.bool_(True)])
  def test_refuses_what_is_no_integer(self, value):
    with pytest.raises(ValueError, match='n must be an integer'):
      checks.integer('n', value)

  @pytest.mark.parametrize('value', [0, 5, 10**400])
  def test_refuses_what_is_outside(self, value):
    with pytest.raises(ValueError, match='n must be an integer at least 1 and at most 4, found'):
      checks.integer('n', value, at_least=1, at_most=4)

  def test_without_bounds_the_error_reads_well(self):
    with pytest.raises(ValueError, match='^n must be an integer, found None.$'):
      checks.integer('n', None)
