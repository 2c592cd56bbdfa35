"""One of TFF's C++ workers as an execution context, in a process that this program starts and ends."""

import atexit
import functools
import threading
import time
from typing import Any, Callable, Optional
import weakref

import grpc
import tensorflow_federated as tff

from quap_tff.runtime import worker_processes
from quap_tff.runtime.in_process import context as in_process
from quap_tff.runtime.values import errors
from quap_tff.runtime.values import secure_intrinsics

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
_compiled = in_process.IdentityCache(
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
    _open.add(self)
    try:
      self._wait_until_it_answers()
    except BaseException:
      self.close()
      raise
    self._rpc = tff.framework.RemoteExecutorGrpcStub(_Unwatched(self._channel))

  def invoke(self, comp: tff.Computation, arg: Optional[Any]) -> Any:
    """Runs a computation on this worker.

    Raises:
      errors.WorkerError: If the worker dies, or has died before; the message says how, and has its last output.
    """
    return self._context.invoke(comp, arg)

  def request(self, method: str, request: Any) -> Any:
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
    """Whether it has died or is closed."""
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
  def stack(cardinalities: dict[Any, int]) -> Any:
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

  def subscribe(self, callback: Callable[[Any], None], try_to_connect: bool = False) -> None:
    pass


class _Stub(tff.framework.RemoteExecutorStub):
  """Represents the worker for TFF's executor."""

  def __init__(self, worker: Worker):
    self.worker = worker

  @property
  def is_ready(self) -> bool:
    return not self.worker.is_lost

  def _request(self, method: str, request: Any) -> Any:
    return self.worker.request(method, request)

  def _free(self, method: str, request: Any) -> Any:
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
