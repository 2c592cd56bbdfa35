"""Ctrl-C and SIGTERM, held back while a step is done that must be done whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import signal
import threading
import types
from typing import Optional

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
  """Holds the signals back until the block has ended, also by an error; they are handled then, as they would have been.

  In another thread than the main one nothing is done: Python handles signals in the main thread alone. Signals that are
  ignored, or that end the process without Python, stay as they are.
  """
  if threading.current_thread() is not threading.main_thread():
    yield
    return
  came = list[int]()

  def note(signum: int, frame: Optional[types.FrameType]) -> None:
    del frame
    came.append(signum)

  handlers = dict[int, Callable[[int, Optional[types.FrameType]], object]]()
  for own in _SIGNALS:
    handler = signal.getsignal(own)
    if callable(handler):
      handlers[own] = handler
      signal.signal(own, note)
  try:
    yield
  finally:
    for signum, handler in handlers.items():
      signal.signal(signum, handler)
    for signum in came:
      handlers[signum](signum, None)
