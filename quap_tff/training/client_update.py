"""Local training of one client: w_local from w_global, in one `tf.while_loop` over mini-batches held in memory.

The examples are tensors, not a pipeline: a step gathers its rows by a shuffled index. Everything random follows from
(seed, round, client id): the shuffle of epoch e, the dropout masks of step s. So a client's update is the same in every
thread, cohort and resumed run.
"""

import collections
from typing import Any, Callable

import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.common import seeds
from quap_tff.training import autograph
from quap_tff.training import dropout
from quap_tff.training import local_training

ClientWorkConfig = local_training.ClientWorkConfig

_SHUFFLE, _DROPOUT = 0, 1  # The two uses of a client's seed.
# The use of the run's seed for what a client keeps in all rounds; rounds, which the other uses begin with, start at 1.
_EPOCHS = 0
_ALL_ROWS = 2**62  # A batch size larger than any client's data.


def _plain(dataset: tf.data.Dataset) -> tf.data.Dataset:
  # tf.data's optimizer and tuner start a thread for each iterator, and reading one element needs no tuning.
  options = tf.data.Options()
  options.autotune.enabled = False
  options.experimental_optimization.apply_default_optimizations = False
  return dataset.with_options(options)


def read_examples(dataset: tf.data.Dataset, spec: Any) -> Any:
  """All elements of `dataset` joined along their first dimension: a tensor for each leaf of `spec`, 0 rows if empty."""
  empty = tf.nest.map_structure(lambda s: tf.zeros([0, *s.shape[1:]], s.dtype), spec)
  # `rebatch` copies each row once. It yields nothing if there are no rows; then the empty element comes first.
  joined = dataset.rebatch(_ALL_ROWS).concatenate(tf.data.Dataset.from_tensors(empty)).take(1)
  return _plain(joined).get_single_element()


def read_client_id(dataset: tf.data.Dataset) -> tf.Tensor:
  """The one id in the sequence, an int64 scalar; -1, which is nobody's, unless it holds exactly one."""
  nobody = tf.constant(-1, tf.int64)
  # Not `reduce`, which instantiates its function again on each call; that takes 4 ms.
  ids = _plain(dataset.take(2).concatenate(tf.data.Dataset.from_tensors(nobody)).batch(3)).get_single_element()
  return tf.where(tf.equal(tf.size(ids), 2), ids[0], nobody)


def read_ids(dataset: tf.data.Dataset) -> tf.Tensor:
  """All ids in the sequence, int64[n]."""
  empty = tf.zeros([0], tf.int64)
  joined = dataset.batch(_ALL_ROWS).concatenate(tf.data.Dataset.from_tensors(empty)).take(1)
  return _plain(joined).get_single_element()


def client_seed(seed: tf.Tensor, round_number: tf.Tensor, client_id: tf.Tensor) -> tf.Tensor:
  """The int64[2] seed from which all of a client's randomness in one round follows."""
  return seeds.fold_in(seed, round_number, client_id)


def epochs_of(config: ClientWorkConfig, seed: tf.Tensor, client_id: tf.Tensor) -> Any:
  """How often a client passes over its examples in a round; an integer, or an int32 scalar if clients differ.

  Args:
    config: See `ClientWorkConfig`.
    seed: int64[2], the seed of the run.
    client_id: An integer scalar.
  """
  if config.most_local_epochs is None:
    return config.local_epochs
  own_seed = seeds.fold_in(seed, _EPOCHS, client_id)
  return tf.random.stateless_uniform([], own_seed, config.local_epochs, config.most_local_epochs + 1, tf.int32)


def count_steps(config: ClientWorkConfig, num_examples: tf.Tensor, epochs: Any) -> tf.Tensor:
  """The number of local steps in a round, an int32 scalar; 0 without examples."""
  num_steps = -(-num_examples // config.batch_size) * epochs
  return num_steps if config.max_steps is None else tf.minimum(num_steps, config.max_steps)


def num_rows(examples: Any) -> tf.Tensor:
  """The number of examples, an int32 scalar."""
  return tf.shape(tf.nest.flatten(examples)[0])[0]


def shuffled_order(seed: tf.Tensor, num_examples: tf.Tensor, epochs: Any) -> tf.Tensor:
  """`epochs` permutations of the examples, one after the other.

  Args:
    seed: int64[2], from `client_seed`.
    num_examples: An int32 scalar, n.
    epochs: How many permutations. Epoch e's does not depend on it.

  Returns:
    int32[epochs * n].
  """
  keys = seeds.integers(seeds.fold_in(seed, _SHUFFLE), [epochs, num_examples])
  return tf.reshape(tf.argsort(keys, axis=1, stable=True), [-1])


def without_initial_weights(
  model_fn: Callable[[], tff.learning.models.VariableModel],
) -> Callable[[], tff.learning.models.VariableModel]:
  """`model_fn` whose weights start at zero, for models that are given weights before they are used.

  Drawing a large model's random weights costs about 1% of a client's training. Also, an unseeded initializer is a
  stateful op, which a runtime may have to run in the clients' order.

  Other variables, such as those of metrics, keep their initial values. The weights are recognized by their place in the
  order in which `model_fn` makes its variables. A variable whose shape or dtype differs from what is expected at its
  place keeps its initial value.
  """
  created: list[tf.Variable] = []

  def record(next_creator, **kwargs):
    created.append(next_creator(**kwargs))
    return created[-1]

  with tf.Graph().as_default(), tf.variable_creator_scope(record):
    model = model_fn()
  weights = {id(v) for v in (*model.trainable_variables, *model.non_trainable_variables)}
  blank = {i: (v.shape, v.dtype) for i, v in enumerate(created) if id(v) in weights and v.shape.is_fully_defined()}

  def blank_model_fn():
    index = -1

    def create(next_creator, **kwargs):
      nonlocal index
      index += 1
      if index in blank and callable(kwargs.get('initial_value')):
        shape, dtype = blank[index]
        declared = kwargs.get('shape'), kwargs.get('dtype')
        if declared[0] is not None and tf.TensorShape(declared[0]) == shape and declared[1] == dtype:
          kwargs['initial_value'] = lambda: tf.zeros(shape, dtype)
      return next_creator(**kwargs)

    with tf.variable_creator_scope(create):
      return model_fn()

  return blank_model_fn


def learning_rate_factor(config: ClientWorkConfig, round_number: Any) -> tf.Tensor:
  """decay^(t-1) for round t = 1, 2, ...; a float32 scalar."""
  return tf.pow(tf.constant(config.learning_rate_decay, tf.float32), tf.cast(round_number, tf.float32) - 1.0)


def build_client_update(
  model: tff.learning.models.VariableModel, optimizer: tff.learning.optimizers.Optimizer, config: ClientWorkConfig
) -> Callable[..., tuple[Any, Any]]:
  """Local training with `model`'s variables as its working memory.

  Args:
    model: A model made for this call: its variables are overwritten, and its metrics accumulate.
    optimizer: Any TFF optimizer. Its state starts anew for each client.
    config: See `ClientWorkConfig`.

  Returns:
    A `tf.function` (weights, examples, client id, round number t >= 1, seed int64[2], correction) -> (update,
    unfinalized metrics). The weights are a `tff.learning.models.ModelWeights`, and the examples come from
    `read_examples`. `correction` is a flat list of tensors that is added to the gradient of every step, as in SCAFFOLD;
    by default nothing is. The update is w_global - w_local, with the structure of the trainable weights; it is zero for
    a client without examples. It may not be finite: the aggregator deals with that.
  """
  model_weights = tff.learning.models.ModelWeights.from_model(model)
  variables = tuple(tf.nest.flatten(model_weights.trainable))

  @tf.function(autograph=autograph.is_needed(model, optimizer))
  def client_update(global_weights, examples, client_id, round_number, seed, correction=None):
    tf.nest.map_structure(lambda v, w: v.assign(w), model_weights, global_weights)
    anchor = tuple(tf.nest.flatten(global_weights.trainable))
    own_seed = client_seed(seed, round_number, client_id)
    masks = dropout.dropout_stream(seeds.fold_in(own_seed, _DROPOUT))

    num_examples = num_rows(examples)
    epochs = epochs_of(config, seed, client_id)
    order = shuffled_order(own_seed, num_examples, epochs)
    steps_per_epoch = -(-num_examples // config.batch_size)
    num_steps = count_steps(config, num_examples, epochs)

    def step_fn(step, optimizer_state):
      epoch, batch_index = step // steps_per_epoch, step % steps_per_epoch
      begin = epoch * num_examples + batch_index * config.batch_size
      end = tf.minimum(begin + config.batch_size, (epoch + 1) * num_examples)
      batch = tf.nest.map_structure(lambda t: tf.gather(t, order[begin:end]), examples)
      with dropout.seeded_dropout(masks, step), tf.GradientTape() as tape:
        loss = model.forward_pass(batch, training=True).loss
      gradients = tape.gradient(loss, variables)
      if config.proximal_strength:
        gradients = _add_proximal_term(gradients, variables, anchor, config.proximal_strength)
      if correction is not None:
        gradients = tuple(c if g is None else tf.convert_to_tensor(g) + c for g, c in zip(gradients, correction))
      optimizer_state, updated = optimizer.next(optimizer_state, variables, gradients)
      for variable, value in zip(variables, updated):
        variable.assign(value)
      return step + 1, optimizer_state

    tf.while_loop(
      lambda step, _: step < num_steps,
      step_fn,
      (tf.constant(0), _initial_optimizer_state(optimizer, variables, config, round_number)),
      parallel_iterations=1,
    )
    update = tf.nest.map_structure(lambda w, v: w - v.read_value(), global_weights.trainable, model_weights.trainable)
    return update, model.report_local_unfinalized_metrics()

  return client_update


def build_full_gradient(model: tff.learning.models.VariableModel) -> Callable[..., list[tf.Tensor]]:
  """The gradient of a client's mean loss at the global weights, with `model`'s variables as its working memory.

  Args:
    model: A model made for this call, as for `build_client_update`.

  Returns:
    A `tf.function` (weights, examples) -> gradients over all examples, a flat list; zero without examples. Dropout is
    off. The model's metrics are reset afterwards, so they do not count these examples.
  """
  model_weights = tff.learning.models.ModelWeights.from_model(model)
  variables = tuple(tf.nest.flatten(model_weights.trainable))

  # A function, so that the variables are read before local training changes them.
  @tf.function(autograph=autograph.is_needed(model))
  def full_gradient(global_weights, examples):
    tf.nest.map_structure(lambda v, w: v.assign(w), model_weights, global_weights)
    with tf.GradientTape() as tape:
      loss = model.forward_pass(examples, training=False).loss
    gradients = tape.gradient(loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    model.reset_metrics()
    keep = num_rows(examples) > 0  # A mean over nothing is NaN.
    return [tf.where(keep, tf.convert_to_tensor(gradient), tf.zeros_like(gradient)) for gradient in gradients]

  return full_gradient


def _add_proximal_term(gradients, variables, anchor, strength: float) -> tuple[tf.Tensor, ...]:
  def add(gradient, variable, start):
    pull = strength * (variable - start)
    return pull if gradient is None else tf.convert_to_tensor(gradient) + pull

  return tuple(add(*leaf) for leaf in zip(gradients, variables, anchor))


def _initial_optimizer_state(optimizer, variables, config: ClientWorkConfig, round_number: tf.Tensor) -> Any:
  state = optimizer.initialize(tuple(tf.TensorSpec(v.shape, v.dtype) for v in variables))
  if config.learning_rate_decay != 1.0:
    hparams = collections.OrderedDict(optimizer.get_hparams(state))
    key = tff.learning.optimizers.LEARNING_RATE_KEY
    hparams[key] = hparams[key] * learning_rate_factor(config, round_number)
    state = optimizer.set_hparams(state, hparams)
  return tf.nest.map_structure(tf.convert_to_tensor, state)
