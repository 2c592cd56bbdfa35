"""Runs that stop at a test accuracy, as the documents' reference program does: `002…` table 2 as it came about."""

from experiments.reporting import commands
from experiments.reporting import comparison
from experiments.reporting import document
from experiments.reporting import documents
from experiments.reporting import errata
from experiments.reporting import methods


def build(study):
  stopped = [group for group in study.groups if group.setting.get('stop_at_accuracy') is not None]
  entries = [
      comparison.Entry(
          (group.setting.get('dataset'), methods.of(group.algorithm).label),
          documents.ACCURACY_2025.get((group.setting.get('dataset'), group.method)), [group]
      )
      for group, _ in comparison.labelled(stopped)
  ]
  table = comparison.table(
      'early_stop', 'Runs that stop at a test accuracy (`002…` table 2)', ('dataset', 'method'), entries,
      told=('dataset',)
  )
  return document.Section(
      'The reference program\'s early stop',
      [
          table,
          'A run that stops at the first test above an accuracy reports just that accuracy: such figures tell nothing '
          'about which method is better, only after how many rounds it stopped.',
          errata.EARLY_STOP,
          errata.ALL_DENSE,
      ] if stopped else [],
      commands.sweep('experiments/presets/reference_mnist.flags', algorithm=['fedavg', 'fixed_dp', 'quap']),
  )
