"""TensorFlow sections of a computation, as concrete functions of this process.

A graph that is ready for it (`section_graphs`) is traced once. Its variables' handles are inputs, and each call borrows
a private set of handles from a pool. So clients that run at the same time never share a variable, no variable is left
behind, and none is made again for every client.

A call of a function costs about as much as a small client's arithmetic. So all sections that a pass through the cohort
runs for a client, or for a few, are joined into one function (`Joined`): the interpreter runs once on tensors of a
graph, and each section adds its nodes to it, for one client after the other.
"""

from collections.abc import Sequence
import functools
import itertools
import operator
import threading
from typing import Any, Callable, Optional

import tensorflow as tf

# These three are not public. The versions are pinned.
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context
from tensorflow.python.eager import core

from quap_tff.common import array_types
from quap_tff.runtime.in_process import section_graphs
from quap_tff.runtime.values import errors
from quap_tff.runtime.values import values

_CPU = '/device:CPU:0'
# Dtypes with GPU kernels for everything that is done to a variable. Others (counters, flags) live in host memory.
_GPU_VARIABLE_DTYPES = frozenset([tf.float16, tf.bfloat16, tf.float32, tf.float64])

# A value's tensors by the names of a graph, or by their places, nested as the value is.
Nested = Any
# A value's specifications by name.
Specs = dict[str, array_types.StructureSpec]
# Values by name.
Values = dict[str, values.Value]
# Picks a value out of flat tensors.
_Pack = Callable[[Sequence[tf.Tensor]], values.Value]
# A variable's dtype and shape.
VariableSpec = tuple[tf.DType, tf.TensorShape]


def _full_name(tensor_name: str) -> str:
  return tensor_name if ':' in tensor_name else f'{tensor_name}:0'


def _names(binding: section_graphs.Proto) -> Nested:
  """Names of the graph's tensors that `binding` binds, nested as the value is."""
  kind = binding.WhichOneof('binding')
  if kind == 'tensor':
    return _full_name(binding.tensor.tensor_name)
  if kind == 'sequence':
    return _full_name(binding.sequence.variant_tensor_name)
  return tuple([_names(element) for element in binding.struct.element])


def _leaves(value: values.Value) -> list[tf.Tensor]:
  """The leaves of nested tuples, depth first; `tf.nest.flatten` takes twice as long, which small clients notice."""
  leaves: list[tf.Tensor] = []
  _add_leaves((value,), leaves)
  return leaves


def _add_leaves(value: tuple[values.Value, ...], leaves: list[tf.Tensor]) -> None:
  for part in value:
    if isinstance(part, tuple):
      _add_leaves(part, leaves)
    else:
      leaves.append(part)


def _make_variables(specs: Sequence[VariableSpec], device: str) -> list[tf.Variable]:
  variables = []
  with tf.init_scope():
    for dtype, shape in specs:
      # Only the handle is used: the initialize op writes the value before anything reads it.
      sizes = [size or 0 for size in shape.as_list()] if shape.rank is not None else []
      place = device if dtype in _GPU_VARIABLE_DTYPES else _CPU
      with tf.device(place):
        initial = tf.fill(sizes, '') if dtype == tf.string else tf.zeros(sizes, dtype)
        variables.append(tf.Variable(initial, trainable=False, shape=shape, dtype=dtype))
  return variables


@functools.cache
def _without_optimizer(settings: bytes) -> bytes:
  """A serialized ConfigProto with TensorFlow's graph optimizer off.

  Sections that call functions have been optimized already (`section_graphs`). A second time would take a fifth of a
  second for each copy of a client's training.
  """
  config = tf.compat.v1.ConfigProto.FromString(settings)
  config.graph_options.rewrite_options.disable_meta_optimizer = True
  return config.SerializeToString()


class GraphFunction:
  """A graph, callable on a flat list of eager tensors.

  Args:
    make_graph: Makes the graph; called once, when it is first needed.
    on_trace: Called each time a function is traced: once for each call that runs at the same time.
    on_one_thread: Whether a call should cost little, rather than spread over TensorFlow's threads.
  """

  def __init__(
    self,
    make_graph: Callable[[], section_graphs.SectionGraph],
    on_trace: Callable[[], None],
    on_one_thread: bool = False,
  ):
    self._make_graph = make_graph
    self._on_trace = on_trace
    self._on_one_thread = on_one_thread
    self._lock = threading.RLock()
    self._graph: Optional[section_graphs.SectionGraph] = None
    self._functions: list[tf.types.experimental.ConcreteFunction] = []
    # By device, numbered sets of private variables and their handles, which nobody holds at the moment.
    self._free: dict[str, list[tuple[int, list[tf.Variable], list[tf.Tensor]]]] = {}
    self._numbers = itertools.count()

  @property
  def graph(self) -> section_graphs.SectionGraph:
    if self._graph is None:
      with self._lock:
        # Another thread may have made it while this one waited.
        self._graph = self._graph or self._make_graph()
    return self._graph

  @property
  def must_run_in_order(self) -> bool:
    """True if calls must follow each other in the clients' order for results to be reproducible."""
    return self.graph.depends_on_call_order

  def prepare(self, concurrent: int = 1) -> None:
    """Traces the functions that have not been traced yet.

    Args:
      concurrent: How many calls will run at the same time. Graphs that read datasets get a copy of the function for
        each, since the ops that read have one thread per copy.
    """
    with self._lock:
      while self.graph.fetches and len(self._functions) < (concurrent if self.graph.reads_datasets else 1):
        self._functions.append(
          tf.compat.v1.wrap_function(
            lambda *inputs: self.graph.add_to_current_graph(inputs), list(self.graph.inputs.values())
          )
        )
        self._on_trace()

  def __call__(self, arguments: Sequence[tf.Tensor], device: str) -> Sequence[tf.Tensor]:
    """The tensors that the graph fetches, given all arguments, the unused ones included; runs on `device`."""
    if not self.graph.fetches:
      return []
    if not self._functions:
      self.prepare()
    # Calls that run at the same time take from the list and add to it safely.
    free = self._free.setdefault(device, [])
    try:
      slot = free.pop()
    except IndexError:
      variables = _make_variables(self.graph.variables, device)
      slot = next(self._numbers), variables, [variable.handle for variable in variables]
    try:
      number, _, handles = slot
      # By the number of the variables, of which no two calls have the same at a time.
      function = self._functions[number % len(self._functions)]
      return self._run(function, [arguments[i] for i in self.graph.used] + handles, device)
    finally:
      # Also after an error: the initialize op writes the variables anew in each call.
      free.append(slot)

  def _run(
    self, function: tf.types.experimental.ConcreteFunction, arguments: list[tf.Tensor], device: str
  ) -> Sequence[tf.Tensor]:
    """The core of a call of `function`, without the checks around it, which cost small clients much."""
    # The public op StatefulPartitionedCall is faster still, but TensorFlow then keeps its own form of the function
    # for as long as the process lives: 2 MB for each computation.
    eager = context.context()
    settings = eager.function_call_options.config_proto_serialized
    if 'GPU' not in device:
      settings = _without_optimizer(settings)
    # On another device the arguments arrive from the host. This executor waits for them on a thread of TensorFlow's
    # pool. If as many clients wait as the pool has threads, no thread is left to send anything.
    one_thread = self._on_one_thread and not self.graph.branches and device.upper().endswith('CPU:0')
    attributes = ('executor_type', 'SINGLE_THREADED_EXECUTOR' if one_thread else '', 'config_proto', settings)
    # pylint: disable=protected-access
    try:
      outputs = pywrap_tfe.TFE_Py_Execute(
        eager._handle, device, function.name.decode(), arguments, attributes, len(self.graph.fetches)
      )
      return [values.without_attributes(output) for output in outputs]
    except core._NotOkStatusException as e:
      raise core._status_to_exception(e) from None


class TensorFlowBlock:
  """One TensorFlow section, callable on nested tuples of eager tensors.

  Args:
    proto: A TFF computation proto of the kind `tensorflow`.
    on_trace: See `GraphFunction`.

  Attributes:
    function: Runs the section.
  """

  def __init__(self, proto: section_graphs.Proto, on_trace: Callable[[], None]):
    if proto.WhichOneof('computation') != 'tensorflow':
      raise errors.UnsupportedComputationError(
        'The in-process runtime runs TensorFlow only, and this computation has a section of the kind '
        f'{proto.WhichOneof("computation")!r} (`xla` comes from tff.jax.computation). Write it with '
        'tff.tensorflow.computation.'
      )
    proto = proto.tensorflow
    arguments = tf.nest.flatten(_names(proto.parameter)) if proto.HasField('parameter') else []
    results = _names(proto.result)
    self._pack = _packer(_positions(results, arguments))
    self.function = GraphFunction(
      lambda: section_graphs.section_graph(proto, arguments, tf.nest.flatten(results)), on_trace
    )

  def __call__(self, argument: values.Value, device: str) -> values.Value:
    """Runs the section.

    Args:
      argument: The parameter's value as nested tuples of eager tensors; sequences are dataset variants. None if the
        section takes nothing.
      device: Name of the device to run on.

    Returns:
      The result's value, in the same form.
    """
    leaves = [] if argument is None else _leaves(argument)
    return self._pack([*self.function(leaves, device), *leaves])

  def add_to_current_graph(
    self, argument: values.Value, new_handle: Callable[[VariableSpec], tf.Tensor]
  ) -> values.Value:
    """The section's result in the current TensorFlow graph.

    Args:
      argument: As for a call, for tensors of that graph.
      new_handle: Makes the handle of a variable.
    """
    leaves = [] if argument is None else _leaves(argument)
    graph = self.function.graph
    inputs = [leaves[i] for i in graph.used] + [new_handle(variable) for variable in graph.variables]
    return self._pack([*graph.add_to_current_graph(inputs, name='section'), *leaves])


def _positions(names: Nested, arguments: Sequence[str]) -> Nested:
  """The places of the tensors `names` (nested) among the fetches and the arguments, which follow these."""
  positions = {name: i for i, name in enumerate([*_fetches(names, arguments), *arguments])}
  return tf.nest.map_structure(positions.__getitem__, names)


def _fetches(names: Nested, arguments: Sequence[str]) -> list[str]:
  return [name for name in dict.fromkeys(tf.nest.flatten(names)) if name not in arguments]


def _packer(positions: Nested) -> _Pack:
  """Picks a value out of flat tensors, of which `positions` (nested tuples) are the value's leaves."""
  if not isinstance(positions, tuple):
    return operator.itemgetter(positions)
  packers = [_packer(part) for part in positions]
  return lambda flat: tuple([pack(flat) for pack in packers])


class Joined:
  """Makes values of other values, for several clients in one call of TensorFlow.

  Args:
    make: Makes them: (runner, bindings that clients share, bindings of each client) -> value. It is built on sections
      and on values that are passed on, and may not look into a value in Python.
    shared: For each name in the former, the `tf.TensorSpec`s of the value, nested as the value is.
    own: The same for each name that a client binds.
    on_trace: See `GraphFunction`.
  """

  def __init__(self, make: Callable[..., values.Value], shared: Specs, own: Specs, on_trace: Callable[[], None]):
    self._make = make
    self._shared, self._own = shared, own
    self._on_trace = on_trace
    self._packs: dict[int, _Pack] = {}
    self._functions: dict[int, GraphFunction] = {}
    self._returned: set[int] = set()  # The places of arguments of one client that are results as they are.
    self._lock = threading.Lock()

  def function(self, num_clients: int) -> GraphFunction:
    """The function for this many clients."""
    with self._lock:
      if num_clients not in self._functions:
        make_graph = functools.partial(self._make_graph, num_clients)
        self._functions[num_clients] = GraphFunction(make_graph, self._on_trace, on_one_thread=True)
      return self._functions[num_clients]

  def wanted(self, name: str) -> values.Wanted:
    """The leaves of a client's own value `name` that are used at all: booleans, nested as the value is."""
    # A value that is passed on as it is is not an input of the graph, and is needed all the same.
    used = set(self.function(1).graph.used) | self._returned
    specs = [*self._shared.values(), *self._own.values()]
    is_used = [position in used for position in range(len(tf.nest.flatten(specs)))]
    return tf.nest.pack_sequence_as(specs, is_used)[len(self._shared) + list(self._own).index(name)]

  def __call__(self, bindings: Values, clients: Sequence[Values], device: str) -> values.Value:
    """The values that `make` would make of the bindings."""
    leaves = _leaves(tuple([bindings[name] for name in self._shared]))
    for own in clients:
      _add_leaves(tuple([own[name] for name in self._own]), leaves)
    outputs = self.function(len(clients))(leaves, device)
    return self._packs[len(clients)]([*outputs, *leaves])

  def _make_graph(self, num_clients: int) -> section_graphs.SectionGraph:
    with tf.Graph().as_default() as graph:
      bindings, *clients = (_placeholders(specs) for specs in [self._shared] + num_clients * [self._own])
      # By values in the order of the names, and not as dictionaries, which `tf.nest` would sort.
      arguments = tf.nest.flatten([list(part.values()) for part in (bindings, *clients)])
      tracer = Tracer()
      results = tf.nest.map_structure(lambda result: result.name, _in_graph(self._make(tracer, bindings, clients)))
    names = [argument.name for argument in arguments]
    self._packs[num_clients] = _packer(_positions(results, names))
    if num_clients == 1:
      # What one client wants does not depend on how many come in a call.
      self._returned = {names.index(name) for name in tf.nest.flatten(results) if name in names}
    return section_graphs.from_graph(graph, arguments, tracer.handles, tracer.variables, _fetches(results, names))


def _placeholders(specs: Specs) -> Values:
  return {
    name: tf.nest.map_structure(lambda spec: tf.compat.v1.placeholder(spec.dtype, spec.shape), part)
    for name, part in specs.items()
  }


class Tracer:
  """Represents the runner (`interpreter.InterpretedProgram`) where sections are added to a graph, and not run.

  Attributes:
    handles: Placeholders for the handles of the sections' variables.
    variables: The variables' dtypes and shapes.
  """

  def __init__(self) -> None:
    self.handles: list[tf.Tensor] = []
    self.variables: list[VariableSpec] = []

  def call(self, section: TensorFlowBlock, argument: values.Value) -> values.Value:
    in_graph = None if argument is None else _in_graph(argument)
    return section.add_to_current_graph(in_graph, self._new_handle)

  def _new_handle(self, variable: VariableSpec) -> tf.Tensor:
    self.variables.append(variable)
    self.handles.append(tf.compat.v1.placeholder(tf.resource, []))
    return self.handles[-1]


def _in_graph(value: values.Value) -> values.Value:
  """`value` with its eager tensors, which are constants of the computation, as constants of the current graph."""
  return tf.nest.map_structure(
    lambda leaf: leaf if tf.is_symbolic_tensor(leaf) else tf.constant(leaf.numpy(), leaf.dtype), value
  )
