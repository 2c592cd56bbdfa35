"""Runs a compiled computation's building blocks.

A computation is compiled once into a tree of Python closures, `run(bindings) -> value`, and then called each round.
Work at the clients goes to a `runner`, which manages threads and devices.
"""

from typing import Any, Callable, Dict, List, Set

import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.runtime import errors
from quap_tff.runtime import tensorflow_blocks
from quap_tff.runtime import values

Bindings = Dict[str, Any]
Run = Callable[[Bindings], Any]

# Bound beside the computation's own names, which are identifiers.
_RUNNER = '<runner>'


class Program:
  """A computation ready to run.

  Args:
    block: The root building block, of functional type.
    on_trace: Called for each TensorFlow function that is traced.

  Raises:
    errors.UnsupportedComputationError: If a block or an intrinsic cannot be run; it is named.
  """

  def __init__(self, block: tff.framework.ComputationBuildingBlock, on_trace: Callable[[], None]):
    self._on_trace = on_trace
    self._blocks: Dict[bytes, tensorflow_blocks.TensorFlowBlock] = {}
    self._root = self._compile(block)

  def __call__(self, argument: Any, runner: Any) -> Any:
    """Runs the computation.

    Args:
      argument: Value of the parameter (see `values`), `None` where there is none.
      runner: Has `num_clients`, `server_device`, `device()` of the calling thread, `map(fn, items)` which runs `fn`
        once per client and returns the results in the clients' order, and `meter`, a `traffic.Meter` or None.

    Returns:
      The result's value.
    """
    return self._root({_RUNNER: runner})(argument)

  def _compile(self, block: tff.framework.ComputationBuildingBlock) -> Run:
    for kind, compile_kind in _COMPILERS:
      if isinstance(block, kind):
        return compile_kind(self, block)
    raise errors.UnsupportedComputationError(
        f'The in-process runtime cannot run a building block of kind {type(block).__name__}: {block}.')

  def _compile_tensorflow(self, block: tff.framework.CompiledComputation) -> Run:
    key = block.proto.SerializeToString(deterministic=True)
    if key not in self._blocks:
      self._blocks[key] = tensorflow_blocks.TensorFlowBlock(block.proto, self._on_trace)
    section = self._blocks[key]

    def run(bindings):
      runner = bindings[_RUNNER]
      function = lambda argument: section(argument, runner.device())
      function.section = section
      return function

    return run

  def _compile_lambda(self, block: tff.framework.Lambda) -> Run:
    body = self._compile(block.result)
    name = block.parameter_name
    if name is None:
      return lambda bindings: lambda _: body(bindings)
    return lambda bindings: lambda argument: body({**bindings, name: argument})

  def _compile_block(self, block: tff.framework.Block) -> Run:
    steps = [(name, self._compile(value)) for name, value in block.locals]
    result = self._compile(block.result)
    # A value that no later step reads is released at once: a cohort's updates are the round's largest values, and
    # every mapping makes another copy of them.
    later = _references(block.result)
    last_use: List[List[str]] = []
    own: Set[str] = {name for name, _ in block.locals}
    for name, value in reversed(block.locals):
      used = _references(value)
      last_use.append([other for other in (used | {name}) & own if other not in later])
      later |= used
    last_use.reverse()

    def run(bindings):
      bindings = dict(bindings)
      for (name, step), dead in zip(steps, last_use):
        bindings[name] = step(bindings)
        for other in dead:
          bindings.pop(other, None)
      return result(bindings)

    return run

  def _compile_call(self, block: tff.framework.Call) -> Run:
    argument = self._compile(block.argument) if block.argument is not None else (lambda bindings: None)
    if isinstance(block.function, tff.framework.Intrinsic):
      return self._compile_intrinsic_call(block.function, argument)
    function = self._compile(block.function)
    return lambda bindings: function(bindings)(argument(bindings))

  def _compile_intrinsic(self, block: tff.framework.Intrinsic) -> Run:
    call = self._compile_intrinsic_call(block, lambda bindings: bindings['<argument>'])
    return lambda bindings: lambda argument: call({**bindings, '<argument>': argument})

  def _compile_intrinsic_call(self, block: tff.framework.Intrinsic, argument: Run) -> Run:
    if block.uri not in _INTRINSICS:
      hint = ''
      if 'secure' in block.uri:
        hint = ' Secure aggregation runs only under tff.backends.test.set_sync_test_cpp_execution_context().'
      raise errors.UnsupportedComputationError(
          f'The in-process runtime has no intrinsic {block.uri!r} (type {block.type_signature}).{hint}')
    implementation = _INTRINSICS[block.uri]
    signature = block.type_signature
    return lambda bindings: implementation(bindings[_RUNNER], signature, argument(bindings))

  def _compile_reference(self, block: tff.framework.Reference) -> Run:
    name = block.name
    return lambda bindings: bindings[name]

  def _compile_selection(self, block: tff.framework.Selection) -> Run:
    source = self._compile(block.source)
    index = block.as_index()
    return lambda bindings: source(bindings)[index]

  def _compile_struct(self, block: tff.framework.Struct) -> Run:
    parts = [self._compile(part) for _, part in tff.structure.iter_elements(block)]
    return lambda bindings: tuple(part(bindings) for part in parts)

  def _compile_literal(self, block: tff.framework.Literal) -> Run:
    value = tf.constant(block.value, values.tf_dtype(block.type_signature.dtype))
    return lambda bindings: value


_COMPILERS = (
    (tff.framework.CompiledComputation, Program._compile_tensorflow),
    (tff.framework.Lambda, Program._compile_lambda),
    (tff.framework.Block, Program._compile_block),
    (tff.framework.Call, Program._compile_call),
    (tff.framework.Intrinsic, Program._compile_intrinsic),
    (tff.framework.Reference, Program._compile_reference),
    (tff.framework.Selection, Program._compile_selection),
    (tff.framework.Struct, Program._compile_struct),
    (tff.framework.Literal, Program._compile_literal),
)


def _references(block: tff.framework.ComputationBuildingBlock) -> Set[str]:
  """Names that `block` mentions. Bound ones are among them, which errs on the side of keeping a value."""
  names: Set[str] = set()

  def visit(inner):
    if isinstance(inner, tff.framework.Reference):
      names.add(inner.name)
    return inner, False

  tff.framework.transform_postorder(block, visit)
  return names


def _aggregate(runner, signature, argument):
  # In the cohort's order, on one thread: floating-point sums depend on their order, and this one never changes.
  value, accumulator, accumulate, merge, report = argument
  if runner.meter is not None:
    runner.meter.aggregate(runner.per_client(value), signature.parameter[0].member)
  for update in runner.per_client(value):
    accumulator = accumulate((accumulator, update))
  del merge  # One accumulator only.
  return report(accumulator)


def _broadcast(runner, signature, argument):
  if runner.meter is not None:
    runner.meter.broadcast(argument, signature.parameter.member)
  return argument


def _zip(value, signature):
  """Clients' structs of what `value` holds as a struct of client values; all-equal parts are repeated by reference."""
  if isinstance(signature, tff.FederatedType):
    return value
  parts = [_zip(part, t) for part, (_, t) in zip(value, tff.structure.to_elements(signature))]
  sizes = [len(part) for part in parts if isinstance(part, values.PerClient)]
  if not sizes:
    return tuple(parts)
  columns = [part if isinstance(part, values.PerClient) else [part] * sizes[0] for part in parts]
  return values.PerClient(zip(*columns))


def _zip_at_clients(runner, signature, argument):
  zipped = _zip(argument, signature.parameter)
  if isinstance(zipped, values.PerClient) or signature.result.all_equal:
    return zipped
  return values.PerClient([zipped] * runner.num_clients)


def _select(runner, signature, argument):
  keys, _, server_value, select = argument
  element_type = signature.result.member.element

  def one(client_keys):
    slices = [select((server_value, key)) for key in tf.unstack(client_keys)]
    if runner.meter is not None:
      runner.meter.select(client_keys, slices, signature.parameter[0].member, element_type)
    return values.sequence_from_values(slices, element_type)

  return runner.map(one, runner.per_client(keys))


def _zero(type_spec):
  if isinstance(type_spec, tff.TensorType):
    return tf.zeros(type_spec.shape, values.tf_dtype(type_spec.dtype))
  return tuple(_zero(t) for _, t in tff.structure.iter_elements(type_spec))


def _plus(left, right):
  return tuple(_plus(a, b) for a, b in zip(left, right)) if isinstance(left, tuple) else tf.add(left, right)


def _elements(variant, element_type):
  for element in values.dataset(variant, element_type):
    yield values.element_to_value(element, element_type)


def _sequence_map(runner, signature, argument):
  function, sequence = argument
  source_type = signature.parameter[1].element
  mapped = [function(element) for element in _elements(sequence, source_type)]
  return values.sequence_from_values(mapped, signature.result.element)


def _sequence_reduce(runner, signature, argument):
  sequence, accumulator, operator = argument
  for element in _elements(sequence, signature.parameter[0].element):
    accumulator = operator((accumulator, element))
  return accumulator


def _sequence_sum(runner, signature, argument):
  total = _zero(signature.result)
  for element in _elements(argument, signature.parameter.element):
    total = _plus(total, element)
  return total


def _map(runner, signature, argument):
  function, value = argument
  return runner.map(function, runner.per_client(value))


_INTRINSICS = {
    'federated_aggregate': _aggregate,
    'federated_apply': lambda runner, signature, argument: argument[0](argument[1]),
    'federated_broadcast': _broadcast,
    'federated_eval_at_clients': lambda runner, signature, argument: runner.map(argument, [None] * runner.num_clients),
    'federated_eval_at_server': lambda runner, signature, argument: argument(None),
    'federated_map': _map,
    'federated_map_all_equal': lambda runner, signature, argument: argument[0](argument[1]),
    'federated_select': _select,
    'federated_value_at_clients': lambda runner, signature, argument: argument,
    'federated_value_at_server': lambda runner, signature, argument: argument,
    'federated_zip_at_clients': _zip_at_clients,
    'federated_zip_at_server': lambda runner, signature, argument: argument,
    'generic_zero': lambda runner, signature, argument: _zero(signature),
    'sequence_map': _sequence_map,
    'sequence_reduce': _sequence_reduce,
    'sequence_sum': _sequence_sum,
}
