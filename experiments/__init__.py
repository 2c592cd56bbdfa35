"""The experiments: programs, and what they share."""

import os
import signal
import sys


def leave(signum, frame):
  """Ends the process from within imports, where an exception would come out as a traceback of somebody else's."""
  del signum, frame
  os.write(sys.stderr.fileno(), b'\nInterrupted.\n')
  os._exit(130)


# So Python's arguments begin while `python -m experiments.…` looks for the program: Ctrl-C may come before it is found.
if sys.argv[:1] == ['-m']:
  signal.signal(signal.SIGINT, leave)
