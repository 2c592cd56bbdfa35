"""Federated averaging without clip and noise: the upper bound that the documents compare with."""

import dataclasses

from experiments.algorithms import mechanism
import quap_tff
from quap_tff import clip_rules


@dataclasses.dataclass(frozen=True)
class FedAvg(mechanism.MechanismAlgorithm):
  """The plain mean of the cohort's updates (each client counts the same)."""

  def configure(self, config: quap_tff.QuapConfig) -> quap_tff.QuapConfig:
    config = mechanism.with_noise_placement(mechanism.uniform_budget(config), 'none')
    return dataclasses.replace(config, clip=clip_rules.RULES['none'](), max_agg_norm=None)
