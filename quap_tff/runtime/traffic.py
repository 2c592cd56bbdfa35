"""How much a computation moves between server and clients: bytes of the values themselves, each way.

Down: what `federated_broadcast` sends to a client and what `federated_select` picks for it. Up: what a client gives to
`federated_aggregate`, on which TFF's sums, means, collections and DP queries are built, and its keys of a
`federated_select`. Every such value counts in full, whether or not the other side uses it. A value that is broadcast
and then passed on among client values counts once. Not counted: the caller's client-placed arguments, constants of the
computation (`federated_value` at the clients), and encoding, compression or encryption.
"""

import threading
from typing import Any, Iterable, NamedTuple, Optional

import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.runtime import values


class Traffic(NamedTuple):
  """What one invocation of a computation moved.

  Attributes:
    down_bytes_per_client: Bytes from the server to a client, mean over the clients; NaN without clients.
    up_bytes_per_client: Bytes from a client to the server, mean over the clients; NaN without clients.
    clients: The cohort's size.
  """

  down_bytes_per_client: float
  up_bytes_per_client: float
  clients: int


class Measurement:
  """What `runtime.measure_traffic` yields: `traffic` of the last invocation in the block, None if there was none."""

  def __init__(self):
    self.traffic: Optional[Traffic] = None


class Meter:
  """Counts one invocation's bytes; client threads may count at the same time."""

  def __init__(self, num_clients: int):
    self._num_clients = num_clients
    self._lock = threading.Lock()
    self._down = 0
    self._up = 0

  def broadcast(self, value: Any, type_spec: tff.Type) -> None:
    """Every client gets `value`."""
    self._down += self._num_clients * num_bytes(value, type_spec)

  def aggregate(self, client_values: Iterable[Any], type_spec: tff.Type) -> None:
    """Each client gives its part of `client_values`."""
    self._up += sum(num_bytes(value, type_spec) for value in client_values)

  def select(self, keys: Any, slices: Iterable[Any], keys_type: tff.Type, slice_type: tff.Type) -> None:
    """A client gives `keys` and gets `slices`."""
    up = num_bytes(keys, keys_type)
    down = sum(num_bytes(part, slice_type) for part in slices)
    with self._lock:
      self._up += up
      self._down += down

  def traffic(self) -> Traffic:
    """What has been counted."""
    if not self._num_clients:
      return Traffic(float('nan'), float('nan'), 0)
    return Traffic(self._down / self._num_clients, self._up / self._num_clients, self._num_clients)


def num_bytes(value: Any, type_spec: tff.Type) -> int:
  """Bytes of the tensors of `value` (see `values`). A sequence is read once to count its elements."""
  if isinstance(type_spec, tff.SequenceType):
    elements = values.dataset(value, type_spec.element)
    return sum(_tensor_bytes(leaf) for element in elements for leaf in tf.nest.flatten(element))
  if isinstance(type_spec, tff.StructType):
    return sum(num_bytes(part, t) for part, (_, t) in zip(value, tff.structure.iter_elements(type_spec)))
  return _tensor_bytes(value)


def _tensor_bytes(tensor: tf.Tensor) -> int:
  if tensor.dtype == tf.string:
    return int(tf.reduce_sum(tf.strings.length(tensor)))
  return tensor.shape.num_elements() * tensor.dtype.size
