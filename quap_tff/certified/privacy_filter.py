"""The filter: no client's μ_i² passes μ_max²(ε, δ), whatever cohorts, resumes and retried rounds bring.

    μ_i² = 1/z²·Σ_s ( Σ_{t≤s, i∈S_t} c_{s-t}·w_i(t) )² + (rounds that i is in)/c²

s and t count releases, c_k are the coefficients of the noise's correlation (`quap_tff.correlation`; independent noise
has c_0 = 1 alone), and c is the noise multiplier of the noised count that a private quantile releases. A client that is
in one release is still seen in those that follow, more faintly each time: so all of them, to the last planned round,
are charged when it adds something, and a client's account never grows while it stays away.

w_i(t) is what the weight rule asks for, lowered to what is left. Weights and what is spent follow from who takes part
alone. Who that is may depend on earlier releases: for Gaussian mechanisms a filter on Σμ² proves under fully adaptive
composition what composition proves for μ that are fixed beforehand (Smith and Thakurta 2022; Koskela, Tobaben and
Honkela 2023, "Individual Privacy Accounting with Gaussian Differential Privacy").

Rounding, all on the safe side: the limit is lower than μ_max² by `SLACK`; weights are rounded down to float32; what is
spent is rounded up. So for any number of rounds μ² ≤ spent ≤ limit·(1 + 1e-10) < μ_max². What is spent is a part of
the server's state: it guards one line of states. Releases of two rounds that continue one state add up unguarded.
"""

import functools
import math
from typing import Any, List, NamedTuple, Tuple

import numpy as np

from quap_tff import arrays
from quap_tff import correlation as correlations
from quap_tff import tradeoff

# Relative: the accuracy of μ_max, and room for accountants that add up the same rounds with rounding of their own.
SLACK = 2.0**-30
# A weight below adds next to nothing, and clipping to it would meet float32's rounding of tiny numbers.
SMALLEST_WEIGHT = 2.0**-20
# Of what the rule asks for. A budget's last scraps, such as rounding leaves, are not worth a round's noise.
SMALLEST_SHARE = 2.0**-3
# Relative rounding up of one round's cost: some float64 operations; and where a client's sums of exponentials enter,
# the rounding of the thousands of terms that they remember (`correlations.LARGEST_DECAY`).
_ROUNDED_UP, _CORRELATED_ROUNDED_UP = 1 + 2.0**-50, 1 + 2.0**-36


class Prices(NamedTuple):
  """What taking part costs.

  Attributes:
    limit: The most that Σμ² of a client may be, from `limit_of`.
    noise_multiplier: z > 0; a float, or float64s that broadcast with what is spent.
    count_cost: 1/c² >= 0 for each round in which a client adds to a sum; 0 if no count is released.
    correlation: Of the noise.
  """

  limit: float
  noise_multiplier: Any
  count_cost: float
  correlation: correlations.Correlation = correlations.Independent()


class Accounts(NamedTuple):
  """The clients' accounts after some releases.

  Attributes:
    spent: float64[..., N], μ_i² of the releases so far and, if i adds nothing more, of all that are planned.
    sums: For each term j of the correlation, float64[..., N]: Σ_t decay_j^(s-t)·w_i(t) over the releases t that i was
      in, s the latest of them.
    latest: int64[..., N], s, counted from 0; of a client that was in none, 0.
  """

  spent: Any
  sums: List[Any]
  latest: Any


class Standing(NamedTuple):
  """How the clients of a round stand before it.

  Attributes:
    left: float64[..., M], what is left of the limit.
    sums: For each term float64[..., M], their sums of exponentials, decayed to the release before this one.
  """

  left: Any
  sums: List[Any]


@functools.lru_cache(maxsize=None)
def limit_of(epsilon: float, delta: float) -> float:
  """μ_max²(ε, δ)·(1 - SLACK): μ_max is the μ of the one Gaussian mechanism that is exactly (ε, δ)."""
  return (1 - SLACK) * tradeoff.mu_at_most(epsilon, delta)**2


def opened(num_clients: int, num_buffers: int, leading: Tuple[int, ...] = ()) -> Accounts:
  """The accounts before the first release, NumPy arrays; `leading` are the first dimensions of each."""
  return Accounts(
      spent=np.zeros([*leading, num_clients]),
      sums=[np.zeros([*leading, num_clients]) for _ in range(num_buffers)],
      latest=np.zeros([*leading, num_clients], np.int64),
  )


def standing(prices: Prices, accounts: Accounts, release: Any) -> Standing:
  """How clients stand before a release.

  Args:
    prices: Of the round.
    accounts: Of the clients of the round.
    release: How many releases there have been, int64; a scalar, or with a last dimension of 1.
  """
  xp = arrays.namespace(accounts.latest, release)
  elapsed = arrays.cast(xp.maximum(release - 1 - accounts.latest, 0), np.float64)
  sums = [own * xp.exp(elapsed * math.log(decay)) for own, (_, decay) in zip(accounts.sums, prices.correlation.terms)]
  return Standing(prices.limit - accounts.spent, sums)


def weight_for(room: Any, unit: Any, cross: Any) -> Any:
  """The largest w ≥ 0 with unit·w² + 2·cross·w ≤ room; 0 where there is no room. float64, elementwise."""
  xp = arrays.namespace(room, unit, cross)
  room = xp.maximum(room, 0.0)
  # Written without a difference, so that nothing cancels.
  root = xp.sqrt(cross * cross + unit * room)
  return room / xp.maximum(cross + root, np.finfo(np.float64).tiny)


def spend(
    prices: Prices, accounts: Accounts, release: Any, releases_left: Any, proposed: Any
) -> Tuple[Any, Accounts]:
  """What clients of a round may add, and their accounts after it; elementwise.

  A client that cannot pay for the count and for a weight of at least `SMALLEST_SHARE` of what the rule asks for, and of
  `SMALLEST_WEIGHT`, adds nothing to the sum nor to the count, has weight 0, and spends nothing. After the last planned
  round nobody adds anything: what was charged reaches to that round.

  Args:
    prices: Of the round.
    accounts: Of its clients.
    release: How many releases there have been, as for `standing`.
    releases_left: How many can follow this one; +inf if nothing is planned. Below 0 there is no round any more.
    proposed: Floats in [0, 1], the weights that the rule asks for.

  Returns:
    (weights float32 in [0, 1], the accounts with this round).
  """
  xp = arrays.namespace(accounts.spent, proposed, release, releases_left)
  before = standing(prices, accounts, release)
  squared = xp.square(arrays.cast(prices.noise_multiplier, np.float64))
  within = arrays.cast(xp.greater_equal(releases_left, 0), np.float64)
  unit, by_sum = prices.correlation.price(xp.maximum(arrays.cast(releases_left, np.float64), 0.0))
  cross = sum((factor * own for factor, own in zip(by_sum, before.sums)), 0.0 * before.left)
  affordable = within * weight_for((before.left - prices.count_cost) * squared, unit, cross)
  asked = xp.minimum(arrays.cast(proposed, np.float64), 1.0)
  exact = xp.minimum(asked, affordable)
  weights = arrays.cast(exact, np.float32)
  lowered = xp.nextafter(weights, xp.zeros_like(weights))
  weights = xp.where(arrays.cast(weights, np.float64) > exact, lowered, weights)
  taken = arrays.cast(weights, np.float64)
  pays = taken >= xp.maximum(SMALLEST_SHARE * asked, SMALLEST_WEIGHT)
  cost = (unit * taken + 2.0 * cross) * taken / squared + prices.count_cost
  correlated = prices.correlation.num_buffers > 0
  # The sum is rounded by less than what is added here.
  total = (accounts.spent + cost * (_CORRELATED_ROUNDED_UP if correlated else _ROUNDED_UP)) * (1 + 2.0**-52)
  after = Accounts(spent=xp.where(pays, total, accounts.spent), sums=accounts.sums, latest=accounts.latest)
  if correlated:
    after = after._replace(
        sums=[
            xp.where(pays, own * decay + taken, kept)
            for own, kept, (_, decay) in zip(before.sums, accounts.sums, prices.correlation.terms)
        ],
        latest=xp.where(pays, xp.zeros_like(accounts.latest) + release, accounts.latest),
    )
  return xp.where(pays, weights, xp.zeros_like(weights)), after
