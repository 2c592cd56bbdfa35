"""`hybrid_reference`: round(gamma * M) of the cohort drawn uniformly, the rest by Beta weights among those left."""

import dataclasses

import numpy as np

from data.cohorts import base
from data.cohorts import beta
from quap_tff import checks


@dataclasses.dataclass(frozen=True)
class HybridReference(base.ParticipationChoice):
  """The reference program's reading of `001…` 4.4.

  Attributes:
    gamma: The part of the cohort that is drawn uniformly, in [0, 1].
    a, b: The parameters of the Beta distribution, in [0.01, 1e6].
  """

  gamma: float = 0.8
  a: float = 2.0
  b: float = 5.0

  def __post_init__(self):
    checks.number('hybrid_reference gamma', self.gamma, at_least=0, at_most=1)
    beta.check_shape('hybrid_reference', self.a, self.b)

  def over(self, population):
    num_uniform = round(self.gamma * population.required_cohort_size())
    return _Model(population, num_uniform, beta.client_weights(population, self.a, self.b))


class _Model(base.ParticipationModel):

  def __init__(self, population, num_uniform, weights):
    super().__init__(population)
    self._num_uniform = num_uniform
    self._weights = weights

  def _draw(self, round_num):
    rng = self.population.round_rng(round_num)
    uniform = rng.choice(self.population.num_clients, self._num_uniform, replace=False, shuffle=False)
    left = np.setdiff1d(np.arange(self.population.num_clients), uniform, assume_unique=True)
    weighted = base.weighted_without_replacement(rng, self._weights[left], self.population.cohort_size - len(uniform))
    return np.concatenate([uniform, left[weighted]])

  @property
  def mean_cohort_size(self):
    return float(self.population.cohort_size)
