"""The filter: no client's Σ_t μ_i(t)² passes μ_max²(ε, δ), whatever cohorts, resumes and retried rounds bring.

    μ_i(t)² = w_i(t)²/z² + 1/c²     c the noise multiplier of the noised count that a private quantile releases

w_i(t) is what the weight rule asks for, lowered to what is left. Weights and what is spent follow from who takes part
alone. Who that is may depend on earlier releases: for Gaussian mechanisms a filter on Σμ² proves under fully adaptive
composition what composition proves for μ that are fixed beforehand (Smith and Thakurta 2022; Koskela, Tobaben and
Honkela 2023, "Individual Privacy Accounting with Gaussian Differential Privacy").

Rounding, all on the safe side: the limit is lower than μ_max² by `SLACK`; weights are rounded down to float32; what is
spent is rounded up. So for any number of rounds Σμ² <= spent <= limit·(1 + 1e-14) < μ_max². What is spent is a part of
the server's state: it guards one line of states. Releases of two rounds that continue one state add up unguarded.
"""

import functools
from typing import Any, NamedTuple, Tuple

import numpy as np

from quap_tff import arrays
from quap_tff import tradeoff

# Relative: the accuracy of μ_max, and room for accountants that add up the same rounds with rounding of their own.
SLACK = 2.0**-30
# A weight below adds next to nothing, and clipping to it would meet float32's rounding of tiny numbers.
SMALLEST_WEIGHT = 2.0**-20
# Of what the rule asks for. A budget's last scraps, such as rounding leaves, are not worth a round's noise.
SMALLEST_SHARE = 2.0**-3
# Relative rounding up of one round's cost, some float64 operations.
_ROUNDED_UP = 1 + 2.0**-50


class Prices(NamedTuple):
  """What taking part costs.

  Attributes:
    limit: The most that Σμ² of a client may be, from `limit_of`.
    noise_multiplier: z > 0; a float, or float64s that broadcast with what is spent.
    count_cost: 1/c² >= 0 for each round in which a client adds to a sum; 0 if no count is released.
  """

  limit: float
  noise_multiplier: Any
  count_cost: float


@functools.lru_cache(maxsize=None)
def limit_of(epsilon: float, delta: float) -> float:
  """μ_max²(ε, δ)·(1 - SLACK): μ_max is the μ of the one Gaussian mechanism that is exactly (ε, δ)."""
  return (1 - SLACK) * tradeoff.mu_at_most(epsilon, delta)**2


def even_weight(prices: Prices, rounds: Any) -> Any:
  """The weight in [0, 1] with which `rounds` rounds spend the whole limit: min(1, z·√(limit/K - 1/c²)); float64.

  Args:
    prices: Of the rounds.
    rounds: K, integers of any shape; less than 1 counts as 1.
  """
  xp = arrays.namespace(rounds)
  share = prices.limit / arrays.cast(xp.maximum(rounds, 1), np.float64) - prices.count_cost
  return xp.minimum(prices.noise_multiplier * xp.sqrt(xp.maximum(share, 0.0)), 1.0)


def spend(prices: Prices, spent: Any, proposed: Any) -> Tuple[Any, Any]:
  """What clients of a round may add, and what they have spent after it; elementwise.

  A client that cannot pay for the count and for a weight of at least `SMALLEST_SHARE` of what the rule asks for, and of
  `SMALLEST_WEIGHT`, adds nothing to the sum nor to the count, has weight 0, and spends nothing.

  Args:
    prices: Of the round.
    spent: float64, Σμ² of the rounds before.
    proposed: Floats in [0, 1], the weights that the rule asks for.

  Returns:
    (weights float32 in [0, 1], Σμ² with this round float64).
  """
  xp = arrays.namespace(spent, proposed)
  left = prices.limit - spent - prices.count_cost
  affordable = prices.noise_multiplier * xp.sqrt(xp.maximum(left, 0.0))
  asked = xp.minimum(arrays.cast(proposed, np.float64), 1.0)
  exact = xp.minimum(asked, affordable)
  weights = arrays.cast(exact, np.float32)
  lowered = xp.nextafter(weights, xp.zeros_like(weights))
  weights = xp.where(arrays.cast(weights, np.float64) > exact, lowered, weights)
  pays = arrays.cast(weights, np.float64) >= xp.maximum(SMALLEST_SHARE * asked, SMALLEST_WEIGHT)
  cost = xp.square(arrays.cast(weights, np.float64) / prices.noise_multiplier) + prices.count_cost
  # The sum is rounded by less than what is added here.
  total = (spent + cost * _ROUNDED_UP) * (1 + 2.0**-52)
  return xp.where(pays, weights, xp.zeros_like(weights)), xp.where(pays, total, spent)
