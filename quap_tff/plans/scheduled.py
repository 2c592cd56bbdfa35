"""Plans of TFF's own aggregators, whose noise is chosen from a schedule."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import Optional

import numpy as np

from quap_tff import accounting
from quap_tff.common import checks
from quap_tff.common.numbers import samplers
from quap_tff.federated.stock import stock as stocks
from quap_tff.mechanisms.noise import gaussian
from quap_tff.mechanisms.parts import budgets
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers as layers_lib
from quap_tff.mechanisms.quap import config as configs
from quap_tff.plans import plan as plans

CALIBRATIONS = ('documents', 'exact')


def stock_plan(
  stock: stocks.StockConfig,
  config: configs.QuapConfig,
  cohorts: Sequence[np.ndarray],
  clients_per_round: Optional[float],
  draw: samplers.CohortSampler = samplers.CohortSampler(),
  *,
  calibration: str = 'exact',
  **options: checks.Unchecked,
) -> plans.Plan:
  """The plan of a stock aggregator with noise multiplier z, calibrated from a budget.

  Args:
    stock: The aggregator.
    config: Population, total budget, δ, and the Gaussian calibration; the rest of it is settled by the aggregator.
    cohorts: int[M_t] for each planned round.
    clients_per_round: The expected size of a cohort, by which sums are divided.
    draw: How the cohorts are drawn.
    calibration: 'documents': each round's noise by the documents' formula. 'exact': the same noise scaled by one
      factor, so that the client that spends most spends ε_total at a total δ by exact accounting. If the cohorts are
      secret, the noise is chosen from the clients' rates: the same for every cohort.
    **options: Of every plan, see `quap_tff.plans.Plan`.

  Raises:
    ValueError: If the aggregator cannot run so.
  """
  config = stock_config(stock, config)
  checks.number(
    "clipping norm of TFF's aggregators",
    config.clip.initial_norm,
    at_least=clip_rules.TFF_SMALLEST_CLIP,
    at_most=clip_rules.TFF_LARGEST_NORM,
  )
  cohorts = checks.schedule(cohorts, config.num_clients)
  exposure = stock.exposure(cohorts, config.num_clients)
  # By the documents' formula a round of a client spends ε_base, with all that it moves.
  noise, budget = config.noise, config.budget
  formula = gaussian.noise_multiplier(noise.calibration, np.float64(budget.epsilon_base), noise.delta)
  multiplier = noise.scale * exposure.of_one_round * float(formula)
  is_exact = calibration == 'exact'
  # What a tree's rounds cost follows from who came.
  rates = draw.rates if is_exact and draw.secret and not exposure.added else None
  if rates is not None:
    multiplier = accounting.sampled_noise_multiplier(rates, len(cohorts), budget.epsilon_total, noise.delta)
  value = stocks.Stock(
    stock,
    config,
    multiplier,
    stock_divisor(clients_per_round),
    len(cohorts),
    exposure,
    is_exact=is_exact,
    is_planned=is_exact and rates is None,
  )
  if value.is_planned:
    ledger = plans.Plan(value, draw, **options).planned_ledger(cohorts)
    scale = accounting.exact_scale(ledger, budget.epsilon_total, noise.delta)
    value = dataclasses.replace(value, noise_multiplier=multiplier * scale)
  return plans.Plan(value, draw, **options)


def stock_divisor(clients_per_round: Optional[float]) -> float:
  """The expected size of a cohort; raises `ValueError` if it is not known."""
  if clients_per_round is None:
    raise ValueError(
      "TFF's aggregators divide by a constant number of clients, but the mean size of these cohorts is not known "
      'beforehand: use a --participation for which it is (uniform, bernoulli, beta, hybrid, …).'
    )
  return float(clients_per_round)


def stock_config(stock: stocks.StockConfig, config: configs.QuapConfig) -> configs.QuapConfig:
  """The configuration as the aggregator has it.

  Raises:
    ValueError: If TFF's aggregators cannot run with it.
  """
  if config.noise.placement != 'server':
    raise ValueError(
      f"--noise={config.noise.placement}: TFF's aggregators add their noise at the server. Leave --noise out. "
      'For training without noise, use --algorithm=fedavg.'
    )
  if config.noise.seed is not None and not stock.takes_noise_seed:
    raise ValueError(
      "TFF's DP-FedAvg takes no seed for its noise: leave --noise_seed out (tff_dp_ftrl takes one, and so do our "
      'own fixed_dp and adaptive_clip).'
    )
  return dataclasses.replace(
    config,
    budget=budgets.uniform(config.budget),
    clip=stock.clip_rule(),
    clip_scope='critical',
    critical_layers=layers_lib.ALL,
    max_agg_norm=None,
    update_scale='delta',
  )
