"""The report's sections on accuracy: compared with the documents' figures, by round, and over the values of a flag."""

import collections
from collections.abc import Sequence
from typing import Any, Callable, Optional, Union

import numpy as np
import pandas as pd

from experiments.reporting import figures
from experiments.reporting import naming
from experiments.reporting import pages
from experiments.reporting import published
from experiments.reporting import runs as runs_lib
from experiments.reporting import study
from experiments.reporting.sections import privacy
from quap_tff.common import json_types

ACCURACY = 'final test accuracy (%)'
_WHAT = 'accuracy (%)'


def select(
  groups: Sequence[study.StudyGroup], method: str, scenario: Optional[str] = None, **flags: json_types.Json
) -> list[study.StudyGroup]:
  """The groups of a method with these flags, in one scenario or in any."""
  return [g for g in groups if g.method == method and scenario in (None, g.scenario) and g.has(**flags)]


def against(
  groups: Sequence[study.StudyGroup],
  name: str,
  title: str,
  cells: Sequence[str],
  flags: json_types.JsonView,
  known: Sequence[str] = (),
  what: str = _WHAT,
  measure: Callable[[study.StudyGroup], pages.Cell] = study.StudyGroup.accuracy,
) -> list[pages.Block]:
  """A table of `published.table(name)` with the measured figures of the runs that have these flags.

  Args:
    groups: All groups.
    name: The name of the documents' table, and of this one.
    title: The line above the table.
    cells: Which of dataset and participation have a column.
    flags: The flags of the runs, in addition to dataset, scenario and method of a row.
    known: Flags that the title states.
    what: What is printed and measured.
    measure: The measured figure of a group.
  """
  rows = []
  for row in published.table(name):
    of_row = {'dataset': row['dataset']} if row['dataset'] else {}
    others = select(groups, row['method'], row['scenario'], **of_row, **flags)
    shown = {
      'dataset': row['dataset'] and naming.dataset(row['dataset']),
      'participation': published.SCENARIOS.get(row['scenario']),
    }
    figure = 'not reached' if row['figure'] is None else row['figure']
    rows += study.beside(what, figure, others, row['method'], {cell: shown[cell] for cell in cells}, measure)
  return study.table(name, title, rows, *known)


def final(groups: Sequence[study.StudyGroup]) -> list[pages.Block]:
  """Table 1 of the first document and table 2 of the November 2025 document."""
  title, known = 'Final test accuracy at ε_total =', ('model', 'participation', 'epsilon')
  flags = dict(calibration='documents', **published.COMMON)
  blocks: list[pages.Block] = []
  for epsilon, name, words, cells in (
    (3, 'accuracy_epsilon_3', '3', ('dataset', 'participation')),
    (6, 'accuracy_epsilon_6', '6 under Beta(2,5)', ('dataset',)),
  ):
    blocks += against(groups, name, f'{title} {words}', cells, dict(epsilon=epsilon, **flags), known)
  return _with_note(groups, blocks)


def early_stop(groups: Sequence[study.StudyGroup]) -> list[pages.Block]:
  """Runs that stop at a test accuracy, as the documents' reference program does."""
  rows = []
  for g in sorted(groups, key=lambda g: (g.dataset, g.place)):
    if g.setting['stop_at_accuracy'] is not None:
      found = published.find('accuracy_epsilon_6', dataset=g.dataset, method=g.method)
      printed = found if g.is_of_documents else None
      rows += study.beside(_WHAT, printed, [g], g.method, {'dataset': naming.dataset(g.dataset)})
  return published.notes('early_stop', study.table('early_stop', 'Runs that stop at a test accuracy', rows))


def curves(groups: Sequence[study.StudyGroup]) -> list[pages.Block]:
  """Figure 1 of the first document and figure 2 of the November 2025 document."""
  return by_place(groups, 'accuracy', 'test_accuracy', 'Test accuracy by round', 100, 'test accuracy (%)', ACCURACY)


def by_place(
  groups: Sequence[study.StudyGroup],
  name: str,
  column: str,
  title: str,
  scale: float,
  ylabel: str,
  total_label: str,
  total: Callable[[study.StudyGroup], Optional[pages.Quantity]] = study.StudyGroup.accuracy,
  log: bool = False,
) -> list[pages.Block]:
  """A figure of a column of metrics.csv, times `scale`, for each of `study.places`. `total` sums up a group.

  A group with values in a single round has no curve, and is left out.
  """

  def has_curve(g: study.StudyGroup) -> bool:
    _, values = over_seeds(g, column)
    return bool(np.count_nonzero(np.any(values > 0, axis=0)) > 1)

  shown = study.places([g for g in groups if has_curve(g)])
  blocks: list[pages.Block] = []
  for family in shown:
    named = dict(zip(naming.labels([g.algorithm for g in family.groups]), family.groups))
    kept, left = figures.most({label: [total(g)] for label, g in named.items()})
    series = [
      figures.Series(named[label].place, label, *over_seeds(named[label], column, scale), total(named[label]))
      for label in kept
    ]
    caption = family.caption(f'Lines are means over seeds. Bars and numbers give the deviation over seeds.{left}')
    drawing = figures.by_round(series, ylabel, total_label, log)
    blocks.append(pages.Plot(name, f'{title}: {naming.dataset(family.dataset)}', caption, *drawing))
  return blocks + published.NOTES['by_place'] * (len(shown) > 1)


def over_seeds(group: study.StudyGroup, column: str, scale: float = 1) -> tuple[np.ndarray, np.ndarray]:
  """(rounds, float64[seeds, rounds]) of a column, times `scale`, in rounds where all runs that log it have a value."""
  curves_ = [run.curve(column) for run in group.runs if len(run.curve(column))]
  table = pd.concat(curves_, axis=1, join='inner') if curves_ else pd.DataFrame()
  return table.index.to_numpy(), scale * table.to_numpy().T


def convergence(groups: Sequence[study.StudyGroup]) -> list[pages.Block]:
  """Table 2 of the first document."""
  title, known = 'Rounds to 90% test accuracy on MNIST', ['participation']
  blocks = against(groups, 'rounds_to_90', title, known, published.COMMON, known, 'rounds', rounds_to_90)
  return published.notes('rounds_to_90', blocks)


def rounds_to_90(group: study.StudyGroup) -> Union[pages.Quantity, str, None]:
  """Mean rounds until the test accuracy is 90%, or text if a seed did not reach it; None without a curve."""
  tests = [run.curve('test_accuracy') for run in group.runs]
  if not all(map(len, tests)):
    return None
  firsts = [next(iter(accuracies.index[accuracies >= 0.9]), None) for accuracies in tests]
  missing = firsts.count(None)
  some = '' if missing == len(firsts) else f' in {missing} of {len(firsts)} seeds'
  return f'not reached{some} in {group.runs[0].rounds} rounds' if missing else study.over(firsts, 1)


def at_scale(groups: Sequence[study.StudyGroup]) -> list[pages.Block]:
  """1,000 clients, 5% in each round: table 5 of the first document."""
  groups = [g for g in groups if g.dataset in published.DATASETS]

  def noise(g: study.StudyGroup) -> Optional[pages.Quantity]:
    return g.measure(lambda run: run.mean_of('noise_norm'))

  # The noise of the others is compared with the noise of the first Fixed-DP setting of the dataset.
  fixed = select(groups, 'fixed_dp', **published.AT_SCALE_FLAGS)
  noises = {g.dataset: noise(g) for g in reversed(fixed) if noise(g)}

  def relative_noise(g: study.StudyGroup) -> Optional[pages.Quantity]:
    own, full = noise(g), noises.get(g.dataset)
    return pages.Quantity(100 * own.mean / full.mean, digits=1) if own and full and full.mean else None

  blocks: list[pages.Block] = []
  for name, what, measure in (
    ('at_scale_accuracy', _WHAT, study.StudyGroup.accuracy),
    ('at_scale_rounds', 'rounds to 90% accuracy', rounds_to_90),
    ('at_scale_noise', "noise norm over Fixed-DP's (%)", relative_noise),
  ):
    title = f'1,000 clients, 50 a round: {what}'
    for block in against(groups, name, title, (), published.AT_SCALE_FLAGS, (), what, measure):
      named = block._replace(name='at_scale') if isinstance(block, pages.Table) else block
      blocks.append(named)
  return published.notes('at_scale', blocks)


def ablation(groups: Sequence[study.StudyGroup]) -> list[pages.Block]:
  """The eight combinations of QuAP-FL's parts: table 3 of the November 2025 document."""
  blocks: list[pages.Block] = []
  shown: list[list[study.StudyGroup]] = []
  names = ('adaptive budget', 'adaptive clip', 'layer-wise noise')
  members = [g for g in groups if g.method in published.BY_PARTS.values()]
  for own in sorted(study.families(members, 'algorithm', at_least=3), key=len, reverse=True):
    # A family that differs only in QuAP-FL's α is not shown as a second ablation.
    shown += [own] if len(set(own).difference(*shown)) > 1 else []
  for family in study.titled(shown, 'algorithm'):
    first = family.groups[0]
    is_documents = first.is_of_documents and first.scenario == 'heterogeneous' and first.has(dataset='mnist', epsilon=6)
    rows = []
    for parts in sorted(published.BY_PARTS):
      method, cells = published.BY_PARTS[parts], {}
      for name, part in zip(names, parts):
        cells[name] = 'yes' if part else 'no'
      own = [g for g in family.groups if g.method == method]
      printed = published.find('ablation', method=method) if is_documents else None
      rows += study.beside(_WHAT, printed, own, method, cells)
    rows = list(map(_with_formal, rows))
    blocks += study.table('ablation', f'Ablation: {family.title}', rows)
  return _with_note(groups, blocks)


def _with_formal(row: study.Row) -> study.Row:
  """The row with one more cell, of the formal figure."""
  formal = privacy.formal_text(row.group) if isinstance(row.group, study.StudyGroup) else None
  return row._replace(last={**row.last, 'formal ε': formal})


def over_flags(
  groups: Sequence[study.StudyGroup],
  flags: Sequence[str],
  name: str,
  title: str,
  axis: str,
  place: Callable[..., Any] = lambda value: value,
  order: Callable[[Any], Any] = lambda value: value,
  printed: Optional[Callable[[study.StudyGroup], pages.Cell]] = None,
  log: bool = False,
) -> list[pages.Block]:
  """Accuracy over the values of flags, with all other flags equal: a table and a figure for each family of runs.

  Args:
    groups: The groups. Methods that were run with only one value are not shown.
    flags: The flags that vary.
    name: The name of the tables and figures, and of the documents' table if they have one.
    title: The title of the tables and figures.
    axis: What the values are, for columns and axes.
    place: Turns the flags' values into a number on the axis, or into text for a row of the figure.
    order: The sort key of places.
    printed: A document's figure for a group. By default, the document's final accuracy for such runs.
    log: Whether an axis of numbers is logarithmic.
  """
  groups = [g for g in groups if set(flags) <= set(g.setting)]
  at = {g: place(*map(g.setting.__getitem__, flags)) for g in groups}
  blocks: list[pages.Block] = []
  shown: list[list[study.StudyGroup]] = []
  for found in study.families(groups, 'algorithm', *flags):
    counts = collections.Counter(g.algorithm for g in found)
    members = [g for g in found if counts[g.algorithm] > 1]
    members.sort(key=lambda g: (g.place, order(at[g])))
    shown += [members] if members and not any(set(members) <= set(others) for others in shown) else []
  for family in study.titled(shown, 'algorithm', *flags):
    rows = [
      row
      for g in family.groups
      for row in study.beside(_WHAT, (printed or printed_accuracy)(g), [g], g.method, {axis: str(at[g])})
    ]
    names = dict(zip(family.groups, naming.labels([g.algorithm for g in family.groups])))
    points = [figures.Point(g.place, names[g], at[g], g.accuracy()) for g in family.groups]
    totals: dict[str, list[Optional[pages.Quantity]]] = {}
    for point in points:
      totals.setdefault(point.label, []).append(point.total)
    kept, left = figures.most(totals)
    points = sorted((point for point in points if point.label in kept), key=lambda point: order(point.at))
    drawing = figures.over_values(points, axis, ACCURACY, log)
    caption = family.caption(f'Bars are deviations over seeds.{left}')
    blocks += study.table(name, f'{title}: {family.title}', rows, *flags)
    blocks.append(pages.Plot(name, f'{title}: {naming.dataset(family.dataset)}', caption, *drawing))
  return blocks


def alpha_beta(groups: Sequence[study.StudyGroup]) -> list[pages.Block]:
  """The α×β grid: figure 3 of the first document."""

  def printed(g: study.StudyGroup) -> pages.Cell:
    values = {'alpha': g.setting['alpha'], 'beta': g.setting['beta']}
    if not g.has(**{**published.COMMON, **values}):
      return None
    return published.find('alpha_beta', dataset=g.dataset, method=g.method, **values)

  return over_flags(
    [g for g in groups if g.parts[0]],
    ('alpha', 'beta'),
    'alpha_beta',
    'Accuracy by α and β',
    'α and β',
    lambda alpha, beta: f'α = {alpha:g}, β = {beta:g}',
    printed=printed,
  )


def epsilon(groups: Sequence[study.StudyGroup]) -> list[pages.Block]:
  """ε_total of 3, 6 and 10 (theory document, 7.5), nominal and by exact accounting."""
  # Without noise the budget means nothing.
  members, blocks = [g for g in _not_compared(groups) if g.method not in ('certified', 'fedavg')], []
  for calibration, name, title in (
    ('documents', 'epsilon_total', 'nominal ε_total'),
    ('exact', 'epsilon_exact', 'ε_total, exact accounting'),
  ):
    own = [g for g in members if g.has(calibration=calibration)]
    blocks += over_flags(own, ['epsilon'], name, f'Accuracy by {title}', title)
  return _with_note(groups, blocks)


def participation(groups: Sequence[study.StudyGroup]) -> list[pages.Block]:
  """Who takes part (theory document, 7.5)."""
  title, axis = 'Accuracy by participation', 'participation model'
  return over_flags(_not_compared(groups), ['participation'], 'participation', title, axis, naming.participation)


def critical_layers(groups: Sequence[study.StudyGroup]) -> list[pages.Block]:
  """One, two and all Dense layers critical (theory document, 7.5)."""

  def order(layers: str) -> tuple[int, str]:
    """Puts few layers before many, with named layers in between."""
    return {'final_dense': 0, 'all_dense': 2, 'all': 3}.get(layers, 1), layers

  # Other methods noise every layer, whatever the flag says.
  blocks = over_flags(
    [g for g in groups if g.parts[-1]],
    ['critical_layers'],
    'critical_layers',
    'Accuracy by critical layers',
    'critical (clipped and noised) layers',
    order=order,
  )
  return _with_note(groups, blocks)


def heterogeneity(groups: Sequence[study.StudyGroup]) -> list[pages.Block]:
  """How uneven the clients' labels are (November 2025 document, 5.3.3 and figure 4)."""

  def concentration(partition: str) -> float:
    _, parameters, _ = runs_lib.parse_choice('partition', partition)
    return float(parameters['alpha'])

  members = [g for g in groups if g.setting['partition'].startswith('dirichlet:')]
  blocks = over_flags(
    members,
    ['partition'],
    'dirichlet',
    'Accuracy by Dirichlet a',
    'Dirichlet a (small: few labels a client)',
    concentration,
    log=True,
  )
  rows = []
  for family in study.titled(study.families(members, 'algorithm'), 'algorithm') if blocks else ():
    accuracies = {g.method: g.accuracy() for g in family.groups}
    quap, fixed = accuracies.get('quap'), accuracies.get('fixed_dp')
    a = concentration(family.groups[0].setting['partition'])
    if quap is not None and fixed is not None:
      is_known = family.dataset in published.DATASETS
      printed = published.DIRICHLET_GAIN.get(a) if is_known else None
      rows.append(
        {
          'runs': family.title,
          'document': printed,
          'QuAP-FL minus Fixed-DP (points)': pages.Quantity(quap.mean - fixed.mean),
        }
      )
  is_printed = any(row['document'] is not None for row in rows)
  title = 'Gain of QuAP-FL over Fixed-DP' + ' (November 2025, 5.3.3)' * is_printed
  return blocks + ([pages.Table('dirichlet_gain', title, rows)] if rows else [])


def _not_compared(groups: Sequence[study.StudyGroup]) -> list[study.StudyGroup]:
  """The groups that the section on certified runs does not compare by ε and participation already."""
  are_compared = any(g.method == 'certified' for g in groups)
  return [g for g in groups if not (are_compared and privacy.is_whole(g))]


def _with_note(groups: Sequence[study.StudyGroup], blocks: Sequence[pages.Block]) -> list[pages.Block]:
  """The blocks, and the note on layer-wise noise if a group has such noise."""
  return published.notes('layerwise', blocks) if any(g.parts[-1] for g in groups) else list(blocks)


def printed_accuracy(group: study.StudyGroup) -> Optional[pages.Quantity]:
  """The final accuracy in percent that a document prints for such runs, or None. Runs without noise match any ε."""
  if not group.is_of_documents or group.parts[-1] and not group.has(critical_layers='final_dense'):
    return None
  epsilon = group.setting.get('epsilon')
  is_november = group.scenario == 'heterogeneous' and (epsilon == 6 or group.method == 'fedavg')
  if not is_november and epsilon != 3:
    return None
  name = 'accuracy_epsilon_6' if is_november else 'accuracy_epsilon_3'
  return published.find(name, dataset=group.dataset, scenario=group.scenario, method=group.method)
