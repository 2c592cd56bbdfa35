"""Local training of one client: w_local from w_global, in one `tf.while_loop` over mini-batches held in memory.

The examples are tensors, not a pipeline: a step gathers its rows by a shuffled index. Everything random follows from
(seed, round, client id): the shuffle of epoch e, the dropout masks of step s. So a client's update is the same in every
thread, cohort and resumed run.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
import dataclasses
from typing import Callable, Optional

from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.common import lazy
from quap_tff.common.lazy import tf
from quap_tff.common.lazy import tff
from quap_tff.common.numbers import seeds
from quap_tff.training import extension as extensions
from quap_tff.training import malicious

dropout = lazy.module('quap_tff.training.dropout')
model_functions = lazy.module('quap_tff.training.model_functions')

_SHUFFLE, _DROPOUT = 0, 1  # The two uses of a client's seed.
# The use of the run's seed for a client's choice for all rounds. The other uses begin with the round, which is not 0.
_EPOCHS = 0
_ALL_ROWS = 2**62  # A batch size larger than any client's data.


@dataclasses.dataclass(frozen=True)
class ClientWorkConfig(checks.Checked):
  """How a client trains.

  Attributes:
    local_epochs: Passes over the client's examples, at least 1.
    most_local_epochs: If given, each client makes a number of passes of its own in all rounds, drawn uniformly from
      local_epochs, ..., most_local_epochs. It follows from (seed, client id) alone, so it says nothing about data.
    batch_size: Examples in a step, at least 1; the last batch of an epoch holds the rest.
    learning_rate_decay: Factor of the optimizer's learning rate from one round to the next, in (0, 1].
    max_steps: The largest number of steps of one client in a round, at least 1; `None` for no bound.
    proximal_strength: FedProx's mu >= 0: adds mu/2·‖w - w_global‖² to the loss.
    seed: Seed of shuffles and dropout, a non-negative integer; `None` draws one from the operating system's entropy.
    attack: How malicious clients change their updates.
    attackers: The ids of the malicious clients.
  """

  local_epochs: int = checks.integer_field('local_epochs', 1, at_least=1)
  most_local_epochs: Optional[int] = None
  batch_size: int = checks.integer_field('batch_size', 32, at_least=1)
  learning_rate_decay: float = checks.number_field('client_learning_rate_decay', 1.0, above=0.0, at_most=1.0)
  max_steps: Optional[int] = checks.integer_field('max_local_steps', None, at_least=1)
  proximal_strength: float = checks.number_field('proximal_strength', 0.0, at_least=0.0)
  seed: Optional[int] = checks.integer_field('client seed', None, at_least=0)
  attack: malicious.Attack = malicious.NoAttack()
  attackers: tuple[int, ...] = ()

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.most_local_epochs is not None:
      checks.integer('most_local_epochs', self.most_local_epochs, at_least=self.local_epochs)


def _plain(dataset: tf.data.Dataset) -> tf.data.Dataset:
  # tf.data's optimizer and tuner start a thread for each iterator, and reading one element needs no tuning.
  options = tf.data.Options()
  options.autotune.enabled = False
  options.experimental_optimization.apply_default_optimizations = False
  return dataset.with_options(options)


def read_examples(dataset: tf.data.Dataset, spec: array_types.StructureSpec) -> array_types.Structure:
  """All elements of `dataset` joined along their first dimension: a tensor for each leaf of `spec`, 0 rows if empty."""
  empty = tf.nest.map_structure(lambda s: tf.zeros([0, *s.shape[1:]], s.dtype), spec)
  # `rebatch` copies each row once. It yields nothing if there are no rows; then the empty element comes first.
  joined = dataset.rebatch(_ALL_ROWS).concatenate(tf.data.Dataset.from_tensors(empty)).take(1)
  return _plain(joined).get_single_element()


def _one_of(dataset: tf.data.Dataset, otherwise: array_types.Structure) -> tuple[array_types.Structure, tf.Tensor]:
  """The first element of `dataset`, or `otherwise` if it is empty, and whether it has exactly one.

  An element has at least one tensor.
  """
  # Not `reduce`, which instantiates its function again on each call; that takes 4 ms.
  both = _plain(dataset.take(2).concatenate(tf.data.Dataset.from_tensors(otherwise)).batch(3)).get_single_element()
  return tf.nest.map_structure(lambda values: values[0], both), tf.equal(tf.shape(tf.nest.flatten(both)[0])[0], 2)


def read_client_id(dataset: tf.data.Dataset) -> tf.Tensor:
  """The one id in the sequence, an int64 scalar; -1, which is nobody's, unless it holds exactly one."""
  client_id, is_one = _one_of(dataset, tf.constant(-1, tf.int64))
  return tf.where(is_one, client_id, -1)


def answer_spec() -> collections.OrderedDict[str, tf.TensorSpec]:
  """The answer of a client's guard for a round, see `quap_tff.ClientGuard.answer`."""
  return collections.OrderedDict(
    plan=tf.TensorSpec([], tf.int64),
    round=tf.TensorSpec([], tf.int64),
    last_round=tf.TensorSpec([], tf.int64),
    weight=tf.TensorSpec([], tf.float32),
    noise_key=tf.TensorSpec([4], tf.int64),
  )


def read_answer(dataset: tf.data.Dataset) -> collections.OrderedDict[str, tf.Tensor]:
  """The one answer in the sequence; one for the plan -1, which stands for no plan, unless it holds exactly one."""
  none = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), answer_spec())
  answer, is_one = _one_of(dataset, none)
  return collections.OrderedDict(answer, plan=tf.where(is_one, answer['plan'], -1))


def read_update(dataset: tf.data.Dataset, specs: Sequence[tf.TensorSpec]) -> list[tf.Tensor]:
  """The tensors of the one update in the sequence; zeros unless it holds exactly one."""
  zeros = tuple(tf.zeros(spec.shape, spec.dtype) for spec in specs)
  update, is_one = _one_of(dataset, zeros)
  return [tf.where(is_one, given, zero) for given, zero in zip(update, zeros)]


def epochs_of(config: ClientWorkConfig, seed: tf.Tensor, client_id: tf.Tensor) -> array_types.Numbers:
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


def count_steps(config: ClientWorkConfig, num_examples: tf.Tensor, epochs: array_types.Numbers) -> tf.Tensor:
  """The number of local steps in a round, an int32 scalar; 0 without examples."""
  num_steps = -(-num_examples // config.batch_size) * epochs
  return num_steps if config.max_steps is None else tf.minimum(num_steps, config.max_steps)


def num_rows(examples: array_types.Structure) -> tf.Tensor:
  """The number of examples, an int32 scalar."""
  return tf.shape(tf.nest.flatten(examples)[0])[0]


def shuffled_order(seed: tf.Tensor, num_examples: tf.Tensor, epochs: array_types.Numbers) -> tf.Tensor:
  """`epochs` permutations of the examples, one after the other.

  Args:
    seed: int64[2], the client's own in this round.
    num_examples: An int32 scalar, n.
    epochs: How many permutations. Epoch e's does not depend on it.

  Returns:
    int32[epochs * n].
  """
  keys = seeds.integers(seeds.fold_in(seed, _SHUFFLE), [epochs, num_examples])
  return tf.reshape(tf.argsort(keys, axis=1, stable=True), [-1])


def learning_rate_factor(config: ClientWorkConfig, round_number: array_types.Numbers) -> tf.Tensor:
  """decay^(t-1) for round t = 1, 2, ...; a float32 scalar."""
  return tf.pow(tf.constant(config.learning_rate_decay, tf.float32), tf.cast(round_number, tf.float32) - 1.0)


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
  optimizer: tff.learning.optimizers.Optimizer, config: ClientWorkConfig, round_number: array_types.Numbers
) -> tf.Tensor:
  """The clients' learning rate in round t, a float32 scalar: eta·decay^(t-1).

  Args:
    optimizer: The clients' optimizer; its own learning rate is eta.
    config: Holds the decay.
    round_number: t, counted from 1; a Python integer or an integer tensor.
  """
  return base_learning_rate(optimizer) * learning_rate_factor(config, round_number)


def build_client_round(
  model_fn: Callable[[], tff.learning.models.VariableModel],
  optimizer: tff.learning.optimizers.Optimizer,
  config: ClientWorkConfig,
  extension: extensions.Extension,
) -> Callable[..., tuple[array_types.Structure, ...]]:
  """All that a client does in a round: local training with the changes of an extension and of an attack.

  Args:
    model_fn: Makes the model anew on each call.
    optimizer: Any TFF optimizer. Its state starts anew for each client.
    config: See `ClientWorkConfig`.
    extension: The method around the mechanism.

  Returns:
    A function (weights, examples, client id, round number, seed, message, own) -> (update, report, kept, unfinalized
    metrics). The first five arguments are those of `build_client_update`'s function. `message` is the extension's.
    `own` float32[d] is the client's own vector, and `kept` its next one; None and [] without one.
  """

  def client_round(
    weights: tff.learning.models.ModelWeights,
    examples: array_types.Structure,
    client_id: tf.Tensor,
    round_number: tf.Tensor,
    seed: tf.Tensor,
    message: array_types.Structure,
    own: Optional[tf.Tensor],
  ) -> tuple[array_types.Structure, array_types.Structure, array_types.Structure, array_types.Structure]:
    own = None if own is None else extensions.unflat(own, tf.nest.flatten(weights.trainable))
    epochs = epochs_of(config, seed, client_id)
    steps = count_steps(config, num_rows(examples), epochs)
    update, metrics = build_client_update(model_fn(), optimizer, config)(
      weights, examples, client_id, round_number, seed, extension.correction(message, own, steps)
    )
    local = extensions.LocalKnowledge(
      tf.nest.flatten(update),
      steps,
      epochs,
      learning_rate=lambda: learning_rate_at(optimizer, config, round_number),
      gradient=lambda: build_full_gradient(model_fn())(weights, examples),
    )
    report = extension.report(message, own, local)
    kept = extension.kept(message, own, local) if extension.has_own_vectors else []
    sent = tf.nest.pack_sequence_as(update, extension.sent(local))
    if config.attackers and config.attack.changes_updates:
      attacks = tf.reduce_any(tf.equal(tf.constant(config.attackers, tf.int64), client_id))
      sent = tf.cond(attacks, lambda: config.attack.changed_update(sent), lambda: sent)
    return sent, report, kept, metrics

  return client_round


def build_client_update(
  model: tff.learning.models.VariableModel, optimizer: tff.learning.optimizers.Optimizer, config: ClientWorkConfig
) -> Callable[..., tuple[array_types.Structure, array_types.Structure]]:
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

  @tf.function(autograph=model_functions.needs_autograph(model, optimizer))
  def client_update(
    global_weights: tff.learning.models.ModelWeights,
    examples: array_types.Structure,
    client_id: tf.Tensor,
    round_number: tf.Tensor,
    seed: tf.Tensor,
    correction: Optional[extensions.Tensors] = None,
  ) -> tuple[array_types.Structure, array_types.Structure]:
    tf.nest.map_structure(lambda v, w: v.assign(w), model_weights, global_weights)
    anchor = tuple(tf.nest.flatten(global_weights.trainable))
    own_seed = seeds.fold_in(seed, round_number, client_id)  # All of its randomness in this round follows from it.
    masks = dropout.dropout_stream(seeds.fold_in(own_seed, _DROPOUT))

    num_examples = num_rows(examples)
    epochs = epochs_of(config, seed, client_id)
    order = shuffled_order(own_seed, num_examples, epochs)
    steps_per_epoch = -(-num_examples // config.batch_size)
    num_steps = count_steps(config, num_examples, epochs)

    def step_fn(step: tf.Tensor, optimizer_state: array_types.Structure) -> tuple[tf.Tensor, array_types.Structure]:
      epoch, batch_index = step // steps_per_epoch, step % steps_per_epoch
      begin = epoch * num_examples + batch_index * config.batch_size
      end = tf.minimum(begin + config.batch_size, (epoch + 1) * num_examples)
      batch = tf.nest.map_structure(lambda t: tf.gather(t, order[begin:end]), examples)
      with dropout.seeded_dropout(masks, step), tf.GradientTape() as tape:
        loss = model.forward_pass(batch, training=True).loss
      gradients = tape.gradient(loss, variables)
      if config.proximal_strength:
        gradients = _plus(gradients, [config.proximal_strength * (v - a) for v, a in zip(variables, anchor)])
      if correction is not None:
        gradients = _plus(gradients, correction)
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
  @tf.function(autograph=model_functions.needs_autograph(model))
  def full_gradient(
    global_weights: tff.learning.models.ModelWeights, examples: array_types.Structure
  ) -> list[tf.Tensor]:
    tf.nest.map_structure(lambda v, w: v.assign(w), model_weights, global_weights)
    with tf.GradientTape() as tape:
      loss = model.forward_pass(examples, training=False).loss
    gradients = tape.gradient(loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    model.reset_metrics()
    keep = num_rows(examples) > 0  # A mean over nothing is NaN.
    return [tf.where(keep, tf.convert_to_tensor(gradient), tf.zeros_like(gradient)) for gradient in gradients]

  return full_gradient


def _plus(gradients: Sequence[Optional[tf.Tensor]], terms: Sequence[tf.Tensor]) -> tuple[tf.Tensor, ...]:
  """The sums, where a gradient of None is zero."""

  def plus(gradient: Optional[tf.Tensor], term: tf.Tensor) -> tf.Tensor:
    return term if gradient is None else tf.convert_to_tensor(gradient) + term

  return tuple(plus(gradient, term) for gradient, term in zip(gradients, terms))


def _initial_optimizer_state(
  optimizer: tff.learning.optimizers.Optimizer,
  variables: Sequence[tf.Variable],
  config: ClientWorkConfig,
  round_number: tf.Tensor,
) -> array_types.Structure:
  state = optimizer.initialize(tuple(tf.TensorSpec(v.shape, v.dtype) for v in variables))
  if config.learning_rate_decay != 1.0:
    hparams = collections.OrderedDict(optimizer.get_hparams(state))
    key = tff.learning.optimizers.LEARNING_RATE_KEY
    hparams[key] = hparams[key] * learning_rate_factor(config, round_number)
    state = optimizer.set_hparams(state, hparams)
  return tf.nest.map_structure(tf.convert_to_tensor, state)
