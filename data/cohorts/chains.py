"""Participation that follows a state of each client from round to round: presence, or the charge of a battery."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from data import rng as rng_lib
from data.cohorts import base
from quap_tff.common import checks


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
    def step(round_num, present):
      coins = rng_lib.generator(population.seed, 'availability', round_num).random(population.num_clients)
      return base.switched(coins, present, self.arrive, self.leave)

    chain, size = base.Chain(step), population.cohort_size

    def draw(round_num):
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
    return Batteries(charge, base.switched(rng.random(num_clients), None, self.plug, self.unplug))

  def rates(self, batteries: Batteries) -> np.ndarray:
    """q_i(t), float64[N] in [0, 1]."""
    free = np.maximum(0.0, (batteries.charge - self.reserve) / (1 - self.reserve))
    return np.where(batteries.plugged, 1.0, free)

  def after(self, rng: np.random.Generator, batteries: Batteries, cohort: np.ndarray) -> Batteries:
    """The batteries after a round in which `cohort`, distinct ids, took part."""
    change = np.where(batteries.plugged, self.charge, -self.idle)
    change[cohort] -= self.train
    plugged = base.switched(rng.random(len(change)), batteries.plugged, self.plug, self.unplug)
    return Batteries(np.clip(batteries.charge + change, 0.0, 1.0), plugged)

  def drawn(self, population: base.Population, round_num: int, batteries: Batteries) -> np.ndarray:
    """The cohort of a round, distinct ids, by the batteries before it."""
    rates, rng = self.rates(batteries), population.round_rng(round_num)
    if population.cohort_size is None:
      return np.flatnonzero(rng.random(population.num_clients) < rates)
    able = np.flatnonzero(rates > 0)
    return able[base.weighted_without_replacement(rng, rates[able], min(population.cohort_size, len(able)))]

  def over(self, population: base.Population) -> base.ParticipationModel:
    def step(round_num, batteries):
      rng = rng_lib.generator(population.seed, 'battery', round_num - 1)
      if batteries is None:
        return self.start(rng, population.num_clients)
      return self.after(rng, batteries, self.drawn(population, round_num - 1, batteries))

    chain = base.Chain(step)
    return base.ParticipationModel(population, lambda round_num: self.drawn(population, round_num, chain.at(round_num)))
