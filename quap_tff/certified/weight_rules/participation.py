"""w_i(t) = ε_i(t) / (ε_base·(1 + α)) = (1 + α·exp(-β·p_i(t))) / (1 + α): who is there often adds less (DESIGN 2.2)."""

import dataclasses

from quap_tff import budget as budgets
from quap_tff.certified.weight_rules import base


@dataclasses.dataclass(frozen=True)
class Participation(base.WeightRule):
  """QuAP-FL's budgets as weights: the largest budget that there can be is the whole clipping norm.

  In warm-up rounds, when rates tell nothing yet, budgets are ε_base and weights 1/(1 + α).

  Attributes:
    alpha: α >= 0.
    beta: β > 0.
  """

  alpha: float = 0.5
  beta: float = 2.0

  def __post_init__(self):
    self._budget()

  def weights(self, prices, rates, in_warmup, planned):
    budget = self._budget()
    return budgets.client_budgets(budget, rates, in_warmup) / budget.largest_budget

  def _budget(self):
    # Only ratios of budgets enter.
    return budgets.BudgetConfig(epsilon_total=1.0, num_rounds=1, alpha=self.alpha, beta=self.beta)
