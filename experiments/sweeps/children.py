"""A run in its own process, which does not outlive the sweep.

The sweep imports TensorFlow and the program once, and forks a process for each run. So a run starts at once, with the
same modules in the same state as in a process of its own. Forking is safe as long as the sweep executes no TensorFlow
operation: TensorFlow starts its threads and its generators of random numbers with the first one.
"""

import atexit
from collections.abc import Sequence
import ctypes
import functools
import gc
import multiprocessing.context
import os
import shutil
import signal
import sys
from typing import Any

import experiments
from experiments import train
from experiments.command import command_line
from experiments.folders import folder as run_folder
from quap_tff.common import lazy

_BYTES_OF_LOG_READ = 100_000
_KILL_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2).
# Everything that takes long to import, in most runs.
_LOADED = (
  'experiments.running.results',
  'experiments.running.plots',
  'matplotlib.figure',
  'matplotlib.backends.backend_agg',
  'sklearn.datasets',
  'jinja2',
  'quap_tff.federated.learning_process',
  'quap_tff.runtime.in_process.context',
)


class Child(multiprocessing.context.ForkProcess):
  """A running run. Everything that it prints is appended to its log. SIGTERM asks it to save its last round and end.

  Make it on the main thread: the kernel kills the run when the thread that started it ends.
  """

  def __init__(self, arguments: Sequence[str], log: str):
    _load()
    with open(log, 'ab') as output:
      self._log, self._log_began = log, output.tell()
      super().__init__(target=_run, args=(list(arguments), output.fileno(), os.getpid()))
      # A signal to the run waits until the run has a handler for it.
      signal.pthread_sigmask(signal.SIG_BLOCK, experiments.SIGNALS)
      try:
        self.start()
      finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, experiments.SIGNALS)

  def error(self) -> str:
    """Why the run failed: its last line with "Error: ", or else its last line; and the signal that ended it, if any."""
    with open(self._log, 'rb') as f:
      f.seek(max(self._log_began, f.seek(0, os.SEEK_END) - _BYTES_OF_LOG_READ))
      lines = [line.strip() for line in f.read().decode(errors='replace').splitlines() if line.strip()]
    said = next((line for line in reversed(lines) if 'Error: ' in line), lines[-1] if lines else 'it printed nothing')
    code = self.exitcode
    if code == command_line.INTERRUPTED:
      return 'interrupted, but not by the sweep'
    return f'ended by {signal.Signals(-code).name}; {said}' if code is not None and code < 0 else said


@functools.cache
def _load() -> None:
  """Imports the modules of runs. The search for garbage leaves them out: it would copy them for each run."""
  run_folder.source_digest()  # Of the code that is imported now, whatever happens to the files later.
  gc.disable()
  for name in _LOADED:
    lazy.load(name)
  gc.freeze()
  gc.enable()


def _run(arguments: list[str], output: int, parent: int) -> Any:
  """Becomes the run, as `experiments.train` in a new process would."""
  ctypes.CDLL(None).prctl(_KILL_WITH_PARENT, signal.SIGKILL)
  if os.getppid() != parent:
    os._exit(command_line.FAILED)
  for signum in experiments.SIGNALS:
    signal.signal(signum, experiments.leave)
  signal.pthread_sigmask(signal.SIG_UNBLOCK, experiments.SIGNALS)
  os.setsid()  # Ctrl-C at the terminal goes to the sweep, which then ends its runs.
  with open(os.devnull, 'rb') as nothing:
    os.dup2(nothing.fileno(), 0)
  for stream in (1, 2):
    os.dup2(output, stream)
  atexit.unregister(shutil.rmtree)  # The sweep's temporary files are not the run's.
  sys.argv = ['train', *arguments]
  try:
    command_line.run(train.main)
  finally:
    atexit._run_exitfuncs()  # Python runs them only where a process was not forked.
