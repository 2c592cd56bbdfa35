"""`markov`: clients come and go; a round takes up to `cohort_size` of those who are there.

Each client is a two-state chain: an absent one arrives with probability `arrive` before the next round, a present one
leaves with probability `leave`. Round 1 starts from the stationary state, so arrive / (arrive + leave) of the clients
are there in every round on average. If more are there than `cohort_size`, that many are drawn uniformly; without a
`cohort_size` all take part.
"""

import dataclasses

import numpy as np

from data import rng as rng_lib
from data.cohorts import base
from quap_tff import checks


@dataclasses.dataclass(frozen=True)
class Markov(base.ParticipationChoice):
  """Attributes: arrive, leave: Probabilities a round, in (0, 1]."""

  arrive: float = 0.1
  leave: float = 0.1

  def __post_init__(self):
    checks.number('markov arrive', self.arrive, above=0, at_most=1)
    checks.number('markov leave', self.leave, above=0, at_most=1)

  def over(self, population):
    return _Model(population, self)


class _Model(base.ParticipationModel):

  def __init__(self, population, choice):
    super().__init__(population)
    self._choice = choice
    # The state of the last call, a memory of what the seed says: a call for an earlier round starts again.
    self._round_num = 0
    self._present = None

  def _draw(self, round_num):
    present = np.flatnonzero(self.present(round_num))
    size = self.population.cohort_size
    if size is None or len(present) <= size:
      return present
    return self.population.round_rng(round_num).choice(present, size, replace=False, shuffle=False)

  def present(self, round_num: int) -> np.ndarray:
    """bool[N], who is there in round `round_num`."""
    if round_num < self._round_num:
      self._round_num = 0
    while self._round_num < round_num:
      self._round_num += 1
      rng = rng_lib.generator(self.population.seed, 'availability', self._round_num)
      coins = rng.random(self.population.num_clients)
      arrive, leave = self._choice.arrive, self._choice.leave
      if self._round_num == 1:
        self._present = coins < arrive / (arrive + leave)
      else:
        self._present = np.where(self._present, coins >= leave, coins < arrive)
    return self._present
