"""Makes everything that a run needs from the flags: data, cohorts, plan, model and evaluation.

Nothing is written here. TensorFlow's devices and threads are not touched either: the runtime must set them first.
"""

import dataclasses
import hashlib
from typing import Any, Callable, Optional

from absl import flags
import numpy as np
import tensorflow_federated as tff

import data
from data import cohorts
from experiments import flag_checks
from experiments import flags as experiment_flags
from experiments import methods
from experiments import optimizers
from quap_tff import plans
from quap_tff import runtime
from quap_tff.mechanisms import layers as layers_lib
from quap_tff.mechanisms import postprocessing
from quap_tff.training import evaluation
from quap_tff.training import models

# For --model=auto: the model by the dataset, or else by the shape of an example. On features, it is a linear head.
_MODEL_OF_DATASET = {
  'shakespeare': 'shakespeare_lstm',
  'stackoverflow_words': 'words_lstm',
  'synthetic': 'linear_features',
}
_MODEL_OF_SHAPE = {(8, 8, 1): 'digits_cnn', (28, 28, 1): 'mnist_cnn', (32, 32, 3): 'cifar10_cnn'}


@dataclasses.dataclass(frozen=True)
class Experiment:
  """A run, ready to start.

  Attributes:
    federation: The clients' data and the test set.
    cohorts: Who takes part in which round.
    plan: The plan of the method: its learning process, what its rounds spend, and what may be said about the model.
    model: The model's name.
    model_fn: Makes the model.
    build_process: Makes the learning process. An argument, if given, is what `plans.Plan.build_process` calls `around`.
    build_evaluation: Makes the function from (weights, x, y) to `loss`, `accuracy` and `num_examples`. Call it and
      `build_process` with the runtime active: TensorFlow accepts the runtime's settings only before its first use.
    averaging: Makes the published weights from the weights of all rounds.
    shrinkage: A factor by which the published weights are multiplied.
    client_metrics: Whether exact functions of clients' data are kept.
    runtime: Where TFF computations run.
    planned_rounds: T.
    last_round: The round after which the run ends, at most T.
  """

  federation: data.Federation
  cohorts: cohorts.ParticipationModel
  plan: plans.Plan
  model: str
  model_fn: Callable[[], tff.learning.models.VariableModel]
  build_process: Callable[..., tff.learning.templates.LearningProcess]
  build_evaluation: Callable[[], evaluation.EvaluateFn]
  averaging: postprocessing.Averaging
  shrinkage: float
  client_metrics: bool
  runtime: runtime.RuntimeConfig
  planned_rounds: int
  last_round: int

  @property
  def schedule(self) -> list[np.ndarray]:
    """int64[M_t], the public cohort of each planned round."""
    return [self.cohorts.cohort(round_num) for round_num in range(1, self.planned_rounds + 1)]

  @property
  def resolved(self) -> dict[str, Any]:
    """What depends on the data and not only on the flags, as JSON values. With it, `methods.plan_of` needs no data."""
    federation, shape = self.federation, self.plan.model
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
      'layers': [
        {'name': layer.name, 'indices': list(layer.indices), 'is_dense': layer.is_dense} for layer in shape.layers
      ],
      'sizes': list(shape.sizes),
    }


def from_flags(values: flags.FlagValues, progress: Optional[Callable[[int, int], None]] = None) -> Experiment:
  """Builds the experiment that the flags describe. `experiments.flags.check` must have accepted the flags.

  Args:
    values: Parsed flags of `experiments.flags`.
    progress: Called with (done, total) as clients' data are read.

  Raises:
    ValueError: For a flag that does not fit the data. The message names the flag.
  """
  method = experiment_flags.check()
  with flag_checks.naming_flags(values):
    return _from_flags(values, method, progress)


def _from_flags(values, method, progress):
  runtime_config = methods.runtime_of(values)
  runtime.prepare(runtime_config)
  client_optimizer = optimizers.parse('client optimizer', values.client_optimizer)
  server_optimizer = optimizers.parse('server optimizer', values.server_optimizer)
  federation = data.load(
    values.dataset,
    data_dir=values.data_dir,
    num_clients=values.num_clients,
    partition=values.partition,
    seed=values.seed,
    features=values.features,
    auxiliary=method.auxiliary_share,
    progress=progress,
  )
  attackers = methods.attackers_of(values, federation.num_clients)
  client_work = methods.client_work_of(values, attackers)
  federation = _attacked(federation, client_work.attack, attackers)
  model = _auto_model(federation) if values.model == 'auto' else values.model
  model_fn = models.build_model_fn(
    model, federation.input_shape, federation.num_classes, values.compute_dtype, values.seed
  )
  shape = layers_lib.of_model(model_fn)
  plan = methods.plan_of(values, federation.num_clients, shape, federation.test_is_of_clients)
  if method.auxiliary_share:
    plan.extension = plan.extension.with_examples(federation.auxiliary)
  return Experiment(
    federation=federation,
    cohorts=methods.participation_of(values, federation.num_clients),
    plan=plan,
    model=model,
    model_fn=model_fn,
    build_process=lambda around=None: plan.build_process(
      model_fn, client_optimizer, server_optimizer, client_work, around
    ),
    build_evaluation=lambda: evaluation.build_evaluation(model_fn),
    averaging=methods.averaging_of(values, plan),
    shrinkage=values.shrinkage,
    client_metrics=plan.client_metrics,
    runtime=runtime_config,
    planned_rounds=values.rounds,
    last_round=values.rounds if values.stop_after is None else values.stop_after,
  )


def _attacked(federation, attack, attackers):
  """The federation with the labels that malicious clients train on. Clients on demand stay on demand."""
  malicious_clients = frozenset(attackers)
  if not malicious_clients:
    return federation

  def seen(client, examples):
    if client not in malicious_clients:
      return examples
    labels = attack.changed_labels(examples.y, federation.num_classes)
    return examples if labels is examples.y else dataclasses.replace(examples, y=labels)

  clients = federation.clients
  if federation.is_on_demand:
    digest = hashlib.sha256(clients.digest + repr((attack, sorted(malicious_clients))).encode()).digest()
    attacked = data.OnDemand(len(clients), lambda client: seen(client, clients[client]), digest)
  else:
    attacked = tuple(seen(client, examples) for client, examples in enumerate(clients))
  return dataclasses.replace(federation, clients=attacked)


def _auto_model(federation):
  if federation.features != 'none':
    return 'linear_features'
  if federation.name in _MODEL_OF_DATASET:
    return _MODEL_OF_DATASET[federation.name]
  if federation.input_shape not in _MODEL_OF_SHAPE:
    raise ValueError(
      f'--model=auto has no model for examples of shape {federation.input_shape}. Choose one with --model: '
      f'{", ".join(sorted(models.MODELS))}.'
    )
  return _MODEL_OF_SHAPE[federation.input_shape]
