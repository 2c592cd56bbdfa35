"""Plans whose noise is chosen from a schedule: those of certified runs, and those of TFF's own aggregators."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import Any, Optional

import numpy as np

from quap_tff import accounting
from quap_tff.common import checks
from quap_tff.common.numbers import samplers
from quap_tff.federated.stock import mechanism as stocks
from quap_tff.mechanisms.certified import guarantee
from quap_tff.mechanisms.noise import gaussian
from quap_tff.mechanisms.parts import budgets
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers as layers_lib
from quap_tff.mechanisms.parts import postprocessing
from quap_tff.mechanisms.quap import config as configs
from quap_tff.plans import plan as plans

CALIBRATIONS = ('documents', 'exact')


def CertifiedPlan(
  config: guarantee.GuaranteeConfig,
  schedule: Sequence[Any],
  *,
  averaging: postprocessing.Averaging = postprocessing.LastIterate(),
  attendance: Optional[Sequence[Any]] = None,
  colluders: Sequence[int] = (),
  min_separation: Optional[int] = None,
  spent: Any = None,
  **options: Any,
) -> plans.Plan:
  """The plan of a certified run: its noise and divisor are chosen here, before training, from the planned cohorts.

  With a `quap_tff.HeldConfig`, each client draws its noise from a key of its own. One client's data are then
  `<client_id=int64*, answer=A*, examples=D*>`, with one answer of its `quap_tff.ClientGuard`.

  The account assumes that who comes is known. Noise that is calibrated on the cohorts depends on them, so sampling
  amplifies nothing. A run that ends early is bounded by what the filter lets each client spend.

  Args:
    config: What is asked of the mechanism, or a mechanism.
    schedule: int[M_t], distinct ids in [0, N), for each of the T planned rounds: the public schedule, or one drawn from
      a model of participation.
    averaging: The average of the iterates that is published. The noise is chosen for it; `postprocessing.Planned` is
      chosen together with the noise.
    attendance: int[M_t] for each planned round: who really comes of those who were drawn, if this is known. Only with a
      secure sum, in which a client that does not come takes its noise away. By default any of them may stay away.
    colluders: Numbers of clients that may tell the server their noise, with `attendance` only. A certificate gives ε
      for each.
    min_separation: How many rounds the sampler promises from one round of a client to its next; None if it promises
      nothing. The published choices of noise are made for it.
    spent: What clients have spent in earlier runs: a file, or float[N] μ², as `accounting.read_spent` takes it. Budgets
      and figures count from there. None: that of the configuration.
    **options: The options of every plan, see `quap_tff.Plan`. Exact functions of clients' data (`client_metrics`) are
      released only if they are asked for.

  Raises:
    TypeError: If `config` or `averaging` is of another type.
    ValueError: If a planned cohort is none, nobody takes part, nobody's budget pays for a round, or an extension uses
      more of clients than the noised sums.
  """
  if not isinstance(config, guarantee.GuaranteeConfig):
    raise TypeError(
      'A certified plan begins with its configuration, a quap_tff.CertifiedConfig or quap_tff.HeldConfig, found '
      f'{type(config).__name__}: CertifiedPlan(config, schedule).'
    )
  if not isinstance(averaging, postprocessing.Averaging):
    raise TypeError(
      f'averaging must be a value such as quap_tff.postprocessing.Planned(), found {averaging!r}. The names in '
      'postprocessing.AVERAGINGS are those of the flag --averaging.'
    )
  cohorts = checks.schedule(schedule, config.num_clients)
  if spent is not None:
    config = dataclasses.replace(config, spent_before=tuple(accounting.read_spent(spent, config.num_clients).tolist()))
  mechanism, averaging = config.settled(cohorts, averaging, min_separation)
  colluders = tuple(checks.integer('colluders', k, at_least=1) for k in colluders)
  mechanism.check_colluders(colluders, attendance is not None)
  if attendance is None and not config.holds_noise:
    attendance = cohorts
  return plans.Plan(
    mechanism, schedule=cohorts, attendance=attendance, averaging=averaging, colluders=colluders, **options
  )


def StockPlan(
  stock: stocks.StockConfig,
  config: configs.QuapConfig,
  cohorts: Sequence[np.ndarray],
  clients_per_round: Optional[float],
  draw: samplers.Sampler = samplers.Sampler(),
  *,
  calibration: str = 'exact',
  **options: Any,
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
