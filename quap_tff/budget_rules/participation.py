"""ε_i(t) = ε_base·(1 + α·exp(-β·p_i(t))): who takes part often gets less (DESIGN 2.2; `002…` eq. 4)."""

import dataclasses

import tensorflow as tf

from quap_tff.budget_rules import base


@dataclasses.dataclass(frozen=True)
class Participation(base.ClientBudgetRule):
  """By the participation rate, with the α and β of the `BudgetConfig`."""

  def largest(self, config):
    return config.epsilon_base * (1 + config.alpha)

  def budgets(self, config, state, client_ids, rates):
    return config.epsilon_base * (1.0 + config.alpha * tf.exp(-config.beta * rates))
