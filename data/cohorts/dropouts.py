"""Dropout in mid-round: a client is drawn and starts, but its update never arrives. A pure function of (seed, round).

Dropout never depends on data. The method decides how the account treats it:

* a method that charges the clients that came (`charges_absent` false): the client does not take part. Nothing of it was
  released, so it is neither counted nor charged, and the mean is over those that came;
* a method that charges the drawn clients (certified): the client is counted and charged as planned, and its update is
  zero. The noise was chosen for the planned cohorts, and a sum with a zero in it is covered by the same bound.

A new choice is a class here and a line in `DROPOUTS`.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Callable, Optional

import numpy as np

from quap_tff.cohorts import base
from quap_tff.cohorts import stateful
from quap_tff.common import checks
from quap_tff.common import registry
from quap_tff.common.numbers import rng as rng_lib
from quap_tff.common.numbers import samplers


@dataclasses.dataclass(frozen=True, eq=False)
class DropoutModel:
  """A model of which clients would drop out of which round.

  Attributes:
    rates: float64[N], each client's probability to drop out of a round.
    fails: From the round number to bool[N]: whether each client would drop out of this round if it were drawn.
    is_independent: Whether clients and rounds are independent of each other.
  """

  rates: np.ndarray
  fails: Callable[[int], np.ndarray]
  is_independent: bool = True


def _independent(seed: int, rates: np.ndarray) -> DropoutModel:
  return DropoutModel(rates, lambda round_num: rng_lib.generator(seed, 'dropout', round_num).random(len(rates)) < rates)


class DropoutChoice(checks.Checked, abc.ABC):
  """The parameters of a dropout model."""

  @abc.abstractmethod
  def over(self, num_clients: int, seed: int) -> Optional[DropoutModel]:
    """The model of this choice for a population; None if nobody ever drops out."""


@dataclasses.dataclass(frozen=True)
class NoDropout(DropoutChoice):
  """Every update arrives."""

  def over(self, num_clients: int, seed: int) -> None:
    return None


@dataclasses.dataclass(frozen=True)
class BernoulliDropout(DropoutChoice):
  """Each update is lost with the same probability.

  Attributes:
    rate: The probability, in [0, 1).
  """

  rate: float = checks.number_field('bernoulli dropout rate', 0.1, at_least=0, below=1)

  def over(self, num_clients: int, seed: int) -> DropoutModel:
    return _independent(seed, np.full(num_clients, self.rate))


@dataclasses.dataclass(frozen=True)
class BetaDropout(DropoutChoice):
  """Each client has a rate of its own ~ Beta(a, b), drawn once: some clients are unreliable, and remain so.

  Attributes:
    a, b: The parameters of the Beta distribution, in [0.01, 1e6].
  """

  a: float = checks.number_field('beta dropout a', 1.0, at_least=0.01, at_most=1e6)
  b: float = checks.number_field('beta dropout b', 4.0, at_least=0.01, at_most=1e6)

  def over(self, num_clients: int, seed: int) -> DropoutModel:
    return _independent(seed, rng_lib.generator(seed, 'dropout_rates').beta(self.a, self.b, num_clients))


@dataclasses.dataclass(frozen=True)
class MarkovDropout(DropoutChoice):
  """Outages that last: a client that works fails before the next round, and one that fails recovers.

  Round 1 starts from the stationary state, so in each round fail/(fail + recover) of the clients fail.

  Attributes:
    fail, recover: Probabilities a round, in (0, 1].
  """

  fail: float = checks.number_field('markov dropout fail', 0.05, above=0, at_most=1)
  recover: float = checks.number_field('markov dropout recover', 0.3, above=0, at_most=1)

  def over(self, num_clients: int, seed: int) -> DropoutModel:
    def step(round_num: int, failing: Optional[np.ndarray]) -> np.ndarray:
      coins = rng_lib.generator(seed, 'dropout', round_num).random(num_clients)
      return stateful.switched(coins, failing, self.fail, self.recover)

    stationary = self.fail / (self.fail + self.recover)
    return DropoutModel(np.full(num_clients, stationary), stateful.StateChain(step).at, is_independent=False)


DROPOUTS: dict[str, type[DropoutChoice]] = {
  'none': NoDropout,
  'bernoulli': BernoulliDropout,
  'beta': BetaDropout,
  'markov': MarkovDropout,
}


def make(spec: str, num_clients: int, seed: int) -> Optional[DropoutModel]:
  """The dropout model that `spec` names over clients 0 to `num_clients` - 1, None for `none`."""
  return registry.parse_spec('dropout', spec, DROPOUTS).over(num_clients, seed)


class WithDropout(base.ParticipationModel):
  """A participation model whose clients may drop out.

  A coin for each client, and then another one for its dropout, is one coin of rate q_i·(1 - r_i). Any other draw
  amplifies nothing once clients drop out of it.
  """

  has_dropout = True

  def __init__(self, drawn: base.ParticipationModel, dropout: DropoutModel, charges_absent: bool):
    """Args are who is drawn, who drops out, and whether a cohort is all who were drawn or those who came."""
    self._drawn, self._dropout, mean = drawn, dropout, drawn.mean_cohort_size
    self.mean_dropout = float(dropout.rates.mean())
    if charges_absent:
      sampler = dataclasses.replace(drawn.sampler, secret=False)
      super().__init__(
        drawn.population, drawn.cohort, sampler=sampler, mean_cohort_size=mean, min_separation=drawn.min_separation
      )
      return
    sampler = samplers.CohortSampler(reason='no amplification is proven for cohorts from which clients drop out')
    if drawn.sampler.rates is not None and dropout.is_independent:
      sampler = samplers.CohortSampler('bernoulli', rates=drawn.sampler.rates * (1 - dropout.rates))
    mean_left = None if mean is None else mean * float(1 - dropout.rates.mean())
    super().__init__(
      drawn.population,
      lambda round_num: np.setdiff1d(drawn.cohort(round_num), self.absent(round_num), assume_unique=True),
      sampler=sampler,
      mean_cohort_size=mean_left,
    )

  def absent(self, round_num: int) -> np.ndarray:
    drawn = self._drawn.cohort(round_num)
    return drawn[self._dropout.fails(round_num)[drawn]]


class WithServerRounds(base.ParticipationModel):
  """A participation model with a share q of its rounds, by one coin a round; no client is in the other rounds.

  The coin is common to all clients, so no amplification is proven. The mean cohort size is that of clients' rounds.
  """

  def __init__(self, drawn: base.ParticipationModel, q: float):
    super().__init__(
      drawn.population,
      lambda round_num: drawn.cohort(round_num) if self._is_of_clients(round_num) else np.zeros([0], np.int64),
      sampler=samplers.CohortSampler(
        reason='no amplification is proven where one coin for all clients decides who takes part'
      ),
      mean_cohort_size=drawn.mean_cohort_size,
    )
    self._drawn, self._q, self.has_dropout = drawn, q, drawn.has_dropout

  def _is_of_clients(self, round_num: int) -> bool:
    return rng_lib.generator(self.population.seed, 'server_rounds', round_num).random() < self._q

  def absent(self, round_num: int) -> np.ndarray:
    return self._drawn.absent(round_num) if self._is_of_clients(round_num) else super().absent(round_num)
