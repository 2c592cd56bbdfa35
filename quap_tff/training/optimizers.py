"""TFF optimizers by name, for flags: `sgd:learning_rate=0.1,momentum=0.9`.

A new optimizer is a dataclass here and a line in `OPTIMIZERS`.
"""

from __future__ import annotations

import dataclasses
from typing import Optional, Union

from quap_tff.common import checks
from quap_tff.common.lazy import tff


@dataclasses.dataclass(frozen=True)
class Sgd(checks.Checked):
  """Stochastic gradient descent.

  Attributes:
    learning_rate: The length of a step, over the gradient.
    momentum: The share of a step that is repeated in the next one, in [0, 1). None: plain steps.
  """

  learning_rate: float = checks.number_field('sgd learning_rate', 1.0, above=0)
  momentum: Optional[float] = checks.number_field('sgd momentum', None, at_least=0, below=1)

  @property
  def length(self) -> float:
    """The distance by which it moves a model in all, for a gradient of norm 1."""
    return self.learning_rate / (1 - (self.momentum or 0.0))

  def build(self) -> tff.learning.optimizers.Optimizer:
    return tff.learning.optimizers.build_sgdm(self.learning_rate, self.momentum)


@dataclasses.dataclass(frozen=True)
class Adam(checks.Checked):
  """Adam (Kingma and Ba 2015).

  Attributes:
    learning_rate: The length of a step, over the scaled gradient.
    beta_1: The decay of the mean of the gradients, in [0, 1).
    beta_2: The decay of the mean of their squares, in [0, 1).
    epsilon: Added to the root of that mean, above 0.
  """

  learning_rate: float = checks.number_field('adam learning_rate', 0.001, above=0)
  beta_1: float = checks.number_field('adam beta_1', 0.9, at_least=0, below=1)
  beta_2: float = checks.number_field('adam beta_2', 0.999, at_least=0, below=1)
  epsilon: float = checks.number_field('adam epsilon', 1e-7, above=0)

  length = 1.0  # The scale of the gradients does not matter to it.

  def build(self) -> tff.learning.optimizers.Optimizer:
    return tff.learning.optimizers.build_adam(self.learning_rate, self.beta_1, self.beta_2, self.epsilon)


OptimizerChoice = Union[Sgd, Adam]
OPTIMIZERS = {'sgd': Sgd, 'adam': Adam}
