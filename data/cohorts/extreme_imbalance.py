"""`extreme_imbalance`: a few clients join most rounds, the others seldom (`000…` 4.1, scenario 3)."""

import dataclasses

import numpy as np

from data.cohorts import base
from quap_tff import checks


@dataclasses.dataclass(frozen=True)
class ExtremeImbalance(base.ParticipationChoice):
  """Who is frequent is drawn once by the seed, so that an id says nothing about it. `cohort_size` is ignored.

  Attributes:
    frequent_fraction: Which part of the clients is frequent, in [0, 1]; their number is rounded to the nearest.
    frequent_rate: Their rate, in [0, 1].
    rare_rate: The others' rate, in [0, 1].
  """

  frequent_fraction: float = 0.2
  frequent_rate: float = 0.8
  rare_rate: float = 0.1

  def __post_init__(self):
    for field in dataclasses.fields(self):
      checks.number(f'extreme_imbalance {field.name}', getattr(self, field.name), at_least=0, at_most=1)

  def over(self, population):
    frequent = round(self.frequent_fraction * population.num_clients)
    rates = np.full(population.num_clients, self.rare_rate)
    rates[population.client_rng().permutation(population.num_clients)[:frequent]] = self.frequent_rate
    return base.IndependentModel(population, rates)
