"""Local training as a TFF `ClientWorkProcess` that reports client ids.

Client data are `<client_id=int64*, examples=D*>`: TFF takes only sequences there, so the id is a sequence of one. It is
passed on as the update's weight. That is how an aggregator learns whose update it has. It is read before the training,
so that an aggregator can ask for the ids first.
"""

import collections
from typing import Any, Callable

import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.common import seeds
from quap_tff.federated import client_ids
from quap_tff.training import client_update

ClientWorkConfig = client_update.ClientWorkConfig
ModelFn = Callable[[], tff.learning.models.VariableModel]


def base_learning_rate(optimizer: tff.learning.optimizers.Optimizer) -> float:
  """The learning rate that `optimizer` was made with; raises `ValueError` if it has none of that name."""
  hparams = optimizer.get_hparams(optimizer.initialize(tf.TensorSpec([], tf.float32)))
  key = tff.learning.optimizers.LEARNING_RATE_KEY
  if key not in hparams:
    raise ValueError(
      f'Expected an optimizer with the hyperparameter {key!r}, found {type(optimizer).__name__} with'
      f' the hyperparameters {sorted(hparams)}.'
    )
  return float(hparams[key])


def learning_rate_at(
  optimizer: tff.learning.optimizers.Optimizer, config: ClientWorkConfig, round_number: Any
) -> tf.Tensor:
  """The clients' learning rate in round t, a float32 scalar: eta·decay^(t-1).

  Args:
    optimizer: The clients' optimizer; its own learning rate is eta.
    config: Holds the decay.
    round_number: t, counted from 1; a Python integer or an integer tensor.
  """
  return base_learning_rate(optimizer) * client_update.learning_rate_factor(config, round_number)


def client_data_type(input_spec: Any) -> tff.StructWithPythonType:
  """The type of one client's data, `<client_id=int64*, examples=D*>`.

  Args:
    input_spec: D, a batch: a structure of `tf.TensorSpec`s whose first dimension is unknown.

  Raises:
    ValueError: If a leaf of `input_spec` is not a dense tensor, or has a fixed first dimension.
  """
  for leaf in tf.nest.flatten(input_spec):
    if not isinstance(leaf, tf.TensorSpec) or not leaf.shape.rank or leaf.shape[0] is not None:
      raise ValueError(
        f'Expected an input_spec of dense tensors with a first dimension of None, found {leaf}.\nTip: mini-batches'
        ' are cut by the client work itself, and the last one of an epoch is smaller than the others.'
      )
  return client_ids.data_type(tff.SequenceType(tff.types.tensorflow_to_type(input_spec)))


def build_client_work(
  model_fn: ModelFn, optimizer: tff.learning.optimizers.Optimizer, config: ClientWorkConfig = ClientWorkConfig()
) -> tff.learning.templates.ClientWorkProcess:
  """Local training of every client in the cohort.

  `initialize` gives `<round=int32, seed=int64[2]>@SERVER`, the number of finished rounds and the run's seed. `next`
  takes the state, the global weights and `client_data_type(model.input_spec)` at the clients. It gives the state with
  one more round; a `ClientResult` whose update is w_global - w_local (trainable weights, as in TFF's own model-delta
  work) and whose weight is `<client_id=int64>`; and the measurement `train`: the model's metrics over all examples
  seen.

  A client without examples gives a zero update. An update that is not finite is passed on unchanged. An id sequence
  that does not hold exactly one id becomes the id -1.

  Models of `quap_tff.training.models` draw their dropout masks from `config.seed`. A model with stock Keras `Dropout` works too,
  but then the masks, and so the update, differ from run to run. A `tff.learning.models.FunctionalModel` works as
  `lambda: tff.learning.models.model_from_functional(model)`.

  Args:
    model_fn: Makes the model anew on each call, as in all of `tff.learning`.
    optimizer: The clients' optimizer; its state starts afresh in each round.
    config: See `ClientWorkConfig`.

  Raises:
    ValueError: For an input_spec that `client_data_type` refuses, or a decay on an optimizer without a learning rate.
  """
  with tf.Graph().as_default():
    model = model_fn()
    input_spec = model.input_spec
    metrics_aggregation = tff.learning.metrics.sum_then_finalize(model.metric_finalizers())
  blank_model_fn = client_update.without_initial_weights(model_fn)
  weights_type = tff.learning.models.weights_type_from_model(model)
  data_type = client_data_type(input_spec)
  if config.learning_rate_decay != 1.0:
    base_learning_rate(optimizer)

  @tff.tensorflow.computation
  def initial_state():
    return collections.OrderedDict(round=tf.constant(0), seed=seeds.initial_seed(config.seed, 'client_update'))

  state_type = initial_state.type_signature.result

  @tff.tensorflow.computation(state_type)
  def next_state(state):
    return collections.OrderedDict(round=state['round'] + 1, seed=state['seed'])

  @tff.tensorflow.computation(data_type.client_id)
  def read_weight(ids):
    return collections.OrderedDict(client_id=client_update.read_client_id(ids))

  @tff.tensorflow.computation(state_type, weights_type, read_weight.type_signature.result, data_type.examples)
  def train(state, global_weights, weight, data):
    update_fn = client_update.build_client_update(blank_model_fn(), optimizer, config)
    examples = client_update.read_examples(data, input_spec)
    client_id = weight['client_id']
    update, metrics = update_fn(global_weights, examples, client_id, state['round'] + 1, state['seed'])
    if config.attackers and config.attack.changes_updates:
      attacks = tf.reduce_any(tf.equal(tf.constant(config.attackers, tf.int64), client_id))
      update = tf.cond(attacks, lambda: config.attack.changed_update(update), lambda: update)
    return update, metrics

  @tff.federated_computation
  def initialize():
    return tff.federated_eval(initial_state, tff.SERVER)

  @tff.federated_computation(
    tff.FederatedType(state_type, tff.SERVER),
    tff.FederatedType(weights_type, tff.CLIENTS),
    tff.FederatedType(data_type, tff.CLIENTS),
  )
  def next_fn(state, global_weights, client_data):
    weights = tff.federated_map(read_weight, client_data['client_id'])
    updates, metrics = tff.federated_map(
      train, (tff.federated_broadcast(state), global_weights, weights, client_data['examples'])
    )
    results = tff.federated_zip(tff.learning.templates.ClientResult(update=updates, update_weight=weights))
    measurements = tff.federated_zip(collections.OrderedDict(train=metrics_aggregation(metrics)))
    return tff.templates.MeasuredProcessOutput(tff.federated_map(next_state, state), results, measurements)

  return tff.learning.templates.ClientWorkProcess(initialize, next_fn)
