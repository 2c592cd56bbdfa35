"""Runs the part of a computation that has clients: passes through the cohort, with sums taken as results come.

Each pass (`schedule`) makes one client's values at a time on each thread, on bindings that hold this client's values
only. The calling thread gives the results to the aggregations, in the cohort's order and with a bounded number of
clients ahead of it. So the order of every floating-point sum is the cohort's for any number of threads, and a value
lives until the last aggregation has taken it.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
import contextlib
import functools
from typing import Callable, Optional, Protocol, TYPE_CHECKING, TypeVar

import tensorflow_federated as tff

from quap_tff.runtime.in_process import schedule
from quap_tff.runtime.in_process import tensorflow_blocks
from quap_tff.runtime.values import errors
from quap_tff.runtime.values import traffic
from quap_tff.runtime.values import values

if TYPE_CHECKING:  # It imports this module.
  from quap_tff.runtime.in_process import interpreter

Value = values.Value
# The inputs of the aggregations from a client, and its values to keep.
FromClient = tuple[tuple[Value, ...], tuple[Value, ...]]
Bindings = dict[str, Value]
Run = Callable[[Bindings], Value]
T = TypeVar('T')

# Bound alongside the computation's own names, which are identifiers.
RUNNER = '<runner>'
_RESULT = '<result>'


class Runner(Protocol):
  """One invocation's threads and devices: `context._Runner`."""

  num_clients: int
  meter: Optional[traffic.Meter]

  @property
  def joins(self) -> bool: ...

  def block_size(self, num_bytes: int, clients_before: int) -> int: ...

  def device(self) -> str: ...

  def call(self, section: tensorflow_blocks.TensorFlowBlock, argument: Value) -> Value: ...

  def map(
    self,
    function: Callable[[Sequence[Bindings]], Sequence[Value]],
    items: Iterable[Bindings],
    functions: Sequence[tensorflow_blocks.GraphFunction] = (),
    size: int = 1,
    instead: Optional[Callable[[Bindings], Bindings]] = None,
  ) -> Generator[Sequence[Value], None, None]: ...


class Body:
  """The work of a computation on its argument, ready to run: `body(bindings) -> value`.

  Args:
    function: The computation, in TFF's call-dominant form: all that has clients is a local of the outermost block.
    program: Compiles building blocks (`interpreter.InterpretedProgram`).

  Raises:
    errors.UnsupportedComputationError: If clients' values come from anything but an intrinsic.
  """

  def __init__(self, function: tff.framework.Lambda, program: 'interpreter.InterpretedProgram'):
    body = function.result
    if isinstance(body, tff.framework.Call):
      # A computation that is one call has no block around it.
      body = tff.framework.Block([(_RESULT, body)], tff.framework.Reference(_RESULT, body.type_signature))
    elif not isinstance(body, tff.framework.Block):
      body = tff.framework.Block([], body)
    self.program = program
    self.argument_name = function.parameter_name
    self.argument_of_client = _selector(function.parameter_type)
    self.without_examples = values.without_examples(function.parameter_type)
    self.types = {name: block.type_signature for name, block in body.locals}
    self.types[self.argument_name] = function.parameter_type
    self.blocks = _without_detours(dict(body.locals))
    self.local_values: dict[str, schedule.NamedValue] = {}
    known = {name for name, _ in body.locals}
    for name, block in body.locals:
      mentioned = references(self.blocks[name])
      uses, reads_argument = frozenset(mentioned & known), self.argument_name in mentioned
      self.local_values[name] = schedule.NamedValue(name, _kind(name, block), uses, reads_argument)
    in_result = references(body.result) & known
    order = schedule.plan(list(self.local_values.values()), in_result)
    needs = []
    for entry in order:
      names = [entry] if isinstance(entry, str) else entry.steps + entry.aggregates
      needs.append(self.needs(names))
    self._steps: list[tuple[Callable[[Bindings], None], set[str]]] = []
    for position, (entry, own_needs) in enumerate(zip(order, needs), 1):
      # Positions count from 1, so these are the needs of all that comes after.
      later = in_result.union(*needs[position:])
      run = self._server_step(entry) if isinstance(entry, str) else _Pass(self, entry, own_needs, later).run
      self._steps.append((run, own_needs - later))
    self._result = program.compile(body.result)

  def __call__(self, bindings: Bindings) -> Value:
    # What is bound here is of this call alone.
    bindings = dict(bindings)
    for step, released in self._steps:
      step(bindings)
      # No later step needs them, so their memory is given back.
      for name in released:
        bindings.pop(name, None)
    return self._result(bindings)

  def needs(self, names: Sequence[str]) -> set[str]:
    """The locals that these ones mention."""
    return set().union(*(self.local_values[name].uses for name in names))

  def _server_step(self, name: str) -> Callable[[Bindings], None]:
    run = self.program.compile(self.blocks[name])

    def step(bindings: Bindings) -> None:
      bindings[name] = run(bindings)

    return step


class _Aggregation:
  """A `federated_aggregate`: zero, accumulate and report at the server. There is one accumulator, so nothing merges."""

  def __init__(
    self, name: str, call: tff.framework.Call, compile_block: Callable[[tff.framework.ComputationBuildingBlock], Run]
  ):
    if isinstance(call.argument, tff.framework.Struct):
      parts = [part for _, part in tff.structure.iter_elements(call.argument)]
    else:
      # The value, its zero, and the functions accumulate, merge and report.
      parts = [tff.framework.Selection(call.argument, index=i) for i in range(5)]
    self.name, self.value_name = name, f'<value of {name}>'
    self.value_block, self.accumulate_block = parts[0], parts[2]
    self.value_uses = references(parts[0])
    self.value, self._zero, self._accumulate, _, self._report = (compile_block(part) for part in parts)
    self.num_bytes = traffic.sizer(call.function.type_signature.parameter[0].member)

  def start(self, bindings: Bindings) -> None:
    bindings[self.name] = self._zero(bindings)

  def sum(self, bindings: Bindings) -> Value:
    """The next accumulator, of the one and the value that are bound."""
    return self._accumulate(bindings)((bindings[self.name], bindings[self.value_name]))

  def finish(self, bindings: Bindings) -> None:
    bindings[self.name] = self._report(bindings)(bindings[self.name])


def _sums(aggregations: Sequence[_Aggregation], shared: Bindings, clients: Sequence[Bindings]) -> tuple[Value, ...]:
  """The next accumulators, after the values of a block's clients, one client after the other."""
  totals = dict(shared)
  for own in clients:
    bindings = {**totals, **own}
    # In the cohort's order, client by client: another order would round floating-point sums in another way.
    totals.update({one.name: one.sum(bindings) for one in aggregations})
  return tuple([totals[one.name] for one in aggregations])


def _joined_sums(aggregations: Sequence[_Aggregation], body: Body) -> Optional[tensorflow_blocks.Joined]:
  """All `_sums` in one call of TensorFlow; None if that cannot be."""
  if any(references(one.accumulate_block) & body.types.keys() for one in aggregations):
    return None  # A sum that needs more than its accumulator and its value.
  totals, own_values = {}, {}
  for one in aggregations:
    totals[one.name], own_values[one.value_name] = one.accumulate_block.type_signature.parameter
  blocks = [one.accumulate_block for one in aggregations]
  return body.program.join(blocks, functools.partial(_sums, aggregations), totals, own_values)


class _Pass:
  """A `schedule.Pass` of a body, ready to run; `later` are the names that later passes or the result need."""

  def __init__(self, body: Body, entry: schedule.Pass, needs: set[str], later: set[str]):
    program = body.program
    self._steps = [(name, program.compile(body.blocks[name])) for name in entry.steps]
    self._aggregations = [_Aggregation(name, body.blocks[name], program.compile) for name in entry.aggregates]
    self._sums = _joined_sums(self._aggregations, body)
    self._kept = [name for name in entry.steps if name in later]
    of_clients = {name for name in needs if body.local_values[name].kind == schedule.CLIENT}
    # Clients' values of earlier passes, and whether anything needs them afterwards.
    self._earlier = {name: name in later for name in of_clients - set(entry.steps)}
    # The server's values that clients use.
    self._shared = (needs - of_clients) & body.needs(entry.steps).union(*(one.value_uses for one in self._aggregations))
    # A client's argument may be made on demand, so it is not asked for without need.
    reads_argument = any(body.local_values[name].reads_argument for name in entry.steps + entry.aggregates)
    self._argument_name = body.argument_name if reads_argument else None
    self._argument_of_client = body.argument_of_client
    self._without_examples = body.without_examples if reads_argument else None
    blocks = [body.blocks[name] for name in entry.steps] + [one.value_block for one in self._aggregations]
    self._functions = program.functions_of(blocks)
    own_names = [self._argument_name, *self._earlier] if reads_argument else self._earlier
    shared_types = {name: body.types[name] for name in self._shared}
    own_types = {name: body.types[name] for name in own_names}
    # A client's values, for one or several clients, as one call of TensorFlow; None if that cannot be.
    self._joined = program.join(blocks, self._each, shared_types, own_types)
    # A zip gathers values that are there already, such as what the server has sent to all.
    made = [name for name in entry.steps if _intrinsic(body.blocks[name]) != 'federated_zip_at_clients']
    self._num_bytes = sum(values.static_bytes(body.types[name]) for name in made)
    self._clients_before = 0  # In all rounds.

  def run(self, bindings: Bindings) -> None:
    for aggregation in self._aggregations:
      aggregation.start(bindings)
    kept = {name: values.PerClient() for name in self._kept}
    runner: Runner = bindings[RUNNER]
    shared = {name: bindings[name] for name in [RUNNER, *self._shared]}
    joined = self._joined if runner.joins else None
    size, functions, wanted = 1, self._functions, True
    if joined is not None:
      # What a client draws may depend on all who came before it.
      size = 1 if joined.function(1).must_run_in_order else runner.block_size(self._num_bytes, self._clients_before)
      counts = [1, size] if runner.num_clients % size else [size]
      functions = [joined.function(count) for count in counts]
      wanted = True if self._argument_name is None else joined.wanted(self._argument_name)

    def several(clients: Sequence[Bindings]) -> Sequence[FromClient]:
      return self._each(shared, clients) if joined is None else joined(shared, clients, runner.device())

    instead = None if self._without_examples is None else self._emptied
    # If a sum fails, the clients that are still at work are waited for.
    with contextlib.closing(runner.map(several, self._clients(bindings, wanted), functions, size, instead)) as results:
      for block in results:
        self._sum(bindings, [inputs for inputs, _ in block])
        for _, own_kept in block:
          for name, value in zip(self._kept, own_kept):
            kept[name].append(value)
        del block  # Its values would live until the next block is there.
    # Of all rounds: a function for several clients pays off only after many of them.
    self._clients_before += runner.num_clients
    for aggregation in self._aggregations:
      aggregation.finish(bindings)
    bindings.update(kept)

  def _emptied(self, own: Bindings) -> Bindings:
    """The bindings of a client that has no examples."""
    assert self._without_examples is not None and self._argument_name is not None
    return {**own, self._argument_name: self._without_examples(own[self._argument_name])}

  def _each(self, shared: Bindings, clients: Sequence[Bindings]) -> tuple[FromClient, ...]:
    """The inputs of the aggregations and the values to keep, for each client of a block."""
    return tuple([self._run_client({**shared, **own}) for own in clients])

  def _run_client(self, own: Bindings) -> FromClient:
    for name, run in self._steps:
      own[name] = run(own)
    return tuple([one.value(own) for one in self._aggregations]), tuple([own[name] for name in self._kept])

  def _sum(self, bindings: Bindings, block: Sequence[Sequence[Value]]) -> None:
    aggregations, runner = self._aggregations, bindings[RUNNER]
    if runner.meter is not None:
      runner.meter.add(up=sum(one.num_bytes(value) for inputs in block for one, value in zip(aggregations, inputs)))
    value_names = [one.value_name for one in aggregations]
    clients = [dict(zip(value_names, inputs)) for inputs in block]
    totals = {one.name: bindings[one.name] for one in aggregations}
    # A sum that draws random numbers draws them one client after another.
    if self._sums is not None and runner.joins and not self._sums.function(1).must_run_in_order:
      sums = self._sums(totals, clients, runner.device())
    else:
      sums = _sums(aggregations, bindings, clients)
    bindings.update(zip([one.name for one in aggregations], sums))

  def _clients(self, bindings: Bindings, wanted: values.Wanted) -> Iterator[Bindings]:
    """Each client's own bindings. Values that nothing else needs leave the round's bindings with them."""
    for index in range(bindings[RUNNER].num_clients):
      own: Bindings = {}
      if self._argument_name is not None:
        own[self._argument_name] = self._argument_of_client(bindings.get(self._argument_name), index, wanted)
      for name, is_needed_later in self._earlier.items():
        own[name] = bindings[name][index]
        if not is_needed_later:
          bindings[name][index] = None
      yield own


def _selector(type_spec: Optional[tff.Type]) -> Callable[[Value, int, values.Wanted], Value]:
  """A function (argument, client's place, wanted parts) -> the argument as this client has it."""
  if values.differs_by_client(type_spec):
    return lambda value, index, wanted: (
      value.part(index, wanted) if isinstance(value, values.ValuesOnDemand) else value[index]
    )
  if type_spec is None or not tff.types.contains(type_spec, values.differs_by_client):
    return lambda value, index, wanted: value
  parts = [_selector(part) for _, part in tff.structure.iter_elements(type_spec)]

  def select_client(value: Value, index: int, wanted: values.Wanted) -> Value:
    each = len(parts) * [True] if wanted is True else wanted
    return tuple([of(part, index, own) for of, part, own in zip(parts, value, each)])

  return select_client


def _kind(name: str, block: tff.framework.ComputationBuildingBlock) -> str:
  intrinsic = _intrinsic(block)
  if intrinsic == 'federated_aggregate':
    return schedule.AGGREGATE
  type_spec = block.type_signature
  if not tff.types.contains(type_spec, values.differs_by_client):
    return schedule.SERVER
  if intrinsic is None or not isinstance(type_spec, tff.FederatedType):
    raise errors.UnsupportedComputationError(
      f"The in-process runtime makes clients' values with intrinsics, but {name} of type {type_spec} comes from a "
      f'{type(block).__name__}.'
    )
  return schedule.CLIENT


def _without_detours(
  blocks: dict[str, tff.framework.ComputationBuildingBlock],
) -> dict[str, tff.framework.ComputationBuildingBlock]:
  """`blocks`, in which a selection from a zip is the zipped value itself: it need not wait for the others."""
  direct = dict(blocks)
  for name, block in blocks.items():
    if _intrinsic(block) == 'federated_map' and isinstance(block.argument, tff.framework.Struct):
      function, source = block.argument[0], block.argument[1]
      if not isinstance(function, tff.framework.Lambda) or not isinstance(function.result, tff.framework.Selection):
        continue
      selected, zipped = function.result.source, blocks.get(getattr(source, 'name', ''))
      if (
        not isinstance(selected, tff.framework.Reference) or selected.name != function.parameter_name or zipped is None
      ):
        continue
      if _intrinsic(zipped) == 'federated_zip_at_clients' and isinstance(zipped.argument, tff.framework.Struct):
        direct[name] = zipped.argument[function.result.as_index()]
  return direct


def _intrinsic(block: Optional[tff.framework.ComputationBuildingBlock]) -> Optional[str]:
  """The intrinsic that `block` calls, if it calls one."""
  if isinstance(block, tff.framework.Call) and isinstance(block.function, tff.framework.Intrinsic):
    return block.function.uri
  return None


def references(block: tff.framework.ComputationBuildingBlock) -> set[str]:
  """Names that `block` mentions. Bound ones are among them, which errs on the side of keeping a value."""
  return {reference.name for reference in parts_of(block, tff.framework.Reference)}


def parts_of(block: tff.framework.ComputationBuildingBlock, kind: type[T]) -> list[T]:
  """All building blocks of a kind in `block`."""
  parts: list[T] = []

  def visit(inner: tff.framework.ComputationBuildingBlock) -> tuple[tff.framework.ComputationBuildingBlock, bool]:
    if isinstance(inner, kind):
      parts.append(inner)
    return inner, False

  tff.framework.transform_postorder(block, visit)
  return parts
