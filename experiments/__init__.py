"""The experiments: programs, and what they share."""

import os
import signal
import sys

# TensorFlow and NumPy read these when they are loaded. What the user set is kept.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')  # Keeps TensorFlow's start-up messages out.
# OpenBLAS's threads spin for a while when they have nothing to do: for 2^26 cycles by default, and now for 2^16.
os.environ.setdefault('OPENBLAS_THREAD_TIMEOUT', '16')


def leave(signum, frame):
  """Ends the process from within imports, where an exception would come out as a traceback of somebody else's."""
  del signum, frame
  os.write(sys.stderr.fileno(), b'\nInterrupted.\n')
  os._exit(130)


# What asks a program to end: Ctrl-C, and what `kill`, a batch system or a container sends.
SIGNALS = (signal.SIGINT, signal.SIGTERM)

# So Python's arguments begin while `python -m experiments.…` looks for the program. A signal may come before it is
# found.
if sys.argv[:1] == ['-m']:
  for _signum in SIGNALS:
    signal.signal(_signum, leave)
