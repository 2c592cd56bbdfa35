"""Accuracy by round: `000…` figure 1, `002…` figure 2; and curves by round of any column of metrics.csv."""

import numpy as np

from experiments.reporting import commands
from experiments.reporting import document
from experiments.reporting import figures
from experiments.reporting import methods

COMMAND = commands.sweep(
    algorithm=['fedavg', 'fixed_dp', 'fixed_dp_layerwise', 'layerwise', 'quap', 'tff_dp_fedavg_adaptive']
)


def build(study):
  return document.Section('Accuracy by round', by_place(
      study, 'accuracy', 'test_accuracy', 'Test accuracy by round; band: smallest to largest over seeds', _draw_accuracy
  ), COMMAND)


def by_place(study, name, column, caption, draw_line):
  """A figure for each dataset and participation: of the setting in which most methods log the column.

  `draw_line(axes, algorithm, rounds, values, **style)` draws a method's values, float64[seeds, rounds].
  """
  shown = study.places([group for group in study.groups if is_logged(group, column)])
  blocks = []
  for number, family in enumerate(shown, 1):
    stem = f'{name}_{number}' if len(shown) > 1 else name
    blocks.append(document.Figure(stem, f'{caption}: {family.title}.', _drawing(family, column, draw_line), (8.5, 4.5)))
  if len(shown) > 1:
    blocks.append('One figure for each dataset and participation, of the setting in which most methods were run.')
  return blocks


def _drawing(family, column, draw_line):
  def draw(figure):
    axes = figure.subplots()
    fills = methods.fills([group.algorithm for group in family.groups])
    for index, group in enumerate(family.groups):
      draw_line(
          axes, group.algorithm, *over_seeds(group, column), index=index, fillstyle=fills[group.algorithm]
      )
    axes.set(xlabel='round', xlim=(0, None))
    figures.legend(axes)

  return draw


def over_seeds(group, column):
  """(rounds, float64[seeds, rounds]) of a column of metrics.csv, where every run that logs it has a value."""
  curves = [dict(zip(*run.curve(column))) for run in group.runs]
  curves = [curve for curve in curves if curve]
  rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
  return np.array(rounds), np.array([[curve[t] for t in rounds] for curve in curves])


def is_logged(group, column) -> bool:
  """Whether a run of the group has a value above 0 in the column."""
  return any(np.any(run.curve(column)[1] > 0) for run in group.runs)


def _draw_accuracy(axes, algorithm, rounds, values, **style):
  figures.band(axes, algorithm, rounds, 100 * values)
  figures.line(axes, algorithm, rounds, 100 * values.mean(0), **style)
  axes.set(ylabel='test accuracy (%)')
