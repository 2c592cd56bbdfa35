"""The whole report: the finding, the sections in order, and the settings."""

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

import pandas as pd

from experiments.reporting import figures
from experiments.reporting import naming
from experiments.reporting import pages
from experiments.reporting import privacy
from experiments.reporting import published
from experiments.reporting import quantity
from experiments.reporting import runs as runs_lib
from experiments.reporting import sections
from experiments.reporting import study
from quap_tff.common import json_types

# The kinds of figures that a report may begin with: it has the first one that there is.
_FIGURES = ('certified_by_epsilon', 'certified', 'accuracy', 'by_epsilon', 'by_partition')
# The ε that the finding is about if it was run: the one that most papers have.
_EPSILON = 3
Groups = Sequence[study.StudyGroup]


def build(groups: Groups, left_out: Sequence[runs_lib.LeftOut], command: str) -> list[pages.Section]:
  """The whole report: the finding and how to read it, the results, then the settings and what was left out."""
  built = pages.numbered([pages.Section(section.title, section.build(groups)) for section in sections.SECTIONS])
  missing = '; '.join(section.title for section in built if not section.blocks)
  is_compared = any(g.is_of_documents for g in groups)
  sentence, table = finding(groups)
  first = _first_figure(built)
  title, num_notes = 'QuAP-FL: measured figures', 1
  if is_compared:
    title, num_notes = 'QuAP-FL: measured figures and those of the documents', 2
  opening: list[pages.Block] = [f'**{sentence}**', *table, *published.NOTES['how_to_read'][:num_notes]]
  if first is not None:
    opening.insert(1, first)
  report = [pages.Section(title, opening)]
  for section in built:
    blocks = [block for block in section.blocks if block is not first]
    if blocks:
      report.append(section._replace(blocks=blocks))
  if missing:
    hint = f'{missing}. `python -m experiments.report --help` lists sweeps that fill them.'
    report.append(pages.Section('Not run', [hint]))
  if is_compared:
    report.append(pages.Section('Why measured and printed figures differ', published.NOTES['differences']))
  report.append(pages.Section('Settings', _settings(groups, command)))
  without = [{'where': item.path, 'what': item.reason} for item in left_out]
  unused: pages.Block = pages.Table('left_out', 'Left out, or used in part', without) if without else 'Nothing.'
  return [*report, pages.Section('What was left out', [unused])]


def _first_figure(built: Sequence[pages.Section]) -> Optional[pages.Plot]:
  """The figure that a reader looks at first; None if the sections have none of `_FIGURES`."""
  kinds: dict[str, pages.Plot] = {}
  for section in built:
    for block in section.blocks:
      if isinstance(block, pages.Plot):
        kinds.setdefault(block.name.rstrip('_0123456789'), block)
  return next((kinds[kind] for kind in _FIGURES if kind in kinds), None)


def _settings(groups: Groups, command: str) -> list[pages.Block]:
  """The versions, the machines, the flags that all runs share, and the values of the others."""
  folders = [folder for group in groups for folder in group.folders]
  values: dict[str, dict[str, None]] = {}
  for group in groups:
    for name, value in group.setting.items():
      values.setdefault(name, {})[str(value)] = None
  shared = ', '.join(f'`{name}={text}`' for name, texts in values.items() for text in texts if len(texts) == 1)
  flags = [{'flag': name, 'values': ', '.join(texts)} for name, texts in values.items() if len(texts) > 1]
  blocks: list[pages.Block] = [
    f'Made by `{command}` from {count(groups)}. In runs.csv, a row is a run: its flags, and what was measured.',
    f'Versions: {_either(folder.versions for folder in folders)}.',
    f'Machine: {_either(folder.machine for folder in folders)}.',
    f'All runs that read these flags have {shared}.',
  ]
  return [*blocks, pages.Table('settings', 'Flags in which runs differ', flags)] if flags else blocks


def _either(facts: Iterable[json_types.JsonView]) -> str:
  """The facts of different runs, each kind once."""
  kinds = {}
  for own in facts:
    words = ', '.join(f'{name} {value}' for name, value in own.items())
    kinds[words or '?'] = True
  return '; or '.join(kinds)


def count(groups: Groups) -> str:
  """The number of runs and settings, in words."""
  num_runs = sum(len(group.runs) for group in groups)
  return f'{_plural(num_runs, "run")} of {_plural(len(groups), "setting")}'


def _plural(number: int, word: str) -> str:
  return f'{number} {word}' if number == 1 else f'{number} {word}s'


def finding(groups: Groups) -> tuple[str, list[pages.Block]]:
  """The finding in one sentence, and its table with a note on ideal noise.

  It is about methods at an equal formal ε of the whole released model if there are such runs, or else about accuracy.
  """
  whole = [g for g in groups if g.is_whole]
  own = [g for g in whole if g.dataset == whole[0].dataset]
  return _at_equal_epsilon(own) if len({g.method for g in own}) > 1 else _by_accuracy(groups)


def _at_equal_epsilon(groups: Groups) -> tuple[str, list[pages.Block]]:
  dataset = naming.dataset(groups[0].dataset)
  where = {g: naming.participation(place) for g, place in sections.shown_with(groups).items()}
  names = dict(zip(groups, study.figure_names(groups, 'participation', 'epsilon')))
  cells: dict[Any, list[study.StudyGroup]] = {}
  for g in groups:
    cells.setdefault((g.setting['epsilon'], where[g]), []).append(g)
  epsilon, place = min(cells, key=lambda cell: (-len(cells[cell]), cell[0] != _EPSILON, *cell))
  sentence = (
    f'On {dataset} at ε = {epsilon:g}, with participation {place}, {_comparison(cells[epsilon, place], names)}.'
  )
  title = (
    f'Test accuracy in % at a formal ε of the whole released model, {dataset}, {_seeds(groups)}. "Minus best": at '
    f'ε = {epsilon:g}, seed by seed, from the best of the same participation'
  )
  is_ideal = {names[g]: bool((g.runs['noise_note'] != '').any()) for g in groups}
  rows, left = _pivot(groups, names, where, epsilon)
  for row in rows:
    row['method'] += f' {privacy.IDEAL}' if is_ideal[row['method']] else ''
  blocks: list[pages.Block] = [pages.Table('finding', title + left, rows)]
  if any(is_ideal.values()):
    blocks.append(pages.Note(privacy.WEAKER))
  compared = [own for own in cells.values() if len(own) > 1]
  if len(compared) > 1:
    wins = collections.Counter(names[_ranked(own)[0]] for own in compared)
    best = ' and '.join(f'{name} has the best mean in {num}' for name, num in wins.most_common())
    blocks.append(pages.Note(f'Of all {len(compared)} combinations of ε and participation, {best}.'))
  return sentence, blocks


def _pivot(
  groups: Groups, names: Mapping[study.StudyGroup, str], where: Mapping[study.StudyGroup, str], epsilon: float
) -> tuple[list[dict[str, Any]], str]:
  """A row for each place and name, a column for each ε; the best first. And words if the table has the best alone.

  At the one `epsilon`, the last column has the differences from the best of the place.
  """
  best: dict[str, study.StudyGroup] = {}
  for g in _ranked(g for g in groups if g.setting['epsilon'] == epsilon):
    best.setdefault(where[g], g)
  cells = []
  for g in groups:
    cells.append((where[g], names[g], g.setting['epsilon'], g.accuracy(), g.accuracy().mean))
  table = pd.DataFrame(cells, columns=['participation', 'method', 'epsilon', 'accuracy', 'mean'])
  kept = table.groupby('method')['mean'].mean().nlargest(figures.MOST_LABELS).index
  # A run that stopped at an accuracy has the name of one that did not.
  table = table[table['method'].isin(kept)].drop_duplicates(['participation', 'method', 'epsilon'])
  wide = table.pivot(index=['participation', 'method'], columns='epsilon', values='accuracy')
  order = table.groupby(['participation', 'method'])['mean'].max().reset_index()
  order = order.sort_values(['participation', 'mean'], ascending=[True, False])
  at_one = {(where[g], names[g]): g for g in groups if g.setting['epsilon'] == epsilon}
  rows = []
  for place, name in zip(order['participation'], order['method']):
    row: dict[str, pages.Cell] = {'participation': place, 'method': name}
    for one, accuracy in wide.loc[(place, name)].items():
      row[f'ε = {one:g}'] = accuracy if isinstance(accuracy, quantity.Quantity) else None
    row['minus best'] = _minus_best(at_one.get((place, name)), best.get(place))
    rows.append(row)
  left = f'. The best {len(kept)} of {len(set(names.values()))}' if len(kept) < len(set(names.values())) else ''
  return rows, left


def _minus_best(group: Optional[study.StudyGroup], best: Optional[study.StudyGroup]) -> pages.Cell:
  """The difference in points over the seeds that both have; the best itself is said to be it."""
  if group is None or best is None:
    return None
  return 'the best' if group is best else study.minus(group, best)


def _by_accuracy(groups: Groups) -> tuple[str, list[pages.Block]]:
  family = max(study.places(groups), key=lambda family: len(family.groups))
  own = _ranked(family.groups)
  names = dict(zip(own, study.figure_names(own)))
  dataset, place = naming.dataset(family.dataset), naming.participation(own[0].setting['participation'])
  words = f'On {dataset} with participation {place}, {_comparison(own, names)}'
  if not any(g.is_whole for g in own):
    words += '; no released model here has a finite ε'
  elif not own[0].is_whole:
    words += f'; the released model of {names[own[0]]} has no finite ε'
  rows = []
  for g in own:
    cells: dict[str, pages.Cell] = {'method': names[g], 'accuracy (%)': g.accuracy()}
    rows.append(cells | {'formal ε': privacy.formal_text(g.runs)} | g.origin)
  return f'{words}.', [pages.Table('finding', f'Test accuracy and formal ε: {dataset}, participation {place}', rows)]


def _comparison(groups: Groups, names: Mapping[study.StudyGroup, str]) -> str:
  """Names the most accurate group, and says whether it is ahead of the best one of another method."""
  best, *others = _ranked(groups)
  second = others[0] if others else None
  other = next((g for g in others if g.method != best.method), second)
  if other is None:
    return f'{names[best]} reaches {best.accuracy()}%'
  gain = study.minus(best, other)
  means = f'{best.accuracy().mean:.1f}% against {other.accuracy().mean:.1f}%'
  if gain is None or gain.half is None:
    words = f'{names[best]} is ahead of {names[other]}, with {means}'
    doubt = ' (one run each)' if len(best.runs) == 1 else '; the seeds are too few to tell it from chance'
    return words + doubt
  chosen = '; each the best of its kind by these seeds' if len(groups) > 2 else ''
  words = (
    f'{names[best]} is {gain._replace(digits=1)} points ahead of {names[other]} ({means}; {gain.count} seeds, paired, '
    f'95% interval{chosen})'
  )
  return words if gain.mean > gain.half else f'{words}, which the seeds do not tell from chance'


def _ranked(groups: Iterable[study.StudyGroup]) -> list[study.StudyGroup]:
  return sorted(groups, key=lambda g: -g.accuracy().mean)


def _seeds(groups: Iterable[study.StudyGroup]) -> str:
  counts = sorted({len(g.runs) for g in groups})
  word = 'seed' if counts == [1] else 'seeds'
  return f'{" or ".join(map(str, counts))} {word}'
