"""The cost of a history to each client. Live runs, ledgers, gates, logs and certificates all call this one account.

A history is a sequence of rounds (`quap_tff.mechanisms.mechanism.RoundRecord`) under one correlation of the noise. Each
round charges its clients by the filter's own arithmetic (`privacy_filter.charged`); under noise that clients hold, by
`held_noise`. So the same history gives the same bits in all of them.

Under correlated noise a client is charged at once for what later releases will still show of it. How many can follow is
either known, because the history is complete, or bounded by the number of planned rounds, of which some may release
nothing. The second is what a filter charges while the rounds run, and never less than the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
import math
from typing import Optional

import numpy as np

from quap_tff.common import array_types
from quap_tff.mechanisms import mechanism
from quap_tff.mechanisms.certified import privacy_filter
from quap_tff.mechanisms.noise import correlation as correlations
from quap_tff.mechanisms.noise import held_noise

# A limit that nobody reaches.
_NO_LIMIT = 1e300
# Less noise than this is no noise, so that no square overflows. Larger multipliers and smaller weights count as these,
# so that no square becomes 0. All of this only adds to what is spent.
_LEAST_NOISE, _MOST_NOISE, _LEAST_WEIGHT = 1e-140, 1e80, 1e-70


class Spending:
  """Everyone's account after some rounds of a history.

  Attributes:
    counts: int64[N], in how many rounds each client had a weight.
    num_rounds: The number of rounds so far.
    num_releases: How many of them have released something.
  """

  def __init__(self, correlation: correlations.Correlation, num_clients: int = 0):
    """Opens the accounts.

    Args:
      correlation: The correlation of the noise, with all its numbers.
      num_clients: N. Clients with larger ids open accounts when they come.
    """
    self._correlation = correlation
    self._accounts = privacy_filter.opened(num_clients, correlation.num_buffers)
    self._held: Optional[held_noise.Account] = None
    self._unbounded = np.zeros(num_clients, bool)
    self._noise_multiplier: Optional[float] = None
    self.counts = np.zeros(num_clients, np.int64)
    self.num_rounds = self.num_releases = 0

  @property
  def mu_squared(self) -> np.ndarray:
    """float64[N], μ_i² of each client, rounded up; +inf for one that was in a round without noise."""
    spent = self._accounts.spent if self._held is None else self._held.spent
    return np.where(self._unbounded, np.inf, spent)

  def accounts_of(self, ids: np.ndarray) -> privacy_filter.Accounts:
    """The filter's accounts of some clients, int64[M], copied."""
    return privacy_filter.accounts_of(self._accounts, ids)

  def state_dict(self) -> dict[str, np.ndarray]:
    """The arrays from which `restored` makes the accounts anew; not under noise that clients hold."""
    return {
      'spent': self._accounts.spent,
      'latest': self._accounts.latest,
      'unbounded': self._unbounded,
      'counts': self.counts,
      **{f'sums{j}': one for j, one in enumerate(self._accounts.sums)},
      'counters': np.array([self.num_rounds, self.num_releases], np.int64),
    }

  @classmethod
  def restored(cls, correlation: correlations.Correlation, state: Mapping[str, np.ndarray]) -> Spending:
    """The accounts that `state_dict` gave. Raises `ValueError` or `KeyError` if the arrays do not fit each other."""
    account = cls(correlation, len(state['spent']))
    shapes = {name: value.shape for name, value in account.state_dict().items()}
    if shapes != {name: state[name].shape for name in shapes}:
      raise ValueError('The arrays of an account must have one value for each client.')
    sums = [state[f'sums{j}'] for j in range(correlation.num_buffers)]
    account._accounts = privacy_filter.Accounts(state['spent'], sums, state['latest'])
    account._unbounded, account.counts = state['unbounded'], state['counts']
    account.num_rounds, account.num_releases = state['counters'].tolist()
    return account

  def add(self, record: mechanism.RoundRecord, releases_left: array_types.Numbers) -> None:
    """Charges the clients of the next round, in time in proportion to their number.

    Args:
      record: The round. Its budgets and its clipping norm play no part.
      releases_left: How many releases can follow; it matters under correlated noise alone.

    Raises:
      ValueError: If the round released nothing, but clients have weights in it; or if the noise is correlated, and the
        noise multiplier is not that of the rounds before.
    """
    ids = np.asarray(record.cohort, np.int64)
    weights = np.asarray(record.weights, np.float64)
    takes_part = weights > 0
    if takes_part.any():
      if not record.releases:
        raise ValueError('A round that released nothing has clients with a weight. Give them weight 0.')
      self._grow(int(ids.max()) + 1)
      self.counts[ids[takes_part]] += 1
      self._charge(ids[takes_part], weights[takes_part], record, releases_left)
    self.num_rounds += 1
    self.num_releases += record.releases

  def _charge(
    self, ids: np.ndarray, weights: np.ndarray, record: mechanism.RoundRecord, releases_left: array_types.Numbers
  ) -> None:
    noise, count_noise = record.noise_multiplier, record.count_noise_multiplier
    if self._correlation.num_buffers:
      if self._noise_multiplier not in (None, noise):
        raise ValueError(
          'Under correlated noise all rounds have one noise multiplier, found '
          f'{self._noise_multiplier:g} and {noise:g}.'
        )
      self._noise_multiplier = noise
    if min(noise, count_noise) < _LEAST_NOISE:
      self._unbounded[ids] = True  # For good: no later round takes back what was shown.
      return
    if isinstance(self._correlation, correlations.HeldNoise):
      if self._held is None:
        self._held = held_noise.opened(len(self._unbounded), noise, self._correlation.chosen)
      self._held = self._held.after(ids, weights)
      return
    prices = privacy_filter.Prices(
      limit=_NO_LIMIT,
      noise_multiplier=min(noise, _MOST_NOISE),
      count_cost=(1 / count_noise) * (1 / count_noise),
      correlation=self._correlation,
    )
    before, release = self.accounts_of(ids), np.int64(self.num_releases)
    charged_weights = np.maximum(weights, _LEAST_WEIGHT)
    own = privacy_filter.charged(prices, before, release, releases_left, charged_weights)
    privacy_filter.put(self._accounts, ids, own)

  def _grow(self, num_clients: int) -> None:
    before = len(self._unbounded)
    if num_clients > before:
      # At least doubled, so that a log of new names costs time in proportion to its length.
      size = max(2 * before, num_clients)
      grown = privacy_filter.opened(size, self._correlation.num_buffers)
      privacy_filter.put(grown, slice(before), self._accounts)
      self._accounts = grown
      self._unbounded = np.pad(self._unbounded, (0, size - before))
      self.counts = np.pad(self.counts, (0, size - before))


def spending(
  history: Iterable[mechanism.RoundRecord],
  correlation: correlations.Correlation,
  num_clients: int = 0,
  num_rounds: Optional[float] = None,
) -> Spending:
  """Everyone's account over a history.

  Args:
    history: The rounds, in order. It is passed over twice if the noise is correlated and `num_rounds` is None.
    correlation: The correlation of the noise, with all its numbers.
    num_clients: N, as `Spending` takes it.
    num_rounds: The planned rounds, +inf for any number: the account is then the one that a filter kept while the rounds
      ran. None: the history is complete, and nothing is charged for releases that it does not hold.

  Raises:
    ValueError: As `Spending.add`; or if there are more rounds than planned.
  """
  account, releases = Spending(correlation, num_clients), math.inf
  if num_rounds is None and correlation.num_buffers:
    releases = sum(record.releases for record in history)
  for record in history:
    number = account.num_rounds + 1
    if num_rounds is not None and number > num_rounds:
      raise ValueError(f'There are more than the {num_rounds:g} planned rounds. Plan as many as there are.')
    if num_rounds is None:
      left = releases - account.num_releases - 1
    else:
      # A filter cannot know which of the rounds to come will release nothing.
      left = num_rounds - number
    account.add(record, left)
  return account
