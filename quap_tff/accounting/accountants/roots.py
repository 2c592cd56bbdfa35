"""Where an account meets a bound: scipy's root finding, with an answer that is always on the private side."""

import functools
from typing import Callable

from quap_tff.common import lazy

optimize = lazy.module('scipy.optimize')

# In place of an infinite excess, through which no line can be drawn; and in place of none, which is enough.
_LARGEST, _NEXT_TO_NONE = 1e6, 1e-300


def least(excess: Callable[[float], float], low: float, high: float, tolerance: float) -> float:
  """The least x in [low, high] at which nothing is exceeded, or a larger one by at most `tolerance`.

  Args:
    excess: A function that falls as x grows, and is at most 0 where nothing is exceeded, as at `high`.
    low: The lower end, which is returned if nothing is exceeded there.
    high: The upper end.
    tolerance: How much larger than the least x the answer may be, above 0.
  """

  @functools.cache
  def bounded(x):
    found = min(excess(x), _LARGEST)
    return found if found > 0 else max(min(found, -_NEXT_TO_NONE), -_LARGEST)

  if bounded(low) < 0:
    return low
  # The root is within a quarter of the tolerance of the figure that is found.
  found = optimize.brentq(bounded, low, high, xtol=tolerance / 4)
  while bounded(found) > 0:
    found = min(found + tolerance / 4, high)
  return found
