"""The common part of systems that adapt a clipping norm, budgets or weights: QuAP-FL's mechanism with theirs in place.

Each runs as published, or, with `quap=true`, together with QuAP-FL's own parts. docs/systems.md says what each does to
privacy.
"""

from __future__ import annotations

import dataclasses

from quap_tff.common import checks
from quap_tff.common import flag_fields
from quap_tff.mechanisms.parts import budgets
from quap_tff.mechanisms.parts import layers
from quap_tff.mechanisms.parts import participation as participations
from quap_tff.mechanisms.parts import schedules
from quap_tff.mechanisms.quap import config as configs
from quap_tff.methods import base
from quap_tff.methods import choices


@dataclasses.dataclass(frozen=True)
class Adaptive(
  choices.AdaptiveBudgets,
  choices.LayersChoice,
  choices.ScaleChoice,
  choices.SparseChoice,
  choices.Robust,
  base.QuapMechanism,
):
  """A system whose clip, budgets or weights adapt.

  As published, every client has the same budget whenever it takes part, and every layer is clipped and noised. With
  `quap`, clients' budgets follow participation and the flags set the layers, as in quap.

  Attributes:
    quap: Whether QuAP-FL's own parts are also on.
  """

  quap: bool = False

  def flag_names(self) -> frozenset[str]:
    of_quap = (
      frozenset()
      if self.quap
      else {*flag_fields.flags_of(choices.AdaptiveBudgets), *flag_fields.flags_of(choices.LayersChoice)}
    )
    return super().flag_names() - of_quap

  def configured(
    self, setting: base.Setting, schedule: schedules.RoundSchedule = schedules.Even(), **parts: checks.Unchecked
  ) -> configs.QuapConfig:
    """The configuration with these parts in place of QuAP-FL's, and with its others if `quap` is on."""
    if self.quap:
      return self.quap_config(setting, budget=dataclasses.replace(self.budgets(setting), schedule=schedule), **parts)
    budget = budgets.BudgetConfig(self.epsilon, setting.rounds, round_rule='uniform', schedule=schedule)
    published = dict(critical_layers=layers.ALL, participation=participations.ParticipationConfig())
    return self.quap_config(setting, budget=budget, **published, **parts)
