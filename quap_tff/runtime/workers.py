"""TFF's C++ workers as execution contexts: one on this machine, or several that share a round.

A worker listens on every network interface, without authentication, and runs whatever TensorFlow graph it is sent. It
has no flag that restricts this. If others can reach this machine, run the program in a network namespace of its own
(nothing outside can connect to it, and it ends with the program):

    unshare --user --map-root-user --net sh -c 'ip link set lo up; exec python -m experiments.train --runtime=native'

or admit only the loopback interface (this rule is for the ports that the kernel assigns):

    iptables -A INPUT ! -i lo -p tcp --dport 32768:60999 --syn -j DROP

Workers end when the `with` block ends in any way, and when the interpreter exits. The kernel kills them when this
program is killed (`SIGKILL` included), because each asks for that before it becomes a worker. That request is bound to
the thread that started them: activate on a thread that lives as long as the runtime is needed, such as the main thread.
"""

import atexit
import concurrent.futures
import functools
import threading
import time
from typing import Any, Callable, Optional
import weakref

import grpc
import tensorflow_federated as tff

from quap_tff.common import array_types
from quap_tff.runtime import worker_processes
from quap_tff.runtime.in_process import context as in_process
from quap_tff.runtime.values import errors
from quap_tff.runtime.values import secure_intrinsics
from quap_tff.runtime.values import values

# A request to a worker or its answer, a proto of TFF's.
Message = Any
_SECONDS_TO_START = 60
_MAX_MESSAGE_BYTES = 2_000_000_000
_CHANNEL_OPTIONS = (
  ('grpc.max_receive_message_length', _MAX_MESSAGE_BYTES),
  ('grpc.max_send_message_length', _MAX_MESSAGE_BYTES),
  ('grpc.max_reconnect_backoff_ms', 1000),  # While it starts.
)
# No worker has it. That it says so proves that it answers.
_UNKNOWN_METHOD = '/quap_tff.Worker/Unknown'
_ADVICE_AT_START = 'If its output does not say why, try again when this machine has less to do.'
_ADVICE = (
  'The computation gave no result, and can be called again on new workers. If this machine ran out of memory, use '
  'fewer of them, or the runtime "in_process".'
)

# Compiled once, however many workers run it.
_compiled: in_process.IdentityCache[tff.Computation, tff.Computation] = in_process.IdentityCache(
  lambda comp: tff.backends.native.desugar_and_transform_to_native(secure_intrinsics.in_plain(comp))
)


class Worker(tff.program.FederatedContext):
  """A worker on this machine: TFF's own execution context on it.

  Attributes:
    pid: The worker's process id.

  Raises:
    errors.WorkerError: If it does not start.
  """

  def __init__(self) -> None:
    self._process = worker_processes.WorkerProcess()
    self.pid = self._process.pid
    self._lock = threading.Lock()
    self._lost: Optional[str] = None
    self._channel = grpc.insecure_channel(self._process.address, _CHANNEL_OPTIONS)
    self._context = _execution_context(_Stub(self))
    # Before it answers: the interpreter may exit while this waits.
    _open.add(self)
    try:
      self._wait_until_it_answers()
    except BaseException:
      self.close()
      raise
    self._rpc = tff.framework.RemoteExecutorGrpcStub(_Unwatched(self._channel))

  def invoke(self, comp: tff.Computation, arg: array_types.Structure) -> array_types.Structure:
    """Runs a computation on this worker.

    Raises:
      errors.WorkerError: If the worker dies, or has died before; the message says how, and has its last output.
    """
    return self._context.invoke(comp, arg)

  def request(self, method: str, request: Message) -> Message:
    """Passes a request on; TFF's contexts would repeat one to a worker that has died for ever."""
    if self._lost is not None:
      raise errors.WorkerError(self._lost, self.pid)
    try:
      return getattr(self._rpc, method)(request)
    except tff.framework.RetryableError as error:
      raise self._give_up('broke its connection', _ADVICE) from error
    except (grpc.RpcError, ValueError) as error:
      if self._lost is not None:  # The channel was closed in the meantime.
        raise errors.WorkerError(self._lost, self.pid) from error
      raise

  @property
  def is_lost(self) -> bool:
    """True if it has died or is closed."""
    return self._lost is not None

  def close(self) -> None:
    """Ends the process."""
    _open.discard(self)
    with self._lock:
      self._lost = f'The worker (process {self.pid}) is closed.'
      self._channel.close()
      self._process.close()

  def _give_up(self, what: str, advice: str) -> errors.WorkerError:
    """The error of a worker that is of no use any more: what happened, how the process ended, and what to do."""
    with self._lock:
      if self._lost is None:
        self._process.end()  # A broken connection is seen before the process is gone.
        end, output = self._process.how_it_ended(), self._process.last_output()
        self._lost = f'The worker (process {self.pid}) {what}. {end} {advice}{output}'
        self._channel.close()
      return errors.WorkerError(self._lost, self.pid)

  def _wait_until_it_answers(self) -> None:
    ask, end = self._channel.unary_unary(_UNKNOWN_METHOD), time.monotonic() + _SECONDS_TO_START
    while True:
      try:
        ask(b'', timeout=0.1, wait_for_ready=True)
      except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
          return
      if self._process.has_ended or time.monotonic() > end:
        raise self._give_up('did not start', _ADVICE_AT_START)


def _execution_context(stub: '_Stub') -> tff.framework.SyncContext:
  def stack(cardinalities: dict[object, int]) -> tff.framework.RemoteExecutor:
    # A computation without clients names no number of them, and the worker needs one.
    cardinalities.setdefault(tff.CLIENTS, 0)
    executor = tff.framework.RemoteExecutor(stub)
    executor.set_cardinalities(cardinalities)
    return executor

  return tff.framework.SyncExecutionContext(
    tff.framework.ResourceManagingExecutorFactory(stack),
    _compiled.get,
    transform_args=tff.tensorflow.transform_args,
    transform_result=tff.tensorflow.transform_result,
  )


class _Unwatched:
  """A channel without gRPC's watcher, which prints a traceback when the channel is closed."""

  def __init__(self, channel: grpc.Channel):
    self._channel = channel

  def __getattr__(self, name: str) -> Any:
    return getattr(self._channel, name)

  def subscribe(self, callback: Callable[[grpc.ChannelConnectivity], None], try_to_connect: bool = False) -> None:
    pass


class _Stub(tff.framework.RemoteExecutorStub):
  """Represents the worker for TFF's executor."""

  def __init__(self, worker: Worker):
    self.worker = worker

  @property
  def is_ready(self) -> bool:
    return not self.worker.is_lost

  def _request(self, method: str, request: Message) -> Message:
    return self.worker.request(method, request)

  def _free(self, method: str, request: Message) -> Message:
    # Finalizers call it, also after the worker was lost; then there is nothing left to free.
    return None if self.worker.is_lost else self._request(method, request)

  get_executor = functools.partialmethod(_request, 'get_executor')
  create_value = functools.partialmethod(_request, 'create_value')
  create_call = functools.partialmethod(_request, 'create_call')
  create_struct = functools.partialmethod(_request, 'create_struct')
  create_selection = functools.partialmethod(_request, 'create_selection')
  compute = functools.partialmethod(_request, 'compute')
  dispose = functools.partialmethod(_free, 'dispose')
  dispose_executor = functools.partialmethod(_free, 'dispose_executor')


_open: 'weakref.WeakSet[Worker]' = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
  for worker in list(_open):
    worker.close()


class WorkersContext(tff.program.FederatedContext):
  """Spreads each computation's clients over several workers, and does the server's part in this process.

  The cohort is cut into one contiguous part for each worker. Partial sums are merged in the order of the parts, so a
  result depends on the number of workers, by the rounding of floating-point sums, and not on the order in which they
  finish.

  A call returns a whole result or raises an error: nothing of a round that fails reaches the caller. Noise is drawn in
  this process, after the parts are merged, and follows from the state that the caller passes. So a round that is called
  again with the same state draws the same noise.

  Args:
    count: The number of workers, at least one.

  Raises:
    errors.WorkerError: If a worker cannot be started; it names the worker.
  """

  def __init__(self, count: int):
    self._server = in_process.InProcessContext(num_threads=1)
    self._forms = in_process.IdentityCache(_mergeable_form)
    self._threads = concurrent.futures.ThreadPoolExecutor(count, thread_name_prefix='part')
    self.workers: list[Worker] = []
    try:
      for _ in range(count):
        self.workers.append(Worker())
    except BaseException:
      self.close()
      raise

  def invoke(self, comp: tff.Computation, arg: array_types.Structure) -> array_types.Structure:
    """Runs `comp`; TFF calls it for `comp(...)`.

    Raises:
      errors.NotMergeableError: If an aggregation of `comp` depends on another one's result.
      errors.WorkerError: If a worker dies, or has died before; it names the worker.
    """
    if values.num_clients(arg, comp.type_signature.parameter) is None:
      return self._server.invoke(comp, arg)  # There is nothing to spread.
    form = self._forms.get(comp)
    parts = split(arg, comp.type_signature.parameter, len(self.workers))
    futures = [self._threads.submit(own.invoke, form.up_to_merge, part) for own, part in zip(self.workers, parts)]
    # Before an error of one part is raised: no worker may be at work for a call that has ended.
    concurrent.futures.wait(futures)
    partial_results = [future.result() for future in futures]
    merged = functools.reduce(
      lambda a, b: self._server.invoke(form.merge, tff.structure.Struct.unnamed(a, b)), partial_results
    )
    return self._server.invoke(form.after_merge, tff.structure.Struct.unnamed(arg, merged))

  def close(self) -> None:
    """Ends workers and threads."""
    for own in self.workers:
      own.close()
    self._threads.shutdown()
    self._server.close()


def split(argument: array_types.Structure, type_spec: tff.Type, count: int) -> list[array_types.Structure]:
  """Splits an argument into at most `count`, each with some successive clients and with everything else in full.

  The sizes differ by at most one, the larger parts come first, and no part is empty unless the cohort is. They depend
  on the size of the cohort and on `count` alone.

  Raises:
    ValueError: If two client-placed arguments differ in their number of clients.
  """
  clients = values.num_clients(argument, type_spec) or 0
  # A worker without clients would only send zeros, but one part there must be.
  count = max(1, min(count, clients))
  size, larger = divmod(clients, count)
  ends = [(i + 1) * size + min(i + 1, larger) for i in range(count)]
  return [_part(argument, type_spec, begin, end) for begin, end in zip([0, *ends], ends)]


def _part(argument: array_types.Structure, type_spec: tff.Type, begin: int, end: int) -> array_types.Structure:
  if values.differs_by_client(type_spec):
    return argument[begin:end]
  if isinstance(type_spec, tff.StructType):
    children = values.children(argument, type_spec)
    return tff.structure.Struct((name, _part(child, child_type, begin, end)) for name, child, child_type in children)
  return argument


def _mergeable_form(comp: tff.Computation) -> tff.framework.MergeableCompForm:
  plain = secure_intrinsics.in_plain(comp)
  try:
    return tff.backends.native.compile_to_mergeable_comp_form(plain)
  except (ValueError, TypeError) as e:
    first_line = (str(e).splitlines() or [type(e).__name__])[0]
    # TFF has one kind of error for all that it cannot compile.
    if 'dependent on another' in str(e):
      raise errors.NotMergeableError(
        'This computation cannot be spread over several workers: one of its aggregations depends on the result of'
        ' another in the same round, and workers merge only once a round. With QuAP-FL, set timing=previous in the'
        ' clip rule quantile_ema (last round\'s norm then clips this round), or use the runtime "in_process" or'
        f' "native". TFF says: {first_line}'
      ) from e
    raise errors.NotMergeableError(
      'This computation cannot be spread over several workers; the runtimes "in_process" and "native" run it. TFF'
      f' says: {first_line}'
    ) from e
