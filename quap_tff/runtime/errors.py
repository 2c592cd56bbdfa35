"""What can go wrong in a runtime, each with its own class."""

from typing import Optional


class RuntimeStackError(RuntimeError):
  """Base of the errors of this package that are not about an argument's value."""


class UnsupportedComputationError(RuntimeStackError, NotImplementedError):
  """A computation holds an intrinsic or a block that the runtime cannot run; the message names it."""


class ClientError(RuntimeStackError):
  """A client's TensorFlow failed.

  Attributes:
    client_index: Position of the client in the cohort, as the argument of the computation lists it, from 0.
  """

  def __init__(self, client_index: int, num_clients: int, cause: BaseException):
    super().__init__(
        f'Client {client_index} of the cohort (counted from 0, {num_clients} clients) failed:'
        f' {type(cause).__name__}: {_own_words(cause)}'
    )
    self.client_index = client_index


def _own_words(cause: BaseException) -> str:
  """The message without TensorFlow's list of where a node was made: here always the place that imports graphs."""
  lines = str(getattr(cause, 'message', None) or cause).splitlines()
  places = [i for i, line in enumerate(lines) if line.startswith('  File "')]
  return '\n'.join(lines[places[-1] + 1:] if places else lines).strip()


class DeviceError(RuntimeStackError):
  """A device was asked for that is not there."""


class WorkerError(RuntimeStackError):
  """A worker could not be started or reached, or died; the message names it.

  Attributes:
    address: `host:port` of the worker.
    pid: Its process id where this program started it, else `None`.
  """

  def __init__(self, message: str, address: str, pid: Optional[int] = None):
    super().__init__(message)
    self.address = address
    self.pid = pid


class NotMergeableError(RuntimeStackError):
  """A computation cannot be spread over several workers."""
