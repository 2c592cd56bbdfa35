"""The memory of a client's guard: lines of text in a file that is written whole, flushed and renamed.

Next to the file lies another one, which ends on `.lock`. A process that works with the memory holds it locked. It says
how far the memory has come, so that a memory that was removed, or replaced by an older copy of itself, is found out.
It is written before the first memory, so a memory without it is refused. A person who removes or replaces both files is
not found out. Only their owner can read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
import fcntl
import hashlib
import json
import os
import stat
from typing import Any, Optional

from quap_tff.common import files

_LOCK = '.lock'


class DamagedMemoryError(ValueError):
  """The memory is damaged, missing, or not the latest one."""


class Memory:
  """The memory of one guard.

  Args:
    path: The file.
    owner: Names the plan and the client.
  """

  def __init__(self, path: str, owner: str):
    self.path, self._owner = path, owner
    self._digest: Optional[str] = None
    self._lock: Any = None

  @contextlib.contextmanager
  def locked(self) -> Iterator[None]:
    """No other process works with the memory in the block."""
    try:
      with os.fdopen(os.open(self.path + _LOCK, os.O_RDWR | os.O_CREAT, 0o600), 'r+b') as self._lock:
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        yield
    except OSError as error:
      raise DamagedMemoryError(f'The memory {self.path} cannot be used: {error}.') from None
    finally:
      self._lock = None

  def read(self, known: Sequence[str]) -> Optional[list[str]]:
    """The lines; None if they are those that this object has read or written last. Only inside `locked`.

    Args:
      known: The lines with which it must begin.

    Raises:
      DamagedMemoryError: If the memory is damaged, missing, older than it was, or another one.
    """
    said = self._said()
    if not os.path.lexists(self.path):
      if known or (said is not None and said['lines']):
        raise DamagedMemoryError(f'The memory {self.path} is gone. Put it back: without it, noise could repeat.')
      if said is None:
        self._say(0, '')
        # A machine that loses power must not come back with a memory and an empty lock.
        os.fsync(self._lock.fileno())
      return []
    if said is None:
      raise DamagedMemoryError(
        f'{self.path}{_LOCK} is missing or empty. It says how far the memory {self.path} has come, and without it an '
        'older copy could not be told from the latest one. Put the lock back.'
      )
    status = os.lstat(self.path)
    if not stat.S_ISREG(status.st_mode) or not status.st_mode & stat.S_IWUSR:
      raise DamagedMemoryError(f'The memory {self.path} must be a regular file that may be written.')
    with open(self.path, 'rb') as f:
      content = f.read()
    digest = hashlib.sha256(content).hexdigest()
    if digest == self._digest:
      return None
    lines = self._lines(content)
    is_latest = len(lines) > said['lines'] or (len(lines) == said['lines'] and digest == said['sha256'])
    if not is_latest or lines[: len(known)] != list(known):
      raise DamagedMemoryError(f'The memory {self.path} is older than it was, or another one. Put the latest one back.')
    self._digest = digest
    return lines

  def store(self, lines: Sequence[str]) -> None:
    """Takes the place of the lines. Only inside `locked`."""
    body = ''.join(f'{line}\n' for line in lines)
    content = f'{self._owner} {len(lines)} {hashlib.sha256(body.encode()).hexdigest()}\n{body}'.encode()
    with files.replacing(self.path) as unfinished, files.new_private(unfinished) as f:
      f.write(content)
      f.flush()
      os.fsync(f.fileno())
    # Without this, a machine that loses power may come back with the file from before, and answer again.
    folder = os.open(os.path.dirname(self.path) or os.curdir, os.O_RDONLY)
    try:
      os.fsync(folder)
    finally:
      os.close(folder)
    digest = hashlib.sha256(content).hexdigest()
    self._say(len(lines), digest)
    self._digest = digest

  def _say(self, lines: int, digest: str) -> None:
    # Never empty in between: an empty lock says that there was no memory.
    self._lock.seek(0)
    self._lock.write(json.dumps({'lines': lines, 'sha256': digest}).encode())
    self._lock.truncate()
    self._lock.flush()

  def _said(self) -> Optional[dict[str, Any]]:
    """The lock's content; None if it is empty."""
    self._lock.seek(0)
    content = self._lock.read()
    if not content:
      return None
    try:
      said = json.loads(content)
      if not isinstance(said['lines'], int) or not isinstance(said['sha256'], str):
        raise ValueError('it has other values')
      return said
    except (ValueError, KeyError, TypeError) as error:
      raise DamagedMemoryError(f'{self.path}{_LOCK} is damaged: {error}. Put it back.') from None

  def _lines(self, content: bytes) -> list[str]:
    try:
      head, _, body = content.decode().partition('\n')
      owner, count, digest = head.rsplit(' ', 2)
      lines = body.split('\n')[:-1]
      if digest != hashlib.sha256(body.encode()).hexdigest() or int(count) != len(lines):
        raise ValueError('its digest is another one')
    except ValueError as error:
      raise DamagedMemoryError(f'The memory {self.path} is damaged: {error}. Put it back.') from None
    if owner != self._owner:
      raise DamagedMemoryError(f'The memory {self.path} is of another plan or another client.')
    return lines
