"""An example of a participation model."""

import dataclasses

import numpy as np

from data import cohorts
from quap_tff.common.numbers import samplers


@dataclasses.dataclass(frozen=True)
class Shifts(cohorts.ParticipationChoice):
  """Clients come in shifts: client i is in every round t with (t - 1) mod shifts = i mod shifts."""

  shifts: int = 2

  ignores_cohort_size = True

  def over(self, population: cohorts.Population) -> cohorts.ParticipationModel:
    clients = np.arange(population.num_clients)

    def draw(round_num: int) -> np.ndarray:
      return clients[clients % self.shifts == (round_num - 1) % self.shifts]

    sampler = samplers.CohortSampler(reason='shifts follow from the round alone')  # Nothing is amplified.
    return cohorts.ParticipationModel(population, draw, sampler=sampler)


cohorts.PARTICIPATION_MODELS['shifts'] = Shifts
