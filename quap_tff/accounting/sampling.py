"""Amplification by sampling: how much a run's sampler earns, or the reason why it earns nothing.

A client is better hidden if an adversary cannot tell in which rounds it was. That takes a draw of known distribution,
rounds in which nothing but the noised sum depends on who came, and cohorts that stay secret.
"""

import math
from typing import Optional

import numpy as np

from quap_tff.accounting import run_ledger
from quap_tff.accounting.accountants import history as histories_lib
from quap_tff.accounting.accountants import library as library_accountants
from quap_tff.common import lazy
from quap_tff.common.numbers import rounding
from quap_tff.common.numbers import samplers
from quap_tff.common.numbers import tradeoff

dp_accounting = lazy.module('dp_accounting')
rdp = lazy.module('dp_accounting.rdp')

_SECRET = 'assumes that cohorts, their sizes and their seed stay secret'
# The library's bound holds for integer orders and takes time in proportion to their square.
_ORDERS = tuple(range(2, 65)) + (128, 256)


def refusal(ledger: run_ledger.RunLedger, sampler: samplers.Sampler) -> Optional[str]:
  """Why the run's sampling amplifies nothing; None if it does.

  Raises:
    ValueError: If the sampler is of another population.
  """
  if sampler.rates is not None and len(sampler.rates) != ledger.num_clients:
    raise ValueError(f'The ledger has {ledger.num_clients} clients, found rates of {len(sampler.rates)}.')
  # First what would remain if the cohorts were drawn in another way, or in secret.
  if sampler.noise_follows == 'plan':
    return 'the noise was chosen on the planned cohorts'
  if sampler.kind == 'none':
    return sampler.reason
  if not sampler.secret:
    return 'the cohorts follow from a seed that is not secret'
  state = ledger.state_dict()
  multipliers = state['noise_multipliers']
  if sampler.noise_follows != 'nothing' or len(np.unique(multipliers)) > 1:
    return 'the noise depends on who came'
  # A cohort of independent coins can be empty, however unlikely that is, unless two coins always show heads. One such
  # coin is not enough: in the neighbouring data set, its client is missing.
  can_be_empty = sampler.kind == 'bernoulli' and np.count_nonzero(np.asarray(sampler.rates) == 1) < 2
  if can_be_empty and not sampler.noises_empty_rounds:
    # Whether this run had such a round does not matter: its probability differs between the two worlds.
    return 'a round that nobody comes to releases nothing, which reveals that nobody came'
  if not sampler.constant_divisor:
    return 'sums are divided by the size of the cohort, which reveals something about who came'
  if ledger.correlation.num_buffers:
    return 'the noise of a round is correlated with that of the rounds before'
  if (state['weights'] != 1).any():
    return "the clients' weights depend on how often they came"
  if sampler.kind == 'bernoulli' and np.isfinite(state['count_noise_multipliers']).any():
    return "the private quantile's count is divided by the size of the cohort, which reveals something about who came"
  if sampler.cohort_size is not None:
    sizes = np.diff(state['offsets'])
    if sampler.cohort_size > ledger.num_clients or (sizes != sampler.cohort_size).any():
      return f'not every cohort has {sampler.cohort_size} of {ledger.num_clients} clients'
  return None


def poisson_histories(ledger: run_ledger.RunLedger, sampler: samplers.Sampler) -> histories_lib.Population:
  """Each client's history: every round at its rate, including rounds without it. Only valid without a `refusal`."""
  rates, index = np.unique(np.asarray(sampler.rates), return_inverse=True)
  multipliers, counts = np.unique(ledger.state_dict()['noise_multipliers'], return_counts=True)
  return histories_lib.Population(
    [
      histories_lib.History.of(
        (histories_lib.GaussianMechanism(float(z), float(rate)), int(n)) for z, n in zip(multipliers, counts) if rate
      )
      for rate in rates
    ],
    index,
  )


def if_known(population: histories_lib.Population, delta: float) -> str:
  """A sentence on what figures of secret cohorts assume, and one on what would remain of them otherwise."""
  always_in = max(history.always_in().total_mu for history in population.histories)
  return (
    'Cohorts secret: the figures assume that nobody learns who came. If that became known, a client in every round '
    f'would have ε = {rounding.up(float(tradeoff.epsilon_of(always_in, delta)))} (zero-out).'
  )


def poisson_amplification(sampler: samplers.Sampler) -> str:
  """Which amplification is counted, and on what assumption."""
  rates = np.asarray(sampler.rates)
  taking_part = rates[rates > 0]
  low, high = (taking_part.min(), taking_part.max()) if len(taking_part) else (0.0, 0.0)
  shown = f'{low:g}' if low == high else f'{low:g} to {high:g}'
  return f'Poisson sampling, q = {shown}; {_SECRET}'


def fixed_size_amplification(ledger: run_ledger.RunLedger, sampler: samplers.Sampler) -> str:
  """Which amplification is counted, and on what assumption."""
  return f'{sampler.cohort_size} of {ledger.num_clients} clients, uniformly without replacement; {_SECRET}'


def fixed_size_epsilon(ledger: run_ledger.RunLedger, sampler: samplers.Sampler, delta: float) -> float:
  """ε of every client against replacing its data by another's, by Rényi composition (Wang et al. 2019, theorem 27).

  Where that bound is larger than the ε of a client in every round, as it is for large cohorts, the latter is returned:
  the exact composition of Gaussians, which needs no sampling. Replacing a client's data moves a sum by up to twice the
  clipping norm, and a count by twice what one client adds. dp-accounting's noise multiplier refers to that sensitivity,
  so it is half of ours. Only valid without a `refusal`.
  """
  state = ledger.state_dict()
  # The sum and the count of a round come from the same draw, so they are one mechanism.
  mu = np.hypot(1 / state['noise_multipliers'], 1 / state['count_noise_multipliers'])
  accountant = rdp.RdpAccountant(_ORDERS, dp_accounting.NeighboringRelation.REPLACE_ONE)
  for one, count in zip(*np.unique(mu, return_counts=True)):
    gaussian = dp_accounting.GaussianDpEvent(1 / (2 * one))
    accountant.compose(
      dp_accounting.SampledWithoutReplacementDpEvent(ledger.num_clients, sampler.cohort_size, gaussian), int(count)
    )
  bounds = library_accountants.without_nan(
    np.maximum(accountant.rdp, 0.0) + library_accountants.rdp_rounding(ledger.num_rounds, _ORDERS)
  )
  epsilon, _ = rdp.compute_epsilon(_ORDERS, bounds, delta)
  always_in = tradeoff.epsilon_of(2 * math.sqrt(math.fsum(mu * mu)), delta)
  return min(float(epsilon) * (1 + tradeoff.RELATIVE_MARGIN), float(always_in))
