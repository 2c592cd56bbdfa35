"""The report's sections on accuracy: beside the documents' figures, by round, and over the values of a flag."""

import collections
from collections.abc import Sequence
import itertools
from typing import Any, Callable, Optional

import numpy as np
import pandas as pd

from experiments.reporting import figures
from experiments.reporting import pages
from experiments.reporting import privacy
from experiments.reporting import published
from experiments.reporting import runs as runs_lib
from experiments.reporting import study

ACCURACY = 'final test accuracy (%)'
_WHAT = 'accuracy (%)'


def select(groups: Sequence[study.Group], method: str, scenario: Optional[str] = None, **flags) -> list[study.Group]:
  """The groups of a method with these flags, in one scenario or in any."""
  return [g for g in groups if g.method == method and scenario in (None, g.scenario) and g.has(**flags)]


def final(groups: Sequence[study.Group]) -> list[pages.Block]:
  """Table 1 of the first document and table 2 of the November 2025 document."""
  first, november = [], []
  for (dataset, scenario, method), printed in published.ACCURACY_FIRST.items():
    flags = dict(dataset=dataset, epsilon=published.EPSILON_FIRST, calibration='documents', **published.COMMON)
    cells = {'dataset': dataset, 'participation': published.SCENARIOS[scenario]}
    first += study.beside(_WHAT, printed, select(groups, method, scenario, **flags), method, cells)
  for (dataset, method), printed in published.ACCURACY_NOVEMBER.items():
    flags = dict(dataset=dataset, epsilon=published.EPSILON_NOVEMBER, calibration='documents', **published.COMMON)
    found = select(groups, method, 'heterogeneous', **flags)
    november += study.beside(_WHAT, printed, found, method, {'dataset': dataset})
  title, known = 'Final test accuracy at ε_total =', ('model', 'participation', 'epsilon')
  blocks = [
    *study.table('accuracy_epsilon_3', f'{title} 3 (first document, table 1)', first, *known),
    *study.table('accuracy_epsilon_6', f'{title} 6 under Beta(2,5) (November 2025, table 2)', november, *known),
  ]
  return blocks and blocks + [published.LAYERWISE]


def early_stop(groups: Sequence[study.Group]) -> list[pages.Block]:
  """Runs that stop at a test accuracy, as the documents' reference program does."""
  rows = []
  for g in sorted(groups, key=lambda g: (g.dataset, g.place)):
    if g.setting['stop_at_accuracy'] is not None:
      printed = published.ACCURACY_NOVEMBER.get((g.dataset, g.method))
      rows += study.beside(_WHAT, printed, [g], g.method, {'dataset': g.dataset})
  blocks = study.table('early_stop', 'Runs that stop at a test accuracy (November 2025, table 2)', rows)
  return blocks and blocks + [
    'A run that stops at the first test above an accuracy reports about that accuracy. Such figures do not show '
    'which method is better. They only show after how many rounds each method stopped.'
  ]


def curves(groups: Sequence[study.Group]) -> list[pages.Block]:
  """Figure 1 of the first document and figure 2 of the November 2025 document."""
  return by_place(groups, 'accuracy', 'test_accuracy', 'Test accuracy by round', 100, 'test accuracy (%)', ACCURACY)


def by_place(
  groups: Sequence[study.Group],
  name: str,
  column: str,
  title: str,
  scale: float,
  ylabel: str,
  total_label: str,
  total: Callable[[study.Group], pages.Quantity] = study.Group.accuracy,
  log: bool = False,
) -> list[pages.Block]:
  """A figure of a column of metrics.csv, times `scale`, for each of `study.places`. `total` sums up a group.

  A group with values in a single round has no curve, and is left out.
  """
  shown = study.places([g for g in groups if _has_curve(g, column)])
  blocks = []
  for family in shown:
    series = [
      figures.Series(g.place, label, *over_seeds(g, column, scale), total(g))
      for g, label in zip(family.groups, figures.labels([g.algorithm for g in family.groups]))
    ]
    blocks.append(
      pages.Figure(
        name,
        f'{title}: {family.dataset}',
        family.caption('Lines are means over seeds. Bars and numbers give the deviation over seeds.'),
        *figures.by_round(series, ylabel, total_label, log),
      )
    )
  several = 'There is one figure for each dataset and participation. It shows the setting with the most methods.'
  return blocks + [several] * (len(shown) > 1)


def _has_curve(group: study.Group, column: str) -> bool:
  _, values = over_seeds(group, column)
  return np.count_nonzero(np.any(values > 0, axis=0)) > 1


def over_seeds(group: study.Group, column: str, scale: float = 1):
  """(rounds, float64[seeds, rounds]) of a column, times `scale`, in rounds where all runs that log it have a value."""
  curves_ = [curve for curve in (run.curve(column) for run in group.runs) if len(curve)]
  table = pd.concat(curves_, axis=1, join='inner') if curves_ else pd.DataFrame()
  return table.index.to_numpy(), scale * table.to_numpy().T


def convergence(groups: Sequence[study.Group]) -> list[pages.Block]:
  """Table 2 of the first document."""
  rows = []
  for (scenario, method), printed in published.ROUNDS_TO_90.items():
    cell = 'not reached' if printed is None else pages.Quantity(printed, digits=0)
    found = select(groups, method, scenario, dataset='mnist', **published.COMMON)
    rows += study.beside('rounds', cell, found, method, {'participation': published.SCENARIOS[scenario]}, rounds_to_90)
  title = 'Rounds to 90% test accuracy on MNIST (first document, table 2, at ε = 3)'
  blocks = study.table('rounds_to_90', title, rows, 'participation')
  return blocks and blocks + [
    'Rounds are counted up to the first tested round at or above 90%. If a seed did not reach 90%, the row says so, '
    'because a mean over the other seeds would look too good.'
  ]


def rounds_to_90(group: study.Group):
  """Mean rounds until the test accuracy is 90%, or text if a seed did not reach it; None without a curve."""
  tests = [run.curve('test_accuracy') for run in group.runs]
  if not all(map(len, tests)):
    return None
  firsts = [next(iter(accuracies.index[accuracies >= 0.9]), None) for accuracies in tests]
  missing = firsts.count(None)
  some = '' if missing == len(firsts) else f' in {missing} of {len(firsts)} seeds'
  return f'not reached{some} in {group.runs[0].rounds} rounds' if missing else study.over(firsts, 1)


def at_scale(groups: Sequence[study.Group]) -> list[pages.Block]:
  """1,000 clients, 5% in each round: table 5 of the first document."""
  found = {method: select(groups, method, **published.AT_SCALE_FLAGS) for method in published.AT_SCALE}
  noise = lambda g: g.measure(lambda run: run.mean_of('noise_norm'))
  # The noise of the others is compared with that of the first Fixed-DP setting of the dataset.
  full = {g.dataset: noise(g).mean for g in reversed(found['fixed_dp']) if noise(g)}

  def relative_noise(g):
    return pages.Quantity(100 * noise(g).mean / full[g.dataset], digits=1) if noise(g) and full.get(g.dataset) else None

  blocks = []
  for column, (what, measure) in enumerate(
    (
      (_WHAT, study.Group.accuracy),
      ('rounds to 90% accuracy', rounds_to_90),
      ("noise norm over Fixed-DP's (%)", relative_noise),
    )
  ):
    rows = []
    for method, printed in published.AT_SCALE.items():
      rows += study.beside(what, printed[column], found[method], method, {}, measure)
    blocks += study.table('at_scale', f'1,000 clients, 50 a round: {what} (first document, table 5)', rows)
  return blocks and blocks + [
    'The document gives neither the data nor ε. It does not define convergence or noise. Here convergence means 90% '
    'accuracy, and noise is the norm of the noise in the mean update, averaged over the rounds.'
  ]


def ablation(groups: Sequence[study.Group]) -> list[pages.Block]:
  """The eight combinations of QuAP-FL's parts: table 3 of the November 2025 document."""
  blocks, shown, names = [], [], ('adaptive budget', 'adaptive clip', 'layer-wise noise')
  members = [g for g in groups if g.method in published.BY_PARTS.values()]
  for family in sorted(study.families(members, 'algorithm', at_least=3), key=len, reverse=True):
    # A family that differs only in QuAP-FL's α is not shown as a second ablation.
    shown += [family] if len(set(family).difference(*shown)) > 1 else []
  for family in study.titled(shown, 'algorithm'):
    first = family.groups[0]
    flags = dict(dataset='mnist', epsilon=published.EPSILON_NOVEMBER, **published.COMMON)
    printed = published.ABLATION if first.scenario == 'heterogeneous' and first.has(**flags) else {}
    rows = []
    for parts in itertools.product((False, True), repeat=3):
      method, cells = published.BY_PARTS[parts], dict(zip(names, ('yes' if part else 'no' for part in parts)))
      own = [g for g in family.groups if g.method == method]
      rows += study.beside(_WHAT, printed.get(parts), own, method, cells)
    for row in rows:
      row.last['formal ε'] = privacy.formal_text(row.group) if isinstance(row.group, study.Group) else None
    blocks += study.table('ablation', f'Ablation (November 2025, table 3): {family.title}', rows)
  return blocks and blocks + [published.LAYERWISE]


def over_flags(
  groups: Sequence[study.Group],
  flags: Sequence[str],
  name: str,
  title: str,
  axis: str,
  place: Callable[..., Any] = lambda value: value,
  order: Optional[Callable[[Any], Any]] = None,
  printed: Optional[Callable[[study.Group], Any]] = None,
  log: bool = False,
) -> list[pages.Block]:
  """Accuracy over the values of flags, with all other flags equal: a table and a figure for each family of runs.

  Args:
    groups: The groups. Methods that were run with only one value are not shown.
    flags: The flags that vary.
    name: The name of the tables and figures.
    title: The title of the tables and figures.
    axis: What the values are, for columns and axes.
    place: Turns the flags' values into a number on the axis, or into text for a row of the figure.
    order: The sort key of places.
    printed: A document's figure for a group. By default, the document's final accuracy for such runs.
    log: Whether an axis of numbers is logarithmic.
  """
  groups = [g for g in groups if all(flag in g.setting for flag in flags)]
  at, order = {g: place(*(g.setting[flag] for flag in flags)) for g in groups}, order or (lambda value: value)
  blocks, shown = [], []
  for family in study.families(groups, 'algorithm', *flags):
    counts = collections.Counter(g.algorithm for g in family)
    members = [g for g in family if counts[g.algorithm] > 1]
    members.sort(key=lambda g: (g.place, order(at[g])))
    shown += [members] if members and not any(set(members) <= set(others) for others in shown) else []
  for family in study.titled(shown, 'algorithm', *flags):
    members = family.groups
    rows = [
      row
      for g in members
      for row in study.beside(_WHAT, (printed or printed_accuracy)(g), [g], g.method, {axis: str(at[g])})
    ]
    names = dict(zip(members, figures.labels([g.algorithm for g in members])))
    points = [figures.Point(g.place, names[g], at[g], g.accuracy()) for g in members]
    drawing = figures.over_values(sorted(points, key=lambda point: order(point.at)), axis, ACCURACY, log)
    caption = family.caption('Bars are deviations over seeds.')
    blocks += study.table(name, f'{title}: {family.title}', rows, *flags)
    blocks.append(pages.Figure(name, f'{title}: {family.dataset}', caption, *drawing))
  return blocks


def alpha_beta(groups: Sequence[study.Group]) -> list[pages.Block]:
  """The α×β grid: figure 3 of the first document."""

  def printed(g):
    is_documents = g.dataset == 'cifar10' and g.method == 'quap'
    return published.ALPHA_BETA.get((g.setting['alpha'], g.setting['beta'])) if is_documents else None

  return over_flags(
    [g for g in groups if g.parts[0]],
    ('alpha', 'beta'),
    'alpha_beta',
    'Accuracy by α and β (first document, figure 3)',
    'α and β',
    lambda alpha, beta: f'α = {alpha:g}, β = {beta:g}',
    printed=printed,
  )


def epsilon(groups: Sequence[study.Group]) -> list[pages.Block]:
  """ε_total of 3, 6 and 10 (theory document, 7.5), nominal and by exact accounting."""
  # Certified runs have their own section. Without noise the budget means nothing.
  members, blocks = [g for g in groups if g.method not in ('certified', 'fedavg')], []
  for calibration, name, title in (
    ('documents', 'epsilon_total', 'nominal ε_total'),
    ('exact', 'epsilon_exact', 'ε_total by exact accounting'),
  ):
    own = [g for g in members if g.has(calibration=calibration)]
    blocks += over_flags(own, ['epsilon'], name, f'Accuracy by {title}', title)
  return blocks and blocks + [published.LAYERWISE]


def participation(groups: Sequence[study.Group]) -> list[pages.Block]:
  """Who takes part (theory document, 7.5)."""
  return over_flags(groups, ['participation'], 'participation', 'Accuracy by participation', 'participation model')


def critical_layers(groups: Sequence[study.Group]) -> list[pages.Block]:
  """One, two and all Dense layers critical (theory document, 7.5)."""
  # From few layers to many, with named layers in between. Other methods noise every layer, whatever the flag says.
  order = lambda layers: ({'final_dense': 0, 'all_dense': 2, 'all': 3}.get(layers, 1), layers)
  blocks = over_flags(
    [g for g in groups if g.parts[-1]],
    ['critical_layers'],
    'critical_layers',
    'Accuracy by critical layers',
    'critical (clipped and noised) layers',
    order=order,
  )
  return blocks and blocks + [published.LAYERWISE]


def heterogeneity(groups: Sequence[study.Group]) -> list[pages.Block]:
  """How uneven the clients' labels are (November 2025 document, 5.3.3 and figure 4)."""
  concentration = lambda partition: float(runs_lib.parse('partition', partition)[1]['alpha'])
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
    accuracy = {g.method: g.accuracy().mean for g in family.groups}
    a = concentration(family.groups[0].setting['partition'])
    if {'quap', 'fixed_dp'} <= set(accuracy):
      rows.append(
        {
          'runs': family.title,
          'document': published.DIRICHLET_GAIN.get(a),
          'measured: QuAP-FL minus Fixed-DP (points)': pages.Quantity(accuracy['quap'] - accuracy['fixed_dp']),
        }
      )
  title = 'Gain of QuAP-FL over Fixed-DP (November 2025, 5.3.3)'
  return blocks + ([pages.Table('dirichlet_gain', title, rows)] if rows else [])


def printed_accuracy(group: study.Group) -> Optional[pages.Quantity]:
  """The final accuracy that a document prints for runs of this setting, or None."""
  layers = {'critical_layers': 'final_dense'} if group.parts[-1] else {}
  if not group.has(calibration='documents', **published.COMMON, **layers):
    return None
  return published.accuracy(group.dataset, group.scenario, group.method, group.setting.get('epsilon'))
