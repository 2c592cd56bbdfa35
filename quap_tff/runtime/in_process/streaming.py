"""Runs the part of a computation that has clients: passes through the cohort, with sums taken as results come.

Each pass (`schedule`) makes one client's values at a time on each thread, on bindings that hold this client's values
only. The calling thread gives the results to the aggregations, in the cohort's order and with a bounded number of
clients ahead of it. So the order of every floating-point sum is the cohort's for any number of threads, and a value
lives until the last aggregation has taken it.
"""

from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import functools
from typing import Any, Callable, Optional, TypeVar

import tensorflow_federated as tff

from quap_tff.runtime.in_process import schedule
from quap_tff.runtime.values import errors
from quap_tff.runtime.values import traffic
from quap_tff.runtime.values import values

Bindings = dict[str, Any]
Run = Callable[[Bindings], Any]
T = TypeVar('T')

# Bound alongside the computation's own names, which are identifiers.
RUNNER = '<runner>'
_RESULT = '<result>'


class Body:
  """The work of a computation on its argument, ready to run: `body(bindings) -> value`.

  Args:
    function: The computation, in TFF's call-dominant form: all that has clients is a local of the outermost block.
    program: Compiles building blocks (`interpreter.Program`).

  Raises:
    errors.UnsupportedComputationError: If clients' values come from anything but an intrinsic.
  """

  def __init__(self, function: tff.framework.Lambda, program: Any):
    body = function.result
    if isinstance(body, tff.framework.Call):
      body = tff.framework.Block([(_RESULT, body)], tff.framework.Reference(_RESULT, body.type_signature))
    elif not isinstance(body, tff.framework.Block):
      body = tff.framework.Block([], body)
    self._argument_name = function.parameter_name
    self._of_client = _of_client(function.parameter_type)
    self._program = program
    self._types = {name: block.type_signature for name, block in body.locals}
    self._types[self._argument_name] = function.parameter_type
    self._kinds = {name: _kind(name, block) for name, block in body.locals}
    self._blocks = _without_detours(dict(body.locals))
    mentioned = {name: references(block) for name, block in self._blocks.items()}
    self._uses = {name: frozenset(names & self._kinds.keys()) for name, names in mentioned.items()}
    self._reads_argument = {name for name, names in mentioned.items() if self._argument_name in names}
    in_result = references(body.result) & self._kinds.keys()
    order = schedule.plan(
      [
        schedule.Local(name, self._kinds[name], self._uses[name], name in self._reads_argument) for name in self._blocks
      ],
      in_result,
    )
    needs = [self._needs([entry] if isinstance(entry, str) else entry.steps + entry.aggregates) for entry in order]
    self._steps = []
    for position, entry in enumerate(order):
      later = in_result.union(*needs[position + 1 :])
      step = self._server_step(entry) if isinstance(entry, str) else self._pass(entry, needs[position], later)
      self._steps.append((step, needs[position] - later))
    self._result = program.compile(body.result)

  def __call__(self, bindings: Bindings) -> Any:
    bindings = dict(bindings)
    for step, released in self._steps:
      step(bindings)
      for name in released:
        bindings.pop(name, None)
    return self._result(bindings)

  def _needs(self, names: Sequence[str]) -> set[str]:
    return set().union(*(self._uses[name] for name in names))

  def _server_step(self, name: str) -> Callable[[Bindings], None]:
    run = self._program.compile(self._blocks[name])

    def step(bindings: Bindings) -> None:
      bindings[name] = run(bindings)

    return step

  def _pass(self, entry: schedule.Pass, needs: set[str], later: set[str]) -> Callable[[Bindings], None]:
    program = self._program
    aggregations = [_Aggregation(name, self._blocks[name], program.compile) for name in entry.aggregates]
    earlier = {name for name in needs if self._kinds[name] == schedule.CLIENT} - set(entry.steps)
    # A client's argument may be made on demand, so it is not asked for without need.
    reads_argument = self._reads_argument.intersection(entry.steps + entry.aggregates)
    argument_names = [self._argument_name] if reads_argument else []
    server_values = {name for name in needs if self._kinds[name] != schedule.CLIENT}
    shared = server_values & self._needs(entry.steps).union(*(one.value_uses for one in aggregations))
    steps = [(name, program.compile(self._blocks[name])) for name in entry.steps]
    make = _MakeOfClient(steps, aggregations, [name for name in entry.steps if name in later])
    blocks = [self._blocks[name] for name in entry.steps] + [one.value_block for one in aggregations]
    shared_types = {name: self._types[name] for name in shared}
    own_types = {name: self._types[name] for name in [*argument_names, *earlier]}
    return _Pass(
      make=make,
      functions=program.functions_of(blocks),
      joined=program.join(blocks, functools.partial(_each, make), shared_types, own_types),
      sums=self._joined_sums(aggregations),
      # A zip gathers values that are there already, such as what the server has sent to all.
      num_bytes=sum(
        values.static_bytes(self._types[name])
        for name in entry.steps
        if _intrinsic(self._blocks[name]) != 'federated_zip_at_clients'
      ),
      earlier={name: name in later for name in earlier},
      shared=shared,
      argument_name=self._argument_name if reads_argument else None,
      of_client=self._of_client,
    )

  def _joined_sums(self, aggregations: Sequence['_Aggregation']) -> Optional[Any]:
    """The sums of a pass; bindings have `aggregation.name` and, for each client, `aggregation.value_name`."""
    if any(references(one.accumulate_block) & self._types.keys() for one in aggregations):
      return None  # A sum that needs more than its accumulator and its value.
    totals, own_values = {}, {}
    for one in aggregations:
      totals[one.name], own_values[one.value_name] = one.accumulate_block.type_signature.parameter
    blocks = [one.accumulate_block for one in aggregations]
    return self._program.join(blocks, functools.partial(_sums, aggregations), totals, own_values)


class _Aggregation:
  """A `federated_aggregate`: zero, accumulate and report at the server. There is one accumulator, so nothing merges."""

  def __init__(self, name: str, call: tff.framework.Call, compile_block: Callable[[Any], Run]):
    if isinstance(call.argument, tff.framework.Struct):
      parts = [part for _, part in tff.structure.iter_elements(call.argument)]
    else:
      parts = [tff.framework.Selection(call.argument, index=i) for i in range(5)]
    self.name, self.value_name = name, f'<value of {name}>'
    self.value_block, self.accumulate_block = parts[0], parts[2]
    self.value_uses = references(parts[0])
    self.value, self._zero, self._accumulate, _, self._report = (compile_block(part) for part in parts)
    self.num_bytes = traffic.sizer(call.function.type_signature.parameter[0].member)

  def start(self, bindings: Bindings) -> None:
    bindings[self.name] = self._zero(bindings)

  def sum(self, bindings: Bindings) -> Any:
    """The next accumulator, of the one and the value that are bound."""
    return self._accumulate(bindings)((bindings[self.name], bindings[self.value_name]))

  def finish(self, bindings: Bindings) -> None:
    bindings[self.name] = self._report(bindings)(bindings[self.name])


@dataclasses.dataclass(frozen=True)
class _MakeOfClient:
  """Makes a client's values of a pass: given its own bindings, (inputs of the aggregations, values to keep).

  Attributes:
    steps: Names of a client's values and the functions that make them.
    aggregations: They take these values.
    kept: Names of clients' values that later passes or the result need.
  """

  steps: Sequence[tuple[str, Run]]
  aggregations: Sequence[_Aggregation]
  kept: Sequence[str]

  def __call__(self, own: Bindings) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    for name, run in self.steps:
      own[name] = run(own)
    return tuple([one.value(own) for one in self.aggregations]), tuple([own[name] for name in self.kept])


def _each(make: _MakeOfClient, shared: Bindings, clients: Sequence[Bindings]) -> tuple[Any, ...]:
  """What `make` gives for each client of a block."""
  return tuple([make({**shared, **own}) for own in clients])


def _sums(aggregations: Sequence[_Aggregation], shared: Bindings, clients: Sequence[Bindings]) -> tuple[Any, ...]:
  """The next accumulators, after the values of a block's clients, one client after the other."""
  totals = dict(shared)
  for own in clients:
    bindings = {**totals, **own}
    totals.update({one.name: one.sum(bindings) for one in aggregations})
  return tuple([totals[one.name] for one in aggregations])


@dataclasses.dataclass(frozen=True)
class _Pass:
  """A `schedule.Pass`, ready to run.

  Attributes:
    make: Makes the values of one client.
    functions: The TensorFlow functions that `make` calls.
    joined: `make` for one or several clients as one call of TensorFlow; None if that cannot be.
    sums: All aggregations' sums of what these gave in one call; None if that cannot be.
    num_bytes: Bytes of the values that a client makes, as far as their types tell.
    earlier: Names of clients' values of earlier passes that this one needs, and whether anything needs them afterwards.
    shared: Names of server values that clients use.
    argument_name: The name of the computation's argument; None if this pass does not need it.
    of_client: From `_of_client`.
  """

  make: _MakeOfClient
  functions: Sequence[Any]
  joined: Optional[Any]
  sums: Optional[Any]
  num_bytes: int
  earlier: dict[str, bool]
  shared: set[str]
  argument_name: Optional[str]
  of_client: Optional[Callable[[Any, int, Any], Any]]

  def __call__(self, bindings: Bindings) -> None:
    aggregations = self.make.aggregations
    for aggregation in aggregations:
      aggregation.start(bindings)
    kept = {name: values.PerClient() for name in self.make.kept}
    runner = bindings[RUNNER]
    shared = {name: bindings[name] for name in [RUNNER, *self.shared]}
    joined = self.joined if runner.joins else None
    size, functions = (1, self.functions) if joined is None else _calls(joined, runner, self.num_bytes)
    wanted = True if joined is None or self.argument_name is None else joined.wanted(self.argument_name)

    def several(clients: Sequence[Bindings]) -> Sequence[tuple[tuple[Any, ...], tuple[Any, ...]]]:
      if joined is None:
        return _each(self.make, shared, clients)
      return joined(shared, clients, runner.device())

    with contextlib.closing(runner.map(several, self._clients(bindings, wanted), functions, size)) as results:
      for block in results:
        self._sum(bindings, [inputs for inputs, _ in block])
        for _, own_kept in block:
          for name, value in zip(self.make.kept, own_kept):
            kept[name].append(value)
        del block
    for aggregation in aggregations:
      aggregation.finish(bindings)
    bindings.update(kept)

  def _sum(self, bindings: Bindings, block: Sequence[Sequence[Any]]) -> None:
    aggregations, runner = self.make.aggregations, bindings[RUNNER]
    if runner.meter is not None:
      for inputs in block:
        runner.meter.aggregate(sum(one.num_bytes(value) for one, value in zip(aggregations, inputs)))
    clients = [{one.value_name: value for one, value in zip(aggregations, inputs)} for inputs in block]
    totals = {one.name: bindings[one.name] for one in aggregations}
    # A sum that draws random numbers draws them one client after another.
    if self.sums is not None and runner.joins and not self.sums.function(1).must_run_in_order:
      sums = self.sums(totals, clients, runner.device())
    else:
      sums = _sums(aggregations, bindings, clients)
    bindings.update(zip([one.name for one in aggregations], sums))

  def _clients(self, bindings: Bindings, wanted: Any) -> Iterator[Bindings]:
    """Each client's own bindings. Values that nothing else needs leave the round's bindings with them."""
    for index in range(bindings[RUNNER].num_clients):
      own: Bindings = {}
      if self.argument_name is not None:
        argument = bindings.get(self.argument_name)
        own[self.argument_name] = argument if self.of_client is None else self.of_client(argument, index, wanted)
      for name, is_needed_later in self.earlier.items():
        own[name] = bindings[name][index]
        if not is_needed_later:
          bindings[name][index] = None
      yield own


def _calls(joined: Any, runner: Any, num_bytes: int) -> tuple[int, Sequence[Any]]:
  """How many clients a call of `joined` should take, and the TensorFlow functions that will be called."""
  if joined.function(1).must_run_in_order:  # What a client draws depends on all who came before it.
    return 1, [joined.function(1)]
  size = runner.block_size(num_bytes)
  counts = {size, 1} if runner.num_clients % size else {size}
  return size, [joined.function(count) for count in sorted(counts)]


def _of_client(type_spec: Optional[tff.Type]) -> Optional[Callable[[Any, int, Any], Any]]:
  """A function from an argument, a client's place and the parts that are wanted to the argument as this client has it.

  None if all clients have it so.
  """
  if values.differs_by_client(type_spec):
    return lambda value, index, wanted: (
      value.part(index, wanted) if isinstance(value, values.OnDemand) else value[index]
    )
  if not isinstance(type_spec, tff.StructType):
    return None
  parts = [_of_client(part) for _, part in tff.structure.iter_elements(type_spec)]
  if not any(parts):
    return None

  def of_client(value: Any, index: int, wanted: Any) -> Any:
    each = len(parts) * [True] if wanted is True else wanted
    return tuple([of(part, index, own) if of else part for of, part, own in zip(parts, value, each)])

  return of_client


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
  found: list[T] = []

  def visit(inner):
    if isinstance(inner, kind):
      found.append(inner)
    return inner, False

  tff.framework.transform_postorder(block, visit)
  return found
