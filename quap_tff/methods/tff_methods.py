"""TFF's own aggregators, as methods."""

from __future__ import annotations

import dataclasses

from quap_tff import plans
from quap_tff.common import flag_fields
from quap_tff.federated.stock import stock as stocks
from quap_tff.mechanisms.parts import budgets
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers
from quap_tff.mechanisms.quap import config as configs
from quap_tff.methods import base
from quap_tff.methods import choices
from quap_tff.plans import scheduled


@dataclasses.dataclass(frozen=True)
class _Stock(choices.ServerOptimizer, choices.Noise, stocks.StockConfig, base.SimpleMethod):
  """One of TFF's own aggregators. Of the mechanism's flags it uses ε, δ and both calibrations.

  --epsilon is the formal ε, because these methods are what others are compared with at an equal one.
  """

  divides_by_planned_cohort = True

  calibration: str = flag_fields.flag('exact', one_of=scheduled.CALIBRATIONS)

  def configure(self, setting: base.Setting) -> configs.QuapConfig:
    config = configs.QuapConfig(
      num_clients=setting.num_clients,
      budget=budgets.BudgetConfig(self.epsilon, setting.rounds, round_rule='uniform'),
      clip=clip_rules.Fixed(1.0),
      critical_layers=layers.ALL,
      noise=self.noise_config(),
    )
    return scheduled.stock_config(self, config)

  def noise_config(self) -> configs.NoiseConfig:
    # Exact calibration scales the formula's noise, whatever it is, and the classic formula does not hold for all ε.
    config = super().noise_config()
    return dataclasses.replace(config, calibration='analytic') if self.calibration == 'exact' else config

  def flag_names(self) -> frozenset[str]:
    return super().flag_names() - ({'gaussian_calibration'} if self.calibration == 'exact' else set())

  def check_cohorts(self, setting: base.Setting) -> None:
    assert setting.participation is not None
    scheduled.stock_divisor(setting.participation.mean_cohort_size)

  def plan(self, setting: base.Setting) -> plans.Plan:
    assert setting.participation is not None
    return scheduled.stock_plan(
      self,
      self.configure(setting),
      setting.schedule,
      setting.participation.mean_cohort_size,
      setting.participation.sampler,
      calibration=self.calibration,
      **vars(setting.options),
    )


@dataclasses.dataclass(frozen=True)
class TffDpFedAvg(stocks.DpFedAvg, _Stock):
  """TFF's DP-FedAvg with a fixed clipping norm, see `stocks.DpFedAvg`."""

  title = 'TFF DP-FedAvg'


@dataclasses.dataclass(frozen=True)
class TffDpFedAvgAdaptive(stocks.DpFedAvgAdaptive, _Stock):
  """TFF's DP-FedAvg with adaptive clipping, see `stocks.DpFedAvgAdaptive`."""

  title = 'TFF DP-FedAvg, adaptive clip'


@dataclasses.dataclass(frozen=True)
class TffLayerwiseAdaptive(stocks.LayerwiseAdaptive, _Stock):
  """TFF's adaptive clipping layer by layer, see `stocks.LayerwiseAdaptive`."""

  title = 'TFF adaptive by layer'


@dataclasses.dataclass(frozen=True)
class TffDpFtrl(stocks.DpFtrl, _Stock):
  """TFF's DP-FTRL: the noise of a binary tree over rounds, see `stocks.DpFtrl`."""

  title = 'TFF DP-FTRL'
