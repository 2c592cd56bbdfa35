r"""Measures how a round grows faster with the number of workers, one core each, and what goes over the network.

    python -m experiments.benchmarking.workers [--workers=1,2]

Each worker is a process that may use one core of its own, at an address of this machine. QuAP-FL trains the documents'
MNIST model. Bytes are those of the requests to a worker and of its answers in one round.
"""

from collections.abc import Iterator
import contextlib
import os
import socket
import statistics
import subprocess
import sys
import time

from absl import flags
import numpy as np

from experiments.command import command_line
from quap_tff.common import lazy
from quap_tff.runtime import worker_processes

cases = lazy.module('experiments.benchmarking.cases')
quap_tff = lazy.module('quap_tff')
runtime = lazy.module('quap_tff.runtime')

_FLAGS = command_line.new_flags()
_WORKERS = flags.DEFINE_list('workers', ['1', '2'], 'Numbers of workers to try, in turn.', flag_values=_FLAGS)
_CLIENTS = flags.DEFINE_integer('clients', 30, 'Clients in each round.', lower_bound=1, flag_values=_FLAGS)
_EXAMPLES = flags.DEFINE_integer('examples', 120, 'Examples of each client.', lower_bound=1, flag_values=_FLAGS)
_ROUNDS = flags.DEFINE_integer(
  'rounds', 3, 'Timed rounds, after a first one that is not timed.', lower_bound=1, flag_values=_FLAGS
)


def main(argv: list[str]) -> int:
  """Measures what the flags in `argv[1:]` say; returns the exit status."""
  command_line.refuse_arguments(command_line.parse(_FLAGS, argv, __doc__))
  cores = sorted(os.sched_getaffinity(0))
  counts = [int(count) if count.isdigit() else 0 for count in _WORKERS.value]
  if not counts or min(counts) < 1 or max(counts) > len(cores):
    raise ValueError(f'--workers must be numbers from 1 to {len(cores)}, the cores here, found {_WORKERS.value}.')
  print(f'{_CLIENTS.value} clients of {_EXAMPLES.value} examples, batch 32, 1 epoch, MNIST CNN', flush=True)
  print(f'{"workers":>8}{"s/round":>10}{"samples/s":>11}{"MB to each":>12}{"MB from each":>14}', flush=True)
  for count in counts:
    with _started(cores[:count]) as addresses:
      seconds, sent, received = _measure(addresses)
    speed = _CLIENTS.value * _EXAMPLES.value / seconds
    print(f'{count:8}{seconds:10.2f}{speed:11.0f}{sent / 1e6:12.1f}{received / 1e6:14.1f}', flush=True)
  return 0


@contextlib.contextmanager
def _started(cores: list[int]) -> Iterator[list[str]]:
  started, addresses = [], []
  try:
    for core in cores:
      with socket.socket() as s:
        s.bind(('', 0))
        port = s.getsockname()[1]
      pin = f'import os, sys; os.sched_setaffinity(0, [{core}]); os.execv(sys.executable, sys.argv[1:])'
      worker = [sys.executable, '-m', 'experiments.worker', f'--port={port}', '--insecure']
      started.append(
        subprocess.Popen(
          worker_processes.ending_with_this_one([sys.executable, '-c', pin, *worker]),
          stdin=subprocess.DEVNULL,
          stdout=subprocess.DEVNULL,
          stderr=subprocess.DEVNULL,
        )
      )
      addresses.append(f'localhost:{port}')
    yield addresses
  finally:
    for process in started:
      process.kill()
      process.wait()


def _measure(addresses):
  """Seconds of a round (median), and bytes to and from a worker in one (mean)."""
  with runtime.activate(runtime.RuntimeConfig('workers', worker_addresses=tuple(addresses))) as context:
    last_clip = quap_tff.clip_rules.QuantileEma(timing='previous', initial_clip=1.0)
    process = cases.quap_process(_CLIENTS.value, batch_size=32, clip=last_clip)
    run_round = cases.round_of(process, cases.whole(cases.random_clients(_CLIENTS.value, _EXAMPLES.value)))
    run_round()
    seconds, before = [], [worker.traffic for worker in context.workers]
    for _ in range(_ROUNDS.value):
      begin = time.perf_counter()
      run_round()
      seconds.append(time.perf_counter() - begin)
    moved = [np.subtract(worker.traffic, b) / _ROUNDS.value for worker, b in zip(context.workers, before)]
  return (statistics.median(seconds), *np.mean(moved, axis=0))


if __name__ == '__main__':
  command_line.run(main)
