"""The processes of a sweep, which run its runs one after another and do not outlive it.

The sweep imports TensorFlow and the program once, and forks each process. So a process starts at once. Forking is safe
as long as the sweep executes no TensorFlow operation: TensorFlow starts its threads and its generators of random
numbers with the first one. A process takes the runs of one group (`sweep_runs.SweepRun.group`), so what they share is
read and compiled once. A run computes what it would compute in a process of its own.
"""

import atexit
from collections.abc import Sequence
import ctypes
import functools
import gc
import multiprocessing
import multiprocessing.connection
import multiprocessing.context
import os
import shutil
import signal
import sys
import traceback
from typing import Optional

import experiments
from experiments import train
from experiments.command import command_line
from experiments.folders import folder as run_folder
from quap_tff.common import lazy

_BYTES_OF_LOG_READ = 100_000
# A run leaves 50 MB of garbage, and a search for it takes as long as some rounds of a small run.
_RUNS_BETWEEN_COLLECTIONS = 4
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


class Process(multiprocessing.context.ForkProcess):
  """A process that runs one run at a time.

  Make it on the main thread: the kernel kills it when the thread that started it ends.
  """

  def __init__(self) -> None:
    _load_modules()
    self._here, its = multiprocessing.Pipe()
    super().__init__(target=_serve, args=(its, os.getpid()))
    # A signal to the process waits until it has a handler for it.
    signal.pthread_sigmask(signal.SIG_BLOCK, experiments.SIGNALS)
    try:
      self.start()
    finally:
      signal.pthread_sigmask(signal.SIG_UNBLOCK, experiments.SIGNALS)
    its.close()

  def begin(self, arguments: Sequence[str], log: str) -> None:
    """Begins a run, after the one before has ended."""
    self._here.send((list(arguments), log))

  def status(self, timeout: Optional[float]) -> Optional[int]:
    """The exit status of the run, or that of the process if it has ended with it; None after `timeout` seconds."""
    try:
      return self._here.recv() if self._here.poll(timeout) else None
    except (EOFError, OSError):
      self.join()
      return self.exitcode

  def end(self) -> None:
    """Asks the process to end when its run has ended."""
    try:
      self._here.send(None)
    except OSError:
      pass  # It has ended.


class Child:
  """A run at work. Everything that it prints is appended to its log.

  Args:
    process: Runs it, and no other run at this time.
    arguments: Its command line.
    log: The file.
  """

  def __init__(self, process: Process, arguments: Sequence[str], log: str):
    with open(log, 'ab') as output:
      self._log, self._log_began = log, output.tell()
    self._code: Optional[int] = None
    self.process = process
    process.begin(arguments, log)

  @property
  def exitcode(self) -> Optional[int]:
    """The exit status, or minus the signal that ended the process; None while it runs."""
    if self._code is None:
      self._code = self.process.status(0)
    return self._code

  def terminate(self) -> None:
    """Asks it to save its last round and to end, and its process to end with it."""
    self.process.end()
    self.process.terminate()

  def join(self) -> None:
    """Waits until it has ended."""
    if self._code is None:
      self._code = self.process.status(None)

  def error(self) -> str:
    """Why the run failed: its last line with "Error: ", or else its last line; and the signal that ended it, if any."""
    with open(self._log, 'rb') as f:
      f.seek(max(self._log_began, f.seek(0, os.SEEK_END) - _BYTES_OF_LOG_READ))
      lines = [line.strip() for line in f.read().decode(errors='replace').splitlines() if line.strip()]
    last = lines[-1] if lines else 'it printed nothing'
    said = next((line for line in reversed(lines) if 'Error: ' in line), last)
    code = self.exitcode
    if code == command_line.INTERRUPTED:
      return 'interrupted, but not by the sweep'
    return f'ended by {signal.Signals(-code).name}; {said}' if code is not None and code < 0 else said


class Processes:
  """Starts runs, each in a process that has run runs of its group if one is free, or else in a new one."""

  def __init__(self) -> None:
    self._used: list[tuple[str, Child]] = []  # The group of each process, and its latest run.

  def start(self, group: str, arguments: Sequence[str], log: str) -> Child:
    """Starts a run."""
    idle = [one for one in self._used if one[1].exitcode is not None]
    for one in idle:
      if one[0] == group and one[1].process.is_alive():
        self._used.remove(one)
        process = one[1].process
        break
    else:
      for one in idle:
        self._used.remove(one)
        one[1].process.end()
      process = Process()
    try:
      child = Child(process, arguments, log)
    except BaseException:
      process.end()  # No list has it any more: it would wait for a run forever.
      raise
    self._used.append((group, child))
    return child

  def close(self) -> None:
    """Ends the processes whose runs have ended, and waits for all."""
    for _, child in self._used:
      child.process.end()
    for _, child in self._used:
      child.process.join()


@functools.cache
def _load_modules() -> None:
  """Imports the modules of runs. The search for garbage leaves them out: it would copy them for each run."""
  run_folder.source_digest()  # Of the code that is imported now, whatever happens to the files later.
  gc.disable()
  for name in _LOADED:
    lazy.load(name)
  gc.freeze()
  gc.enable()


def _serve(connection: multiprocessing.connection.Connection, parent: int) -> None:
  """Runs the runs that come, each as `experiments.train` would in a process of its own, and answers how they ended."""
  ctypes.CDLL(None).prctl(_KILL_WITH_PARENT, signal.SIGKILL)
  if os.getppid() != parent:
    os._exit(command_line.FAILED)
  for signum in experiments.SIGNALS:
    signal.signal(signum, experiments.leave)
  signal.pthread_sigmask(signal.SIG_UNBLOCK, experiments.SIGNALS)
  os.setsid()  # Ctrl-C at the terminal goes to the sweep, which then ends its runs.
  with open(os.devnull, 'rb') as nothing:
    os.dup2(nothing.fileno(), 0)
  atexit.unregister(shutil.rmtree)  # The sweep's temporary files are not the run's.
  try:
    command_line.run(lambda argv: _run_all(connection))
  finally:
    atexit._run_exitfuncs()  # Python runs them only where a process was not forked.


def _run_all(connection: multiprocessing.connection.Connection) -> int:
  status = number = 0
  while (task := connection.recv()) is not None:
    number += 1
    if number % _RUNS_BETWEEN_COLLECTIONS == 0:
      gc.collect()
    arguments, log = task
    with open(log, 'ab') as output:
      for stream in (1, 2):
        os.dup2(output.fileno(), stream)
    sys.argv = ['train', *arguments]
    try:
      status = command_line.status_of(train.main, sys.argv)
    except Exception:  # pylint: disable=broad-except
      traceback.print_exc()
      status = command_line.FAILED
    for signum in experiments.SIGNALS:  # Until the next run has its own handlers.
      signal.signal(signum, experiments.leave)
    sys.stdout.flush()
    sys.stderr.flush()
    connection.send(status)
  return status
