"""Child processes of tests: the one deadline after which a hung one is ended, and the one way to wait for what it does.

No test judges how fast a machine is. A deadline is there so that a child that hangs does not stop the tests for good,
and is far longer than any child takes on a busy machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import subprocess
import time
from typing import Any, Optional

DEADLINE_SECONDS = 600

_SECONDS_BETWEEN_LOOKS = 0.02


def run(command: Sequence[Any], **options: Any) -> subprocess.CompletedProcess:
  """`subprocess.run` with the deadline. By default it has no input, and its output is kept as text."""
  defaults: dict[str, Any] = dict(stdin=subprocess.DEVNULL, encoding='utf-8', check=False)
  if 'stdout' not in options and 'stderr' not in options:
    defaults['capture_output'] = True
  return subprocess.run([str(part) for part in command], timeout=DEADLINE_SECONDS, **{**defaults, **options})


def finish(process: subprocess.Popen) -> tuple[Any, Any]:
  """Standard output and error of a process that has ended, and whose pipes nobody holds any more."""
  try:
    return process.communicate(timeout=DEADLINE_SECONDS)
  except subprocess.TimeoutExpired:
    process.kill()
    process.communicate()
    raise


def until(
  condition: Callable[[], Any], process: Optional[subprocess.Popen] = None, seconds: float = _SECONDS_BETWEEN_LOOKS
) -> Any:
  """Waits until `condition` returns something true, and returns it.

  Args:
    condition: What is looked at.
    process: A process that works towards it.
    seconds: Time from one look to the next.

  Raises:
    AssertionError: If the process ends before, or the deadline passes.
  """
  deadline = time.monotonic() + DEADLINE_SECONDS
  while True:
    has_ended = process is not None and process.poll() is not None
    found = condition()
    if found:
      return found
    if has_ended or time.monotonic() > deadline:
      said = _said(process) if process is not None else ''
      raise AssertionError(f'{"The process ended too early" if has_ended else "It took too long"}. {said}')
    _wait(process, seconds)


def _wait(process: Optional[subprocess.Popen], seconds: float) -> None:
  """Until the next look, or until the process has ended."""
  if process is None:
    time.sleep(seconds)
    return
  try:
    process.wait(seconds)
  except subprocess.TimeoutExpired:
    pass


def _said(process: subprocess.Popen) -> str:
  process.kill()
  return f'Status {process.poll()}, and it said: {process.communicate()}'
