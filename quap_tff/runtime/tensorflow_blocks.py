"""TensorFlow sections of a computation, as concrete functions of this process.

A section arrives as a GraphDef with bindings of its parameter and result and, where it has variables or tables, an
initialize op. TFF's contract is that of a session: run the initialize op, then fetch the result, with state that
belongs to that one call. Here the same graph becomes one function that is traced once:

* every node that is not needed by the initialize op waits for it;
* variables' handles become inputs. Each call borrows a private set of handles from a pool. So clients that run at the
  same time never share a variable, no variable is left behind, and none is made again for every client;
* tables become anonymous tables, which live as long as the call.
"""

import itertools
import operator
import threading
from typing import Any, Callable, Dict, Iterator, List, Sequence, Set, Tuple

import tensorflow as tf
# These four are not public. TFF's compiler uses the last one, too. The versions are pinned.
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context
from tensorflow.python.eager import core
from tensorflow.python.grappler import tf_optimizer

from quap_tff.runtime import dataset_loops
from quap_tff.runtime import devices
from quap_tff.runtime import errors

# These ops name a table, which the process's resource manager finds again. The anonymous ops have the same outputs and
# need no name.
_ANONYMOUS_TABLES = {
    'HashTableV2': ('AnonymousHashTable', ('key_dtype', 'value_dtype')),
    'MutableHashTableV2': ('AnonymousMutableHashTable', ('key_dtype', 'value_dtype')),
    'MutableHashTableOfTensorsV2': (
        'AnonymousMutableHashTableOfTensors', ('key_dtype', 'value_dtype', 'value_shape')),
    'MutableDenseHashTableV2': (
        'AnonymousMutableDenseHashTable',
        ('key_dtype', 'value_dtype', 'value_shape', 'initial_num_buckets', 'max_load_factor')),
}
# Arguments, and the handles of variables.
_INPUT_OPS = frozenset(['Placeholder', 'VarHandleOp'])
# Nodes that hold nothing to initialize: they may run at any time.
_FREE_OPS = frozenset(['Placeholder', 'Const', 'VarHandleOp', 'NoOp'])
# Ops that work on one thread of their own kernel. Calls that share the kernel would wait for each other.
_ONE_THREAD_OPS = frozenset(['ReduceDataset', 'IteratorGetNext', 'IteratorGetNextAsOptional', 'DatasetToSingleElement'])
# Control flow, which TensorFlow's single-threaded executor cannot run.
_BRANCHING_OPS = frozenset([
    'Case', 'Enter', 'Exit', 'For', 'If', 'LoopCond', 'Merge', 'NextIteration', 'StatelessCase', 'StatelessIf',
    'StatelessWhile', 'Switch', 'While',
])
_CPU = '/device:CPU:0'
# Dtypes with GPU kernels for everything that is done to a variable. Others (counters, flags) live in host memory.
_GPU_VARIABLE_DTYPES = frozenset([tf.float16, tf.bfloat16, tf.float32, tf.float64])


def _optimizer_config() -> Any:
  """The settings of `tff.backends.native.desugar_and_transform_to_native`."""
  config = tf.compat.v1.ConfigProto()
  options = config.graph_options.rewrite_options
  options.memory_optimization = options.AGGRESSIVE
  options.constant_folding = options.AGGRESSIVE
  options.arithmetic_optimization = options.AGGRESSIVE
  options.loop_optimization = options.AGGRESSIVE
  options.function_optimization = options.AGGRESSIVE
  return config


_OPTIMIZER = _optimizer_config()


def _node_name(edge: str) -> str:
  return edge.lstrip('^').split(':', 1)[0]


def _ancestors(nodes: Dict[str, Any], roots: Sequence[str]) -> Set[str]:
  found: Set[str] = set()
  pending = list(roots)
  while pending:
    name = pending.pop()
    if name not in found:
      found.add(name)
      pending.extend(_node_name(edge) for edge in nodes[name].input)
  return found


def _wait_for_no_input(nodes: Any) -> None:
  """Removes what ties nodes to those that become inputs: these are there when a call begins, and then are no nodes."""
  inputs = {node.name for node in nodes if node.op in _INPUT_OPS}
  for node in nodes:
    edges = [edge for edge in node.input if not (edge.startswith('^') and _node_name(edge) in inputs)]
    if len(edges) < len(node.input):
      node.input[:] = edges
    if '_class' in node.attr:  # Asks for the device of another node.
      del node.attr['_class']


def _full_name(tensor_name: str) -> str:
  return tensor_name if ':' in tensor_name else f'{tensor_name}:0'


def flatten_binding(binding: Any) -> List[str]:
  """Names of the graph's tensors that `binding` binds, depth first."""
  kind = binding.WhichOneof('binding')
  if kind is None:
    return []
  if kind == 'tensor':
    return [_full_name(binding.tensor.tensor_name)]
  if kind == 'sequence':
    return [_full_name(binding.sequence.variant_tensor_name)]
  return [name for element in binding.struct.element for name in flatten_binding(element)]


def _flatten(value: Tuple[Any, ...], leaves: List[Any]) -> None:
  """Appends the leaves of `value` (nested tuples) to `leaves`, in the order of `flatten_binding`."""
  for part in value:
    if isinstance(part, tuple):
      _flatten(part, leaves)
    else:
      leaves.append(part)


def _packer(binding: Any, positions: Iterator[int]) -> Callable[[Sequence[Any]], Any]:
  """Makes what picks a value (nested tuples) out of flat tensors, of which `positions` are the value's leaves."""
  if binding.WhichOneof('binding') in ('tensor', 'sequence'):
    return operator.itemgetter(next(positions))
  parts = binding.struct.element
  if len(parts) > 1 and all(part.WhichOneof('binding') in ('tensor', 'sequence') for part in parts):
    return operator.itemgetter(*itertools.islice(positions, len(parts)))  # One that gives a tuple.
  packers = [_packer(part, positions) for part in parts]
  return lambda flat: tuple([pack(flat) for pack in packers])


class _Slots:
  """Numbers and private variables on one device, which calls that run at the same time borrow."""

  def __init__(self, make_variables: Callable[[], List[tf.Variable]]):
    self._make_variables = make_variables
    self._free: List[Tuple[int, List[tf.Variable], List[tf.Tensor]]] = []  # Threads take from it and add to it safely.
    self._numbers = itertools.count()

  def borrow(self) -> Tuple[int, List[tf.Variable], List[tf.Tensor]]:
    """A number, variables and their handles, which nobody else holds until they are given back."""
    try:
      return self._free.pop()
    except IndexError:
      variables = self._make_variables()
      return next(self._numbers), variables, [variable.handle for variable in variables]

  def give_back(self, slot: Tuple[int, List[tf.Variable], List[tf.Tensor]]) -> None:
    self._free.append(slot)


def _make_variables(specs: Sequence[Tuple[tf.DType, tf.TensorShape]], device: str) -> List[tf.Variable]:
  variables = []
  with tf.init_scope():
    for dtype, shape in specs:
      # Only the handle is used: the initialize op writes the value before anything reads it.
      sizes = [size or 0 for size in shape.as_list()] if shape.rank is not None else []
      with tf.device(device if dtype in _GPU_VARIABLE_DTYPES else _CPU):
        initial = tf.fill(sizes, '') if dtype == tf.string else tf.zeros(sizes, dtype)
        variables.append(tf.Variable(initial, trainable=False, shape=shape, dtype=dtype))
  return variables


class TensorFlowBlock:
  """One TensorFlow section, callable on nested tuples of eager tensors.

  Args:
    proto: A TFF computation proto of the kind `tensorflow`.
    on_trace: Called each time a function is traced: once in this object's life.

  Attributes:
    called_for_each_client: Whether calls should cost little, rather than spread over TensorFlow's threads.
  """

  def __init__(self, proto: Any, on_trace: Callable[[], None]):
    if proto.WhichOneof('computation') != 'tensorflow':
      raise errors.UnsupportedComputationError(
          f'The in-process runtime runs TensorFlow; this computation holds a section of the kind'
          f' {proto.WhichOneof("computation")!r}.'
      )
    self.called_for_each_client = False
    self._proto = proto.tensorflow
    self._on_trace = on_trace
    self._lock = threading.Lock()
    self._graph_def: Any = None
    self._functions: List[Any] = []
    self._slots: Dict[str, _Slots] = {}
    self._inputs: Dict[str, tf.TensorSpec] = {}
    self._specs: List[Tuple[tf.DType, tf.TensorShape]] = []
    self._ordered = False
    self._one_thread = False
    self._branches = False
    self._arguments = flatten_binding(self._proto.parameter) if self._proto.HasField('parameter') else []
    self._results = flatten_binding(self._proto.result)
    self._fetches = [name for name in dict.fromkeys(self._results) if name not in self._arguments]
    # Where a call finds its results: among what the function returns, or among its arguments, which follow that.
    found = {name: i for i, name in enumerate(self._fetches + self._arguments)}
    self._pack = _packer(self._proto.result, iter([found[name] for name in self._results]))

  @property
  def must_run_in_order(self) -> bool:
    """Whether calls must follow each other in the clients' order for results to be reproducible."""
    self.prepare()
    return self._ordered

  def prepare(self, concurrent: int = 1) -> None:
    """Traces what has not been traced yet.

    Args:
      concurrent: How many calls will run at the same time. Sections that read datasets get a copy of the function for
        each, since the ops that read have one thread per copy.
    """
    if not self._fetches:
      return
    with self._lock:
      if self._graph_def is None:
        self._import()
      while len(self._functions) < (concurrent if self._one_thread else 1):
        self._functions.append(self._trace())

  def __call__(self, argument: Any, device: str) -> Any:
    """Runs the section.

    Args:
      argument: The parameter's value as nested tuples of eager tensors; sequences are dataset variants.
      device: Name of the device to run on.

    Returns:
      The result's value, in the same form.
    """
    leaves: List[Any] = []
    if self._arguments:
      _flatten((argument,), leaves)
    if not self._fetches:
      return self._pack(leaves)
    if not self._functions:
      self.prepare()
    slots = self._slots_on(device)
    slot = slots.borrow()
    try:
      number, _, handles = slot
      function = self._functions[number % len(self._functions)]
      outputs = self._run(function, [leaves[i] for i in self._used] + handles, device)
    finally:
      slots.give_back(slot)
    return self._pack([*outputs, *leaves])

  def _run(self, function: Any, arguments: List[tf.Tensor], device: str) -> Sequence[tf.Tensor]:
    """What a call of `function` comes down to, without the checks around it, which cost small clients much."""
    # The public op StatefulPartitionedCall is faster still, but TensorFlow then keeps what it has made of the function
    # for as long as the process lives: 2 MB for each computation.
    one_thread = self.called_for_each_client and not self._branches and not devices.is_gpu(device)
    eager = context.context()
    attributes = (
        'executor_type', 'SINGLE_THREADED_EXECUTOR' if one_thread else '',
        'config_proto', eager.function_call_options.config_proto_serialized,
    )
    # pylint: disable=protected-access
    try:
      return pywrap_tfe.TFE_Py_Execute(
          eager._handle, device, function.name.decode(), arguments, attributes, len(self._fetches))
    except core._NotOkStatusException as e:
      raise core._status_to_exception(e) from None

  def _slots_on(self, device: str) -> _Slots:
    if device not in self._slots:
      with self._lock:
        self._slots.setdefault(device, _Slots(lambda: _make_variables(self._specs, device)))
    return self._slots[device]

  def _import(self) -> None:
    graph_def = self._with_calls_inlined()
    _wait_for_no_input(graph_def.node)
    dataset_loops.replace_reductions(graph_def)
    initialize = self._proto.initialize_op
    initialize = _node_name(initialize) if initialize else None
    wanted = [_node_name(name) for name in self._fetches] + ([initialize] if initialize else [])
    nodes = {node.name: node for node in graph_def.node}
    kept = _ancestors(nodes, wanted)
    for name in [node.name for node in graph_def.node if node.name not in kept]:
      del nodes[name]
    if initialize:
      self._initialize_first(nodes, initialize)
    self._used = [i for i, name in enumerate(self._arguments) if _node_name(name) in nodes]
    inputs = {}
    for name in [self._arguments[i] for i in self._used]:
      placeholder = nodes[_node_name(name)].attr
      inputs[name] = tf.TensorSpec(tf.TensorShape(placeholder['shape'].shape), tf.as_dtype(placeholder['dtype'].type))
    for node in nodes.values():
      if node.op == 'VarHandleOp':
        inputs[f'{node.name}:0'] = tf.TensorSpec([], tf.resource)
        self._specs.append((tf.as_dtype(node.attr['dtype'].type), tf.TensorShape(node.attr['shape'].shape)))
      elif node.op in _ANONYMOUS_TABLES:
        node.op, attributes = _ANONYMOUS_TABLES[node.op]
        for key in [key for key in node.attr if key not in attributes and not key.startswith('_')]:
          del node.attr[key]
    for name in inputs:
      del nodes[_node_name(name)]
    self._inputs = inputs
    self._graph_def = tf.compat.v1.GraphDef(versions=graph_def.versions)
    self._graph_def.node.extend(nodes.values())
    library = _renamed_library(graph_def.library, self._graph_def.node)
    self._graph_def.library.CopyFrom(library)
    every_node = list(self._graph_def.node) + [node for function in library.function for node in function.node_def]
    self._ordered = any(_depends_on_call_order(node) for node in every_node)
    self._branches = any(node.op in _BRANCHING_OPS for node in every_node)
    self._one_thread = any(node.op in _ONE_THREAD_OPS for node in every_node)

  def _with_calls_inlined(self) -> Any:
    """The section's GraphDef. If it calls functions, TensorFlow's optimizer inlines them.

    Otherwise functions' dataset arguments would be placed on GPUs, which have no kernels for datasets. Anything else is
    optimized when TensorFlow first runs the section.
    """
    graph_def = tf.compat.v1.GraphDef.FromString(self._proto.graph_def.value)
    if not graph_def.library.function:
      return graph_def
    meta_graph = tf.compat.v1.MetaGraphDef(graph_def=graph_def)
    if self._proto.initialize_op:
      initialize_ops = meta_graph.collection_def[tf.compat.v1.GraphKeys.INIT_OP].node_list.value
      initialize_ops.append(_node_name(self._proto.initialize_op))
    signature = meta_graph.signature_def['section']
    placeholders = {node.name: node.attr for node in graph_def.node if node.op == 'Placeholder'}
    for i, name in enumerate(self._arguments):
      placeholder = placeholders[_node_name(name)]
      signature.inputs[f'{i}'].name = name
      signature.inputs[f'{i}'].dtype = placeholder['dtype'].type
      signature.inputs[f'{i}'].tensor_shape.CopyFrom(placeholder['shape'].shape)
    for i, name in enumerate(self._results):
      signature.outputs[f'{i}'].name = name
    try:
      return tf_optimizer.OptimizeGraph(_OPTIMIZER, meta_graph)
    except ValueError:  # Some graphs without arguments are refused.
      return graph_def

  def _trace(self) -> Any:
    """A new function of the arguments that are used and of the variables' handles."""

    # Importing the graph with its inputs in place is all in C++. TensorFlow's `prune` makes each node again in Python,
    # which took almost half of a first round.
    def build(*inputs):
      return tf.graph_util.import_graph_def(
          self._graph_def, input_map=dict(zip(self._inputs, inputs)), return_elements=self._fetches, name=''
      )

    function = tf.compat.v1.wrap_function(build, list(self._inputs.values()))
    self._on_trace()
    return function

  @staticmethod
  def _initialize_first(nodes: Dict[str, Any], initialize: str) -> None:
    """Makes every node that `initialize` does not need wait for it."""
    before = _ancestors(nodes, [initialize])
    free = {name for name, node in nodes.items() if node.op in _FREE_OPS and not node.input}
    for name, node in nodes.items():
      if name in before or name in free:
        continue
      # One edge at the border is enough: what depends on a node that waits waits too.
      if all(_node_name(edge) in before or _node_name(edge) in free for edge in node.input):
        node.input.append(f'^{initialize}')


_unique = itertools.count()


def _renamed_library(library: Any, nodes: Sequence[Any]) -> Any:
  """The functions that `nodes` reach, under names that are new to this process; renames their uses in `nodes` too.

  A process has one name space for functions, and the compiler optimizes functions without renaming them: the graph's
  own names may stand for something else here.
  """
  functions = {function.signature.name: function for function in library.function}
  suffix = f'_block{next(_unique)}'
  reached: Set[str] = set()
  pending: List[str] = []

  def visit(name: str) -> str:
    if name not in functions:
      return name
    if name not in reached:
      reached.add(name)
      pending.append(name)
    return name + suffix

  def rename(node: Any) -> None:
    node.op = visit(node.op)
    for attribute in node.attr.values():
      for reference in [attribute.func] if attribute.HasField('func') else attribute.list.func:
        reference.name = visit(reference.name)

  for node in nodes:
    rename(node)
  gradients = {gradient.function_name: gradient.gradient_func for gradient in library.gradient}
  renamed = type(library)()
  while pending:
    name = pending.pop()
    function = renamed.function.add()
    function.CopyFrom(functions[name])
    function.signature.name = name + suffix
    # These name the other half of a function that was differentiated; nothing here is differentiated again.
    for key in ('forward_function_name', 'backward_function_name'):
      if key in function.attr:
        del function.attr[key]
    for node in function.node_def:
      rename(node)
    if name in gradients:
      renamed.gradient.add(function_name=name + suffix, gradient_func=visit(gradients[name]))
  return renamed


def _depends_on_call_order(node: Any) -> bool:
  # A stateful random op with a seed continues its sequence from call to call, so what a client draws depends on how
  # many drew before it. Without a seed it is random anyway; stateless ops have inputs instead of these attributes.
  return 'seed' in node.attr and 'seed2' in node.attr and (node.attr['seed'].i != 0 or node.attr['seed2'].i != 0)
