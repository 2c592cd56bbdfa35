"""From flags to everything a run needs: data, cohorts, configuration, learning process, evaluation.

Nothing is written here, and TensorFlow's devices and threads are not touched: the runtime is to set them first.
"""

import dataclasses
from typing import Callable, Optional

from absl import flags
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import data
from data import cohorts
from data import features
from data import partition
from experiments import algorithms
from experiments import optimizers
import quap_tff
from quap_tff import checks
from quap_tff import clip_rules
from quap_tff import evaluation
from quap_tff import layers as layers_lib
from quap_tff import models
from quap_tff import postprocessing
from quap_tff import registry
from quap_tff import runtime

# --model=auto: by the shape of an example; a linear head on features.
_MODEL_OF_SHAPE = {(8, 8, 1): 'digits_cnn', (28, 28, 1): 'mnist_cnn', (32, 32, 3): 'cifar10_cnn'}

_DEFAULT_COHORT_SHARE, _DEFAULT_COHORT_LIMIT = 0.3, 30


@dataclasses.dataclass(frozen=True)
class Experiment:
  """A run, ready to start.

  Attributes:
    federation: The clients' data and the test set.
    cohorts: Who takes part in which round.
    method: The method: its learning process, what its rounds spend, what may be said about the model.
    delta: δ.
    model: The model's name.
    model_fn: Makes the model.
    build_evaluation: Makes the function from (weights, x, y) to `loss`, `accuracy` and `num_examples`. It and the
      method's `build_process` are to be called with the runtime active, whose settings TensorFlow takes only before
      its first use.
    averaging: Makes the published weights of those of all rounds.
    shrinkage: A factor on the published weights.
    client_metrics: Whether exact functions of clients' data are kept.
    runtime: Where TFF computations run.
    planned_rounds: T.
    last_round: The round after which the run ends, at most T.
  """

  federation: data.Federation
  cohorts: cohorts.ParticipationModel
  method: algorithms.Method
  delta: float
  model: str
  model_fn: Callable[[], tff.learning.models.VariableModel]
  build_evaluation: Callable[[], evaluation.EvaluateFn]
  averaging: postprocessing.Averaging
  shrinkage: float
  client_metrics: bool
  runtime: runtime.RuntimeConfig
  planned_rounds: int
  last_round: int


def from_flags(values: flags.FlagValues, progress: Optional[Callable[[int, int], None]] = None) -> Experiment:
  """Builds the experiment that the flags describe.

  Whatever can be wrong with flags is found here, cheap checks before data are read.

  Args:
    values: Parsed flags of `experiments.flags`.
    progress: Called with (done, total) as clients' data are read.

  Raises:
    ValueError: For a flag that is wrong by itself or with the others; the message names it.
  """
  runtime_config = runtime.RuntimeConfig(
      kind=values.runtime,
      device=values.device,
      num_threads=values.num_threads,
      num_workers=values.num_workers,
      worker_addresses=tuple(values.worker_addresses),
  )
  runtime.prepare(runtime_config)
  planned_rounds = checks.integer('rounds', values.rounds, at_least=1)
  last_round = planned_rounds
  if values.stop_after is not None:
    last_round = checks.integer('stop_after', values.stop_after, at_least=1, at_most=planned_rounds)
  if values.stop_at_accuracy is not None:
    checks.number('stop_at_accuracy', values.stop_at_accuracy, above=0, at_most=1)
  checks.integer('seed', values.seed, at_least=0)
  if values.num_clients is not None:
    checks.integer('num_clients', values.num_clients, at_least=1)
  client_work = quap_tff.ClientWorkConfig(
      local_epochs=values.local_epochs,
      batch_size=values.batch_size,
      learning_rate_decay=values.client_learning_rate_decay,
      max_steps=values.max_local_steps,
      proximal_strength=values.proximal_strength,
      seed=values.seed,
  )
  client_optimizer = optimizers.parse('client optimizer', values.client_optimizer)
  server_optimizer = optimizers.parse('server optimizer', values.server_optimizer)
  if values.model != 'auto':
    registry.lookup('model', values.model, models.MODELS)
  averaging = registry.parse_spec('averaging', values.averaging, postprocessing.AVERAGINGS)
  checks.number('shrinkage', values.shrinkage, above=0, at_most=1)
  algorithm = algorithms.parse(values.algorithm)
  client_metrics = values.client_metrics
  if client_metrics is None:
    client_metrics = not algorithm.withholds_client_metrics
  mechanism = lambda num_clients: algorithm.configure(_mechanism(values, algorithm, num_clients))
  # Any population: what is wrong with the mechanism's flags is found before data are read.
  aggregates_once = algorithm.aggregates_once(mechanism(1))
  if runtime_config.kind == 'workers' and not aggregates_once:
    raise ValueError(
        f'--runtime=workers aggregates once in a round, and algorithm {values.algorithm!r} takes two aggregations with '
        f'clip rule {values.clip!r}: this round\'s norms give the clipping norm that clips this round. Use '
        'quantile_ema with timing=previous and an initial_clip, another clip rule, or another runtime.'
    )
  registry.parse_spec('participation model', values.participation, cohorts.PARTICIPATION_MODELS)
  features.parse(values.features)
  partition.parse(values.partition)  # Also where a dataset with clients of its own does not use it.

  federation = data.load(
      values.dataset,
      data_dir=values.data_dir,
      num_clients=values.num_clients,
      partition=values.partition,
      seed=values.seed,
      features=values.features,
      progress=progress,
  )
  config = mechanism(federation.num_clients)
  cohort_size = values.cohort_size
  if cohort_size is None:
    share = round(_DEFAULT_COHORT_SHARE * federation.num_clients)
    cohort_size = max(1, min(_DEFAULT_COHORT_LIMIT, share))
  model = _model_name(values.model, federation)
  model_fn = models.build_model_fn(
      model, federation.input_shape, federation.num_classes, values.compute_dtype, values.seed
  )
  with tf.Graph().as_default():
    variables = model_fn().trainable_variables
    sizes = tuple(int(np.prod(v.shape)) for v in variables)
    layers = layers_lib.from_variables(variables)
  participation = cohorts.make(values.participation, federation.num_clients, cohort_size, values.seed)
  setting = algorithms.Setting(
      mechanism=config,
      cohorts=participation,
      rounds=planned_rounds,
      model_fn=model_fn,
      layers=layers,
      sizes=sizes,
      client_optimizer=client_optimizer,
      server_optimizer=server_optimizer,
      client_work=client_work,
      client_metrics=client_metrics,
      calibration=values.calibration,
      spec=values.algorithm,
      public_data=federation.public_data,
      post_processing=_post_processing(values),
      tuning=values.tuning,
  )
  return Experiment(
      federation=federation,
      cohorts=participation,
      method=algorithm.method(setting),
      delta=values.delta,
      model=model,
      model_fn=model_fn,
      build_evaluation=lambda: evaluation.build_evaluation(model_fn),
      averaging=averaging,
      shrinkage=values.shrinkage,
      client_metrics=client_metrics,
      runtime=runtime_config,
      planned_rounds=planned_rounds,
      last_round=last_round,
  )


def _mechanism(values, algorithm, num_clients):
  """The mechanism's configuration as the flags have it, before the algorithm has its say."""
  return quap_tff.QuapConfig(
      num_clients=num_clients,
      budget=quap_tff.BudgetConfig(
          epsilon_total=values.epsilon,
          num_rounds=values.rounds,
          alpha=values.alpha,
          beta=values.beta,
          round_rule=values.round_budget,
      ),
      participation=quap_tff.ParticipationConfig(
          rate=values.participation_rate,
          ema_weight=values.ema_weight,
          warmup_rounds=values.warmup_rounds,
          count_during_warmup=values.count_during_warmup,
      ),
      clip=registry.parse_spec('clip rule', values.clip, clip_rules.RULES),
      clip_scope=values.clip_scope,
      noise=quap_tff.NoiseConfig(
          placement='none' if algorithm.noise_of_its_own else values.noise,
          delta=values.delta,
          calibration=values.gaussian_calibration,
          seed=values.noise_seed,
      ),
      critical_layers=values.critical_layers,
      max_agg_norm=values.max_agg_norm,
      update_scale=values.update_scale,
  )


def _post_processing(values):
  text = f'The server optimizer {values.server_optimizer} is applied to the noised sums.'
  if values.averaging != 'none':
    text += f' What is published is an average of the weights of all rounds ({values.averaging}).'
  if values.shrinkage != 1:
    text += f' The weights are multiplied by {values.shrinkage:g}.'
  return text


def _model_name(name, federation):
  if name != 'auto':
    return name
  if federation.features != 'none':
    return 'linear_features'
  if federation.input_shape not in _MODEL_OF_SHAPE:
    raise ValueError(
        f'No model is known for examples of shape {federation.input_shape}: choose one by --model: '
        f'{", ".join(sorted(models.MODELS))}.'
    )
  return _MODEL_OF_SHAPE[federation.input_shape]
