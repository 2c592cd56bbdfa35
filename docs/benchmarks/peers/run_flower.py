"""Federated averaging in Flower's simulation engine on our benchmark's model, data and steps; prints one JSON line.

    python docs/benchmarks/peers/run_flower.py

Each client has one core and one thread of PyTorch; as many run at once as there are cores.
"""

import argparse
import importlib.metadata
import logging
import os
import sys
import time

# Neither Flower nor Ray is to report what runs here.
os.environ['FLWR_TELEMETRY_ENABLED'] = '0'
os.environ['RAY_USAGE_STATS_ENABLED'] = '0'

# Flower's processes find the modules of this folder by it.
os.environ['PYTHONPATH'] = os.pathsep.join([os.path.dirname(os.path.abspath(__file__)), *sys.path])

# pylint: disable=wrong-import-position
from flower_clients import client_app
from flwr.app import ArrayRecord
from flwr.app import ConfigRecord
from flwr.app import Context
from flwr.serverapp import Grid
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
import workload

_ARGS = workload.arguments(argparse.ArgumentParser(description=__doc__))


class _Timed(FedAvg):
  """Federated averaging that keeps the seconds of each round."""

  def __init__(self):
    super().__init__(fraction_evaluate=0.0, min_train_nodes=_ARGS.clients, min_available_nodes=_ARGS.clients)
    self.seconds = []
    self._begin = 0.0

  def configure_train(self, *args, **kwargs):
    self._begin = time.perf_counter()
    return super().configure_train(*args, **kwargs)

  def aggregate_train(self, server_round, replies):
    replies = list(replies)
    failed = [reply.error for reply in replies if reply.has_error()]
    # Flower goes on without clients that fail.
    if failed or len(replies) != _ARGS.clients:
      raise RuntimeError(f'Expected {_ARGS.clients} clients, found {len(replies)}, of which failed: {failed}')
    result = super().aggregate_train(server_round, replies)
    self.seconds.append(time.perf_counter() - self._begin)
    return result


server_app = ServerApp()


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
  """All rounds."""
  del context
  strategy = _Timed()
  strategy.start(
    grid,
    initial_arrays=ArrayRecord(workload.build(_ARGS.channels_last).state_dict()),
    num_rounds=_ARGS.rounds + 1,
    train_config=ConfigRecord(vars(_ARGS)),
  )
  if len(strategy.seconds) != _ARGS.rounds + 1:
    raise RuntimeError(f'Expected {_ARGS.rounds + 1} rounds, found {len(strategy.seconds)}.')
  workload.report('flower', importlib.metadata.version('flwr'), _ARGS, strategy.seconds)


if __name__ == '__main__':
  logging.getLogger('flwr').setLevel(logging.ERROR)
  run_simulation(
    server_app=server_app,
    client_app=client_app,
    num_supernodes=_ARGS.clients,
    backend_config={
      'client_resources': {'num_cpus': 1, 'num_gpus': 0.0},
      'init_args': {'num_cpus': len(os.sched_getaffinity(0)), 'include_dashboard': False},
    },
  )
