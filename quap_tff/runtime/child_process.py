"""Processes that do not outlive the one that starts them."""

from collections.abc import Sequence
import os
import sys

# Asks the kernel to kill this process when its parent ends, then becomes the command. If the parent has ended by then,
# the parent's id has changed. (A `preexec_fn` would run this between fork and exec of a program full of threads.)
_LAUNCHER = (
  'import ctypes, os, signal, sys\n'
  'ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n'
  'if os.getppid() != int(sys.argv[1]): sys.exit(1)\n'
  'os.execv(sys.argv[2], sys.argv[2:])\n'
)


def ending_with_this_one(command: Sequence[str]) -> list[str]:
  """A command line that runs `command` (its program given by path) in a process that is killed when this one ends.

  The kernel kills it, however this process ends, and also when the thread that started the command ends.
  """
  return [sys.executable, '-I', '-S', '-c', _LAUNCHER, str(os.getpid()), *command]
