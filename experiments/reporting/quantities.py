"""Figures over seeds: mean ± sample standard deviation, Jain's index (Σx)²/(n·Σx²), the paired t test."""

from typing import NamedTuple, Optional, Sequence

import numpy as np
from scipy import stats


class Quantity(NamedTuple):
  """A figure and its spread over seeds.

  Attributes:
    mean: The mean.
    deviation: The sample standard deviation (n - 1); None for a single value.
    count: How many values there are; None where a document does not say.
    digits: Decimals in print.
  """

  mean: float
  deviation: Optional[float] = None
  count: Optional[int] = None
  digits: int = 2

  def __str__(self):
    if self.deviation is None:
      return f'{self.mean:.{self.digits}f}'
    return f'{self.mean:.{self.digits}f} ± {self.deviation:.{self.digits}f}'


def over(values: Sequence[Optional[float]], digits: int = 2) -> Optional[Quantity]:
  """Mean and deviation of the finite values; None if there is none."""
  known = np.array([v for v in values if v is not None and np.isfinite(v)], float)
  if not len(known):
    return None
  deviation = float(known.std(ddof=1)) if len(known) > 1 else None
  return Quantity(float(known.mean()), deviation, len(known), digits)


def jain(values: Optional[np.ndarray]) -> Optional[float]:
  """Jain's fairness index of non-negative values, in [1/n, 1]; None if there are none or all are 0."""
  if values is None or not np.any(values):
    return None
  return float(values.sum()**2 / (len(values) * (values**2).sum()))


class PairedTest(NamedTuple):
  """Differences of pairs.

  Attributes:
    difference: Mean and deviation of left - right.
    p: Two-sided p of Student's paired t test; None with fewer than two pairs or without any spread.
  """

  difference: Quantity
  p: Optional[float]

  @property
  def p_text(self) -> str:
    if self.p is not None:
      return f'{self.p:.2g}'
    return 'none: fewer than two pairs' if self.difference.count < 2 else 'none: the same difference in every pair'


def paired_test(left: Sequence[float], right: Sequence[float], digits: int = 2) -> PairedTest:
  """Student's paired t test of `left` against `right`, pair by pair; at least one pair."""
  differences = np.asarray(left, float) - np.asarray(right, float)
  difference = over(differences, digits)
  scale = max(np.abs(left).max(), np.abs(right).max())
  # Without spread beyond rounding the statistic is noise or infinite.
  if difference.deviation is None or difference.deviation <= 1e-12 * scale:
    return PairedTest(difference, None)
  return PairedTest(difference, float(stats.ttest_rel(left, right).pvalue))
