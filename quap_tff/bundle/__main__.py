r"""Simulates a run from a bundle: everywhere with TensorFlow, without TFF.

    python -m quap_tff.bundle run BUNDLE --clients=clients.npz --output=run

BUNDLE is a folder of experiments.export or quap_tff.export, and `experiments.export --clients` writes the data. A
certified run leaves its certificate, which `python -m quap_tff.verify run` verifies; any other run leaves its model,
its ledger and a summary. Each run draws noise of its own, unless the plan has a seed. Ctrl-C ends it after the last
whole round.

Progress goes to standard error. The last line of standard output is one JSON object. Exit status: 0; 2 for wrong input.
"""

import argparse
from collections.abc import Sequence
import contextlib
import json
import os
import sys

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')  # TensorFlow's messages would bury the rounds.

from quap_tff.bundle import player
from quap_tff.bundle import simulation
from quap_tff.certificates.folders import signatures
from quap_tff.common import checks
from quap_tff.common.lazy import tf


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    'python -m quap_tff.bundle',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  run = parser.add_subparsers(dest='command', required=True).add_parser('run', help='simulates a run')
  run.add_argument('bundle', metavar='BUNDLE', help='folder of the bundle')
  run.add_argument('--clients', required=True, help="the clients' data (.npz)")
  run.add_argument('--output', required=True, help='new folder for what comes out')
  run.add_argument('--rounds', type=int, help='how many of the planned rounds (default: all)')
  run.add_argument('--eval_every', type=int, help='test after each so many rounds (default: only at the end)')
  run.add_argument('--threads', type=int, help='clients that train at the same time (default: cores; on a GPU, 1)')
  run.add_argument('--signing_key', help='file with an Ed25519 private key (PEM) to sign a certificate with')
  return parser


def main(argv: Sequence[str]) -> int:
  """Simulates what the arguments describe; returns the exit status."""
  arguments = _parser().parse_args(argv)
  try:
    return _run(arguments)
  except (ValueError, OSError, ImportError) as error:
    print(f'Error: {" ".join(str(error).split())}', file=sys.stderr)
  return 2


def _run(arguments) -> int:
  say = lambda line: print(line, file=sys.stderr)
  for name in ('rounds', 'eval_every', 'threads'):
    if getattr(arguments, name) is not None:
      checks.integer(f'--{name}', getattr(arguments, name), at_least=1)
  if os.path.lexists(arguments.output):
    raise ValueError(f'--output: {arguments.output} already exists: give a new folder.')
  if arguments.signing_key is not None:
    signatures.read_private_key(arguments.signing_key)
  clients = simulation.Clients(arguments.clients)
  has_gpu = bool(tf.config.list_physical_devices('GPU'))
  threads = arguments.threads or (1 if has_gpu else os.cpu_count() or 1)
  if not has_gpu and threads > 1:
    # Clients side by side use the cores better than one client that is spread over them.
    with contextlib.suppress(RuntimeError):  # TensorFlow was in use before, and keeps its threads.
      tf.config.threading.set_intra_op_parallelism_threads(1)
      tf.config.threading.set_inter_op_parallelism_threads(threads)
  bundle = player.Bundle(arguments.bundle)
  if reason := simulation.no_certificate(bundle):
    say(f'There will be no certificate. {reason}')
  outcome = simulation.simulate(
    bundle,
    clients,
    clients.test,
    num_rounds=arguments.rounds,
    eval_every=arguments.eval_every,
    num_threads=threads,
    say=say,
  )
  summary, reason = simulation.keep(bundle, outcome, arguments.output, arguments.signing_key)
  say(f'{arguments.output} holds what came out.{reason and f" It has no certificate. {reason}"}')
  print(json.dumps(summary, allow_nan=False), flush=True)
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
