"""QuAP-FL's own mechanism as a plan."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import Any, Optional

import numpy as np

from quap_tff import accounting
from quap_tff.common import arrays
from quap_tff.common import lazy
from quap_tff.common.lazy import tf
from quap_tff.mechanisms import budgets
from quap_tff.mechanisms import config as configs
from quap_tff.mechanisms import participation as participations
from quap_tff.plans import base

aggregation = lazy.module('quap_tff.federated.aggregation')
learning_process = lazy.module('quap_tff.federated.learning_process')
mechanism = lazy.module('quap_tff.mechanisms.quap_round')


class QuapPlan(base.Plan):
  """QuAP-FL under a configuration, and every method that is a setting of it."""

  takes_sparsity = True

  def __init__(self, config: configs.QuapConfig, draw: accounting.Sampler = accounting.Sampler(), **options):
    """Initializes the plan.

    Args:
      config: The mechanism.
      draw: How the cohorts are drawn. By default nothing is known about it, and it amplifies nothing.
      **options: The options of every plan, see `quap_tff.plans.Plan`.
    """
    super().__init__(config.num_clients, config.noise.delta, draw, **options)
    self.config = config
    # The documents' formula is about a mean, which one client moves by C/M at most.
    self.has_nominal = (
      config.noise.scale == 1 and config.noise.placement != 'none' and not config.aggregator.needs_each_update
    )
    # A clipping norm that is fixed or tracked by a noised count is public; an exact quantile is not.
    self.public_metrics = base.PUBLIC_METRICS | (set() if config.clip.releases_exact_norms else base.PUBLIC_NORMS)
    self._has_constant_noise_multiplier = config.budget.round_rule == 'uniform' and config.noise.placement == 'server'
    # A scale that an accountant has calibrated depends on the planned cohorts.
    self._noise_is_planned = config.noise.scale != 1

  @property
  def fingerprint(self):
    without_seed = dataclasses.replace(self.config, noise=dataclasses.replace(self.config.noise, seed=None))
    return f'{without_seed!r}{self._sparsity_text}'

  @property
  def protection(self):
    exact = self.extension.exact_releases if self.extension is not None else ()
    found = self._with_extension(accounting.describe_protection(self.config, self.model, self._exact_logs, exact))
    return found._replace(text='\n'.join(filter(None, [found.text, self.sparsity.sentence()])))

  @property
  def aggregator(self):
    return self._sparsified(aggregation.QuapAggregationFactory(self.config))

  def _compose(self, model_fn, client_optimizer, server_optimizer, client_work):
    factory = self._sparsified(learning_process.quap_aggregator(model_fn, self.config, client_optimizer, client_work))
    return learning_process.compose(
      model_fn,
      factory,
      client_optimizer,
      server_optimizer,
      client_work,
      extension=self.extension,
      num_clients=self.num_clients,
    )

  def record(self, output, cohort):
    state, measurements = base.aggregation_of(output)
    while hasattr(state, 'mechanism'):  # An inner sum, or sparsity, may have a state of its own beside the mechanism's.
      state = state.mechanism
    counts = counted_rounds(self.config, state)
    cohort = base.checked_cohort(cohort, self.num_clients, measurements, counts)
    record = self._record(
      cohort,
      self._own_budgets(state, cohort),
      float(measurements['noise_multiplier']),
      float(measurements['clipping_norm']),
    )
    return record._replace(counts=counts[cohort] if counts is not None else None)

  def _own_budgets(self, state, cohort):
    """ε_i(t) of the cohort, float64[M], from the aggregator's state after the round."""
    return client_budgets(self.config, state.participation, int(state.round), cohort)

  def _record(self, cohort, own_budgets, noise_multiplier, clipping_norm):
    is_noised = self.config.noise.placement != 'none'
    # A client's part of the sum has norm at most its share of C. The ledger's unit is the largest share.
    shares = np.ones(len(cohort))
    if not self.config.weighting.is_equal:
      shares = mechanism.client_shares(self.config, own_budgets)
    largest = shares.max(initial=1.0)
    return accounting.RoundRecord(
      cohort=cohort,
      budgets=own_budgets if is_noised else np.full(len(cohort), np.inf),
      weights=shares / largest,
      noise_multiplier=noise_multiplier / largest,
      count_noise_multiplier=self.config.clip.count_noise_multiplier,
      clipping_norm=clipping_norm,
    )

  def planned_ledger(self, cohorts):
    # Budgets and noise follow from who takes part.
    config = self.config
    state = participations.initial_state(config.participation, config.num_clients)

    def record(round_num, cohort):
      nonlocal state
      state = participations.next_state(config.participation, state, cohort, round_num)
      multiplier = round_noise_multiplier(config, state, round_num, cohort) if len(cohort) else 0.0
      return self._record(cohort, client_budgets(config, state, round_num, cohort), multiplier, 1.0)

    return base.planned_ledger(self, cohorts, record)

  def calibrated(self, cohorts: Sequence[Any], epsilon: float) -> QuapPlan:
    """The plan with the least noise under which nobody's exact account exceeds ε at δ over these cohorts.

    Args:
      cohorts: int[M_t] for each planned round.
      epsilon: ε > 0 in nats; δ is the plan's, in total.

    Raises:
      ValueError: If the released model has no formal ε to calibrate.
    """
    seeded = self.config.noise.seed is not None
    if self.config.aggregator.needs_each_update or not (self.protection.model_protected or seeded):
      raise ValueError(
        f'--calibration=exact chooses the noise by a formal ε, but this run has none. {self.protection.statement} '
        'Use --calibration=documents, or a method that noises every layer and clips to a fixed norm (fixed_dp).'
      )
    scale = accounting.exact_scale(self.planned_ledger(cohorts), epsilon, self.delta)
    config = dataclasses.replace(self.config, noise=dataclasses.replace(self.config.noise, scale=scale))
    return self._with_config(config)

  def _with_config(self, config: configs.QuapConfig) -> QuapPlan:
    """The same plan under another configuration."""
    return type(self)(config, self._draw, **self._options)


def _of_cohort(participation, cohort):
  return {key: arrays.take(np.asarray(value), cohort) for key, value in participation.items()}


def counted_rounds(config: Any, state: Any) -> Optional[np.ndarray]:
  """int[N], the rounds that each client has been in, from the aggregator's state; None if it does not count all."""
  counts_all = config.participation.count_during_warmup or not config.participation.warmup_rounds
  return np.asarray(state.participation['counts']) if counts_all else None


def client_budgets(config: configs.QuapConfig, participation: Any, round_num: int, cohort: np.ndarray) -> np.ndarray:
  """ε_i(t) of the cohort, float64[M], from the participation state after the round."""
  rates = participations.rates(config.participation, _of_cohort(participation, cohort), round_num)
  in_warmup = participations.in_warmup(config.participation, round_num)
  own = budgets.client_budgets(config.budget, rates, in_warmup) * config.budget.factor(round_num)
  return np.asarray(own, np.float64)


def round_noise_multiplier(config: configs.QuapConfig, participation: Any, round_num: int, cohort: np.ndarray) -> float:
  """σ of the noise on the sum of a round's updates over C_t, as in `quap_tff.mechanisms.quap_round.round_noise`."""
  rates = participations.rates(config.participation, _of_cohort(participation, cohort), round_num)
  in_warmup = participations.in_warmup(config.participation, round_num)
  factor = config.budget.factor(round_num)
  _, multiplier = mechanism.round_noise(config, tf.constant(rates), in_warmup, budget_factor=factor)
  return float(multiplier)
