"""Cuts the argument of a computation into contiguous parts of the cohort."""

from typing import Any, Optional

import tensorflow_federated as tff


def split(argument: Any, type_spec: tff.Type, count: int) -> list[Any]:
  """At most `count` arguments, each with a contiguous part of the clients and with everything else in full.

  The sizes differ by one at most, the larger parts come first, and no part is empty unless the cohort is. They depend
  on the size of the cohort and on `count` alone: whoever computes a part, the sums are the same.

  Raises:
    ValueError: If two client-placed arguments differ in their number of clients.
  """
  clients = num_clients(argument, type_spec) or 0
  count = max(1, min(count, clients))
  size, larger = divmod(clients, count)
  ends = [(i + 1) * size + min(i + 1, larger) for i in range(count)]
  return [_part(argument, type_spec, begin, end) for begin, end in zip([0, *ends], ends)]


def num_clients(argument: Any, type_spec: Optional[tff.Type]) -> Optional[int]:
  """The cohort's size, `None` if the argument has no client values; raises `ValueError` if parts of it disagree."""
  sizes = set(_sizes(argument, type_spec))
  if len(sizes) > 1:
    raise ValueError(f'The client-placed arguments differ in their number of clients: {sorted(sizes)}.')
  return sizes.pop() if sizes else None


def _sizes(argument: Any, type_spec: Optional[tff.Type]) -> list[int]:
  if _differs_by_client(type_spec):
    return [len(argument)]
  if isinstance(type_spec, tff.StructType):
    return [size for child, child_type in _children(argument, type_spec) for size in _sizes(child, child_type)]
  return []


def _part(argument: Any, type_spec: tff.Type, begin: int, end: int) -> Any:
  if _differs_by_client(type_spec):
    return argument[begin:end]
  if isinstance(type_spec, tff.StructType):
    names = [name for name, _ in tff.structure.to_elements(type_spec)]
    parts = [_part(child, child_type, begin, end) for child, child_type in _children(argument, type_spec)]
    return tff.structure.Struct(zip(names, parts))
  return argument


def _differs_by_client(type_spec: Optional[tff.Type]) -> bool:
  return isinstance(type_spec, tff.FederatedType) and type_spec.placement is tff.CLIENTS and not type_spec.all_equal


def _children(argument: Any, type_spec: tff.StructType) -> list[Any]:
  values = tff.structure.to_elements(tff.structure.from_container(argument))
  return [(value, child_type) for (_, value), (_, child_type) in zip(values, tff.structure.to_elements(type_spec))]
