"""A run in its own process, which does not outlive the sweep."""

from collections.abc import Sequence
import os
import signal
import subprocess
import sys
from typing import Optional

from experiments import command_line
from quap_tff.runtime import processes

_BYTES_OF_LOG_READ = 100_000


def command(arguments: Sequence[str]) -> Sequence[str]:
  """The command line of a run."""
  return [sys.executable, '-m', 'experiments.train', *arguments]


class Child:
  """A running run. Everything that it prints is appended to its log.

  Make it on the main thread: the kernel kills the run when the thread that started it ends.
  """

  def __init__(self, arguments: Sequence[str], log: str):
    with open(log, 'ab') as output:
      self._log, self._begin = log, output.tell()
      self._process = subprocess.Popen(
        processes.ending_with_this_one(command(arguments)),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        # Ctrl-C at the terminal goes to the sweep, which then ends its runs.
        start_new_session=True,
      )

  def poll(self) -> Optional[int]:
    """The run's exit status, negative for a signal; None while it runs."""
    return self._process.poll()

  def end(self) -> None:
    """Asks the run to save its last round and end."""
    self._process.terminate()

  def wait(self) -> None:
    """Waits until the run has ended."""
    self._process.wait()

  def error(self) -> str:
    """Why the run failed: its last line with "Error: ", or else its last line; and the signal that ended it, if any."""
    with open(self._log, 'rb') as f:
      f.seek(max(self._begin, f.seek(0, os.SEEK_END) - _BYTES_OF_LOG_READ))
      lines = [line.strip() for line in f.read().decode(errors='replace').splitlines() if line.strip()]
    said = next((line for line in reversed(lines) if 'Error: ' in line), lines[-1] if lines else 'it printed nothing')
    code = self._process.returncode
    if code == command_line.INTERRUPTED:
      return 'interrupted, but not by the sweep'
    return f'ended by {signal.Signals(-code).name}; {said}' if code < 0 else said
