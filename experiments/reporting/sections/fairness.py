"""Jain's index three ways: `000…` table 3. J(x) = (Σx)²/(n·Σx²)."""

from experiments.reporting import commands
from experiments.reporting import comparison
from experiments.reporting import document
from experiments.reporting import documents
from experiments.reporting import methods
from experiments.reporting import quantities

_COLUMNS = (
    'dataset', 'participation', 'method', 'setting', 'document: over what, it does not say',
    'measured: participation counts', 'measured: cumulative nominal ε', 'measured: test accuracy by client', 'seeds',
    'rounds run of planned'
)


def build(study):
  rows, used = [], []
  for family in study.places(study.groups):
    for group in family.groups:
      figures = [
          group.measure(lambda run: quantities.jain(run.participation_counts), 3),
          group.measure(lambda run: quantities.jain(run.client_epsilon), 3),
          group.measure(lambda run: quantities.jain(run.client_accuracy), 3),
      ]
      if figures == [None] * 3:
        continue
      used.append(group)
      rows.append((
          group.setting.get('dataset'),
          documents.SCENARIOS.get(group.scenario, group.setting.get('participation')),
          methods.of(group.algorithm).label,
          group.label('algorithm', 'dataset', 'participation', 'stop_at_accuracy'),
          documents.JAIN.get((group.scenario, group.method)),
          *figures,
          group.seeds_text,
          group.rounds_text,
      ))
  table = document.Table('fairness', 'Jain\'s index, 1: all clients equal (`000…` table 3)', _COLUMNS, rows)
  return document.Section(
      'Fairness',
      [
          comparison.without_empty(table, 'setting', 'document: over what, it does not say'),
          'Participation counts follow from who shows up and are the same for every method of one seed and '
          'participation: no method can raise them, so the documents\' difference between methods is not of these. '
          'Test accuracy by client is that of the final model on the test set re-weighted to the client\'s own labels.',
          *comparison.unequal_rounds(used),
      ] if rows else [],
      commands.sweep(
          algorithm=['fixed_dp', 'quap'], participation=['uniform', 'beta:a=2,b=5', 'extreme_imbalance']
      ),
  )
