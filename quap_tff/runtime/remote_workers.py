"""Connections to TFF's C++ workers, with a heartbeat that notices a worker that is killed, hangs or cannot be reached.

A request waits as long as the worker computes, so a deadline for it could not tell a slow worker from one that hangs.
gRPC's own keepalive does not help: TFF's worker allows a ping in five minutes and ends the connection after the third
that comes sooner. The heartbeat is therefore a request of its own on the same connection, for a method that no worker
has. That the worker says so proves that it is alive, even while it computes. A heartbeat goes out every half of the
timeout and has the other half to be answered, so a worker is given up at most one timeout after its last sign of life.
If a process ends and its machine does not, the connection breaks, and that is seen at once.
"""

import atexit
import functools
import threading
import time
from typing import Any, Callable, Optional
import weakref

from absl import logging
import grpc
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.runtime import worker_processes
from quap_tff.runtime.in_process import context as in_process
from quap_tff.runtime.values import errors
from quap_tff.runtime.values import secure_intrinsics

SECONDS_TO_START = 60
# While a worker does not answer at the start.
_SECONDS_UNTIL_FIRST_WORD, _SECONDS_BETWEEN_WORDS = 3.0, 15.0
_SECONDS_TO_END = 5
_SECONDS_BETWEEN_ATTEMPTS = 1.0
_MAX_MESSAGE_BYTES = 2_000_000_000
_CHANNEL_OPTIONS = (
  ('grpc.max_receive_message_length', _MAX_MESSAGE_BYTES),
  ('grpc.max_send_message_length', _MAX_MESSAGE_BYTES),
  ('grpc.max_reconnect_backoff_ms', 1000),
  # Otherwise a new channel shares the connection of an old one, which may be the one that hangs.
  ('grpc.use_local_subchannel_pool', 1),
)
# Certificates name what a worker is, not where it is.
_TLS_OPTIONS = (*_CHANNEL_OPTIONS, ('grpc.ssl_target_name_override', worker_processes.NAME))
_BROKEN = 'broke its connection'
_HEARTBEAT = '/quap_tff.Heartbeat/Beat'
# The version of graphs grows by one a day.
_LATER_VERSIONS = 4000

# Compiled once, however many workers run it.
_compiled = in_process.IdentityCache(
  lambda comp: tff.backends.native.desugar_and_transform_to_native(secure_intrinsics.in_plain(comp))
)


def channel_credentials(directory: str) -> grpc.ChannelCredentials:
  """The credentials in a folder, for workers behind TLS; raises `FileNotFoundError` if a file is missing."""
  authority, certificate, key = worker_processes.read_credentials(directory)
  return grpc.ssl_channel_credentials(authority, key, certificate)


class Worker(tff.program.FederatedContext):
  """A worker at an address, or one that this program starts: TFF's own execution context on it.

  A worker that is given up fails its requests at once. One that this program did not start is used again when it
  answers again.

  Args:
    address: `host:port` of a running worker, or `None` to start one on this machine.
    timeout: Seconds without a sign of life after which the worker is given up.
    credentials: For a worker behind TLS.

  Attributes:
    address: `host:port`.
    pid: Process id of a worker that this program started, else `None`.

  Raises:
    errors.WorkerError: If it cannot be started or reached, or is of another version.
  """

  def __init__(
    self, address: Optional[str] = None, timeout: float = 20.0, credentials: Optional[grpc.ChannelCredentials] = None
  ):
    self.credentials = credentials
    self._process = worker_processes.WorkerProcess() if address is None else None
    self.address = self._process.address if self._process else address
    self.pid = self._process.pid if self._process else None
    self._timeout = timeout
    self._lock = threading.RLock()
    self._lost: Optional[str] = None
    self._closed = False
    self._news = threading.Event()
    self._sent = self._received = 0
    self._connection = _Connection(self)
    _open.add(self)
    try:
      self._wait()
      if address is not None:
        self._connection.context.invoke(_for_this_version(), None)
    except grpc.RpcError as error:
      self.close()
      raise errors.WorkerError(
        f'The {self} runs another version of TensorFlow or TFF than this program, TensorFlow {tf.__version__}. Install '
        f'the same version of quap_tff on both machines. It says: {error.details()}',
        self.address,
      ) from error
    except BaseException:
      self.close()
      raise
    threading.Thread(target=self._watch, name=f'heartbeat of {self.address}', daemon=True).start()

  def __str__(self) -> str:
    return f'worker at {self.address} ({f"process {self.pid}" if self.pid else "not started by this program"})'

  @property
  def is_usable(self) -> bool:
    """Whether it can be asked to compute something."""
    return self._lost is None and not self._closed

  @property
  def may_come_back(self) -> bool:
    """Whether it may be usable later."""
    return self._process is None and not self._closed

  @property
  def traffic(self) -> tuple[int, int]:
    """Bytes of all requests sent to it and of all its answers, heartbeats left out."""
    return self._sent, self._received

  def invoke(self, comp: tff.Computation, arg: Optional[Any]) -> Any:
    """Runs a computation on this worker.

    Raises:
      errors.WorkerError: If the worker is or becomes unusable; the message names it.
    """
    connection = self._connection
    if not self.is_usable:
      raise self.error()
    return connection.context.invoke(comp, arg)

  def give_up(self, why: str) -> None:
    """Fails the requests that are under way on this worker, and all others until it answers again."""
    with self._lock:
      if not self.is_usable:
        return
      self._lost = why
      if self._process is not None:
        # A broken connection is seen before the process is gone. One that hangs does not end by itself.
        self._process.end(_SECONDS_TO_END if why == _BROKEN else 0)
      logging.warning('%s', self.error())
      self._connection.close()  # Requests that wait for an answer get an error.
    self._news.set()

  def close(self) -> None:
    """Closes the connection and ends the process, if this program started it."""
    _open.discard(self)
    with self._lock:
      self._closed = True
      self._connection.close()
    self._news.set()
    if self._process is not None:
      self._process.close()

  def error(self) -> errors.WorkerError:
    """Why the worker is not usable: an error that names it, what happened, and its last output."""
    with self._lock:  # Not while it is being given up.
      what = 'is closed' if self._closed else self._lost or _BROKEN  # It may be back already.
      how = self._process.last_words() if self._process is not None and not self._closed else ''
    return errors.WorkerError(f'The {self} {what}.{how}', self.address, self.pid)

  def _wait(self) -> None:
    begin, said = time.monotonic(), 0.0
    while not self._connection.is_ready(seconds=0.1):
      waited = time.monotonic() - begin
      if waited > SECONDS_TO_START or (self._process is not None and self._process.has_ended):
        self._lost = f'could not be reached in {waited:.0f} s' if self._process is None else 'did not start'
        raise self.error()
      if waited > said + (_SECONDS_BETWEEN_WORDS if said else _SECONDS_UNTIL_FIRST_WORD):
        said = waited
        logging.warning(
          'The %s does not answer yet: is it running, and are host and port right? It is given up in %.0f s.',
          self,
          SECONDS_TO_START - waited,
        )

  def _watch(self) -> None:
    while not self._closed:
      self._news.wait(self._timeout / 2 if self.is_usable else _SECONDS_BETWEEN_ATTEMPTS)
      self._news.clear()
      if self.is_usable:
        why = self._connection.heartbeat(self._timeout)
        if why is not None:
          self.give_up(why)
      elif self.may_come_back:
        self._try_again()
      else:
        return

  def _try_again(self) -> None:
    connection = _Connection(self)
    if not connection.is_ready(self._timeout / 2) or connection.heartbeat(self._timeout) is not None:
      connection.close()
      return
    with self._lock:
      if self._closed:
        connection.close()
        return
      # A new context: values that the old one had left on the worker may be gone.
      self._connection, self._lost = connection, None
    logging.warning('The %s answers again and is used from now on.', self)

  def request(self, connection: '_Connection', method: str, request: Any) -> Any:
    """Passes a request on; TFF's contexts would repeat one to an unavailable worker for ever."""
    try:
      answer = getattr(connection.stub, method)(request)
    except tff.framework.RetryableError as e:
      if connection is self._connection:
        # Either the connection is broken, or the worker was restarted and does not know the values that we refer to.
        self.give_up(_BROKEN if e.code() is grpc.StatusCode.UNAVAILABLE else 'has been restarted')
      raise self.error() from e
    except (grpc.RpcError, ValueError) as e:
      if connection.is_closed:
        raise self.error() from e
      raise
    with self._lock:
      self._sent += request.ByteSize()
      self._received += answer.ByteSize()
    return answer


def _for_this_version() -> tff.Computation:
  """A computation that only a worker with this TensorFlow runs: others refuse its graph."""
  proto = tff.framework.serialize_computation(tff.tensorflow.computation(lambda: tf.constant(True)))
  graph_def, version = tf.compat.v1.GraphDef(), tf.version.GRAPH_DEF_VERSION
  proto.tensorflow.graph_def.Unpack(graph_def)
  graph_def.versions.min_consumer = version
  graph_def.versions.bad_consumers.extend(range(version + 1, version + _LATER_VERSIONS))
  proto.tensorflow.graph_def.Pack(graph_def)
  return tff.framework.deserialize_computation(proto)


class _Connection:
  """A channel to a worker, with its heartbeat and TFF's executor on it."""

  def __init__(self, worker: Worker):
    self.is_closed = False
    if worker.credentials is None:
      self._channel = grpc.insecure_channel(worker.address, _CHANNEL_OPTIONS)
    else:
      self._channel = grpc.secure_channel(worker.address, worker.credentials, _TLS_OPTIONS)
    self._beat = self._channel.unary_unary(_HEARTBEAT)
    self.stub = tff.framework.RemoteExecutorGrpcStub(_Unwatched(self._channel))
    self._worker = worker

  @functools.cached_property
  def context(self) -> tff.framework.SyncContext:
    """TFF's own execution context on the worker."""
    checked = _Stub(self._worker, self)

    def stack(cardinalities):
      cardinalities.setdefault(tff.CLIENTS, 0)
      executor = tff.framework.RemoteExecutor(checked)
      executor.set_cardinalities(cardinalities)
      return executor

    return tff.framework.SyncExecutionContext(
      tff.framework.ResourceManagingExecutorFactory(stack),
      _compiled.get,
      transform_args=tff.tensorflow.transform_args,
      transform_result=tff.tensorflow.transform_result,
    )

  def is_ready(self, seconds: float) -> bool:
    """Whether the worker answers within that time. It may be starting."""
    begin = time.monotonic()
    try:
      self._beat(b'', timeout=seconds, wait_for_ready=True)
    except grpc.RpcError as e:
      if e.code() is not grpc.StatusCode.UNIMPLEMENTED:
        time.sleep(max(0.0, begin + seconds - time.monotonic()))
        return False
    return True

  def heartbeat(self, timeout: float) -> Optional[str]:
    """Why the worker is not alive, `None` if it is. Takes half of the timeout at most."""
    begin = time.monotonic()
    try:
      self._beat(b'', timeout=timeout / 2)
    except grpc.RpcError as e:
      if e.code() is grpc.StatusCode.UNIMPLEMENTED:
        return None
      if e.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
        return _BROKEN
      if time.monotonic() - begin < 0.75 * timeout:
        return f'gave no sign of life for {timeout:g} s'
      # This program itself was stopped (Ctrl-Z, say), so nothing is known of the worker.
    except ValueError:
      return _BROKEN  # Closed in the meantime.
    return None

  def close(self) -> None:
    self.is_closed = True
    self._channel.close()


class _Unwatched:
  """A channel without gRPC's watcher, which prints a traceback when the channel is closed. Heartbeats replace it."""

  def __init__(self, channel: grpc.Channel):
    self._channel = channel

  def __getattr__(self, name: str) -> Any:
    return getattr(self._channel, name)

  def subscribe(self, callback: Callable[[Any], None], try_to_connect: bool = False) -> None:
    pass


class _Stub(tff.framework.RemoteExecutorStub):
  """Represents the worker for TFF's executor."""

  def __init__(self, worker: Worker, connection: _Connection):
    self.worker = worker
    self.connection = connection

  @property
  def is_ready(self) -> bool:
    return not self.connection.is_closed

  def _request(self, method: str, request: Any) -> Any:
    return self.worker.request(self.connection, method, request)

  def _free(self, method: str, request: Any) -> Any:
    # Finalizers call it, also after the connection was closed; then there is nothing left to free.
    return None if self.connection.is_closed else self._request(method, request)

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
