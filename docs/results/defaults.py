"""Compares the defaults of docs/usage.md, "Choosing constants", with the best of a grid on the data themselves.

    python docs/results/defaults.py DATA RUNS [NAME…]

DATA is the folder of mnist.npz, and RUNS gets tables of scikit-learn's and a file of accuracies, from which a second
call goes on. NAME is a row, by default each. The grid measures the defaults; no default follows from it.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import sys

import numpy as np
from sklearn import datasets

from experiments.command import flags as experiment_flags
from experiments.running import loop
from experiments.running import setup
from quap_tff import runtime

SEEDS = (1, 2, 3)
COMMON = ('--rounds=20', '--eval_every=20', '--progress=none', '--num_threads=1')
RATES, EPOCHS, NORMS = (0.3, 3), (2, 10), (0.15, 0.5)
# Rows and clients.
TABLES = {
  't12': (lambda: datasets.make_classification(3000, 12, n_informative=8, n_classes=3, random_state=1), 64),
  't10': (lambda: datasets.make_classification(3000, 10, n_informative=6, n_classes=4, random_state=2), 64),
  'cancer': (lambda: datasets.load_breast_cancer(return_X_y=True), 30),
  'wine': (lambda: datasets.load_wine(return_X_y=True), 30),
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


def accuracy(arguments: list[str]) -> float:
  """The test accuracy of a run, in percent. Its account is planned and not reported, which saves a third."""
  with experiment_flags.parsed(arguments) as values:
    experiment = setup.from_flags(values)
  with runtime.activate(experiment.runtime):
    return 100 * loop.train(experiment, experiment.build_process()).test['accuracy']


def main(argv: list[str]) -> None:
  """Makes the runs that are not there yet, and prints a row for each dataset and method."""
  data, runs, names = argv[1], pathlib.Path(argv[2]), argv[3:] or [*TABLES, 'digits', 'mnist']
  runs.mkdir(parents=True, exist_ok=True)
  for name, method in itertools.product(names, ('certified', 'fedavg')):
    file = runs / f'{name}_{method}.json'
    kept = json.loads(file.read_text()) if file.exists() else {}
    for point, seed in itertools.product(runs_of(method), SEEDS):
      key = ' '.join([*point, f'--seed={seed}'])
      if key not in kept:
        kept[key] = accuracy([*flags_of(name, data, runs), *COMMON, *key.split()])
        file.write_text(json.dumps(kept))
    rows = {point: [kept[' '.join([*point, f'--seed={seed}'])] for seed in SEEDS] for point in runs_of(method)}
    default, *grid = rows
    best = max(grid, key=lambda point: sum(rows[point]))
    values = [', '.join(f'{value:.1f}' for value in rows[point]) for point in (default, best)]
    print(f'| {name} | {method} | {values[0]} | {values[1]} | `{" ".join(best)}` |', flush=True)


if __name__ == '__main__':
  main(sys.argv)
