"""TFF's C++ worker as a process that ends when this program does, however it ends."""

import contextlib
import os
import socket
import subprocess
import tempfile

from quap_tff.runtime import child_process
from quap_tff.runtime import errors
from quap_tff.runtime import worker_binary

_SECONDS_TO_END = 5
_BYTES_OF_LOG = 2000


def _unused_port() -> int:
  with contextlib.closing(socket.socket(socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET)) as s:
    s.bind(('', 0))
    return s.getsockname()[1]


class WorkerProcess:
  """A worker on this machine, started by this program.

  Raises:
    errors.RuntimeStackError: If TFF's worker is not installed.
  """

  def __init__(self):
    port = _unused_port()
    try:
      command = worker_binary.command(port)
    except FileNotFoundError as e:
      raise errors.RuntimeStackError(str(e)) from e
    # The worker inherits neither output: if it held this program's, a pipeline behind the program would hang.
    self._log = tempfile.TemporaryFile()
    self._process = subprocess.Popen(
      child_process.ending_with_this_one(command),
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

  def last_words(self) -> str:
    """How the process ended, if it has, and the end of its output."""
    code = self._process.poll()
    text = ' It is still running.'
    if code is not None:
      text = f' It ended with {f"signal {-code}" if code < 0 else f"status {code}"}.'
    self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - _BYTES_OF_LOG))
    output = self._log.read().decode(errors='replace').strip()
    return f'{text} Its last output:\n{output}' if output else text

  def end(self, seconds: float = _SECONDS_TO_END) -> None:
    """Gives the process some time to end by itself, and kills it then."""
    try:
      self._process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
      self._process.kill()
      self._process.wait()

  def close(self) -> None:
    """Ends the process."""
    if self._process.poll() is None:
      self._process.terminate()
      self.end()
    self._log.close()
