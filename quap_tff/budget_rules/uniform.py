"""ε_i(t) = ε_base, the baselines' choice."""

import dataclasses

import tensorflow as tf

from quap_tff.budget_rules import base


@dataclasses.dataclass(frozen=True)
class Uniform(base.ClientBudgetRule):
  """The same for everyone."""

  def largest(self, config):
    return config.epsilon_base

  def budgets(self, config, state, client_ids, rates):
    return tf.fill(tf.shape(rates), tf.cast(config.epsilon_base, rates.dtype))
