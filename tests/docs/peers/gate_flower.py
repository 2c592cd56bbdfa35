"""Runs docs/gates/flower_strategy.py, as recipe.py alongside, in Flower's simulation; prints a JSON line.

Some clients drop out, and each says that it has another number of examples. All updates are clipped, but those of some
clients: one stays where it is, and the others reply with what cannot be used.
"""

import json
import os
import time

os.environ.update(FLWR_TELEMETRY_ENABLED='0', RAY_USAGE_STATS_ENABLED='0')

# pylint: disable=wrong-import-position
from flwr.app import ArrayRecord
from flwr.app import Context
from flwr.app import Message
from flwr.app import MetricRecord
from flwr.app import RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
import numpy as np
from recipe import Gated

import quap_tff

NUM_CLIENTS, NUM_ROUNDS, NUM_WEIGHTS = 10, 40, 20_000
DROPS_OUT = 'This client drops out.'
client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
  own, round_num = context.node_config['partition-id'], message.content['config']['server-round']
  if (own + round_num) % 7 == 0:
    raise RuntimeError(DROPS_OUT)
  moved = [array + (0.0 if own == 2 else 100.0) for array in message.content['arrays'].to_numpy_ndarrays()]
  if own == 3:
    moved[0][:3] = np.nan, 7e5, -1e5
  if own == 4:
    moved = _unusable(round_num, moved[0])
  metrics = MetricRecord({'num-examples': 1 + 1000 * own})
  return Message(RecordDict({'arrays': ArrayRecord(moved), 'metrics': metrics}), reply_to=message)


def _unusable(round_num, weights):
  """The arrays of a client whose reply is of another kind in each round in which it comes."""
  kinds = [[weights[:-1]], [], [weights, weights], [weights.astype(np.int64)], [weights.astype(str)]]
  if round_num % (len(kinds) + 1) == len(kinds):
    raise ValueError('This client has a label that is no class.')
  return kinds[round_num % (len(kinds) + 1)]


class Lossy(Gated):
  """The connection to some clients is lost. It counts the replies of clients 3 and 4, none of which can be used."""

  unusable = 0

  def aggregate_train(self, server_round, replies):
    there = [reply for reply in replies if not (reply.has_error() and DROPS_OUT in reply.error.reason)]
    for reply in there:  # The id of a node says nothing about its data.
      self.unusable += reply.has_error() or reply.content['metrics']['num-examples'] in (3001, 4001)
    return super().aggregate_train(server_round, there)


class Watched(FedAvg):
  """Keeps the weights in the mean."""

  weights: set[int] = set()

  def aggregate_train(self, server_round, replies):
    self.weights |= {reply.content['metrics']['num-examples'] for reply in replies}
    return super().aggregate_train(server_round, replies)


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
  while len(nodes := sorted(grid.get_node_ids())) < NUM_CLIENTS:
    time.sleep(0.1)
  gate = quap_tff.Gate(NUM_CLIENTS, 4.0, 3.0, 1e-5, num_rounds=NUM_ROUNDS)
  average = Watched(fraction_train=0.5, min_train_nodes=2, min_available_nodes=2)
  dp = DifferentialPrivacyServerSideFixedClipping(average, 4.0, 1.0, num_sampled_clients=5)
  strategy = Lossy(dp, gate, {node: client for client, node in enumerate(nodes)})
  result = strategy.start(grid, ArrayRecord([np.zeros(NUM_WEIGHTS)]), num_rounds=NUM_ROUNDS)
  print(
    json.dumps(
      {
        'rounds': gate.rounds,
        'epsilon': gate.epsilon().tolist(),
        'stddev': float(np.std(result.arrays.to_numpy_ndarrays()[0])),
        'weights': sorted(average.weights),
        'replaced': strategy.replaced,
        'unusable': strategy.unusable,
        'metrics': len(result.train_metrics_clientapp),
      }
    ),
    flush=True,
  )


if __name__ == '__main__':
  run_simulation(
    server_app,
    client_app,
    num_supernodes=NUM_CLIENTS,
    backend_config={
      'client_resources': {'num_cpus': 1, 'num_gpus': 0.0},
      'init_args': {'num_cpus': 2, 'include_dashboard': False},
    },
  )
