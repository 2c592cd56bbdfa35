"""TFF optimizers by name, for flags: `sgd:learning_rate=0.1,momentum=0.9`.

A new optimizer is a dataclass here and a line in `OPTIMIZERS`.
"""

from __future__ import annotations

import dataclasses
from typing import Optional

from quap_tff.common import checks
from quap_tff.common.lazy import tff


@dataclasses.dataclass(frozen=True)
class Sgd:
  """Stochastic gradient descent."""

  learning_rate: float = 1.0
  momentum: Optional[float] = None

  def __post_init__(self):
    checks.number('sgd learning_rate', self.learning_rate, above=0)
    if self.momentum is not None:
      checks.number('sgd momentum', self.momentum, at_least=0, below=1)

  def build(self) -> tff.learning.optimizers.Optimizer:
    return tff.learning.optimizers.build_sgdm(self.learning_rate, self.momentum)


@dataclasses.dataclass(frozen=True)
class Adam:
  """Adam."""

  learning_rate: float = 0.001
  beta_1: float = 0.9
  beta_2: float = 0.999
  epsilon: float = 1e-7

  def __post_init__(self):
    checks.number('adam learning_rate', self.learning_rate, above=0)
    checks.number('adam beta_1', self.beta_1, at_least=0, below=1)
    checks.number('adam beta_2', self.beta_2, at_least=0, below=1)
    checks.number('adam epsilon', self.epsilon, above=0)

  def build(self) -> tff.learning.optimizers.Optimizer:
    return tff.learning.optimizers.build_adam(self.learning_rate, self.beta_1, self.beta_2, self.epsilon)


OPTIMIZERS = {'sgd': Sgd, 'adam': Adam}
