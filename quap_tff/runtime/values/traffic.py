"""How much a computation moves between server and clients: bytes of the values themselves, each way.

Down: what `federated_broadcast` sends to a client and what `federated_select` picks for it. Up: what a client gives to
`federated_aggregate`, on which TFF's sums, means, collections and DP queries are built, and its keys of a
`federated_select`. Every such value counts in full, whether or not the other side uses it. A value that is broadcast
and then passed on among client values counts once. Not counted: the caller's client-placed arguments, constants of the
computation (`federated_value` at the clients), and encoding, compression or encryption.
"""

import threading
from typing import Callable, NamedTuple, Optional

import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.runtime.values import values


class Traffic(NamedTuple):
  """The traffic of one invocation of a computation.

  Attributes:
    down_bytes_per_client: Bytes from the server to a client, mean over the clients; NaN without clients.
    up_bytes_per_client: Bytes from a client to the server, mean over the clients; NaN without clients.
    clients: The cohort's size.
  """

  down_bytes_per_client: float
  up_bytes_per_client: float
  clients: int


class TrafficMeasurement:
  """The value of `runtime.measure_traffic`: `traffic` of the last invocation in the block, None if there was none."""

  def __init__(self) -> None:
    self.traffic: Optional[Traffic] = None


class Meter:
  """Counts one invocation's bytes, of all clients together; client threads may count at the same time."""

  def __init__(self) -> None:
    self._lock = threading.Lock()
    self._down = self._up = 0

  def add(self, down: int = 0, up: int = 0) -> None:
    """Clients get, and give, values of these sizes."""
    with self._lock:
      self._down += down
      self._up += up

  def traffic(self, num_clients: int) -> Traffic:
    """The traffic that has been counted."""
    if not num_clients:
      return Traffic(float('nan'), float('nan'), 0)
    return Traffic(self._down / num_clients, self._up / num_clients, num_clients)


def sizer(type_spec: tff.Type) -> Callable[[values.Value], int]:
  """A function from values of a type (see `values`) to their bytes.

  It looks only at what has a size of its own: strings, tensors of unknown shape, and sequences, which it reads once to
  count their elements.
  """
  if isinstance(type_spec, tff.SequenceType):
    return lambda value: sum(
      _tensor_bytes(leaf) for element in values.dataset(value, type_spec.element) for leaf in tf.nest.flatten(element)
    )
  if isinstance(type_spec, tff.StructType):
    sizers = [sizer(t) for _, t in tff.structure.iter_elements(type_spec)]
    return lambda value: sum(size(part) for size, part in zip(sizers, value))
  shape, dtype = tf.TensorShape(type_spec.shape), values.tf_dtype(type_spec.dtype)
  if dtype == tf.string or not shape.is_fully_defined():
    return _tensor_bytes
  # Known from the type: counting must not cost a small client much.
  size = shape.num_elements() * dtype.size
  return lambda value: size


def _tensor_bytes(tensor: tf.Tensor) -> int:
  if tensor.dtype == tf.string:
    return int(tf.reduce_sum(tf.strings.length(tensor)))
  return tensor.shape.num_elements() * tensor.dtype.size
