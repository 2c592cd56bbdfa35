"""How much each client of a cohort counts in the mean: (1/M)·Σ_i s_i·ū_i, where the shares s_i have the mean 1.

Shares follow from budgets, and budgets from participation, so they release nothing. A client's part of the sum has norm
at most s_i·C, which is what the ledger holds as its weight.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Callable

from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.common.numbers import arrays


class Weighting(checks.Checked, abc.ABC):
  """How shares follow from budgets. Subclasses are frozen dataclasses.

  Attributes:
    is_equal: Whether every client counts the same.
  """

  is_equal: bool = False

  @abc.abstractmethod
  def shares(
    self, budgets: array_types.Array, multiplier: Callable[[array_types.Array], array_types.Array]
  ) -> array_types.Array:
    """s_i, floats with the shape and type of `budgets`; their mean is 1.

    Args:
      budgets: ε_i(t) of the cohort, float[M].
      multiplier: z(ε), the noise multiplier of a budget.
    """


@dataclasses.dataclass(frozen=True)
class Equal(Weighting):
  """s_i = 1, QuAP-FL's choice."""

  is_equal = True

  def shares(
    self, budgets: array_types.Array, multiplier: Callable[[array_types.Array], array_types.Array]
  ) -> array_types.Array:
    return arrays.namespace(budgets).ones_like(budgets)
