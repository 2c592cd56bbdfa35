"""Processes that do not outlive the one that starts them."""

import os
import sys
from typing import List, Sequence

# Asks the kernel to kill this process when its parent goes, then becomes the command. A parent that is gone already by
# then leaves another parent's id. (A `preexec_fn` would run this between fork and exec of a program full of threads.)
_LAUNCHER = (
    'import ctypes, os, signal, sys\n'
    'ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n'
    'if os.getppid() != int(sys.argv[1]): sys.exit(1)\n'
    'os.execv(sys.argv[2], sys.argv[2:])\n'
)


def ending_with_this_one(command: Sequence[str]) -> List[str]:
  """The command line of a process that does as `command` (its program by its path), killed when this process ends.

  The kernel does it, however this process ends; it counts the end of the thread that starts the command as well.
  """
  return [sys.executable, '-I', '-S', '-c', _LAUNCHER, str(os.getpid()), *command]
