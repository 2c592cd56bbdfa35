"""Participation that does not depend on earlier rounds: by equal chances, by rates, by weights."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from quap_tff.cohorts import base
from quap_tff.common import checks
from quap_tff.common.numbers import samplers

# A parameter of a Beta distribution. Smaller ones give weights that float64 rounds to exactly 0 or 1.
_shape = functools.partial(checks.number_field, at_least=0.01, at_most=1e6)
_share = functools.partial(checks.number_field, at_least=0, at_most=1)


@dataclasses.dataclass(frozen=True)
class Uniform(base.ParticipationChoice):
  """Every set of `cohort_size` clients is equally likely."""

  title = 'uniform'

  def over(self, population: base.Population) -> base.ParticipationModel:
    return base.fixed_size(population)


@dataclasses.dataclass(frozen=True)
class Separated(base.ParticipationChoice):
  """Cohorts of fixed size in which a client comes at most every `min_separation` rounds.

  The seed divides the clients into b = `min_separation` groups, whose sizes differ by at most 1. The cohort of round t
  is a uniformly random set of `cohort_size` clients of group t mod b. So two rounds of a client are a multiple of b
  apart, everyone may come, and a cohort does not depend on the cohorts before it. The groups are those of "cyclic"
  sampling in Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization". A draw from all clients that have
  not come for b rounds would need as many clients, and for each round the rounds before it.

  Attributes:
    min_separation: b, at least 1. There must be b·cohort_size clients.
  """

  title = '{min_separation} rounds apart'

  min_separation: int = checks.integer_field('separated min_separation', 3, at_least=1)

  def over(self, population: base.Population) -> base.ParticipationModel:
    size, total, apart = population.required_cohort_size(), population.num_clients, self.min_separation
    if size * apart > total:
      raise ValueError(
        f'min_separation={apart} with cohort_size={size} needs at least {size * apart:,} clients, because no client of '
        f'{apart} successive cohorts may come twice, and there are {total:,}. Use a min_separation of at most '
        f'{total // size:,}, smaller cohorts, or more clients.'
      )
    groups = np.array_split(population.client_rng().permutation(total), apart)

    def draw(round_num: int) -> np.ndarray:
      group = groups[round_num % apart]
      return group[population.round_rng(round_num).choice(len(group), size, replace=False, shuffle=False)]

    return base.ParticipationModel(
      population,
      draw,
      sampler=samplers.CohortSampler(reason='amplification of cohorts that keep a separation is not counted here'),
      mean_cohort_size=float(size),
      min_separation=apart,
    )


@dataclasses.dataclass(frozen=True)
class Full(base.ParticipationChoice):
  """All clients take part in every round."""

  title = 'everybody in each round'
  ignores_cohort_size = True

  def over(self, population: base.Population) -> base.ParticipationModel:
    return base.ParticipationModel(
      population,
      lambda round_num: np.arange(population.num_clients),
      sampler=samplers.CohortSampler(reason='everyone takes part in every round'),
      mean_cohort_size=float(population.num_clients),
    )


@dataclasses.dataclass(frozen=True)
class Bernoulli(base.ParticipationChoice):
  """Each client joins each round with probability q.

  Attributes:
    q: The rate of every client, in (0, 1].
  """

  title = 'coins of {q}'
  ignores_cohort_size = True

  q: float = checks.number_field('bernoulli q', 0.3, above=0, at_most=1)

  def over(self, population: base.Population) -> base.ParticipationModel:
    return base.independent(population, np.full(population.num_clients, self.q))


@dataclasses.dataclass(frozen=True)
class Beta(base.ParticipationChoice):
  """Cohorts of fixed size, drawn with weights w_i ~ Beta(a, b) that are drawn once for each client.

  Attributes:
    a, b: The parameters of the Beta distribution, in [0.01, 1e6].
  """

  title = 'Beta({a},{b})'

  a: float = _shape('beta a', 2.0)
  b: float = _shape('beta b', 5.0)

  def over(self, population: base.Population) -> base.ParticipationModel:
    return base.weighted(population, population.beta_weights(self.a, self.b))


@dataclasses.dataclass(frozen=True)
class BetaBernoulli(base.ParticipationChoice):
  """Each client joins with its own rate q_i ~ Beta(a, b), drawn once.

  Attributes:
    a, b: The parameters of the Beta distribution, in [0.01, 1e6].
  """

  title = 'Beta({a},{b}) by coins'
  ignores_cohort_size = True

  a: float = _shape('beta_bernoulli a', 2.0)
  b: float = _shape('beta_bernoulli b', 5.0)

  def over(self, population: base.Population) -> base.ParticipationModel:
    return base.independent(population, population.beta_weights(self.a, self.b))


@dataclasses.dataclass(frozen=True)
class ExtremeImbalance(base.ParticipationChoice):
  """A few clients join most rounds, the others join rarely.

  The seed decides once which clients are frequent, so an id says nothing about it.

  Attributes:
    frequent_fraction: The share of frequent clients, in [0, 1]; their number is rounded to the nearest integer.
    frequent_rate: Their rate, in [0, 1].
    rare_rate: The others' rate, in [0, 1].
  """

  title = 'extreme imbalance'
  ignores_cohort_size = True

  frequent_fraction: float = _share('extreme_imbalance frequent_fraction', 0.2)
  frequent_rate: float = _share('extreme_imbalance frequent_rate', 0.8)
  rare_rate: float = _share('extreme_imbalance rare_rate', 0.1)

  def over(self, population: base.Population) -> base.ParticipationModel:
    frequent = round(self.frequent_fraction * population.num_clients)
    rates = np.full(population.num_clients, self.rare_rate)
    rates[population.client_rng().permutation(population.num_clients)[:frequent]] = self.frequent_rate
    return base.independent(population, rates)


@dataclasses.dataclass(frozen=True)
class Hybrid(base.ParticipationChoice):
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

  gamma: float = _share('hybrid gamma', 0.8)
  a: float = _shape('hybrid a', 2.0)
  b: float = _shape('hybrid b', 5.0)
  id_decay: float = checks.number_field('hybrid id_decay', 0.01, at_least=0)
  normalize: bool = False

  def weights(self, population: base.Population) -> tuple[np.ndarray, np.ndarray]:
    """The weights float64[N] in odd and in even rounds."""
    drawn = population.beta_weights(self.a, self.b)
    if self.normalize:
      drawn = drawn / drawn.sum()
    odd = (1 - self.gamma) * drawn + self.gamma / population.num_clients
    return odd, odd * np.exp(-self.id_decay * np.arange(population.num_clients))

  def over(self, population: base.Population) -> base.ParticipationModel:
    return base.weighted(population, *self.weights(population))


@dataclasses.dataclass(frozen=True)
class HybridReference(base.ParticipationChoice):
  """The reference program's reading of `Hybrid`: round(gamma * M) drawn uniformly, the rest by Beta weights.

  Attributes:
    gamma: The part of the cohort that is drawn uniformly, in [0, 1].
    a, b: The parameters of the Beta distribution, in [0.01, 1e6].
  """

  gamma: float = _share('hybrid_reference gamma', 0.8)
  a: float = _shape('hybrid_reference a', 2.0)
  b: float = _shape('hybrid_reference b', 5.0)

  def over(self, population: base.Population) -> base.ParticipationModel:
    size, total = population.required_cohort_size(), population.num_clients
    num_uniform, weights = round(self.gamma * size), population.beta_weights(self.a, self.b)

    def draw(round_num: int) -> np.ndarray:
      rng = population.round_rng(round_num)
      uniform = rng.choice(total, num_uniform, replace=False, shuffle=False)
      left = np.setdiff1d(np.arange(total), uniform, assume_unique=True)
      return np.concatenate([uniform, left[base.weighted_without_replacement(rng, weights[left], size - num_uniform)]])

    return base.ParticipationModel(population, draw, mean_cohort_size=float(size))
