"""Schedules of the budget over the rounds: ε_base(t) = f_t·ε_base, where the factors f_1 … f_T have the mean 1.

A schedule is public and fixed before the run, so it releases nothing. It multiplies every budget of a round, those of
the clients and that of the round, so it composes with every rule of `quap_tff.mechanisms.parts.budgets`.
"""

from __future__ import annotations

import abc
import dataclasses
import math

import numpy as np

from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.common.numbers import arrays


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


@dataclasses.dataclass(frozen=True)
class Geometric(RoundSchedule):
  """f_t = T·r^(t-1) / Σ_s r^(s-1), r = growth^(1/(T-1)): budgets grow, or decay, geometrically over the rounds.

  Hong, Wang and Zhou 2022, "Dynamic Privacy Budget Allocation Improves Data Efficiency of Differentially Private
  Gradient Descent" (FAccT; the documents cite it as Wang et al., PMC 2023). There the noise of iteration t matters to
  the last loss in proportion to q_t = γ^(T-t), γ < 1. The least Σ q_t·σ_t² at a given zCDP budget Σ ρ_t, ρ_t ∝ 1/σ_t²,
  is at ρ_t ∝ √q_t. Under the classic Gaussian calibration ρ_t ∝ ε_t², so that ε_t ∝ γ^((T-t)/4): a geometric schedule
  with growth = γ^(-(T-1)/4).

  Attributes:
    growth: The budget of the last round over that of the first. Above 1, budgets grow; below 1, they decay.
  """

  growth: float = checks.number_field('growth', 4.0, at_least=1e-3, at_most=1e3)

  def factor(self, round_num: array_types.Numbers, num_rounds: int) -> array_types.Numbers:
    if num_rounds == 1:
      return 1.0
    step = math.log(self.growth) / (num_rounds - 1)
    mean = float(np.mean(np.exp(step * np.arange(num_rounds))))
    xp = arrays.namespace(round_num)
    passed = xp.minimum(arrays.cast(round_num, np.float32), np.float32(num_rounds)) - 1.0
    return xp.exp(passed * np.float32(step)) / np.float32(mean)
