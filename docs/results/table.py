"""Writes equal_epsilon.csv from the runs of run.sh, and prints the tables of docs/results.md.

    python docs/results/table.py RUNS/mnist RUNS/cifar10 …

A row has the mean accuracy over the seeds in percent, half of Student's 95% interval, and the seeds. Datasets that are
not among the folders keep the rows that they have.
"""

from __future__ import annotations

import pathlib
import sys
from typing import Optional

import pandas as pd

from experiments import report
from experiments.command import command_line
from experiments.reporting import naming
from experiments.reporting import study

FILE = pathlib.Path(__file__).absolute().with_name('equal_epsilon.csv')
COLUMNS = ('dataset', 'participation', 'epsilon', 'method', 'accuracy', 'half_interval', 'seeds', 'share_of_ceiling')
DATASETS = {
  'mnist': 'MNIST',
  'mnist_writers': 'MNIST, real writers',
  'femnist': 'FEMNIST stand-in',
  'cifar10': 'CIFAR-10',
}
PATTERNS = {
  'uniform': 'uniform',
  'beta': 'Beta(2,5)',
  'extreme_imbalance': 'extreme imbalance',
  'separated': 'separated',
  'full': 'everybody',
  'bernoulli': 'uniform',
}
# A certified method by its kind of noise, and TFF's by its name.
METHODS = {
  'ar1': 'Certified, trusted server',
  'held': 'Certified, no trusted server',
  'independent': 'Certified, independent noise',
  'banded': 'Published account, banded noise',
  'blt': 'Published account, BLT noise',
  'tff_dp_ftrl': "TFF's DP-FTRL",
  'tff_dp_fedavg': "TFF's DP-FedAvg",
  'tff_dp_fedavg_adaptive': "TFF's adaptive clip",
}
SECRET = 'DP-FedAvg, secret cohorts, amplified'
# Datasets and ε of each table.
TABLES = ((('MNIST', 'FEMNIST stand-in'), 3), (('MNIST, real writers',), 3), (('CIFAR-10',), 3), (('CIFAR-10',), 6))


def _method(group: study.StudyGroup) -> str:
  if group.is_secret:
    return SECRET
  name, values, _ = naming.parse_choice('algorithm', group.algorithm)
  return METHODS[values['noise'].partition(':')[0] if name == 'certified' else name]


def _row(group: study.StudyGroup) -> Optional[dict[str, str]]:
  found = group.accuracy()
  if found is None or found.half is None:
    print(f'Left out: {group.algorithm}, {group.setting["participation"]}: fewer than three seeds.', file=sys.stderr)
    return None
  share = group.measure('share_of_ceiling')
  row = (
    DATASETS[group.dataset.partition(':')[0]],
    PATTERNS[str(group.setting['participation']).partition(':')[0]],
    f'{float(group.setting["epsilon"]):g}',
    _method(group),
    f'{found.mean:.2f}',
    f'{found.half:.2f}',
    ' '.join(map(str, group.runs['seed'])),
    f'{share.mean:.2f}' if share else '',
  )
  return dict(zip(COLUMNS, row))


def _print_table(rows: pd.DataFrame, epsilon: int) -> None:
  cells = rows.assign(cell=rows['accuracy'] + ' ± ' + rows['half_interval'])
  wide = cells.pivot(index='method', columns=['dataset', 'participation'], values='cell')
  # In the order of the rows, not of the alphabet.
  wide = wide.loc[rows['method'].unique(), list(dict.fromkeys(zip(rows['dataset'], rows['participation'])))]
  heads, before = [], None
  for dataset, participation in wide.columns:
    heads.append(participation if dataset == before else f'{dataset}, {participation}')
    before = dataset
  print(f'\n| method at ε = {epsilon} | {" | ".join(heads)} |\n| --- |{" ---: |" * len(heads)}')
  for method, values in wide.fillna('–').iterrows():
    print(f'| {method} | {" | ".join(values)} |')


def main(argv: list[str]) -> int:
  """Writes the file from the runs in the folders `argv[1:]`; returns the exit status."""
  groups, _ = report.read_groups(argv[1:])
  new = pd.DataFrame([row for row in map(_row, groups) if row], columns=COLUMNS)
  kept = pd.read_csv(FILE, dtype=str, keep_default_na=False)
  rows = pd.concat([new, kept[~kept['dataset'].isin(new['dataset'])]], ignore_index=True)
  names = list(DATASETS.values()), list(dict.fromkeys(PATTERNS.values())), [*METHODS.values(), SECRET]
  keys = ('dataset', 'participation', 'method')
  ranks = {key: rows[key].map(known.index) for key, known in zip(keys, names)}
  order = pd.DataFrame({**ranks, 'epsilon': rows['epsilon'].astype(float)})
  rows = rows.loc[order.sort_values(list(order), kind='stable').index]
  rows.to_csv(FILE, index=False, lineterminator='\n')
  for datasets, epsilon in TABLES:
    shown = rows[rows['dataset'].isin(datasets) & (rows['epsilon'] == str(epsilon))]
    if len(shown):
      _print_table(shown, epsilon)
  return 0


if __name__ == '__main__':
  command_line.run(main)
