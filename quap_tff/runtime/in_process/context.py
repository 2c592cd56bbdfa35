"""A TFF execution context that runs computations with the TensorFlow of this process: no worker, no sockets."""

import collections
from collections.abc import Generator, Iterable, Iterator, Sequence
import concurrent.futures
import contextlib
import dataclasses
import itertools
import os
import threading
from typing import Callable, Generic, Optional, TypeVar
import warnings
import weakref

import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.common import array_types
from quap_tff.runtime.in_process import interpreter
from quap_tff.runtime.in_process import tensorflow_blocks
from quap_tff.runtime.values import errors
from quap_tff.runtime.values import secure_intrinsics
from quap_tff.runtime.values import traffic
from quap_tff.runtime.values import values

# How many clients' results may wait for that of a slower client before them, for each thread.
_AHEAD = 4
# How many clients a call takes where they are small and many. What a call costs is then shared by them. More of them in
# a call gained nothing that could be measured. Such a function takes several times as long to make as that of one
# client, so many clients must have come before.
_BLOCK, _SMALL_BYTES, _MANY_CLIENTS = 4, 2**20, 2000


# The key of a cache, and the value that the cache makes from it.
_Key = TypeVar('_Key')
_Made = TypeVar('_Made')
# The argument of a client's thread, and its result.
_Item = TypeVar('_Item')
_Result = TypeVar('_Result')


def _most_calls(num_threads: int, size: int) -> int:
  """How many blocks of `size` clients may be between their items and their results."""
  return max(2 * num_threads, (1 + _AHEAD) * num_threads // size)


class IdentityCache(Generic[_Key, _Made]):
  """Maps objects, by identity and weakly, to the results of `make`, which is called once for each.

  Computations need this: their own hash serializes the whole proto at every look-up, and an ordinary cache would keep
  every process that a program ever built.
  """

  def __init__(self, make: Callable[[_Key], _Made]):
    self._make = make
    self._lock = threading.RLock()
    self._results: dict[int, _Made] = {}

  def get(self, key: _Key) -> _Made:
    """The result for `key`, made now if `key` is new."""
    with self._lock:
      if id(key) not in self._results:
        self._results[id(key)] = self._make(key)
        # Holds the dictionary, not this cache. It runs before another object can have the same id.
        weakref.finalize(key, self._results.pop, id(key), None)
      return self._results[id(key)]

  def clear(self) -> None:
    self._results.clear()


@dataclasses.dataclass
class Statistics:
  """Counters since the context was made.

  Attributes:
    compiled: Computations compiled. Each object is compiled once.
    traced: TensorFlow functions traced. A round of known computations traces none, whatever its cohort.
  """

  compiled: int = 0
  traced: int = 0


class InProcessContext(tff.program.FederatedContext):
  """Runs TFF computations with this process's TensorFlow.

  It refuses computations that take or return functions, and those with JAX or a `tff.federated_secure_select`. Ragged
  and sparse tensors work inside a TensorFlow section, but cannot be arguments or results. Secure sums are plain ones
  here, with the same results (`secure_intrinsics`).

  Clients run at the same time on `num_threads` Python threads (TensorFlow releases the interpreter's lock while it
  works). Their results are aggregated in the cohort's order, so the number of threads never changes a result. They are
  aggregated as they come, so a round holds a few clients' updates for each thread (`streaming`).

  Args:
    num_threads: How many clients run at once.
    devices: Names of the devices that the clients take in turn; server computations run on the first.
    clients_per_call: See `config.RuntimeConfig`.
  """

  def __init__(
    self, num_threads: int, devices: Sequence[str] = ('/device:CPU:0',), clients_per_call: Optional[int] = None
  ):
    self._num_threads = num_threads
    self._clients_per_call = clients_per_call
    self._devices = tuple(devices)
    self._programs = IdentityCache(self._compile)
    self._lock = threading.RLock()
    self._pool: Optional[concurrent.futures.ThreadPoolExecutor] = None
    self._measurement: Optional[traffic.TrafficMeasurement] = None
    self.statistics = Statistics()

  def invoke(self, comp: tff.Computation, arg: array_types.Structure) -> array_types.Structure:
    """Runs `comp`; TFF calls it for `comp(...)`.

    Args:
      comp: The computation.
      arg: Its packed argument, `None` if it takes none. Sequences are datasets or lists. Client values are lists, or
        other sequences whose items are made when their client's turn comes (`runtime.client_values`).

    Returns:
      The result in the containers of the computation's type, with NumPy values as leaves, as in TFF's own contexts.

    Raises:
      TypeError: If an argument does not fit the computation's type; nothing is wrapped to make it fit.
      ValueError: If client-placed arguments differ in their number of clients.
      errors.UnsupportedComputationError: If the computation contains, takes or returns something that the runtime
        cannot run.
      errors.ClientError: If a client's TensorFlow fails; it names the client. In a process of this package such a
        client counts as one without examples, and a warning names it: its data must not end the round of the others.
      tf.errors.OpError: If the server's TensorFlow fails.
    """
    program = self._programs.get(comp)
    parameter = comp.type_signature.parameter
    value = values.to_value(arg, parameter) if parameter is not None else None
    num_clients = values.num_clients(value, parameter) or 0
    measurement = self._measurement
    meter = None if measurement is None else traffic.Meter()
    try:
      # A runner for each call, so that calls on several threads do not share devices or bytes.
      result = program(value, _Runner(self, num_clients, meter))
    except tf.errors.OpError as e:
      raise errors.in_own_words(e) from None
    if measurement is not None and meter is not None:
      measurement.traffic = meter.traffic(num_clients)
    return values.to_python(result, comp.type_signature.result, num_clients)

  @contextlib.contextmanager
  def measure_traffic(self) -> Iterator[traffic.TrafficMeasurement]:
    """The bytes that a computation moves; `runtime.measure_traffic` says more."""
    outer, self._measurement = self._measurement, traffic.TrafficMeasurement()
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

  def _compile(self, comp: tff.Computation) -> interpreter.InterpretedProgram:
    # `tff.backends.native` compiles for TFF's worker: it goes through protos, which takes as long as the transformation
    # itself, and it optimizes every section. Here a section is optimized when it is first needed, and only if it calls
    # functions.
    block = secure_intrinsics.with_plain_bodies(comp.to_building_block())
    block, _ = tff.tensorflow.replace_intrinsics_with_bodies(block)
    program = interpreter.InterpretedProgram(tff.framework.to_call_dominant(block), self._count_trace)
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


class _Runner:
  """One invocation's threads and devices, as `interpreter.InterpretedProgram` sees them.

  Attributes:
    num_clients: The cohort's size.
    meter: Counts bytes; None if nobody measures.
  """

  def __init__(self, context: InProcessContext, num_clients: int, meter: Optional[traffic.Meter] = None):
    self._context = context
    self._devices = context._devices
    self._here = threading.local()
    self.num_clients = num_clients
    self.meter = meter

  @property
  def joins(self) -> bool:
    """True if sections may be joined. Only one CPU runs joined ones."""
    return len(self._devices) == 1 and 'GPU' not in self._devices[0]

  def block_size(self, num_bytes: int, clients_before: int = 0) -> int:
    """How many clients one call of TensorFlow should take, if each makes values of `num_bytes`.

    Args:
      num_bytes: The size of the values.
      clients_before: How many clients earlier rounds have had.

    Raises:
      ValueError: If the caller's choice needs more memory than this machine has.
    """
    given, num_threads = self._context._clients_per_call, self._context._num_threads
    if given is None:
      is_worth_it = num_bytes <= _SMALL_BYTES and self.num_clients >= 4 * _BLOCK * num_threads
      is_worth_it &= self.num_clients + clients_before >= _MANY_CLIENTS
      return _BLOCK if is_worth_it else 1
    # In a smaller cohort, the largest power of two in it: few functions are traced, whatever the sizes of cohorts.
    size = given if given <= self.num_clients else 1 << max(0, self.num_clients.bit_length() - 1)
    # Before anything is allocated: a process that runs out of memory is killed, without a word.
    needed = size * _most_calls(num_threads, size) * num_bytes
    available = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
    if needed > available:
      raise ValueError(
        f'clients_per_call={given} needs about {needed / 2**30:.1f} GiB for the values of the clients that run at once '
        f'({num_bytes / 2**20:.1f} MiB for each). This machine has {available / 2**30:.1f} GiB. Give a smaller number, '
        'or None, with which the runtime chooses.'
      )
    return size

  def device(self) -> str:
    """The device of the calling thread: that of its client, or the server's."""
    return getattr(self._here, 'device', self._devices[0])

  def call(self, section: tensorflow_blocks.TensorFlowBlock, argument: values.Value) -> values.Value:
    """The result of a section on the calling thread's device."""
    return section(argument, self.device())

  def map(
    self,
    function: Callable[[Sequence[_Item]], Sequence[_Result]],
    items: Iterable[_Item],
    functions: Sequence[tensorflow_blocks.GraphFunction] = (),
    size: int = 1,
    instead: Optional[Callable[[_Item], _Item]] = None,
  ) -> Generator[Sequence[_Result], None, None]:
    """Runs `function` on blocks of clients, and yields its results in the clients' order.

    Only `_most_calls` blocks are between their items and their results at any time, so a slow client does not make the
    others' results pile up. Items are made on the calling thread.

    Args:
      function: Maps the items of a block of clients to their results, on the clients' threads.
      items: An item for each client.
      functions: The `GraphFunction`s that `function` calls.
      size: Clients in a block. Those who are left in the end come one by one.
      instead: From the item of a client that fails to the item that takes its place. If that fails, too, or there is
        none, the error is raised.
    """
    # A thread for one client alone would only cost the way there and back.
    num_threads = self._context._num_threads if self.num_clients > 1 else 1
    for graph_function in functions:
      graph_function.prepare(num_threads)  # Before the clients compete for it.
    # Some sections draw random numbers by how many calls came before: then clients follow each other.
    if num_threads < 2 or any(graph_function.must_run_in_order for graph_function in functions):
      for first, block in self._blocks(items, size):
        yield self._run(function, block, first, instead)
      return
    pool = self._context._threads()
    waiting: collections.deque[concurrent.futures.Future] = collections.deque()
    try:
      for first, block in self._blocks(items, size):
        if len(waiting) >= _most_calls(num_threads, size):
          yield waiting.popleft().result()
        waiting.append(pool.submit(self._run, function, block, first, instead))
        del block  # The thread alone holds it, and lets go of it at the end.
      # The first error in the cohort's order is the one raised. Threads take clients in that order, so every client
      # before it has been started and the choice does not depend on timing.
      while waiting:
        yield waiting.popleft().result()
    finally:
      for future in waiting:
        future.cancel()
      # A client that has begun cannot be cancelled. It must not work on after the call has ended.
      concurrent.futures.wait(waiting)

  def _blocks(self, items: Iterable[_Item], size: int) -> Iterator[tuple[int, list[_Item]]]:
    """The place of a block's first client, and the items of its clients."""
    remaining, first = iter(items), 0
    while True:
      # Clients that do not fill a block come one by one: functions are traced for whole blocks, and for one client.
      length = size if first + size <= self.num_clients else 1
      block = list(itertools.islice(remaining, length))
      if not block:
        return
      yield first, block
      first += len(block)

  def _run(
    self,
    function: Callable[[Sequence[_Item]], Sequence[_Result]],
    block: list[_Item],
    first: int,
    instead: Optional[Callable[[_Item], _Item]],
  ) -> Sequence[_Result]:
    # By the place in the cohort, not by the thread: so it does not depend on which thread is free.
    self._here.device = self._devices[first % len(self._devices)]
    try:
      return function(block)
    except errors.ClientError:
      raise
    except (tf.errors.OpError, ValueError, TypeError) as e:
      if len(block) == 1:
        failed = errors.ClientError(first, self.num_clients, e)
        if instead is None:
          raise failed from e
        # If it fails without its examples, too, its data are not what is wrong: the first error is raised.
        with contextlib.suppress(tf.errors.OpError, ValueError, TypeError):
          results = function([instead(block[0])])
          said = ' '.join(str(failed).split())
          warnings.warn(f'{said} It counts as a client without examples.', stacklevel=2)
          return results
        raise failed from e
    finally:
      # The server's work on this thread is for the first device again.
      del self._here.device
    # One by one, the client that failed is found.
    return [result for i, item in enumerate(block) for result in self._run(function, [item], first + i, instead)]
