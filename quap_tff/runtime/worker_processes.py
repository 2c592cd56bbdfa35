"""Child processes that end when this program does, however it ends, and TFF's C++ worker as such a process.

This module imports neither TensorFlow nor TFF, so small programs may use it.
"""

from collections.abc import Sequence
import importlib.util
import os
import socket
import subprocess
import sys
import tempfile

from quap_tff.runtime.values import errors

_SECONDS_TO_END = 5
_BYTES_OF_LOG = 2000

# Asks the kernel to kill this process when its parent ends, then becomes the command. If the parent has ended by then,
# the parent's id has changed. (A `preexec_fn` would run this between fork and exec of a program full of threads.)
_LAUNCHER = (
  'import ctypes, os, signal, sys\n'
  'ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n'
  'if os.getppid() != int(sys.argv[1]): sys.exit(1)\n'
  'os.execv(sys.argv[2], sys.argv[2:])\n'
)


def ending_with_this_one(command: Sequence[str]) -> list[str]:
  """A command line that runs `command` (its program given by path) in a process that is killed when this one ends.

  The kernel kills it, however this process ends, and also when the thread that started the command ends.
  """
  return [sys.executable, '-I', '-S', '-c', _LAUNCHER, str(os.getpid()), *command]


def _worker_binary() -> str:
  """The path of TFF's worker."""
  spec = importlib.util.find_spec('tensorflow_federated')
  if spec is None or not spec.submodule_search_locations:
    raise errors.RuntimeStackError(
      'TensorFlow Federated is not installed, and its worker is part of it. Install it with '
      '`pip install --no-deps -r requirements.txt`.'
    )
  path = os.path.join(spec.submodule_search_locations[0], 'data', 'worker_binary')
  if not os.path.isfile(path):
    raise errors.RuntimeStackError(f"TFF's worker is missing at {path}, where TFF 0.87 installs it.")
  return path


class WorkerProcess:
  """A worker on this machine, started by this program.

  Raises:
    errors.RuntimeStackError: If TFF's worker is not installed.
  """

  def __init__(self) -> None:
    family = socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET
    with socket.socket(family) as s:
      # The kernel names a free port. It is closed again for the worker, to which no socket can be handed.
      s.bind(('', 0))
      port = s.getsockname()[1]
    command = [_worker_binary(), f'--port={port}', '--max_concurrent_computation_calls=-1']
    # The worker inherits neither output: if it held this program's, a pipeline behind the program would hang.
    self._log = tempfile.TemporaryFile()
    self._process = subprocess.Popen(
      ending_with_this_one(command),
      stdin=subprocess.DEVNULL,
      stdout=self._log,
      stderr=subprocess.STDOUT,
      env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '1'},
      # Ctrl-C at the terminal is meant for this program, which then ends its workers.
      start_new_session=True,
    )
    self.address = f'localhost:{port}'
    self.pid = self._process.pid

  @property
  def has_ended(self) -> bool:
    return self._process.poll() is not None

  def how_it_ended(self) -> str:
    """The signal or the status with which the process ended, a sentence."""
    code = self._process.returncode
    how = f'signal {-code}' if code < 0 else f'status {code}'
    return f'It ended with {how}.'

  def last_output(self) -> str:
    """The end of its output, in words; '' if there is none."""
    self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - _BYTES_OF_LOG))
    output = self._log.read().decode(errors='replace').strip()
    return f' Its last output:\n{output}' if output else ''

  def end(self) -> None:
    """Gives the process some time to end by itself, and then kills it."""
    try:
      self._process.wait(timeout=_SECONDS_TO_END)
    except subprocess.TimeoutExpired:
      self._process.kill()
      self._process.wait()

  def close(self) -> None:
    """Ends the process."""
    if not self.has_ended:
      self._process.terminate()
      self.end()
    self._log.close()
