"""Federated averaging without clip and noise: the upper bound that the documents compare with."""

import dataclasses

from experiments.algorithms import mechanism
import quap_tff
from quap_tff import clip_rules


@dataclasses.dataclass(frozen=True)
class FedAvg(mechanism.MechanismAlgorithm):
  """The plain mean of the cohort's updates (each client counts the same)."""

  noise_of_its_own = True

  def configure(self, config: quap_tff.QuapConfig) -> quap_tff.QuapConfig:
    return dataclasses.replace(mechanism.uniform_budget(config), clip=clip_rules.Unclipped(), max_agg_norm=None)
