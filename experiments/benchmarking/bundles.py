r"""Measures a round in process and by a bundle, in turns, so that a machine that becomes slower slows both.

    python -m experiments.benchmarking.bundles --flagfile=… --python=.venv/bin/python --python=…/python3.13

All other flags are those of experiments.train. Each --python is an interpreter with the packages of `pip install
'.[bundle]'`; each plays the bundle in a process of its own.
"""

from concurrent import futures
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from absl import flags

from experiments import export
from experiments.command import command_line
from experiments.command import flags as experiment_flags
from quap_tff.common import files
from quap_tff.common import lazy
from quap_tff.common.lazy import tf

exporting = lazy.module('quap_tff.exporting.export')
player = lazy.module('quap_tff.bundle.player')
quap_runtime = lazy.module('quap_tff.runtime')
setup = lazy.module('experiments.running.setup')
simulation = lazy.module('quap_tff.bundle.simulation')
training = lazy.module('experiments.running.training')

_FLAGS = command_line.new_flags()
_PYTHON = flags.DEFINE_multi_string('python', [sys.executable], 'Interpreters that play.', flag_values=_FLAGS)
_TIMED = flags.DEFINE_integer('timed', 5, 'Timed rounds of each, after one that is not timed.', flag_values=_FLAGS)
_THREADS = flags.DEFINE_integer('threads', os.cpu_count(), 'Clients at the same time.', flag_values=_FLAGS)
_PLAY = flags.DEFINE_string('play', None, 'For the processes that play: the folder.', flag_values=_FLAGS)


def main(argv: list[str]) -> int:
  """Measures what the flags in `argv[1:]` say; returns the exit status."""
  rest = command_line.parse(_FLAGS, argv, __doc__, known_only=True)
  if _PLAY.value is not None:
    _play(_PLAY.value)
    return 0
  run = experiment_flags.checked(experiment_flags.read([argv[0], *rest]))
  experiment = setup.from_run(run)
  cohort = experiment.schedule[0]
  examples = sum(len(experiment.federation.clients[client]) for client in cohort)
  with tempfile.TemporaryDirectory() as folder, quap_runtime.activate(experiment.runtime):
    process = experiment.build_process()
    exporting.export(experiment.plan, process, os.path.join(folder, 'bundle'), rounds=export.rounds_of(experiment))
    files.write(os.path.join(folder, 'clients.npz'), files.npz(export.examples_of(experiment.federation)))
    state = process.initialize()

    def in_process():
      values = quap_runtime.client_values(lambda client: training.client_data(experiment, client), cohort)
      begin = time.perf_counter()
      process.next(state, values)
      return time.perf_counter() - begin

    players = [_player(python, folder) for python in _PYTHON.value]
    names = ['in process', *(one.stdout.readline().strip() for one in players)]
    seconds = [[in_process(), *map(_asked, players)] for _ in range(1 + _TIMED.value)][1:]
    for one in players:
      one.communicate()
  print(f'{len(cohort)} clients, {examples:,} examples, model {experiment.model}, {_THREADS.value} clients at a time')
  for name, own in zip(names, zip(*seconds)):
    ratios = [round_seconds[0] / one for round_seconds, one in zip(seconds, own)]
    print(f'{name:<40}{statistics.median(own):8.2f} s/round{statistics.median(ratios):8.2f} of in process')
  return 0


def _player(python: str, folder: str) -> Any:
  command = [python, '-m', 'experiments.benchmarking.bundles', f'--play={folder}', f'--threads={_THREADS.value}']
  return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _asked(process: Any) -> float:
  process.stdin.write('\n')
  process.stdin.flush()
  return float(process.stdout.readline())


def _play(folder: str) -> None:
  """Plays the first round for each line of standard input, and says how long it took."""
  tf.config.threading.set_intra_op_parallelism_threads(1)
  tf.config.threading.set_inter_op_parallelism_threads(_THREADS.value)
  bundle = player.Bundle(os.path.join(folder, 'bundle'))
  clients, state = simulation.Clients(os.path.join(folder, 'clients.npz')), bundle.initialize()
  print(f'bundle, TensorFlow {tf.__version__}, Python {platform.python_version()}', flush=True)
  with futures.ThreadPoolExecutor(_THREADS.value) as pool:
    for _ in sys.stdin:
      data = (simulation.client_data(bundle, int(client), clients, (), None) for client in bundle.rounds.cohorts[0])
      begin = time.perf_counter()
      simulation.play_round(bundle, state, data, pool, 2 * _THREADS.value)
      print(time.perf_counter() - begin, flush=True)


if __name__ == '__main__':
  command_line.run(main)
