"""Works for Flower by the app that is installed on this machine, in a fork of this process for each task.

By itself, Flower loads the app that somebody has sent, whatever that is. It uses parts of Flower that have no promise
to stay, so pyproject.toml names one version of Flower.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import time
from typing import Any, Callable

from flwr.supercore.constant import TaskType
from flwr.supercore.exit import add_exit_handler
from flwr.supercore.exit import exit_handler
from flwr.supercore.superexec import run_superexec
from flwr.supercore.superexec.executor import ExecutionSpec
from flwr.supercore.superexec.executor import LaunchResult
from flwr.supercore.superexec.executor import subprocess_executor

_LOG = logging.getLogger('flwr')
# Flower ends itself five seconds after SIGTERM.
_GRACE_SECONDS = 8.0
_SECONDS_BETWEEN_LOOKS = 0.05
_PR_SET_PDEATHSIG = 1  # Of <sys/prctl.h>.


class Forks(subprocess_executor.SubprocessExecutor):
  """Does tasks of one kind, each in a fork of this process, which does not outlive it."""

  def __init__(self, task_type: TaskType, work: Callable[[ExecutionSpec], object]):
    self._task_type, self._work = task_type, work
    self._children: list[int] = []
    add_exit_handler(self._end, run_before_force_exit=True)

  def launch(self, spec: ExecutionSpec) -> LaunchResult:
    """Starts a task; another kind fails."""
    if spec.task_type != self._task_type:
      return LaunchResult.failed(f'Only the {self._task_type} of quap_tff runs here, and not a {spec.task_type}.')
    maker = os.getpid()
    if pid := os.fork():
      self._children.append(pid)
      return LaunchResult.accepted()
    try:
      _end_with(maker)
      # What its maker does at its end is not for this process.
      exit_handler.registered_exit_handlers.clear()
      self._work(spec)
    except SystemExit:  # Flower ends with it.
      pass
    except BaseException:
      _LOG.exception('A task of Flower failed.')
    finally:
      os._exit(0)

  def reconcile(self) -> None:
    """Waits for those that have ended."""
    self._children = [pid for pid in self._children if not os.waitpid(pid, os.WNOHANG)[0]]

  def _end(self) -> None:
    """Ends those that are under way: by SIGTERM, which Flower heeds, and those that hang by force."""
    for pid in self._children:
      os.kill(pid, signal.SIGTERM)
    ends = time.monotonic() + _GRACE_SECONDS
    while self._children and time.monotonic() < ends:
      time.sleep(_SECONDS_BETWEEN_LOOKS)
      self.reconcile()
    for pid in self._children:
      os.kill(pid, signal.SIGKILL)
      os.waitpid(pid, 0)
    self._children = []


def _end_with(maker: int) -> None:
  """Has the kernel end this process with its maker, also with one that was killed."""
  ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
  if os.getppid() != maker:  # It ended before.
    os._exit(0)


def work_for(address: str, forks: Forks, secret: bytes, root_certificates: str = '') -> None:
  """Asks Flower's Runtime API for tasks until this process is stopped.

  Args:
    address: HOST:PORT of the API.
    forks: Who does them.
    secret: The secret that the API knows its workers by.
    root_certificates: The certificate of who signed that of the API (PEM); '' for one without TLS.
  """

  def executor(*_: Any, **__: Any) -> Forks:
    return forks

  run_superexec.get_executor = executor
  run_superexec.run_superexec(
    address,
    insecure=not root_certificates,
    root_certificates_path=root_certificates or None,
    superexec_auth_secret=secret,
    runtime_dependency_install=False,
  )
