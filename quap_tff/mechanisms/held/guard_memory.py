"""The memory of a client's guard: lines of text in a state that cannot be used twice, removed or put back unnoticed.

A process has it open for as long as one answer takes. Another one waits, and then knows that answer, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
from typing import Optional

from quap_tff.common import durable


class DamagedMemoryError(ValueError):
  """The memory is damaged, missing, or not the latest one."""


class Memory:
  """The memory of one guard.

  Args:
    path: The file.
    owner: Names the plan and the client.
    counters: As for `durable.StateFile`.
  """

  def __init__(self, path: str, owner: str, counters: Optional[str] = None):
    self.path, self._owner, self._counters = path, owner, counters
    self._content: Optional[bytes] = None
    self._state: Optional[durable.StateFile] = None

  @contextlib.contextmanager
  def locked(self) -> Iterator[None]:
    """No other process works with the memory in the block."""
    try:
      with durable.StateFile(self.path, self._counters, waits=True) as self._state:
        yield
    except (durable.StateError, OSError) as error:
      raise DamagedMemoryError(f'The memory {self.path} cannot be used: {error}') from None
    finally:
      self._state = None

  def read(self, known: Sequence[str]) -> Optional[list[str]]:
    """The lines; None if they are those that this object has read or written last. Only inside `locked`.

    Args:
      known: The lines with which it must begin.

    Raises:
      DamagedMemoryError: If the memory is another one than before, or of another plan or client.
    """
    assert self._state is not None
    content = self._state.content
    if content is not None and content == self._content:
      return None
    lines = [] if content is None else self._lines(content)
    if lines[: len(known)] != list(known):
      raise DamagedMemoryError(f'The memory {self.path} is another one than before. Put the latest one back.')
    self._content = content
    return lines

  def store(self, lines: Sequence[str]) -> None:
    """Takes the place of the lines. Only inside `locked`."""
    assert self._state is not None
    content = '\n'.join([self._owner, *lines]).encode()
    self._state.write(content)
    self._content = content

  def _lines(self, content: bytes) -> list[str]:
    owner, *lines = content.decode().split('\n')
    if owner != self._owner:
      raise DamagedMemoryError(f'The memory {self.path} is of another plan or another client.')
    return lines
