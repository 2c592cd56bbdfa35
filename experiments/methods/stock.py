"""TFF's own aggregators, as methods."""

from __future__ import annotations

import dataclasses

from experiments.methods import base
from quap_tff import plans
from quap_tff.mechanisms import clip_rules
from quap_tff.mechanisms import layers as layers_lib
from quap_tff.plans import stock_tff


@dataclasses.dataclass(frozen=True)
class _Stock(base.Method):
  """One of TFF's own aggregators. Of the mechanism's flags it uses ε, δ and both calibrations."""

  unused = base.TUNING | base.OF_BUDGETS | base.OF_CLIP

  def configure(self, values, num_clients):
    config = base.quap_config(
      values,
      num_clients,
      budget=base.uniform_budget(values),
      clip=clip_rules.Fixed(1.0),
      critical_layers=layers_lib.ALL,
    )
    return plans.StockPlan.settled(self, config)

  def check_cohorts(self, participation, rounds):
    plans.StockPlan.divisor(participation.mean_cohort_size)

  def plan(self, config, setting):
    return plans.StockPlan(
      self,
      config,
      setting.schedule,
      setting.participation.mean_cohort_size,
      setting.participation.sampler,
      calibration=setting.calibration,
      **setting.options,
    )


@dataclasses.dataclass(frozen=True)
class TffDpFedAvg(stock_tff.DpFedAvg, _Stock):
  """`plans.DpFedAvg`."""


@dataclasses.dataclass(frozen=True)
class TffDpFedAvgAdaptive(stock_tff.DpFedAvgAdaptive, _Stock):
  """`plans.DpFedAvgAdaptive`."""


@dataclasses.dataclass(frozen=True)
class TffLayerwiseAdaptive(stock_tff.LayerwiseAdaptive, _Stock):
  """`plans.LayerwiseAdaptive`."""


@dataclasses.dataclass(frozen=True)
class TffDpFtrl(stock_tff.DpFtrl, _Stock):
  """`plans.DpFtrl`."""
