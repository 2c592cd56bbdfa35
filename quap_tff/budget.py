"""Privacy budgets: ε_i(t) = ε_base·(1 + α·exp(-β·p_i(t))), ε_base = ε_total / T (DESIGN 2.2; `002…` eq. 4).

The budgets are nominal: what they mean for privacy is the business of `quap_tff.accounting`. ε is in nats.
"""

import dataclasses
from typing import Any

import tensorflow as tf

from quap_tff import checks
from quap_tff import registry


@dataclasses.dataclass(frozen=True)
class BudgetConfig:
  """Budgets of clients and rounds.

  Attributes:
    epsilon_total: ε_total > 0, spread evenly over the planned rounds.
    num_rounds: T, the planned rounds.
    alpha: α >= 0, how much larger the budget of a client that is never there is.
    beta: β > 0, how fast the extra fades as the participation rate grows.
    round_rule: How the cohort's budgets give the round's, a key of `ROUND_RULES`.
  """

  epsilon_total: float = 6.0
  num_rounds: int = 200
  alpha: float = 0.5
  beta: float = 2.0
  round_rule: str = 'cohort_mean_rate'

  def __post_init__(self):
    checks.number('epsilon_total', self.epsilon_total, above=0)
    checks.integer('num_rounds', self.num_rounds, at_least=1)
    checks.number('alpha', self.alpha, at_least=0)
    checks.number('beta', self.beta, above=0)
    registry.lookup('round budget rule', self.round_rule, ROUND_RULES)

  @property
  def epsilon_base(self) -> float:
    """ε_base = ε_total / T."""
    return self.epsilon_total / self.num_rounds

  @property
  def largest_budget(self) -> float:
    """The largest budget that any client or round can get."""
    return self.epsilon_base if self.round_rule == 'uniform' else self.epsilon_base * (1 + self.alpha)


def client_budgets(config: BudgetConfig, rates: Any, in_warmup: Any) -> tf.Tensor:
  """ε_i(t) of each client.

  Args:
    config: The budget's parameters. Under the 'uniform' rule every client's budget is ε_base.
    rates: p_i(t), float array.
    in_warmup: Whether t is a warm-up round, in which every budget is ε_base.

  Returns:
    A float tensor of the shape of `rates`.
  """
  rates = tf.convert_to_tensor(rates)
  base = tf.fill(tf.shape(rates), tf.cast(config.epsilon_base, rates.dtype))
  if config.round_rule == 'uniform':
    return base
  return tf.where(in_warmup, base, _adaptive(config, rates))


def round_budget(config: BudgetConfig, rates: Any, in_warmup: Any) -> tf.Tensor:
  """ε_t, the scalar budget of a round, from the rates float[M] of its cohort; ε_base if the cohort is empty."""
  rates = tf.convert_to_tensor(rates)
  base = tf.cast(config.epsilon_base, rates.dtype)
  plain = tf.logical_or(in_warmup, tf.equal(tf.size(rates), 0))
  return tf.where(plain, base, ROUND_RULES[config.round_rule](config, rates))


def _adaptive(config, rates):
  return config.epsilon_base * (1.0 + config.alpha * tf.exp(-config.beta * rates))


# Each rule takes (config, rates of the cohort) and returns the round's scalar budget.
ROUND_RULES = {
    # `001…` 4.2: the budget of the mean rate. By Jensen it is never above the mean budget.
    'cohort_mean_rate': lambda config, rates: _adaptive(config, tf.reduce_mean(rates)),
    'cohort_mean_budget': lambda config, rates: tf.reduce_mean(_adaptive(config, rates)),
    # Nobody in the cohort gets more than their own budget.
    'cohort_min': lambda config, rates: tf.reduce_min(_adaptive(config, rates)),
    # The baselines' choice.
    'uniform': lambda config, rates: tf.cast(config.epsilon_base, rates.dtype),
}
