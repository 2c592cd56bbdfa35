"""A mean over seeds and its 95% interval, the only kind of ± in a report."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Optional

import numpy as np

from quap_tff.common import lazy
from quap_tff.common.numbers import rounding

stats = lazy.module('scipy.stats')

# Of two values, Student's interval is 13 times as wide as their standard error. So fewer than this have none.
FEWEST_SEEDS = 3
MEANING = '± is half of the 95% interval of a mean over seeds (Student)'


class Quantity(NamedTuple):
  """A mean over seeds.

  Attributes:
    mean: The mean, or a document's figure.
    half: Half of Student's 95% interval of the mean; None for fewer than `FEWEST_SEEDS` values.
    count: The number of values.
    digits: Decimals in print.
    is_bound: Whether the values are upper bounds, so that their mean is rounded up.
  """

  mean: float
  half: Optional[float] = None
  count: Optional[int] = None  # type: ignore[assignment]  # It hides the `count` of tuples.
  digits: int = 2
  is_bound: bool = False

  def __str__(self) -> str:
    # Norms can become huge, and then decimals say nothing.
    is_huge = abs(self.mean) >= 1e4
    style = '.3g' if is_huge else f'.{self.digits}f'
    mean = f'{self.mean:{style}}'
    if self.is_bound:
      mean = rounding.up(self.mean, 3) if is_huge else rounding.up_fixed(self.mean, self.digits)
    return mean if self.half is None else f'{mean} ± {self.half:{style}}'


def over(values: Iterable[Optional[float]], digits: int = 2, is_bound: bool = False) -> Optional[Quantity]:
  """The mean of the finite values, x̄ ± t(0.975; n - 1)·s/√n, or None where no value is finite."""
  known = np.array([value for value in values if value is not None and np.isfinite(value)], float)
  count, half = len(known), None
  if not count:
    return None
  if count >= FEWEST_SEEDS:
    half = float(stats.t.ppf(0.975, count - 1) * known.std(ddof=1) / np.sqrt(count))
  return Quantity(float(known.mean()), half, count, digits, is_bound)
