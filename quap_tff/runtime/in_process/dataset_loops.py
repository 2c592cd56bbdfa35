"""Replaces `tf.data.Dataset.reduce` in graphs by a loop over an iterator that does the same steps in the same order.

TensorFlow's ReduceDataset makes its function again at every call (80 ms for a convolutional model's training step) and
runs it on tf.data's threads. TFF's training loops are such reductions, one for each client. The body of a loop belongs
to the function around it and is made once.

    optional = iterator.get_next()
    while optional.has_value():
      state = f(state, optional.value, *others)
      optional = iterator.get_next()

The iterator does not tune itself. At its end, TensorFlow would wait for the thread that tunes it, which may be asleep.
That took a quarter of a round.
"""

from collections.abc import Collection, Sequence
from typing import Any, Callable

import tensorflow as tf

# These are not public. The versions are pinned.
from tensorflow.core.framework import attr_value_pb2
from tensorflow.core.framework import dataset_options_pb2
from tensorflow.core.framework import function_pb2

# The nodes of a graph or of a function, in its proto: a sequence, to which `add` adds one.
Nodes = Any
_VARIANT = tf.variant.as_datatype_enum
_RESOURCE = tf.resource.as_datatype_enum
_UNTUNED = dataset_options_pb2.Options(autotune_options=dataset_options_pb2.AutotuneOptions(enabled=False))


def replace_reductions(graph_def: tf.compat.v1.GraphDef) -> None:
  """Replaces every ReduceDataset node of `graph_def`, also inside functions."""
  library = graph_def.library
  functions = {function.signature.name: function for function in library.function}
  used = set(functions)

  def replace_in(nodes: Nodes, output: Callable[[str, str, int], str]) -> list[str]:
    """`output` writes a reference to an output, given a node's name, the output's name in its op, and an index."""
    names = []
    for node in [node for node in nodes if node.op == 'ReduceDataset']:
      f = node.attr['f'].func
      # Such a node is left as it is, and runs as TensorFlow runs it.
      if f.name not in functions or not node.attr['Tstate'].list.type:
        continue
      state = list(node.attr['Tstate'].list.type)
      others = list(node.attr['Targuments'].list.type)
      arguments = [argument.type for argument in functions[f.name].signature.input_arg]
      element = arguments[len(state) : len(arguments) - len(others)]
      prefix = f'{f.name}_{node.name.replace("/", "_")}_loop'
      # Two reductions may have names that differ in a slash only.
      while f'{prefix}_cond' in used or f'{prefix}_body' in used:
        prefix += '_'
      used.update([f'{prefix}_cond', f'{prefix}_body'])
      types = [_VARIANT, _RESOURCE] + state + others
      _add_condition(library.function.add(), f'{prefix}_cond', types)
      _add_body(library.function.add(), f'{prefix}_body', types, f, state, element, others)
      _replace(nodes, node, prefix, types, state, element, output)
      names.append(node.name)
    return names

  replace_in(graph_def.node, lambda name, _, index: f'{name}:{index}')
  for function in list(functions.values()):
    names = set(replace_in(function.node_def, lambda name, part, index: f'{name}:{part}:{index}'))
    if names:
      for node in function.node_def:
        node.input[:] = [_renamed(edge, names) for edge in node.input]
      for key in list(function.ret):
        function.ret[key] = _renamed(function.ret[key], names)


def _renamed(edge: str, names: Collection[str]) -> str:
  """Inside functions an output has the name that its op gives it: `components` becomes the identity's `output`."""
  parts = edge.split(':')
  if len(parts) == 3 and parts[0] in names and parts[1] == 'components':
    return f'{parts[0]}:output:{parts[2]}'
  return edge


def _element_attributes(node: tf.compat.v1.NodeDef, element: Sequence[int]) -> None:
  node.attr['output_types'].list.type.extend(element)
  for _ in element:
    node.attr['output_shapes'].list.shape.add(unknown_rank=True)


def _replace(
  nodes: Nodes,
  node: tf.compat.v1.NodeDef,
  prefix: str,
  types: Sequence[int],
  state: Sequence[int],
  element: Sequence[int],
  output: Callable[[str, str, int], str],
) -> None:
  """Replaces `node` by the loop. `node` becomes the identity of the final state and keeps its name."""
  data = [edge for edge in node.input if not edge.startswith('^')]
  control = [edge for edge in node.input if edge.startswith('^')]
  name, device = node.name, node.device
  options = nodes.add(name=f'{name}/options', op='OptionsDataset', input=[data[0]], device=device)
  options.attr['serialized_options'].s = _UNTUNED.SerializeToString()
  _element_attributes(options, element)
  iterator = nodes.add(name=f'{name}/iterator', op='AnonymousIteratorV3', input=control, device=device)
  _element_attributes(iterator, element)
  handle = output(iterator.name, 'handle', 0)
  untuned = output(options.name, 'handle', 0)
  nodes.add(name=f'{name}/make_iterator', op='MakeIterator', input=[untuned, handle] + control, device=device)
  after = [handle, f'^{name}/make_iterator']
  first = nodes.add(name=f'{name}/first', op='IteratorGetNextAsOptional', input=after, device=device)
  _element_attributes(first, element)
  begin = [output(first.name, 'optional', 0), handle] + data[1:] + control
  loop = nodes.add(name=f'{name}/loop', op='While', input=begin)
  loop.attr['T'].list.type.extend(types)
  loop.attr['cond'].func.name = f'{prefix}_cond'
  loop.attr['body'].func.name = f'{prefix}_body'
  # One step after the other, even if a step leaves something running that its results do not need.
  loop.attr['parallel_iterations'].i = 1
  known = list(node.attr['output_shapes'].list.shape)
  for i in range(len(types)):
    shape = loop.attr['output_shapes'].list.shape.add(unknown_rank=True)
    if 2 <= i < 2 + len(known):
      shape.CopyFrom(known[i - 2])
  # Lets the loop become part of the graph around it, so that nothing is called from step to step.
  loop.attr['_lower_using_switch_merge'].b = True
  final = [output(loop.name, 'output', 2 + i) for i in range(len(state))]
  node.CopyFrom(type(node)(name=name, op='IdentityN', input=final))
  node.attr['T'].list.type.extend(state)


def _add_signature(function: function_pb2.FunctionDef, name: str, types: Sequence[int]) -> list[str]:
  function.signature.name = name
  function.signature.is_stateful = True
  names = [f'arg{i}' for i in range(len(types))]
  for argument, dtype in zip(names, types):
    function.signature.input_arg.add(name=argument, type=dtype)
  return names


def _add_condition(function: function_pb2.FunctionDef, name: str, types: Sequence[int]) -> None:
  arguments = _add_signature(function, name, types)
  function.signature.output_arg.add(name='more', type=tf.bool.as_datatype_enum)
  function.node_def.add(name='has_value', op='OptionalHasValue', input=[arguments[0]])
  function.ret['more'] = 'has_value:has_value:0'


def _add_body(
  function: function_pb2.FunctionDef,
  name: str,
  types: Sequence[int],
  f: attr_value_pb2.NameAttrList,
  state: Sequence[int],
  element: Sequence[int],
  others: Sequence[int],
) -> None:
  arguments = _add_signature(function, name, types)
  value = function.node_def.add(name='value', op='OptionalGetValue', input=[arguments[0]])
  _element_attributes(value, element)
  call = function.node_def.add(name='step', op='StatefulPartitionedCall')
  call.input.extend(arguments[2 : 2 + len(state)])
  call.input.extend(f'value:components:{i}' for i in range(len(element)))
  call.input.extend(arguments[2 + len(state) :])
  call.attr['Tin'].list.type.extend(list(state) + list(element) + list(others))
  call.attr['Tout'].list.type.extend(state)
  call.attr['f'].func.CopyFrom(f)
  for key in ('config', 'config_proto', 'executor_type'):
    call.attr[key].s = b''
  following = function.node_def.add(name='next', op='IteratorGetNextAsOptional', input=[arguments[1]])
  _element_attributes(following, element)
  results = ['next:optional:0', arguments[1]] + [f'step:output:{i}' for i in range(len(state))]
  results += arguments[2 + len(state) :]
  for i, (result, dtype) in enumerate(zip(results, types)):
    function.signature.output_arg.add(name=f'out{i}', type=dtype)
    function.ret[f'out{i}'] = result
  # A step's assignments must run in the loop even if its results do not need them.
  function.control_ret['step'] = 'step'
  function.signature.control_output.append('step')
