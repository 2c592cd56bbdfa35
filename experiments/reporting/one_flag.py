"""Accuracy over the values of one flag, all others equal: a table and a figure for each family of runs."""

import collections
from typing import Any, Callable, List, Optional, Sequence

from experiments.reporting import comparison
from experiments.reporting import document
from experiments.reporting import figures
from experiments.reporting import methods
from experiments.reporting import quantities
from experiments.reporting import study as study_lib

Printed = Callable[[study_lib.Group], Optional[quantities.Quantity]]


def families(
    study: study_lib.Study, flag: str, groups: Optional[Sequence[study_lib.Group]] = None
) -> List[study_lib.Family]:
  """Families of the methods that were run with several values of `flag`."""
  found = []
  for family in study.families(('algorithm', flag), groups):
    specs = collections.Counter(group.algorithm for group in family.groups)
    kept = tuple(group for group in family.groups if specs[group.algorithm] > 1)
    if kept:
      found.append(family._replace(groups=kept))
  return found


def blocks(
    found: Sequence[study_lib.Family],
    flag: str,
    name: str,
    title: str,
    axis: str,
    position: Callable[[Any], Any] = lambda value: value,
    order: Callable[[Any], Any] = lambda value: value,
    log: bool = False,
    printed: Printed = comparison.printed_accuracy,
) -> List[document.Block]:
  """A table and a figure for each family.

  Args:
    found: Of `families`.
    flag: The flag that varies.
    name: The stem of the files.
    title: Of table and figure.
    axis: What the flag's values are, for columns and axes.
    position: A value as the axis shows it: a number, or text for one that is none.
    order: A sort key of the flag's values.
    log: Whether the axis of numbers is logarithmic.
    printed: The documents' figure for a group.
  """
  result = []
  family_axes = ('algorithm', flag)
  for number, family in enumerate(found, 1):
    stem = f'{name}_{number}' if len(found) > 1 else name
    groups = sorted(family.groups, key=lambda g: (methods.order(g.algorithm), order(g.setting[flag])))
    entries = [
        comparison.Entry((methods.of(g.algorithm).label, str(position(g.setting[flag]))), printed(g), [g])
        for g in groups
    ]
    its_title = f'{title}: {family.title}'
    result += [
        comparison.table(stem, its_title, ('method', axis), entries, told=(flag, *family.setting)),
        _figure(stem, f'{its_title}.', axis, groups, lambda g: position(g.setting[flag]), log),
        *comparison.notes(groups, *family_axes),
    ]
  return result


def _figure(name, caption, axis, groups, position, log):
  def draw(figure):
    axes = figure.subplots()
    places = [position(group) for group in groups]
    numeric = not any(isinstance(place, str) for place in places)
    ticks = list(dict.fromkeys(sorted(places) if numeric else places))
    fills = methods.fills(list(dict.fromkeys(group.algorithm for group in groups)))
    for index, (algorithm, fill) in enumerate(fills.items()):
      own = [group for group in groups if group.algorithm == algorithm]
      # Side by side where the axis has names: nothing lies between two of them.
      shift = 0.4 * (index + 0.5) / len(fills) - 0.2
      x = [position(group) if numeric else ticks.index(position(group)) + shift for group in own]
      figures.points(axes, algorithm, x, [group.accuracy() for group in own], fill, joined=numeric)
    if log:
      axes.set_xscale('log')
      axes.minorticks_off()
    if numeric:
      axes.set_xticks(ticks, [f'{tick:g}' for tick in ticks])
    else:
      axes.set_xticks(range(len(ticks)), ticks, rotation=20, ha='right')
    axes.set(xlabel=axis, ylabel='final test accuracy (%)')
    figures.legend(axes)

  return document.Figure(name, caption, draw)
