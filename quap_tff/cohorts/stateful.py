"""Participation that follows from earlier rounds: presence, charges of batteries, clients that dropped out."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from quap_tff.cohorts import base
from quap_tff.common import checks
from quap_tff.common.numbers import rng as rng_lib

# What a chain remembers from round to round: each model's own.
ChainState = Any


class StateChain:
  """A state for each round that follows from the one before: `step(round_num, state)`, with state None for round 1.

  The last state is kept. A call for an earlier round starts again, so `step` must be a pure function.
  """

  def __init__(self, step: Callable[[int, Optional[ChainState]], ChainState]):
    self._step, self._round_num, self._state = step, 0, None

  def at(self, round_num: int) -> ChainState:
    """The state in round `round_num`, counted from 1."""
    if round_num < self._round_num:
      self._round_num, self._state = 0, None
    while self._round_num < round_num:
      self._round_num += 1
      self._state = self._step(self._round_num, self._state)
    return self._state


def switched(coins: np.ndarray, before: Optional[np.ndarray], on: float, off: float) -> np.ndarray:
  """bool[N], the next state of two-state chains.

  Args:
    coins: float64[N], uniform in [0, 1).
    before: bool[N], or None for a draw from the stationary state.
    on, off: The probabilities of a change from False to True, and from True to False.
  """
  return coins < on / (on + off) if before is None else np.where(before, coins >= off, coins < on)


@dataclasses.dataclass(frozen=True)
class Markov(base.ParticipationChoice):
  """Clients come and go; a round takes up to `cohort_size` of those that are present.

  Each client is a two-state chain: an absent client arrives with probability `arrive` before the next round, and a
  present client leaves with probability `leave`. Round 1 starts from the stationary state, so on average
  arrive / (arrive + leave) of the clients are present in every round. If more than `cohort_size` are present, that many
  are drawn uniformly. Without a `cohort_size` all of them take part.

  Attributes:
    arrive, leave: Probabilities a round, in (0, 1].
  """

  arrive: float = checks.number_field('markov arrive', 0.1, above=0, at_most=1)
  leave: float = checks.number_field('markov leave', 0.1, above=0, at_most=1)

  def over(self, population: base.Population) -> base.ParticipationModel:
    def step(round_num: int, present: Optional[np.ndarray]) -> np.ndarray:
      coins = rng_lib.generator(population.seed, 'availability', round_num).random(population.num_clients)
      return switched(coins, present, self.arrive, self.leave)

    chain, size = StateChain(step), population.cohort_size

    def draw(round_num: int) -> np.ndarray:
      present = np.flatnonzero(chain.at(round_num))
      if size is None or len(present) <= size:
        return present
      return population.round_rng(round_num).choice(present, size, replace=False, shuffle=False)

    return base.ParticipationModel(population, draw)


class Batteries(NamedTuple):
  """All clients before a round.

  Attributes:
    charge: float64[N], b_i(t), shares of a full battery.
    plugged: bool[N], a_i(t).
  """

  charge: np.ndarray
  plugged: np.ndarray


@dataclasses.dataclass(frozen=True)
class Energy(base.ParticipationChoice):
  """Clients take part by the charge of their batteries, and by whether they are plugged in. An interpretation.

  The November 2025 document (6.3) asks for participation that follows "the state of the battery or whether it is
  charging", and gives no equations. This is the smallest model that does so. In round t client i has the charge
  b_i(t) ∈ [0, 1] of a full battery and is plugged in (a_i(t) = 1) or not (0):

      b_i(1) ~ Uniform(0, 1),   P(a_i(1) = 1) = plug/(plug + unplug)
      q_i(t) = 1                                            if a_i(t) = 1
               max(0, (b_i(t) - reserve)/(1 - reserve))     if not
      b_i(t+1) = clip(b_i(t) + charge·a_i(t) - idle·(1 - a_i(t)) - train·1[i ∈ S_t], 0, 1)
      P(a_i(t+1) = 1) = 1 - unplug if a_i(t) = 1, plug if not

  With a `cohort_size`, that many of the clients with q_i(t) > 0 are drawn one after the other with weights q_i(t), or
  all of them if there are fewer. Without one, each takes part with probability q_i(t). Taking part costs charge, so
  clients that take part often become less likely to, unless they are plugged in.

  Attributes:
    charge: The gain of a plugged battery in a round, in [0, 1].
    idle: The loss of an unplugged battery in a round, in [0, 1].
    train: The cost of taking part in a round, in [0, 1].
    reserve: The charge at or below which an unplugged client never takes part, in [0, 1).
    plug, unplug: Probabilities a round, in (0, 1].
  """

  charge: float = checks.number_field('energy charge', 0.2, at_least=0, at_most=1)
  idle: float = checks.number_field('energy idle', 0.02, at_least=0, at_most=1)
  train: float = checks.number_field('energy train', 0.1, at_least=0, at_most=1)
  reserve: float = checks.number_field('energy reserve', 0.2, at_least=0, below=1)
  plug: float = checks.number_field('energy plug', 0.1, above=0, at_most=1)
  unplug: float = checks.number_field('energy unplug', 0.2, above=0, at_most=1)

  def start(self, rng: np.random.Generator, num_clients: int) -> Batteries:
    """The batteries before round 1."""
    charge = rng.random(num_clients)
    return Batteries(charge, switched(rng.random(num_clients), None, self.plug, self.unplug))

  def rates(self, batteries: Batteries) -> np.ndarray:
    """q_i(t), float64[N] in [0, 1]."""
    free = np.maximum(0.0, (batteries.charge - self.reserve) / (1 - self.reserve))
    return np.where(batteries.plugged, 1.0, free)

  def after(self, rng: np.random.Generator, batteries: Batteries, cohort: np.ndarray) -> Batteries:
    """The batteries after a round in which `cohort`, distinct ids, took part."""
    change = np.where(batteries.plugged, self.charge, -self.idle)
    change[cohort] -= self.train
    plugged = switched(rng.random(len(change)), batteries.plugged, self.plug, self.unplug)
    return Batteries(np.clip(batteries.charge + change, 0.0, 1.0), plugged)

  def drawn(self, population: base.Population, round_num: int, batteries: Batteries) -> np.ndarray:
    """The cohort of a round, distinct ids, by the batteries before it."""
    rates, rng = self.rates(batteries), population.round_rng(round_num)
    if population.cohort_size is None:
      return np.flatnonzero(rng.random(population.num_clients) < rates)
    able = np.flatnonzero(rates > 0)
    return able[base.weighted_without_replacement(rng, rates[able], min(population.cohort_size, len(able)))]

  def over(self, population: base.Population) -> base.ParticipationModel:
    def step(round_num: int, batteries: Optional[Batteries]) -> Batteries:
      rng = rng_lib.generator(population.seed, 'battery', round_num - 1)
      if batteries is None:
        return self.start(rng, population.num_clients)
      return self.after(rng, batteries, self.drawn(population, round_num - 1, batteries))

    chain = StateChain(step)
    return base.ParticipationModel(population, lambda round_num: self.drawn(population, round_num, chain.at(round_num)))


class _Learning(base.ParticipationChoice):
  """A choice with a state that each round's cohort and dropouts, which are public, change. Its functions are pure."""

  learns_from_dropout = True

  @abc.abstractmethod
  def start(self, population: base.Population) -> ChainState:
    """The state before round 1."""

  @abc.abstractmethod
  def select(self, state: ChainState, population: base.Population, rng: np.random.Generator) -> np.ndarray:
    """The cohort, distinct ids in any order, by the state."""

  @abc.abstractmethod
  def learned(self, state: ChainState, cohort: np.ndarray, failed: np.ndarray) -> ChainState:
    """The state after a round: who was drawn, int64[M] sorted, and which of these dropped out, bool[M]."""

  def over(self, population: base.Population) -> base.ParticipationModel:
    population.required_cohort_size()
    dropout = population.dropout
    if dropout is None:
      raise ValueError(
        'This participation model learns from clients that drop out, and with --dropout=none nobody does. Give a '
        '--dropout, such as markov, or choose another --participation.'
      )

    def cohort(round_num: int, state: ChainState) -> np.ndarray:
      return np.sort(self.select(state, population, population.round_rng(round_num)))

    def step(round_num: int, state: ChainState) -> ChainState:
      if state is None:
        return self.start(population)
      drawn = cohort(round_num - 1, state)
      return self.learned(state, drawn, dropout.fails(round_num - 1)[drawn])

    chain = StateChain(step)
    return base.ParticipationModel(population, lambda round_num: cohort(round_num, chain.at(round_num)))


class Patterns(NamedTuple):
  """The state of `FlPadpm` before a round.

  Attributes:
    client_patterns: int64[N], each client's pattern: a number in base 3 with a digit for each of its last invitations,
      the latest last: 0 for no invitation yet, 1 for an arrival, 2 for a drop.
    invited, dropped: float64[3^length], the invitations and the drops after each pattern.
  """

  client_patterns: np.ndarray
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
    return ((common * self.strength + state.dropped) / (self.strength + state.invited))[state.client_patterns]

  def select(self, state: Patterns, population: base.Population, rng: np.random.Generator) -> np.ndarray:
    order = rng.permutation(population.num_clients)
    expected = np.cumsum(1 - self.predicted(state)[order])
    # A rounding error must not cost an invitation.
    return order[: np.searchsorted(expected, population.required_cohort_size() - 1e-9) + 1]

  def learned(self, state: Patterns, cohort: np.ndarray, failed: np.ndarray) -> Patterns:
    patterns, count = state.client_patterns.copy(), 3**self.length
    before = patterns[cohort]
    patterns[cohort] = (3 * before + 1 + failed) % count
    invited, dropped = np.bincount(before, minlength=count), np.bincount(before, failed, count)
    return Patterns(patterns, state.invited + invited, state.dropped + dropped)


class SelectionRecord(NamedTuple):
  """The state of `ClientSelection` before a round: float64[N] each.

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

  def start(self, population: base.Population) -> SelectionRecord:
    return SelectionRecord(population.beta_weights(2.0, 5.0), *np.zeros([2, population.num_clients]))

  def utility(self, state: SelectionRecord) -> np.ndarray:
    """float64[N], u_i for the next round."""
    return self.share * (state.arrived + 1) / (state.invited + 2) + (1 - self.share) * state.speed

  def select(self, state: SelectionRecord, population: base.Population, rng: np.random.Generator) -> np.ndarray:
    arrival_rate = (state.arrived.sum() + 1) / (state.invited.sum() + 1)
    size = min(population.num_clients, int(np.ceil(population.required_cohort_size() / arrival_rate - 1e-9)))
    num_best = size - round(self.explore * size)
    order = np.argsort(-self.utility(state), kind='stable')
    return np.concatenate([order[:num_best], rng.choice(order[num_best:], size - num_best, replace=False)])

  def learned(self, state: SelectionRecord, cohort: np.ndarray, failed: np.ndarray) -> SelectionRecord:
    invited, arrived = state.invited.copy(), state.arrived.copy()
    invited[cohort] += 1
    arrived[cohort] += ~failed
    return SelectionRecord(state.speed, invited, arrived)
