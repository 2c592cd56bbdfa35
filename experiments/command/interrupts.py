"""Ctrl-C and SIGTERM as KeyboardInterrupt, but never in the middle of a step that must be done whole.

Python raises KeyboardInterrupt between any two instructions; a round could count in the model and not in the log. The
state is the process's, as signal handlers are.
"""

import _weakrefset
from collections.abc import Iterator
import contextlib
import gc
import signal
import sys
import types
from typing import Any, Optional
import weakref

import experiments

# Where the callbacks of weak references are.
_OF_WEAK_REFERENCES = (weakref.__file__, _weakrefset.__file__)
# Its C++ calls Python functions, and goes on when one of them raises: without a result, or with the exception set.
# Then a later call fails, or the heap is damaged and the process aborts.
_PACKAGE_THAT_LOSES_EXCEPTIONS = 'tensorflow'
# Until an interrupt is raised that came where an exception would be lost.
_SECONDS_UNTIL_AGAIN = 0.1

_held = 0
_came = False
_on_its_way = False


def install() -> None:
  """Lets the first of these signals raise KeyboardInterrupt, outside `held_back`. Only the main thread may call it."""
  global _held, _came, _on_its_way
  _held, _came, _on_its_way = 0, False, False
  for signum in experiments.SIGNALS:
    signal.signal(signum, _handle)
  signal.signal(signal.SIGALRM, lambda signum, frame: _interrupt(frame))
  sys.unraisablehook = _again_if_lost


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
    signal.setitimer(signal.ITIMER_REAL, 0)
    _raise()


def ignore_from_now_on() -> None:
  """Holds signals back until the program ends, so that it can write its results."""
  global _held
  _held += 1


def is_interrupt(error: BaseException) -> bool:
  """True if an error is a KeyboardInterrupt, or comes after one that has been raised and not been caught yet.

  Then it may be its consequence: TensorFlow's C++ drops an exception of a Python function that it calls, and goes on
  without a result. See `caught`.
  """
  return isinstance(error, KeyboardInterrupt) or _on_its_way


def caught() -> None:
  """Notes that KeyboardInterrupt was caught. Whoever catches it calls this."""
  global _on_its_way
  _on_its_way = False


def _handle(signum: int, frame: Optional[types.FrameType]) -> None:
  del signum
  global _came
  first, _came = not _came, True
  # Only the first: an impatient second Ctrl-C must not cut off the saving that the first one has begun.
  if first:
    _interrupt(frame)


def _interrupt(frame: Optional[types.FrameType]) -> None:
  if _held:
    return
  if _is_lost_in(frame):
    signal.setitimer(signal.ITIMER_REAL, _SECONDS_UNTIL_AGAIN)
    return
  _raise()


def _raise() -> None:
  global _on_its_way
  _on_its_way = True
  raise KeyboardInterrupt


def _again_if_lost(unraisable: Any) -> None:
  """Python's hook for exceptions that it drops: an interrupt is raised again soon, and others are printed."""
  if _came and issubclass(unraisable.exc_type, KeyboardInterrupt):
    signal.setitimer(signal.ITIMER_REAL, _SECONDS_UNTIL_AGAIN)
  else:
    sys.__unraisablehook__(unraisable)


def _is_lost_in(frame: Optional[types.FrameType]) -> bool:
  """True in TensorFlow, and in finalizers and callbacks of the collector and of weak references, which must not be cut.

  Python drops exceptions there. Where this doesn't know it, as at the end of a generator, `_again_if_lost` helps. A
  main thread that waits for clients' threads is not in TensorFlow, so a long round ends at once.
  """
  callbacks = {getattr(callback, '__code__', None) for callback in gc.callbacks}
  while frame is not None:
    code = frame.f_code
    if code.co_name == '__del__' or code in callbacks or code.co_filename in _OF_WEAK_REFERENCES:
      return True
    if frame.f_globals.get('__name__', '').partition('.')[0] == _PACKAGE_THAT_LOSES_EXCEPTIONS:
      return True
    frame = frame.f_back
  return False
