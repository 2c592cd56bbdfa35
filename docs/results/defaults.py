"""Compares the defaults of docs/usage.md, "Choosing constants", with the best of a grid on the data themselves.

    python docs/results/defaults.py DATA RUNS [NAME…]

DATA is the folder of mnist.npz, and RUNS gets tables of scikit-learn's and a file of accuracies, from which a second
call goes on. NAME is a row, by default each. The grid measures the defaults; no default follows from it. Each row has
the accuracies of seeds 1, 2 and 3: by default, of certified runs also as `experiments.tune` chooses, and at the best
point of the grid.

defaults.csv has what it found on 30 November 2026, by one call for each row (MNIST's runs were shared out to four
processes), on two cores of an AMD EPYC with AVX-512 that were shared with other work, with Python 3.11.7, TensorFlow
2.14.1, TFF 0.87.0 and scikit-learn 1.7.2.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import subprocess
import sys

import numpy as np
from sklearn import datasets

from experiments.command import flags as experiment_flags
from experiments.running import loop
from experiments.running import setup
from quap_tff import runtime

SEEDS = (1, 2, 3)
ROUNDS = '--rounds=20'
COMMON = ('--eval_every=20', '--progress=none', '--num_threads=1')
RATES, EPOCHS, NORMS = (0.3, 3), (2, 10), (0.15, 0.5)
# Rows and clients.
TABLES = {
  't12': (lambda: datasets.make_classification(3000, 12, n_informative=8, n_classes=3, random_state=1), 64),
  't10': (lambda: datasets.make_classification(3000, 10, n_informative=6, n_classes=4, random_state=2), 64),
  'cancer': (lambda: datasets.load_breast_cancer(return_X_y=True), 30),
  'wine': (lambda: datasets.load_wine(return_X_y=True), 30),
}
# The facts that `experiments.tune` needs about the data.
STATED = {
  't12': ('--shape=12', '--classes=3'),
  't10': ('--shape=10', '--classes=4'),
  'cancer': ('--shape=30', '--classes=2', '--examples_per_client=15'),
  'wine': ('--shape=13', '--classes=3', '--examples_per_client=5'),
  'digits': ('--examples_per_client=14',),
  'mnist': ('--examples_per_client=600',),
}


def write_table(name: str, path: pathlib.Path) -> None:
  """Writes a table: a fifth tests, the others standardise the columns, and row i is client i's modulo their number."""
  read, num_clients = TABLES[name]
  x, y = read()
  order = np.random.default_rng(0).permutation(len(y))
  x, y, tests = x[order], y[order], len(y) // 5
  x = ((x - x[tests:].mean(axis=0)) / x[tests:].std(axis=0)).astype(np.float32)
  client = np.arange(len(y) - tests) % num_clients
  np.savez(path, x=x[tests:], y=y[tests:], client=client, x_test=x[:tests], y_test=y[:tests])


def flags_of(name: str, data: str, runs: pathlib.Path) -> list[str]:
  """The flags of a row's data."""
  if name in TABLES:
    path = runs / f'{name}.npz'
    if not path.exists():
      write_table(name, path)
    return [f'--dataset=npz:path={path}', f'--num_clients={TABLES[name][1]}']
  return [f'--dataset={name}', f'--data_dir={data}', '--num_clients=100']


def runs_of(method: str) -> list[tuple[str, ...]]:
  """The flags of the default and of each point of the grid."""
  found: list[tuple[str, ...]] = [(f'--algorithm={method}',)]
  norms = NORMS if method == 'certified' else (None,)
  for rate, epochs, norm in itertools.product(RATES, EPOCHS, norms):
    clip = f':clip={norm}' if norm else ''
    point = (f'--algorithm={method}{clip}', f'--client_optimizer=sgd:learning_rate={rate}', f'--local_epochs={epochs}')
    found.append(point)
  return found


def tuned(name: str, data: str, runs: pathlib.Path) -> str:
  """The flag file that `experiments.tune` writes for certified runs."""
  path = runs / f'{name}.flags'
  if not path.exists():
    told = [*flags_of(name, data, runs), ROUNDS, '--algorithm=certified', *STATED[name]]
    subprocess.run([sys.executable, '-m', 'experiments.tune', *told, f'--output={path}'], check=True)
  return f'--flagfile={path}'


def accuracy(arguments: list[str]) -> float:
  """The test accuracy of a run, in percent. Its account is planned and not reported, which saves a third."""
  with experiment_flags.parsed(arguments) as values:
    experiment = setup.from_flags(values)
  with runtime.activate(experiment.runtime):
    return 100 * loop.train(experiment, experiment.build_process()).test['accuracy']


def main(argv: list[str]) -> None:
  """Makes the runs that are not there yet, and prints a row for each dataset and method."""
  data, runs, names = argv[1], pathlib.Path(argv[2]), argv[3:] or list(STATED)
  runs.mkdir(parents=True, exist_ok=True)
  for name, method in itertools.product(names, ('certified', 'fedavg')):
    file = runs / f'{name}_{method}.json'
    kept = json.loads(file.read_text()) if file.exists() else {}
    default, *grid = runs_of(method)
    compared = [default, (tuned(name, data, runs),)] if method == 'certified' else [default]
    for point, seed in itertools.product([*compared, *grid], SEEDS):
      key = key_of(point, seed)
      if key not in kept:
        kept[key] = accuracy([*flags_of(name, data, runs), ROUNDS, *COMMON, *key.split()])
        file.write_text(json.dumps(kept))
    best = max(grid, key=lambda point: sum(kept[key_of(point, seed)] for seed in SEEDS))
    cells = [', '.join(f'{kept[key_of(point, seed)]:.1f}' for seed in SEEDS) for point in (*compared, best)]
    if len(compared) == 1:
      cells.insert(1, '–')
    print(f'| {name} | {method} | {" | ".join(cells)} | `{" ".join(best)}` |', flush=True)


def key_of(point: tuple[str, ...], seed: int) -> str:
  """The flags of a run, by which its accuracy is kept."""
  return ' '.join([*point, f'--seed={seed}'])


if __name__ == '__main__':
  main(sys.argv)
