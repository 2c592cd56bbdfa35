"""Cumulative nominal privacy of the top and bottom 20% of participants by round: `002…` figure 3."""

import numpy as np

from experiments.reporting import commands
from experiments.reporting import comparison
from experiments.reporting import document
from experiments.reporting import errata
from experiments.reporting import figures
from experiments.reporting import methods

_SHARE = 0.2
# QuAP-FL and what differs from it in the budget only.
_METHODS = ('quap', 'layerwise')
_COLUMNS = (
    'participation', 'method', 'setting', 'ε_total', 'document: top 20%', 'measured: top 20%', 'measured: bottom 20%',
    'measured: top / bottom', 'measured: largest of any client', 'seeds', 'rounds run of planned'
)


def build(study):
  members = [
      group for group in study.groups
      if group.method in _METHODS and group.setting.get('stop_at_accuracy') is None and all(
          run.ledger is not None and run.client_epsilon is not None and run.ledger.num_rounds for run in group.runs
      )
  ]
  families = study.places(members)
  rows = []
  for family in families:
    for group in family.groups:
      top, bottom = (group.measure(lambda run, end=end: by_round(run)[end][-1], 3) for end in (0, 1))
      ratio = group.measure(lambda run: by_round(run)[0][-1] / by_round(run)[1][-1] if by_round(run)[1][-1] else None)
      rows.append((
          group.setting.get('participation'), methods.of(group.algorithm).label, family.title,
          f'{group.setting["epsilon"]:g}', 'below ε_total' if group.method == 'quap' else None, top, bottom, ratio,
          group.measure(lambda run: run.client_epsilon.max(), 3), group.seeds_text, group.rounds_text
      ))
  table = document.Table(
      'cumulative_privacy', 'Cumulative nominal ε at the end, mean over the group (`002…` figure 3)', _COLUMNS, rows
  )
  return document.Section(
      'Cumulative privacy by participation',
      [
          comparison.without_empty(table, 'setting'),
          *(_figure(family, number if len(families) > 1 else None) for number, family in enumerate(families, 1)),
          'Top and bottom are the 20% of clients that took part most and least often, ties by client id. All of these '
          'figures are nominal and of the noised layers only.',
          errata.BUDGET_NOT_SPENT,
      ] if rows else [],
      commands.sweep(algorithm=list(_METHODS)),
  )


def by_round(run):
  """(top, bottom): float64[T] each, the group's mean cumulative nominal ε after each round."""
  order = np.argsort(-run.ledger.counts, kind='stable')
  size = max(1, round(_SHARE * run.ledger.num_clients))
  return run.ledger.cumulative(order[:size]), run.ledger.cumulative(order[-size:])


def _figure(family, number):
  def draw(figure):
    axes = figure.subplots()
    for index, group in enumerate(family.groups):
      style = methods.of(group.algorithm)
      for end, (words, face) in enumerate((('top 20%', style.colour), ('bottom 20%', 'white'))):
        values = np.array([by_round(run)[end] for run in group.runs])
        rounds = np.arange(1, values.shape[1] + 1)
        figures.band(axes, group.algorithm, rounds, values)
        figures.line(
            axes, group.algorithm, rounds, values.mean(0), index, f'{style.label}: {words}', markerfacecolor=face
        )
    total, planned = family.setting['epsilon'], family.setting['rounds']
    last = max(run.ledger.num_rounds for group in family.groups for run in group.runs)
    axes.plot(
        [0, last], [0, total * last / planned], color='black', linewidth=0.8,
        label=f'ε_total·t/T, ε_total = {total:g}, T = {planned}'
    )
    axes.set(xlabel='round', ylabel='cumulative nominal ε of a client', ylim=(0, None), xlim=(0, None))
    figures.legend(axes)

  caption = f'Cumulative nominal ε of the most and the least frequent participants (`002…` figure 3): {family.title}.'
  name = f'cumulative_privacy_{number}' if number else 'cumulative_privacy'
  return document.Figure(name, caption, draw, (8.5, 4.5))
