"""A TFF execution context that runs computations with the TensorFlow of this process: no worker, no sockets."""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import threading
from typing import Any, Callable, Dict, Iterator, Optional, Sequence, Set

import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.runtime import devices as devices_lib
from quap_tff.runtime import errors
from quap_tff.runtime import identity_cache
from quap_tff.runtime import interpreter
from quap_tff.runtime import traffic
from quap_tff.runtime import values


@dataclasses.dataclass
class Statistics:
  """Counters since the context was made.

  Attributes:
    compiled: Computations compiled. Each object is compiled once.
    traced: TensorFlow functions traced. A round of known computations traces none, whatever its cohort.
    invoked: Calls of computations.
  """

  compiled: int = 0
  traced: int = 0
  invoked: int = 0


class InProcessContext(tff.framework.SyncContext):
  """Runs any TFF computation with this process's TensorFlow.

  Clients run at the same time on `num_threads` Python threads (TensorFlow releases the interpreter's lock while it
  works). Their results are aggregated in the cohort's order, so the number of threads never changes a result.

  Args:
    num_threads: How many clients run at once.
    devices: Names of the devices that the clients take in turn; server computations run on the first.
  """

  def __init__(self, num_threads: int, devices: Sequence[str] = ('/device:CPU:0',)):
    self._num_threads = num_threads
    self._devices = tuple(devices)
    self._programs = identity_cache.IdentityCache(self._compile)
    self._lock = threading.RLock()
    self._pool: Optional[concurrent.futures.ThreadPoolExecutor] = None
    self._measurement: Optional[traffic.Measurement] = None
    self.statistics = Statistics()

  def invoke(self, comp: tff.Computation, arg: Optional[Any]) -> Any:
    """Runs `comp`; TFF calls it for `comp(...)`.

    Args:
      comp: The computation.
      arg: Its packed argument, `None` if it takes none. Sequences are datasets or lists, client values lists.

    Returns:
      The result in the containers of the computation's type, with NumPy values as leaves, as in TFF's own contexts.

    Raises:
      TypeError: If an argument does not fit the computation's type.
      ValueError: If client-placed arguments differ in their number of clients.
      errors.UnsupportedComputationError: If the computation contains something that the runtime cannot run.
      errors.ClientError: If a client's TensorFlow fails; it names the client.
      tf.errors.OpError: If the server's TensorFlow fails.
    """
    self.statistics.invoked += 1
    program = self._programs.get(comp)
    parameter = comp.type_signature.parameter
    value = values.to_value(arg, parameter) if parameter is not None else None
    num_clients = values.cohort_size(value, parameter) or 0
    measurement = self._measurement
    meter = traffic.Meter(num_clients) if measurement is not None else None
    try:
      result = program(value, _Runner(self, num_clients, meter))
    except tf.errors.OpError as e:
      raise errors.in_own_words(e) from None
    if measurement is not None:
      measurement.traffic = meter.traffic()
    return values.to_python(result, comp.type_signature.result, num_clients)

  @contextlib.contextmanager
  def measure_traffic(self) -> Iterator[traffic.Measurement]:
    """See `runtime.measure_traffic`."""
    outer, self._measurement = self._measurement, traffic.Measurement()
    try:
      yield self._measurement
    finally:
      self._measurement = outer

  def close(self) -> None:
    """Ends the threads and clears the cache."""
    with self._lock:
      pool, self._pool = self._pool, None
      self._programs.clear()
    if pool is not None:
      pool.shutdown(wait=True)

  def _compile(self, comp: tff.Computation) -> interpreter.Program:
    compiled = tff.backends.native.desugar_and_transform_to_native(comp)
    program = interpreter.Program(compiled.to_building_block(), self._count_trace)
    self.statistics.compiled += 1
    return program

  def _count_trace(self) -> None:
    with self._lock:
      self.statistics.traced += 1

  def _threads(self) -> concurrent.futures.ThreadPoolExecutor:
    with self._lock:
      if self._pool is None:
        self._pool = concurrent.futures.ThreadPoolExecutor(self._num_threads, thread_name_prefix='client')
      return self._pool


class AsyncInProcessContext(tff.framework.AsyncContext):
  """The same for callers that await, such as TFF's program library (`tff.program.NativeFederatedContext`)."""

  def __init__(self, context: InProcessContext):
    self._context = context

  async def invoke(self, comp: tff.Computation, arg: Optional[Any]) -> Any:
    if asyncio.iscoroutine(arg):
      arg = await arg
    return await asyncio.get_running_loop().run_in_executor(None, self._context.invoke, comp, arg)


class _Runner:
  """One invocation's threads and devices, as `interpreter.Program` sees them."""

  def __init__(self, context: InProcessContext, num_clients: int, meter: Optional[traffic.Meter] = None):
    self._context = context
    self._devices = context._devices
    self._here = threading.local()
    self.num_clients = num_clients
    self.meter = meter
    self.server_device = self._devices[0]

  def device(self) -> str:
    return getattr(self._here, 'device', self.server_device)

  def per_client(self, value: Any) -> Sequence[Any]:
    return value if isinstance(value, values.PerClient) else [value] * self.num_clients

  def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> values.PerClient:
    """Runs `function` once per client; returns the results in the clients' order."""
    section = getattr(function, 'section', None)
    if section is not None:
      section.prepare(self._context._num_threads if len(items) > 1 else 1)  # Before the clients compete for it.
    copies = _DeviceCopies(items) if len(self._devices) > 1 or devices_lib.is_gpu(self._devices[0]) else None

    def one(index: int) -> Any:
      self._here.device = self._devices[index % len(self._devices)]
      try:
        item = copies.place(items[index], self._here.device) if copies else items[index]
        return function(item)
      except errors.ClientError:
        raise
      except (tf.errors.OpError, ValueError, TypeError) as e:
        raise errors.ClientError(index, len(items), e) from e
      finally:
        del self._here.device

    ordered = section is not None and section.must_run_in_order
    if self._context._num_threads == 1 or len(items) < 2 or ordered:
      return values.PerClient(one(index) for index in range(len(items)))
    futures = [self._context._threads().submit(one, index) for index in range(len(items))]
    try:
      # The first error in the cohort's order is the one raised. Threads take clients in that order, so every client
      # before it has been started and the choice does not depend on timing.
      return values.PerClient(future.result() for future in futures)
    finally:
      for future in futures:
        future.cancel()
      concurrent.futures.wait(futures)


class _DeviceCopies:
  """Copies what several clients share (the broadcast model) to each device once, not once per client."""

  def __init__(self, items: Sequence[Any]):
    self._lock = threading.Lock()
    self._copies: Dict[Any, Any] = {}
    self._shared = _shared_tensors(items)

  def place(self, value: Any, device: str) -> Any:
    """`value` with its shared floating-point tensors on `device`; TensorFlow moves the others when it needs them."""
    if isinstance(value, tuple):
      return tuple(self.place(part, device) for part in value)
    if id(value) not in self._shared:
      return value
    with self._lock:
      if (id(value), device) not in self._copies:
        with tf.device(device):
          self._copies[id(value), device] = tf.identity(value)
      return self._copies[id(value), device]


def _shared_tensors(items: Sequence[Any]) -> Set[int]:
  counts: Dict[int, int] = {}

  def visit(value):
    if isinstance(value, tuple):
      for part in value:
        visit(part)
    elif isinstance(value, tf.Tensor) and value.dtype.is_floating:
      counts[id(value)] = counts.get(id(value), 0) + 1

  for item in items:
    visit(item)
  return {key for key, count in counts.items() if count > 1}
