"""`full`: everyone takes part in every round; `cohort_size` is ignored."""

import dataclasses

import numpy as np

from data.cohorts import base


@dataclasses.dataclass(frozen=True)
class Full(base.ParticipationChoice):
  """No parameters."""

  def over(self, population):
    return _FullModel(population)


class _FullModel(base.ParticipationModel):

  def _draw(self, round_num):
    return np.arange(self.population.num_clients)

  @property
  def mean_cohort_size(self):
    return float(self.population.num_clients)
