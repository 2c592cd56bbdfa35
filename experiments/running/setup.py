"""Makes everything that a run needs from the flags: data, cohorts, plan, model and evaluation.

Nothing is written here. TensorFlow's devices and threads are not touched either: the runtime must set them first.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import hashlib
from typing import Any, Callable, Optional, TYPE_CHECKING

import numpy as np
import tensorflow_federated as tff

import data
from data import cohorts
from experiments.command import run as run_lib
from quap_tff import plans
from quap_tff import runtime
from quap_tff.common import json_types
from quap_tff.mechanisms.parts import layers as layers_lib
from quap_tff.training import evaluation
from quap_tff.training import malicious
from quap_tff.training import models

if TYPE_CHECKING:
  from experiments.folders import directory as run_directory
  from quap_tff.plans.plan import Wrapper

# The name of the seed of secret cohorts among a run's secrets.
_COHORT_SEED = 'cohort_seed'
# For --model=auto: the model by the dataset, or else by the shape of an example. On features, it is a linear head. For
# other shapes it is an `mlp`, which takes any.
_MODEL_OF_DATASET = {
  'shakespeare': 'shakespeare_lstm',
  'stackoverflow_words': 'words_lstm',
  'synthetic': 'linear_features',
}
_MODEL_OF_SHAPE: dict[tuple[int, ...], str] = {
  (8, 8, 1): 'digits_cnn',
  (28, 28, 1): 'mnist_cnn',
  (32, 32, 3): 'cifar10_cnn',
}


@dataclasses.dataclass(frozen=True)
class Experiment:
  """A run, ready to start.

  Attributes:
    run: Its configuration.
    federation: The clients' data and the test set.
    cohorts: Who takes part in which round.
    plan: The plan of the method. It has the learning process, the account of the rounds, and the statements about the
      model.
    model: The model's name.
    model_fn: Makes the model.
    build_process: Makes the learning process.
    build_audited_process: Makes one whose aggregator an audit has wrapped, see `plans.Plan.build_audited_process`.
    build_evaluation: Makes the function from (weights, x, y) to `loss`, `accuracy` and `num_examples`. Call these three
      with the runtime active: TensorFlow accepts the runtime's settings only before its first use.
    runtime: Where TFF computations run.
  """

  run: run_lib.Run
  federation: data.Federation
  cohorts: cohorts.ParticipationModel
  plan: plans.Plan
  model: str
  model_fn: Callable[[], tff.learning.models.VariableModel]
  build_process: Callable[[], plans.BuiltProcess]
  build_audited_process: Callable[[Wrapper], tff.learning.templates.LearningProcess]
  build_evaluation: Callable[[], evaluation.EvaluateFn]
  runtime: runtime.RuntimeConfig

  def kept_in(self, directory: Optional[run_directory.RunDirectory]) -> Experiment:
    """The experiment with the cohorts of the run in a folder, if they are secret: their seed is kept there."""
    # Cohorts of a certified run follow from a key that no folder keeps.
    if directory is None or not self.run.cohorts.are_secret or self.plan.secret is not None:
      return self
    cohort_seed = int.from_bytes(directory.secret(_COHORT_SEED), 'big')
    return dataclasses.replace(self, cohorts=self.run.participation(self.federation.num_clients, cohort_seed))

  @functools.cached_property
  def schedule(self) -> list[np.ndarray]:
    """int64[M_t], the cohort of each planned round. It is public, unless the run's cohorts are secret."""
    return [self.cohorts.cohort(round_num) for round_num in range(1, self.run.schedule.rounds + 1)]

  @property
  def resolved(self) -> json_types.JsonObject:
    """Facts that follow from the data, not from the flags alone, as JSON values. With it, `Run.plan` needs no data."""
    federation, shape = self.federation, self.plan.shape
    return {
      'num_clients': federation.num_clients,
      'partition': federation.partition,
      'test_examples': len(federation.test),
      'test_set': federation.test_set,
      'test_is_of_clients': federation.test_is_of_clients,
      'public_data': federation.public_data,
      'model': self.model,
      'input_shape': list(federation.input_shape),
      'num_classes': federation.num_classes,
      'layers': [layer._asdict() for layer in shape.layers],
      'shapes': [list(one) for one in shape.shapes],
    }


def from_flags(values: json_types.JsonView) -> Experiment:
  """The experiment that flags describe; see `from_run`."""
  run = run_lib.Run.from_flags(values)
  run.check()
  return from_run(run)


def from_run(run: run_lib.Run, progress: Optional[Callable[[int, int], None]] = None) -> Experiment:
  """Builds the experiment that a run describes. `Run.check` must have accepted it.

  Args:
    run: The run.
    progress: Called with (done, total) as clients' data are read.

  Raises:
    ValueError: For a flag that does not fit the data. The message names the flag.
  """
  runtime_config = run.runtime.config
  runtime.prepare(runtime_config)
  client_optimizer, server_optimizer = run.local.client_optimizer.build(), run.method.server_optimizer.build()
  federation = federation_of(run, progress)
  run = run.with_cohorts(run.cohorts.participation.for_clients(federation.client_ids))
  attackers = run.attackers(federation.num_clients)
  client_work = run.client_work(attackers)
  federation = _attacked(federation, client_work.attack, attackers)
  model = _auto_model(federation) if run.local.model == 'auto' else run.local.model
  model_fn = models.build_model_fn(
    model, federation.input_shape, federation.num_classes, run.local.compute_dtype, run.schedule.seed
  )
  plan = run.plan(federation.num_clients, layers_lib.model_shape(model_fn), federation.test_is_of_clients)
  if run.method.auxiliary_share:
    extension: Any = plan.extension  # A method with auxiliary examples has one that takes them.
    plan = dataclasses.replace(plan, extension=extension.with_examples(federation.auxiliary))
  parts = model_fn, client_optimizer, server_optimizer, client_work
  return Experiment(
    run=run,
    federation=federation,
    cohorts=run.participation(federation.num_clients),
    plan=plan,
    model=model,
    model_fn=model_fn,
    build_process=lambda: plan.build_process(*parts),
    build_audited_process=lambda around: plan.build_audited_process(around, *parts),
    build_evaluation=lambda: evaluation.build_evaluation(model_fn),
    runtime=runtime_config,
  )


def federation_of(run: run_lib.Run, progress: Optional[Callable[[int, int], None]] = None) -> data.Federation:
  """Reads the clients' data and the test set of a run; see `from_run`."""
  return data.load(
    run.flags['dataset'],
    data_dir=run.data.data_dir,
    num_clients=run.data.num_clients,
    partition=run.flags['partition'],
    seed=run.schedule.seed,
    features=run.flags['features'],
    auxiliary=run.method.auxiliary_share,
    progress=progress,
  )


def _attacked(federation: data.Federation, attack: malicious.Attack, attackers: Sequence[int]) -> data.Federation:
  """The federation with the labels that malicious clients train on. Clients on demand stay on demand."""
  malicious_clients = frozenset(attackers)
  if not malicious_clients:
    return federation

  def seen(client: int, examples: data.Examples) -> data.Examples:
    if client not in malicious_clients:
      return examples
    labels = attack.changed_labels(examples.y, federation.num_classes)
    return examples if labels is examples.y else dataclasses.replace(examples, y=labels)

  clients = federation.clients
  attacked: Sequence[data.Examples]
  if isinstance(clients, data.OnDemand):
    digest = hashlib.sha256(clients.digest + repr((attack, sorted(malicious_clients))).encode()).digest()
    attacked = data.OnDemand(len(clients), lambda client: seen(client, clients[client]), digest)
  else:
    attacked = tuple(seen(client, examples) for client, examples in enumerate(clients))
  return dataclasses.replace(federation, clients=attacked)


def _auto_model(federation: data.Federation) -> str:
  if federation.features != 'none':
    return 'linear_features'
  if federation.name in _MODEL_OF_DATASET:
    return _MODEL_OF_DATASET[federation.name]
  return _MODEL_OF_SHAPE.get(federation.input_shape, 'mlp')
