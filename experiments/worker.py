r"""Starts one of TFF's workers on this machine, for runs on other machines.

    python -m experiments.worker --port=8000 --credentials=DIR

A run uses it with --runtime=workers --worker_addresses=HOST:8000,… --worker_credentials=DIR. The worker ends when this
command does (Ctrl-C). docs/distributed.md shows how to make credentials and what a worker is trusted with.
"""

import os
import sys

from absl import flags

from experiments.command import command_line
from quap_tff.runtime import worker_processes

_FLAGS = command_line.new_flags()
_PORT = flags.DEFINE_integer(
  'port', 8000, 'Port to listen on, on all interfaces.', lower_bound=1, upper_bound=65535, flag_values=_FLAGS
)
_CREDENTIALS = flags.DEFINE_string(
  'credentials',
  None,
  'Folder with authority.pem, certificate.pem and key.pem. Only programs with a certificate of that authority can '
  'then use the worker.',
  flag_values=_FLAGS,
)
_INSECURE = flags.DEFINE_bool(
  'insecure',
  False,
  'Run without credentials: anyone who reaches the port can run code on this machine. For networks that only your own '
  'programs can reach.',
  flag_values=_FLAGS,
)


def main(argv: list[str]) -> int:
  """Runs a worker until it ends; returns the exit status."""
  command_line.refuse_arguments(command_line.parse(_FLAGS, argv, __doc__))
  if (_CREDENTIALS.value is None) != _INSECURE.value:
    raise ValueError(
      'Give either --credentials=DIR, so that only certified programs can use the worker, or --insecure. See '
      'docs/distributed.md.'
    )
  if _CREDENTIALS.value is not None:
    return worker_processes.run_behind_tls(_PORT.value, _CREDENTIALS.value)
  command = worker_processes.worker_command(_PORT.value)
  # TFF's worker takes a port that is taken for success: it ends with status 0.
  worker_processes.listen(_PORT.value).close()
  print(f'WARNING: anyone who reaches port {_PORT.value} can run code on this machine.', file=sys.stderr, flush=True)
  os.execv(command[0], command)


if __name__ == '__main__':
  command_line.run(main)
