"""The history of each client of a run, from its ledger: a Gaussian mechanism of μ = w_i(t)/z_t for each round.

Under correlated noise all rounds together are one Gaussian mechanism of μ_i = ‖C·w_i‖/z.

A private quantile's noised count is a separate mechanism, in which a client of weight 0 takes no part either. In a
round without clients nobody spends anything.
"""

from typing import NamedTuple

import numpy as np

from quap_tff.accounting import run_ledger
from quap_tff.accounting.accountants import history as histories_lib
from quap_tff.common.numbers import tradeoff

# How far μ is rounded up where the ledger has many different values, and how many values stay exact.
_STEP, _MOST_MECHANISMS = 1e-2, 256
# The same for histories of one mechanism.
_MERGED_STEP, _MOST_MERGED = 1e-3, run_ledger.LARGE_POPULATION


class TotalMu(NamedTuple):
  """√Σμ² of each client, rounded up by a share of less than 1e-9: the μ of one Gaussian that reveals as much.

  Attributes:
    updates: float64[N], from the sums of updates.
    counts: float64[N], from the noised counts.
  """

  updates: np.ndarray
  counts: np.ndarray

  @property
  def whole(self) -> np.ndarray:
    """float64[N], from both together."""
    return np.hypot(self.updates, self.counts) * (1 + 1e-15)


def total_mu(ledger: run_ledger.RunLedger) -> TotalMu:
  """The total μ of each client over the ledger's rounds; +inf for one that was in a round without noise.

  Raises:
    ValueError: If a μ is NaN, which is not a bound.
  """
  found = _total_mu(ledger)
  if np.isnan(found.whole).any():
    raise ValueError(
      f'The account of client {np.flatnonzero(np.isnan(found.whole))[0]} is not a number: its rounds and '
      f'{ledger.correlation!r} give no μ that a float can hold. Nothing can be said about this run.'
    )
  return found


def _total_mu(ledger) -> TotalMu:
  state = ledger.state_dict()
  sizes = np.diff(state['offsets'])
  count_mu = _over(state['weights'] > 0, np.repeat(state['count_noise_multipliers'], sizes))
  counts = _root_of_squares(state['clients'], count_mu, ledger.num_clients)
  if ledger.correlation.num_buffers:
    return TotalMu(_correlated_mu(ledger), counts)
  mu = _over(state['weights'], np.repeat(state['noise_multipliers'], sizes))
  return TotalMu(_root_of_squares(state['clients'], mu, ledger.num_clients), counts)


def _correlated_mu(ledger: run_ledger.RunLedger) -> np.ndarray:
  """‖C·w_i‖/z over the rounds that released something, z the smallest of them."""
  state = ledger.state_dict()
  cuts = state['offsets'][1:-1]
  cohorts, weights = np.split(state['clients'], cuts), np.split(state['weights'], cuts)
  releases = [index for index, own in enumerate(weights) if (own > 0).any()]
  squares = ledger.correlation.squared_norms(
    [cohorts[index] for index in releases], [weights[index] for index in releases], ledger.num_clients
  )
  smallest = state['noise_multipliers'][releases].min(initial=np.inf)
  # The sums of exponentials are rounded at most some thousand times each before they are forgotten.
  return _over(np.sqrt(squares) * (1 + 2.0**-37), np.full(ledger.num_clients, smallest))


def epsilon_by_client(ledger: run_ledger.RunLedger, delta: float) -> np.ndarray:
  """float64[N], the exact ε of each client at a total δ, without amplification; +inf without noise."""
  return tradeoff.epsilon_of(total_mu(ledger).whole, delta)


def merged_histories(mu: np.ndarray) -> histories_lib.Population:
  """Each client's history as one mechanism: Gaussian mechanisms compose to one Gaussian.

  If there are more than 10,000 distinct μ, each is rounded up, by at most 0.1%, to the largest one over a power of
  1.001.

  Args:
    mu: `total_mu(ledger).whole`, float64[N].
  """
  distinct, index = np.unique(mu, return_inverse=True)
  if len(distinct) > _MOST_MERGED:
    distinct, again = np.unique(histories_lib.rounded_up(distinct, _MERGED_STEP), return_inverse=True)
    index = again[index]
  return histories_lib.Population([_of_mu(mu) for mu in distinct], index)


def histories(ledger: run_ledger.RunLedger) -> histories_lib.Population:
  """Each client's history, mechanism by mechanism; under correlated noise there is only one mechanism.

  If a ledger has more than 256 distinct μ, each is rounded up, by at most 1%, to the largest one over a power of 1.01.
  """
  if ledger.correlation.num_buffers:
    return merged_histories(total_mu(ledger).whole)
  state = ledger.state_dict()
  sizes = np.diff(state['offsets'])
  if (state['weights'] == 1).all():
    by_round = np.unique(_over(np.ones(len(sizes)), state['noise_multipliers']), return_inverse=True)
    distinct, kinds = by_round[0], np.repeat(by_round[1], sizes)
  else:
    mu = _over(state['weights'], np.repeat(state['noise_multipliers'], sizes))
    distinct, kinds = np.unique(mu, return_inverse=True)
  count_mu, count_kinds = np.unique(_over(np.ones(len(sizes)), state['count_noise_multipliers']), return_inverse=True)
  clients, kinds = state['clients'], kinds
  if count_mu.any():
    counted = state['weights'] > 0
    clients = np.concatenate([clients, clients[counted]])
    kinds = np.concatenate([kinds, len(distinct) + np.repeat(count_kinds, sizes)[counted]])
    distinct = np.concatenate([distinct, count_mu])
  if len(distinct) > _MOST_MECHANISMS:
    distinct = histories_lib.rounded_up(distinct, _STEP)
  distinct, index = np.unique(distinct, return_inverse=True)
  mechanisms = [histories_lib.GaussianMechanism(_inverse(mu)) for mu in distinct]
  return histories_lib.group(clients, index[kinds], mechanisms, ledger.num_clients)


def _of_mu(mu: float) -> histories_lib.History:
  return histories_lib.History.of([(histories_lib.GaussianMechanism(_inverse(mu)), 1)])


def _inverse(mu: float) -> float:
  return float(1 / mu) if mu else np.inf


def _over(weights: np.ndarray, noise_multipliers: np.ndarray) -> np.ndarray:
  """μ = w/z; 0 where the weight is 0, whatever the noise. NaN stays NaN."""
  with np.errstate(divide='ignore', invalid='ignore', over='ignore'):
    return np.where(weights == 0, 0.0, weights / noise_multipliers)


def _root_of_squares(clients: np.ndarray, values: np.ndarray, num_clients: int) -> np.ndarray:
  unbounded = np.isinf(values)
  largest = values[~unbounded].max(initial=0.0)
  # Scaled, so that nothing overflows.
  scaled = np.where(unbounded, 0.0, values / (largest or 1.0))
  total = largest * np.sqrt(np.bincount(clients, scaled * scaled, num_clients))
  # The sum of n terms is below the true one by at most n half units in the last place.
  total *= 1 + (np.bincount(clients, minlength=num_clients).max(initial=0) + 8) * 2.0**-53
  total[np.bincount(clients, unbounded, num_clients) > 0] = np.inf
  return total
