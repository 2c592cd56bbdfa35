"""TFF's C++ worker as a process that ends when this program does, however it ends."""

import atexit
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from typing import Any, Iterator, List, Optional, Sequence
import weakref

import grpc
import tensorflow_federated as tff

from quap_tff.runtime import child_process
from quap_tff.runtime import errors

_SECONDS_TO_START = 60
_SECONDS_TO_END = 5
_BYTES_OF_LOG = 2000
_MAX_MESSAGE_BYTES = 2_000_000_000
_CHANNEL_OPTIONS = (
    ('grpc.max_receive_message_length', _MAX_MESSAGE_BYTES),
    ('grpc.max_send_message_length', _MAX_MESSAGE_BYTES),
)

def _binary() -> str:
  path = os.path.join(os.path.dirname(tff.__file__), 'data', 'worker_binary')
  if not os.path.isfile(path):
    raise errors.RuntimeStackError(
        f'TFF\'s worker binary is missing at {path}, where TFF {tff.__version__} installs it.'
    )
  return path


def _unused_port() -> int:
  with contextlib.closing(socket.socket(socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET)) as s:
    s.bind(('', 0))
    return s.getsockname()[1]


class Worker:
  """A worker at an address. A worker that this program started also has a process.

  Args:
    address: `host:port` of a running worker, or `None` to start one on this machine.

  Raises:
    errors.WorkerError: If it cannot be started or reached.
  """

  def __init__(self, address: Optional[str] = None):
    self.closed = False
    self._process: Optional[subprocess.Popen] = None
    self._log = None
    if address is None:
      port = _unused_port()
      address = f'localhost:{port}'
      # The worker inherits neither output: if it held this program's, a pipeline behind the program would hang.
      self._log = tempfile.TemporaryFile()
      self._process = subprocess.Popen(
          child_process.ending_with_this_one([_binary(), f'--port={port}', '--max_concurrent_computation_calls=-1']),
          stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT,
          env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '1'},
          # Ctrl-C at the terminal is meant for this program, which then ends its workers.
          start_new_session=True,
      )
    self.address = address
    self.pid = self._process.pid if self._process else None
    _started.add(self)
    self._channel = grpc.insecure_channel(address, _CHANNEL_OPTIONS)
    try:
      self._wait()
    except BaseException:
      self.close()
      raise

  def __str__(self) -> str:
    return f'worker at {self.address} ({f"process {self.pid}" if self.pid else "not started by this program"})'

  def _wait(self) -> None:
    ready = grpc.channel_ready_future(self._channel)
    try:
      for _ in range(_SECONDS_TO_START * 10):
        try:
          ready.result(timeout=0.1)
          return
        except grpc.FutureTimeoutError:
          if self._process is not None and self._process.poll() is not None:
            break
    finally:
      ready.cancel()
    raise self.error('could not be reached' if self._process is None else 'did not start')

  def error(self, what: str) -> errors.WorkerError:
    """An error that names the worker, what happened, and the worker's last output."""
    message = f'The {self} {what}.'
    if self._process is not None:
      try:
        # A broken connection is seen before the process is gone.
        self._process.wait(timeout=_SECONDS_TO_END)
        code = self._process.returncode
        message += f' It ended with {f"signal {-code}" if code < 0 else f"status {code}"}.'
      except subprocess.TimeoutExpired:
        message += ' It is still running.'
      text = self._last_words()
      if text:
        message += f' Its last output:\n{text}'
    return errors.WorkerError(message, self.address, self.pid)

  def _last_words(self) -> str:
    self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - _BYTES_OF_LOG))
    return self._log.read().decode(errors='replace').strip()

  def executor_factory(self) -> tff.framework.ExecutorFactory:
    """Makes executors on this worker, by number of clients."""
    stub = _Stub(self, tff.framework.RemoteExecutorGrpcStub(self._channel))

    def stack(cardinalities):
      cardinalities.setdefault(tff.CLIENTS, 0)
      executor = tff.framework.RemoteExecutor(stub)
      executor.set_cardinalities(cardinalities)
      return executor

    return tff.framework.ResourceManagingExecutorFactory(stack)

  def close(self) -> None:
    """Closes the connection and ends the process, if this program started it."""
    _started.discard(self)
    self.closed = True
    self._channel.close()
    if self._process is not None and self._process.poll() is None:
      self._process.terminate()
      try:
        self._process.wait(timeout=_SECONDS_TO_END)
      except subprocess.TimeoutExpired:
        self._process.kill()
        self._process.wait()
    if self._log is not None:
      self._log.close()


_started: 'weakref.WeakSet[Worker]' = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
  for worker in list(_started):
    worker.close()


class _Stub(tff.framework.RemoteExecutorStub):
  """Passes requests on, and raises an error that names the worker if it is gone.

  TFF's contexts would retry an unavailable worker forever.
  """

  def __init__(self, worker: Worker, stub: tff.framework.RemoteExecutorStub):
    self._worker = worker
    self._stub = stub

  @property
  def is_ready(self) -> bool:
    return self._stub.is_ready

  def _request(self, method: str, request: Any) -> Any:
    try:
      return getattr(self._stub, method)(request)
    except tff.framework.RetryableError as e:
      raise self._worker.error('stopped answering during a round') from e

  def get_executor(self, request):
    return self._request('get_executor', request)

  def create_value(self, request):
    return self._request('create_value', request)

  def create_call(self, request):
    return self._request('create_call', request)

  def create_struct(self, request):
    return self._request('create_struct', request)

  def create_selection(self, request):
    return self._request('create_selection', request)

  def compute(self, request):
    return self._request('compute', request)

  # Finalizers call these, also after the worker was closed; then there is nothing left to free.
  def dispose(self, request):
    return None if self._worker.closed else self._request('dispose', request)

  def dispose_executor(self, request):
    return None if self._worker.closed else self._request('dispose_executor', request)


@contextlib.contextmanager
def running(addresses: List[Optional[str]]) -> Iterator[List[Worker]]:
  """Yields a worker for each address (`None`: start one here) and closes all of them on exit."""
  with contextlib.ExitStack() as stack:
    yield [stack.enter_context(contextlib.closing(Worker(address))) for address in addresses]
