"""Rules for the clients' weights w_i(t): how much of the clipping norm each client of a cohort gets.

The filter has the last word: whatever a rule asks for, nobody exceeds the budget. A new rule is a class here and a line
in `RULES`.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import NamedTuple, Optional

import numpy as np

from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.common.numbers import arrays
from quap_tff.mechanisms.certified import privacy_filter
from quap_tff.mechanisms.parts import budgets


class RoundView(NamedTuple):
  """The facts on a round's cohort of M clients before it adds anything: participation and constants, but no data.

  Attributes:
    prices: What taking part costs. Its noise multiplier may be a column of several, [Z, 1].
    standing: What is left of the clients' budgets.
    rates: float32[M], p_i(t).
    counts: int[M], k_i(t), the number of rounds that each client has been in, this one included.
    round_num: t, the number of counted rounds, this one included.
    rounds_left: T - t, the planned rounds after this one; +inf if no number of rounds is planned.
    in_warmup: Whether t is a warm-up round of the participation rates.
    planned: (int[M], float64[M]): in how many rounds each client is planned to take part, and what weights of 1 in all
      of them would cost in μ² at z = 1. None unless the rule has `needs_plan`.
    budget_shares: float64[M], each client's limit on μ² over the largest of all clients; 1 if all have the same.
  """

  prices: privacy_filter.Prices
  standing: privacy_filter.Standing
  rates: array_types.Array
  counts: array_types.Array
  round_num: array_types.Numbers
  rounds_left: array_types.Numbers
  in_warmup: array_types.Booleans
  planned: Optional[tuple[array_types.Array, array_types.Array]] = None
  budget_shares: array_types.Numbers = 1.0


class WeightRule(checks.Checked, abc.ABC):
  """How weights are proposed. Subclasses are frozen dataclasses in `RULES`.

  Attributes:
    needs_plan: Whether weights depend on how often each client is planned to take part.
    needs_rounds: Whether weights depend on how many rounds are planned.
    needs_own_bounds: Whether weights follow bounds that clients have chosen.
    takes_worst_case: Whether the noise is chosen for the worst case of k participations that are b releases apart.
  """

  needs_plan: bool = False
  needs_rounds: bool = False
  needs_own_bounds: bool = False
  takes_worst_case: bool = False

  @abc.abstractmethod
  def weights(self, view: RoundView) -> array_types.Array:
    """w_i(t) in [0, 1] before the filter: floats that broadcast to [M], or to [Z, M]."""


@dataclasses.dataclass(frozen=True)
class ParticipationWeights(WeightRule):
  """QuAP-FL's budgets as weights: w_i(t) = ε_i(t) / (ε_base·(1 + α)) = (1 + α·exp(-β·p_i(t))) / (1 + α).

  A client with the largest possible budget gets the whole clipping norm, and a client that takes part often gets less.
  In warm-up rounds the rates do not say anything yet: budgets are ε_base, and weights are 1/(1 + α).

  Attributes:
    alpha: α >= 0.
    beta: β > 0.
  """

  alpha: float = 0.5
  beta: float = 2.0

  def __post_init__(self) -> None:
    super().__post_init__()
    self._budget()

  def weights(self, view: RoundView) -> array_types.Array:
    budget = self._budget()
    return budgets.client_budgets(budget, view.rates, view.in_warmup) / budget.largest_budget

  def _budget(self) -> budgets.BudgetConfig:
    # Only ratios of budgets matter.
    return budgets.BudgetConfig(epsilon_total=1.0, num_rounds=1, alpha=self.alpha, beta=self.beta)


@dataclasses.dataclass(frozen=True)
class UniformWeights(WeightRule):
  """w_i(t) = 1 for everyone until the budget is spent. The filter alone limits what a client spends."""

  def weights(self, view: RoundView) -> array_types.Array:
    return arrays.namespace(view.rates).ones_like(view.rates)


@dataclasses.dataclass(frozen=True)
class Online(WeightRule):
  """Spreads what is left of a client's budget evenly over the rounds in which it is still expected.

  The client's rate is estimated from its own count: p̂ = (k_i(t) - 1 + a)/(t - 1 + a + b). From this round on, it is
  expected in n = 1 + p̂·(T - t) rounds. w is the weight at which n rounds, 1/p̂ apart, spend what is left:

      n·q·w² + 2·B·w = z²·left

  q is the cost of one round and of its overlap with the other n - 1 rounds. B is the overlap with earlier rounds. Under
  independent noise q = 1, B = 0 and w² = z²·left/n. The rule needs no schedule in advance: counts, rounds and weights
  follow from participation alone.

  Attributes:
    prior_a: a > 0.
    prior_b: b > 0. Before anything is known, the expected rate is a/(a + b).
  """

  prior_a: float = checks.number_field('prior_a', 1.0, above=0)
  prior_b: float = checks.number_field('prior_b', 2.0, above=0)

  needs_rounds = True

  def weights(self, view: RoundView) -> array_types.Array:
    prices, left = view.prices, arrays.cast(view.rounds_left, np.float64)
    xp = arrays.namespace(view.counts, view.standing.left, left)
    # During a warm-up that is not counted, counts are 0.
    count = xp.maximum(arrays.cast(view.counts, np.float64), 1.0)
    round_num = xp.maximum(arrays.cast(view.round_num, np.float64), 1.0)
    # Without this round: that the client is in it would count for it whatever its rate is.
    rate = (count - 1.0 + self.prior_a) / (round_num - 1.0 + self.prior_a + self.prior_b)
    rounds = 1.0 + rate * xp.maximum(left, 0.0)
    unit, by_sum = prices.correlation.price(xp.maximum(left, 0.0))
    gap = xp.maximum(1.0 / rate, 1.0)
    # One round overlaps with each of the n at most as much as with itself.
    unit = unit * xp.minimum(1.0 + 2.0 * prices.correlation.overlap(gap), rounds)
    cross = 0.0 * view.standing.left
    # Each of the n rounds overlaps with what is left of earlier rounds.
    for one in prices.correlation.lasting(by_sum, view.standing.sums, gap, rounds):
      cross += one
    squared = xp.square(arrays.cast(prices.noise_multiplier, np.float64))
    room = (view.standing.left - rounds * prices.count_cost) * squared
    return xp.minimum(privacy_filter.weight_for(room, rounds * unit, cross), 1.0)


@dataclasses.dataclass(frozen=True)
class SpendEvenly(WeightRule):
  """w_i = min(1, z·√((μ_max² - K_i/c²)/Q_i)): each client spends its budget evenly over its planned rounds.

  K_i is the number of rounds that client i is planned to be in. Q_i is what weights of 1 in all of them would cost at
  z = 1; under independent noise it is K_i. This rule is for a schedule that is public before the run.
  """

  needs_plan = True

  def weights(self, view: RoundView) -> array_types.Array:
    assert view.planned is not None  # By `needs_plan`.
    rounds, costs = view.planned
    xp = arrays.namespace(costs)
    # A client that was not planned counts as one of one round.
    num_rounds = xp.maximum(arrays.cast(rounds, np.float64), 1.0)
    left = view.prices.limit - num_rounds * view.prices.count_cost
    share = xp.sqrt(xp.maximum(left, 0.0) / xp.maximum(costs, 1.0))
    noise_multiplier = arrays.cast(view.prices.noise_multiplier, np.float64)
    return xp.minimum(noise_multiplier * share, 1.0)


@dataclasses.dataclass(frozen=True)
class ScaledWeights(WeightRule):
  """w_i = √(μ_i²/max_j μ_j²), μ_i of the bound ε_i that client i has chosen: a smaller budget, a smaller clipping norm.

  SCALE of Boenisch, Mühl, Dziedzic, Rinberg and Papernot 2023, "Have it your way: Individualized Privacy Assignment for
  DP-SGD" (NeurIPS). There each group's clipping norm is such that all budgets are used up after the same number of
  steps, under one noise. Here each client is a group, and the μ of exact Gaussian composition takes the place of RDP.
  """

  needs_own_bounds = True

  def weights(self, view: RoundView) -> array_types.Array:
    xp = arrays.namespace(view.budget_shares)
    return xp.sqrt(view.budget_shares)


@dataclasses.dataclass(frozen=True)
class Sample(WeightRule):
  """w_i(t) = 1 if ⌊k_i(t)·s_i⌋ > ⌊(k_i(t) - 1)·s_i⌋, else 0, s_i = μ_i²/max_j μ_j²: a smaller budget, fewer rounds.

  SAMPLE of Boenisch et al. 2023 (see `ScaledWeights`) draws the points of a group at a rate of its own, and counts the
  amplification by that sampling. Here who takes part is public and nothing is amplified. So a client with a smaller
  budget adds its update in every (1/s_i)-th round that it is in, which costs it the same share of the largest budget.
  """

  needs_own_bounds = True

  def weights(self, view: RoundView) -> array_types.Array:
    counts = arrays.cast(view.counts, np.float64)
    xp = arrays.namespace(counts)
    due_now = xp.floor(counts * view.budget_shares)
    due_before = xp.floor((counts - 1.0) * view.budget_shares)
    return arrays.cast(due_now > due_before, np.float64)


@dataclasses.dataclass(frozen=True)
class WorstCase(UniformWeights):
  """w_i(t) = 1, with the noise that the published accounting of correlated noise needs.

  That accounting gives one figure for all clients: the worst case of a client that takes part at most k times, at least
  b releases apart (Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta and Xu 2023). k and b are those that the
  sampler promises, or those of the schedule if it promises none. The rule is for comparison. The filter counts each
  client's own rounds and never has to lower a weight here.
  """

  takes_worst_case = True


RULES = {
  'participation': ParticipationWeights,
  'uniform': UniformWeights,
  'online': Online,
  'spend_evenly': SpendEvenly,
  'worst_case': WorstCase,
  'scale': ScaledWeights,
  'sample': Sample,
}
