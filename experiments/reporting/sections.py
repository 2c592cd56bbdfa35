"""The report's sections. A new one is a function from groups to blocks, and a line in `SECTIONS`."""

import collections
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional, Union

import numpy as np
import pandas as pd

from experiments.reporting import figures
from experiments.reporting import hypotheses
from experiments.reporting import naming
from experiments.reporting import pages
from experiments.reporting import privacy
from experiments.reporting import published
from experiments.reporting import quantity
from experiments.reporting import runs as runs_lib
from experiments.reporting import study
from quap_tff.common import json_types
from quap_tff.common.numbers import rounding

_AXIS = 'final test accuracy (%)'
Groups = Sequence[study.StudyGroup]


def _rounds_to_90(group: study.StudyGroup) -> Union[quantity.Quantity, str, None]:
  """Mean rounds until the test accuracy is 90%, or text if a seed did not reach it; None without a curve."""
  rounds = group.runs['rounds_to_90'].astype(float)
  missing = int(np.isinf(rounds).sum())
  if not missing:
    return quantity.over(rounds, 1)
  return 'not reached' if missing == len(rounds) else f'not reached in {missing} of {len(rounds)} seeds'


def _nominal_delta(group: study.StudyGroup) -> Optional[str]:
  found = group.measure('nominal_delta')
  return None if found is None else rounding.up(found.mean)


def _formal(group: study.StudyGroup) -> str:
  return privacy.formal_text(group.runs)


def _largest(group: study.StudyGroup) -> str:
  """The largest formal ε over seeds, with the mark of ideal noise."""
  mark = f' {privacy.IDEAL}' if (group.runs['noise_note'] != '').any() else ''
  return rounding.up(group.runs['formal_epsilon'].max()) + mark


def _trust(group: study.StudyGroup) -> str:
  trusted = '; '.join(sorted(group.runs['trust'].unique()))
  return f'{trusted}, cohorts secret' if group.is_secret else trusted


def _machine(name: str) -> Callable[[study.StudyGroup], str]:
  return lambda group: ', '.join(sorted({str(folder.machine.get(name, '?')) for folder in group.folders}))


_ACCURACY = study.Measure('accuracy (%)', 'accuracy', printed=published.accuracy)
_PRIVACY = (
  _ACCURACY,
  study.Measure('rounds to 90%', _rounds_to_90, printed=published.rounds_to_90),
  study.Measure('nominal ε, largest', 'nominal', 3, True),
  study.Measure('nominal ε, mean', 'nominal_mean', 3, True),
  study.Measure('nominal δ, largest', _nominal_delta),
  study.Measure('formal ε', _formal),
)
_CLIENTS = (
  study.Measure('nominal ε of the 20% who came most', 'nominal_most', 3, True),
  study.Measure('nominal ε of the 20% who came least', 'nominal_least', 3, True),
  study.Measure("Jain's index of participation", 'jain_rounds', 3),
  study.Measure('of nominal ε', 'jain_nominal', 3),
  study.Measure('of accuracy by client', 'jain_accuracy', 3),
  study.Measure('of an unnamed quantity in the documents', published.fairness),
)
# What rare, middle and frequent clients did and spent: headings, columns of runs.csv for each third, decimals.
_DID = (('rounds', 'rounds', 1), ('weight', 'weight', 1), ('examples', 'examples', 0))
_SPENT = (('nominal ε', 'nominal', 2), ('formal ε', 'formal', 2), ('accuracy (%)', 'accuracy', 1))
_COST = (
  study.Measure('noise / signal', 'noise_to_signal'),
  study.Measure('noise norm', 'noise_norm', 4),
  study.Measure('kB down', 'down_kilobytes', 1),
  study.Measure('kB up', 'up_kilobytes', 1),
  study.Measure('bytes above FedAvg', 'bytes_above_fedavg', 0, printed=published.extra_bytes),
  study.Measure('seconds a round (median)', 'seconds'),
  study.Measure('minutes of all rounds', 'minutes'),
  study.Measure('cores', _machine('cores')),
  study.Measure('GPUs', _machine('gpus')),
)


def accuracy_and_privacy(groups: Groups) -> list[pages.Block]:
  """Every setting that was run, with its accuracy and the privacy that it spends, alongside the documents' figures."""
  blocks = study.by_dataset('privacy_and_accuracy', 'All settings', groups, _PRIVACY)
  blocks = published.notes('privacy_and_accuracy', blocks)
  if any(g.setting['stop_at_accuracy'] is not None for g in groups):
    blocks = published.notes('early_stop', blocks)
  if any(g.parts[-1] for g in groups):
    blocks = published.notes('layerwise', blocks)
  return blocks + list(privacy.footnotes(study.runs_table(groups)))


def clients(groups: Groups) -> list[pages.Block]:
  """How evenly clients take part and spend; and rare, middle and frequent clients, if they came unevenly."""
  counted = [g for g in groups if g.measure('jain_rounds') is not None]
  blocks = study.by_dataset('clients', "Equality of clients, where 1 is Jain's index of equals", counted, _CLIENTS)
  blocks = published.notes('clients', blocks)
  for name, words, columns in (('did', 'did', _DID), ('spent', 'spent, and their accuracy', _SPENT)):
    measures = [
      study.Measure(f'{heading}: {third}', f'{column}_{third}', digits, column in ('nominal', 'formal'))
      for heading, column, digits in columns
      for third in runs_lib.THIRDS
    ]
    shown = _with_any(counted, measures)
    title = f'What rare, middle and frequent clients {words}: means over each third of the clients'
    blocks += study.by_dataset(f'thirds_{name}', title, shown, measures)
  return blocks


def cost(groups: Groups) -> list[pages.Block]:
  """Noise, bytes and seconds (theory document, 7.3)."""
  shown = _with_any(groups, _COST[:-2])  # The last two are of the machine.
  return published.notes('cost', study.by_dataset('cost', 'Noise, bytes and time of a round', shown, _COST))


def _with_any(groups: Groups, measures: Sequence[study.Measure]) -> list[study.StudyGroup]:
  """The groups that have a figure of one of these kinds."""
  shown = []
  for g in groups:
    if any(measure.of(g) is not None for measure in measures):
      shown.append(g)
  return shown


def certified(groups: Groups) -> list[pages.Block]:
  """Certified runs and other runs whose ε holds for the released model, to compare accuracy at equal ε."""
  members = [g for g in groups if g.is_whole]
  if not any(g.method == 'certified' for g in members):
    return []
  where = shown_with(members)
  cells: dict[Any, list[study.StudyGroup]] = {}
  for g in sorted(members, key=study.place_of):
    cells.setdefault((g.dataset, where[g], g.setting['epsilon']), []).append(g)
  blocks: list[pages.Block] = []
  for (dataset, place, epsilon), own in sorted(cells.items(), key=lambda cell: cell[0]):
    reference = max(own, key=_fitness_as_reference)
    title = f'Accuracy at a formal ε of {epsilon} of the released model'
    title += f': {naming.dataset(dataset)}, participation {naming.participation(place)}'
    blocks += study.table('certified', title, own, _at_equal_epsilon(reference), 'epsilon', 'participation')
  blocks = published.notes('certified', blocks)
  return blocks + _certified_figures(members, where) + list(privacy.footnotes(study.runs_table(members)))


def _fitness_as_reference(g: study.StudyGroup) -> tuple[bool, bool, int, int]:
  """Others are compared with a certified group, with the online weights and most seeds if possible."""
  return g.method == 'certified', 'weights=online' in g.algorithm, len(g.runs), -g.place


def _at_equal_epsilon(reference: study.StudyGroup) -> list[study.Measure]:
  """The columns of a table that compares groups with a reference."""

  def difference(g: study.StudyGroup) -> pages.Cell:
    return 'the reference' if g is reference else study.minus(g, reference)

  return [
    study.Measure('ε, largest of any client', _largest),
    study.Measure('total δ', lambda g: rounding.up(g.setting['delta'])),
    study.Measure('accuracy (%)', 'accuracy'),
    study.Measure('minus reference', difference),
    study.Measure('share of ceiling', 'share_of_ceiling'),
    study.Measure('trust', _trust),
  ]


def shown_with(groups: Groups) -> dict[study.StudyGroup, str]:
  """The participation model under which each group is shown.

  Secret cohorts are drawn by coins. At the rate of uniform cohorts, these runs are shown with those.
  """
  coins = set()
  for g in groups:
    if g.setting['participation'] == 'uniform' and g.setting['cohort_size'] != 'default':
      coins.add((g.dataset, f'bernoulli:q={g.setting["cohort_size"] / g.setting["num_clients"]:g}'))
  where = {}
  for g in groups:
    place = g.setting['participation']
    where[g] = 'uniform' if g.is_secret and (g.dataset, place) in coins else place
  return where


def _certified_figures(groups: Groups, where: dict[study.StudyGroup, str]) -> list[pages.Block]:
  """Figures of each dataset: accuracy at a requested ε, a panel for each participation; where ε varies, over ε.

  A method has one look and one name in all of them.
  """
  blocks: list[pages.Block] = []
  for dataset in dict.fromkeys(g.dataset for g in groups):
    own = [g for g in groups if g.dataset == dataset]
    points, left = _points(own, study.figure_names(own, 'participation', 'epsilon'))
    points = {g: p._replace(panel=naming.participation(where[g])) for g, p in points.items()}
    in_print, how = naming.dataset(dataset), f'A panel for each participation model. {figures.BARS}'
    for epsilon in dict.fromkeys(g.setting['epsilon'] for g in points):
      shown = [point for g, point in points.items() if g.setting['epsilon'] == epsilon]
      if len({point.label for point in shown}) > 1:
        title = f'Accuracy at a requested ε of {epsilon} of the released model: {in_print}'
        blocks.append(pages.Plot('certified', title, how + left, *figures.rows(shown, _AXIS)))
    shown = _in_lines([p._replace(at=g.runs['formal_epsilon'].mean()) for g, p in points.items()])
    if shown:
      drawing = figures.lines(shown, 'formal ε of the released model', _AXIS)
      title, caption = f'Accuracy by formal ε: {in_print}', f'{how} {figures.SCALE}{left}'
      blocks.append(pages.Plot('certified_by_epsilon', title, caption, *drawing))
  return blocks


def _points(groups: Groups, names: Sequence[str]) -> tuple[dict[study.StudyGroup, figures.Point], str]:
  """The groups' accuracies under these names, those with the best means, and a sentence if these are not all."""
  frame = pd.DataFrame({'name': names, 'mean': [g.accuracy().mean for g in groups]})
  means = frame.groupby('name', sort=False)['mean'].mean()
  kept, left = set(means.nlargest(figures.MOST_LABELS).index), ''
  if len(kept) < len(means):
    left = f' Of {len(means)} lines, the figure has the {len(kept)} with the largest means. The tables have all.'
  named = [(g, name) for g, name in zip(groups, names) if name in kept]
  return {g: figures.Point(g.place, name, g.accuracy()) for g, name in named}, left


def _in_lines(points: Sequence[figures.Point]) -> list[figures.Point]:
  """The points of labels that have a line, which joins runs that differ in ε alone; all points of other panels."""
  counts = collections.Counter((point.panel, point.label) for point in points)
  with_line = {key for key, count in counts.items() if count > 1}
  labels, panels = {label for _, label in with_line}, {panel for panel, _ in with_line}
  reached = {point.panel for point in points if point.label in labels}
  return [p for p in points if p.label in labels or (p.panel in reached and p.panel not in panels)]


def by_round(groups: Groups) -> list[pages.Block]:
  """Accuracy by round, for each of `study.places`. A group that was tested in a single round has no curve."""
  found = {g: over_seeds(g, 'test_accuracy') for g in groups}
  blocks: list[pages.Block] = []
  for family in study.places([g for g, (rounds, _) in found.items() if len(rounds) > 1]):
    points, left = _points(family.groups, study.figure_names(family.groups))
    series = []
    for g, point in points.items():
      rounds, accuracies = found[g]
      series.append(figures.Series(g.place, point.label, rounds, 100 * accuracies, point.total))
    caption = f'Lines are means over seeds, and the legend has the means at the end. {quantity.MEANING}.{left}'
    title, drawing = f'Test accuracy by round: {family.title}', figures.curves(series, 'test accuracy (%)')
    blocks.append(pages.Plot('accuracy', title, caption, *drawing))
  return blocks + published.NOTES['by_place'] * (len(blocks) > 1)


def over_seeds(group: study.StudyGroup, column: str) -> tuple[np.ndarray, np.ndarray]:
  """(rounds, float64[seeds, rounds]) of a column of metrics.csv, in rounds where all runs that log it have a value."""
  curves = [run.curve(column) for run in group.folders]
  logged = [curve for curve in curves if len(curve)]
  table = pd.concat(logged, axis=1, join='inner') if logged else pd.DataFrame()
  return table.index.to_numpy(), table.to_numpy().T


def by_flag(groups: Groups) -> list[pages.Block]:
  """Accuracy over the values of each flag in which runs differ, with all other flags equal."""
  blocks: list[pages.Block] = []
  for flag in study.differing([g.setting for g in groups]):
    own = [g for g in groups if flag in g.setting]
    if flag in ('epsilon', 'participation') and any(g.method == 'certified' for g in groups):
      own = [g for g in own if not g.is_whole]  # The section on certified runs compares these.
    blocks += _over(flag, own)
  return blocks


def _over(flag: str, groups: Groups) -> list[pages.Block]:
  """A table and a figure for each family of runs that differ in this flag."""

  def order(g: study.StudyGroup) -> tuple[bool, Any]:
    value = g.setting[flag]
    return isinstance(value, str), value  # Numbers come before texts.

  shown: list[Groups] = []
  for family in study.families(groups, 'algorithm', flag):
    counts = collections.Counter(g.algorithm for g in family.groups)
    members = [g for g in family.groups if counts[g.algorithm] > 1]
    members.sort(key=lambda g: (g.place, order(g)))
    is_shown = any(set(members) <= set(others) for others in shown)
    if members and not is_shown:
      shown.append(members)
  blocks: list[pages.Block] = []
  words = flag.replace('_', ' ')
  for family in study.titled(shown, 'algorithm', flag):
    own = sorted(family.groups, key=order)
    value = study.Measure(words, lambda g: naming.spoken(flag, g.setting[flag]))
    title = f'Accuracy by {words}: {family.title}'
    blocks += study.table(f'by_{flag}', title, family.groups, (value, _ACCURACY), flag)
    labels = naming.distinguished([g.algorithm for g in own])
    points, left = _points(own, [label for label, _ in labels])
    if all(_is_positive(g.setting[flag]) for g in own):
      drawing = figures.lines([p._replace(at=g.setting[flag]) for g, p in points.items()], words, _AXIS)
      left = f' {figures.SCALE}{left}'
    else:
      spoken = [p._replace(panel=naming.spoken(flag, g.setting[flag])) for g, p in points.items()]
      drawing = figures.rows(spoken, _AXIS)
    blocks.append(pages.Plot(f'by_{flag}', title, f'{figures.BARS}{left}', *drawing))
  return blocks


def _is_positive(value: json_types.Json) -> bool:
  return isinstance(value, (int, float)) and value > 0


class ReportSection(NamedTuple):
  """Attributes:
  title: The heading.
  build: Makes its blocks. There are none if there are no runs for them.
  grid: The axes of a sweep whose runs fill the section, without the documents' seeds.
  preset: The flag file of that sweep.
  """

  title: str
  build: Callable[[Groups], Sequence[pages.Block]]
  grid: str
  preset: str = 'mnist_2025'

  @property
  def command(self) -> str:
    """The sweep whose runs fill the section."""
    seeds = 'seed=' + '|'.join(map(str, published.SEEDS))
    axes = ' '.join(f"--vary='{axis}'" for axis in (*self.grid.split(), seeds))
    preset = f'experiments/presets/{self.preset}.flags'
    return f'python -m experiments.sweep --output_dir=runs/sweep {axes} -- --flagfile={preset}'


_SCENARIOS = 'participation=uniform|beta:a=2,b=5|extreme_imbalance'
_EQUAL_EPSILON = 'algorithm=certified|certified:weights=uniform|tff_dp_fedavg|tff_dp_fedavg_adaptive|tff_dp_ftrl'
_ALL_PARTS = 'algorithm=' + '|'.join(published.PARTS)

SECTIONS = (
  ReportSection('Accuracy and privacy', accuracy_and_privacy, f'{_ALL_PARTS} {_SCENARIOS} epsilon=3|6'),
  ReportSection(
    'Certified: equal formal ε', certified, f'{_EQUAL_EPSILON} {_SCENARIOS} epsilon=1|3|6|10', 'mnist_certified'
  ),
  ReportSection('Hypotheses H1 to H3', hypotheses.build, _ALL_PARTS),
  ReportSection('Accuracy by round', by_round, 'algorithm=fedavg|fixed_dp|layerwise|quap'),
  ReportSection('Accuracy by one flag', by_flag, 'algorithm=fixed_dp|quap alpha=0.3|0.5|0.7'),
  ReportSection('Clients', clients, f'algorithm=fixed_dp|quap {_SCENARIOS}'),
  ReportSection('Noise, bytes and time', cost, 'algorithm=fedavg|fixed_dp|quap'),
)
