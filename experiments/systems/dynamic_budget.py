"""Budgets that grow or decay over the rounds: ε_base(t) = f_t·ε_base (Hong, Wang and Zhou, FAccT 2022).

    f_t = T·r^(t-1) / Σ_s r^(s-1),    r = growth^(1/(T-1))

"Dynamic Privacy Budget Allocation Improves Data Efficiency of Differentially Private Gradient Descent"; the documents
cite it as Wang et al., PMC 2023. There the noise of iteration t matters to the last loss in proportion to q_t =
γ^(T-t), γ < 1. The least Σ q_t·σ_t² at a given zCDP budget Σ ρ_t, ρ_t ∝ 1/σ_t², is at ρ_t ∝ √q_t. Under the classic
Gaussian calibration ρ_t ∝ ε_t², so that ε_t ∝ γ^((T-t)/4): a geometric schedule with growth = γ^(-(T-1)/4).
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from experiments.systems import adaptive
from quap_tff import methods
from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.common import flag_fields
from quap_tff.common.numbers import arrays
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import schedules
from quap_tff.mechanisms.quap import config as configs
from quap_tff.methods import base
from quap_tff.methods import choices


@dataclasses.dataclass(frozen=True)
class Geometric(schedules.RoundSchedule):
  """f_t: budgets grow, or decay, geometrically over the rounds.

  Attributes:
    growth: The budget of the last round over that of the first. Above 1, budgets grow; below 1, they decay.
  """

  growth: float = checks.number_field('growth', 4.0, at_least=1e-3, at_most=1e3)

  def factor(self, round_num: array_types.Numbers, num_rounds: int) -> array_types.Numbers:
    if num_rounds == 1:
      return 1.0
    step = math.log(self.growth) / (num_rounds - 1)
    mean = float(np.mean(np.exp(step * np.arange(num_rounds))))
    xp = arrays.namespace(round_num)
    passed = xp.minimum(arrays.cast(round_num, np.float32), np.float32(num_rounds)) - 1.0
    return xp.exp(passed * np.float32(step)) / np.float32(mean)


@dataclasses.dataclass(frozen=True)
class DynamicBudget(adaptive.Adaptive):
  """Budgets that grow or decay over the rounds, by Hong, Wang and Zhou 2022: see `experiments.systems.dynamic_budget`.

  The sum of the rounds' ε_base(t) is --epsilon. With `quap`, --clip also sets the clipping norm.

  Attributes:
    growth: The budget of the last round over that of the first. Below 1, budgets decay.
    clip: The clipping norm, without `quap`.
  """

  title = 'Dynamic budget'

  growth: float = 4.0
  clip: float = 1.0
  of_quap: choices.Clip = flag_fields.part(choices.Clip())

  def __post_init__(self) -> None:
    Geometric(self.growth)
    clip_rules.Fixed(self.clip)

  def flag_names(self) -> frozenset[str]:
    return super().flag_names() - (frozenset() if self.quap else {'clip'})

  def clip_rule(self) -> clip_rules.ClipRule:
    return self.of_quap.clip if self.quap else clip_rules.Fixed(self.clip)

  def configure(self, setting: base.Setting) -> configs.QuapConfig:
    return self.configured(setting, Geometric(self.growth))


methods.METHODS['dynamic_budget'] = DynamicBudget
