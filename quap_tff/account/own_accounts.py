"""What each client may add if it comes by a coin that stays secret: each has its own amplified account."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from quap_tff import cohorts as cohorts_lib
from quap_tff.account import findings
from quap_tff.accounting import log_report
from quap_tff.accounting import own_rates
from quap_tff.common import checks
from quap_tff.common import registry
from quap_tff.common.numbers import rounding
from quap_tff.common.numbers import tradeoff

_SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


def own_accounts(
  participation: cohorts_lib.ParticipationChoice,
  num_clients: int,
  rounds: int,
  epsilon: float,
  delta: float,
  *,
  seed: int = 0,
) -> findings.Finding:
  """The noise and the weights of clients that come by secret coins (docs/proofs.md, theorem 6).

  Args:
    participation: A model of independent coins.
    num_clients: N.
    rounds: T.
    epsilon: The ε of everyone.
    delta: The total δ.
    seed: The rates are a function of it.

  Raises:
    ValueError: For a value that is out of range, or a model without independent coins.
  """
  checks.number('delta', delta, above=0, below=1)
  checks.integer('num_clients', num_clients, at_least=1)
  checks.integer('rounds', rounds, at_least=1)
  spec = registry.format_spec(registry.name_of(participation, cohorts_lib.MODELS), participation)
  size = None if participation.ignores_cohort_size else cohorts_lib.default_cohort_size(num_clients)
  sampler = participation.over(cohorts_lib.Population(num_clients, size, seed)).sampler
  if sampler.kind != 'bernoulli' or sampler.rates is None:
    raise ValueError(
      f'--participation={spec}: its clients do not come by independent coins, and only these have amplified accounts '
      'of their own. Give bernoulli, beta_bernoulli or extreme_imbalance.'
    )
  rates = own_rates.accounted_rates(sampler.rates)
  least = own_rates.least_noise(rates, rounds, epsilon, delta)
  noises = []
  for multiplier in np.unique(np.quantile(least, _SHARES, method='lower')).tolist():
    noises.append(_noise(multiplier, rates, least, rounds, tradeoff.mu_at_most(epsilon, delta)))
  by_rate = _by_rate(rates, least)
  head = (
    f'{num_clients:,} clients of --participation={spec}, {rounds:,} rounds, ε = {epsilon:g} for each client, total δ = '
    f'{delta:g} (add or remove one client), by privacy loss distributions.\n'
    'Assumed: nobody learns whose coins showed heads. Every round releases. Noise, divisor and everything else do '
    'not depend on who comes.\n'
    'A client of rate q is clipped to the norm w·C, w = min(1, z/σ(q)), and the noise on the sum is z·C. Rates are '
    'rounded up to at most 32 values, and coins must have the rates of this table or lower ones.\n'
  )
  values = {
    'epsilon': epsilon,
    'delta': delta,
    'clients': num_clients,
    'rounds': rounds,
    'participation': spec,
    'seed': seed,
    'rates': by_rate,
    'noises': noises,
  }
  return findings.Finding(f'{head}\n{log_report.tables_text([_rates_table(by_rate), _noises_table(noises)])}', values)


def _noise(multiplier: float, rates: np.ndarray, least: np.ndarray, rounds: int, mu: float) -> dict[str, float]:
  weights = np.minimum(1.0, multiplier / least)
  return {
    'noise_multiplier': multiplier,
    'mean_weight': float(weights.mean()),
    'smallest_weight': float(weights.min()),
    'share': own_rates.share_of_ceiling(rates, weights, multiplier, rounds, mu),
  }


def _by_rate(rates: np.ndarray, least: np.ndarray) -> list[dict[str, Any]]:
  distinct, first, counts = np.unique(rates, return_index=True, return_counts=True)
  found = []
  for rate, noise, clients in zip(distinct.tolist(), least[first].tolist(), counts.tolist()):
    found.append({'rate': rate, 'clients': clients, 'least_noise': noise})
  return found


def _rates_table(by_rate: Sequence[dict[str, Any]]) -> log_report.TextTable:
  rows = []
  for one in by_rate:
    rows.append((rounding.up(one['rate'], 6), f'{one["clients"]:,}', rounding.up(one['least_noise'], 5)))
  return log_report.TextTable('The least noise of a client with the weight 1', ('q', 'clients', 'σ(q)'), rows, '')


def _noises_table(noises: Sequence[dict[str, float]]) -> log_report.TextTable:
  rows = []
  for one in noises:
    z, share = rounding.up(one['noise_multiplier'], 5), f'{one["share"]:.1%}'
    rows.append((z, f'{one["mean_weight"]:.3f}', f'{one["smallest_weight"]:.3f}', share))
  header = ('z', 'mean weight', 'smallest weight', 'share of the ceiling')
  return log_report.TextTable(
    'Which noise makes how much of the budgets',
    header,
    rows,
    'The ceiling is the largest signal-to-noise ratio of mechanisms whose cohorts are known. Shares are for coins '
    'of the rates above and updates that reach w·C. Clipping to small weights loses more where updates are short: '
    'take C and z together.',
  )
