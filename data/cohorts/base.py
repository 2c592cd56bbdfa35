"""Participation models: who takes part in a round, each a pure function of (seed, round).

A choice (`ParticipationChoice`) is a frozen dataclass of parameters, parsed from a spec; `over` applies it to a
population and gives the model (`ParticipationModel`) that draws cohorts. Three kinds of draw cover most choices:
`IndependentModel`, `FixedSizeModel` and `WeightedModel`.

What a sampler earns is said here, next to the draw, so that an accountant cannot assume another one:

| `sampling`   | the draw                                                             | amplification by sampling     |
| ------------ | -------------------------------------------------------------------- | ----------------------------- |
| `bernoulli`  | each client by an own coin of known rate, independent over rounds    | Poisson, at `inclusion_rates` |
| `fixed_size` | a uniformly random set of M clients, independent over rounds         | without replacement, at M/N   |
| `none`       | all else: unequal weights at a fixed size, availability, everyone    | none                          |

Amplification further takes the cohorts to be secret: a seed that an adversary may know (a published one, a flag in a
shared log) earns nothing, whatever the sampler.
"""

import abc
import dataclasses
from typing import Callable, ClassVar, Optional

import numpy as np

from data import rng as rng_lib
from quap_tff import checks


@dataclasses.dataclass(frozen=True)
class Population:
  """Whom cohorts are drawn from.

  Attributes:
    num_clients: N.
    cohort_size: M, at most N; models whose size is random ignore it, and it may then be `None`.
    seed: Non-negative integer.
  """

  num_clients: int
  cohort_size: Optional[int]
  seed: int

  def __post_init__(self):
    checks.integer('num_clients', self.num_clients, at_least=1)
    checks.integer('seed', self.seed, at_least=0)
    if self.cohort_size is not None:
      checks.integer('cohort_size', self.cohort_size, at_least=1)
      if self.cohort_size > self.num_clients:
        raise ValueError(
            f'cohort_size must be at most the number of clients, found cohort_size={self.cohort_size} and '
            f'num_clients={self.num_clients}.'
        )

  def required_cohort_size(self) -> int:
    if self.cohort_size is None:
      raise ValueError('cohort_size must be given: this participation model draws cohorts of that size.')
    return self.cohort_size

  def client_rng(self) -> np.random.Generator:
    """For what each client is given once: its weight or rate."""
    return rng_lib.generator(self.seed, 'client_weights')

  def round_rng(self, round_num: int) -> np.random.Generator:
    """For the draw of one round."""
    return rng_lib.generator(self.seed, 'cohort', round_num)


class ParticipationModel(abc.ABC):
  """Draws the cohort of each round.

  Attributes:
    population: Whom it draws from.
    sampling: `bernoulli`, `fixed_size` or `none`, see the module's table.
    inclusion_rates: float64[N] where `sampling` is `bernoulli`, else `None`.
  """

  sampling: ClassVar[str] = 'none'
  inclusion_rates: Optional[np.ndarray] = None

  def __init__(self, population: Population):
    self.population = population

  def cohort(self, round_num: int) -> np.ndarray:
    """The clients of round `round_num`, counted from 1: sorted, distinct int64 indices; possibly none."""
    checks.integer('round_num', round_num, at_least=1)
    return np.sort(self._draw(round_num)).astype(np.int64)

  @abc.abstractmethod
  def _draw(self, round_num: int) -> np.ndarray:
    """Distinct client indices in any order; must depend on nothing but the population and `round_num`."""

  @property
  def mean_cohort_size(self) -> Optional[float]:
    """The expected size of a cohort in clients, `None` where the model has no simple one."""
    return None


class IndependentModel(ParticipationModel):
  """Each client joins each round with its own rate, independently of everyone and of other rounds."""

  sampling = 'bernoulli'

  def __init__(self, population: Population, rates: np.ndarray):
    super().__init__(population)
    self.inclusion_rates = np.array(rates, np.float64)
    self.inclusion_rates.setflags(write=False)

  def _draw(self, round_num):
    # random() is in [0, 1): rate 0 never joins, rate 1 always.
    coins = self.population.round_rng(round_num).random(self.population.num_clients)
    return np.flatnonzero(coins < self.inclusion_rates)

  @property
  def mean_cohort_size(self):
    return float(self.inclusion_rates.sum())


class FixedSizeModel(ParticipationModel):
  """A uniformly random set of `cohort_size` clients."""

  sampling = 'fixed_size'

  def __init__(self, population: Population):
    super().__init__(population)
    population.required_cohort_size()

  def _draw(self, round_num):
    rng = self.population.round_rng(round_num)
    # Without a shuffle numpy's cost grows with the cohort, not with the population.
    return rng.choice(self.population.num_clients, self.population.cohort_size, replace=False, shuffle=False)

  @property
  def mean_cohort_size(self):
    return float(self.population.cohort_size)


class WeightedModel(ParticipationModel):
  """`cohort_size` clients, one after the other without replacement, with probability in proportion to their weights."""

  def __init__(self, population: Population, weights: Callable[[int], np.ndarray]):
    """Args are the population and a function from the round number to float64[N] weights, at least 0."""
    super().__init__(population)
    population.required_cohort_size()
    self.weights = weights

  def _draw(self, round_num):
    rng = self.population.round_rng(round_num)
    return weighted_without_replacement(rng, self.weights(round_num), self.population.cohort_size)

  @property
  def mean_cohort_size(self):
    return float(self.population.cohort_size)


class ParticipationChoice(abc.ABC):
  """The parameters of a participation model."""

  @abc.abstractmethod
  def over(self, population: Population) -> ParticipationModel:
    """The model of this choice for `population`."""


def weighted_without_replacement(rng: np.random.Generator, weights: np.ndarray, size: int) -> np.ndarray:
  """`size` distinct indices drawn one after the other, with probability in proportion to `weights` among those left.

  Drawn as the largest of log w_i + Gumbel noise, which is that distribution exactly (Efraimidis and Spirakis 2006,
  Kool et al. 2019, arXiv:1903.06059). Where fewer than `size` weights are positive, all of those are taken and the
  shortfall is filled uniformly.
  """
  candidates = np.flatnonzero(weights > 0)
  if len(candidates) <= size:
    rest = np.flatnonzero(~(weights > 0))
    return np.concatenate([candidates, rng.choice(rest, size - len(candidates), replace=False)])
  keys = np.log(weights[candidates]) + rng.gumbel(size=len(candidates))
  return candidates[np.argpartition(-keys, size - 1)[:size]]
