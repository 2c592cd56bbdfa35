"""A method under attack: its real learning process, traced once, and run for many shadow models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow_federated as tff

from experiments.attacking import worlds as worlds_lib
from experiments.running import setup
from quap_tff import methods
from quap_tff.training import evaluation

NOMINAL, REAL = 'nominal', 'real'


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


class Account(NamedTuple):
  """The privacy loss of each client if it is a member, by the schedule.

  Attributes:
    nominal: float64[N], the sums of the documents' budgets, or None.
    real: float64[N], the proven ε at the δ of the settings, or None where the released model has no finite ε.
  """

  nominal: Optional[np.ndarray]
  real: Optional[np.ndarray]


def experiment_of(variant: Variant, flags: Mapping[str, Any]) -> setup.Experiment:
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
  own = dict(algorithm=variant.spec, epsilon=variant.epsilon, calibration=variant.calibration)
  found = setup.from_flags({**flags, **own, 'server_optimizer': f'sgd:learning_rate={rate}'})
  if found.plan.holds_noise:
    raise ValueError(
      f'{variant.spec}: where clients hold the noise, those that stay away take theirs with them, and models of '
      'members alone would have less of it. experiments.audit measures what such a run gives away.'
    )
  return found


def account_of(experiment: setup.Experiment, process: Any, pool: worlds_lib.Pool) -> Account:
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
  return Account(report.nominal_epsilon, report.formal.epsilon if plan.protection.model_protected else None)


def planned_epsilon(experiment: setup.Experiment, schedule: Sequence[np.ndarray]) -> float:
  """The proven ε of the client that spends most, from the schedule alone."""
  plan = experiment.plan
  return float(plan.report(plan.planned_ledger(schedule)).formal.epsilon.max())


def train(
  process: tff.learning.templates.LearningProcess, pool: worlds_lib.Pool, worlds: worlds_lib.Worlds, model: int
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


def outputs_of(experiment: setup.Experiment, process: Any, pool: worlds_lib.Pool, worlds: worlds_lib.Worlds) -> Outputs:
  """Trains every model of the worlds, and asks each for its outputs."""
  found, hits, diverged = [], [], []
  test, logits_of = experiment.federation.test, evaluation.build_logits(experiment.model_fn)
  for model in range(len(worlds.attends)):
    weights = train(process, pool, worlds, model)
    logits = logits_of(weights, pool.x[worlds.rows])
    diverged.append(not np.isfinite(logits).all())
    found.append(np.nan_to_num(np.clip(logits, -1e4, 1e4)))
    hits.append(np.mean(np.argmax(logits_of(weights, test.x), axis=-1) == test.y))
  return Outputs(np.stack(found), float(np.mean(hits)), float(np.mean(diverged)))
