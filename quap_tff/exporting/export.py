"""Writes the bundle of a run: the functions of its process's `MapReduceForm`, first state and evaluation, as graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import os
import platform
from typing import Any, Callable, NamedTuple, Optional, Union

import tensorflow as tf
import tensorflow_federated as tff

from quap_tff import plans
from quap_tff.bundle import bundle_files
from quap_tff.certificates.folders import about as abouts
from quap_tff.common import array_types
from quap_tff.common import files
from quap_tff.mechanisms.noise import integers
from quap_tff.plans.accounts import run_account
from quap_tff.runtime.in_process import section_graphs
from quap_tff.training import evaluation
from quap_tff.training import given_weights
from quap_tff.training import model_functions

# The functions of a form, and the names of their arguments.
_ARGUMENTS = {
  'prepare': ('state',),
  'work': ('data', 'message'),
  'zero': (),
  'accumulate': ('total', 'update'),
  'merge': ('total', 'other'),
  'report': ('total',),
  'update': ('state', 'total'),
  'secure_modular_sum_modulus': (),
}
# The secure sums of TFF that a `MapReduceForm` keeps apart, and that a bundle does not play.
_OTHER_SUMS = {'federated_secure_sum_bitwidth': 'secure_sum_bitwidth', 'federated_secure_sum': 'secure_sum_max_input'}


def export(
  process: Union[plans.BuiltProcess, plans.Plan, tff.learning.templates.LearningProcess],
  folder: Union[str, os.PathLike],
  *,
  rounds: Optional[bundle_files.PlannedRounds] = None,
  about: Optional[abouts.About] = None,
  model_fn: Optional[Callable[[], Any]] = None,
  weights: Optional[given_weights.Weights] = None,
) -> None:
  """Writes a bundle, which `quap_tff.Bundle` plays with TensorFlow alone. It appears complete or not at all.

  Args:
    process: From `plan.build_process`. A `tff.learning.templates.LearningProcess` alone is exported without an account.
      With `weights`, the plan.
    folder: The folder, which must not exist.
    rounds: What a simulation plays; by default the planned rounds.
    about: What the issuer of a certificate states.
    model_fn: Makes the model for the evaluation; by default that of `plan.build_process`.
    weights: The first weights of a model that somebody else's program trains, see `Plan.build_update_process`. Clients
      of such a bundle bring their updates.

  Raises:
    ValueError: If the folder exists, or the process cannot be exported: with the reason.
  """
  folder = os.fspath(folder)
  if os.path.lexists(folder):
    raise ValueError(f'{folder} already exists: give a new folder.')
  if weights is not None:
    if not isinstance(process, plans.Plan):
      found = type(process).__name__
      raise ValueError(f'Weights are for a plan, found {found}: quap_tff.export(plan, folder, weights=…).')
    _check(process)
    process = process.build_update_process(weights)
  plan: Optional[plans.Plan] = None
  leaving: run_account.Leaving = ()
  if isinstance(process, plans.BuiltProcess):
    plan, leaving = process.plan, process.leaving
    _check(plan)
    model_fn = process.model_fn if model_fn is None else model_fn
    process = process.process
    if rounds is None:
      rounds = bundle_files.PlannedRounds(plan.expected)
  rounds = bundle_files.PlannedRounds() if rounds is None else rounds
  graphs = _graphs_of_process(process)
  evaluate = None if model_fn is None else _graph_of_evaluation(model_fn)
  if evaluate is not None:
    graphs['evaluate'] = evaluate
  content = {f'{name}.pb': one.graph_def for name, one in graphs.items()}
  texts = bundle_files.texts({name: one.bindings for name, one in graphs.items()}, plan, leaving, rounds, about)
  content.update((name, text.encode()) for name, text in texts.items())
  versions = {
    'python': platform.python_version(),
    'tensorflow': tf.__version__,
    'tensorflow_federated': tff.__version__,
  }
  with files.new_folder(folder) as unfinished:
    for name, one in content.items():
      files.write(os.path.join(unfinished, name), one)
    files.write(os.path.join(unfinished, bundle_files.MANIFEST), bundle_files.manifest(versions, content))


def _check(plan: plans.Plan) -> None:
  """Raises `ValueError` if it is known why there is no bundle of a plan's process."""
  facts = plan.mechanism.facts
  if facts.waits:
    raise ValueError(
      'A bundle plays rounds with one message and one sum, and here clients wait for others in mid-round: '
      f'{facts.waits}.'
    )
  if facts.unexported:
    raise ValueError(f'A bundle of this run would be wrong: {facts.unexported}.')


class _ExportedGraph(NamedTuple):
  """A graph and its bindings.

  Attributes:
    graph_def: Serialized.
    bindings: See `quap_tff.bundle.graphs.Graph`.
  """

  graph_def: bytes
  bindings: dict[str, Any]


def _graphs_of_process(process: Any) -> dict[str, _ExportedGraph]:
  """The graphs of a learning process by name: `initialize`, and those of the functions of its `MapReduceForm`.

  Raises:
    ValueError: If TFF does not compile the process, or it asks for another secure sum than the modular one.
  """
  try:
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(process.next)
    initialize = tff.backends.mapreduce.get_state_initialization_computation(process.initialize)
  except Exception as error:  # TFF raises a dozen kinds, some of them for what a process may well do elsewhere.
    first = str(error).strip().partition('\n')[0]
    raise ValueError(
      'TFF does not compile this process to one message, one sum and one update (MapReduceForm), so there is nothing '
      f'to export: {first or type(error).__name__}. Choose a method that aggregates once a round, and sends every '
      'client the same.'
    ) from error
  for uri, name in _OTHER_SUMS.items():
    if len(getattr(form, name).type_signature.result):
      raise ValueError(
        f'This process sums by {uri}, which a bundle does not play. Use tff.federated_sum, or '
        'quap_tff.federated.sums.secure_sum, which is modular.'
      )
  graphs = {name: _exported(getattr(form, name), *arguments) for name, arguments in _ARGUMENTS.items()}
  graphs['initialize'] = _exported(initialize, draws=True)
  return graphs


def _graph_of_evaluation(model: model_functions.Model) -> Optional[_ExportedGraph]:
  """The graph from (weights, x, y) to `evaluation.totals` of a batch; None unless the labels are class numbers."""
  model_fn = model_functions.of(model)
  weights_type = model_functions.initial_weights(model_fn).type_signature.result
  spec = model_fn().input_spec
  container: Callable[[list], array_types.Structure] = type(spec)
  x_spec, y_spec = (spec['x'], spec['y']) if isinstance(spec, Mapping) else spec
  if tf.nest.is_nested(y_spec) or not y_spec.dtype.is_integer:
    return None

  @tff.tensorflow.computation(weights_type, x_spec, y_spec)
  def evaluate(
    weights: array_types.Structure, x: array_types.Structure, y: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    made = model_fn()
    variables = tff.learning.models.ModelWeights.from_model(made)
    pairs = zip(tf.nest.flatten(variables), tf.nest.flatten(weights))
    with tf.control_dependencies([variable.assign(value) for variable, value in pairs]):
      batch = (x, y) if not isinstance(spec, Mapping) else container([('x', x), ('y', y)])
      return evaluation.totals(made.forward_pass(batch, training=False), y)

  return _exported(evaluate, 'weights', 'x', 'y')


def _exported(computation: Any, *arguments: str, draws: bool = False) -> _ExportedGraph:
  """The graph of a TensorFlow computation, whose arguments get these names.

  Args:
    computation: The computation.
    *arguments: The names.
    draws: Whether what it draws from TensorFlow's entropy becomes an input. TensorFlow's has 32 bits.
  """
  proto, signature = tff.framework.serialize_computation(computation).tensorflow, computation.type_signature
  taken = list(_names(proto.parameter)) if proto.HasField('parameter') else []
  returned = list(_names(proto.result))
  section = section_graphs.section_graph(proto, taken, returned)
  kinds = [signature.parameter] if len(arguments) == 1 else list(signature.parameter or ())
  inputs = [[name, spec.dtype.name, _sizes(spec.shape)] for name, spec in section.inputs.items()]
  variables = [[dtype.name, _sizes(shape)] for dtype, shape in section.variables]
  count = len(section.used)
  bindings = {
    'parameter': {'fields': [[name, _described(one)] for name, one in zip(arguments, kinds)]},
    'result': _described(signature.result),
    'arguments': taken,
    'results': returned,
    'inputs': inputs[:count],
    'variables': [[name, *variable] for (name, *_), variable in zip(inputs[count:], variables)],
    'entropy': list(_drawn(section.graph_def)) if draws else [],
    'counts': _verdict(section.graph_def),
  }
  return _ExportedGraph(section.graph_def.SerializeToString(), bindings)


def _names(binding: Any) -> Iterator[str]:
  """Names of the tensors that a binding binds, in order."""
  kind = binding.WhichOneof('binding')
  if kind == 'struct':
    for element in binding.struct.element:
      yield from _names(element)
  else:
    name = binding.tensor.tensor_name if kind == 'tensor' else binding.sequence.variant_tensor_name
    yield name if ':' in name else f'{name}:0'


def _described(kind: tff.Type) -> dict[str, Any]:
  """A type as `quap_tff.bundle.structures` has it."""
  if isinstance(kind, tff.TensorType):
    return {'dtype': tf.as_dtype(kind.dtype).name.replace('string', 'str'), 'shape': _sizes(tf.TensorShape(kind.shape))}
  if isinstance(kind, tff.SequenceType):
    return {'sequence': _described(kind.element)}
  if not isinstance(kind, tff.StructType):
    raise ValueError(f'A bundle holds tensors, structures of them, and sequences, and this process has {kind}.')
  return {'fields': [[name, _described(part)] for name, part in tff.structure.iter_elements(kind)]}


def _sizes(shape: tf.TensorShape) -> Optional[list[Optional[int]]]:
  return None if shape.rank is None else shape.as_list()


def _verdict(graph_def: Any) -> Optional[str]:
  """The name of the tensor that says whether a client's update counts; None if the mechanism has none."""
  names = [node.name for node in graph_def.node if node.op == 'All' and node.name.endswith(integers.COUNTS)]
  return f'{names[0]}:0' if len(names) == 1 else None


def _drawn(graph_def: Any) -> Iterator[list[Any]]:
  """The name and the shape of each tensor that is drawn from TensorFlow's entropy."""
  nodes = {node.name: node for node in graph_def.node}
  for node in graph_def.node:
    if node.op == 'NonDeterministicInts':
      yield [f'{node.name}:0', tf.make_ndarray(nodes[node.input[0]].attr['value'].tensor).tolist()]
