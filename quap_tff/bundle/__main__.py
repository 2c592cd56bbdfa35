r"""Simulates a run from a bundle: everywhere with TensorFlow, without TFF.

    python -m quap_tff.bundle run BUNDLE --clients=clients.npz --output=run

BUNDLE is a folder of experiments.export, whose --clients writes the data. A certified run leaves its certificate, which
`python -m quap_tff.verify run` verifies. Any other run leaves its model, its ledger and a summary. Each run draws noise
of its own, unless the plan has a seed. Ctrl-C ends it after the last whole round.

Progress goes to standard error. The last line of standard output is one JSON object. Exit status: 0; 2 for wrong input.
"""

import argparse
from collections.abc import Sequence
import contextlib
import json
import os
import sys
from typing import Any

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')  # TensorFlow's messages would bury the rounds.

from quap_tff.bundle import player
from quap_tff.bundle import simulation
from quap_tff.certificates.folders import signatures
from quap_tff.common import checks
from quap_tff.common.lazy import tf


def main(argv: Sequence[str]) -> int:
  """Simulates what the arguments describe; returns the exit status."""
  parser = argparse.ArgumentParser(
    'python -m quap_tff.bundle', description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add = parser.add_argument
  add('command', choices=['run'])
  add('bundle', metavar='BUNDLE', help='folder of the bundle')
  add('--clients', required=True, help="the clients' data (.npz)")
  add('--output', required=True, help='new folder for what comes out')
  add('--rounds', type=int, help='how many of the planned rounds (default: all)')
  add('--threads', type=int, help='clients that train at the same time (default: one for each core; 1 on a GPU)')
  add('--signing_key', help='file with an Ed25519 private key (PEM) to sign a certificate with')
  arguments = parser.parse_args(argv)
  try:
    print(json.dumps(_run(arguments), allow_nan=False), flush=True)
    return 0
  except (ValueError, OSError, ImportError) as error:
    print(f'Error: {" ".join(str(error).split())}', file=sys.stderr)
  return 2


def _say(line: str) -> None:
  print(line, file=sys.stderr)


def _run(arguments: argparse.Namespace) -> dict[str, Any]:
  for name in ('rounds', 'threads'):
    if getattr(arguments, name) is not None:
      checks.integer(f'--{name}', getattr(arguments, name), at_least=1)
  if os.path.lexists(arguments.output):
    raise ValueError(f'--output: {arguments.output} already exists: give a new folder.')
  if arguments.signing_key is not None:
    signatures.read_private_key(arguments.signing_key)
  clients, test = simulation.read_clients(arguments.clients)
  bundle = player.Bundle(arguments.bundle)
  has_gpu = bool(tf.config.list_physical_devices('GPU'))
  threads = arguments.threads or (1 if has_gpu else os.cpu_count() or 1)
  if not has_gpu:
    # Clients side by side use the cores better than one client that is spread over them.
    with contextlib.suppress(RuntimeError):  # TensorFlow was in use before, and keeps its threads.
      tf.config.threading.set_intra_op_parallelism_threads(1)
      tf.config.threading.set_inter_op_parallelism_threads(threads)
  simulation.check_types(bundle, clients)
  server = simulation.simulate(bundle, clients, num_rounds=arguments.rounds, num_threads=threads, say=_say)
  evaluate = simulation.evaluation(bundle, test)
  summary = simulation.keep(bundle, server, arguments.output, evaluate, arguments.signing_key)
  said = f'{arguments.output} holds what came out.'
  if summary.get('no_certificate'):
    said += f' There is no certificate. {summary["no_certificate"]}'
  _say(said)
  return summary


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
