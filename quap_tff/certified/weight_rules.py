"""Rules for the clients' weights w_i(t): how much of the clipping norm the clients of a cohort get.

The filter has the last word: whatever a rule asks for, nobody passes the budget. A new rule is a class here and a line
in `RULES`.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, NamedTuple, Optional

from quap_tff import arrays
from quap_tff import budgets
from quap_tff.certified import privacy_filter


class RoundView(NamedTuple):
  """What is known of a round's cohort of M clients before it adds anything: who takes part, and constants; no data.

  Attributes:
    prices: What taking part costs; its noise multiplier may be a column of several, [Z, 1].
    rates: float32[M], p_i(t).
    in_warmup: Whether t is a warm-up round of the participation rates.
    planned: int[M], in how many rounds each is planned to take part; None unless the rule has `needs_plan`.
  """

  prices: privacy_filter.Prices
  rates: Any
  in_warmup: Any
  planned: Optional[Any] = None


class WeightRule(abc.ABC):
  """How weights are proposed. Subclasses are frozen dataclasses in `RULES`.

  Attributes:
    needs_plan: Whether weights depend on how often each client is planned to take part.
  """

  needs_plan: bool = False

  @abc.abstractmethod
  def weights(self, view: RoundView) -> Any:
    """w_i(t) in [0, 1] before the filter, floats that broadcast to [M], or to [Z, M]."""


@dataclasses.dataclass(frozen=True)
class Participation(WeightRule):
  """QuAP-FL's budgets as weights: w_i(t) = ε_i(t) / (ε_base·(1 + α)) = (1 + α·exp(-β·p_i(t))) / (1 + α).

  The largest budget that there can be is the whole clipping norm: who is there often adds less. In warm-up rounds, when
  rates say nothing yet, budgets are ε_base and weights 1/(1 + α).

  Attributes:
    alpha: α >= 0.
    beta: β > 0.
  """

  alpha: float = 0.5
  beta: float = 2.0

  def __post_init__(self):
    self._budget()

  def weights(self, view):
    budget = self._budget()
    return budgets.client_budgets(budget, view.rates, view.in_warmup) / budget.largest_budget

  def _budget(self):
    # Only ratios of budgets enter.
    return budgets.BudgetConfig(epsilon_total=1.0, num_rounds=1, alpha=self.alpha, beta=self.beta)


@dataclasses.dataclass(frozen=True)
class Uniform(WeightRule):
  """w_i(t) = 1 for everyone, until the budget is spent: the filter alone caps what a client spends."""

  def weights(self, view):
    return arrays.namespace(view.rates).ones_like(view.rates)


@dataclasses.dataclass(frozen=True)
class SpendEvenly(WeightRule):
  """w_i = min(1, μ_max·z/√K_i): each client spends its budget evenly over the K_i rounds that it is planned to be in.

  For a schedule that is public before the run. With a private quantile, μ_max²/K_i less what its count costs.
  """

  needs_plan = True

  def weights(self, view):
    return privacy_filter.even_weight(view.prices, view.planned)


RULES = {
    'participation': Participation,
    'uniform': Uniform,
    'spend_evenly': SpendEvenly,
}
