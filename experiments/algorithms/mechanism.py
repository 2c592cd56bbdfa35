"""Methods that are settings of QuAP-FL's own mechanism: which of its three parts are on, and how they are set."""

import dataclasses
from typing import Any

import numpy as np

from experiments import public_metrics
from experiments.algorithms import base
import quap_tff
from quap_tff import accounting
from quap_tff import budget as budgets
from quap_tff import mechanism
from quap_tff import participation as participations


class MechanismMethod(base.Method):
  """QuAP-FL's learning process under a configuration."""

  def __init__(self, setting: base.Setting):
    self._setting = setting
    self._config = setting.mechanism
    self.protection = accounting.describe_protection(
        self._config, setting.layers, setting.sizes, client_metrics_logged=setting.client_metrics
    )
    if setting.calibration == 'exact':
      self._config = _calibrated(self._config, setting, self.protection)
    self.has_nominal = self._config.noise.scale == 1 and self._config.noise.placement != 'none'
    self.fingerprint = repr(dataclasses.replace(self._config, noise=_without_seed(self._config.noise)))
    # Exact calibration goes by who will come.
    self.constant_noise_multiplier = (
        self._config.budget.round_rule == 'uniform'
        and self._config.noise.placement == 'server'
        and setting.calibration == 'documents'
    )

  @property
  def public_metrics(self):
    # A clipping norm that is fixed or tracked by a noised count is public; an exact quantile is not.
    norms = set() if self._config.clip.releases_exact_norms else public_metrics.OF_CLIP
    return base.PUBLIC_METRICS | norms

  @property
  def config(self) -> quap_tff.QuapConfig:
    """The configuration, calibrated."""
    return self._config

  def build_process(self):
    setting = self._setting
    return quap_tff.build_quap_fed_avg(
        setting.model_fn, self._config, setting.client_optimizer, setting.server_optimizer, setting.client_work
    )

  def round_record(self, aggregator_state, metrics, cohort):
    participation, round_num = aggregator_state['participation'], int(aggregator_state['round'])
    return _record(
        self._config,
        participation,
        round_num,
        cohort,
        float(metrics['noise_multiplier']),
        float(metrics['clipping_norm']),
    )


def planned_ledger(config: quap_tff.QuapConfig, setting: base.Setting) -> accounting.RunLedger:
  """The ledger that a run of all T rounds will have: budgets and noise follow from the cohorts, which are known."""
  ledger = accounting.RunLedger(config.num_clients, config.noise.delta, 'planned')
  state = participations.initial_state(config.participation, config.num_clients)
  for round_num in range(1, setting.rounds + 1):
    cohort = setting.cohorts.cohort(round_num)
    state = participations.next_state(config.participation, state, cohort, round_num)
    _, noise_multiplier = mechanism.round_noise(
        config,
        participations.rates(config.participation, _of(state, cohort), round_num),
        participations.in_warmup(config.participation, round_num),
    )
    ledger.record(_record(config, state, round_num, cohort, float(noise_multiplier) if len(cohort) else 0.0, 1.0))
  return ledger


def _calibrated(config, setting, protection):
  """The configuration with the least noise under which nobody's exact account passes ε_total at δ in T rounds."""
  if not protection.model_protected and config.noise.seed is None:
    raise ValueError(
        f'--calibration=exact chooses the noise by a formal ε, and this run has none. {protection.statement} Use '
        '--calibration=documents, or a method that noises every layer and clips by a fixed norm (fixed_dp).'
    )
  scale = accounting.exact_scale(planned_ledger(config, setting), setting.epsilon, setting.delta)
  return dataclasses.replace(config, noise=dataclasses.replace(config.noise, scale=scale))


def _record(config, participation, round_num, cohort, noise_multiplier, clipping_norm) -> accounting.RoundRecord:
  rates = participations.rates(config.participation, _of(participation, cohort), round_num)
  in_warmup = participations.in_warmup(config.participation, round_num)
  if config.noise.placement == 'none':
    own = np.full(len(cohort), np.inf)
  else:
    own = np.asarray(budgets.client_budgets(config.budget, rates, in_warmup), np.float64)
  return accounting.RoundRecord(
      cohort=cohort,
      budgets=own,
      weights=np.ones(len(cohort)),
      noise_multiplier=noise_multiplier,
      count_noise_multiplier=config.clip.count_noise_multiplier,
      clipping_norm=clipping_norm,
  )


def _of(participation, cohort):
  return {key: np.asarray(value)[cohort] for key, value in participation.items()}


def _without_seed(noise):
  return dataclasses.replace(noise, seed=None)


@dataclasses.dataclass(frozen=True)
class MechanismAlgorithm(base.Algorithm):
  """A setting of the mechanism; subclasses say which in `configure`."""

  def method(self, setting: base.Setting) -> MechanismMethod:
    return MechanismMethod(setting)


def uniform_budget(config: quap_tff.QuapConfig) -> quap_tff.QuapConfig:
  """The configuration with ε_base for everyone in every round."""
  return dataclasses.replace(config, budget=dataclasses.replace(config.budget, round_rule='uniform'))
