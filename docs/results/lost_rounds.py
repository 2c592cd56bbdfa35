"""What dropouts after the announcement cost a run without a trusted server, with and without a threshold.

    .venv/bin/python docs/results/lost_rounds.py FOLDER

plays the preset digits_secure_sum in FOLDER, which is new, and prints a table. Each of the announced clients drops out
of a round by a coin of the rate. A sum opens for all who were announced, or for at least a share of them that the plan
gives as its threshold, and otherwise for nobody. Guards, noise and accounts are those of a deployment.
"""

import argparse
import math
import os
import subprocess
import sys
from typing import NamedTuple, Optional

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np

import quap_tff
from quap_tff.bundle import bundle_engine
from quap_tff.bundle import simulation
from quap_tff.mechanisms.held import guard
from quap_tff.serving import server as servers

PRESET = 'experiments/presets/digits_secure_sum.flags'
THRESHOLDS = {'none': None, '2/3': 2 / 3, '1/2': 1 / 2}
RATES = (0.01, 0.05, 0.1)
SECRET = bytes(32)  # A simulation's keys hide nothing.


class Played(NamedTuple):
  """A run: the share of its rounds that were lost, its model's accuracy, and its clients' noise in clipping norms."""

  lost: float
  accuracy: float
  noise: float


def exported(folder: str, threshold: Optional[float], seed: int) -> str:
  """The bundle of a plan, with its clients in BUNDLE.npz. Noise is independent, as thresholds need it."""
  path = os.path.join(folder, f'{threshold}_{seed}')
  parameters = ['trust=secure_sum', 'noise=independent', 'clip=0.5']
  if threshold is not None:
    parameters.append(f'threshold={threshold}')
  algorithm = f'--algorithm=certified:{",".join(parameters)}'
  flags = [f'--flagfile={PRESET}', algorithm, f'--seed={seed}', f'--output={path}', f'--clients={path}.npz']
  subprocess.run([sys.executable, '-m', 'experiments.export', *flags], check=True, stdout=subprocess.DEVNULL)
  return path


class Announcements:
  """Announces rounds, and answers for the clients, each by its own guard."""

  def __init__(self, server: servers.Server):
    """Starts before the first round."""
    self._server, self._plan = server, guard.PublicPlan.of(server.plan)
    self._chain, self._came = guard.Chain(self._plan), np.zeros(0, np.int64)
    self._guards = dict[int, guard.ClientGuard]()

  def announce(self, round_num: int, planned: np.ndarray) -> np.ndarray:
    """int64[M], the planned clients whose budgets pay for the round."""
    announced = np.array(list(self._server.ask(planned)), np.int64)
    if len(announced):
      self._chain = self._chain.then(round_num, announced, self._came)
    return announced

  def answers(self, came: np.ndarray) -> dict[int, object]:
    """The answers of the clients that come, who are in the sum."""
    self._came = came
    for client in came.tolist():
      if client not in self._guards:
        self._guards[client] = guard.ClientGuard(self._plan, client, SECRET)
    return {client: self._guards[client].answer_at(self._chain) for client in came.tolist()}


def played(path: str, threshold: Optional[float], rate: float, seed: int) -> Played:
  """Plays a run with dropouts."""
  bundle, (examples, test) = quap_tff.Bundle(path), simulation.read_clients(f'{path}.npz')
  server = bundle_engine.new_server(bundle_engine.BundleEngine(bundle))
  announcements, coins, lost, planned_rounds = Announcements(server), np.random.default_rng(seed), 0, 0
  for round_num, planned in enumerate(bundle_engine.checked_cohorts(bundle), 1):
    announced = announcements.announce(round_num, planned)
    came = announced[coins.random(len(announced)) >= rate]
    least = len(announced) if threshold is None else math.ceil(threshold * len(announced))
    if len(came) < max(1, least):
      came = came[:0]
    message, total, answers = bundle.prepare(server.state), bundle.zero(), announcements.answers(came)
    for client in came.tolist():
      data = bundle_engine.client_data(bundle, client, examples[client], answers=answers)
      total = bundle.add(total, bundle.work(data, message))
    server.release(server.computed(*bundle.update(server.state, total), came, announced))
    lost, planned_rounds = lost + (not len(came)), planned_rounds + 1
  accuracy = bundle.evaluate(server.weights, *test)['accuracy']
  return Played(lost / planned_rounds, accuracy, bundle.plan.held.share_scale)


def main() -> None:
  """Prints the table."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('folder')
  parser.add_argument('--seeds', default='1,2,3')
  arguments = parser.parse_args()
  seeds = [int(seed) for seed in arguments.seeds.split(',')]
  os.mkdir(arguments.folder)
  print('| threshold | noise | dropout | rounds lost | accuracy |\n| --- | --- | --- | --- | --- |', flush=True)
  for name, threshold in THRESHOLDS.items():
    paths = {seed: exported(arguments.folder, threshold, seed) for seed in seeds}
    for rate in RATES:
      runs = [played(path, threshold, rate, seed) for seed, path in paths.items()]
      lost, accuracy, noise = np.mean(runs, axis=0)
      print(f'| {name} | {noise:.2f} | {rate:.0%} | {lost:.0%} | {accuracy:.1%} |', flush=True)


if __name__ == '__main__':
  main()
