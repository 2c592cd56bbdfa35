"""Means over seeds and their intervals."""

import math

import pytest

from experiments.reporting import quantity


@pytest.mark.parametrize(
  'found, text',
  [
    (quantity.Quantity(93.25, 0.5), '93.25 ± 0.50'),
    (quantity.Quantity(0.1234, digits=3), '0.123'),
    (quantity.Quantity(0.1231, digits=3, is_bound=True), '0.124'),
    (quantity.Quantity(6.07e15, 8.57e15), '6.07e+15 ± 8.57e+15'),
  ],
)
def test_in_print(found, text):
  assert str(found) == text


def test_a_mean_has_half_of_students_interval():
  found = quantity.over([1.0, None, 2.0, float('nan'), 6.0, float('inf')], digits=1)
  assert (found.mean, found.count) == (3.0, 3)
  # The deviation is √((4 + 1 + 9) / 2), and Student's quantile of 2 degrees of freedom is 4.3027.
  assert found.half == pytest.approx(4.302653 * math.sqrt(7) / math.sqrt(3))
  assert str(found) == '3.0 ± 6.6'


def test_fewer_than_three_seeds_have_no_interval():
  assert str(quantity.over([0.5, 0.7])) == '0.60'
  assert quantity.over([None]) is None
