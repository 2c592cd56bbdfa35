"""Populations, and the model that draws cohorts from them; three kinds of draw cover most models."""

from __future__ import annotations

import abc
from collections.abc import Sequence
import dataclasses
import itertools
from typing import Callable, ClassVar, Optional, Protocol

import numpy as np

from quap_tff.common import checks
from quap_tff.common.numbers import rng as rng_lib
from quap_tff.common.numbers import samplers
from quap_tff.common.numbers import secret_coins

# From this number of clients on, draws that take time in proportion to the cohort replace those that draw a number for
# every client. The distribution is the same; the cohorts of a seed are others.
LARGE_POPULATION = 100_000
# Weighted draws do so for cohorts of at most this part of the population.
_FEW = 20
_MOST_BATCHES = 20
# The cohort size of a population of which no other is given: a share of it, up to a limit.
_DEFAULT_SHARE, _DEFAULT_LIMIT = 0.3, 30
_BY_WEIGHT = samplers.CohortSampler(reason='no amplification is proven for cohorts drawn by weight or availability')


def default_cohort_size(num_clients: int) -> int:
  """M for N clients, where no other is given: 30% of them, and at most 30."""
  return max(1, min(_DEFAULT_LIMIT, round(_DEFAULT_SHARE * num_clients)))


class Dropout(Protocol):
  """A model of which clients would drop out of which round, such as `data.cohorts.dropouts.DropoutModel`."""

  @property
  def fails(self) -> Callable[[int], np.ndarray]:
    """Maps the round number to bool[N]: whether each client would drop out of this round if it were drawn."""


@dataclasses.dataclass(frozen=True)
class Population:
  """The clients that cohorts are drawn from.

  Attributes:
    num_clients: N.
    cohort_size: M, at most N. Models with cohorts of random size ignore it; then it may be `None`.
    seed: Non-negative integer.
    dropout: Who drops out, for models that learn from who dropped out; None if nobody does.
    cohort_seed: The seed of the cohorts, below 2^256, if it is secret. Weights and rates follow from `seed` all the
      same.
  """

  num_clients: int
  cohort_size: Optional[int]
  seed: int
  dropout: Optional[Dropout] = None
  cohort_seed: Optional[int] = dataclasses.field(default=None, repr=False)

  def __post_init__(self) -> None:
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
    """M; raises `ValueError` if none is given."""
    if self.cohort_size is None:
      raise ValueError('cohort_size is missing: this participation model draws cohorts of that size.')
    return self.cohort_size

  def client_rng(self) -> np.random.Generator:
    """The generator of each client's weight or rate, which is drawn once."""
    return rng_lib.generator(self.seed, 'client_weights')

  def beta_weights(self, a: float, b: float) -> np.ndarray:
    """float64[N], one draw of Beta(a, b) for each client; the same for every model of one seed."""
    return self.client_rng().beta(a, b, self.num_clients)

  def round_rng(self, round_num: int) -> np.random.Generator:
    """The generator of one round's draw."""
    seed = self.seed if self.cohort_seed is None else self.cohort_seed
    return rng_lib.generator(seed, 'cohort', round_num)


class ParticipationModel:
  """Draws the cohort of each round.

  Attributes:
    population: The clients that it draws from.
    sampler: The draw, for an account; see the table in `data.cohorts`.
    mean_cohort_size: The expected number of clients in a cohort, `None` if there is no simple one.
    min_separation: b, where two rounds of a client are promised to be at least b apart and no cohort is empty, so that
      a client is in at most ⌈T/b⌉ of T rounds; `None` if nothing is promised.
    has_dropout: Whether clients that are drawn may drop out.
    mean_dropout: The share of the clients that are drawn and expected to drop out.
  """

  has_dropout: bool = False
  mean_dropout: float = 0.0

  def __init__(
    self,
    population: Population,
    draw: Callable[[int], np.ndarray],
    *,
    sampler: samplers.CohortSampler = _BY_WEIGHT,
    mean_cohort_size: Optional[float] = None,
    min_separation: Optional[int] = None,
  ):
    """`draw` gives distinct client ids in any order, a function of the population and the round number alone."""
    self.population, self._draw, self.sampler = population, draw, sampler
    self.mean_cohort_size, self.min_separation = mean_cohort_size, min_separation

  @property
  def secret(self) -> bool:
    """True if the cohorts follow from a secret seed, and from nothing else but public rates."""
    return self.sampler.secret

  def cohort(self, round_num: int) -> np.ndarray:
    """The clients of round `round_num`, counted from 1: sorted, distinct int64 indices; possibly none."""
    checks.integer('round_num', round_num, at_least=1)
    return np.sort(self._draw(round_num)).astype(np.int64)

  def drawn(self, round_num: int) -> np.ndarray:
    """The clients of a round, and those who were drawn for it and drop out."""
    return np.union1d(self.cohort(round_num), self.absent(round_num))

  def absent(self, round_num: int) -> np.ndarray:
    """The clients that were drawn for round `round_num` and whose updates never arrive, sorted int64 indices."""
    del round_num
    return np.zeros([0], np.int64)


class ParticipationChoice(checks.Checked, abc.ABC):
  """The parameters of a participation model; a frozen dataclass.

  Attributes:
    title: Its name in print, where {key} stands for a parameter; '' if that is its spec.
    ignores_cohort_size: Whether the model sets the size of cohorts itself, whatever `cohort_size` is.
    learns_from_dropout: Whether the model learns from clients that drop out, so that some must.
  """

  title: ClassVar[str] = ''
  ignores_cohort_size: ClassVar[bool] = False
  learns_from_dropout: ClassVar[bool] = False

  @abc.abstractmethod
  def over(self, population: Population) -> ParticipationModel:
    """The model of this choice for `population`."""

  @property
  def provenance(self) -> str:
    """The origin of the cohorts, a sentence of certificates."""
    return 'The cohorts follow from a public seed.'

  @property
  def statement(self) -> str:
    """Sentences on the cohorts, printed before the first round; '' if there is nothing to say."""
    return ''

  def check_rounds(self, num_rounds: int) -> None:  # noqa: B027 (most models have any number of rounds)
    """Raises `ValueError` if the model has fewer rounds."""

  def portable(self) -> ParticipationChoice:
    """The choice as a run's folder names it, without the places of files on this machine."""
    return self

  def for_clients(self, client_ids: Sequence[str]) -> ParticipationChoice:
    """The choice for the clients of a federation, by their ids. Most models only count clients."""
    del client_ids
    return self


def independent(population: Population, rates: np.ndarray) -> ParticipationModel:
  """Each client joins each round with its own rate, float64[N], independently of other clients and rounds."""
  rates, total = np.array(rates, np.float64), population.num_clients
  rates.setflags(write=False)
  one_rate = total >= LARGE_POPULATION and (rates == rates[0]).all()

  def draw(round_num: int) -> np.ndarray:
    if population.cohort_seed is not None:
      return secret_coins.heads(population.cohort_seed, round_num, rates)
    rng = population.round_rng(round_num)
    if one_rate:
      # As many coins of one rate show heads as the binomial distribution says, and all sets of that many are as likely.
      return rng.choice(total, rng.binomial(total, rates[0]), replace=False, shuffle=False)
    # random() is in [0, 1): rate 0 never joins, rate 1 always.
    return np.flatnonzero(rng.random(total) < rates)

  return ParticipationModel(
    population,
    draw,
    sampler=samplers.CohortSampler('bernoulli', rates=rates, secret=population.cohort_seed is not None),
    mean_cohort_size=float(rates.sum()),
  )


def fixed_size(population: Population) -> ParticipationModel:
  """A uniformly random set of `cohort_size` clients."""
  total, size = population.num_clients, population.required_cohort_size()

  def draw(round_num: int) -> np.ndarray:
    # Without a shuffle NumPy's cost grows with the cohort, not with the population.
    return population.round_rng(round_num).choice(total, size, replace=False, shuffle=False)

  sampler = samplers.CohortSampler('fixed_size', cohort_size=size)
  return ParticipationModel(population, draw, sampler=sampler, mean_cohort_size=float(size))


def weighted(population: Population, *weights: np.ndarray) -> ParticipationModel:
  """`cohort_size` clients, one after the other without replacement, with probability in proportion to their weights.

  The weights, float64[N] and at least 0, are those of round 1, round 2, …, and then of round 1 again.
  """
  size = population.required_cohort_size()
  are_few = population.num_clients >= LARGE_POPULATION and size <= population.num_clients // _FEW
  cumulative = [np.cumsum(one) for one in weights if are_few]

  def draw(round_num: int) -> np.ndarray:
    rng, index = population.round_rng(round_num), (round_num - 1) % len(weights)
    if are_few:
      return few_weighted_without_replacement(rng, weights[index], cumulative[index], size)
    return weighted_without_replacement(rng, weights[index], size)

  return ParticipationModel(population, draw, mean_cohort_size=float(size))


def few_weighted_without_replacement(
  rng: np.random.Generator, weights: np.ndarray, cumulative: np.ndarray, size: int
) -> np.ndarray:
  """The draw of `weighted_without_replacement`, with time in proportion to `size` instead of the population.

  Draws with replacement, one after the other, and leaves out clients that were drawn before: given that it is another
  one, a draw has probability in proportion to the weights among those left. If a few clients have nearly all weight,
  repetitions take over, and the rest is drawn from those left as by `weighted_without_replacement`.

  Args:
    rng: The source of random numbers.
    weights: float64[N], at least 0, not all 0.
    cumulative: float64[N], the sums of the first weights.
    size: How many to draw, at most N.
  """
  distinct: dict[int, None] = {}
  total = cumulative[-1]
  for _ in range(_MOST_BATCHES):
    # A dict keeps the order of the first draws. Rounding must not lead past the last client of positive weight.
    points = np.minimum(rng.random(2 * size) * total, np.nextafter(total, 0))
    distinct.update(dict.fromkeys(np.searchsorted(cumulative, points, side='right').tolist()))
    if len(distinct) >= size:
      return np.fromiter(itertools.islice(distinct, size), np.int64, size)
  drawn = np.fromiter(distinct, np.int64, len(distinct))
  left = np.setdiff1d(np.arange(len(weights)), drawn, assume_unique=True)
  return np.concatenate([drawn, left[weighted_without_replacement(rng, weights[left], size - len(drawn))]])


def weighted_without_replacement(rng: np.random.Generator, weights: np.ndarray, size: int) -> np.ndarray:
  """`size` distinct indices drawn one after the other, with probability in proportion to `weights` among those left.

  These are the largest of log w_i + Gumbel noise, which has exactly that distribution (Efraimidis and Spirakis 2006;
  Kool et al. 2019, arXiv:1903.06059). If fewer than `size` weights are positive, all of those are taken and the rest is
  filled uniformly.
  """
  candidates = np.flatnonzero(weights > 0)
  if len(candidates) <= size:
    rest = np.flatnonzero(~(weights > 0))
    return np.concatenate([candidates, rng.choice(rest, size - len(candidates), replace=False)])
  keys = np.log(weights[candidates]) + rng.gumbel(size=len(candidates))
  return candidates[np.argpartition(-keys, size - 1)[:size]]
