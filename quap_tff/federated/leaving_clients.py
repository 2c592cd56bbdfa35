"""Says of a computation which values leave clients, and by which intrinsic. Nothing is run."""

import tensorflow_federated as tff

# Clients stay the owners of the result, but the server sees which parts of its value they ask for.
_SELECTIONS = frozenset(['federated_select', 'federated_secure_select'])


def leaving_clients(computation: tff.Computation) -> list[tuple[str, tff.Type]]:
  """Lists what leaves clients when `computation` runs.

  That is what an intrinsic takes at the clients and gives, in some form, to the server: sums, means, minima,
  `federated_aggregate` (on which collections and samples are built), secure sums, and the keys of a `federated_select`.
  Computations that this one calls count as part of it. What the result does not need is left out, since no runtime
  runs it. A client-placed result of the computation itself is not listed: it stays at the clients.

  Args:
    computation: Any TFF computation, such as the `next` of a process.

  Returns:
    For each client-placed argument of such an intrinsic the intrinsic's URI (`federated_secure_modular_sum`, say) and
    the type of one client's value, in the order of the computation. A weighted mean has two, its values and its
    weights.

  Raises:
    ValueError: If the computation takes a function, which could do anything with clients' values.
  """
  parameter = computation.type_signature.parameter
  if parameter is not None and tff.types.contains(parameter, lambda part: isinstance(part, tff.FunctionType)):
    raise ValueError(
      f'What leaves the clients of a computation depends on the functions that it takes, and it is of type '
      f'{computation.type_signature}. Ask for a computation that calls it with these functions.'
    )
  leaving: list[tuple[str, tff.Type]] = []

  def visit(block: tff.framework.ComputationBuildingBlock) -> tuple[tff.framework.ComputationBuildingBlock, bool]:
    if isinstance(block, tff.framework.Intrinsic) and isinstance(block.type_signature, tff.FunctionType):
      signature = block.type_signature
      if block.uri in _SELECTIONS or tff.types.contains(signature.result, _is_at_server):
        leaving.extend((block.uri, member) for member in _at_clients(signature.parameter))
    return block, False

  # In this form every call is inlined, and every intrinsic is called where it stands.
  tff.framework.transform_postorder(tff.framework.to_call_dominant(computation.to_building_block()), visit)
  return leaving


def tensors(type_spec: tff.Type, path: str = '') -> list[tuple[str, tff.TensorType]]:
  """The tensors of a client's value, each with the names that lead to it: `report.kept`, or '' without a name."""
  if not isinstance(type_spec, tff.StructType):
    return [(path, type_spec)]
  return [
    leaving
    for name, part in tff.structure.iter_elements(type_spec)
    for leaving in tensors(part, '.'.join(filter(None, [path, name])))
  ]


def named_tensors(computation: tff.Computation) -> tuple[tuple[str, str, str], ...]:
  """(intrinsic, name, type) of each tensor that leaves clients when `computation` runs."""
  return tuple(
    (uri, name, tensor.compact_representation())
    for uri, value in leaving_clients(computation)
    for name, tensor in tensors(value)
  )


def _is_at_server(type_spec: tff.Type) -> bool:
  return isinstance(type_spec, tff.FederatedType) and type_spec.placement is tff.SERVER


def _at_clients(type_spec: tff.Type) -> list[tff.Type]:
  """The member types of the client-placed values in an argument."""
  if isinstance(type_spec, tff.FederatedType):
    return [type_spec.member] if type_spec.placement is tff.CLIENTS else []
  if isinstance(type_spec, tff.StructType):
    return [member for _, part in tff.structure.iter_elements(type_spec) for member in _at_clients(part)]
  return []
