"""What a rule for the clients' budgets ε_i(t) must provide."""

import abc
import collections
from typing import Any

import tensorflow as tf


class ClientBudgetRule(abc.ABC):
  """How a cohort's clients get their budgets. Subclasses are frozen dataclasses in `quap_tff.budget_rules.RULES`.

  Methods take a `quap_tff.budget.BudgetConfig` for ε_base, α and β, and return tensors.

  Attributes:
    needs_cohort: Whether a budget takes more than the client's own participation rate: then the server settles it once
      the cohort is known, and clients cannot draw noise for it themselves.
    uses_agreement: Whether later budgets go by the agreement of clients' updates with the aggregate of the round
      before: exact functions of clients' data, which no privacy figure covers.
  """

  needs_cohort: bool = False
  uses_agreement: bool = False

  @abc.abstractmethod
  def largest(self, config: Any) -> float:
    """The largest budget that any client can get in any round."""

  @abc.abstractmethod
  def budgets(self, config: Any, state: Any, client_ids: tf.Tensor, rates: tf.Tensor) -> tf.Tensor:
    """ε_i(t).

    Args:
      config: The budget's parameters.
      state: The rule's state after round t-1.
      client_ids: int64[M], the cohort; it and `state` are looked at by rules of `needs_cohort` only.
      rates: p_i(t), a float tensor of any shape, [M] for rules of `needs_cohort`.

    Returns:
      A tensor of the shape and dtype of `rates`.
    """

  def initial_state(self, config: Any, num_clients: int) -> 'collections.OrderedDict[str, tf.Tensor]':
    """Server state before round 1, by name; nothing for rules without."""
    del config, num_clients
    return collections.OrderedDict()

  def next_state(
      self, config: Any, state: Any, client_ids: tf.Tensor, budgets: tf.Tensor, agreements: tf.Tensor
  ) -> 'collections.OrderedDict[str, tf.Tensor]':
    """The state after round t, of the same structure.

    Args:
      config: The budget's parameters.
      state: The state after round t-1.
      client_ids: int64[M], the cohort, possibly nobody.
      budgets: float32[M], what they were given.
      agreements: float32[M] in [-1, 1], the cosine of each one's update with the aggregate of the last round that had
        anybody; 0 if either is zero or not finite. All 0 without `uses_agreement`.
    """
    del config, client_ids, budgets, agreements
    return state
