"""Participation models: who takes part in a round, each a pure function of (seed, round).

A choice (`ParticipationChoice`) is a frozen dataclass of parameters, parsed from a spec; `over` applies it to a
population and gives the model (`ParticipationModel`) that draws cohorts. Three kinds of draw cover most choices:
`IndependentModel`, `FixedSizeModel` and `WeightedModel`. A new choice is a class here and a line in
`PARTICIPATION_MODELS`.

What a sampler earns is stated here, next to the draw, so that an accountant cannot assume something else:

| `sampling`   | the draw                                                             | amplification by sampling     |
| ------------ | -------------------------------------------------------------------- | ----------------------------- |
| `bernoulli`  | each client by its own coin of known rate, independent over rounds   | Poisson, at `inclusion_rates` |
| `fixed_size` | a uniformly random set of M clients, independent over rounds         | without replacement, at M/N   |
| `none`       | all else: unequal weights at a fixed size, availability, everyone    | none                          |

Amplification also requires that the cohorts are secret. The cohorts here follow from a seed that runs publish, so no
sampler earns anything unless its user keeps the seed secret (`accounting.Sampler.secret`).
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
from typing import Any, Callable, ClassVar, Optional

import numpy as np

from data import battery
from data import rng as rng_lib
from quap_tff.common import checks
from quap_tff.common import lazy
from quap_tff.common import registry

accounting = lazy.module('quap_tff.accounting')

# From this number of clients on, draws that take time in proportion to the cohort replace those that draw a number for
# every client. The distribution is the same; the cohorts of a seed are others.
LARGE_POPULATION = 100_000
# Weighted draws do so for cohorts of at most this part of the population.
_FEW = 20
_MOST_BATCHES = 20


@dataclasses.dataclass(frozen=True)
class Population:
  """The clients that cohorts are drawn from.

  Attributes:
    num_clients: N.
    cohort_size: M, at most N. Models with cohorts of random size ignore it; then it may be `None`.
    seed: Non-negative integer.
    dropout: A `data.dropouts.DropoutModel`, for models that learn from who dropped out; None if nobody does.
  """

  num_clients: int
  cohort_size: Optional[int]
  seed: int
  dropout: Optional[Any] = None

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
      raise ValueError('cohort_size is missing: this participation model draws cohorts of that size.')
    return self.cohort_size

  def client_rng(self) -> np.random.Generator:
    """The generator of what each client gets once: its weight or rate."""
    return rng_lib.generator(self.seed, 'client_weights')

  def round_rng(self, round_num: int) -> np.random.Generator:
    """The generator of one round's draw."""
    return rng_lib.generator(self.seed, 'cohort', round_num)


class ParticipationModel(abc.ABC):
  """Draws the cohort of each round.

  Attributes:
    population: The clients that it draws from.
    sampling: `bernoulli`, `fixed_size` or `none`, see the module's table.
    inclusion_rates: float64[N] where `sampling` is `bernoulli`, else `None`.
    no_amplification: Where `sampling` is `none`, the reason why nothing is amplified, a clause.
    has_dropout: Whether clients that are drawn may drop out.
  """

  sampling: ClassVar[str] = 'none'
  no_amplification: str = 'no amplification is proven for cohorts drawn by weight or availability'
  has_dropout: bool = False
  inclusion_rates: Optional[np.ndarray] = None

  def __init__(self, population: Population):
    self.population = population

  def cohort(self, round_num: int) -> np.ndarray:
    """The clients of round `round_num`, counted from 1: sorted, distinct int64 indices; possibly none."""
    checks.integer('round_num', round_num, at_least=1)
    return np.sort(self._draw(round_num)).astype(np.int64)

  def absent(self, round_num: int) -> np.ndarray:
    """The clients that were drawn for round `round_num` and whose updates never arrive, sorted int64 indices."""
    del round_num
    return np.zeros([0], np.int64)

  @abc.abstractmethod
  def _draw(self, round_num: int) -> np.ndarray:
    """Distinct client indices in any order, a function of the population and `round_num` alone."""

  @property
  def mean_cohort_size(self) -> Optional[float]:
    """The expected number of clients in a cohort, `None` if there is no simple one."""
    return None

  @property
  def sampler(self) -> accounting.Sampler:
    """The draw, for an account."""
    is_fixed_size = self.sampling == 'fixed_size'
    return accounting.Sampler(
      kind=self.sampling,
      rates=self.inclusion_rates,
      cohort_size=self.population.cohort_size if is_fixed_size else None,
      reason=self.no_amplification,
    )


class IndependentModel(ParticipationModel):
  """Each client joins each round with its own rate, independently of other clients and rounds."""

  sampling = 'bernoulli'

  def __init__(self, population: Population, rates: np.ndarray):
    super().__init__(population)
    self.inclusion_rates = np.array(rates, np.float64)
    self.inclusion_rates.setflags(write=False)
    one_rate = population.num_clients >= LARGE_POPULATION and (rates == rates[0]).all()
    self._common_rate = float(rates[0]) if one_rate else None

  def _draw(self, round_num):
    if self._common_rate is not None:
      # As many coins of one rate show heads as the binomial distribution says, and all sets of that many are as likely.
      rng, total = self.population.round_rng(round_num), self.population.num_clients
      return rng.choice(total, rng.binomial(total, self._common_rate), replace=False, shuffle=False)
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
    self._cumulative = []

  def _draw(self, round_num):
    rng, size = self.population.round_rng(round_num), self.population.cohort_size
    weights = self.weights(round_num)
    if self.population.num_clients < LARGE_POPULATION or size > self.population.num_clients // _FEW:
      return weighted_without_replacement(rng, weights, size)
    # The sums are kept, as weights are the same arrays in many rounds.
    if not any(weights is known for known, _ in self._cumulative):
      self._cumulative = [*self._cumulative[-1:], (weights, np.cumsum(weights))]
    cumulative = next(sums for known, sums in self._cumulative if known is weights)
    return few_weighted_without_replacement(rng, weights, cumulative, size)

  @property
  def mean_cohort_size(self):
    return float(self.population.cohort_size)


class ParticipationChoice(abc.ABC):
  """The parameters of a participation model.

  Attributes:
    ignores_cohort_size: Whether the model sets the size of cohorts itself, whatever `cohort_size` is.
    learns_from_dropout: Whether the model learns from who drops out, so that somebody must.
  """

  ignores_cohort_size: ClassVar[bool] = False
  learns_from_dropout: ClassVar[bool] = False

  @abc.abstractmethod
  def over(self, population: Population) -> ParticipationModel:
    """The model of this choice for `population`."""


@dataclasses.dataclass(frozen=True)
class Uniform(ParticipationChoice):
  """Every set of `cohort_size` clients is equally likely."""

  def over(self, population):
    return FixedSizeModel(population)


@dataclasses.dataclass(frozen=True)
class Full(ParticipationChoice):
  """Everyone takes part in every round."""

  ignores_cohort_size = True

  def over(self, population):
    return _FullModel(population)


class _FullModel(ParticipationModel):
  no_amplification = 'everyone takes part in every round'

  def _draw(self, round_num):
    return np.arange(self.population.num_clients)

  @property
  def mean_cohort_size(self):
    return float(self.population.num_clients)


@dataclasses.dataclass(frozen=True)
class Bernoulli(ParticipationChoice):
  """Each client joins each round with probability q.

  Attributes:
    q: The rate of every client, in (0, 1].
  """

  ignores_cohort_size = True

  q: float = 0.3

  def __post_init__(self):
    checks.number('bernoulli q', self.q, above=0, at_most=1)

  def over(self, population):
    return IndependentModel(population, np.full(population.num_clients, self.q))


@dataclasses.dataclass(frozen=True)
class Beta(ParticipationChoice):
  """Cohorts of fixed size, drawn with weights w_i ~ Beta(a, b) that are drawn once for each client.

  Attributes:
    a, b: The parameters of the Beta distribution, in [0.01, 1e6].
  """

  a: float = 2.0
  b: float = 5.0

  def __post_init__(self):
    _check_shape('beta', self.a, self.b)

  def over(self, population):
    weights = _client_weights(population, self.a, self.b)
    return WeightedModel(population, lambda round_num: weights)


def _check_shape(name: str, a: float, b: float):
  # Smaller values give weights that float64 rounds to exactly 0 or 1.
  checks.number(f'{name} a', a, at_least=0.01, at_most=1e6)
  checks.number(f'{name} b', b, at_least=0.01, at_most=1e6)


def _client_weights(population: Population, a: float, b: float) -> np.ndarray:
  """float64[N], one draw of Beta(a, b) for each client; the same for every model of one seed."""
  return population.client_rng().beta(a, b, population.num_clients)


@dataclasses.dataclass(frozen=True)
class BetaBernoulli(ParticipationChoice):
  """Each client joins with its own rate q_i ~ Beta(a, b), drawn once.

  Attributes:
    a, b: The parameters of the Beta distribution, in [0.01, 1e6].
  """

  ignores_cohort_size = True

  a: float = 2.0
  b: float = 5.0

  def __post_init__(self):
    _check_shape('beta_bernoulli', self.a, self.b)

  def over(self, population):
    return IndependentModel(population, _client_weights(population, self.a, self.b))


@dataclasses.dataclass(frozen=True)
class ExtremeImbalance(ParticipationChoice):
  """A few clients join most rounds, the others join rarely.

  The seed decides once who is frequent, so an id says nothing about it.

  Attributes:
    frequent_fraction: The share of frequent clients, in [0, 1]; their number is rounded to the nearest integer.
    frequent_rate: Their rate, in [0, 1].
    rare_rate: The others' rate, in [0, 1].
  """

  ignores_cohort_size = True

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
    return IndependentModel(population, rates)


@dataclasses.dataclass(frozen=True)
class Hybrid(ParticipationChoice):
  """A uniform weight mixed with Beta weights; even rounds favour low ids. See docs/method.md, section 4.4.

      w_i = (1 - gamma) * Beta(a, b)_i + gamma / N,   times exp(-id_decay * i) in even rounds

  A shortfall (fewer than `cohort_size` positive weights) is filled uniformly. As written, Beta(a, b)_i is a draw with
  mean a / (a + b) while gamma / N falls with N: at N = 100 and gamma = 0.8 the uniform part is 12% of the weight, not
  80%. `normalize=true` divides the draws by their sum first, and gamma is then the uniform part's share.

  Attributes:
    gamma: The mix, in [0, 1]; 1 is uniform except in even rounds.
    a, b: The parameters of the Beta distribution, in [0.01, 1e6].
    id_decay: How fast low ids are favoured in even rounds, at least 0.
    normalize: Whether the Beta draws are divided by their sum.
  """

  gamma: float = 0.8
  a: float = 2.0
  b: float = 5.0
  id_decay: float = 0.01
  normalize: bool = False

  def __post_init__(self):
    checks.number('hybrid gamma', self.gamma, at_least=0, at_most=1)
    _check_shape('hybrid', self.a, self.b)
    checks.number('hybrid id_decay', self.id_decay, at_least=0)

  def over(self, population):
    drawn = _client_weights(population, self.a, self.b)
    if self.normalize:
      drawn = drawn / drawn.sum()
    odd = (1 - self.gamma) * drawn + self.gamma / population.num_clients
    even = odd * np.exp(-self.id_decay * np.arange(population.num_clients))
    return WeightedModel(population, lambda round_num: odd if round_num % 2 else even)


@dataclasses.dataclass(frozen=True)
class HybridReference(ParticipationChoice):
  """The reference program's reading of `Hybrid`: round(gamma * M) drawn uniformly, the rest by Beta weights.

  Attributes:
    gamma: The part of the cohort that is drawn uniformly, in [0, 1].
    a, b: The parameters of the Beta distribution, in [0.01, 1e6].
  """

  gamma: float = 0.8
  a: float = 2.0
  b: float = 5.0

  def __post_init__(self):
    checks.number('hybrid_reference gamma', self.gamma, at_least=0, at_most=1)
    _check_shape('hybrid_reference', self.a, self.b)

  def over(self, population):
    num_uniform = round(self.gamma * population.required_cohort_size())
    return _HybridReferenceModel(population, num_uniform, _client_weights(population, self.a, self.b))


class _HybridReferenceModel(ParticipationModel):
  def __init__(self, population, num_uniform, weights):
    super().__init__(population)
    self._num_uniform = num_uniform
    self._weights = weights

  def _draw(self, round_num):
    rng = self.population.round_rng(round_num)
    uniform = rng.choice(self.population.num_clients, self._num_uniform, replace=False, shuffle=False)
    left = np.setdiff1d(np.arange(self.population.num_clients), uniform, assume_unique=True)
    weighted = weighted_without_replacement(rng, self._weights[left], self.population.cohort_size - len(uniform))
    return np.concatenate([uniform, left[weighted]])

  @property
  def mean_cohort_size(self):
    return float(self.population.cohort_size)


@dataclasses.dataclass(frozen=True)
class Markov(ParticipationChoice):
  """Clients come and go; a round takes up to `cohort_size` of those that are present.

  Each client is a two-state chain: an absent client arrives with probability `arrive` before the next round, and a
  present client leaves with probability `leave`. Round 1 starts from the stationary state, so on average
  arrive / (arrive + leave) of the clients are present in every round. If more than `cohort_size` are present, that many
  are drawn uniformly. Without a `cohort_size` all of them take part.

  Attributes:
    arrive, leave: Probabilities a round, in (0, 1].
  """

  arrive: float = 0.1
  leave: float = 0.1

  def __post_init__(self):
    checks.number('markov arrive', self.arrive, above=0, at_most=1)
    checks.number('markov leave', self.leave, above=0, at_most=1)

  def over(self, population):
    return _MarkovModel(population, self)


class _MarkovModel(ParticipationModel):
  def __init__(self, population, choice):
    super().__init__(population)
    self._choice = choice
    # The state after the last call. It follows from the seed, so a call for an earlier round starts again.
    self._round_num = 0
    self._present = None

  def _draw(self, round_num):
    present = np.flatnonzero(self.present(round_num))
    size = self.population.cohort_size
    if size is None or len(present) <= size:
      return present
    return self.population.round_rng(round_num).choice(present, size, replace=False, shuffle=False)

  def present(self, round_num: int) -> np.ndarray:
    """bool[N], who is present in round `round_num`."""
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


class _LearningModel(ParticipationModel):
  """Draws by what is known of earlier rounds: who was drawn then, and who dropped out. Both are public."""

  def __init__(self, population: Population):
    super().__init__(population)
    population.required_cohort_size()
    if population.dropout is None:
      raise ValueError(
        'This participation model learns from clients that drop out, and with --dropout=none nobody does. Give a '
        '--dropout, such as markov, or choose another --participation.'
      )
    self._cohorts = []

  def _draw(self, round_num):
    # Cohorts follow from the seed, round by round.
    for number in range(len(self._cohorts) + 1, round_num + 1):
      cohort = np.sort(self._select(number, self.population.round_rng(number)))
      self._cohorts.append(cohort)
      self._learn(cohort, self.population.dropout.fails(number)[cohort])
    return self._cohorts[round_num - 1]

  @abc.abstractmethod
  def _select(self, round_num: int, rng: np.random.Generator) -> np.ndarray:
    """The cohort, by what was learned."""

  @abc.abstractmethod
  def _learn(self, cohort: np.ndarray, failed: np.ndarray):
    """Takes up a round: who was drawn, int64[M], and who of these dropped out, bool[M]."""


@dataclasses.dataclass(frozen=True)
class FlPadpm(ParticipationChoice):
  """An interpretation of FLPADPM: as many clients are invited as it takes, by their patterns of dropout.

  The paper (Zhang et al., Mathematics 11(24):4977, 2023) predicts which students drop out of a course, with a network
  that is trained by federated averaging. It does not predict clients. The documents name it for predicting dropout from
  patterns. The smallest reading of that for clients: the pattern of a client is what became of its last `length`
  invitations, and

      p(drop | pattern) = (r·strength + drops after the pattern)/(strength + invitations after the pattern)

  counted over all clients, with r the share of all invitations that were dropped (after one drop and nine arrivals that
  are made up). Clients are invited in random order until Σ(1 - p) is at least `cohort_size`.

  Attributes:
    length: How many invitations a pattern has, 1 to 8.
    strength: The weight of the common rate, above 0.
  """

  learns_from_dropout = True

  length: int = 3
  strength: float = 5.0

  def __post_init__(self):
    checks.integer('flpadpm length', self.length, at_least=1, at_most=8)
    checks.number('flpadpm strength', self.strength, above=0)

  def over(self, population):
    return _FlPadpmModel(population, self)


class _FlPadpmModel(_LearningModel):
  def __init__(self, population, choice):
    super().__init__(population)
    self._choice = choice
    # A pattern is a number in base 3: 0 for no invitation yet, 1 for an arrival, 2 for a drop; the latest is the last.
    self._patterns = np.zeros(self.population.num_clients, np.int64)
    self._invited, self._dropped = np.zeros([2, 3**self._choice.length])

  def predicted(self) -> np.ndarray:
    """float64[N], each client's predicted probability to drop out of the next round."""
    common = (self._dropped.sum() + 1) / (self._invited.sum() + 10)
    strength = self._choice.strength
    return ((common * strength + self._dropped) / (strength + self._invited))[self._patterns]

  def _select(self, round_num, rng):
    order = rng.permutation(self.population.num_clients)
    expected = np.cumsum(1 - self.predicted()[order])
    # A rounding error must not cost an invitation.
    return order[: np.searchsorted(expected, self.population.cohort_size - 1e-9) + 1]

  def _learn(self, cohort, failed):
    np.add.at(self._invited, self._patterns[cohort], 1)
    np.add.at(self._dropped, self._patterns[cohort], failed)
    self._patterns[cohort] = (3 * self._patterns[cohort] + 1 + failed) % 3**self._choice.length


@dataclasses.dataclass(frozen=True)
class ClientSelection(ParticipationChoice):
  """An interpretation of Marfo et al. 2025 (arXiv:2502.00036): the clients of the greatest utility, and as many as fit.

  The paper selects the top K clients by utility, and adapts K to performance and to constraints of the system. Utility
  by loss would be an exact function of data. Here it follows from what is public:

      u_i = share·(arrivals + 1)/(invitations + 2) + (1 - share)·speed_i,    speed_i ~ Beta(2, 5), drawn once
      K = M/(share of all invitations that arrived), rounded up

  A part `explore` of the K clients is drawn uniformly from the others. Otherwise most clients would never be in it. The
  paper's noise is the mechanism's, and its checkpoints are those of every run.

  Attributes:
    share: The weight of reliability, in [0, 1].
    explore: In [0, 1].
  """

  learns_from_dropout = True

  share: float = 0.5
  explore: float = 0.3

  def __post_init__(self):
    checks.number('client_selection share', self.share, at_least=0, at_most=1)
    checks.number('client_selection explore', self.explore, at_least=0, at_most=1)

  def over(self, population):
    return _ClientSelectionModel(population, self)


class _ClientSelectionModel(_LearningModel):
  def __init__(self, population, choice):
    super().__init__(population)
    self._choice, self._speed = choice, _client_weights(population, 2.0, 5.0)
    self._invited, self._arrived = np.zeros([2, self.population.num_clients])

  def utility(self) -> np.ndarray:
    """float64[N], u_i for the next round."""
    share = self._choice.share
    return share * (self._arrived + 1) / (self._invited + 2) + (1 - share) * self._speed

  def _select(self, round_num, rng):
    arrival_rate = (self._arrived.sum() + 1) / (self._invited.sum() + 1)
    size = min(self.population.num_clients, int(np.ceil(self.population.cohort_size / arrival_rate - 1e-9)))
    num_best = size - round(self._choice.explore * size)
    order = np.argsort(-self.utility(), kind='stable')
    return np.concatenate([order[:num_best], rng.choice(order[num_best:], size - num_best, replace=False)])

  def _learn(self, cohort, failed):
    self._invited[cohort] += 1
    self._arrived[cohort] += ~failed


@dataclasses.dataclass(frozen=True)
class Energy(battery.Dynamics, ParticipationChoice):
  """Clients take part by the charge of their batteries, and whether they are plugged in; see `data.battery`.

  With a `cohort_size`, that many of the clients with q_i(t) > 0 are drawn one after the other with weights q_i(t), or
  all of them if there are fewer. Without one, each takes part with probability q_i(t). The fields are those of
  `battery.Dynamics`.
  """

  def over(self, population):
    return _EnergyModel(population, self)


class _EnergyModel(ParticipationModel):
  def __init__(self, population, dynamics):
    super().__init__(population)
    self._dynamics = dynamics
    # The state before the round after the last call. It follows from the seed, as in `_MarkovModel`.
    self._next_round = 0
    self._batteries = None

  def _draw(self, round_num):
    return self._cohort(round_num, self.batteries(round_num))

  def batteries(self, round_num: int) -> battery.Batteries:
    """The batteries before round `round_num`, counted from 1."""
    if self._batteries is None or round_num < self._next_round:
      rng = rng_lib.generator(self.population.seed, 'battery', 0)
      self._next_round, self._batteries = 1, self._dynamics.start(rng, self.population.num_clients)
    while self._next_round < round_num:
      cohort = self._cohort(self._next_round, self._batteries)
      rng = rng_lib.generator(self.population.seed, 'battery', self._next_round)
      self._batteries = self._dynamics.after(rng, self._batteries, cohort)
      self._next_round += 1
    return self._batteries

  def _cohort(self, round_num, batteries):
    rates, size = self._dynamics.rates(batteries), self.population.cohort_size
    rng = self.population.round_rng(round_num)
    if size is None:
      return np.flatnonzero(rng.random(self.population.num_clients) < rates)
    able = np.flatnonzero(rates > 0)
    return able[weighted_without_replacement(rng, rates[able], min(size, len(able)))]


PARTICIPATION_MODELS: dict[str, type[ParticipationChoice]] = {
  'uniform': Uniform,
  'full': Full,
  'bernoulli': Bernoulli,
  'beta': Beta,
  'beta_bernoulli': BetaBernoulli,
  'extreme_imbalance': ExtremeImbalance,
  'hybrid': Hybrid,
  'hybrid_reference': HybridReference,
  'markov': Markov,
  'flpadpm': FlPadpm,
  'client_selection': ClientSelection,
  # An interpretation: the November 2025 document asks for it and gives no equations.
  'energy': Energy,
}


def make(
  spec: str, num_clients: int, cohort_size: Optional[int], seed: int, dropout: Optional[Any] = None
) -> ParticipationModel:
  """The participation model that `spec` names, over clients 0 to `num_clients` - 1.

  Args:
    spec: E.g. `uniform`, `bernoulli:q=0.3`, `beta:a=2,b=5`; see `PARTICIPATION_MODELS`.
    num_clients: N.
    cohort_size: M; `None` is enough for models of random size (`bernoulli`, `beta_bernoulli`, `extreme_imbalance`,
      `full`, `markov`, `energy`).
    seed: Non-negative; cohorts are a pure function of it and the round number.
    dropout: Who drops out, a `data.dropouts.DropoutModel`, for models that learn from that. None if nobody does.

  Raises:
    ValueError: For an unknown name, a value out of range, or a cohort larger than the population.
  """
  choice = registry.parse_spec('participation model', spec, PARTICIPATION_MODELS)
  return choice.over(Population(num_clients=num_clients, cohort_size=cohort_size, seed=seed, dropout=dropout))


def few_weighted_without_replacement(
  rng: np.random.Generator, weights: np.ndarray, cumulative: np.ndarray, size: int
) -> np.ndarray:
  """The draw of `weighted_without_replacement`, with time in proportion to `size` instead of the population.

  Draws with replacement, one after the other, and leaves out who was drawn before: given that it is somebody else, a
  draw has probability in proportion to the weights among those left. If nearly all weight is that of a few clients,
  repetitions take over, and the rest is drawn from those left as by `weighted_without_replacement`.

  Args:
    rng: Where the numbers come from.
    weights: float64[N], at least 0, not all 0.
    cumulative: float64[N], the sums of the first weights.
    size: How many to draw, at most N.
  """
  drawn, total = {}, cumulative[-1]
  for _ in range(_MOST_BATCHES):
    # A dict keeps the order of the first draws. Rounding must not lead past the last client of positive weight.
    points = np.minimum(rng.random(2 * size) * total, np.nextafter(total, 0))
    drawn.update(dict.fromkeys(np.searchsorted(cumulative, points, side='right').tolist()))
    if len(drawn) >= size:
      return np.fromiter(itertools.islice(drawn, size), np.int64, size)
  drawn = np.fromiter(drawn, np.int64, len(drawn))
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
