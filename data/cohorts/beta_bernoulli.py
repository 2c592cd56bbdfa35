"""`beta_bernoulli`: each client joins by an own rate q_i ~ Beta(a, b), given once (`000…` 4.1, scenario 2)."""

import dataclasses

from data.cohorts import base
from data.cohorts import beta


@dataclasses.dataclass(frozen=True)
class BetaBernoulli(base.ParticipationChoice):
  """`cohort_size` is ignored. Attributes: a, b: The parameters of the Beta distribution, in [0.01, 1e6]."""

  a: float = 2.0
  b: float = 5.0

  def __post_init__(self):
    beta.check_shape('beta_bernoulli', self.a, self.b)

  def over(self, population):
    return base.IndependentModel(population, beta.client_weights(population, self.a, self.b))
