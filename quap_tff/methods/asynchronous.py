"""Asynchronous rounds as a method."""

from __future__ import annotations

import dataclasses

from quap_tff import plans
from quap_tff.common import checks
from quap_tff.mechanisms import buffered
from quap_tff.mechanisms import config as configs
from quap_tff.mechanisms import staleness
from quap_tff.methods import base
from quap_tff.methods import parts


@dataclasses.dataclass(frozen=True)
class FedBuff(parts.AdaptiveBudgets, parts.Clip, parts.Layers, base.QuapMechanism):
  """FedBuff (Nguyen et al. 2022, Algorithm 1) with QuAP-FL's clip, budgets and noise, as the flags set them for quap.

  The clients that --participation draws are those whose updates arrive in a round. Each has trained on a version of the
  model that is τ releases old and counts with s(τ) = 1/√(1 + τ). The server releases the buffer when it holds `buffer`
  updates (`quap_tff.federated.old_versions`). How τ is distributed is our choice.

  Attributes:
    buffer: K, the updates that fill the buffer.
    staleness: The scale of τ, in versions; 0 for none.
    spread: How much clients differ in speed.
    max_staleness: The largest τ. The server keeps one version more than this.
  """

  buffer: int = 10
  staleness: float = 2.0
  spread: float = 0.5
  max_staleness: int = 10

  def __post_init__(self):
    checks.integer('fedbuff buffer', self.buffer, at_least=1, at_most=2**31 - 1)
    self._staleness(0)

  def _staleness(self, seed):
    return staleness.Staleness(self.staleness, self.spread, self.max_staleness, seed)

  def configure(self, setting: base.Setting) -> configs.QuapConfig:
    if self.noise == 'client':
      raise ValueError(
        '--noise=client: fedbuff adds noise once to the sum of a buffer, at the server. Use --noise=server or none.'
      )
    config = self.quap_config(setting)
    buffered.check_config(config)
    return config

  def check_cohorts(self, setting: base.Setting) -> None:
    arrived = 0
    for round_num in range(1, setting.rounds + 1):
      arrived += len(setting.participation.cohort(round_num))
      if arrived >= self.buffer:
        return
    raise ValueError(
      f'--algorithm=fedbuff:buffer={self.buffer}: {arrived} updates arrive in all of the {setting.rounds} planned '
      f'rounds. So the buffer is never full, and the model is never updated. Give a buffer of at most {arrived}, more '
      '--rounds, or larger cohorts.'
    )

  def plan(self, setting: base.Setting) -> plans.Plan:
    plan = plans.FedBuffPlan(self.configure(setting), self.buffer, self._staleness(setting.seed), **setting.options)
    return self.calibrated(plan, setting)
