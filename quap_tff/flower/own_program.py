"""A function of somebody's own program, each of whose calls has a fresh process.

    with OwnFunction('my_training:train', seconds=60) as function:
      new = function(weights, client, round_num)

A process imports the module, and forks for each call. So whatever a call leaves in memory is gone with its process: a
model object, an optimizer's moments, a cache. What it writes elsewhere, to a file for example, is not.

    python -m quap_tff.flower.own_program MODULE:FUNCTION SECONDS FD      that process; FD is a socket for calls

Each call comes as a socket of its own. Arrays pass as .npz files without objects.
"""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import importlib
import io
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from typing import Any, Callable, NamedTuple

import numpy as np

from quap_tff.common import files

_READY = b'ready'
_MOST_CHARACTERS = 2000  # Of a problem with an import, which is one message on a socket.
_BLOCK_BYTES = 1 << 20
_GRACE_SECONDS = 30.0
_NUMBERS, _PROBLEM = 'numbers', 'problem'


class CallFailedError(ValueError):
  """A call gave no arrays. The message says why, and may tell of data."""


class OwnFunction:
  """A function whose calls have a fresh process each. It can be called from forks of the process that made it.

  Attributes:
    name: `module:function`.
  """

  def __init__(self, name: str, seconds: float):
    """Imports the function, in a process of its own.

    Args:
      name: `module:function`, where the module is found as from here.
      seconds: How long a call may take.

    Raises:
      ValueError: If it cannot be imported. The message says why.
    """
    self.name, self._seconds = name, seconds
    # Messages of whole calls, from several processes at once.
    self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
      self._process = subprocess.Popen(
        [sys.executable, '-m', 'quap_tff.flower.own_program', name, str(seconds), str(theirs.fileno())],
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(path or os.curdir for path in sys.path)},
        stdin=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        start_new_session=True,  # Ctrl-C is for the process that calls.
      )
    said = self._control.recv(4 * _MOST_CHARACTERS)
    if said != _READY:
      self.close()
      reason = said.decode() or 'its process ended'
      raise ValueError(f'{name} cannot be imported: {reason}. Name a function of a Python file: module:function.')

  def __enter__(self) -> OwnFunction:
    return self

  def __exit__(self, *_: object) -> None:
    self.close()

  def close(self) -> None:
    """Ends the process, and all calls."""
    with self._control, contextlib.suppress(OSError):
      self._control.send(b'\0')  # A message without a socket.
    self._process.wait()

  def __call__(self, weights: Sequence[np.ndarray], *numbers: int) -> list[np.ndarray]:
    """The arrays that the function gives for arrays and numbers.

    Raises:
      CallFailedError: If it raises an error, takes too long, ends its process, or gives anything but arrays.
      OSError: If the process that forks is gone.
    """
    own, theirs = socket.socketpair()
    with own:
      with theirs:
        socket.send_fds(self._control, [b'\0'], [theirs.fileno()])
      own.settimeout(self._seconds + _GRACE_SECONDS)
      # One that does not read what it is sent says why it ended, or takes too long.
      with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        own.sendall(_packed(weights, **{_NUMBERS: np.array(numbers, np.int64)}))
        own.shutdown(socket.SHUT_WR)
      return _result(_all_of(own))


def _packed(arrays: Sequence[Any], **others: np.ndarray) -> bytes:
  numbered = {str(index): np.asarray(array) for index, array in enumerate(arrays)}
  return files.npz({**numbered, **others})


def _unpacked(content: bytes) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
  """The arrays in order, and the others by name. Raises any error for other bytes."""
  with np.load(io.BytesIO(content), allow_pickle=False) as kept:
    named = dict(kept)
  others = {name: named.pop(name) for name in (_NUMBERS, _PROBLEM) if name in named}
  return [named[str(index)] for index in range(len(named))], others


def _result(content: bytes) -> list[np.ndarray]:
  try:
    arrays, others = _unpacked(content)
  except Exception as error:  # A process that was cut off leaves any bytes.
    raise CallFailedError(f'The answer is damaged ({type(error).__name__}: {error}).') from None
  if _PROBLEM in others:
    raise CallFailedError(str(others[_PROBLEM]))
  return arrays


def _all_of(connection: socket.socket) -> bytes:
  """All bytes until the other side closes."""
  return b''.join(iter(lambda: connection.recv(_BLOCK_BYTES), b''))


class _Call(NamedTuple):
  """A call that is under way.

  Attributes:
    pid: Of its process, which leads a group of its own.
    ends: When it has to be done, of the monotonic clock.
    connection: To the caller.
  """

  pid: int
  ends: float
  connection: socket.socket


class _Calls:
  """Forks this process for each call, and ends those that take too long."""

  def __init__(self, function: Callable[..., Any], seconds: float, control: socket.socket, maker: int):
    self._function, self._seconds, self._control = function, seconds, control
    self._running: dict[int, _Call] = {}  # By the file descriptor of the process.
    self._selector = selectors.DefaultSelector()
    self._selector.register(control, selectors.EVENT_READ)
    self._maker = maker
    self._selector.register(self._maker, selectors.EVENT_READ)

  def serve(self) -> None:
    """Answers calls until the node asks it to end, or until the node's process is gone."""
    while True:
      now = time.monotonic()
      left = [max(0.0, call.ends - now) for call in self._running.values()]
      events = self._selector.select(min(left, default=None))
      ready = {key.fd for key, _ in events}
      for handle in ready & self._running.keys():
        self._end(handle)
      if self._maker in ready or (self._control.fileno() in ready and not self._begin()):
        self._end_all()
        return
      self._end_late()

  def _begin(self) -> bool:
    """Begins the next call. False if there is to be no other one."""
    _, received, _, _ = socket.recv_fds(self._control, 1, 1)
    if not received:
      return False
    connection = socket.socket(fileno=received[0])
    pid = os.fork()
    if not pid:
      self._work(connection)
    handle = os.pidfd_open(pid)
    self._running[handle] = _Call(pid, time.monotonic() + self._seconds, connection)
    self._selector.register(handle, selectors.EVENT_READ)
    return True

  def _work(self, connection: socket.socket) -> None:
    """Does a call in a fork, which ends."""
    status = 1
    try:
      os.setsid()
      # What this process forks and keeps must not hold the ends of others' calls.
      self._selector.close()
      self._control.close()
      for handle, other in self._running.items():
        os.close(handle)
        other.connection.close()
      connection.sendall(_answer(self._function, _all_of(connection)))
      status = 0
    finally:
      for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
          stream.flush()
      os._exit(status)

  def _end(self, handle: int, problem: str = '') -> None:
    """Ends a call whose process has ended, or has to, with all that it has started."""
    call = self._running.pop(handle)
    self._selector.unregister(handle)
    os.close(handle)
    # Before it is waited for, its number is nobody else's.
    for kill in (os.killpg, os.kill):
      with contextlib.suppress(ProcessLookupError):
        kill(call.pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(call.pid, 0)[1])
    if status and not problem:
      problem = f'Its process ended with {status}.'
    with call.connection, contextlib.suppress(OSError):
      if problem:
        call.connection.sendall(_packed([], **{_PROBLEM: np.array(problem)}))

  def _end_late(self) -> None:
    now = time.monotonic()
    late = [handle for handle, call in self._running.items() if call.ends <= now]
    for handle in late:
      self._end(handle, f'It took more than {self._seconds:g} seconds, and was ended.')

  def _end_all(self) -> None:
    for handle in list(self._running):
      self._end(handle, 'The program ends.')


def _answer(function: Callable[..., Any], request: bytes) -> bytes:
  """The result of a function as bytes, or what is wrong."""
  try:
    arrays, others = _unpacked(request)
    result = function(arrays, *others[_NUMBERS].tolist())
    several = result if isinstance(result, (list, tuple)) else [result]
    return _packed(several)
  except BaseException as error:  # It is anybody's.
    return _packed([], **{_PROBLEM: np.array(_said(error))})


def _said(error: BaseException) -> str:
  return ' '.join(f'{type(error).__name__}: {error}'.split())[:_MOST_CHARACTERS]


def _imported(name: str) -> Callable[..., Any]:
  module, colon, function = name.partition(':')
  found = getattr(importlib.import_module(module), function) if colon else None
  if not callable(found):
    raise TypeError(f'{name!r} is not module:function')
  return found


def main(argv: Sequence[str]) -> int:
  """Serves the calls of another process; returns the exit status."""
  name, seconds, descriptor = argv
  # Forks of the process that made this one may outlive it, and hold the other end of the socket.
  maker = os.pidfd_open(os.getppid())
  with socket.socket(fileno=int(descriptor)) as control:
    try:
      function = _imported(name)
    except BaseException as error:  # A module may raise anything.
      control.send(_said(error).encode(errors='replace'))
      return 1
    control.send(_READY)
    _Calls(function, float(seconds), control, maker).serve()
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
