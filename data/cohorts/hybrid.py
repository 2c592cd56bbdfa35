"""`hybrid`: a uniform weight mixed with Beta weights, even rounds in favour of low ids (`001…` 4.4).

  w_i = (1 - gamma) * Beta(a, b)_i + gamma / N,   times exp(-id_decay * i) in even rounds

A shortfall (fewer than `cohort_size` positive weights) is filled uniformly. As written, Beta(a, b)_i is a draw with
mean a / (a + b) while gamma / N falls with N: at N = 100 and gamma = 0.8 the uniform part is 12% of the weight, not
80%. `normalize=true` divides the draws by their sum first, and gamma is then the uniform part's share.
"""

import dataclasses

import numpy as np

from data.cohorts import base
from data.cohorts import beta
from quap_tff import checks


@dataclasses.dataclass(frozen=True)
class Hybrid(base.ParticipationChoice):
  """The document's own formula.

  Attributes:
    gamma: The mix, in [0, 1]; 1 is uniform but for the even rounds.
    a, b: The parameters of the Beta distribution, in [0.01, 1e6].
    id_decay: How fast low ids are favoured in even rounds, at least 0.
    normalize: Whether the Beta draws are divided by their sum.
  """

  gamma: float = 0.8
  a: float = 2.0
  b: float = 5.0
  id_decay: float = 0.01
  normalize: bool = False

  def __post_init__(self):
    checks.number('hybrid gamma', self.gamma, at_least=0, at_most=1)
    beta.check_shape('hybrid', self.a, self.b)
    checks.number('hybrid id_decay', self.id_decay, at_least=0)

  def over(self, population):
    drawn = beta.client_weights(population, self.a, self.b)
    if self.normalize:
      drawn = drawn / drawn.sum()
    odd = (1 - self.gamma) * drawn + self.gamma / population.num_clients
    even = odd * np.exp(-self.id_decay * np.arange(population.num_clients))
    return base.WeightedModel(population, lambda round_num: odd if round_num % 2 else even)
