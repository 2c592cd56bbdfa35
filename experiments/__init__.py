"""The programs, and the parts that they share."""

import os
import signal
import sys

# OpenBLAS's threads spin for a while when they have nothing to do: for 2^26 cycles by default, and now for 2^16. NumPy
# reads this when it is loaded. A value that the user set is kept.
os.environ.setdefault('OPENBLAS_THREAD_TIMEOUT', '16')


def leave(signum: int, frame: object) -> None:
  """Ends the process from within imports, where an exception would show a traceback of another package."""
  del signum, frame
  os.write(sys.stderr.fileno(), b'\nInterrupted.\n')
  os._exit(130)


# Requests to end a program: Ctrl-C, and the signal of `kill`, a batch system or a container.
SIGNALS = (signal.SIGINT, signal.SIGTERM)

# So Python's arguments begin while `python -m experiments.…` looks for the program. A signal may come before it is
# found.
if sys.argv[:1] == ['-m']:
  for _signum in SIGNALS:
    signal.signal(_signum, leave)
