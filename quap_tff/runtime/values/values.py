"""Conversion of values: Python containers outside the runtime, nested tuples of eager tensors inside.

Inside the runtime a tensor is an eager tensor. A sequence is a dataset's variant tensor (nothing is serialized or
read). A struct is a tuple in the type's order. A value at the server, or one that is the same at all clients, is the
bare value. A value that differs by client is a `PerClient`, or a `ValuesOnDemand` if the caller's argument is another
sequence than a list or a tuple.
"""

import cmath
import collections
import collections.abc
from collections.abc import Mapping, Sequence
import functools
from typing import Any, Callable, Optional, Union

import attrs
import numpy as np
import numpy.typing as npt
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.common import array_types
from quap_tff.runtime.values import errors

# By kind of dtypes, the Python types whose values fit one. No value of Python fits a dtype of another kind.
_PYTHON_TYPES: dict[str, Union[type, tuple[type, ...]]] = {
  'integer': int,
  'float': float,
  'complex': complex,
  'string': (str, bytes),
  'bool': bool,
}
_NUMBERS = frozenset(['integer', 'float', 'complex'])


def without_attributes(tensor: tf.Tensor) -> tf.Tensor:
  """An eager tensor without the room that Python keeps for the attributes that somebody may set on it.

  TensorFlow 2.14 does not free this room on Python 3.11: 48 bytes for each tensor that there ever was, 45 kB in a round
  of 30 clients. Python makes it anew for a tensor on which an attribute is set.
  """
  del tensor.__dict__
  return tensor


class PerClient(list):
  """One value per client, in the cohort's order."""


class MadeOnDemand(collections.abc.Sequence):
  """`make(client)` for each of `clients`, called anew each time that the item is asked for."""

  def __init__(self, make: Callable[..., array_types.Structure], clients: Union[Sequence[int], np.ndarray]):
    self._make = make
    self._clients = clients

  def __len__(self) -> int:
    return len(self._clients)

  def __getitem__(self, index: int) -> array_types.Structure:  # type: ignore[override]  # Nothing takes slices of it.
    return self._make(self._clients[index])


class ValuesOnDemand(MadeOnDemand):
  """One value per client, in the cohort's order, made from the caller's sequence each time that it is asked for."""

  def part(self, index: int, wanted: 'Wanted') -> 'Value':
    """A client's value, of which only the `wanted` parts are made (see `to_value`)."""
    return self._make(self._clients[index], wanted)


# A value as this runtime has it: a tensor, a dataset's variant, or a nested tuple of them; of all clients a sequence of
# such; or a function of values.
Value = Any
# Whether a value is needed, or for a nested tuple whether each part is.
Wanted = Any
# Where a part of the argument is, for messages: (where its parent is, its name or index), () for the argument itself.
# Making such a pair costs 30 ns, so values that fit hardly pay for it.
Path = tuple[Any, ...]


@functools.cache
def tf_dtype(dtype: npt.DTypeLike) -> tf.DType:
  """The TensorFlow dtype of a TFF tensor type's dtype (which has NumPy's strings)."""
  return tf.string if np.dtype(dtype).kind in 'US' else tf.as_dtype(dtype)


def tensor_specs(type_spec: tff.Type) -> array_types.StructureSpec:
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


def static_bytes(type_spec: tff.Type) -> int:
  """Bytes of the tensors of one client's or the server's value whose sizes the type tells."""
  specs = tf.nest.flatten(tensor_specs(type_spec))
  return sum(spec.shape.num_elements() * spec.dtype.size for spec in specs if spec.shape.is_fully_defined())


def differs_by_client(type_spec: Optional[tff.Type]) -> bool:
  """True if this is the type of a value that each client has for itself."""
  return isinstance(type_spec, tff.FederatedType) and type_spec.placement is tff.CLIENTS and not type_spec.all_equal


def without_examples(type_spec: Optional[tff.Type]) -> Optional[Callable[[Value], Value]]:
  """A function from an argument, as one client has it, to the same argument without this client's examples.

  It is None where no part of the argument has `client_id` and `examples`, the data of this package's processes
  (`federated.client_work.client_data_type`): what other processes make of no examples is not known here.
  """
  if isinstance(type_spec, tff.FederatedType):
    if not differs_by_client(type_spec):
      return None
    if not isinstance(type_spec.member, tff.StructType):
      return None
    members = dict(tff.structure.to_elements(type_spec.member))
    if not {'client_id', 'examples'} <= members.keys():
      return None
    place, kind = list(members).index('examples'), members['examples']

    def empty_examples(value: Value) -> Value:
      parts = list(value)
      # Examples that a computation does not want are None, and stay it.
      if parts[place] is not None:
        parts[place] = sequence_from_values([], kind.element)
      return tuple(parts)

    return empty_examples
  if not isinstance(type_spec, tff.StructType):
    return None
  of_parts = [without_examples(part) for _, part in tff.structure.iter_elements(type_spec)]
  if not any(of_parts):
    return None

  def empty_parts(value: Value) -> Value:
    parts = list(value)
    for place, empty in enumerate(of_parts):
      if empty is not None:
        parts[place] = empty(parts[place])
    return tuple(parts)

  return empty_parts


def num_clients(argument: Value, type_spec: Optional[tff.Type]) -> Optional[int]:
  """The cohort's size, `None` if an argument (or its value) has no client values.

  Raises:
    ValueError: If two client-placed parts differ in their number of clients.
  """

  def sizes(part: Value, part_type: Optional[tff.Type]) -> set[int]:
    if differs_by_client(part_type):
      return {len(part)}
    if isinstance(part_type, tff.StructType):
      return set().union(*(sizes(child, child_type) for _, child, child_type in children(part, part_type)))
    return set()

  client_counts = sizes(argument, type_spec)
  if len(client_counts) > 1:
    raise ValueError(f'The client-placed arguments differ in their number of clients: {sorted(client_counts)}.')
  return client_counts.pop() if client_counts else None


def to_value(argument: array_types.Structure, type_spec: tff.Type, path: Path = (), wanted: Wanted = True) -> Value:
  """Turns a caller's argument into a value.

  Tensors and arrays must be of the type's dtype or of a smaller one of its kind, and Python's numbers of its kind and
  in its range. That is the rule of TFF's own contexts. Here it also holds for elements of lists that stand for
  sequences.

  Args:
    argument: The caller's argument, or a part of it.
    type_spec: Its expected type.
    path: Its place in the argument of the computation.
    wanted: Whether it is needed, or for a structure whether each part is, as a tuple. What is not needed becomes None
      and is not looked at.

  Raises:
    TypeError: If it does not fit the type. The message says where in the argument, what is wrong, and the range.
    errors.UnsupportedComputationError: If the type has functions.
  """
  if not wanted:
    return None
  if isinstance(type_spec, tff.TensorType):
    return _tensor(argument, type_spec, path)
  if isinstance(type_spec, tff.SequenceType):
    return _sequence(argument, type_spec, path)
  if isinstance(type_spec, tff.StructType):
    parts = children(argument, type_spec, path)
    each = len(parts) * [True] if wanted is True else wanted
    made = []
    for place, (name, part, part_type) in enumerate(parts):
      key = place if name is None else name
      made.append(to_value(part, part_type, (path, key), each[place]))
    return tuple(made)
  if isinstance(type_spec, tff.FederatedType):
    if not differs_by_client(type_spec):
      return to_value(argument, type_spec.member, path)
    if isinstance(argument, (list, tuple)):
      return PerClient(to_value(part, type_spec.member, (path, i)) for i, part in enumerate(argument))
    if isinstance(argument, collections.abc.Sequence) and not isinstance(argument, (str, bytes)):

      def make(client: int, wanted: Wanted = True) -> Value:
        return to_value(argument[client], type_spec.member, (path, client), wanted)

      return ValuesOnDemand(make, range(len(argument)))
    raise TypeError(
      f'Expected a list with one value per client for {_place(path)} of type {type_spec}, found a '
      f'{type(argument).__name__}.'
    )
  raise errors.UnsupportedComputationError(
    f'The in-process runtime takes no functions as arguments, and {_place(path)} is of type {type_spec}. Call the '
    'function inside a computation that takes only values, or use the runtime "native".'
  )


def _tensor(argument: array_types.Structure, type_spec: tff.TensorType, path: Path) -> tf.Tensor:
  if isinstance(argument, (np.ndarray, np.generic)) and argument.dtype == type_spec.dtype:
    # The usual case. TensorFlow's own comparison of shapes costs as much as the conversion.
    shape, own_shape = type_spec.shape, argument.shape
    if shape is not None and len(shape) == len(own_shape) and all(a in (None, b) for a, b in zip(shape, own_shape)):
      return without_attributes(tf.constant(argument))
  if isinstance(argument, tf.Variable):
    argument = argument.read_value()
  dtype = tf_dtype(type_spec.dtype)
  if not isinstance(argument, tf.Tensor):
    if not isinstance(argument, (np.ndarray, np.generic)) or argument.dtype != type_spec.dtype:
      argument = _fitting(argument, dtype, path)
    try:
      argument = without_attributes(tf.constant(argument, dtype))
    except (ValueError, TypeError) as e:  # Lists that differ in length.
      raise TypeError(f'Expected a tensor of type {type_spec} for {_place(path)}, found {argument!r:.200}.') from e
  is_of_dtype = argument.dtype == dtype
  if not is_of_dtype and _widens(argument.dtype, dtype):
    argument, is_of_dtype = tf.cast(argument, dtype), True
  if not is_of_dtype or not argument.shape.is_compatible_with(type_spec.shape):
    raise TypeError(
      f'Expected a tensor of type {type_spec} for {_place(path)}, found one of dtype {argument.dtype.name} and shape '
      f'{argument.shape}.'
    )
  return argument


@functools.cache
def _kind(dtype: tf.DType) -> str:
  if dtype.is_floating:
    return 'float'
  return 'integer' if dtype.is_integer else 'complex' if dtype.is_complex else dtype.name


@functools.cache
def _widens(dtype: tf.DType, expected: tf.DType) -> bool:
  """True if every value of the one dtype is a value of the other one, and of the same kind."""
  if dtype == expected or _kind(expected) not in _NUMBERS:
    return dtype == expected
  return _kind(dtype) == _kind(expected) and np.can_cast(dtype.as_numpy_dtype, expected.as_numpy_dtype)


def _misfit(value: Value, dtype: tf.DType) -> str:
  """Says why a number, a string or an array cannot become a tensor of `dtype` without a change; '' if it can.

  The rule is that of TFF's own contexts. The kind must be the same: a float does not become an integer, an integer does
  not become a float, and a boolean becomes neither. The value must be in range, because TensorFlow wraps integers that
  are not; of an array the dtype decides.
  """
  if hasattr(value, '__array__'):  # A NumPy value, or one of a library like it.
    return '' if _widens(tf.as_dtype(value.dtype), dtype) else f'{_shortened(value)} of dtype {value.dtype}'
  kind = _kind(dtype)
  # To Python, True is an int.
  if not isinstance(value, _PYTHON_TYPES.get(kind, ())) or isinstance(value, bool) and kind != 'bool':
    return f'{_shortened(value)} ({type(value).__name__})'
  if kind not in _NUMBERS or kind != 'integer' and not cmath.isfinite(value):
    return ''
  high = dtype.max if kind == 'integer' else float(dtype.real_dtype.max)
  low = dtype.min if kind == 'integer' else -high
  if all(low <= part <= high for part in (value.real, value.imag)):
    return ''
  shown = '{} to {}' if kind == 'integer' else '{:.9g} to {:.9g}'
  return f'{_shortened(value)}, which is out of range ({shown.format(low, high)})'


def _shortened(value: object) -> str:
  shown = repr(value)
  return shown if len(shown) <= 80 else f'{shown[:77]}...'


def _fitting(argument: array_types.Structure, dtype: tf.DType, path: Path) -> array_types.Structure:
  """`argument`, if TensorFlow can make a tensor of `dtype` of it without a change."""
  if isinstance(argument, (list, tuple)):
    return [_fitting(part, dtype, (path, i)) for i, part in enumerate(argument)]
  misfit = _misfit(argument, dtype)
  if misfit:
    raise TypeError(f'Expected a value of dtype {dtype.name} for {_place(path)}, found {misfit}.')
  return np.asarray(argument, dtype.as_numpy_dtype) if hasattr(argument, '__array__') else argument


def _place(path: Path) -> str:
  """The words for a part of the argument in messages: `argument.clients[3].x`."""
  if not path:
    return 'argument'
  parent, key = path
  return _place(parent) + (f'.{key}' if isinstance(key, str) else f'[{key}]')


def children(
  argument: array_types.Structure, type_spec: tff.StructType, path: Path = ()
) -> Sequence[tuple[Optional[str], array_types.Structure, tff.Type]]:
  """The parts of a structure in the type's order: (name in the type, part, its type); raises `TypeError`."""
  elements = tff.structure.to_elements(type_spec)
  # By name: a dictionary may have another order than the type.
  if isinstance(argument, Mapping) and argument.keys() == {name for name, _ in elements}:
    return [(name, argument[name], t) for name, t in elements]
  try:
    members = tff.structure.to_elements(tff.structure.from_container(argument))
  except TypeError:
    raise TypeError(
      f'Expected a structure of type {type_spec} for {_place(path)}, found a {type(argument).__name__}.'
    ) from None
  if len(members) != len(elements):
    raise TypeError(
      f'Expected a structure of {len(elements)} elements of type {type_spec} for {_place(path)}, found '
      f'{len(members)} elements.'
    )
  for (found_name, _), (name, _) in zip(members, elements):
    if found_name is not None and name is not None and found_name != name:
      raise TypeError(
        f'Expected a structure of type {type_spec} for {_place(path)}, found an element {found_name!r} in place of '
        f'{name!r}.'
      )
  return [(name, part, t) for (_, part), (name, t) in zip(members, elements)]


def _are_single(found: Sequence[array_types.StructureSpec], expected: Sequence[tf.TensorSpec]) -> bool:
  """True if tensors lack an axis of examples that all of the expected ones have."""
  if len(found) != len(expected) or not all(isinstance(spec, tf.TensorSpec) for spec in found):
    return False
  ranks = zip((spec.shape.rank for spec in found), (spec.shape.rank for spec in expected))
  return all(None not in (own, whole) and own + 1 == whole for own, whole in ranks)


def _sequence(argument: array_types.Structure, type_spec: tff.SequenceType, path: Path) -> tf.Tensor:
  if isinstance(argument, tf.data.Dataset):
    structure = element_structure(type_spec.element)
    specs, expected = tf.nest.flatten(argument.element_spec), tf.nest.flatten(structure)
    if (
      not _has_its_names(argument.element_spec, structure)
      or len(specs) != len(expected)
      or not all(
        isinstance(f, tf.TensorSpec) and f.dtype == e.dtype and f.shape.is_compatible_with(e.shape)
        for f, e in zip(specs, expected)
      )
    ):
      remedy = ''
      if _are_single(specs, expected):
        remedy = ' Its elements are single examples, and batches are expected. Batch them: dataset.batch(32).'
      raise TypeError(
        f'Expected a sequence of type {type_spec} for {_place(path)}, found a dataset of {argument.element_spec}.'
        + remedy
      )
    return tf.data.experimental.to_variant(argument)
  if isinstance(argument, (list, tuple)):
    elements = [to_value(element, type_spec.element, (path, i)) for i, element in enumerate(argument)]
    return sequence_from_values(elements, type_spec.element)
  raise TypeError(
    f'Expected a tf.data.Dataset or a list for {_place(path)}, a sequence of type {type_spec}, found a '
    f'{type(argument).__name__}.'
  )


def _has_its_names(element: array_types.StructureSpec, structure: array_types.StructureSpec) -> bool:
  """True if a dataset's dictionaries have the keys of the structure, which flattening forgets."""
  if isinstance(element, Mapping) and isinstance(structure, Mapping):
    return element.keys() == structure.keys() and all(_has_its_names(element[key], structure[key]) for key in structure)
  return not (type(element) is type(structure) is tuple) or all(map(_has_its_names, element, structure))


def element_structure(type_spec: tff.Type) -> array_types.StructureSpec:
  """`tf.TensorSpec`s of a sequence's elements, nested as tf.data flattens them (dictionaries by sorted key)."""
  if isinstance(type_spec, tff.TensorType):
    return tf.TensorSpec(type_spec.shape, tf_dtype(type_spec.dtype))
  if not isinstance(type_spec, tff.StructType):
    raise TypeError(f'A sequence can hold tensors and structures of them, found elements of type {type_spec}.')
  return _element(type_spec, [element_structure(element) for _, element in tff.structure.iter_elements(type_spec)])


def element_to_value(element: array_types.Structure, type_spec: tff.Type) -> Value:
  """A tf.data element with the structure of `element_structure`, as a value."""
  if isinstance(type_spec, tff.TensorType):
    return element
  return tuple(element_to_value(part, t) for _, part, t in children(element, type_spec))


def value_to_element(value: Value, type_spec: tff.Type) -> array_types.Structure:
  """The inverse of `element_to_value`."""
  if isinstance(type_spec, tff.TensorType):
    return value
  return _element(type_spec, [value_to_element(p, t) for p, (_, t) in zip(value, tff.structure.to_elements(type_spec))])


def _element(type_spec: tff.StructType, parts: Sequence[array_types.Structure]) -> array_types.Structure:
  """`parts` in the container that tf.data has for a structure."""
  names = [name for name, _ in tff.structure.to_elements(type_spec)]
  return collections.OrderedDict(zip(names, parts)) if names and names[0] is not None else tuple(parts)


def dataset(variant: tf.Tensor, element_type: tff.Type) -> tf.data.Dataset:
  """The dataset behind a sequence's value."""
  return tf.data.experimental.from_variant(variant, element_structure(element_type))


def sequence_from_values(elements: Sequence[Value], element_type: tff.Type) -> tf.Tensor:
  """A sequence that yields `elements` (values)."""
  nested = [value_to_element(element, element_type) for element in elements]
  if len(nested) == 1:  # `from_list` makes half of a small client's cost.
    leaves = tf.nest.flatten(nested[0])
    sequence = tf.raw_ops.TensorDataset(components=leaves, output_shapes=[leaf.shape for leaf in leaves])
    return without_attributes(sequence)
  if nested and tf.nest.flatten(nested[0]):
    return tf.data.experimental.to_variant(tf.data.experimental.from_list(nested))
  # `from_list` takes neither an empty list nor elements without tensors, and the dataset must have their structure all
  # the same.
  blank = tf.nest.map_structure(_blank, element_structure(element_type))
  return tf.data.experimental.to_variant(tf.data.Dataset.from_tensors(blank).repeat(len(nested)))


def _blank(spec: tf.TensorSpec) -> tf.Tensor:
  """A tensor of zeros or empty texts, of size 0 along each axis whose size is not known."""
  sizes = [size or 0 for size in spec.shape]
  zero = '' if spec.dtype == tf.string else tf.cast(0, spec.dtype)
  return tf.fill(sizes, zero)


def to_python(value: Value, type_spec: tff.Type, num_clients: int) -> array_types.Structure:
  """Turns a result into what TFF's own contexts return: NumPy values in the type's Python containers.

  Arrays share the memory of the tensors and are read-only, as those of TFF's contexts are. Sequences are datasets.
  """
  if isinstance(type_spec, tff.TensorType):
    return value.numpy() if value.shape.rank == 0 or value.dtype == tf.string else np.asarray(value)
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
    # A value that is the same for all clients is there once.
    parts = value if isinstance(value, (PerClient, ValuesOnDemand)) else [value] * num_clients
    return [to_python(part, type_spec.member, num_clients) for part in parts]
  raise errors.UnsupportedComputationError(
    f'The in-process runtime returns no functions, and a result is of type {type_spec}. Call the function inside the '
    'computation and return its result.'
  )


def _container(elements: Sequence[array_types.Structure], container: Optional[type]) -> array_types.Structure:
  named = [name is not None for name, _ in elements]
  if any(named) and not all(named):
    raise ValueError(
      'A result mixes named and unnamed elements, which no Python container can hold:'
      f' {[name for name, _ in elements]}.'
    )
  if container is not None and container in (tf.RaggedTensor, tf.SparseTensor):
    raise errors.UnsupportedComputationError(
      f'The in-process runtime returns no {container.__name__}. Return its parts, or a dense tensor: `to_tensor()` '
      'of a ragged one, tf.sparse.to_dense of a sparse one.'
    )
  # A type that TFF made itself names none.
  if container is None:
    container = collections.OrderedDict if any(named) else tuple
  if hasattr(container, '_asdict') or attrs.has(container):
    return container(**dict(elements))
  return container(elements) if any(named) else container([part for _, part in elements])
