"""Batteries of clients: how full they are, who is plugged in, and how likely each is to take part.

The November 2025 document (6.3) asks for participation that follows "the state of the battery or whether it is
charging", and gives no equations. This is the smallest model that does so. In round t client i has the charge
b_i(t) ∈ [0, 1] of a full battery and is plugged in (a_i(t) = 1) or not (0):

    b_i(1) ~ Uniform(0, 1),   P(a_i(1) = 1) = plug/(plug + unplug)
    q_i(t) = 1                                            if a_i(t) = 1
             max(0, (b_i(t) - reserve)/(1 - reserve))     if not
    b_i(t+1) = clip(b_i(t) + charge·a_i(t) - idle·(1 - a_i(t)) - train·1[i ∈ S_t], 0, 1)
    P(a_i(t+1) = 1) = 1 - unplug if a_i(t) = 1, plug if not

q_i(t) is what participation follows, see `data.cohorts.Energy`. Taking part costs charge, so clients that take part
often become less likely to, unless they are plugged in.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from quap_tff.common import checks


class Batteries(NamedTuple):
  """All clients before a round.

  Attributes:
    charge: float64[N], b_i(t).
    plugged: bool[N], a_i(t).
  """

  charge: np.ndarray
  plugged: np.ndarray


@dataclasses.dataclass(frozen=True)
class Dynamics:
  """How batteries change from round to round. Charges are shares of a full battery.

  Attributes:
    charge: What a plugged battery gains in a round, in [0, 1].
    idle: What a battery that is not plugged in loses in a round, in [0, 1].
    train: What taking part in a round costs, in [0, 1].
    reserve: The charge at or below which an unplugged client never takes part, in [0, 1).
    plug, unplug: Probabilities a round, in (0, 1].
  """

  charge: float = 0.2
  idle: float = 0.02
  train: float = 0.1
  reserve: float = 0.2
  plug: float = 0.1
  unplug: float = 0.2

  def __post_init__(self):
    for name in ('charge', 'idle', 'train'):
      checks.number(f'energy {name}', getattr(self, name), at_least=0, at_most=1)
    checks.number('energy reserve', self.reserve, at_least=0, below=1)
    for name in ('plug', 'unplug'):
      checks.number(f'energy {name}', getattr(self, name), above=0, at_most=1)

  def start(self, rng: np.random.Generator, num_clients: int) -> Batteries:
    """The batteries before round 1."""
    charge = rng.random(num_clients)
    return Batteries(charge, rng.random(num_clients) < self.plug / (self.plug + self.unplug))

  def rates(self, batteries: Batteries) -> np.ndarray:
    """q_i(t), float64[N] in [0, 1]."""
    free = np.maximum(0.0, (batteries.charge - self.reserve) / (1 - self.reserve))
    return np.where(batteries.plugged, 1.0, free)

  def after(self, rng: np.random.Generator, batteries: Batteries, cohort: np.ndarray) -> Batteries:
    """The batteries after a round in which `cohort`, distinct ids, took part."""
    change = np.where(batteries.plugged, self.charge, -self.idle)
    change[cohort] -= self.train
    coins = rng.random(len(change))
    plugged = np.where(batteries.plugged, coins >= self.unplug, coins < self.plug)
    return Batteries(np.clip(batteries.charge + change, 0.0, 1.0), plugged)
