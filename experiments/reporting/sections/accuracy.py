"""Final accuracy by method and scenario: `000…` table 1, `002…` table 2."""

from experiments.reporting import commands
from experiments.reporting import comparison
from experiments.reporting import document
from experiments.reporting import documents
from experiments.reporting import errata
from experiments.reporting import methods

_AXES = ('algorithm', 'dataset', 'model', 'participation')


def build(study):
  blocks = _first(study) + _of_2025(study)
  return document.Section(
      'Final accuracy by method and scenario',
      blocks + [errata.EARLY_STOP, errata.ALL_DENSE, errata.LAYERWISE] if blocks else [],
      commands.sweep(
          algorithm=['fedavg', 'fixed_dp', 'adaptive_clip', 'pt_adp', 'quap'],
          participation=['uniform', 'beta:a=2,b=5', 'extreme_imbalance'],
          epsilon=[documents.EPSILON_FIRST, documents.EPSILON_2025],
      ),
  )


def _first(study):
  entries = [
      comparison.Entry(
          (dataset, documents.SCENARIOS[scenario], methods.of(method).label),
          printed,
          study.select(
              method, scenario, dataset=dataset, epsilon=documents.EPSILON_FIRST, calibration='documents',
              **documents.COMMON
          ),
      )
      for (dataset, scenario, method), printed in documents.ACCURACY_FIRST.items()
  ]
  title = 'Final test accuracy at ε_total = 3 (`000…` table 1)'
  return _blocks('accuracy_epsilon_3', title, ('dataset', 'participation', 'method'), entries)


def _of_2025(study):
  entries = []
  for (dataset, method), printed in documents.ACCURACY_2025.items():
    # Without noise the budget means nothing.
    budget = {} if method == 'fedavg' else {'epsilon': documents.EPSILON_2025, 'calibration': 'documents'}
    groups = study.select(method, 'heterogeneous', dataset=dataset, **budget, **documents.COMMON)
    entries.append(comparison.Entry((dataset, methods.of(method).label), printed, groups))
  title = 'Final test accuracy at ε_total = 6 under Beta(2,5) (`002…` table 2)'
  return _blocks('accuracy_epsilon_6', title, ('dataset', 'method'), entries)


def _blocks(name, title, columns, entries):
  groups = [group for entry in entries for group in entry.groups]
  if not groups:
    return []
  table = comparison.table(name, title, columns, entries, told=('dataset', 'epsilon'))
  return [table, *comparison.notes(groups, *_AXES)]
