"""Works for Flower by the app that is installed on this machine, in a fork of this process for each task.

By itself, Flower loads the app that somebody has sent, whatever that is. It uses parts of Flower that have no promise
to stay, so pyproject.toml names one version of Flower.
"""

from __future__ import annotations

import logging
import os
from typing import Callable

from flwr.supercore.constant import TaskType
from flwr.supercore.superexec import run_superexec
from flwr.supercore.superexec.executor import ExecutionSpec
from flwr.supercore.superexec.executor import LaunchResult
from flwr.supercore.superexec.executor import subprocess_executor

_LOG = logging.getLogger('flwr')


class Forks(subprocess_executor.SubprocessExecutor):
  """Does tasks of one kind, each in a fork of this process."""

  def __init__(self, task_type: TaskType, work: Callable[[ExecutionSpec], object]):
    self._task_type, self._work = task_type, work
    self._children: list[int] = []

  def launch(self, spec: ExecutionSpec) -> LaunchResult:
    """Starts a task; another kind fails."""
    if spec.task_type != self._task_type:
      return LaunchResult.failed(f'Only the {self._task_type} of quap_tff runs here, and not a {spec.task_type}.')
    if pid := os.fork():
      self._children.append(pid)
      return LaunchResult.accepted()
    try:
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


def work_for(address: str, forks: Forks, secret: bytes, root_certificates: str = '') -> None:
  """Asks Flower's Runtime API for tasks until this process is stopped.

  Args:
    address: HOST:PORT of the API.
    forks: Who does them.
    secret: The secret that the API knows its workers by.
    root_certificates: The certificate of who signed that of the API (PEM); '' for one without TLS.
  """
  run_superexec.get_executor = lambda *_, **__: forks
  run_superexec.run_superexec(
    address,
    insecure=not root_certificates,
    root_certificates_path=root_certificates or None,
    superexec_auth_secret=secret,
    runtime_dependency_install=False,
  )
