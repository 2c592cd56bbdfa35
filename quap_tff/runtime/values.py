"""Conversion of values: Python containers outside the runtime, nested tuples of eager tensors inside.

Inside the runtime a tensor is an eager tensor. A sequence is a dataset's variant tensor (nothing is serialized or
read). A struct is a tuple in the type's order. A value at the server, or one that is the same at all clients, is the
bare value. A value that differs by client is a `PerClient`, or an `OnDemand` if the caller's argument is neither a list
nor a tuple but another sequence.
"""

import collections
import collections.abc
from collections.abc import Iterator, Mapping, Sequence
import functools
from typing import Any, Callable, Optional

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.runtime import errors
from quap_tff.runtime import fitting


class PerClient(list):
  """One value per client, in the cohort's order."""


class MadeOnDemand(collections.abc.Sequence):
  """`make(client)` for each of `clients`, called anew each time that the item is asked for."""

  def __init__(self, make: Callable[[Any], Any], clients: Sequence[Any]):
    self._make = make
    self._clients = clients

  def __len__(self) -> int:
    return len(self._clients)

  def __getitem__(self, index: int) -> Any:
    return self._make(self._clients[index])


# Where a part of the argument is, for messages: (where its parent is, its name or index), () for the argument itself.
# Making such a pair costs 30 ns, so values that fit hardly pay for it.
Path = tuple[Any, ...]


class OnDemand:
  """One value per client, in the cohort's order, made from the caller's sequence each time that it is asked for."""

  def __init__(self, arguments: Sequence[Any], type_spec: tff.Type, path: Path = ()):
    self._arguments = arguments
    self._type = type_spec
    self._path = path

  def __len__(self) -> int:
    return len(self._arguments)

  def __getitem__(self, index: int) -> Any:
    return to_value(self._arguments[index], self._type, (self._path, index))

  def __iter__(self) -> Iterator[Any]:
    return (self[index] for index in range(len(self)))


# What holds clients' values.
_CLIENT_VALUES = (PerClient, OnDemand)


def tf_dtype(dtype: Any) -> tf.DType:
  """The TensorFlow dtype of a TFF tensor type's dtype (which has NumPy's strings)."""
  return tf.string if np.dtype(dtype).kind in 'US' else tf.as_dtype(dtype)


def tensor_specs(type_spec: tff.Type) -> Any:
  """`tf.TensorSpec`s of the tensors of one client's or the server's value, nested as the value is."""
  if isinstance(type_spec, tff.FederatedType):
    return tensor_specs(type_spec.member)
  if isinstance(type_spec, tff.StructType):
    return tuple(tensor_specs(element) for _, element in tff.structure.iter_elements(type_spec))
  if isinstance(type_spec, tff.SequenceType):
    return tf.TensorSpec([], tf.variant)
  if isinstance(type_spec, tff.TensorType):
    return tf.TensorSpec(type_spec.shape, tf_dtype(type_spec.dtype))
  raise TypeError(f'A value is made of tensors and sequences, found the type {type_spec}.')


def element_structure(type_spec: tff.Type) -> Any:
  """`tf.TensorSpec`s of a sequence's elements, nested as tf.data flattens them (dictionaries by sorted key)."""
  if isinstance(type_spec, tff.TensorType):
    return tf.TensorSpec(type_spec.shape, tf_dtype(type_spec.dtype))
  if isinstance(type_spec, tff.StructType):
    elements = tff.structure.to_elements(type_spec)
    if elements and elements[0][0] is not None:
      return collections.OrderedDict((name, element_structure(element)) for name, element in elements)
    return tuple(element_structure(element) for _, element in elements)
  raise TypeError(f'A sequence can hold tensors and structures of them, found elements of type {type_spec}.')


def element_to_value(element: Any, type_spec: tff.Type) -> Any:
  """A tf.data element with the structure of `element_structure`, as a value."""
  if isinstance(type_spec, tff.TensorType):
    return element
  elements = tff.structure.to_elements(type_spec)
  parts = [element[i if name is None else name] for i, (name, _) in enumerate(elements)]
  return tuple(element_to_value(part, t) for part, (_, t) in zip(parts, elements))


def value_to_element(value: Any, type_spec: tff.Type) -> Any:
  """The inverse of `element_to_value`."""
  if isinstance(type_spec, tff.TensorType):
    return value
  elements = tff.structure.to_elements(type_spec)
  parts = [value_to_element(part, t) for part, (_, t) in zip(value, elements)]
  if elements and elements[0][0] is not None:
    return collections.OrderedDict((name, part) for (name, _), part in zip(elements, parts))
  return tuple(parts)


def dataset(variant: tf.Tensor, element_type: tff.Type) -> tf.data.Dataset:
  """The dataset behind a sequence's value."""
  return tf.data.experimental.from_variant(variant, element_structure(element_type))


def sequence_from_values(elements: Sequence[Any], element_type: tff.Type) -> tf.Tensor:
  """A sequence that yields `elements` (values). Neighbours of equal shape are stacked, so few datasets are chained."""
  nested = [value_to_element(element, element_type) for element in elements]
  if len(nested) == 1:  # What tf.data makes of it, without the checks around it, which cost small clients much.
    leaves = tf.nest.flatten(nested[0])
    return tf.raw_ops.TensorDataset(components=leaves, output_shapes=[leaf.shape for leaf in leaves])
  structure = element_structure(element_type)
  if not nested:
    empty = tf.data.Dataset.from_tensors(
      tf.nest.map_structure(
        lambda s: tf.zeros([size or 0 for size in s.shape], s.dtype)
        if s.dtype != tf.string
        else tf.fill([size or 0 for size in s.shape], ''),
        structure,
      )
    )
    return tf.data.experimental.to_variant(empty.take(0))
  runs: list[list[Any]] = []
  previous = None
  for element in nested:
    shapes = [tuple(leaf.shape) for leaf in tf.nest.flatten(element)]
    if shapes != previous:
      runs.append([])
    runs[-1].append(element)
    previous = shapes
  parts = [
    tf.data.Dataset.from_tensor_slices(tf.nest.map_structure(lambda *leaves: tf.stack(leaves), *run))
    if tf.nest.flatten(run[0])
    else tf.data.Dataset.from_tensors(run[0]).repeat(len(run))
    for run in runs
  ]
  variants = [tf.data.experimental.to_variant(part) for part in parts]
  while len(variants) > 1:  # By halves: a long chain would overflow the stack of its iterator.
    pairs = [variants[i : i + 2] for i in range(0, len(variants), 2)]
    variants = [
      tf.data.experimental.to_variant(
        tf.data.experimental.from_variant(pair[0], structure).concatenate(
          tf.data.experimental.from_variant(pair[1], structure)
        )
      )
      if len(pair) == 2
      else pair[0]
      for pair in pairs
    ]
  return variants[0]


def _tensor(argument: Any, type_spec: tff.TensorType, path: Path) -> tf.Tensor:
  if isinstance(argument, tf.Variable):
    argument = argument.read_value()
  dtype = tf_dtype(type_spec.dtype)
  if not isinstance(argument, tf.Tensor):
    if not isinstance(argument, (np.ndarray, np.generic)) or argument.dtype != type_spec.dtype:
      argument = _fitting(argument, dtype, path)
    try:
      argument = tf.constant(argument, dtype)
    except (ValueError, TypeError) as e:  # Lists that differ in length.
      raise TypeError(f'Expected a tensor of type {type_spec} for {_place(path)}, found {argument!r:.200}.') from e
  is_of_dtype = argument.dtype == dtype
  if not is_of_dtype and fitting.widens(argument.dtype, dtype):
    argument, is_of_dtype = tf.cast(argument, dtype), True
  if not is_of_dtype or not _is_compatible(argument.shape, _shape(type_spec)):
    raise TypeError(
      f'Expected a tensor of type {type_spec} for {_place(path)}, found one of dtype {argument.dtype.name} and shape '
      f'{argument.shape}.'
    )
  return argument


def _fitting(argument: Any, dtype: tf.DType, path: Path) -> Any:
  """`argument`, if TensorFlow can make a tensor of `dtype` of it without a change."""
  if isinstance(argument, (list, tuple)):
    if fitting.all_fit(argument, dtype):
      return argument
    return [_fitting(part, dtype, (path, i)) for i, part in enumerate(argument)]
  misfit = fitting.misfit(argument, dtype)
  if misfit:
    raise TypeError(f'Expected a value of dtype {dtype.name} for {_place(path)}, found {misfit}.')
  return np.asarray(argument, dtype.as_numpy_dtype) if hasattr(argument, '__array__') else argument


def _place(path: Path) -> str:
  """What a message calls a part of the argument: `argument.clients[3].x`."""
  if not path:
    return 'argument'
  parent, key = path
  return _place(parent) + (f'.{key}' if isinstance(key, str) else f'[{key}]')


def _children(argument: Any, type_spec: tff.StructType, path: Path) -> Sequence[Any]:
  elements = tff.structure.to_elements(type_spec)
  if isinstance(argument, tff.structure.Struct):
    found = tff.structure.to_elements(argument)
  elif attrs.has(type(argument)):
    found = [(field.name, getattr(argument, field.name)) for field in attrs.fields(type(argument))]
  elif isinstance(argument, tuple) and hasattr(argument, '_asdict'):
    found = list(argument._asdict().items())
  elif isinstance(argument, Mapping):
    found = list(argument.items())
    names = [name for name, _ in elements]
    if len(found) == len(names) and set(argument) == set(names):
      found = [(name, argument[name]) for name in names]
  elif isinstance(argument, (list, tuple)):
    found = [(None, part) for part in argument]
  else:
    raise TypeError(f'Expected a structure of type {type_spec} for {_place(path)}, found a {type(argument).__name__}.')
  if len(found) != len(elements):
    raise TypeError(
      f'Expected a structure of {len(elements)} elements of type {type_spec} for {_place(path)}, found '
      f'{len(found)} elements.'
    )
  for (found_name, _), (name, _) in zip(found, elements):
    if found_name is not None and name is not None and found_name != name:
      raise TypeError(
        f'Expected a structure of type {type_spec} for {_place(path)}, found an element {found_name!r} in place of '
        f'{name!r}.'
      )
  return [part for _, part in found]


@functools.lru_cache(maxsize=256)  # Every client has a few sequences, and all clients have the same ones.
def _element_specs(type_spec: tff.Type) -> Sequence[tf.TensorSpec]:
  return tf.nest.flatten(element_structure(type_spec))


@functools.lru_cache(maxsize=1024)
def _shape(type_spec: tff.TensorType) -> tf.TensorShape:
  return tf.TensorShape(type_spec.shape)


def _is_compatible(found: tf.TensorShape, expected: tf.TensorShape) -> bool:
  """`found.is_compatible_with(expected)`, which takes six times as long."""
  if found.rank is None or expected.rank is None:
    return True
  sizes, others = found.as_list(), expected.as_list()
  return len(sizes) == len(others) and all([a is None or b is None or a == b for a, b in zip(sizes, others)])


def _sequence(argument: Any, type_spec: tff.SequenceType, path: Path) -> tf.Tensor:
  if isinstance(argument, tf.data.Dataset):
    found, expected = tf.nest.flatten(argument.element_spec), _element_specs(type_spec.element)
    matches = len(found) == len(expected) and all(
      isinstance(f, tf.TensorSpec) and f.dtype == e.dtype and _is_compatible(f.shape, e.shape)
      for f, e in zip(found, expected)
    )
    if not matches:
      raise TypeError(
        f'Expected a sequence of type {type_spec} for {_place(path)}, found a dataset of {argument.element_spec}.'
      )
    return tf.data.experimental.to_variant(argument)
  if isinstance(argument, (list, tuple)):
    elements = [to_value(element, type_spec.element, (path, i)) for i, element in enumerate(argument)]
    return sequence_from_values(elements, type_spec.element)
  raise TypeError(
    f'Expected a tf.data.Dataset or a list for {_place(path)}, a sequence of type {type_spec}, found a '
    f'{type(argument).__name__}.'
  )


def to_value(argument: Any, type_spec: tff.Type, path: Path = ()) -> Any:
  """Turns what a caller passed into a value.

  Tensors and arrays must be of the type's dtype or of a smaller one of its kind, and Python's numbers of its kind and
  in its range. That is the rule of TFF's own contexts. Here it also holds for elements of lists that stand for
  sequences.

  Args:
    argument: What the caller passed.
    type_spec: What it should be.
    path: Where it is in the argument of the computation.

  Raises:
    TypeError: If it does not fit the type. The message says where in the argument, what is wrong, and the range.
    errors.UnsupportedComputationError: If the type has functions.
  """
  if isinstance(type_spec, tff.TensorType):
    return _tensor(argument, type_spec, path)
  if isinstance(type_spec, tff.SequenceType):
    return _sequence(argument, type_spec, path)
  if isinstance(type_spec, tff.StructType):
    parts, types = _children(argument, type_spec, path), tff.structure.to_elements(type_spec)
    return tuple(
      [to_value(part, t, (path, i if name is None else name)) for i, (part, (name, t)) in enumerate(zip(parts, types))]
    )
  if isinstance(type_spec, tff.FederatedType):
    if type_spec.placement is tff.SERVER or type_spec.all_equal:
      return to_value(argument, type_spec.member, path)
    if isinstance(argument, (list, tuple)):
      return PerClient(to_value(part, type_spec.member, (path, i)) for i, part in enumerate(argument))
    if isinstance(argument, collections.abc.Sequence) and not isinstance(argument, (str, bytes)):
      return OnDemand(argument, type_spec.member, path)
    raise TypeError(
      f'Expected a list with one value per client for {_place(path)} of type {type_spec}, found a '
      f'{type(argument).__name__}.'
    )
  raise errors.UnsupportedComputationError(
    f'The in-process runtime takes no functions as arguments, and {_place(path)} is of type {type_spec}. Call the '
    'function inside a computation that takes only values, or use the runtime "native".'
  )


def cohort_size(value: Any, type_spec: Optional[tff.Type]) -> Optional[int]:
  """The number of clients in an argument's value, `None` if it has no client values.

  Raises:
    ValueError: If two client-placed parts differ in length.
  """
  sizes: dict[int, tff.Type] = {}

  def visit(part: Any, part_type: Optional[tff.Type]) -> None:
    if isinstance(part, _CLIENT_VALUES):
      sizes[len(part)] = part_type
    elif isinstance(part_type, tff.StructType):
      for child, (_, child_type) in zip(part, tff.structure.to_elements(part_type)):
        visit(child, child_type)

  visit(value, type_spec)
  if len(sizes) > 1:
    raise ValueError(f'The client-placed arguments differ in their number of clients: {sorted(sizes)}.')
  return next(iter(sizes), None)


def to_python(value: Any, type_spec: tff.Type, num_clients: int) -> Any:
  """Turns a result into what TFF's own contexts return: NumPy values in the type's Python containers.

  Arrays share the memory of the tensors and are read-only, as those of TFF's contexts are. Sequences are datasets.
  """
  if isinstance(type_spec, tff.TensorType):
    array = value.numpy() if value.shape.rank == 0 or value.dtype == tf.string else np.asarray(value)
    return array
  if isinstance(type_spec, tff.SequenceType):
    return dataset(value, type_spec.element)
  if isinstance(type_spec, tff.StructType):
    elements = [
      (name, to_python(part, t, num_clients)) for part, (name, t) in zip(value, tff.structure.to_elements(type_spec))
    ]
    return _container(elements, type_spec.python_container)
  if isinstance(type_spec, tff.FederatedType):
    if type_spec.placement is tff.SERVER or type_spec.all_equal:
      return to_python(value, type_spec.member, num_clients)
    parts = value if isinstance(value, _CLIENT_VALUES) else [value] * num_clients
    return [to_python(part, type_spec.member, num_clients) for part in parts]
  raise errors.UnsupportedComputationError(
    f'The in-process runtime returns no functions, and a result is of type {type_spec}. Call the function inside the '
    'computation and return its result.'
  )


def _container(elements: Sequence[Any], container: Optional[type]) -> Any:
  named = [name is not None for name, _ in elements]
  if any(named) and not all(named):
    raise ValueError(
      'A result mixes named and unnamed elements, which no Python container can hold:'
      f' {[name for name, _ in elements]}.'
    )
  if container in (tf.RaggedTensor, tf.SparseTensor):
    raise errors.UnsupportedComputationError(
      f'The in-process runtime returns no {container.__name__}. Return its parts, or a dense tensor: `to_tensor()` '
      'of a ragged one, tf.sparse.to_dense of a sparse one.'
    )
  if container is None:
    container = collections.OrderedDict if any(named) else tuple
  if hasattr(container, '_asdict') or attrs.has(container):
    return container(**dict(elements))
  if any(named):
    return container(elements)
  return container([part for _, part in elements])
