"""Shadow models: a method's real learning process, traced once and run in many worlds, each with members of its own."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import NamedTuple, Optional

import numpy as np
import tensorflow_federated as tff

import data
from experiments.running import loop
from experiments.running import setup
from quap_tff import methods
from quap_tff.common import json_types
from quap_tff.common.numbers import rng as rng_lib
from quap_tff.plans import built_process
from quap_tff.training import evaluation

NOMINAL, REAL = 'nominal', 'real'
GROUPS = ('rare', 'middle', 'frequent')
LEVELS = ('client', 'example')

# Each unit must be in this many models and out of as many, so that leaving one model out leaves shadow models of both
# kinds. The coins of a unit for which that fails are thrown again.
_MODELS_A_SIDE = 2


class MemberPool:
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
    self._data: dict[tuple[int, bytes], built_process.ClientData] = {}

  def data_of(self, client: int, uses: np.ndarray) -> built_process.ClientData:
    """The client's data for the learning process, with the examples that bool[n] marks."""
    chosen = uses[self.owners == client]
    key = client, chosen.tobytes()
    if key not in self._data:
      examples = self.clients[client]
      kept = data.Examples(examples.x[chosen], examples.y[chosen])
      self._data[key] = built_process.client_data(client, loop.element(kept))
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


def draw_worlds(level: str, pool: MemberPool, models: int, seed: int) -> Worlds:
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


def _coins(rng: np.random.Generator, models: int, units: int) -> np.ndarray:
  """bool[models, units], fair coins, of which each unit shows both sides at least `_MODELS_A_SIDE` times."""
  coins = rng.random((models, units)) < 0.5
  while (again := np.abs(2 * coins.sum(axis=0) - models) > models - 2 * _MODELS_A_SIDE).any():
    coins[:, again] = rng.random((models, int(again.sum()))) < 0.5
  return coins


class Variant(NamedTuple):
  """A method with its noise.

  Attributes:
    spec: The spec of --algorithm.
    epsilon: --epsilon, the budget that the noise is chosen for.
    calibration: --calibration.
    compared_at: The comparisons that it is part of: at the same nominal ε, at the same real ε, or both.
  """

  spec: str
  epsilon: float
  calibration: str
  compared_at: tuple[str, ...]


class MembershipAccount(NamedTuple):
  """The privacy loss of each client if it is a member, by the schedule.

  Attributes:
    nominal: float64[N], the sums of the documents' budgets, or None.
    real: float64[N], the proven ε at the δ of the settings, or None where the released model has no finite ε.
  """

  nominal: Optional[np.ndarray]
  real: Optional[np.ndarray]


def experiment_of(variant: Variant, flags: json_types.JsonView) -> setup.Experiment:
  """The experiment of a variant.

  Half of the planned clients are members. Where a sum is divided by the planned number, steps would be half as long as
  with other methods, so the server's learning rate is 2 there. That is post-processing of noised sums: it changes
  no account.

  Args:
    variant: The method and its noise.
    flags: The other flags of `experiments.train`, by name.

  Raises:
    ValueError: If clients hold the noise.
  """
  # 2 where sums are divided by a number that is planned for all clients, of whom only the members come.
  rate = 2.0 if methods.parse(variant.spec).divides_by_planned_cohort else 1.0
  overrides = dict(algorithm=variant.spec, epsilon=variant.epsilon, calibration=variant.calibration)
  experiment = setup.from_flags({**flags, **overrides, 'server_optimizer': f'sgd:learning_rate={rate}'})
  if experiment.plan.holds_noise:
    raise ValueError(
      f'{variant.spec}: where clients hold the noise, those that stay away take theirs with them, and models of '
      'members alone would have less of it. experiments.audit measures what such a run gives away.'
    )
  return experiment


def account_of(
  experiment: setup.Experiment, process: tff.learning.templates.LearningProcess, pool: MemberPool
) -> MembershipAccount:
  """The account of every client, from one run in which all planned clients take part.

  What a client spends depends on its own rounds alone, so this is also its account where others stay away. That run
  also traces the process.
  """
  plan, state = experiment.plan, process.initialize()
  ledger = plan.new_ledger()
  everything = np.ones(len(pool.owners), bool)
  for cohort in pool.schedule:
    output = process.next(state, [pool.data_of(int(client), everything) for client in cohort])
    ledger.append(plan.record(output, cohort))
    state = output.state
  report = plan.report(ledger)
  real = report.formal.epsilon if plan.protection.model_protected else None
  return MembershipAccount(report.nominal_epsilon, real)


def planned_epsilon(experiment: setup.Experiment, schedule: Sequence[np.ndarray]) -> float:
  """The proven ε of the client that spends most, from the schedule alone."""
  plan = experiment.plan
  epsilon = plan.report(plan.planned_ledger(schedule)).formal.epsilon
  assert epsilon is not None  # Every layer of what is attacked has noise.
  return float(epsilon.max())


def train_shadow_model(
  process: tff.learning.templates.LearningProcess, pool: MemberPool, worlds: Worlds, model: int
) -> tff.learning.models.ModelWeights:
  """The released weights of one model: those after the last round."""
  state = process.initialize()
  for cohort in pool.schedule:
    members = cohort[worlds.attends[model][cohort]]
    state = process.next(state, [pool.data_of(int(client), worlds.uses[model]) for client in members]).state
  return process.get_model_weights(state)


class Outputs(NamedTuple):
  """The outputs of the released models of a method.

  Attributes:
    logits: float32[models, k, classes] on the examples that are asked about. Where a model has diverged, they are
      bounded to ±1e4, and 0 where undefined.
    test_accuracy: The mean over the models.
    diverged: The share of models with outputs that are not finite.
  """

  logits: np.ndarray
  test_accuracy: float
  diverged: float


def outputs_of(
  experiment: setup.Experiment, process: tff.learning.templates.LearningProcess, pool: MemberPool, worlds: Worlds
) -> Outputs:
  """Trains every model of the worlds, and asks each for its outputs."""
  all_logits, hits, diverged = [], [], []
  test, logits_of = experiment.federation.test, evaluation.build_logits(experiment.model_fn)
  for model in range(len(worlds.attends)):
    weights = train_shadow_model(process, pool, worlds, model)
    logits = logits_of(weights, pool.x[worlds.rows])
    diverged.append(not np.isfinite(logits).all())
    all_logits.append(np.nan_to_num(np.clip(logits, -1e4, 1e4)))
    hits.append(np.mean(np.argmax(logits_of(weights, test.x), axis=-1) == test.y))
  return Outputs(np.stack(all_logits), float(np.mean(hits)), float(np.mean(diverged)))
