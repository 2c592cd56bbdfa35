"""The worlds of a membership game: the clients and examples of each shadow model, drawn anew for each of them."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np

import data
from data import rng as rng_lib
from experiments.running import training

GROUPS = ('rare', 'middle', 'frequent')
LEVELS = ('client', 'example')

# Each unit must be in this many models and out of as many, so that leaving one model out leaves shadow models of both
# kinds. The coins of a unit for which that fails are thrown again.
_MODELS_A_SIDE = 2


class Pool:
  """Every client that may be a member, with their examples and the public schedule.

  Attributes:
    clients: The examples of each client.
    schedule: int64[M_t] for each round: who is asked to take part if they are members.
    x, y: All clients' examples, one client after the other.
    owners: int64[n], the client of each example.
    counts: int64[N], in how many rounds each client is asked to take part.
    groups: int64[N], index into `GROUPS`: thirds of the clients by `counts`; ties are ordered by id.
  """

  def __init__(self, clients: Sequence[data.Examples], schedule: Sequence[np.ndarray]):
    self.clients, self.schedule = tuple(clients), [np.asarray(cohort, np.int64) for cohort in schedule]
    self.x = np.concatenate([client.x for client in self.clients])
    self.y = np.concatenate([client.y for client in self.clients])
    self.owners = np.repeat(np.arange(len(self.clients)), [len(client) for client in self.clients])
    self.counts = np.bincount(np.concatenate(self.schedule), minlength=len(self.clients))
    order = np.argsort(self.counts, kind='stable')
    self.groups = np.empty(len(self.clients), np.int64)
    for group, of_group in enumerate(np.array_split(order, len(GROUPS))):
      self.groups[of_group] = group
    self._data: dict[tuple[int, bytes], Any] = {}

  def data_of(self, client: int, uses: np.ndarray) -> Any:
    """The client's data for the learning process, with the examples that bool[n] marks."""
    chosen = uses[self.owners == client]
    key = client, chosen.tobytes()
    if key not in self._data:
      examples = self.clients[client]
      kept = data.Examples(examples.x[chosen], examples.y[chosen])
      self._data[key] = training.as_client_data(client, kept)
    return self._data[key]


def few_examples(clients: Sequence[data.Examples], at_most: int, seed: int) -> list[data.Examples]:
  """Each client with at most `at_most` of its examples, drawn at random."""
  kept = []
  for index, client in enumerate(clients):
    rows = rng_lib.generator(seed, 'few_examples', index).permutation(len(client))[:at_most]
    kept.append(data.Examples(client.x[rows], client.y[rows]))
  return kept


@dataclasses.dataclass(frozen=True, eq=False)
class Worlds:
  """The data that each model is trained on, and the clients or examples that an attack asks about.

  Attributes:
    level: One of `LEVELS`.
    attends: bool[models, N], which clients take part at all.
    uses: bool[models, n], which examples are trained on, if their client attends.
    rows: int64[k], the examples that an attack sees a model's outputs on.
    units: int64[k], the unit of each of them.
    clients: int64[units], the client of each unit.
    members: bool[models, units].
  """

  level: str
  attends: np.ndarray
  uses: np.ndarray
  rows: np.ndarray
  units: np.ndarray
  clients: np.ndarray
  members: np.ndarray


def draw(level: str, pool: Pool, models: int, seed: int) -> Worlds:
  """Draws the worlds of a level.

  Client level: each client is a member of each model by its own fair coin, and is used with all of its examples. A
  client that is not a member stays away from the rounds to which the schedule asks it.

  Example level: one half of the clients, the same for all models, takes part: every second client in the order of their
  counts, so that the groups keep their shares. Each example of theirs is a member by its own fair coin.
  """
  rng = rng_lib.generator(seed, f'{level}_worlds')
  if level == 'client':
    attends = _coins(rng, models, len(pool.clients))
    rows = np.arange(len(pool.owners))
    return Worlds(
      level, attends, np.ones((models, len(rows)), bool), rows, pool.owners, np.arange(len(pool.clients)), attends
    )
  chosen = np.zeros(len(pool.clients), bool)
  chosen[np.lexsort((pool.counts, pool.groups))[::2]] = True
  rows = np.flatnonzero(chosen[pool.owners])
  members = _coins(rng, models, len(rows))
  uses = np.zeros((models, len(pool.owners)), bool)
  uses[:, rows] = members
  attends = np.broadcast_to(chosen, (models, len(chosen)))
  return Worlds(level, attends, uses, rows, np.arange(len(rows)), pool.owners[rows], members)


def _coins(rng, models, units):
  """bool[models, units], fair coins, of which each unit shows both sides at least `_MODELS_A_SIDE` times."""
  coins = rng.random((models, units)) < 0.5
  while (again := np.abs(2 * coins.sum(axis=0) - models) > models - 2 * _MODELS_A_SIDE).any():
    coins[:, again] = rng.random((models, int(again.sum()))) < 0.5
  return coins
