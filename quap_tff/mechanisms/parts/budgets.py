"""Privacy budgets of clients and rounds, ε_base = ε_total / T.

The budgets are nominal; `quap_tff.accounting` says what they mean for privacy. ε is in nats. Equations: docs/method.md,
sections 5.1 and 5.2. A new rule for the clients' budgets is a class, given as `BudgetConfig(client_rule=…)`; one for
the round's budget is a line in `ROUND_RULES`.
"""

from __future__ import annotations

import abc
import collections
from collections.abc import Sequence
import dataclasses
from typing import Optional

import numpy as np

from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.common import registry
from quap_tff.common.lazy import tf
from quap_tff.common.numbers import arrays
from quap_tff.mechanisms.parts import schedules


class ClientBudgetRule(checks.Checked, abc.ABC):
  """How a cohort's clients get their budgets ε_i(t). Subclasses are frozen dataclasses.

  Methods take a `BudgetConfig` for ε_base, α and β. Most rules need `largest` and `budgets` only.

  Attributes:
    needs_cohort: Whether a budget depends on more than the client's own participation rate. Then the server computes it
      once the cohort is known, and clients cannot draw the noise for it themselves.
    observes_updates: Whether each client reports a number about its update (`observe`) on which later budgets depend:
      an exact function of its data, which no privacy figure covers.
    unplannable: Why budgets are not known before the rounds have run, a clause; '' if they are.
    note: A sentence that must be said about the rule, or ''.
  """

  needs_cohort: bool = False
  observes_updates: bool = False
  unplannable: str = ''
  note: str = ''

  @abc.abstractmethod
  def largest(self, config: BudgetConfig) -> float:
    """The largest budget that any client can get in any round."""

  @abc.abstractmethod
  def budgets(
    self, config: BudgetConfig, state: array_types.Structure, client_ids: array_types.Array, rates: array_types.Array
  ) -> array_types.Array:
    """ε_i(t).

    Args:
      config: The budget's parameters.
      state: The rule's state after round t-1.
      client_ids: int64[M], the cohort; only rules with `needs_cohort` use it and `state`.
      rates: p_i(t), a float array of any shape, [M] for rules with `needs_cohort`.

    Returns:
      An array with the shape and dtype of `rates`.
    """

  def initial_state(
    self, config: BudgetConfig, num_clients: int, critical_shapes: Sequence[tf.TensorShape]
  ) -> collections.OrderedDict[str, tf.Tensor]:
    """Server state before round 1, by name; empty for rules without state.

    Args:
      config: The budget's parameters.
      num_clients: N.
      critical_shapes: Static shapes of the critical tensors of an update.
    """
    return collections.OrderedDict()

  def announced(self, state: array_types.Structure) -> array_types.Structure:
    """The part of the state that clients need for `observe`."""
    return []

  def observe(self, critical_update: Sequence[tf.Tensor], announced: array_types.Structure) -> tf.Tensor:
    """A client's report about the critical part of its finite update: a float32 scalar."""
    raise NotImplementedError

  def next_state(
    self,
    config: BudgetConfig,
    state: array_types.Structure,
    client_ids: array_types.Array,
    budgets: array_types.Array,
    observations: array_types.Array,
  ) -> array_types.Structure:
    """The state after the cohort of round t is known, of the same structure.

    Args:
      config: The budget's parameters.
      state: The state after round t-1.
      client_ids: int64[M], the cohort, possibly nobody.
      budgets: float32[M], the budgets of the cohort.
      observations: float32[M], from `observe`; 0 where an update was not finite, and for rules that observe nothing.
    """
    return state

  def given(self, state: array_types.Structure) -> Optional[array_types.Array]:
    """float[N], the budget of each client in its last round, if the state holds them; else they follow from rates."""
    return None

  def after_round(
    self, state: array_types.Structure, critical_mean: Sequence[tf.Tensor], cohort_size: tf.Tensor
  ) -> array_types.Structure:
    """The state after round t, given the noised critical part of its mean update."""
    return state


@dataclasses.dataclass(frozen=True)
class ParticipationBudgets(ClientBudgetRule):
  """ε_i(t) = ε_base·(1 + α·exp(-β·p_i(t))): clients that take part often get less."""

  def largest(self, config: BudgetConfig) -> float:
    return config.epsilon_base * (1 + config.alpha)

  def budgets(
    self, config: BudgetConfig, state: array_types.Structure, client_ids: array_types.Array, rates: array_types.Array
  ) -> array_types.Array:
    return config.epsilon_base * (1.0 + config.alpha * arrays.namespace(rates).exp(-config.beta * rates))


@dataclasses.dataclass(frozen=True)
class UniformBudgets(ClientBudgetRule):
  """ε_i(t) = ε_base for everyone, the baselines' choice."""

  def largest(self, config: BudgetConfig) -> float:
    return config.epsilon_base

  def budgets(
    self, config: BudgetConfig, state: array_types.Structure, client_ids: array_types.Array, rates: array_types.Array
  ) -> array_types.Array:
    return 0.0 * rates + config.epsilon_base


@dataclasses.dataclass(frozen=True)
class BudgetConfig(checks.Checked):
  """Budgets of clients and rounds.

  Attributes:
    epsilon_total: ε_total > 0, spread evenly over the planned rounds.
    num_rounds: T, the planned rounds.
    alpha: α >= 0, how much larger the budget of a client is that never takes part.
    beta: β > 0, how fast the extra budget fades as the participation rate grows.
    round_rule: How the round's budget follows from the cohort's, a key of `ROUND_RULES`.
    client_rule: The clients' budgets. None: `UniformBudgets` if the round's rule is 'uniform', else
      `ParticipationBudgets`.
    schedule: How the budgets grow or decay over the rounds: all of them are multiplied by its factor.
  """

  epsilon_total: float = checks.number_field('epsilon', 6.0, above=0)
  num_rounds: int = checks.integer_field('num_rounds', 200, at_least=1)
  alpha: float = checks.number_field('alpha', 0.5, at_least=0)
  beta: float = checks.number_field('beta', 2.0, above=0)
  round_rule: str = 'cohort_mean_rate'
  client_rule: Optional[ClientBudgetRule] = None
  schedule: schedules.RoundSchedule = schedules.Even()

  def __post_init__(self) -> None:
    super().__post_init__()
    registry.lookup('round budget rule', self.round_rule, ROUND_RULES)
    if self.client_rule is not None and not isinstance(self.client_rule, ClientBudgetRule):
      raise TypeError(f'client_rule must be a rule of quap_tff.mechanisms.parts.budgets, found {self.client_rule!r}.')
    name = type(self.rule).__name__
    if self.round_rule == 'uniform' and not isinstance(self.rule, UniformBudgets):
      raise ValueError(
        f'Round budget rule \'uniform\' gives everyone ε_base, but client_rule is {name}. Leave client_rule out, or '
        f'choose another round budget rule: {", ".join(ROUND_RULES)}.'
      )
    if self.round_rule == 'cohort_mean_rate' and self.rule.needs_cohort:
      raise ValueError(
        f'Round budget rule \'cohort_mean_rate\' needs budgets that follow from participation rates, but those of '
        f'{name} do not. Choose another round budget rule: {", ".join(ROUND_RULES)}.'
      )
    if not isinstance(self.schedule, schedules.RoundSchedule):
      raise TypeError(
        f'schedule must be a RoundSchedule of quap_tff.mechanisms.parts.schedules, found {self.schedule!r}.'
      )
    if self.rule.needs_cohort and self.schedule != schedules.Even():
      raise ValueError(
        f'The budgets of {name} depend on those of earlier rounds, so no schedule may multiply them. Leave the '
        'schedule out, or choose another client_rule.'
      )

  @property
  def epsilon_base(self) -> float:
    """ε_base = ε_total / T."""
    return self.epsilon_total / self.num_rounds

  @property
  def rule(self) -> ClientBudgetRule:
    """The clients' rule, with None resolved."""
    if self.client_rule is not None:
      return self.client_rule
    return UniformBudgets() if self.round_rule == 'uniform' else ParticipationBudgets()

  @property
  def largest_budget(self) -> float:
    """The largest budget that any client or round can get."""
    return self.rule.largest(self) * self.schedule.largest(self.num_rounds)

  def factor(self, round_num: array_types.Numbers) -> array_types.Numbers:
    """f_t, by which all budgets of round t are multiplied; t from 1."""
    return self.schedule.factor(round_num, self.num_rounds)


def uniform(config: BudgetConfig) -> BudgetConfig:
  """The configuration with ε_base for everyone in every round."""
  return dataclasses.replace(config, round_rule='uniform', client_rule=None)


def client_budgets(
  config: BudgetConfig,
  rates: array_types.Array,
  in_warmup: array_types.Booleans,
  state: Optional[array_types.Structure] = None,
  client_ids: Optional[array_types.Array] = None,
) -> array_types.Array:
  """ε_i(t) of each client, before `BudgetConfig.factor` multiplies it.

  Args:
    config: The budget's parameters.
    rates: p_i(t), float array.
    in_warmup: Whether t is a warm-up round, in which every budget is ε_base.
    state: The client rule's state after round t-1, for a rule with `needs_cohort`.
    client_ids: int64[M], the cohort, for the same rules.

  Returns:
    Floats with the shape of `rates`.
  """
  base = UniformBudgets().budgets(config, None, None, rates)
  return arrays.namespace(rates).where(in_warmup, base, config.rule.budgets(config, state, client_ids, rates))


def round_budget(
  config: BudgetConfig,
  rates: array_types.Array,
  in_warmup: array_types.Booleans,
  budgets: Optional[array_types.Array] = None,
) -> array_types.Numbers:
  """ε_t, the scalar budget of a round, before `BudgetConfig.factor` multiplies it; ε_base if the cohort is empty.

  Args:
    config: The budget's parameters.
    rates: p_i(t) of the cohort, float[M].
    in_warmup: Whether t is a warm-up round.
    budgets: ε_i(t) of the cohort, float[M]; by default those of `client_budgets` for these rates.
  """
  xp = arrays.namespace(rates)
  if budgets is None:
    budgets = client_budgets(config, rates, in_warmup)
  if xp is np and not np.size(rates):  # NumPy has no minimum of nothing, and warns about its mean.
    return np.float32(config.epsilon_base)
  base = arrays.cast(config.epsilon_base, rates.dtype) if xp is np else xp.cast(config.epsilon_base, rates.dtype)
  plain = xp.logical_or(in_warmup, xp.equal(arrays.size(rates), 0))
  return xp.where(plain, base, ROUND_RULES[config.round_rule](config, rates, budgets))


def _mean(values: array_types.Array) -> array_types.Numbers:
  return arrays.namespace(values).mean(values)


# Each rule takes (config, rates of the cohort, budgets of the cohort) and returns the round's scalar budget.
ROUND_RULES = {
  # The budget of the mean rate. By Jensen it is never above the mean budget.
  'cohort_mean_rate': lambda config, rates, budgets: config.rule.budgets(config, None, None, _mean(rates)),
  'cohort_mean_budget': lambda config, rates, budgets: _mean(budgets),
  # Nobody in the cohort gets more than their own budget.
  'cohort_min': lambda config, rates, budgets: arrays.namespace(budgets).min(budgets),
  # The noise is as large as that of all clients together, see `QuapConfig.round_noise`; ε_t is their mean.
  'each_own': lambda config, rates, budgets: _mean(budgets),
  # The baselines' choice.
  'uniform': lambda config, rates, budgets: 0.0 * _mean(rates) + config.epsilon_base,
}
