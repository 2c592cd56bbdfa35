"""Seconds of a round: `001…` section 7.3."""

import numpy as np

from experiments.reporting import commands
from experiments.reporting import comparison
from experiments.reporting import document
from experiments.reporting import documents
from experiments.reporting import methods

_COLUMNS = (
    'dataset', 'method', 'setting', 'seconds a round (median)', 'seconds of the first round', 'minutes of all rounds',
    'cores', 'GPUs', 'seeds', 'rounds run of planned'
)


def build(study):
  rows = []
  for group, label in comparison.labelled(study.groups):
    median = group.measure(lambda run: _of(run, np.median))
    if median is not None:
      machines = [run.machine for run in group.runs]
      rows.append((
          group.setting.get('dataset'), methods.of(group.algorithm).label, label, median,
          group.measure(lambda run: _of(run, lambda s: s[0])), group.measure(lambda run: _of(run, np.sum) / 60),
          _each(machines, 'cores'), _each(machines, 'gpus'), group.seeds_text, group.rounds_text
      ))
  table = document.Table('cost', 'Time of a round, training and test', _COLUMNS, rows)
  return document.Section(
      'Cost of a round',
      [
          comparison.without_empty(table, 'setting'),
          'Wall-clock time; the first round traces and compiles. Runs that shared a machine slowed each other.',
      ] if rows else [],
      commands.sweep(algorithm=['fedavg', 'quap'], seeds=documents.SEEDS[:1]),
  )


def _of(run, reduce):
  _, seconds = run.curve('seconds')
  return float(reduce(seconds)) if len(seconds) else float('nan')


def _each(machines, name):
  return ', '.join(sorted({str(machine.get(name, '?')) for machine in machines}))
