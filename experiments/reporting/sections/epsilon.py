"""ε_total of 3, 6 and 10: `001…` section 7.5, experiment 3."""

from experiments.reporting import commands
from experiments.reporting import document
from experiments.reporting import documents
from experiments.reporting import errata
from experiments.reporting import one_flag


def build(study):
  # What `certified` spends is real and stands in a section of its own.
  groups = [group for group in study.groups if group.method not in ('certified', 'fedavg')]
  blocks = one_flag.blocks(
      one_flag.families(study, 'epsilon', groups), 'epsilon', 'epsilon_total',
      'Accuracy by nominal ε_total (`001…` 7.5)', 'nominal ε_total over the planned rounds'
  )
  return document.Section(
      'Total budget', blocks + [errata.BUDGET_NOT_SPENT, errata.LAYERWISE] if blocks else [],
      commands.sweep(algorithm=['fixed_dp', 'layerwise', 'quap'], epsilon=documents.EPSILONS)
  )
