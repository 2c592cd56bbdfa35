"""Means over seeds, Jain's index and the paired t test."""

import math

import numpy as np
import pytest

from experiments.reporting import quantities


def test_mean_and_sample_deviation():
  found = quantities.over([1.0, None, 2.0, float('nan'), 6.0], digits=1)
  assert (found.mean, found.count) == (3.0, 3)
  assert found.deviation == pytest.approx(math.sqrt(7))  # (4 + 1 + 9) / 2
  assert str(found) == '3.0 ± 2.6'


def test_one_value_has_no_deviation():
  assert str(quantities.over([0.5])) == '0.50'
  assert quantities.over([None]) is None


@pytest.mark.parametrize('values, expected', [([1, 1, 1, 1], 1), ([4, 0, 0, 0], 0.25), ([1, 3], 16 / 20)])
def test_jain(values, expected):
  assert quantities.jain(np.array(values, float)) == pytest.approx(expected)


def test_jain_of_nothing():
  assert quantities.jain(None) is None
  assert quantities.jain(np.zeros(3)) is None


def test_paired_t():
  # Differences 1, 2, 3: mean 2, deviation 1, t = 2·√3 with 2 degrees of freedom: p = 1 - t/√(2 + t²).
  test = quantities.paired_test([2, 4, 6], [1, 2, 3])
  t = 2 * math.sqrt(3)
  assert test.difference.mean == 2
  assert test.p == pytest.approx(1 - t / math.sqrt(2 + t * t))


@pytest.mark.parametrize('left, right, words', [
    ([2], [1], 'none: fewer than two pairs'),
    ([0.3, 0.4], [0.2, 0.3], 'none: the same difference in every pair'),
])
def test_no_p(left, right, words):
  test = quantities.paired_test(left, right)
  assert (test.p, test.p_text) == (None, words)
