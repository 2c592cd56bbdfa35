"""Schedules of the budget over the rounds: ε_base(t) = f_t·ε_base, where the factors f_1 … f_T have the mean 1.

A schedule is public and fixed before the run, so it releases nothing. It multiplies every budget of a round, those of
the clients and that of the round, so it composes with every rule of `quap_tff.mechanisms.parts.budgets`.
"""

from __future__ import annotations

import abc
import dataclasses

from quap_tff.common import array_types
from quap_tff.common import checks


class RoundSchedule(checks.Checked, abc.ABC):
  """How ε_total is shared out among rounds. Subclasses are frozen dataclasses."""

  @abc.abstractmethod
  def factor(self, round_num: array_types.Numbers, num_rounds: int) -> array_types.Numbers:
    """f_t.

    Args:
      round_num: t, an integer or an integer tensor, from 1.
      num_rounds: T. After the last planned round the factor stays as it is.

    Returns:
      A number, or a float32 scalar for a tensor.
    """

  def largest(self, num_rounds: int) -> float:
    """max_t f_t."""
    return max(float(self.factor(1, num_rounds)), float(self.factor(num_rounds, num_rounds)))


@dataclasses.dataclass(frozen=True)
class Even(RoundSchedule):
  """f_t = 1, the documents' choice."""

  def factor(self, round_num: array_types.Numbers, num_rounds: int) -> array_types.Numbers:
    return 1.0
