"""`beta`: cohorts of fixed size, drawn with weights w_i ~ Beta(a, b) that each client is given once (`002…`)."""

import dataclasses

import numpy as np

from data.cohorts import base
from quap_tff import checks


@dataclasses.dataclass(frozen=True)
class Beta(base.ParticipationChoice):
  """Attributes: a, b: The parameters of the Beta distribution, in [0.01, 1e6]."""

  a: float = 2.0
  b: float = 5.0

  def __post_init__(self):
    check_shape('beta', self.a, self.b)

  def over(self, population):
    weights = client_weights(population, self.a, self.b)
    return base.WeightedModel(population, lambda round_num: weights)


def check_shape(name: str, a: float, b: float):
  # Smaller values give weights that float64 rounds to exactly 0 or 1.
  checks.number(f'{name} a', a, at_least=0.01, at_most=1e6)
  checks.number(f'{name} b', b, at_least=0.01, at_most=1e6)


def client_weights(population: base.Population, a: float, b: float) -> np.ndarray:
  """float64[N], one draw of Beta(a, b) for each client; the same for every model of one seed."""
  return population.client_rng().beta(a, b, population.num_clients)
