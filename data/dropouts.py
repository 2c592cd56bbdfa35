"""Dropout in mid-round: a client is drawn and starts, but its update never arrives. A pure function of (seed, round).

Who drops out never depends on data. What a dropout means for the account is decided by the method:

* a method that charges who came (`charges_absent` false): the client does not take part. Nothing of it was released, so
  it is neither counted nor charged, and the mean is over those who came;
* a method that charges who was drawn (certified): the client is counted and charged as planned, and its update is zero.
  The noise was chosen for the planned cohorts, and a sum with a zero in it is covered by the same bound.

A new choice is a class here and a line in `DROPOUTS`.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar, Optional

import numpy as np

from data import cohorts
from data import rng as rng_lib
from quap_tff.common import checks
from quap_tff.common import registry


class DropoutModel(abc.ABC):
  """Who would drop out of which round.

  Attributes:
    rates: float64[N], each client's probability to drop out of a round.
    is_independent: Whether clients and rounds are independent of each other.
  """

  is_independent: ClassVar[bool] = True

  def __init__(self, num_clients: int, seed: int, rates: np.ndarray):
    self.num_clients, self.seed, self.rates = num_clients, seed, np.asarray(rates, np.float64)

  def fails(self, round_num: int) -> np.ndarray:
    """bool[N]: whether each client would drop out of this round if it were drawn."""
    return rng_lib.generator(self.seed, 'dropout', round_num).random(self.num_clients) < self.rates


class DropoutChoice(abc.ABC):
  """The parameters of a dropout model."""

  @abc.abstractmethod
  def over(self, num_clients: int, seed: int) -> Optional[DropoutModel]:
    """The model of this choice for a population; None if nobody ever drops out."""


@dataclasses.dataclass(frozen=True)
class NoDropout(DropoutChoice):
  """Every update arrives."""

  def over(self, num_clients, seed):
    return None


@dataclasses.dataclass(frozen=True)
class Bernoulli(DropoutChoice):
  """Each update is lost with the same probability.

  Attributes:
    rate: In [0, 1).
  """

  rate: float = 0.1

  def __post_init__(self):
    checks.number('bernoulli dropout rate', self.rate, at_least=0, below=1)

  def over(self, num_clients, seed):
    return DropoutModel(num_clients, seed, np.full(num_clients, self.rate))


@dataclasses.dataclass(frozen=True)
class Beta(DropoutChoice):
  """Each client has a rate of its own ~ Beta(a, b), drawn once: some clients are unreliable, and stay so.

  Attributes:
    a, b: The parameters of the Beta distribution, in [0.01, 1e6].
  """

  a: float = 1.0
  b: float = 4.0

  def __post_init__(self):
    checks.number('beta dropout a', self.a, at_least=0.01, at_most=1e6)
    checks.number('beta dropout b', self.b, at_least=0.01, at_most=1e6)

  def over(self, num_clients, seed):
    return DropoutModel(num_clients, seed, rng_lib.generator(seed, 'dropout_rates').beta(self.a, self.b, num_clients))


@dataclasses.dataclass(frozen=True)
class Markov(DropoutChoice):
  """Outages that last: a client that works fails before the next round, and one that fails recovers.

  Round 1 starts from the stationary state, so in each round fail/(fail + recover) of the clients fail.

  Attributes:
    fail, recover: Probabilities a round, in (0, 1].
  """

  fail: float = 0.05
  recover: float = 0.3

  def __post_init__(self):
    checks.number('markov dropout fail', self.fail, above=0, at_most=1)
    checks.number('markov dropout recover', self.recover, above=0, at_most=1)

  def over(self, num_clients, seed):
    return _MarkovModel(num_clients, seed, self)


class _MarkovModel(DropoutModel):
  is_independent = False

  def __init__(self, num_clients, seed, choice):
    self._stationary = choice.fail / (choice.fail + choice.recover)
    super().__init__(num_clients, seed, np.full(num_clients, self._stationary))
    self._choice = choice
    # The state after the last call. It follows from the seed, so a call for an earlier round starts again.
    self._round_num, self._failing = 0, None

  def fails(self, round_num):
    if round_num < self._round_num:
      self._round_num = 0
    while self._round_num < round_num:
      self._round_num += 1
      coins = rng_lib.generator(self.seed, 'dropout', self._round_num).random(self.num_clients)
      if self._round_num == 1:
        self._failing = coins < self._stationary
      else:
        self._failing = np.where(self._failing, coins >= self._choice.recover, coins < self._choice.fail)
    return self._failing


DROPOUTS: dict[str, type[DropoutChoice]] = {'none': NoDropout, 'bernoulli': Bernoulli, 'beta': Beta, 'markov': Markov}


def make(spec: str, num_clients: int, seed: int) -> Optional[DropoutModel]:
  """The dropout model that `spec` names over clients 0 to `num_clients` - 1, None for `none`."""
  return registry.parse_spec('dropout', spec, DROPOUTS).over(num_clients, seed)


class WithDropout(cohorts.ParticipationModel):
  """A participation model whose clients may drop out.

  A coin for each client, and then another one for its dropout, is one coin of rate q_i·(1 - r_i). Any other draw
  amplifies nothing once clients drop out of it.
  """

  has_dropout = True

  def __init__(self, drawn: cohorts.ParticipationModel, dropout: DropoutModel, charges_absent: bool):
    """Args are who is drawn, who drops out, and whether a cohort is all who were drawn or those who came."""
    super().__init__(drawn.population)
    self._drawn, self._dropout, self._charges_absent = drawn, dropout, charges_absent
    self.no_amplification = drawn.no_amplification
    if charges_absent:
      self.sampling, self.inclusion_rates = drawn.sampling, drawn.inclusion_rates
    elif drawn.sampling == 'bernoulli' and dropout.is_independent:
      self.sampling, self.inclusion_rates = 'bernoulli', drawn.inclusion_rates * (1 - dropout.rates)
    else:
      self.sampling = 'none'
      self.no_amplification = 'no amplification is proven for cohorts from which clients drop out'

  def absent(self, round_num):
    drawn = self._drawn.cohort(round_num)
    return drawn[self._dropout.fails(round_num)[drawn]]

  def _draw(self, round_num):
    drawn = self._drawn.cohort(round_num)
    return drawn if self._charges_absent else drawn[~self._dropout.fails(round_num)[drawn]]

  @property
  def mean_cohort_size(self):
    mean = self._drawn.mean_cohort_size
    return mean if mean is None or self._charges_absent else mean * float(1 - self._dropout.rates.mean())


class WithServerRounds(cohorts.ParticipationModel):
  """A participation model of which only a share q of the rounds is left, by one coin a round; nobody is in the others.

  The coin is common to all clients, so no amplification is proven.
  """

  no_amplification = 'no amplification is proven where one coin for all clients decides who takes part'

  def __init__(self, drawn: cohorts.ParticipationModel, q: float):
    super().__init__(drawn.population)
    self._drawn, self._q, self.has_dropout = drawn, q, drawn.has_dropout

  def _is_of_clients(self, round_num):
    return rng_lib.generator(self.population.seed, 'server_rounds', round_num).random() < self._q

  def absent(self, round_num):
    return self._drawn.absent(round_num) if self._is_of_clients(round_num) else super().absent(round_num)

  def _draw(self, round_num):
    return self._drawn.cohort(round_num) if self._is_of_clients(round_num) else np.zeros([0], np.int64)

  @property
  def mean_cohort_size(self):
    return self._drawn.mean_cohort_size  # Of the rounds of clients.
