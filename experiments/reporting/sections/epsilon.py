"""ε_total of 3, 6 and 10: `001…` section 7.5, experiment 3."""

from experiments.reporting import commands
from experiments.reporting import document
from experiments.reporting import documents
from experiments.reporting import errata
from experiments.reporting import one_flag

_CALIBRATIONS = (
    (
        'documents', 'epsilon_total', 'Accuracy by nominal ε_total (`001…` 7.5)',
        'nominal ε_total over the planned rounds',
    ),
    (
        'exact', 'epsilon_exact', 'Accuracy by ε_total, calibrated exactly',
        'formal ε_total, by exact accounting',
    ),
)


def build(study):
  # Certified runs have a section of their own.
  groups = [group for group in study.groups if group.method not in ('certified', 'fedavg')]
  blocks = []
  for calibration, name, title, axis in _CALIBRATIONS:
    own = [group for group in groups if group.setting['calibration'] == calibration]
    blocks += one_flag.blocks(one_flag.families(study, 'epsilon', own), 'epsilon', name, title, axis)
  return document.Section(
      'Total budget', blocks + [errata.BUDGET_NOT_SPENT, errata.LAYERWISE] if blocks else [],
      commands.sweep(algorithm=['fixed_dp', 'layerwise', 'quap'], epsilon=documents.EPSILONS)
  )
