"""Writes equal_epsilon.csv or coins.csv from the runs of run.sh, and prints the tables of docs/results.md.

    python docs/results/table.py equal_epsilon RUNS/mnist RUNS/cifar10 …
    python docs/results/table.py coins RUNS/secret/mnist …

A row has the mean accuracy over the seeds in percent, half of Student's 95% interval, and the seeds. Datasets that are
not among the folders keep the rows that they have.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from typing import Mapping, Optional

import pandas as pd

from experiments import report
from experiments.command import command_line
from experiments.reporting import naming
from experiments.reporting import study

FOLDER = pathlib.Path(__file__).absolute().parent
COLUMNS = ('dataset', 'participation', 'epsilon', 'method', 'accuracy', 'half_interval', 'seeds', 'share_of_ceiling')
DATASETS = {
  'digits': '8×8 digits',
  'mnist': 'MNIST',
  'mnist_writers': 'MNIST, real writers',
  'femnist': 'FEMNIST stand-in',
  'unipen': 'UNIPEN',
  'cifar10': 'CIFAR-10',
}


@dataclasses.dataclass(frozen=True)
class _Comparison:
  """How a file names its runs.

  Attributes:
    patterns: The name of each participation model.
    methods: The name of each method: a certified one by its kind of noise, TFF's by their own names.
    secret_methods: The names of those whose cohorts are secret.
    tables: Datasets and ε of each table of the page.
  """

  patterns: Mapping[str, str]
  methods: Mapping[str, str]
  secret_methods: Mapping[str, str]
  tables: tuple[tuple[tuple[str, ...], int], ...]

  def method(self, group: study.StudyGroup) -> str:
    """The name of a group's method."""
    name, values, _ = naming.parse_choice('algorithm', group.algorithm)
    if group.is_secret:
      return self.secret_methods[name]
    return self.methods[values['noise'].partition(':')[0] if name == 'certified' else name]

  def ranks(self, rows: pd.DataFrame) -> pd.DataFrame:
    """The places of rows, by which they are sorted."""
    participations, methods = self.patterns.values(), [*self.methods.values(), *self.secret_methods.values()]
    names = {'dataset': DATASETS.values(), 'participation': participations, 'method': methods}
    ranks = {key: rows[key].map(list(dict.fromkeys(known)).index) for key, known in names.items()}
    return pd.DataFrame({**ranks, 'epsilon': rows['epsilon'].astype(float)})


COMPARISONS = {
  'equal_epsilon': _Comparison(
    patterns={
      'uniform': 'uniform',
      'beta': 'Beta(2,5)',
      'extreme_imbalance': 'extreme imbalance',
      'separated': 'separated',
      'full': 'everybody',
      'bernoulli': 'uniform',
    },
    methods={
      'ar1': 'Certified, trusted server',
      'held': 'Certified, no trusted server',
      'independent': 'Certified, independent noise',
      'banded': 'Published account, banded noise',
      'blt': 'Published account, BLT noise',
      'tff_dp_ftrl': "TFF's DP-FTRL",
      'tff_dp_fedavg': "TFF's DP-FedAvg",
      'tff_dp_fedavg_adaptive': "TFF's adaptive clip",
    },
    secret_methods={'tff_dp_fedavg': 'DP-FedAvg, secret cohorts, amplified'},
    tables=(
      (('MNIST', 'FEMNIST stand-in'), 3),
      (('MNIST, real writers',), 3),
      (('UNIPEN',), 3),
      (('CIFAR-10',), 3),
      (('CIFAR-10',), 6),
    ),
  ),
  'coins': _Comparison(
    patterns={
      'bernoulli': 'coins of 0.3',
      'beta_bernoulli': 'Beta(2,5) coins',
      'extreme_imbalance': 'extreme imbalance',
    },
    methods={'ar1': 'Certified, public', 'independent': 'Certified, public'},
    secret_methods={'certified': 'Certified, secret', 'tff_dp_fedavg': "TFF's DP-FedAvg, secret"},
    tables=((('8×8 digits', 'MNIST'), 3), (('FEMNIST stand-in', 'CIFAR-10'), 3)),
  ),
}


def _row(comparison: _Comparison, group: study.StudyGroup) -> Optional[dict[str, str]]:
  found = group.accuracy()
  if found is None or found.half is None:
    print(f'Left out: {group.algorithm}, {group.setting["participation"]}: fewer than three seeds.', file=sys.stderr)
    return None
  share = group.measure('share_of_ceiling')
  row = (
    DATASETS[group.dataset.partition(':')[0]],
    comparison.patterns[str(group.setting['participation']).partition(':')[0]],
    f'{float(group.setting["epsilon"]):g}',
    comparison.method(group),
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
  """Writes the file NAME.csv, `argv[1]`, from the runs in the folders `argv[2:]`; returns the exit status."""
  if len(argv) < 3 or argv[1] not in COMPARISONS:
    print(f'Give a file, {" or ".join(COMPARISONS)}, and folders of runs: {" ".join(argv[1:])!r}.', file=sys.stderr)
    return 2
  comparison, file = COMPARISONS[argv[1]], FOLDER / f'{argv[1]}.csv'
  groups, _ = report.read_groups(argv[2:])
  found = [_row(comparison, group) for group in groups]
  new = pd.DataFrame([row for row in found if row], columns=COLUMNS)
  kept = pd.read_csv(file, dtype=str, keep_default_na=False)
  rows = pd.concat([new, kept[~kept['dataset'].isin(new['dataset'])]], ignore_index=True)
  ranks = comparison.ranks(rows)
  rows = rows.loc[ranks.sort_values(list(ranks), kind='stable').index]
  rows.to_csv(file, index=False, lineterminator='\n')
  for datasets, epsilon in comparison.tables:
    shown = rows[rows['dataset'].isin(datasets) & (rows['epsilon'] == str(epsilon))]
    if len(shown):
      _print_table(shown, epsilon)
  return 0


if __name__ == '__main__':
  command_line.run(main)
