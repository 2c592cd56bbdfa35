"""Sections that run one after the other on the same client's values, joined into one TensorFlow function.

A call of a function costs about as much as a small client's arithmetic. So what a pass through the cohort makes of a
client is traced as a whole: the interpreter runs once on tensors of a graph, and each section adds its nodes to it.
"""

from typing import Any, Callable

import tensorflow as tf

from quap_tff.runtime import section_graphs
from quap_tff.runtime import tensorflow_blocks


class Joined:
  """Makes values of other values, in one call of TensorFlow.

  Args:
    make: What makes them: (runner, bindings) -> value, built on sections and on what passes values on. It may not look
      into a value in Python.
    specs: For each name that `make` reads from its bindings, the `tf.TensorSpec`s of the value, nested as the value is.
    on_trace: See `tensorflow_blocks.GraphFunction`.

  Attributes:
    function: What runs it.
  """

  def __init__(self, make: Callable[[Any, dict[str, Any]], Any], specs: dict[str, Any], on_trace: Callable[[], None]):
    self._make = make
    self._specs = dict(specs)
    self._pack: Any = None
    self.function = tensorflow_blocks.GraphFunction(self._make_graph, on_trace)

  def __call__(self, bindings: dict[str, Any], device: str) -> Any:
    """The values that `make` would make of `bindings`."""
    leaves: list[tf.Tensor] = []
    tensorflow_blocks.flatten(tuple([bindings[name] for name in self._specs]), leaves)
    outputs = self.function(leaves, device)
    return self._pack([*outputs, *leaves])

  def _make_graph(self) -> section_graphs.SectionGraph:
    with tf.Graph().as_default() as graph:
      bindings = {name: _placeholders(specs) for name, specs in self._specs.items()}
      arguments: list[tf.Tensor] = []
      tensorflow_blocks.flatten(tuple(bindings.values()), arguments)
      tracer = _Tracer()
      value = _in_graph(self._make(tracer, bindings))
    results: list[tf.Tensor] = []
    tensorflow_blocks.flatten((value,), results)
    names = [argument.name for argument in arguments]
    fetches = [name for name in dict.fromkeys(result.name for result in results) if name not in names]
    found = {name: i for i, name in enumerate(fetches + names)}
    self._pack = tensorflow_blocks.packer(_mapped(lambda result: found[result.name], value))
    return section_graphs.of_graph(graph, arguments, tracer.handles, tracer.variables, fetches)


class _Tracer:
  """Stands for the runner (`interpreter.Program`) where sections are added to a graph, and not run.

  Attributes:
    handles: Placeholders for the handles of the sections' variables.
    variables: The variables' dtypes and shapes.
  """

  def __init__(self):
    self.handles: list[tf.Tensor] = []
    self.variables: list[tuple[tf.DType, tf.TensorShape]] = []

  def call(self, section: tensorflow_blocks.TensorFlowBlock, argument: Any) -> Any:
    return section.add_to_current_graph(_in_graph(argument), self._new_handle)

  def _new_handle(self, variable: tuple[tf.DType, tf.TensorShape]) -> tf.Tensor:
    self.variables.append(variable)
    self.handles.append(tf.compat.v1.placeholder(tf.resource, []))
    return self.handles[-1]


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
  return tuple([_mapped(function, part) for part in value]) if isinstance(value, tuple) else function(value)


def _placeholders(specs: Any) -> Any:
  return _mapped(lambda spec: tf.compat.v1.placeholder(spec.dtype, spec.shape), specs)


def _in_graph(value: Any) -> Any:
  """`value` with its eager tensors, which are constants of the computation, as constants of the current graph."""
  if value is None:
    return None
  return _mapped(lambda leaf: leaf if tf.is_symbolic_tensor(leaf) else tf.constant(leaf.numpy(), leaf.dtype), value)
