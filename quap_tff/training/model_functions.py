"""Functions that make a `tff.learning.models.VariableModel` anew on each call, which TFF calls a `model_fn`.

Everything that takes a model takes it in any of three forms: a `model_fn`, a `tff.learning.models.FunctionalModel`, or
a function that returns one.
"""

import collections
import copy
from typing import Any, Callable, Union

import tensorflow as tf
import tensorflow_federated as tff

ModelFn = Callable[[], tff.learning.models.VariableModel]
Model = Union[ModelFn, tff.learning.models.FunctionalModel, Callable[[], tff.learning.models.FunctionalModel]]


def of(model: Model) -> ModelFn:
  """The `model_fn` of a model in any of the three forms. Calling it again on the result changes nothing."""

  def model_fn():
    made = model if isinstance(model, tff.learning.models.FunctionalModel) else model()
    if isinstance(made, tff.learning.models.FunctionalModel):
      return tff.learning.models.model_from_functional(made)
    return made

  return model_fn


def initial_weights(model_fn: ModelFn) -> tff.Computation:
  """A computation without arguments that gives the model's first weights, a `tff.learning.models.ModelWeights`."""
  return tff.tensorflow.computation(lambda: tff.learning.models.ModelWeights.from_model(model_fn()))


def needs_autograph(model: tff.learning.models.VariableModel, *optimizers: tff.learning.optimizers.Optimizer) -> bool:
  """Whether the model or an optimizer may need AutoGraph. A model that does not need it has `needs_autograph = False`.

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


def _is_plain(optimizer: Any) -> bool:
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

  def __init__(self, model):
    self._model = model
    self.needs_autograph = needs_autograph(model)

  def forward_pass(self, batch_input, training=True):
    return self._model.forward_pass(batch_input, training)

  def predict_on_batch(self, batch_input, training=True):
    return self._model.predict_on_batch(batch_input, training)

  def report_local_unfinalized_metrics(self):
    return collections.OrderedDict()

  def metric_finalizers(self):
    return collections.OrderedDict()

  def reset_metrics(self):
    self._model.reset_metrics()
