"""`bernoulli`: each client joins each round with probability q; `cohort_size` is ignored (`000…` 4.1, scenario 1)."""

import dataclasses

import numpy as np

from data.cohorts import base
from quap_tff import checks


@dataclasses.dataclass(frozen=True)
class Bernoulli(base.ParticipationChoice):
  """Attributes: q: The rate of every client, in (0, 1]."""

  q: float = 0.3

  def __post_init__(self):
    checks.number('bernoulli q', self.q, above=0, at_most=1)

  def over(self, population):
    return base.IndependentModel(population, np.full(population.num_clients, self.q))
