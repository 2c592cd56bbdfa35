"""Runs a compiled computation's building blocks.

A computation is compiled once into a tree of Python closures, `run(bindings) -> value`, and then called each round.
`streaming` runs the outermost block, the only one with clients. It binds one client's values at a time, so a block here
never sees a cohort: a client's step on its values is written like a server's step on one value.
"""

from collections.abc import Iterator, Sequence
import functools
from typing import Callable, Optional

import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.runtime.in_process import streaming
from quap_tff.runtime.in_process import tensorflow_blocks
from quap_tff.runtime.values import errors
from quap_tff.runtime.values import traffic
from quap_tff.runtime.values import values

_RUNNER = streaming.RUNNER


class InterpretedProgram:
  """A computation ready to run.

  Args:
    block: The root building block, of functional type.
    on_trace: Called for each TensorFlow function that is traced.

  Raises:
    errors.UnsupportedComputationError: If a block or an intrinsic cannot be run; it is named.
  """

  def __init__(self, block: tff.framework.ComputationBuildingBlock, on_trace: Callable[[], None]):
    self._on_trace = on_trace
    self._sections: dict[bytes, tensorflow_blocks.TensorFlowBlock] = {}
    self._root: streaming.Run
    if isinstance(block, tff.framework.Lambda):
      name, body = block.parameter_name, streaming.Body(block, self)

      def root(bindings: streaming.Bindings) -> streaming.Value:
        def run(argument: streaming.Value) -> streaming.Value:
          own = bindings if name is None else {**bindings, name: argument}
          return body(own)

        return run

      self._root = root
    else:
      self._root = self.compile(block)

  def __call__(self, argument: streaming.Value, runner: streaming.Runner) -> streaming.Value:
    """Runs the computation.

    Args:
      argument: Value of the parameter (see `values`), `None` where there is none.
      runner: The invocation's threads and devices (`in_process._Runner`).

    Returns:
      The result's value.
    """
    return self._root({_RUNNER: runner})(argument)

  @functools.singledispatchmethod
  def compile(self, block: tff.framework.ComputationBuildingBlock) -> streaming.Run:
    """A building block as a function of bindings."""
    raise errors.UnsupportedComputationError(
      f'The in-process runtime cannot run a building block of kind {type(block).__name__}: {block}.'
    )

  def functions_of(
    self, blocks: Sequence[tff.framework.ComputationBuildingBlock]
  ) -> list[tensorflow_blocks.GraphFunction]:
    """The TensorFlow functions that `blocks` call."""
    sections = [part for block in blocks for part in streaming.parts_of(block, tff.framework.CompiledComputation)]
    return list(dict.fromkeys(self._section(section).function for section in sections))

  def join(
    self,
    blocks: Sequence[tff.framework.ComputationBuildingBlock],
    make: Callable[[streaming.Bindings, Sequence[streaming.Bindings]], streaming.Value],
    shared_types: dict[str, tff.Type],
    own_types: dict[str, tff.Type],
  ) -> Optional[tensorflow_blocks.Joined]:
    """`make` as one TensorFlow function for each number of clients, or None if that cannot be.

    Args:
      blocks: The building blocks that `make` runs.
      make: A function of the bindings that clients share, and of each client's own.
      shared_types: The type of each name of the former.
      own_types: The type of each name of the latter.
    """
    intrinsics = [part.uri for block in blocks for part in streaming.parts_of(block, tff.framework.Intrinsic)]
    # They look into their values in Python, and in a graph there is nothing to look at yet.
    if not _READING_INTRINSICS.isdisjoint(intrinsics):
      return None
    shared = {name: values.tensor_specs(type_) for name, type_ in shared_types.items()}
    own = {name: values.tensor_specs(type_) for name, type_ in own_types.items()}

    def traced(
      tracer: tensorflow_blocks.Tracer, bindings: streaming.Bindings, clients: Sequence[streaming.Bindings]
    ) -> streaming.Value:
      return make({_RUNNER: tracer, **bindings}, clients)

    return tensorflow_blocks.Joined(traced, shared, own, self._on_trace)

  def _section(self, block: tff.framework.CompiledComputation) -> tensorflow_blocks.TensorFlowBlock:
    # TFF puts copies of one section into a computation. By their bytes, all copies are traced once.
    key = block.proto.SerializeToString(deterministic=True)
    if key not in self._sections:
      self._sections[key] = tensorflow_blocks.TensorFlowBlock(block.proto, self._on_trace)
    return self._sections[key]

  @compile.register
  def _(self, block: tff.framework.CompiledComputation) -> streaming.Run:
    section = self._section(block)

    def run(bindings: streaming.Bindings) -> Callable[[streaming.Value], streaming.Value]:
      runner = bindings[_RUNNER]
      return lambda argument: runner.call(section, argument)

    return run

  @compile.register
  def _(self, block: tff.framework.Lambda) -> streaming.Run:
    body = self.compile(block.result)
    name = block.parameter_name
    if name is None:
      return lambda bindings: lambda _: body(bindings)
    return lambda bindings: lambda argument: body({**bindings, name: argument})

  @compile.register
  def _(self, block: tff.framework.Block) -> streaming.Run:
    steps = [(name, self.compile(value)) for name, value in block.locals]
    result = self.compile(block.result)

    def run(bindings: streaming.Bindings) -> streaming.Value:
      # A block's names are its own: another client runs it with the same outer bindings.
      bindings = dict(bindings)
      for name, step in steps:
        bindings[name] = step(bindings)
      return result(bindings)

    return run

  @compile.register
  def _(self, block: tff.framework.Call) -> streaming.Run:
    argument = self.compile(block.argument) if block.argument is not None else (lambda bindings: None)
    if isinstance(block.function, tff.framework.Intrinsic):
      return self._compile_intrinsic_call(block.function, argument)
    function = self.compile(block.function)
    return lambda bindings: function(bindings)(argument(bindings))

  @compile.register
  def _(self, block: tff.framework.Intrinsic) -> streaming.Run:
    # An intrinsic that is passed on as a function. No name in a computation has brackets.
    call = self._compile_intrinsic_call(block, lambda bindings: bindings['<argument>'])
    return lambda bindings: lambda argument: call({**bindings, '<argument>': argument})

  def _compile_intrinsic_call(self, block: tff.framework.Intrinsic, argument: streaming.Run) -> streaming.Run:
    # Here and not in `run`: a round that cannot be run must not begin.
    if block.uri not in _INTRINSICS:
      hint = ''
      if block.uri == 'federated_secure_select':
        hint = ' It runs only under tff.backends.test.set_sync_test_cpp_execution_context().'
      raise errors.UnsupportedComputationError(
        f'The in-process runtime has no intrinsic {block.uri!r} (type {block.type_signature}).{hint}'
      )
    implementation = _INTRINSICS[block.uri]
    signature = block.type_signature
    return lambda bindings: implementation(bindings[_RUNNER], signature, argument(bindings))

  @compile.register
  def _(self, block: tff.framework.Reference) -> streaming.Run:
    name = block.name
    return lambda bindings: bindings[name]

  @compile.register
  def _(self, block: tff.framework.Selection) -> streaming.Run:
    source = self.compile(block.source)
    index = block.as_index()
    return lambda bindings: source(bindings)[index]

  @compile.register
  def _(self, block: tff.framework.Struct) -> streaming.Run:
    parts = [self.compile(part) for _, part in tff.structure.iter_elements(block)]
    # A tuple of a list is made faster than one of a generator, and this runs for each client.
    return lambda bindings: tuple([part(bindings) for part in parts])

  @compile.register
  def _(self, block: tff.framework.Literal) -> streaming.Run:
    value = tf.constant(block.value, values.tf_dtype(block.type_signature.dtype))
    return lambda bindings: value


def _broadcast(runner: streaming.Runner, signature: tff.FunctionType, argument: streaming.Value) -> streaming.Value:
  if runner.meter is not None:
    runner.meter.add(down=runner.num_clients * traffic.sizer(signature.parameter.member)(argument))
  return argument


def _select(runner: streaming.Runner, signature: tff.FunctionType, argument: streaming.Value) -> streaming.Value:
  keys, _, server_value, select = argument
  element_type = signature.result.member.element
  slices = [select((server_value, key)) for key in tf.unstack(keys)]
  if runner.meter is not None:
    slice_bytes, key_bytes = traffic.sizer(element_type), traffic.sizer(signature.parameter[0].member)
    runner.meter.add(down=sum(slice_bytes(part) for part in slices), up=key_bytes(keys))
  return values.sequence_from_values(slices, element_type)


def _zero(type_spec: tff.Type) -> streaming.Value:
  return tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), values.tensor_specs(type_spec))


def _elements(variant: tf.Tensor, element_type: tff.Type) -> Iterator[streaming.Value]:
  for element in values.dataset(variant, element_type):
    yield values.element_to_value(element, element_type)


def _sequence_map(runner: streaming.Runner, signature: tff.FunctionType, argument: streaming.Value) -> streaming.Value:
  function, sequence = argument
  source_type = signature.parameter[1].element
  mapped = [function(element) for element in _elements(sequence, source_type)]
  return values.sequence_from_values(mapped, signature.result.element)


def _sequence_reduce(
  runner: streaming.Runner, signature: tff.FunctionType, argument: streaming.Value
) -> streaming.Value:
  sequence, accumulator, operator = argument
  for element in _elements(sequence, signature.parameter[0].element):
    accumulator = operator((accumulator, element))
  return accumulator


def _sequence_sum(runner: streaming.Runner, signature: tff.FunctionType, argument: streaming.Value) -> streaming.Value:
  total = _zero(signature.result)
  for element in _elements(argument, signature.parameter.element):
    total = tf.nest.map_structure(tf.add, total, element)
  return total


def _apply(runner: streaming.Runner, signature: tff.FunctionType, argument: streaming.Value) -> streaming.Value:
  function, value = argument
  return function(value)


def _evaluate(runner: streaming.Runner, signature: tff.FunctionType, argument: streaming.Value) -> streaming.Value:
  return argument(None)


def _same(runner: streaming.Runner, signature: tff.FunctionType, argument: streaming.Value) -> streaming.Value:
  return argument


# At a client these run once for each client, on its values.
_INTRINSICS = {
  'federated_apply': _apply,
  'federated_broadcast': _broadcast,
  'federated_eval_at_clients': _evaluate,
  'federated_eval_at_server': _evaluate,
  'federated_map': _apply,
  'federated_map_all_equal': _apply,
  'federated_select': _select,
  'federated_value_at_clients': _same,
  'federated_value_at_server': _same,
  'federated_zip_at_clients': _same,
  'federated_zip_at_server': _same,
  'generic_zero': lambda runner, signature, argument: _zero(signature),
  'sequence_map': _sequence_map,
  'sequence_reduce': _sequence_reduce,
  'sequence_sum': _sequence_sum,
}
# These look into their values in Python, or count them.
_READING_INTRINSICS = frozenset(
  ['federated_broadcast', 'federated_select', 'sequence_map', 'sequence_reduce', 'sequence_sum']
)
