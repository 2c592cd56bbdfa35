"""The errors of the runtimes."""

from __future__ import annotations

import re

from quap_tff.common.lazy import tf

# TensorFlow's assertions: the message, the condition, and the values that did not meet it.
_ASSERTION = re.compile(r'assertion failed: \[(.*?)\] \[Condition x .*?\] \[x \(.*?\) = \] (\[.*?\])', re.DOTALL)
_NODE = re.compile(r'\s*\[\[\{\{node .*', re.DOTALL)


class RuntimeStackError(RuntimeError):
  """Base of this package's errors, except for those about the value of an argument."""


class UnsupportedComputationError(RuntimeStackError, NotImplementedError):
  """The runtime cannot run a part of a computation, or cannot pass on its argument or result; the message names it."""


class DeviceError(RuntimeStackError):
  """The requested device does not exist."""


class NotMergeableError(RuntimeStackError):
  """A computation cannot be spread over several workers."""


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


class WorkerError(RuntimeStackError):
  """A worker did not start, or died. The message names it.

  Attributes:
    pid: Its process id.
  """

  def __init__(self, message: str, pid: int):
    super().__init__(message)
    self.pid = pid


def in_own_words(error: tf.errors.OpError) -> tf.errors.OpError:
  """An error of the same kind, with nothing but its own message."""
  return type(error)(error.node_def, error.op, _own_words(error))


def _own_words(cause: BaseException) -> str:
  """The message without TensorFlow's traceback of the node, which here always shows the code that imports graphs."""
  lines = str(getattr(cause, 'message', None) or cause).splitlines()
  # The message itself follows the last line of the traceback.
  places = [i for i, line in enumerate(lines) if line.startswith('  File "')]
  own_lines = lines[places[-1] + 1 :] if places else lines
  text = '\n'.join(own_lines).strip()
  assertion = _ASSERTION.search(text)
  return f'{assertion[1].rstrip(". ")} {assertion[2]}.' if assertion else _NODE.sub('', text)
