"""Privacy budgets of clients and rounds, ε_base = ε_total / T (DESIGN 2.2).

How clients get theirs is a rule of `quap_tff.budget_rules`. The budgets are nominal: what they mean for privacy is the
business of `quap_tff.accounting`. ε is in nats.
"""

import dataclasses
from typing import Any, Optional

import tensorflow as tf

from quap_tff import budget_rules
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
    client_rule: How the clients get theirs, one of `quap_tff.budget_rules.RULES`.
  """

  epsilon_total: float = 6.0
  num_rounds: int = 200
  alpha: float = 0.5
  beta: float = 2.0
  round_rule: str = 'cohort_mean_rate'
  client_rule: budget_rules.ClientBudgetRule = budget_rules.Participation()

  def __post_init__(self):
    checks.number('epsilon_total', self.epsilon_total, above=0)
    checks.integer('num_rounds', self.num_rounds, at_least=1)
    checks.number('alpha', self.alpha, at_least=0)
    checks.number('beta', self.beta, above=0)
    registry.lookup('round budget rule', self.round_rule, ROUND_RULES)
    if not isinstance(self.client_rule, budget_rules.ClientBudgetRule):
      raise TypeError(f'client_rule must be a rule of quap_tff.budget_rules, found {self.client_rule!r}.')
    if self.round_rule == 'cohort_mean_rate' and self.client_rule.needs_cohort:
      raise ValueError(
          f'Round budget rule \'cohort_mean_rate\' takes budgets that follow from participation rates, and those of '
          f'{type(self.client_rule).__name__} do not: choose another one of {", ".join(ROUND_RULES)}.'
      )

  @property
  def epsilon_base(self) -> float:
    """ε_base = ε_total / T."""
    return self.epsilon_total / self.num_rounds

  @property
  def rule(self) -> budget_rules.ClientBudgetRule:
    """`client_rule`, but ε_base for everyone if that is the round's rule."""
    return budget_rules.Uniform() if self.round_rule == 'uniform' else self.client_rule

  @property
  def largest_budget(self) -> float:
    """The largest budget that any client or round can get."""
    return self.rule.largest(self)


def client_budgets(
    config: BudgetConfig, rates: Any, in_warmup: Any, state: Any = None, client_ids: Optional[tf.Tensor] = None
) -> tf.Tensor:
  """ε_i(t) of each client.

  Args:
    config: The budget's parameters.
    rates: p_i(t), float array.
    in_warmup: Whether t is a warm-up round, in which every budget is ε_base.
    state: The client rule's state after round t-1, for one of `needs_cohort`.
    client_ids: int64[M], the cohort, for the same.

  Returns:
    A float tensor of the shape of `rates`.
  """
  rates = tf.convert_to_tensor(rates)
  base = budget_rules.Uniform().budgets(config, None, None, rates)
  return tf.where(in_warmup, base, config.rule.budgets(config, state, client_ids, rates))


def round_budget(config: BudgetConfig, rates: Any, in_warmup: Any, budgets: Optional[tf.Tensor] = None) -> tf.Tensor:
  """ε_t, the scalar budget of a round; ε_base if the cohort is empty.

  Args:
    config: The budget's parameters.
    rates: p_i(t) of the cohort, float[M].
    in_warmup: Whether t is a warm-up round.
    budgets: ε_i(t) of the cohort, float[M]; what `client_budgets` makes of the rates if not given.
  """
  rates = tf.convert_to_tensor(rates)
  if budgets is None:
    budgets = client_budgets(config, rates, in_warmup)
  base = tf.cast(config.epsilon_base, rates.dtype)
  plain = tf.logical_or(in_warmup, tf.equal(tf.size(rates), 0))
  return tf.where(plain, base, ROUND_RULES[config.round_rule](config, rates, budgets))


# Each rule takes (config, rates of the cohort, budgets of the cohort) and returns the round's scalar budget.
ROUND_RULES = {
    # `001…` 4.2: the budget of the mean rate. By Jensen it is never above the mean budget.
    'cohort_mean_rate': lambda config, rates, budgets: config.rule.budgets(config, None, None, tf.reduce_mean(rates)),
    'cohort_mean_budget': lambda config, rates, budgets: tf.reduce_mean(budgets),
    # Nobody in the cohort gets more than their own budget.
    'cohort_min': lambda config, rates, budgets: tf.reduce_min(budgets),
    # The noise is that of all clients' own together, see `quap_tff.mechanism.round_noise`; ε_t is their mean.
    'each_own': lambda config, rates, budgets: tf.reduce_mean(budgets),
    # The baselines' choice.
    'uniform': lambda config, rates, budgets: tf.cast(config.epsilon_base, rates.dtype),
}
