"""What a report begins with: the finding in one sentence, one figure and one table."""

import collections
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from experiments.reporting import figures
from experiments.reporting import naming
from experiments.reporting import pages
from experiments.reporting import study
from experiments.reporting.sections import privacy
from experiments.reporting.sections import spending

# The kinds of figures that a report may begin with: it has the first one that there is.
_FIGURES = ('certified_by_epsilon', 'certified', 'accuracy', 'epsilon_total', 'epsilon_exact', 'dirichlet')
# The ε that the finding is about if it was run: the one that most papers have.
_EPSILON = 3


def figure(built: Sequence[pages.Section]) -> Optional[pages.Figure]:
  """The figure that a reader looks at first; None if the sections have none of `_FIGURES`."""
  kinds: dict[str, pages.Figure] = {}
  for section in built:
    for block in section.blocks:
      if isinstance(block, pages.Figure):
        kinds.setdefault(block.name.rstrip('_0123456789'), block)
  return next((kinds[kind] for kind in _FIGURES if kind in kinds), None)


def finding(groups: Sequence[study.Group]) -> tuple[str, list[pages.Block]]:
  """The finding in one sentence, and its table with what a reader must know about it.

  It is about methods at an equal formal ε of the whole released model if there are such runs, or else about accuracy.
  """
  whole = [g for g in groups if spending.is_whole(g)]
  own = [g for g in whole if g.dataset == whole[0].dataset]
  return _at_equal_epsilon(own) if len({g.method for g in own}) > 1 else _by_accuracy(groups)


def _at_equal_epsilon(groups):
  dataset = naming.dataset(groups[0].dataset)
  where = {g: naming.participation(place) for g, place in spending.shown_with(groups).items()}
  names = dict(zip(groups, study.names(groups, 'participation', 'epsilon')))
  cells: dict[Any, list[study.Group]] = {}
  for g in groups:
    cells.setdefault((g.setting['epsilon'], where[g]), []).append(g)
  epsilon, place = min(cells, key=lambda cell: (-len(cells[cell]), cell[0] != _EPSILON, *cell))
  words = (
    f'At a formal ε of {epsilon:g} for the whole released model, on {dataset} with participation {place}, '
    f'{_comparison(cells[epsilon, place], names)}'
  )
  compared = [own for own in cells.values() if len(own) > 1]
  if len(compared) > 1:
    wins = collections.Counter(names[_ranked(own)[0]] for own in compared)
    words += f'; of all {len(compared)} combinations of ε and participation, the best mean is that of '
    words += ', '.join(f'{name} in {count}' for name, count in wins.most_common())
  title = (
    f'Test accuracy in % at a formal ε of the whole released model, {dataset}: mean ± standard deviation over '
    f'{_seeds(groups)}'
  )
  ideal = {names[g] for g in groups if privacy.ideal_note(g.runs[0])}
  rows, left = _by_epsilon(groups, names, where, ideal)
  return f'{words}.', [pages.Table('finding', title + left, rows), *([privacy.WEAKER] if ideal else [])]


def _by_epsilon(groups, names, where, ideal) -> tuple[list[dict[str, Any]], str]:
  """A row for each place and name, a column for each ε; the best first. And words if the table has the best alone."""
  kept, _ = figures.most({name: [g.accuracy() for g in groups if names[g] == name] for name in names.values()})
  epsilons, count = sorted({g.setting['epsilon'] for g in groups}), len(set(names.values()))
  found: dict[Any, dict[Any, study.Group]] = {}
  for g in groups:
    if names[g] in kept:
      found.setdefault((where[g], names[g]), {})[g.setting['epsilon']] = g
  best = lambda own: -max(_mean(g) for g in own.values())
  rows = [
    {
      'participation': place,
      'method': name + f' {privacy.IDEAL}' * (name in ideal),
      **{f'ε = {epsilon:g}': _accuracy(own.get(epsilon)) for epsilon in epsilons},
    }
    for (place, name), own in sorted(found.items(), key=lambda item: (item[0][0], best(item[1])))
  ]
  return rows, f'. The best {len(kept)} of {count}' if len(kept) < count else ''


def _by_accuracy(groups):
  family = max(study.places(groups), key=lambda family: len(family.groups))
  own = _ranked(family.groups)
  names = dict(zip(own, naming.labels([g.algorithm for g in own])))
  dataset, place = naming.dataset(family.dataset), naming.participation(own[0].setting['participation'])
  words = f'On {dataset} with participation {place}, {_comparison(own, names)}'
  if not any(map(spending.is_whole, own)):
    words += '; no released model here has a finite ε'
  elif not spending.is_whole(own[0]):
    words += f'; the released model of {names[own[0]]} has no finite ε'
  rows = [
    {'method': names[g], 'accuracy (%)': _accuracy(g), 'formal ε': privacy.formal_text(g), **g.origin} for g in own
  ]
  return f'{words}.', [pages.Table('finding', f'Test accuracy and formal ε: {dataset}, participation {place}', rows)]


def _comparison(groups: Sequence[study.Group], names: Mapping[study.Group, str]) -> str:
  """Which of the groups is the most accurate, and whether it is ahead of the best one of another method."""
  best, *others = _ranked(groups)
  other = next((g for g in others if g.method != best.method), others[0] if others else None)
  if other is None:
    return f'{names[best]} reaches {_accuracy(best)}%'
  gain = study.minus(best, other) or pages.Quantity(_mean(best) - _mean(other))
  words = f'{names[best]} is ahead of {names[other]}, with {_accuracy(best)}% against {_accuracy(other)}%'
  if gain.mean <= (gain.deviation or 0):
    words += ', a lead that the seeds do not tell from chance'
  return words if len(best.runs) > 1 else f'{words} (one run each)'


def _ranked(groups) -> list[study.Group]:
  return sorted(groups, key=lambda g: -_mean(g))


def _mean(group) -> float:
  return group.accuracy().mean


def _accuracy(group) -> Optional[pages.Quantity]:
  return None if group is None else group.accuracy()._replace(digits=1)


def _seeds(groups) -> str:
  counts = sorted({len(g.runs) for g in groups})
  return f'{" or ".join(map(str, counts))} seed{"" if counts == [1] else "s"}'
