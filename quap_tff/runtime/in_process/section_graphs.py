"""Graphs of TensorFlow sections, made ready to become functions of this process.

A section arrives as a GraphDef with bindings of its parameter and result and, where it has variables or tables, an
initialize op. TFF's contract is that of a session: run the initialize op, then fetch the result, with state that
belongs to that one call. Here the same graph is prepared for calls of a function:

* every node that is not needed by the initialize op waits for it;
* variables' handles become inputs, so each call can have variables of its own;
* tables become anonymous tables, which live as long as the call;
* iterators over datasets, and the optional elements that they give, are placed on the CPU, whose memory holds them.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
from typing import Any

import tensorflow as tf

# Not public. TFF's compiler also uses the optimizer. The versions are pinned.
from tensorflow.core.framework import function_pb2
from tensorflow.python.grappler import tf_optimizer

from quap_tff.runtime.in_process import dataset_loops
from quap_tff.runtime.in_process import schedule

# A part of a computation's proto, which has no types: a section, or a binding of it.
Proto = Any
# The nodes of a graph or of a function, in a proto or by name.
Nodes = dataset_loops.Nodes
_ByName = dict[str, tf.compat.v1.NodeDef]
# These ops name a table, which the process's resource manager finds again. The anonymous ops have the same outputs and
# need no name.
_ANONYMOUS_TABLES = {
  'HashTableV2': ('AnonymousHashTable', ('key_dtype', 'value_dtype')),
  'MutableHashTableV2': ('AnonymousMutableHashTable', ('key_dtype', 'value_dtype')),
  'MutableHashTableOfTensorsV2': ('AnonymousMutableHashTableOfTensors', ('key_dtype', 'value_dtype', 'value_shape')),
  'MutableDenseHashTableV2': (
    'AnonymousMutableDenseHashTable',
    ('key_dtype', 'value_dtype', 'value_shape', 'initial_num_buckets', 'max_load_factor'),
  ),
}
# Arguments, and the handles of variables.
_INPUT_OPS = frozenset(['Placeholder', 'VarHandleOp'])
# Nodes that hold nothing to initialize: they may run at any time.
_FREE_OPS = frozenset(['Placeholder', 'Const', 'VarHandleOp', 'NoOp'])
# Ops that work on one thread of their own kernel. Calls that share the kernel would wait for each other.
_ONE_THREAD_OPS = frozenset(['ReduceDataset', 'IteratorGetNext', 'IteratorGetNextAsOptional', 'DatasetToSingleElement'])
# Control flow, which TensorFlow's single-threaded executor cannot run.
_BRANCHING_OPS = frozenset(
  'Case Enter Exit For If LoopCond Merge NextIteration StatelessCase StatelessIf StatelessWhile Switch While'.split()
)
# Ops on iterators and optional elements. A GPU has kernels for them, for elements in its own memory, and TensorFlow's
# placer would take these: the ops that hold an iterator in a loop prefer a GPU, and all that use it go with them.
_ELEMENT_OPS = ('AnonymousIterator', 'Iterator', 'MakeIterator', 'Optional')
# Ops that give an optional element, and ops of a loop that pass it on.
_OPTIONAL_OPS = frozenset(['IteratorGetNextAsOptional', 'OptionalFromValue', 'OptionalNone'])
_PASSING_OPS = frozenset(['Enter', 'Exit', 'Identity', 'Merge', 'NextIteration', 'Switch'])
_CPU = '/device:CPU:0'

# Numbers what needs a name of its own in this process.
_unique = itertools.count()


@dataclasses.dataclass(frozen=True)
class SectionGraph:
  """A graph without its inputs.

  Attributes:
    graph_def: The nodes, and the functions that they call.
    inputs: The names of `graph_def` that have no node, for which each call has a tensor: arguments, and then handles of
      variables.
    used: For each input that is an argument, its position among all arguments of the section.
    variables: dtypes and shapes of the variables whose handles are inputs.
    fetches: Names of the tensors to return.
    depends_on_call_order: Whether a call's result depends on how many calls came before it.
    branches: Whether there is control flow.
    reads_datasets: Whether there are ops that work on one thread of their own kernel. Calls that share the kernel would
      wait for each other.
  """

  graph_def: tf.compat.v1.GraphDef
  inputs: Mapping[str, tf.TensorSpec]
  used: Sequence[int]
  variables: Sequence[tuple[tf.DType, tf.TensorShape]]
  fetches: Sequence[str]
  depends_on_call_order: bool = dataclasses.field(init=False)
  branches: bool = dataclasses.field(init=False)
  reads_datasets: bool = dataclasses.field(init=False)

  def __post_init__(self) -> None:
    nodes = list(self.graph_def.node)
    nodes += [node for function in self.graph_def.library.function for node in function.node_def]
    object.__setattr__(self, 'depends_on_call_order', any(_depends_on_call_order(node) for node in nodes))
    object.__setattr__(self, 'branches', any(node.op in _BRANCHING_OPS for node in nodes))
    object.__setattr__(self, 'reads_datasets', any(node.op in _ONE_THREAD_OPS for node in nodes))

  def add_to_current_graph(self, inputs: Sequence[tf.Tensor], name: str = '') -> list[tf.Tensor]:
    """Adds the nodes to the current graph, with `inputs` in the order of `self.inputs`; returns the fetched tensors."""
    graph_def = self.graph_def
    if any(node.op == 'Enter' for node in graph_def.node):
      # A loop is known by the name of its frame, so each copy in a graph needs its own.
      graph_def, number = type(graph_def).FromString(graph_def.SerializeToString()), next(_unique)
      for node in graph_def.node:
        if node.op == 'Enter':
          node.attr['frame_name'].s += b'_%d' % number
    # All in C++. TensorFlow's `prune` made each node again in Python, which took almost half of a first round.
    return tf.graph_util.import_graph_def(
      graph_def, input_map=dict(zip(self.inputs, inputs)), return_elements=self.fetches, name=name
    )


def section_graph(proto: Proto, arguments: Sequence[str], results: Sequence[str]) -> SectionGraph:
  """The graph of a section.

  Args:
    proto: The TensorFlow part of a TFF computation's proto.
    arguments: Names of the tensors that its parameter binds.
    results: Names of the tensors that its result binds.
  """
  graph_def = _with_calls_inlined(proto, arguments, results)
  _wait_for_no_input(graph_def.node)
  initialize = _node_name(proto.initialize_op) if proto.initialize_op else None
  fetches = [name for name in dict.fromkeys(results) if name not in arguments]
  nodes = {node.name: node for node in graph_def.node}
  # What a session would not run must not run here: a function would run every op that has an effect.
  roots = [_node_name(name) for name in fetches]
  if initialize:
    roots.append(initialize)
  kept = _needed(nodes, roots)
  for name in [node.name for node in graph_def.node if node.name not in kept]:
    del nodes[name]
  if initialize:
    _initialize_first(nodes, initialize)
  used = [i for i, name in enumerate(arguments) if _node_name(name) in nodes]
  inputs, variables = {}, []
  for name in [arguments[i] for i in used]:
    placeholder = nodes[_node_name(name)].attr
    inputs[name] = tf.TensorSpec(tf.TensorShape(placeholder['shape'].shape), tf.as_dtype(placeholder['dtype'].type))
  for node in nodes.values():
    if node.op == 'VarHandleOp':
      inputs[f'{node.name}:0'] = tf.TensorSpec([], tf.resource)
      variables.append((tf.as_dtype(node.attr['dtype'].type), tf.TensorShape(node.attr['shape'].shape)))
    elif node.op in _ANONYMOUS_TABLES:
      node.op, attributes = _ANONYMOUS_TABLES[node.op]
      # An op that does not have an attribute is refused with it.
      for key in [key for key in node.attr if key not in attributes and not key.startswith('_')]:
        del node.attr[key]
  for name in inputs:
    del nodes[_node_name(name)]
  prepared = tf.compat.v1.GraphDef(versions=graph_def.versions)
  prepared.node.extend(nodes.values())
  # After the nodes are in place: what they call is renamed with the library.
  prepared.library.CopyFrom(_renamed_library(graph_def.library, prepared.node))
  for part in [prepared.node, *[function.node_def for function in prepared.library.function]]:
    _place_elements_on_cpu(part)
  return SectionGraph(prepared, inputs, used, variables, fetches)


def from_graph(
  graph: tf.Graph,
  arguments: Sequence[tf.Tensor],
  handles: Sequence[tf.Tensor],
  variables: Sequence[tuple[tf.DType, tf.TensorShape]],
  fetches: Sequence[str],
) -> SectionGraph:
  """A graph whose placeholders become inputs, and which needs no other change.

  Args:
    graph: Holds nodes of `SectionGraph`s.
    arguments: Placeholders of the arguments.
    handles: Placeholders of the handles of variables.
    variables: The dtypes and shapes of these.
    fetches: Names of the tensors to return.
  """
  graph_def = graph.as_graph_def()
  nodes = {node.name: node for node in graph_def.node}
  kept = _needed(nodes, [_node_name(name) for name in fetches])
  used = [i for i, argument in enumerate(arguments) if argument.op.name in kept]
  tensors = [arguments[i] for i in used] + [handle for handle in handles if handle.op.name in kept]
  inputs = {tensor.name: tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors}
  prepared = tf.compat.v1.GraphDef(versions=graph_def.versions, library=graph_def.library)
  placeholders = {tensor.op.name for tensor in tensors}
  prepared.node.extend(node for name, node in nodes.items() if name in kept and name not in placeholders)
  variables = [variable for variable, handle in zip(variables, handles) if handle.op.name in kept]
  return SectionGraph(prepared, inputs, used, variables, fetches)


def _optimizer_config() -> tf.compat.v1.ConfigProto:
  """The settings of `tff.backends.native.desugar_and_transform_to_native`, without those that save memory.

  To save memory, a step's biases and activations would be computed a second time for its gradients, and oneDNN could
  not compute them together with the convolution.
  """
  config = tf.compat.v1.ConfigProto()
  options = config.graph_options.rewrite_options
  options.memory_optimization = options.NO_MEM_OPT
  for kind in ('function', 'arithmetic', 'loop'):
    setattr(options, f'{kind}_optimization', options.AGGRESSIVE)
  options.constant_folding = options.AGGRESSIVE
  return config


_OPTIMIZER = _optimizer_config()


def _node_name(edge: str) -> str:
  return edge.lstrip('^').split(':', 1)[0]


def _needed(nodes: _ByName, names: Sequence[str]) -> set[str]:
  """The nodes `names` and all nodes that lead to them."""
  return schedule.closure(names, lambda name: map(_node_name, nodes[name].input))


def _wait_for_no_input(nodes: Nodes) -> None:
  """Removes edges from nodes that become inputs: these exist when a call begins, and are not nodes of its graph."""
  inputs = {node.name for node in nodes if node.op in _INPUT_OPS}
  for node in nodes:
    edges = [edge for edge in node.input if not (edge.startswith('^') and _node_name(edge) in inputs)]
    if len(edges) < len(node.input):
      node.input[:] = edges
    if '_class' in node.attr:  # Asks for the device of another node.
      del node.attr['_class']


def _with_calls_inlined(proto: Proto, arguments: Sequence[str], results: Sequence[str]) -> tf.compat.v1.GraphDef:
  """The section's GraphDef. If it calls functions, TensorFlow's optimizer inlines them.

  Otherwise functions' dataset arguments would be placed on GPUs, which have no kernels for datasets. A section that
  calls none is too small for its optimization to be worth the time.

  Reductions become loops before that, so their steps are also inlined. TensorFlow's pooling gradient is replaced by
  oneDNN's only where it and the pooling are in one graph, with no argument of a function between them.
  """
  graph_def = tf.compat.v1.GraphDef.FromString(proto.graph_def.value)
  if not graph_def.library.function:
    return graph_def
  dataset_loops.replace_reductions(graph_def)
  meta_graph = tf.compat.v1.MetaGraphDef(graph_def=graph_def)
  if proto.initialize_op:
    initialize_ops = meta_graph.collection_def[tf.compat.v1.GraphKeys.INIT_OP].node_list.value
    initialize_ops.append(_node_name(proto.initialize_op))
  signature = meta_graph.signature_def['section']
  placeholders = {node.name: node.attr for node in graph_def.node if node.op == 'Placeholder'}
  for i, name in enumerate(arguments):
    placeholder = placeholders[_node_name(name)]
    signature.inputs[f'{i}'].name = name
    signature.inputs[f'{i}'].dtype = placeholder['dtype'].type
    signature.inputs[f'{i}'].tensor_shape.CopyFrom(placeholder['shape'].shape)
  for i, name in enumerate(results):
    signature.outputs[f'{i}'].name = name
  try:
    return tf_optimizer.OptimizeGraph(_OPTIMIZER, meta_graph)
  except ValueError:  # Some graphs without arguments are refused.
    return graph_def


def _initialize_first(nodes: _ByName, initialize: str) -> None:
  """Makes every node that `initialize` does not need wait for it."""
  before = _needed(nodes, [initialize])
  free = {name for name, node in nodes.items() if node.op in _FREE_OPS and not node.input}
  for name, node in nodes.items():
    if name in before or name in free:
      continue
    # One edge at the border is enough: a node that depends on one that waits also waits.
    if all(_node_name(edge) in before or _node_name(edge) in free for edge in node.input):
      node.input.append(f'^{initialize}')


def _place_elements_on_cpu(nodes: Nodes) -> None:
  """Places iterators and optional elements, also those that a loop passes on, where the datasets are."""
  passed_to: dict[str, list[str]] = {}
  for node in nodes:
    if node.op in _PASSING_OPS and node.attr['T'].type == tf.variant.as_datatype_enum:
      for edge in node.input:
        passed_to.setdefault(_node_name(edge), []).append(node.name)
  optional = [node.name for node in nodes if node.op in _OPTIONAL_OPS]
  holders = schedule.closure(optional, lambda name: passed_to.get(name, ()))
  for node in nodes:
    if node.name in holders or node.op.startswith(_ELEMENT_OPS):
      node.device = _CPU


def _renamed_library(library: function_pb2.FunctionDefLibrary, nodes: Nodes) -> function_pb2.FunctionDefLibrary:
  """The functions that `nodes` reach, under names that are new to this process; renames their uses in `nodes` too.

  A process has one name space for functions, and the compiler optimizes functions without renaming them: the graph's
  own names may stand for something else here.
  """
  functions = {function.signature.name: function for function in library.function}
  suffix = f'_block{next(_unique)}'
  reached: set[str] = set()
  pending: list[str] = []

  def visit(name: str) -> str:
    if name not in functions:
      return name
    if name not in reached:
      reached.add(name)
      pending.append(name)
    return name + suffix

  def rename(node: tf.compat.v1.NodeDef) -> None:
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


def _depends_on_call_order(node: tf.compat.v1.NodeDef) -> bool:
  # A stateful random op with a seed continues its sequence from call to call, so what a client draws depends on how
  # many drew before it. Without a seed it is random anyway; stateless ops have inputs instead of these attributes.
  return 'seed' in node.attr and 'seed2' in node.attr and (node.attr['seed'].i != 0 or node.attr['seed2'].i != 0)
