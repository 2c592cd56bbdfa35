"""TensorFlow sections of a computation, as concrete functions of this process.

A graph that is ready for it (`section_graphs`) is traced once. Its variables' handles are inputs, and each call borrows
a private set of handles from a pool. So clients that run at the same time never share a variable, no variable is left
behind, and none is made again for every client.
"""

from collections.abc import Iterator, Sequence
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

from quap_tff.runtime import devices
from quap_tff.runtime import errors
from quap_tff.runtime import section_graphs

_CPU = '/device:CPU:0'
# Dtypes with GPU kernels for everything that is done to a variable. Others (counters, flags) live in host memory.
_GPU_VARIABLE_DTYPES = frozenset([tf.float16, tf.bfloat16, tf.float32, tf.float64])


def _full_name(tensor_name: str) -> str:
  return tensor_name if ':' in tensor_name else f'{tensor_name}:0'


def flatten_binding(binding: Any) -> list[str]:
  """Names of the graph's tensors that `binding` binds, depth first."""
  kind = binding.WhichOneof('binding')
  if kind is None:
    return []
  if kind == 'tensor':
    return [_full_name(binding.tensor.tensor_name)]
  if kind == 'sequence':
    return [_full_name(binding.sequence.variant_tensor_name)]
  return [name for element in binding.struct.element for name in flatten_binding(element)]


def flatten(value: tuple[Any, ...], leaves: list[Any]) -> None:
  """Appends the leaves of `value` (nested tuples) to `leaves`, in the order of `flatten_binding`."""
  for part in value:
    if isinstance(part, tuple):
      flatten(part, leaves)
    else:
      leaves.append(part)


def _nested(binding: Any, leaves: Iterator[Any]) -> Any:
  """`leaves`, nested as `binding` nests what it binds."""
  if binding.WhichOneof('binding') in ('tensor', 'sequence'):
    return next(leaves)
  return tuple([_nested(part, leaves) for part in binding.struct.element])


def packer(positions: Any) -> Callable[[Sequence[Any]], Any]:
  """Makes what picks a value out of flat tensors, of which `positions` (nested tuples) are the value's leaves."""
  if not isinstance(positions, tuple):
    return operator.itemgetter(positions)
  if len(positions) > 1 and not any(isinstance(part, tuple) for part in positions):
    return operator.itemgetter(*positions)  # One that gives a tuple.
  packers = [packer(part) for part in positions]
  return lambda flat: tuple([pack(flat) for pack in packers])


class _Slots:
  """Numbers and private variables on one device, which calls that run at the same time borrow."""

  def __init__(self, make_variables: Callable[[], list[tf.Variable]]):
    self._make_variables = make_variables
    self._free: list[tuple[int, list[tf.Variable], list[tf.Tensor]]] = []  # Threads take from it and add to it safely.
    self._numbers = itertools.count()

  def borrow(self) -> tuple[int, list[tf.Variable], list[tf.Tensor]]:
    """A number, variables and their handles, which nobody else holds until they are given back."""
    try:
      return self._free.pop()
    except IndexError:
      variables = self._make_variables()
      return next(self._numbers), variables, [variable.handle for variable in variables]

  def give_back(self, slot: tuple[int, list[tf.Variable], list[tf.Tensor]]) -> None:
    self._free.append(slot)


def _make_variables(specs: Sequence[tuple[tf.DType, tf.TensorShape]], device: str) -> list[tf.Variable]:
  variables = []
  with tf.init_scope():
    for dtype, shape in specs:
      # Only the handle is used: the initialize op writes the value before anything reads it.
      sizes = [size or 0 for size in shape.as_list()] if shape.rank is not None else []
      with tf.device(device if dtype in _GPU_VARIABLE_DTYPES else _CPU):
        initial = tf.fill(sizes, '') if dtype == tf.string else tf.zeros(sizes, dtype)
        variables.append(tf.Variable(initial, trainable=False, shape=shape, dtype=dtype))
  return variables


@functools.cache
def _without_optimizer(settings: bytes) -> bytes:
  """A serialized ConfigProto with TensorFlow's graph optimizer off.

  What is worth it has been optimized already (`section_graphs`). On a CPU a second time makes no round faster, and it
  would take a fifth of a second for each copy of a client's training.
  """
  config = tf.compat.v1.ConfigProto.FromString(settings)
  config.graph_options.rewrite_options.disable_meta_optimizer = True
  return config.SerializeToString()


class GraphFunction:
  """A graph, callable on a flat list of eager tensors.

  Args:
    make_graph: Makes the graph; called once, when it is first needed.
    on_trace: Called each time a function is traced: once for each call that runs at the same time.

  Attributes:
    called_for_each_client: Whether calls should cost little, rather than spread over TensorFlow's threads.
  """

  def __init__(self, make_graph: Callable[[], section_graphs.SectionGraph], on_trace: Callable[[], None]):
    self.called_for_each_client = False
    self._make_graph = make_graph
    self._on_trace = on_trace
    self._lock = threading.RLock()
    self._graph: Optional[section_graphs.SectionGraph] = None
    self._functions: list[Any] = []
    self._slots: dict[str, _Slots] = {}

  @property
  def graph(self) -> section_graphs.SectionGraph:
    if self._graph is None:
      with self._lock:
        self._graph = self._graph or self._make_graph()
    return self._graph

  @property
  def must_run_in_order(self) -> bool:
    """Whether calls must follow each other in the clients' order for results to be reproducible."""
    return self.graph.depends_on_call_order

  def prepare(self, concurrent: int = 1) -> None:
    """Traces what has not been traced yet.

    Args:
      concurrent: How many calls will run at the same time. Graphs that read datasets get a copy of the function for
        each, since the ops that read have one thread per copy.
    """
    with self._lock:
      if not self.graph.fetches:
        return
      while len(self._functions) < (concurrent if self.graph.reads_datasets else 1):
        self._functions.append(self._trace())

  def __call__(self, arguments: Sequence[tf.Tensor], device: str) -> Sequence[tf.Tensor]:
    """Runs the graph on a device: what it fetches, given all arguments, the unused ones included."""
    if not self.graph.fetches:
      return []
    if not self._functions:
      self.prepare()
    slots = self._slots_on(device)
    slot = slots.borrow()
    try:
      number, _, handles = slot
      function = self._functions[number % len(self._functions)]
      return self._run(function, [arguments[i] for i in self._graph.used] + handles, device)
    finally:
      slots.give_back(slot)

  def _run(self, function: Any, arguments: list[tf.Tensor], device: str) -> Sequence[tf.Tensor]:
    """What a call of `function` comes down to, without the checks around it, which cost small clients much."""
    # The public op StatefulPartitionedCall is faster still, but TensorFlow then keeps what it has made of the function
    # for as long as the process lives: 2 MB for each computation.
    on_cpu = not devices.is_gpu(device)
    # On another device the arguments arrive from the host. This executor waits for them on a thread of TensorFlow's
    # pool, and if as many clients wait as the pool has threads, none is left to send anything.
    one_thread = self.called_for_each_client and not self._graph.branches and devices.is_host(device)
    eager = context.context()
    settings = eager.function_call_options.config_proto_serialized
    attributes = (
      'executor_type',
      'SINGLE_THREADED_EXECUTOR' if one_thread else '',
      'config_proto',
      _without_optimizer(settings) if on_cpu else settings,
    )
    # pylint: disable=protected-access
    try:
      return pywrap_tfe.TFE_Py_Execute(
        eager._handle, device, function.name.decode(), arguments, attributes, len(self._graph.fetches)
      )
    except core._NotOkStatusException as e:
      raise core._status_to_exception(e) from None

  def _slots_on(self, device: str) -> _Slots:
    if device not in self._slots:
      with self._lock:
        self._slots.setdefault(device, _Slots(lambda: _make_variables(self.graph.variables, device)))
    return self._slots[device]

  def _trace(self) -> Any:
    """A new function of the arguments that are used and of the variables' handles."""
    function = tf.compat.v1.wrap_function(
      lambda *inputs: self._graph.add_to_current_graph(inputs), list(self._graph.inputs.values())
    )
    self._on_trace()
    return function


class TensorFlowBlock:
  """One TensorFlow section, callable on nested tuples of eager tensors.

  Args:
    proto: A TFF computation proto of the kind `tensorflow`.
    on_trace: See `GraphFunction`.

  Attributes:
    function: What runs it. It is called without most of what costs time here.
  """

  def __init__(self, proto: Any, on_trace: Callable[[], None]):
    if proto.WhichOneof('computation') != 'tensorflow':
      raise errors.UnsupportedComputationError(
        'The in-process runtime runs TensorFlow only, and this computation has a section of the kind '
        f'{proto.WhichOneof("computation")!r} (`xla` comes from tff.jax.computation). Write it with '
        'tff.tensorflow.computation.'
      )
    proto = proto.tensorflow
    arguments = flatten_binding(proto.parameter) if proto.HasField('parameter') else []
    results = flatten_binding(proto.result)
    # Where a call finds its results: among what the function returns, or among its arguments, which follow that.
    fetches = [name for name in dict.fromkeys(results) if name not in arguments]
    found = {name: i for i, name in enumerate(fetches + arguments)}
    self._pack = packer(_nested(proto.result, iter([found[name] for name in results])))
    self.function = GraphFunction(lambda: section_graphs.of_section(proto, arguments, results), on_trace)

  def __call__(self, argument: Any, device: str) -> Any:
    """Runs the section.

    Args:
      argument: The parameter's value as nested tuples of eager tensors; sequences are dataset variants. None if the
        section takes nothing.
      device: Name of the device to run on.

    Returns:
      The result's value, in the same form.
    """
    leaves = _leaves(argument)
    return self._pack([*self.function(leaves, device), *leaves])

  def add_to_current_graph(self, argument: Any, new_handle: Callable[[Any], tf.Tensor]) -> Any:
    """The section's result in the current TensorFlow graph.

    Args:
      argument: The same for tensors of that graph.
      new_handle: Makes the handle of a variable, given its dtype and shape.
    """
    leaves, graph = _leaves(argument), self.function.graph
    inputs = [leaves[i] for i in graph.used] + [new_handle(variable) for variable in graph.variables]
    return self._pack([*graph.add_to_current_graph(inputs, name='section'), *leaves])


def _leaves(argument: Any) -> list[Any]:
  leaves: list[Any] = []
  if argument is not None:
    flatten((argument,), leaves)
  return leaves
