"""Models in TFF's form: functions that make one anew on each call, which TFF calls a `model_fn`, and our classifiers.

Everything that takes a model takes it in any of three forms: a `model_fn`, a `tff.learning.models.FunctionalModel`, or
a function that returns one.
"""

import collections
from collections.abc import Mapping, Sequence
import copy
import functools
import inspect
from typing import Callable, Optional, Union

import tensorflow as tf
from tensorflow.python.framework import auto_control_deps_utils
import tensorflow_federated as tff

from quap_tff.common import array_types

# The label of a place after which nothing follows.
NO_LABEL = -1

ModelFn = Callable[[], tff.learning.models.VariableModel]
Model = Union[ModelFn, tff.learning.models.FunctionalModel, Callable[[], tff.learning.models.FunctionalModel]]


def of(model: Model) -> ModelFn:
  """The `model_fn` of a model in any of the three forms. Calling it again on the result changes nothing.

  Raises:
    TypeError: If it is a Keras model, or no function. So does the `model_fn` if it makes one.
  """
  _refuse_keras(model)
  if not callable(model) and not isinstance(model, tff.learning.models.FunctionalModel):
    raise TypeError(
      f'model_fn must be a function that makes a TFF model anew, or a FunctionalModel, found {model!r}. For a model of '
      'quap_tff by name, see quap_tff.models.'
    )

  def model_fn() -> tff.learning.models.VariableModel:
    made = model if isinstance(model, tff.learning.models.FunctionalModel) else model()
    if isinstance(made, tff.learning.models.FunctionalModel):
      return tff.learning.models.model_from_functional(made)
    _refuse_keras(made)
    return made

  return model_fn


def _refuse_keras(made: object) -> None:
  if isinstance(made, tf.keras.Model):
    raise TypeError(
      f'model_fn must give a TFF model, found the Keras model {made.name!r}, which has no loss and no input_spec. '
      'Give a function that makes the Keras model anew and returns tff.learning.models.from_keras_model(keras_model, '
      'loss, input_spec), or give a tff.learning.models.functional_model_from_keras(…).'
    )


def initial_weights(model_fn: ModelFn) -> tff.Computation:
  """A computation without arguments that gives the model's first weights, a `tff.learning.models.ModelWeights`."""
  return tff.tensorflow.computation(lambda: tff.learning.models.ModelWeights.from_model(model_fn()))


def check_non_trainable(model_fn: ModelFn) -> None:
  """Raises `ValueError` if a step of training changes a variable of the model that is not trainable.

  Clients send updates of trainable weights only. So the moving statistics of a BatchNormalization would stay 0 and 1
  at the server, and the model would be tested with them.
  """
  with tf.Graph().as_default():
    model = model_fn()
    names = {id(v.handle): v.name.partition(':')[0] for v in model.non_trainable_variables if hasattr(v, 'handle')}
    if not names:
      return
    step = tf.function(lambda batch: model.forward_pass(batch, True), autograph=needs_autograph(model))
    graph = step.get_concrete_function(model.input_spec).graph
    read_only = set(auto_control_deps_utils.get_read_only_resource_input_indices_graph(graph))
    written = {id(tensor) for index, tensor in enumerate(graph.inputs) if index not in read_only}
    changed = [names[id(outer)] for outer, inner in graph.captures if id(outer) in names and id(inner) in written]
  if changed:
    raise ValueError(
      f'Training changes {", ".join(sorted(changed))}, which clients do not send: the server would test and publish the'
      " model with their initial values. Replace BatchNormalization by tf.keras.layers.GroupNormalization, which keeps "
      'no statistics, or freeze the layer (trainable=False).'
    )


def check_optimizer(name: str, optimizer: object) -> None:
  """Raises `TypeError` unless this is one of TFF's optimizers."""
  if not isinstance(optimizer, tff.learning.optimizers.Optimizer):
    raise TypeError(
      f'{name} must be one of tff.learning.optimizers, such as tff.learning.optimizers.build_sgdm(0.05) or '
      f'build_adam(0.001), found {type(optimizer).__name__}. Optimizers of Keras keep their state to themselves, but '
      'here it must begin anew for each client, and be part of the state at the server.'
    )


def needs_autograph(model: tff.learning.models.VariableModel, *optimizers: tff.learning.optimizers.Optimizer) -> bool:
  """True if the model or an optimizer may need AutoGraph. A model that does not need it has `needs_autograph = False`.

  AutoGraph rewrites Python code so that its `if` and `while` may depend on tensors. `tf.function` rewrites all code
  that it calls, which takes longer than tracing the code. Nothing in this package needs that, and nor do TFF's SGD and
  Adam. Users' models and optimizers may.
  """
  return getattr(model, 'needs_autograph', True) or not all(map(_is_plain, optimizers))


def without_autograph(optimizer: tff.learning.optimizers.Optimizer) -> tff.learning.optimizers.Optimizer:
  """The optimizer, marked so that AutoGraph does not rewrite it; unchanged if it may need AutoGraph."""
  if not _is_plain(optimizer):
    return optimizer
  optimizer = copy.copy(optimizer)
  optimizer.next = tf.autograph.experimental.do_not_convert(optimizer.next)
  return optimizer


def _is_plain(optimizer: object) -> bool:
  plain = [type(build(1.0)) for build in (tff.learning.optimizers.build_sgdm, tff.learning.optimizers.build_adam)]
  return type(optimizer) in plain


def without_initial_weights(model_fn: ModelFn) -> ModelFn:
  """`model_fn` whose weights start at zero, for models that are given weights before they are used.

  Drawing a large model's random weights costs about 1% of a client's training. Also, an unseeded initializer is a
  stateful op, which a runtime may have to run in the clients' order.

  Other variables, such as metrics, keep their initial values. The weights are recognized by their place in the order in
  which `model_fn` makes its variables. A variable whose shape or dtype differs from the expected one keeps its initial
  value.
  """
  created: list[tf.Variable] = []

  def record(next_creator: Callable[..., tf.Variable], **kwargs: object) -> tf.Variable:
    created.append(next_creator(**kwargs))
    return created[-1]

  with tf.Graph().as_default(), tf.variable_creator_scope(record):
    model = model_fn()
  weights = {id(v) for v in (*model.trainable_variables, *model.non_trainable_variables)}
  blank = {i: (v.shape, v.dtype) for i, v in enumerate(created) if id(v) in weights and v.shape.is_fully_defined()}

  def blank_model_fn() -> tff.learning.models.VariableModel:
    index = -1

    def create(next_creator: Callable[..., tf.Variable], **kwargs: object) -> tf.Variable:
      nonlocal index
      index += 1
      if index in blank and callable(kwargs.get('initial_value')):
        shape, dtype = blank[index]
        declared = kwargs.get('shape'), kwargs.get('dtype')
        if declared[0] is not None and tf.TensorShape(declared[0]) == shape and declared[1] == dtype:
          kwargs['initial_value'] = functools.partial(tf.zeros, shape, dtype)
      return next_creator(**kwargs)

    with tf.variable_creator_scope(create):
      return model_fn()

  return blank_model_fn


def without_metrics(model_fn: ModelFn) -> ModelFn:
  """The function that makes the same model without metrics, so that clients send none.

  Metrics are exact functions of clients' data and would leave the clients without noise.
  """
  return lambda: _WithoutMetrics(model_fn())


class _WithoutMetrics(tff.learning.models.VariableModel):
  """A model without metrics."""

  trainable_variables = property(lambda self: self._model.trainable_variables)
  non_trainable_variables = property(lambda self: self._model.non_trainable_variables)
  local_variables = property(lambda self: self._model.local_variables)
  input_spec = property(lambda self: self._model.input_spec)

  def __init__(self, model: tff.learning.models.VariableModel) -> None:
    self._model = model
    self.needs_autograph = needs_autograph(model)

  def forward_pass(self, batch_input: array_types.Structure, training: bool = True) -> tff.learning.models.BatchOutput:
    return self._model.forward_pass(batch_input, training)

  def predict_on_batch(self, batch_input: array_types.Structure, training: bool = True) -> array_types.Structure:
    return self._model.predict_on_batch(batch_input, training)

  def report_local_unfinalized_metrics(self) -> 'collections.OrderedDict[str, array_types.Structure]':
    return collections.OrderedDict()

  def metric_finalizers(self) -> 'collections.OrderedDict[str, Callable[..., tf.Tensor]]':
    return collections.OrderedDict()

  def reset_metrics(self) -> None:
    self._model.reset_metrics()


class Classifier(tff.learning.models.VariableModel):
  """A Keras classifier, with metrics over all batches since they were last reset.

  `tff.learning.models.from_keras_model` also makes such a model, but its metrics are Keras objects: TFF makes them
  again for each of a process's computations, and TensorFlow's AutoGraph rewrites their code. That took almost a third
  of the time to build a learning process.

  The metrics are `accuracy`, `loss`, `num_examples` and `num_batches`. The loss counts as often as its batch has
  examples.

  Args:
    keras_model: Gives scores of classes in the last dimension.
    loss: A function (labels, scores) -> scalar.
    input_spec: `<x=…, y=…>`, a batch of examples and their labels.
    label_weights: A function from labels to their weights in the accuracy, float32 of the same shape. By default, every
      label counts as 1.
  """

  # Nothing here has Python control flow that depends on tensors.
  needs_autograph = False

  def __init__(
    self,
    keras_model: tf.keras.Model,
    loss: Callable[..., tf.Tensor],
    input_spec: array_types.StructureSpec,
    label_weights: Optional[Callable[[tf.Tensor], tf.Tensor]] = None,
  ):
    self._keras_model = keras_model
    self._loss = loss
    self._input_spec = input_spec
    self._label_weights = label_weights if label_weights is not None else lambda y: tf.ones_like(y, tf.float32)
    self._metrics = collections.OrderedDict(
      accuracy=[_counter('accuracy_total', tf.float32), _counter('accuracy_count', tf.float32)],
      loss=[_counter('loss_total', tf.float32), _counter('loss_count', tf.float32)],
      num_examples=[_counter('num_examples', tf.int64)],
      num_batches=[_counter('num_batches', tf.int64)],
    )

  @property
  def trainable_variables(self) -> Sequence[tf.Variable]:
    return self._keras_model.trainable_variables

  @property
  def non_trainable_variables(self) -> Sequence[tf.Variable]:
    return self._keras_model.non_trainable_variables

  @property
  def local_variables(self) -> Sequence[tf.Variable]:
    return tf.nest.flatten(self._metrics)

  @property
  def input_spec(self) -> array_types.StructureSpec:
    return self._input_spec

  @tf.autograph.experimental.do_not_convert
  def predict_on_batch(self, batch_input: array_types.Structure, training: bool = True) -> tf.Tensor:
    return self._keras_model(batch_input, training=training)

  # A function of its own, as in TFF's model. Without it TensorFlow optimizes other graphs, and last bits change.
  @tf.function(autograph=False)
  def forward_pass(
    self, batch_input: Mapping[str, tf.Tensor], training: bool = True
  ) -> tff.learning.models.BatchOutput:
    x, y = batch_input['x'], batch_input['y']
    scores = self.predict_on_batch(x, training)
    loss = self._loss(y_true=y, y_pred=scores)
    num_examples = tf.shape(y)[0]
    hits = tf.cast(tf.equal(tf.cast(tf.math.argmax(scores, axis=-1), y.dtype), y), tf.float32)
    weights = self._label_weights(y)
    examples = tf.cast(num_examples, tf.float32)
    self._add('accuracy', tf.reduce_sum(hits * weights), tf.reduce_sum(weights))
    self._add('loss', loss * examples, examples)
    self._add('num_examples', tf.cast(num_examples, tf.int64))
    self._add('num_batches', tf.constant(1, tf.int64))
    return tff.learning.models.BatchOutput(loss=loss, predictions=scores, num_examples=num_examples)

  def _add(self, name: str, *amounts: tf.Tensor) -> None:
    for variable, amount in zip(self._metrics[name], amounts):
      variable.assign_add(amount)

  @tf.autograph.experimental.do_not_convert
  def report_local_unfinalized_metrics(self) -> collections.OrderedDict[str, list[tf.Tensor]]:
    return tf.nest.map_structure(lambda variable: variable.read_value(), self._metrics)

  def metric_finalizers(self) -> collections.OrderedDict[str, Callable[[Sequence[tf.Tensor]], tf.Tensor]]:
    def mean(values: Sequence[tf.Tensor]) -> tf.Tensor:
      return tf.math.divide_no_nan(*values)

    def only(values: Sequence[tf.Tensor]) -> tf.Tensor:
      return values[0]

    return collections.OrderedDict(accuracy=mean, loss=mean, num_examples=only, num_batches=only)

  @tf.autograph.experimental.do_not_convert
  def reset_metrics(self) -> None:
    for variable in self.local_variables:
      variable.assign(tf.zeros_like(variable))


def _counter(name: str, dtype: tf.DType) -> tf.Variable:
  return tf.Variable(lambda: tf.zeros([], dtype), trainable=False, name=name, dtype=dtype)


class MixedPrecisionClassifier(Classifier):
  """A classifier whose layers compute in bfloat16, with less work around the convolutions.

  In bfloat16 the convolutions are twice as fast as in float32, and biases and ReLUs are not. So the latter come after
  the max-pooling, where there are fewer numbers:

      pool(relu(c + b)) = relu(pool(c) + b)    c the convolution, b a bias for each channel

  Adding b, rounding and ReLU never swap the order of two numbers, so both sides are equal, bit for bit. The gradients
  are also equal, unless numbers of a window tie. If they are equal only because c + b was rounded, the left side gives
  the gradient to the first of them, and the right side to the one with the largest c. So models in float32 keep the
  left side, and with it the bits of their runs.

  Args:
    keras_model: A `tf.keras.Sequential` whose layers compute in bfloat16 and have float32 weights.
  """

  @tf.autograph.experimental.do_not_convert
  def predict_on_batch(self, batch_input: array_types.Structure, training: bool = True) -> tf.Tensor:
    return pooled_first(self._keras_model, batch_input, training)


def pooled_first(model: tf.keras.Sequential, x: tf.Tensor, training: bool) -> tf.Tensor:
  """The result of `model(x, training=training)`, with pooling before biases and ReLUs.

  Args:
    model: Its layers need not compute in bfloat16.
    x: A batch of examples.
    training: Whether layers such as dropout train.
  """
  layers = list(model.layers)
  while layers:
    layer = layers.pop(0)
    if layers and _adds_bias_and_relu(layer) and type(layers[0]) is tf.keras.layers.MaxPooling2D:
      dtype = layer.compute_dtype
      pooled = layers.pop(0)(layer.convolution_op(tf.cast(x, dtype), tf.cast(layer.kernel, dtype)))
      x = tf.nn.relu(tf.nn.bias_add(pooled, tf.cast(layer.bias, dtype)))
    elif 'training' in inspect.signature(layer.call).parameters:
      x = layer(x, training=training)
    else:
      x = layer(x)
  return x


def _adds_bias_and_relu(layer: tf.keras.layers.Layer) -> bool:
  """True if the layer is a convolution with a bias for each channel, the last dimension, and ReLU."""
  return (
    type(layer) is tf.keras.layers.Conv2D
    and layer.use_bias
    and layer.activation is tf.keras.activations.relu
    and layer.data_format == 'channels_last'
  )


class LabelledCrossEntropy(tf.keras.losses.Loss):
  """Mean cross-entropy, in nats, of logits float32[..., classes] over labels int[...] other than `NO_LABEL`.

      loss = Σ_{places with a label} -log softmax(logits)_y / (number of such places)

  It is 0 if there is no label, and then its gradient is also 0.
  """

  def __init__(self, reduction: str = tf.keras.losses.Reduction.NONE, name: str = 'labelled_cross_entropy'):
    super().__init__(reduction, name)

  def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """The mean, a scalar."""
    has_label = tf.not_equal(y_true, NO_LABEL)
    # A class number must be in range even where its loss is not counted.
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.where(has_label, y_true, 0), y_pred)
    counted = tf.cast(has_label, losses.dtype)
    return tf.math.divide_no_nan(tf.reduce_sum(losses * counted), tf.reduce_sum(counted))


def label_weights(labels: tf.Tensor) -> tf.Tensor:
  """The labels' weights in the accuracy, float32 of the same shape: 1, and 0 for `NO_LABEL`."""
  return tf.cast(tf.not_equal(labels, NO_LABEL), tf.float32)
