"""TensorFlow graphs of a bundle as functions of this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import math
import secrets
from typing import Any

import numpy as np

from quap_tff.bundle import structures
from quap_tff.common.lazy import tf

# TensorFlow's name for variables that belong to one run of their op alone (`ResourceHandle::ANONYMOUS_NAME`).
_ANONYMOUS = 'cd2c89b7-88b7-44c8-ad83-06c2a9158347'


def _as_array(value: Any) -> Any:
  return value.numpy() if tf.is_tensor(value) else value


class Graph:
  """A graph of a bundle, callable on values.

  Calls may overlap. Each has variables of its own, and a copy of the function: ops that read datasets have one thread
  for each copy.

  Args:
    graph_def: The serialized GraphDef.
    bindings: By name:
      parameter, result: Types, see `values`. The parameter has a field for each argument.
      arguments, results: The names of the tensors of both, in order.
      inputs: The name, dtype and shape of each argument that the graph reads.
      variables: The names of handles, each with the dtype and the shape of its variable.
      entropy: The names of tensors that are drawn from the operating system's entropy, each with its shape; int64.
      counts: The name of the tensor that says whether a client's update counts; None if nothing says it.
  """

  def __init__(self, graph_def: bytes, bindings: Mapping[str, Any]):
    self._graph_def, self._bindings = graph_def, bindings
    arguments = bindings['arguments']
    self._fetches = [name for name in dict.fromkeys(bindings['results']) if name not in arguments]
    if bindings['counts'] is not None and bindings['counts'] not in self._fetches:
      self._fetches.append(bindings['counts'])
    self._free: list[Any] = []

  @property
  def parameter(self) -> structures.Type:
    """The type of the parameter."""
    return self._bindings['parameter']

  @property
  def result(self) -> structures.Type:
    """The type of the result."""
    return self._bindings['result']

  def __call__(self, *parts: Any) -> Any:
    """The result for the fields of the parameter, see `values`; its leaves are NumPy arrays.

    Raises:
      ValueError: If an argument is not of its type.
    """
    return self.with_verdict(*parts)[0]

  def with_verdict(self, *parts: Any) -> tuple[Any, bool]:
    """The result, and whether the client's update counts: False if the mechanism puts zeros in its place."""
    leaves = [
      leaf
      for (name, kind), part in zip(self.parameter['fields'], parts)
      for leaf in structures.flatten(kind, part, name)
    ]
    tensors = dict(zip(self._bindings['arguments'], leaves))
    if self._fetches:
      inputs = [tf.convert_to_tensor(tensors[name]) for name, *_ in self._bindings['inputs']]
      tensors.update(zip(self._fetches, self._run(inputs)))
    results = [tensors[name] for name in self._bindings['results']]
    result = structures.pack(self.result, map(_as_array, results))
    counts = self._bindings['counts']
    return result, counts is None or bool(tensors[counts])

  def _run(self, inputs: list[Any]) -> Sequence[Any]:
    for _, shape in self._bindings['entropy']:
      drawn = np.frombuffer(secrets.token_bytes(8 * math.prod(shape)), np.int64)
      inputs.append(tf.constant(drawn.reshape(shape)))
    # Threads take from the list and add to it safely.
    try:
      function = self._free.pop()
    except IndexError:
      function = self._traced()
    try:
      return function(*inputs)
    finally:
      self._free.append(function)

  def _traced(self) -> Any:
    graph_def, known = tf.compat.v1.GraphDef.FromString(self._graph_def), self._bindings
    names = [name for name, *_ in (*known['inputs'], *known['entropy'])]

    def function(*inputs: tf.Tensor) -> list[tf.Tensor]:
      tensors = dict(zip(names, inputs))
      for name, dtype, shape in known['variables']:
        tensors[name] = tf.raw_ops.VarHandleOp(dtype=dtype, shape=shape, shared_name=_ANONYMOUS)
      return tf.graph_util.import_graph_def(graph_def, input_map=tensors, return_elements=self._fetches, name='')

    specs = [tf.TensorSpec(shape, dtype) for _, dtype, shape in known['inputs']]
    specs += [tf.TensorSpec(shape, tf.int64) for _, shape in known['entropy']]
    return tf.compat.v1.wrap_function(function, specs)
