"""The whole report: its opening, and its sections in order.

A new section is a function from groups to blocks, and a line in `SECTIONS`.
"""

import collections
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional, Union

from experiments.reporting import figures
from experiments.reporting import naming
from experiments.reporting import pages
from experiments.reporting import published
from experiments.reporting import runs as runs_lib
from experiments.reporting import study
from experiments.reporting.sections import accuracy
from experiments.reporting.sections import hypotheses
from experiments.reporting.sections import privacy
from experiments.reporting.sections import spending
from quap_tff.common import json_types

# The kinds of figures that a report may begin with: it has the first one that there is.
_FIGURES = ('certified_by_epsilon', 'certified', 'accuracy', 'epsilon_total', 'epsilon_exact', 'dirichlet')
# The ε that the finding is about if it was run: the one that most papers have.
_EPSILON = 3

_SCENARIOS = 'participation=uniform|beta:a=2,b=5|extreme_imbalance'


class ReportSection(NamedTuple):
  """Attributes:
  title: The heading.
  build: Makes its blocks. There are none if there are no runs for them.
  grid: The axes of the sweep whose runs fill the section, without the documents' seeds.
  preset: The flag file of that sweep.
  """

  title: str
  build: Callable[[Sequence[study.StudyGroup]], Sequence[pages.Block]]
  grid: str
  preset: str = 'mnist_2025'

  @property
  def command(self) -> str:
    """The sweep whose runs fill the section."""
    seeds = 'seed=' + '|'.join(map(str, published.SEEDS))
    axes = ' '.join(f"--vary='{axis}'" for axis in (*self.grid.split(), seeds))
    preset = f'experiments/presets/{self.preset}.flags'
    return f'python -m experiments.sweep --output_dir=runs/sweep {axes} -- --flagfile={preset}'


_OF_PARTS = '|'.join(published.BY_PARTS.values())
_EQUAL_EPSILON = 'algorithm=certified|certified:weights=uniform|tff_dp_fedavg|tff_dp_fedavg_adaptive|tff_dp_ftrl'

SECTIONS = (
  ReportSection('Accuracy and privacy', spending.with_accuracy, 'algorithm=fedavg|fixed_dp|quap'),
  ReportSection(
    'Certified: equal formal ε',
    spending.certified,
    f'{_EQUAL_EPSILON} {_SCENARIOS} epsilon=1|3|6|10',
    'mnist_certified',
  ),
  ReportSection(
    'Final accuracy by method and scenario',
    accuracy.final,
    f'algorithm=fedavg|fixed_dp|adaptive_clip|pt_adp|quap {_SCENARIOS} epsilon=3|6',
  ),
  ReportSection(
    "The reference program's early stop", accuracy.early_stop, 'algorithm=fedavg|fixed_dp|quap', 'reference_mnist'
  ),
  ReportSection('Hypotheses H1 to H3', hypotheses.build, 'algorithm=fixed_dp|layerwise|adaptive_budget_clip|quap'),
  ReportSection(
    'Accuracy by round', accuracy.curves, 'algorithm=fedavg|fixed_dp|layerwise|quap|tff_dp_fedavg_adaptive'
  ),
  ReportSection(
    'Convergence', accuracy.convergence, f'algorithm=fixed_dp|adaptive_clip|pt_adp|quap {_SCENARIOS} epsilon=3'
  ),
  ReportSection('Ablation', accuracy.ablation, f'algorithm={_OF_PARTS}'),
  ReportSection('Budget by participation', spending.budgets, 'algorithm=quap epsilon=3'),
  ReportSection('Cumulative privacy by participation', spending.cumulative, 'algorithm=quap|layerwise'),
  ReportSection('Fairness', spending.fairness, f'algorithm=fixed_dp|quap {_SCENARIOS}'),
  ReportSection('Noise to signal', spending.noise, 'algorithm=fixed_dp|layerwise|quap'),
  ReportSection('Sensitivity to α and β', accuracy.alpha_beta, 'alpha=0.3|0.5|0.7 beta=1|2|3', 'cifar10_2025'),
  ReportSection(
    'Uneven labels (Dirichlet)',
    accuracy.heterogeneity,
    'algorithm=fixed_dp|quap partition=dirichlet:alpha=0.1|dirichlet:alpha=1|dirichlet:alpha=10',
  ),
  ReportSection('Total budget', accuracy.epsilon, 'algorithm=fixed_dp|layerwise|quap epsilon=3|6|10'),
  ReportSection(
    'Participation models',
    accuracy.participation,
    'algorithm=fixed_dp|quap participation=beta:a=2,b=5|beta:a=1,b=1|beta:a=5,b=2',
  ),
  ReportSection('Critical layers', accuracy.critical_layers, 'critical_layers=final_dense|dense,dense_1|all_dense|all'),
  ReportSection('A thousand clients', accuracy.at_scale, 'algorithm=fixed_dp|quap num_clients=1000 cohort_size=50'),
  ReportSection('Communication', spending.communication, 'algorithm=fedavg|fixed_dp|quap'),
  ReportSection('Cost of a round', spending.cost, 'algorithm=fedavg|quap'),
)


def build(
  groups: Sequence[study.StudyGroup], left_out: Sequence[runs_lib.LeftOut], command: str
) -> list[pages.Section]:
  """The whole report: the finding and how to read it, the results, then the settings and what was left out."""
  built = pages.numbered([pages.Section(section.title, section.build(groups)) for section in SECTIONS])
  missing = '; '.join(section.title for section in built if not section.blocks)
  without = [{'where': item.path, 'what': item.reason} for item in left_out]
  is_compared = any(g.is_of_documents for g in groups)
  sentence, table = finding(groups)
  first = _first_figure(built)
  title, num_notes = 'QuAP-FL: measured figures', 1
  if is_compared:
    title, num_notes = 'QuAP-FL: measured figures and those of the documents', 2
  opening: list[pages.Block] = [f'**{sentence}**']
  if first is not None:
    opening.append(first)
  opening += [*table, *published.NOTES['how_to_read'][:num_notes]]
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
  report.append(pages.Section('Settings', [*_compared(groups), *_settings(groups, command)]))
  unused: list[pages.Block] = ['Nothing.']
  if without:
    unused = [pages.Table('left_out', 'Left out, or used in part', without)]
  report.append(pages.Section('What was left out', unused))
  return report


def _compared(groups: Sequence[study.StudyGroup]) -> list[pages.Block]:
  """The comparison: a row for each dataset."""
  rows = []
  for dataset in dict.fromkeys(g.dataset for g in groups):
    own = [g for g in groups if g.dataset == dataset]
    methods = dict.fromkeys(naming.name_of(g.algorithm) for g in sorted(own, key=lambda g: g.place))
    rows.append(
      {
        'dataset': naming.dataset(dataset),
        'runs': count(own),
        'methods': '; '.join(methods),
        'participation': _each(naming.participation(g.setting['participation']) for g in own),
        'ε': _values_of(own, 'epsilon'),
        'clients': _values_of(own, 'num_clients'),
        'rounds': _each(run.rounds for g in own for run in g.runs),
        'seeds': _each(run.seed for g in own for run in g.runs),
      }
    )
  return [pages.Table('compared', 'What was compared', rows)]


def _values_of(groups: Sequence[study.StudyGroup], flag: str) -> str:
  return _each(g.setting[flag] for g in groups if flag in g.setting)


def _each(values: Iterable[Any]) -> str:
  return ', '.join(map(str, sorted(set(values))))


def _settings(groups: Sequence[study.StudyGroup], command: str) -> list[pages.Block]:
  """The versions, the machines, the flags that all runs share, and the values of the others."""
  runs, settings = [run for group in groups for run in group.runs], [group.setting for group in groups]
  values: dict[str, json_types.JsonObject] = {}
  for setting in settings:
    for name, value in setting.items():
      values.setdefault(name, {})[str(value)] = value
  shared = ', '.join(f'`{name}={text}`' for name, texts in values.items() for text in texts if len(texts) == 1)
  rows = [{'flag': name, 'values': ', '.join(texts)} for name, texts in values.items() if len(texts) > 1]
  return [
    f'Made by `{command}`.',
    f'Versions: {_either(run.versions for run in runs)}.',
    f'Machine: {_either(run.machine for run in runs)}.',
    f'All runs that read these flags have {shared}.',
    *([pages.Table('settings', 'Flags in which runs differ', rows)] if rows else []),
  ]


def _either(facts: Iterable[json_types.JsonView]) -> str:
  """The facts of different runs, each kind once."""
  kinds = {}
  for own in facts:
    words = ', '.join(f'{name} {value}' for name, value in own.items())
    kinds[words or '?'] = True
  return '; or '.join(kinds)


def count(groups: Sequence[study.StudyGroup]) -> str:
  """The number of runs and settings, in words."""
  num_runs = sum(len(group.runs) for group in groups)
  return f'{_plural(num_runs, "run")} of {_plural(len(groups), "setting")}'


def _plural(number: int, word: str) -> str:
  return f'{number} {word}' if number == 1 else f'{number} {word}s'


def _first_figure(built: Sequence[pages.Section]) -> Optional[pages.Plot]:
  """The figure that a reader looks at first; None if the sections have none of `_FIGURES`."""
  kinds: dict[str, pages.Plot] = {}
  for section in built:
    for block in section.blocks:
      if isinstance(block, pages.Plot):
        kinds.setdefault(block.name.rstrip('_0123456789'), block)
  return next((kinds[kind] for kind in _FIGURES if kind in kinds), None)


def finding(groups: Sequence[study.StudyGroup]) -> tuple[str, list[pages.Block]]:
  """The finding in one sentence, and its table with a note on ideal noise.

  It is about methods at an equal formal ε of the whole released model if there are such runs, or else about accuracy.
  """
  whole = [g for g in groups if privacy.is_whole(g)]
  own = [g for g in whole if g.dataset == whole[0].dataset]
  return _at_equal_epsilon(own) if len({g.method for g in own}) > 1 else _by_accuracy(groups)


def _at_equal_epsilon(groups: Sequence[study.StudyGroup]) -> tuple[str, list[pages.Block]]:
  dataset = naming.dataset(groups[0].dataset)
  where = {g: naming.participation(place) for g, place in spending.shown_with(groups).items()}
  names = dict(zip(groups, study.figure_names(groups, 'participation', 'epsilon')))
  cells: dict[Any, list[study.StudyGroup]] = {}
  for g in groups:
    cells.setdefault((g.setting['epsilon'], where[g]), []).append(g)
  epsilon, place = min(cells, key=lambda cell: (-len(cells[cell]), cell[0] != _EPSILON, *cell))
  words = f'At ε = {epsilon:g} with {place} cohorts of {dataset}, {_comparison(cells[epsilon, place], names)}'
  compared = [own for own in cells.values() if len(own) > 1]
  others = []
  if len(compared) > 1:
    wins = collections.Counter(names[_ranked(own)[0]] for own in compared)
    best = ', '.join(f'{name} in {count}' for name, count in wins.most_common())
    others = [
      pages.Note(f'Of all {len(compared)} combinations of ε and participation, the best mean is that of {best}.')
    ]
  title = (
    f'Test accuracy in % at a formal ε of the whole released model, {dataset}: mean ± half of its 95% interval over '
    f'{_seeds(groups)}. "Minus best": at ε = {epsilon:g}, seed by seed, from the best of the same participation'
  )
  ideal = {names[g] for g in groups if privacy.ideal_note(g.runs[0])}
  rows, left = _by_epsilon(groups, names, where, ideal, epsilon)
  return f'{words}.', [
    pages.Table('finding', title + left, rows),
    *([pages.Note(privacy.WEAKER)] if ideal else []),
    *others,
  ]


def _by_epsilon(
  groups: Sequence[study.StudyGroup],
  names: Mapping[study.StudyGroup, str],
  where: Mapping[study.StudyGroup, str],
  ideal: Container[str],
  epsilon: float,
) -> tuple[list[json_types.JsonObject], str]:
  """A row for each place and name, a column for each ε; the best first. And words if the table has the best alone.

  At the one `epsilon`, the last column has the differences from the best of the place.
  """
  accuracies: dict[str, list[Optional[pages.Quantity]]] = {name: [] for name in names.values()}
  for g in groups:
    accuracies[names[g]].append(g.accuracy())
  kept, _ = figures.most(accuracies)
  epsilons, count = sorted({g.setting['epsilon'] for g in groups}), len(set(names.values()))
  at_one = [g for g in groups if g.setting['epsilon'] == epsilon]
  best_of_place: dict[str, study.StudyGroup] = {}
  for g in _ranked(at_one):
    best_of_place.setdefault(where[g], g)
  by_method: dict[Any, dict[Any, study.StudyGroup]] = {}
  for g in groups:
    if names[g] in kept:
      by_method.setdefault((where[g], names[g]), {})[g.setting['epsilon']] = g

  def order(key: tuple[str, str]) -> tuple[str, float]:
    """The key by which rows are sorted: by place, and the best mean first."""
    return key[0], -max(map(_mean, by_method[key].values()))

  rows = []
  for place, name in sorted(by_method, key=order):
    own = by_method[place, name]
    method = f'{name} {privacy.IDEAL}' if name in ideal else name
    row = {'participation': place, 'method': method}
    for one in epsilons:
      row[f'ε = {one:g}'] = _accuracy(own.get(one))
    row['minus best'] = _minus_best(own.get(epsilon), best_of_place.get(place))
    rows.append(row)
  return rows, f'. The best {len(kept)} of {count}' if len(kept) < count else ''


def _minus_best(
  group: Optional[study.StudyGroup], best: Optional[study.StudyGroup] = None
) -> Union[pages.Quantity, str, None]:
  """The difference in points over the seeds that both have; the best itself is said to be it."""
  if group is None or best is None:
    return None
  difference = study.minus(group, best)
  return 'the best' if group is best else difference and difference._replace(digits=1)


def _by_accuracy(groups: Sequence[study.StudyGroup]) -> tuple[str, list[pages.Block]]:
  family = max(study.places(groups), key=lambda family: len(family.groups))
  own = _ranked(family.groups)
  names = dict(zip(own, naming.labels([g.algorithm for g in own])))
  dataset, place = naming.dataset(family.dataset), naming.participation(own[0].setting['participation'])
  words = f'On {dataset} with participation {place}, {_comparison(own, names)}'
  if not any(map(privacy.is_whole, own)):
    words += '; no released model here has a finite ε'
  elif not privacy.is_whole(own[0]):
    words += f'; the released model of {names[own[0]]} has no finite ε'
  rows = [
    {'method': names[g], 'accuracy (%)': _accuracy(g), 'formal ε': privacy.formal_text(g), **g.origin} for g in own
  ]
  return f'{words}.', [pages.Table('finding', f'Test accuracy and formal ε: {dataset}, participation {place}', rows)]


def _comparison(groups: Sequence[study.StudyGroup], names: Mapping[study.StudyGroup, str]) -> str:
  """Names the most accurate group, and says whether it is ahead of the best one of another method."""
  best, *others = _ranked(groups)
  second = others[0] if others else None
  other = next((g for g in others if g.method != best.method), second)
  if other is None:
    return f'{names[best]} reaches {_accuracy(best)}%'
  gain = study.minus(best, other)
  means = f'{_mean(best):.1f}% against {_mean(other):.1f}%'
  if gain is None or gain.deviation is None:
    words = f'{names[best]} is ahead of {names[other]}, with {means}'
    return (
      f'{words} (one run each)' if len(best.runs) == 1 else f'{words}; the seeds are too few to tell it from chance'
    )
  words = (
    f'{names[best]} is {gain._replace(digits=1)} points ahead of {names[other]} ({means}; {gain.count} seeds, paired, '
  )
  words += '95% interval' + '; each the best of its kind by these seeds' * (len(groups) > 2) + ')'
  return words if gain.mean > gain.deviation else f'{words}, which the seeds do not tell from chance'


def _ranked(groups: Iterable[study.StudyGroup]) -> list[study.StudyGroup]:
  return sorted(groups, key=lambda g: -_mean(g))


def _mean(group: study.StudyGroup) -> float:
  return pages.known(group.accuracy()).mean


def _accuracy(group: Optional[study.StudyGroup]) -> Optional[pages.Quantity]:
  return None if group is None else pages.known(group.interval())._replace(digits=1)


def _seeds(groups: Iterable[study.StudyGroup]) -> str:
  counts = sorted({len(g.runs) for g in groups})
  word = 'seed' if counts == [1] else 'seeds'
  return f'{" or ".join(map(str, counts))} {word}'
