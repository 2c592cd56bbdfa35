"""The report's sections on costs: privacy and who pays for it, noise, bytes and time."""

import collections
from collections.abc import Mapping, Sequence
import functools
from typing import Any, Optional

import numpy as np

from experiments.reporting import figures
from experiments.reporting import naming
from experiments.reporting import pages
from experiments.reporting import published
from experiments.reporting import runs as runs_lib
from experiments.reporting import study
from experiments.reporting.sections import accuracy
from experiments.reporting.sections import privacy
from experiments.running import plots
from quap_tff.common.numbers import rounding


def with_accuracy(groups: Sequence[study.StudyGroup]) -> list[pages.Block]:
  """Every setting that was run, with its accuracy and the privacy that it spends."""

  def columns(g: study.StudyGroup) -> dict[str, Any]:
    spent = lambda run: run.nominal_epsilon
    nominal = lambda reduce: g.measure(lambda run: None if spent(run) is None else reduce(spent(run)), 3, True)
    delta = g.measure(lambda run: None if spent(run) is None else run.summary.get('nominal_delta_max'))
    return {
      'document: accuracy (%)': accuracy.printed_accuracy(g),
      'measured: accuracy (%)': g.accuracy(),
      'nominal ε, largest': nominal(np.max),
      'nominal ε, mean': nominal(np.mean),
      'nominal δ, largest': rounding.up(delta.mean) if delta else None,
      'formal ε': privacy.formal_text(g),
    }

  blocks = study.by_group('privacy_and_accuracy', 'All settings', groups, columns)
  return blocks and [
    *published.notes('privacy_and_accuracy', blocks),
    *privacy.footnotes(groups),
    *privacy.by_participation('participation_groups', [g for g in _side_by_side(groups) if not privacy.is_whole(g)]),
  ]


def certified(groups: Sequence[study.StudyGroup]) -> list[pages.Block]:
  """Certified runs and other runs whose ε holds for the released model, to compare accuracy at equal ε."""
  members = [g for g in groups if privacy.is_whole(g)]
  if not any(g.method == 'certified' for g in members):
    return []
  where = shown_with(members)

  def columns(g: study.StudyGroup, reference: study.StudyGroup) -> dict[str, Any]:
    difference = {'minus reference': 'the reference', 'minus reference, 95% ±': None}
    if g is not reference:
      difference = _with_interval('minus reference', study.minus(g, reference))
    return {
      'ε, largest of any client': g.measure(privacy.whole_model_epsilon, 3, True),
      'total δ': rounding.up(g.setting['delta']),
      **_with_interval('accuracy (%)', g.interval()),
      **difference,
      'share of ceiling': g.measure(lambda run: runs_lib.number(run.summary.get('share_of_ceiling'))),
      'trust': '; '.join(sorted({privacy.trust(run) for run in g.runs})),
      'formal ε': privacy.formal_text(g),
    }

  key = lambda g: (g.dataset, where[g], g.setting['epsilon'])
  blocks: list[pages.Block] = []
  for dataset, place, epsilon in sorted(dict.fromkeys(map(key, members))):
    own = [g for g in members if key(g) == (dataset, place, epsilon)]
    reference = _reference(own)
    rows = [
      study.Row(g, {'participation': naming.participation(place), 'ε': str(epsilon)}, columns(g, reference))
      for g in sorted(own, key=lambda g: g.place)
    ]
    blocks += study.table(
      'certified', f'Accuracy at a formal ε of the released model: {naming.dataset(dataset)}', rows, 'epsilon'
    )
  return [
    *published.notes('certified', blocks),
    *_certified_figures(members, where),
    *privacy.footnotes(members),
    *privacy.by_participation('certified_groups', members),
  ]


def _with_interval(name: str, quantity: Optional[pages.Quantity]) -> dict[str, Any]:
  """The cells of a mean and of half of its 95% interval."""
  if quantity is None:
    return {}
  half = None if quantity.deviation is None else quantity._replace(mean=quantity.deviation, deviation=None)
  return {name: quantity._replace(deviation=None), f'{name}, 95% ±': half}


def _reference(groups: Sequence[study.StudyGroup]) -> study.StudyGroup:
  """The group with which others are compared: a certified one, with the online weights and most seeds if possible."""
  rank = lambda g: (g.method == 'certified', 'weights=online' in g.algorithm, len(g.runs), -g.place)
  return max(groups, key=rank)


def shown_with(groups: Sequence[study.StudyGroup]) -> dict[study.StudyGroup, str]:
  """The participation model under which each group is shown.

  Secret cohorts are drawn by coins. At the rate of uniform cohorts, these runs are shown with those.
  """
  coins = {
    (g.dataset, f'bernoulli:q={g.setting["cohort_size"] / g.setting["num_clients"]:g}')
    for g in groups
    if g.setting['participation'] == 'uniform' and g.setting['cohort_size'] != 'default'
  }

  def place(g: study.StudyGroup) -> str:
    where = g.setting['participation']
    is_secret = any(run.has_secret_cohorts for run in g.runs)
    return 'uniform' if is_secret and (g.dataset, where) in coins else where

  return {g: place(g) for g in groups}


def _side_by_side(groups: Sequence[study.StudyGroup]) -> list[study.StudyGroup]:
  return [g for family in study.places(groups) for g in family.groups]


def _certified_figures(groups: Sequence[study.StudyGroup], where: Mapping[study.StudyGroup, str]) -> list[pages.Block]:
  """For each dataset and requested ε, accuracy with a panel for each participation. Where ε varies, accuracy over ε.

  A method has one look and one name in all of them.
  """
  blocks: list[pages.Block] = []
  bars = f'Bars are 95% intervals of the means over seeds; fewer than {study.FEWEST_SEEDS} seeds have none.'
  for dataset in dict.fromkeys(g.dataset for g in groups):
    own = [g for g in groups if g.dataset == dataset]
    names = study.names(own, 'participation', 'epsilon')
    kept, left = figures.most({name: [g.interval() for g, n in zip(own, names) if n == name] for name in names})
    by_epsilon: dict[Any, list[figures.Point]] = {}
    by_place: dict[str, list[figures.Point]] = {}
    for g, name in zip(own, names):
      if name in kept:
        place, spent = naming.participation(where[g]), pages.known(g.measure(privacy.whole_model_epsilon)).mean
        by_epsilon.setdefault(g.setting['epsilon'], []).append(figures.Point(g.place, name, place, g.interval()))
        by_place.setdefault(place, []).append(figures.Point(g.place, name, spent, g.interval()))
    for epsilon, points in by_epsilon.items():
      if len({point.label for point in points}) > 1:
        caption = f'A panel for each participation model. {bars}{left}'
        title = f'Accuracy at a requested ε of {epsilon} of the released model: {naming.dataset(dataset)}'
        drawing = figures.over_values(points, 'participation', accuracy.ACCURACY)
        blocks.append(pages.Plot('certified', title, caption, *drawing))
    # A line joins runs that differ in ε and in nothing else. A panel without a line of its own has all marks.
    counts = collections.Counter((place, point.label) for place, points in by_place.items() for point in points)
    lines = {key for key, count in counts.items() if count > 1}
    joined, with_lines = {label for _, label in lines}, {place for place, _ in lines}
    shown = {}
    for place, points in by_place.items():
      if any(point.label in joined for point in points):
        shown[place] = [point for point in points if place not in with_lines or point.label in joined]
    if shown:
      caption = (
        f'A panel for each participation model. {bars} The chart cuts off what is far below all means. Marks of one ε '
        f'are moved apart. The scale of accuracies is logarithmic in the error.{left}'
      )
      axis = 'formal ε of the released model'
      drawing = figures.in_panels(shown, axis, accuracy.ACCURACY)
      blocks.append(
        pages.Plot('certified_by_epsilon', f'Accuracy by formal ε: {naming.dataset(dataset)}', caption, *drawing)
      )
  return blocks


def budgets(groups: Sequence[study.StudyGroup]) -> list[pages.Block]:
  """Budget of a round by participation rate, ε_i(t) = ε_base·(1 + α·exp(-β·p_i(t))): figure 2 of the first document."""
  alpha, beta = published.COMMON['alpha'], published.COMMON['beta']
  measured = [measured_budgets(run) for g in groups if g.parts[0] and g.has(alpha=alpha, beta=beta) for run in g.runs]
  rates, ratios = (np.concatenate([np.empty(0), *(pair[i] for pair in measured)]) for i in range(2))
  if not len(rates):
    return []
  is_printed = any(g.is_of_documents for g in groups)
  formula = lambda rate: 1 + alpha * np.exp(-beta * rate)
  printed = {rate: value / published.BUDGET_BASE for rate, value in published.BUDGET_BY_RATE.items()}
  rows = []
  for rate, value in printed.items():
    near = ratios[np.abs(rates - rate) <= 0.05]
    rows.append(
      {
        'participation rate': f'{rate:.1f}',
        'document: as printed': f'{value:.3f}' if is_printed else None,
        'formula': f'{formula(rate):.3f}',
        'measured': f'{near.mean():.3f}' if len(near) else 'no such client',
        'clients within 0.05': len(near),
      }
    )

  def draw(figure: 'plots.Figure') -> None:
    axes, grid = figure.subplots(), np.linspace(0, 1, 201)
    axes.plot(rates, ratios, '.', markersize=4, alpha=0.4, color='#777777', label='measured, one client each')
    axes.plot(grid, formula(grid), 'k-', label=f'formula, α = {alpha}, β = {beta}')
    axes.plot(grid, np.ones_like(grid), 'k--', label='uniform budget, ε_base')
    if is_printed:
      axes.plot(list(printed), list(printed.values()), 'X', markersize=9, color='black', label='printed in 5.3')
    axes.set(xlabel='participation rate', ylabel='nominal budget of a round / ε_base', xlim=(0, 1))
    figures.legend(axes)

  source = ' (first document, 5.3 and figure 2)' if is_printed else ''
  title = f'Nominal budget of a round over ε_base, by participation rate{source}'
  caption = f'The line is the formula{"; the crosses are the printed values" if is_printed else ""}.'
  blocks: list[pages.Block] = [
    pages.Table('budget_by_rate', title, rows),
    pages.Plot('budget_by_rate', title, caption, draw),
    'The points are from one run.' if len(measured) == 1 else f'The points are from {len(measured)} runs.',
  ]
  return published.notes('budget_by_rate', blocks)


def measured_budgets(run: runs_lib.RunFolder) -> tuple[np.ndarray, np.ndarray]:
  """(rates, budgets): the clients' participation rates at the end, and their mean budgets of a round over ε_base."""
  if run.ledger is None or run.counts is None or run.nominal_epsilon is None or not run.ledger.num_rounds:
    return np.empty(0), np.empty(0)
  seen = run.counts > 0
  per_round = run.nominal_epsilon[seen] / run.counts[seen]
  return run.counts[seen] / run.ledger.num_rounds, per_round * run.identity['rounds'] / run.identity['epsilon']


def cumulative(groups: Sequence[study.StudyGroup]) -> list[pages.Block]:
  """Cumulative nominal ε of the top and bottom 20% of clients: figure 3 of the November 2025 document."""
  # QuAP-FL, and the method that differs from it only in the budget.
  places = study.places(
    [
      g
      for g in groups
      if g.method in ('quap', 'layerwise')
      and g.setting['stop_at_accuracy'] is None
      and all(run.ledger is not None and run.nominal_epsilon is not None and run.ledger.num_rounds for run in g.runs)
    ]
  )

  def columns(g: study.StudyGroup) -> dict[str, Any]:
    top, bottom = np.array([top_and_bottom(run) for run in g.runs])[:, :, -1].T
    ratios = np.divide(top, bottom, out=np.full(len(top), np.nan), where=bottom > 0)
    return {
      'document: top 20%': 'below ε_total' if g.method == 'quap' and g.is_of_documents else None,
      'measured: top 20%': study.over(top, 3, True),
      'measured: bottom 20%': study.over(bottom, 3, True),
      'measured: top / bottom': study.over(ratios),
      'measured: largest of any client': g.measure(lambda run: pages.known(run.nominal_epsilon).max(), 3, True),
    }

  title = 'Cumulative nominal ε of the most and the least frequent 20% of clients'
  blocks = study.by_group(
    'cumulative_privacy',
    f'{title}, at the end, group means',
    [g for family in places for g in family.groups],
    columns,
    'participation',
    'epsilon',
  )
  return blocks and blocks + [
    *(
      pages.Plot(
        'cumulative_privacy',
        f'{title}: {naming.dataset(family.dataset)}',
        family.caption('Lines: means over the group and over seeds. Bands: all seeds.'),
        functools.partial(_draw_cumulative, groups=family.groups),
      )
      for family in places
      if all(run.ledger is not None and run.ledger.num_rounds > 1 for g in family.groups for run in g.runs)
    ),
    *published.NOTES['cumulative_privacy'],
  ]


def top_and_bottom(run: runs_lib.RunFolder) -> tuple[np.ndarray, np.ndarray]:
  """float64[T] each: the mean cumulative nominal ε, after each round, of the 20% of clients that took part most and
  least often."""
  assert run.counts is not None  # `cumulative_epsilon` needs the ledger, too.
  order = np.argsort(-run.counts, kind='stable')
  size = max(1, round(0.2 * len(order)))
  return run.cumulative_epsilon(order[:size]), run.cumulative_epsilon(order[-size:])


def _draw_cumulative(figure: 'plots.Figure', groups: Sequence[study.StudyGroup]) -> None:
  axes, series = figure.subplots(), []
  for g in groups:
    values = np.array([top_and_bottom(run) for run in g.runs])
    for end, words in enumerate(('top 20%', 'bottom 20%')):
      label = f'{naming.name_of(g.algorithm)}, {words}'
      series.append(figures.Series(g.place, label, np.arange(1, values.shape[-1] + 1), values[:, end]))
  figures.curves(axes, series, 'cumulative nominal ε of a client')
  last, total, planned = len(series[0].x), groups[0].setting['epsilon'], groups[0].setting['rounds']
  label = f'ε_total·t/T (ε_total = {total:g}, T = {planned})'
  axes.plot([0, last], [0, total * last / planned], color='black', linewidth=0.8, label=label)
  axes.set(ylim=(0, None), xlim=(0, None))
  figures.legend(axes)


def fairness(groups: Sequence[study.StudyGroup]) -> list[pages.Block]:
  """Jain's index of three quantities: table 3 of the first document."""

  def accuracy_index(run: runs_lib.RunFolder) -> Optional[float]:
    accuracies = run.client_column('test_accuracy')
    return study.jain(accuracies[np.isfinite(accuracies)]) if accuracies is not None else None

  def columns(g: study.StudyGroup) -> dict[str, Any]:
    printed = published.find('fairness', scenario=g.scenario, method=g.method)
    return {
      'document: of an unnamed quantity': printed if g.is_of_documents else None,
      'measured: participation counts': g.measure(lambda run: study.jain(run.counts), 3),
      'measured: cumulative nominal ε': g.measure(lambda run: study.jain(run.nominal_epsilon), 3),
      'measured: test accuracy by client': g.measure(accuracy_index, 3),
    }

  title = "Jain's index; 1 means that all clients are equal"
  counted = [g for g in _side_by_side(groups) if all(run.counts is not None for run in g.runs)]
  blocks = study.by_group('fairness', title, counted, columns, 'participation')
  return published.notes('fairness', blocks)


def noise(groups: Sequence[study.StudyGroup]) -> list[pages.Block]:
  """Noise to signal by round (theory document, 7.3)."""
  ratio = 'noise_to_signal'
  noisy = [g for g in groups if any(run.mean_of(ratio) for run in g.runs)]

  def columns(g: study.StudyGroup) -> dict[str, Any]:
    what = (('noise / signal', ratio, 2), ('noise norm', 'noise_norm', 4), ('signal norm', 'signal_norm', 4))
    mean_of = lambda column: lambda run: run.mean_of(column)
    return {name: g.measure(mean_of(column), digits) for name, column, digits in what}

  title = 'Norm of the noise over the norm of the mean update, both for the noised layers'
  return study.by_group(ratio, f'{title}, means over the rounds', _side_by_side(noisy), columns) + (
    accuracy.by_place(
      noisy,
      ratio,
      ratio,
      title,
      1,
      'noise norm / signal norm',
      'mean over rounds',
      lambda g: g.measure(lambda run: run.mean_of(ratio)),
      log=True,
    )
  )


def communication(groups: Sequence[study.StudyGroup]) -> list[pages.Block]:
  """Bytes that a client sends and receives in a round: table 1 of the November 2025 document."""
  sent = lambda g, way='up': g.measure(lambda run: run.mean_of(f'{way}_bytes_per_client'))
  logged = [g for g in groups if sent(g)]
  fedavg = {(g.dataset, g.setting.get('model')): sent(g).mean for g in reversed(logged) if g.method == 'fedavg'}

  def columns(g: study.StudyGroup) -> dict[str, Any]:
    up, down = sent(g).mean, sent(g, 'down')
    extra = published.UPLOAD_EXTRA_BYTES.get(g.method) if g.is_of_documents else None
    plain = fedavg.get((g.dataset, g.setting.get('model')))
    return {
      "document: upload / FedAvg's": None if extra is None else f'{published.UPLOAD_RATIO:.2f}',
      "measured: upload / FedAvg's": f'{up / plain:.4f}' if plain else None,
      'document: bytes above FedAvg': extra,
      'measured: bytes above FedAvg': f'{up - plain:.0f}' if plain else None,
      'measured: kB down': pages.Quantity(down.mean / 1e3, digits=1) if down else None,
      'measured: kB up': pages.Quantity(up / 1e3, digits=1),
    }

  blocks = study.by_group('communication', 'Communication of a client in a round', _side_by_side(logged), columns)
  return published.notes('communication', blocks)


def cost(groups: Sequence[study.StudyGroup]) -> list[pages.Block]:
  """Seconds for a round (theory document, 7.3)."""

  def columns(g: study.StudyGroup) -> dict[str, Any]:
    seconds = lambda reduce: g.measure(lambda run: float(reduce(run.curve('seconds').to_numpy())))
    machine = lambda name: ', '.join(sorted({str(run.machine.get(name, '?')) for run in g.runs}))
    return {
      'seconds a round (median)': seconds(np.median),
      'seconds of the first round': seconds(lambda s: s[0]),
      'minutes of all rounds': seconds(lambda s: s.sum() / 60),
      'cores': machine('cores'),
      'GPUs': machine('gpus'),
    }

  timed = [g for g in groups if all(len(run.curve('seconds')) for run in g.runs)]
  blocks = study.by_group('cost', 'Time of a round, training and test', timed, columns)
  return published.notes('cost', blocks)
