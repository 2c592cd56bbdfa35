"""Rounds to 90% test accuracy: `000…` table 2."""

import numpy as np

from experiments.reporting import commands
from experiments.reporting import comparison
from experiments.reporting import document
from experiments.reporting import documents
from experiments.reporting import methods
from experiments.reporting import quantities

_TARGET = 0.9


def build(study):
  entries = []
  for (scenario, method), printed in documents.ROUNDS_TO_90.items():
    document_cell = documents.NOT_REACHED if printed is None else quantities.Quantity(printed, digits=0)
    groups = study.select(method, scenario, dataset='mnist', **documents.COMMON)
    entries.append(
        comparison.Entry((documents.SCENARIOS[scenario], methods.of(method).label), document_cell, groups)
    )
  groups = [group for entry in entries for group in entry.groups]
  table = comparison.table(
      'rounds_to_90', 'Rounds to 90% test accuracy on MNIST (`000…` table 2; its ε is 3)', ('participation', 'method'),
      entries, rounds_to_target, 'rounds', ('dataset',)
  )
  return document.Section(
      'Convergence',
      [
          table,
          'The first tested round at or above 90%. A setting of which a seed did not get there says so: a mean over '
          'the others would flatter it.',
          *comparison.notes(groups, 'algorithm', 'participation'),
      ] if groups else [],
      commands.sweep(
          algorithm=['fixed_dp', 'adaptive_clip', 'pt_adp', 'quap'],
          participation=['uniform', 'beta:a=2,b=5', 'extreme_imbalance'], epsilon=[documents.EPSILON_FIRST],
      ),
  )


def rounds_to_target(group, target=_TARGET):
  """Mean rounds until the test accuracy is `target`, or that it was not reached; None without a curve."""
  firsts = []
  for run in group.runs:
    rounds, accuracies = run.curve('test_accuracy')
    if not len(rounds):
      return None
    reached = np.flatnonzero(accuracies >= target)
    firsts.append(rounds[reached[0]] if len(reached) else None)
  missing = firsts.count(None)
  if not missing:
    return quantities.over(firsts, 1)
  some = '' if missing == len(firsts) else f' in {missing} of {len(firsts)} seeds'
  return f'{documents.NOT_REACHED}{some} in {group.runs[0].rounds} rounds'
