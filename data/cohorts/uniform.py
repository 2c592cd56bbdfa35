"""`uniform`: every set of `cohort_size` clients is equally likely."""

import dataclasses

from data.cohorts import base


@dataclasses.dataclass(frozen=True)
class Uniform(base.ParticipationChoice):
  """No parameters."""

  def over(self, population):
    return base.FixedSizeModel(population)
