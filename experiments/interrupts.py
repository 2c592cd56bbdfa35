"""Ctrl-C and SIGTERM as KeyboardInterrupt, but never in the middle of what must be done whole.

Python raises KeyboardInterrupt between any two instructions; a round could count in the model and not in the log. The
state is the process's, as signal handlers are.
"""

import contextlib
import signal
from typing import Iterator

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_held = 0
_came = False


def install():
  """From now on the first of these signals raises KeyboardInterrupt, outside `held_back`. For the main thread only."""
  global _held, _came
  _held, _came = 0, False
  for signum in _SIGNALS:
    signal.signal(signum, _handle)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
  """Holds the signals back until the block has ended; KeyboardInterrupt is raised then, if one has come.

  It is raised as well if one came before the block and the exception was lost, as it is in a finalizer.
  """
  global _held
  _held += 1
  try:
    yield
  finally:
    _held -= 1
  if _came and not _held:
    raise KeyboardInterrupt


def ignore_from_now_on():
  """For the end of a program, when results are put away."""
  global _held
  _held += 1


def _handle(signum, frame):
  del signum, frame
  global _came
  first, _came = not _came, True
  # Only the first: an impatient second Ctrl-C must not cut off the saving that the first one has begun.
  if first and not _held:
    raise KeyboardInterrupt
