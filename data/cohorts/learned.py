"""Participation that learns from earlier rounds: which clients were drawn, and which dropped out. Both are public."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, NamedTuple

import numpy as np

from data.cohorts import base
from quap_tff.common import checks


class _Learning(base.ParticipationChoice):
  """A choice with a state that each round's cohort and dropouts change. Its functions are pure."""

  learns_from_dropout = True

  @abc.abstractmethod
  def start(self, population: base.Population) -> Any:
    """The state before round 1."""

  @abc.abstractmethod
  def select(self, state: Any, population: base.Population, rng: np.random.Generator) -> np.ndarray:
    """The cohort, distinct ids in any order, by the state."""

  @abc.abstractmethod
  def learned(self, state: Any, cohort: np.ndarray, failed: np.ndarray) -> Any:
    """The state after a round: who was drawn, int64[M] sorted, and which of these dropped out, bool[M]."""

  def over(self, population: base.Population) -> base.ParticipationModel:
    population.required_cohort_size()
    if population.dropout is None:
      raise ValueError(
        'This participation model learns from clients that drop out, and with --dropout=none nobody does. Give a '
        '--dropout, such as markov, or choose another --participation.'
      )

    def cohort(round_num, state):
      return np.sort(self.select(state, population, population.round_rng(round_num)))

    def step(round_num, state):
      if state is None:
        return self.start(population)
      drawn = cohort(round_num - 1, state)
      return self.learned(state, drawn, population.dropout.fails(round_num - 1)[drawn])

    chain = base.Chain(step)
    return base.ParticipationModel(population, lambda round_num: cohort(round_num, chain.at(round_num)))


class Patterns(NamedTuple):
  """What `FlPadpm` knows before a round.

  Attributes:
    of_clients: int64[N], each client's pattern: a number in base 3 with a digit for each of its last invitations, the
      latest last: 0 for no invitation yet, 1 for an arrival, 2 for a drop.
    invited, dropped: float64[3^length], the invitations and the drops after each pattern.
  """

  of_clients: np.ndarray
  invited: np.ndarray
  dropped: np.ndarray


@dataclasses.dataclass(frozen=True)
class FlPadpm(_Learning):
  """An interpretation of FLPADPM: as many clients are invited as it takes, by their patterns of dropout.

  The paper (Zhang et al., Mathematics 11(24):4977, 2023) predicts which students drop out of a course, with a network
  that is trained by federated averaging. It does not predict clients. The documents name it for predicting dropout from
  patterns. The smallest reading of that for clients: a client's pattern is the outcome of each of its last `length`
  invitations, and

      p(drop | pattern) = (r·strength + drops after the pattern)/(strength + invitations after the pattern)

  counted over all clients, with r the share of all invitations that were dropped (after one drop and nine arrivals that
  are made up). Clients are invited in random order until Σ(1 - p) is at least `cohort_size`.

  Attributes:
    length: How many invitations a pattern has, 1 to 8.
    strength: The weight of the common rate, above 0.
  """

  length: int = checks.integer_field('flpadpm length', 3, at_least=1, at_most=8)
  strength: float = checks.number_field('flpadpm strength', 5.0, above=0)

  def start(self, population: base.Population) -> Patterns:
    return Patterns(np.zeros(population.num_clients, np.int64), *np.zeros([2, 3**self.length]))

  def predicted(self, state: Patterns) -> np.ndarray:
    """float64[N], each client's predicted probability to drop out of the next round."""
    common = (state.dropped.sum() + 1) / (state.invited.sum() + 10)
    return ((common * self.strength + state.dropped) / (self.strength + state.invited))[state.of_clients]

  def select(self, state: Patterns, population: base.Population, rng: np.random.Generator) -> np.ndarray:
    order = rng.permutation(population.num_clients)
    expected = np.cumsum(1 - self.predicted(state)[order])
    # A rounding error must not cost an invitation.
    return order[: np.searchsorted(expected, population.required_cohort_size() - 1e-9) + 1]

  def learned(self, state: Patterns, cohort: np.ndarray, failed: np.ndarray) -> Patterns:
    patterns, count = state.of_clients.copy(), 3**self.length
    before = patterns[cohort]
    patterns[cohort] = (3 * before + 1 + failed) % count
    invited, dropped = np.bincount(before, minlength=count), np.bincount(before, failed, count)
    return Patterns(patterns, state.invited + invited, state.dropped + dropped)


class Record(NamedTuple):
  """What `ClientSelection` knows before a round: float64[N] each.

  Attributes:
    speed: How fast each client is, in [0, 1]; drawn once.
    invited, arrived: How often each client was drawn, and how often its update arrived.
  """

  speed: np.ndarray
  invited: np.ndarray
  arrived: np.ndarray


@dataclasses.dataclass(frozen=True)
class ClientSelection(_Learning):
  """An interpretation of Marfo et al. 2025 (arXiv:2502.00036): the clients of the greatest utility, and as many as fit.

  The paper selects the top K clients by utility, and adapts K to performance and to constraints of the system. Utility
  by loss would be an exact function of data. Here it follows from public facts:

      u_i = share·(arrivals + 1)/(invitations + 2) + (1 - share)·speed_i,    speed_i ~ Beta(2, 5), drawn once
      K = M/(share of all invitations that arrived), rounded up

  A part `explore` of the K clients is drawn uniformly from the others. Otherwise most clients would never be in it. The
  paper's noise is the mechanism's, and its checkpoints are those of every run.

  Attributes:
    share: The weight of reliability, in [0, 1].
    explore: The share of the clients that is drawn at random, in [0, 1].
  """

  share: float = checks.number_field('client_selection share', 0.5, at_least=0, at_most=1)
  explore: float = checks.number_field('client_selection explore', 0.3, at_least=0, at_most=1)

  def start(self, population: base.Population) -> Record:
    return Record(population.beta_weights(2.0, 5.0), *np.zeros([2, population.num_clients]))

  def utility(self, state: Record) -> np.ndarray:
    """float64[N], u_i for the next round."""
    return self.share * (state.arrived + 1) / (state.invited + 2) + (1 - self.share) * state.speed

  def select(self, state: Record, population: base.Population, rng: np.random.Generator) -> np.ndarray:
    arrival_rate = (state.arrived.sum() + 1) / (state.invited.sum() + 1)
    size = min(population.num_clients, int(np.ceil(population.required_cohort_size() / arrival_rate - 1e-9)))
    num_best = size - round(self.explore * size)
    order = np.argsort(-self.utility(state), kind='stable')
    return np.concatenate([order[:num_best], rng.choice(order[num_best:], size - num_best, replace=False)])

  def learned(self, state: Record, cohort: np.ndarray, failed: np.ndarray) -> Record:
    invited, arrived = state.invited.copy(), state.arrived.copy()
    invited[cohort] += 1
    arrived[cohort] += ~failed
    return Record(state.speed, invited, arrived)
