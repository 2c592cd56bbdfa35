"""The filter: no client's μ_i² exceeds μ_max²(ε, δ), whatever the cohorts are, in one sequence of states.

    μ_i² = 1/z²·Σ_s ( Σ_{t≤s, i∈S_t} c_{s-t}·w_i(t) )² + (rounds that i is in)/c²

s and t count releases. c_k are the coefficients of the noise's correlation (`quap_tff.mechanisms.noise.correlation`);
independent noise has only c_0 = 1. c is the noise multiplier of the noised count that a private quantile releases. A
client that is in one release is still seen in those that follow, more faintly each time. So when it adds something, it
is charged at once for all of them, up to the last planned round, and its account never grows while it stays away.

w_i(t) is the weight that the rule asks for, lowered to what is left of the budget. Weights and spending are known
before the noise of the round is drawn. So the bound holds if earlier releases decide who comes (theorems 1
and 2 of docs/proofs.md). It is a bound on every path: what a client has spent is exact only if cohorts did not follow
from releases.

All rounding is on the safe side: the limit is lower than μ_max² by `SLACK`, weights are rounded down to float32, and
what is spent is rounded up. So for any number of rounds μ² ≤ spent ≤ limit·(1 + 1e-10) < μ_max². What is spent is part
of the server's state, so the filter guards one sequence of states. If two rounds start from the same state, the filter
does not see that their releases add up.
"""

import functools
from typing import NamedTuple

import numpy as np

from quap_tff.common import array_types
from quap_tff.common.numbers import arrays
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms.noise import correlation as correlations

# A relative margin for the accuracy of μ_max and for the rounding of accountants, which add up the rounds differently.
SLACK = 2.0**-30
# A smaller weight adds next to nothing, and clipping to it would suffer from float32's rounding of tiny numbers.
SMALLEST_WEIGHT = 2.0**-20
# A client adds nothing if its budget pays for less than this share of the weight that the rule asks for. With only such
# clients, a round would release hardly any signal and all of its noise.
SMALLEST_SHARE = 2.0**-3
# What an account may reach, over the limit. Only rounding takes it above 1.
_REACH = 1 + 1e-10
# How much one round's cost is rounded up, relative to it. The first factor covers some float64 operations. The second
# also covers the rounding of the thousands of terms in a client's sums of exponentials (`correlations.LARGEST_DECAY`).
_ROUNDED_UP, _CORRELATED_ROUNDED_UP = 1 + 2.0**-50, 1 + 2.0**-36


class Prices(NamedTuple):
  """The prices of taking part.

  Attributes:
    limit: The largest Σμ² that a client may have, from `limit_of`: one for all, or float64s, one for each client. Of a
      client that has spent something before, what is left of it (`left_of`).
    noise_multiplier: z > 0; a float, or float64s that broadcast with what is spent.
    count_cost: 1/c² >= 0 for each round in which a client adds to a sum; 0 if no count is released.
    correlation: The correlation of the noise.
  """

  limit: array_types.Numbers
  noise_multiplier: array_types.Numbers
  count_cost: float
  correlation: correlations.Correlation = correlations.Independent()


class Accounts(NamedTuple):
  """The clients' accounts after some releases.

  Attributes:
    spent: float64[..., N], μ_i² of the releases so far. If i adds nothing more, also μ_i² of all planned releases.
    sums: For each buffer j of the correlation, float64[..., N]: what it holds of the client's weights after release s,
      the latest that i was in. With exponentials this is Σ_{t≤s} decay_j^(s-t)·w_i(t), with bands w_i(s-j+1).
    latest: int64[..., N], s, counted from 0; 0 for a client that was in no release.
  """

  spent: array_types.Array
  sums: list[array_types.Array]
  latest: array_types.Array


class Standing(NamedTuple):
  """The accounts of a round's clients before the round.

  Attributes:
    left: float64[..., M], what is left of the limit.
    sums: For each buffer, float64[..., M]: the clients' sums as they are just before this release.
  """

  left: array_types.Numbers
  sums: list[array_types.Array]


@functools.cache
def limit_of(epsilon: float, delta: float) -> float:
  """μ_max²(ε, δ)·(1 - SLACK). μ_max is the μ of the Gaussian mechanism with exactly (ε, δ)-differential privacy."""
  return (1 - SLACK) * tradeoff.mu_at_most(epsilon, delta) ** 2


def left_of(limit: array_types.Numbers, spent_before: array_types.Numbers) -> np.ndarray:
  """float64[N], what is left of limits for clients whose releases before have cost `spent_before`; at least 0.

  Those releases and the ones that follow are one path of theorems 1 and 2. So a filter with these limits keeps the sum
  over all of them within `limit`.
  """
  return np.maximum(limit - np.asarray(spent_before, np.float64), 0.0)


def share_of(limit: array_types.Numbers, spent: array_types.Numbers) -> array_types.Array:
  """The share of their limits (NumPy's) that accounts have spent, elementwise; 0 where nothing is left to spend."""
  return spent / np.maximum(limit, np.finfo(np.float64).tiny)


def opened(num_clients: int, num_buffers: int, leading: tuple[int, ...] = ()) -> Accounts:
  """The accounts before the first release, as NumPy arrays. `leading` are the first dimensions of each."""
  return Accounts(
    spent=np.zeros([*leading, num_clients]),
    sums=[np.zeros([*leading, num_clients]) for _ in range(num_buffers)],
    latest=np.zeros([*leading, num_clients], np.int64),
  )


def prices_of(prices: Prices, client_ids: array_types.Array) -> Prices:
  """The prices with the limits of some clients, int64[M], where each client has a limit of its own."""
  if np.ndim(prices.limit) == 0:
    return prices
  return prices._replace(limit=arrays.take(prices.limit, client_ids))


def accounts_of(accounts: Accounts, client_ids: array_types.Array) -> Accounts:
  """The accounts of some clients, int64[M], as NumPy arrays."""
  sums = [one[..., client_ids] for one in accounts.sums]
  return Accounts(accounts.spent[..., client_ids], sums, accounts.latest[..., client_ids])


def put(accounts: Accounts, client_ids: array_types.Array, own: Accounts) -> None:
  """Writes the accounts of some clients back into NumPy arrays."""
  accounts.spent[..., client_ids] = own.spent
  accounts.latest[..., client_ids] = own.latest
  for whole, part in zip(accounts.sums, own.sums):
    whole[..., client_ids] = part


def standing(prices: Prices, accounts: Accounts, release: array_types.Numbers) -> Standing:
  """The state of the accounts of a round's clients before a release.

  Args:
    prices: The prices of the round.
    accounts: The accounts of the round's clients.
    release: How many releases there have been, int64: a scalar, or with a last dimension of 1.
  """
  xp = arrays.namespace(accounts.latest, release)
  # A client that was in no release has sums of 0, which fade to 0 whatever has elapsed.
  elapsed = arrays.cast(xp.maximum(release - 1 - accounts.latest, 0), np.float64)
  sums = prices.correlation.faded(accounts.sums, elapsed)
  return Standing(prices.limit - accounts.spent, sums)


def weight_for(room: array_types.Numbers, unit: array_types.Numbers, cross: array_types.Numbers) -> array_types.Array:
  """The largest w ≥ 0 with unit·w² + 2·cross·w ≤ room; 0 where there is no room. float64, elementwise."""
  xp = arrays.namespace(room, unit, cross)
  room = xp.maximum(room, 0.0)
  # This form has no difference, so there is no cancellation.
  root = xp.sqrt(cross * cross + unit * room)
  return room / xp.maximum(cross + root, np.finfo(np.float64).tiny)


def spend(
  prices: Prices,
  accounts: Accounts,
  release: array_types.Numbers,
  releases_left: array_types.Numbers,
  proposed: array_types.Numbers,
) -> tuple[array_types.Array, Accounts]:
  """The weights that the clients of a round may have, and their accounts after it; elementwise.

  A client must be able to pay for the count and for its weight. The weight must be at least `SMALLEST_WEIGHT`, and at
  least `SMALLEST_SHARE` of the weight that the rule asks for. A client that cannot pay adds nothing to the sum or to
  the count, has weight 0, and spends nothing. After the last planned round nobody adds anything, because clients were
  charged only for releases up to that round.

  Args:
    prices: The prices of the round.
    accounts: The accounts of its clients.
    release: How many releases there have been, in the form that `standing` takes.
    releases_left: How many releases can follow this one; +inf if no number of rounds is planned. Below 0 the planned
      rounds are over.
    proposed: Floats in [0, 1], the weights that the rule asks for.

  Returns:
    (weights float32 in [0, 1], the accounts with this round).
  """
  xp = arrays.namespace(accounts.spent, proposed, release, releases_left)
  bill = _bill(prices, accounts, release, releases_left)
  is_planned = arrays.cast(xp.greater_equal(releases_left, 0), np.float64)
  left = prices.limit - accounts.spent
  room = (left - prices.count_cost) * bill.squared
  affordable = is_planned * weight_for(room, bill.unit, bill.cross)
  asked = xp.minimum(arrays.cast(proposed, np.float64), 1.0)
  exact = xp.minimum(asked, affordable)
  weights = arrays.cast(exact, np.float32)
  # float32 rounds to the nearest number, which may be more than the budget pays for.
  lowered = xp.nextafter(weights, xp.zeros_like(weights))
  weights = xp.where(arrays.cast(weights, np.float64) > exact, lowered, weights)
  taken = arrays.cast(weights, np.float64)
  after = _charged(prices, accounts, bill, release, taken)
  # A sum that is NaN is not within the limit.
  is_within = after.spent <= prices.limit * _REACH
  least = xp.maximum(SMALLEST_SHARE * asked, SMALLEST_WEIGHT)
  pays = xp.logical_and(taken >= least, is_within)
  return xp.where(pays, weights, xp.zeros_like(weights)), _chosen(pays, after, accounts)


def charged(
  prices: Prices,
  accounts: Accounts,
  release: array_types.Numbers,
  releases_left: array_types.Numbers,
  weights: array_types.Array,
) -> Accounts:
  """The accounts after a round in which the clients add what they were allowed to, or less.

  Args:
    prices, accounts, release, releases_left: As for `spend`.
    weights: Floats, from `spend` with the same arguments; a client of weight 0 spends nothing.
  """
  xp = arrays.namespace(accounts.spent, weights, release, releases_left)
  taken = arrays.cast(weights, np.float64)
  bill = _bill(prices, accounts, release, releases_left)
  after = _charged(prices, accounts, bill, release, taken)
  return _chosen(xp.greater(taken, 0), after, accounts)


class _Bill(NamedTuple):
  """The cost of a weight w: (unit·w² + 2·cross·w)/squared, and that of a count."""

  squared: array_types.Numbers
  unit: array_types.Numbers
  cross: array_types.Numbers
  sums: list[array_types.Array]


def _bill(
  prices: Prices, accounts: Accounts, release: array_types.Numbers, releases_left: array_types.Numbers
) -> _Bill:
  xp = arrays.namespace(accounts.spent, release, releases_left)
  before = standing(prices, accounts, release)
  squared = xp.square(arrays.cast(prices.noise_multiplier, np.float64))
  left = xp.maximum(arrays.cast(releases_left, np.float64), 0.0)
  unit, by_sum = prices.correlation.price(left)
  # It has the shape of the accounts, also where there are no sums.
  cross = xp.zeros_like(before.left)
  for factor, own in zip(by_sum, before.sums):
    cross = cross + factor * own
  return _Bill(squared, unit, cross, before.sums)


def _charged(
  prices: Prices, accounts: Accounts, bill: _Bill, release: array_types.Numbers, taken: array_types.Array
) -> Accounts:
  xp = arrays.namespace(accounts.spent, taken)
  cost = (bill.unit * taken + 2.0 * bill.cross) * taken / bill.squared + prices.count_cost
  is_correlated = prices.correlation.num_buffers > 0
  rounded_up = _CORRELATED_ROUNDED_UP if is_correlated else _ROUNDED_UP
  # The rounding of this sum is less than what the last factor adds.
  spent = (accounts.spent + cost * rounded_up) * (1 + 2.0**-52)
  if not is_correlated:
    # Nothing of an earlier round overlaps with a later one, so nothing more need be known of it.
    return accounts._replace(spent=spent)
  sums = list(prices.correlation.after(bill.sums, taken))
  latest = xp.zeros_like(accounts.latest) + release
  return Accounts(spent, sums, latest)


def _chosen(pays: array_types.Array, after: Accounts, before: Accounts) -> Accounts:
  xp = arrays.namespace(pays, after.spent)

  def choose(new: array_types.Array, old: array_types.Array) -> array_types.Array:
    return old if new is old else xp.where(pays, new, old)

  spent = choose(after.spent, before.spent)
  sums = [choose(new, old) for new, old in zip(after.sums, before.sums)]
  latest = choose(after.latest, before.latest)
  return Accounts(spent, sums, latest)
