"""The report's sections on costs: privacy and who pays for it, noise, bytes and time."""

import collections
from collections.abc import Mapping, Sequence
import functools
from typing import Any, Callable, Optional

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
from quap_tff.common import array_types
from quap_tff.common.numbers import rounding


def with_accuracy(groups: Sequence[study.StudyGroup]) -> list[pages.Block]:
  """Every setting that was run, with its accuracy and the privacy that it spends."""

  def columns(g: study.StudyGroup) -> dict[str, pages.Cell]:
    def nominal(reduce: Callable[[np.ndarray], float]) -> Optional[pages.Quantity]:
      return g.measure(lambda run: None if run.nominal_epsilon is None else reduce(run.nominal_epsilon), 3, True)

    delta = g.measure(lambda run: None if run.nominal_epsilon is None else run.summary.get('nominal_delta_max'))
    return {
      'document: accuracy (%)': accuracy.printed_accuracy(g),
      'measured: accuracy (%)': g.accuracy(),
      'nominal ε, largest': nominal(np.max),
      'nominal ε, mean': nominal(np.mean),
      'nominal δ, largest': rounding.up(delta.mean) if delta else None,
      'formal ε': privacy.formal_text(g),
    }

  blocks = study.by_group('privacy_and_accuracy', 'All settings', groups, columns)
  if not blocks:
    return []
  others = [g for g in _side_by_side(groups) if not privacy.is_whole(g)]
  blocks = published.notes('privacy_and_accuracy', blocks)
  blocks += privacy.footnotes(groups)
  return blocks + privacy.by_participation('participation_groups', others)


def certified(groups: Sequence[study.StudyGroup]) -> list[pages.Block]:
  """Certified runs and other runs whose ε holds for the released model, to compare accuracy at equal ε."""
  members = [g for g in groups if privacy.is_whole(g)]
  if not any(g.method == 'certified' for g in members):
    return []
  where = shown_with(members)

  def columns(g: study.StudyGroup, reference: study.StudyGroup) -> dict[str, pages.Cell]:
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

  def key(g: study.StudyGroup) -> tuple[str, str, float]:
    return g.dataset, where[g], g.setting['epsilon']

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
  blocks = published.notes('certified', blocks)
  blocks += _certified_figures(members, where)
  blocks += privacy.footnotes(members)
  return blocks + privacy.by_participation('certified_groups', members)


def _with_interval(name: str, quantity: Optional[pages.Quantity]) -> dict[str, pages.Cell]:
  """The cells of a mean and of half of its 95% interval."""
  if quantity is None:
    return {}
  half = None if quantity.deviation is None else quantity._replace(mean=quantity.deviation, deviation=None)
  return {name: quantity._replace(deviation=None), f'{name}, 95% ±': half}


def _reference(groups: Sequence[study.StudyGroup]) -> study.StudyGroup:
  """The group with which others are compared: a certified one, with the online weights and most seeds if possible."""

  def rank(g: study.StudyGroup) -> tuple[bool, bool, int, int]:
    return g.method == 'certified', 'weights=online' in g.algorithm, len(g.runs), -g.place

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
    return 'uniform' if g.has_secret_cohorts and (g.dataset, where) in coins else where

  return {g: place(g) for g in groups}


def _side_by_side(groups: Sequence[study.StudyGroup]) -> list[study.StudyGroup]:
  return [g for family in study.places(groups) for g in family.groups]


def _certified_figures(groups: Sequence[study.StudyGroup], where: Mapping[study.StudyGroup, str]) -> list[pages.Block]:
  """Figures of each dataset: accuracy at a requested ε, a panel for each participation; where ε varies, over ε.

  A method has one look and one name in all of them.
  """
  blocks: list[pages.Block] = []
  bars = f'Bars are 95% intervals of the means over seeds; fewer than {study.FEWEST_SEEDS} seeds have none.'
  for dataset in dict.fromkeys(g.dataset for g in groups):
    own = [g for g in groups if g.dataset == dataset]
    names = study.figure_names(own, 'participation', 'epsilon')
    intervals: dict[str, list[Optional[pages.Quantity]]] = {}
    for g, name in zip(own, names):
      intervals.setdefault(name, []).append(g.interval())
    kept, left = figures.most(intervals)
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
  rates = np.concatenate([np.empty(0), *(rates for rates, _ in measured)])
  ratios = np.concatenate([np.empty(0), *(ratios for _, ratios in measured)])
  if not len(rates):
    return []
  is_printed = any(g.is_of_documents for g in groups)

  def formula(rate: array_types.Numbers) -> array_types.Numbers:
    return 1 + alpha * np.exp(-beta * rate)

  printed = {rate: value / published.BUDGET_BASE for rate, value in published.BUDGET_BY_RATE.items()}
  rows = []
  for rate, value in printed.items():
    near = ratios[np.abs(rates - rate) <= 0.05]
    in_document = f'{value:.3f}' if is_printed else None
    in_runs = f'{near.mean():.3f}' if len(near) else 'no such client'
    rows.append(
      {
        'participation rate': f'{rate:.1f}',
        'document: as printed': in_document,
        'formula': f'{formula(rate):.3f}',
        'measured': in_runs,
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
  caption = 'The line is the formula; the crosses are the printed values.' if is_printed else 'The line is the formula.'
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

  def is_shown(g: study.StudyGroup) -> bool:
    # QuAP-FL, and the method that differs from it only in the budget.
    is_method = g.method in ('quap', 'layerwise') and g.setting['stop_at_accuracy'] is None
    return is_method and g.every(lambda run: run.nominal_epsilon is not None and _num_rounds(run) > 0)

  places = study.places(list(filter(is_shown, groups)))

  def columns(g: study.StudyGroup) -> dict[str, pages.Cell]:
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
  if not blocks:
    return []
  for family in places:
    if all(g.every(lambda run: _num_rounds(run) > 1) for g in family.groups):
      caption = family.caption('Lines: means over the group and over seeds. Bands: all seeds.')
      draw = functools.partial(_draw_cumulative, groups=family.groups)
      blocks.append(pages.Plot('cumulative_privacy', f'{title}: {naming.dataset(family.dataset)}', caption, draw))
  return [*blocks, *published.NOTES['cumulative_privacy']]


def _num_rounds(run: runs_lib.RunFolder) -> int:
  """The rounds of its ledger; 0 without one."""
  return 0 if run.ledger is None else run.ledger.num_rounds


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

  def columns(g: study.StudyGroup) -> dict[str, pages.Cell]:
    printed = published.find('fairness', scenario=g.scenario, method=g.method)
    return {
      'document: of an unnamed quantity': printed if g.is_of_documents else None,
      'measured: participation counts': g.measure(lambda run: study.jain(run.counts), 3),
      'measured: cumulative nominal ε': g.measure(lambda run: study.jain(run.nominal_epsilon), 3),
      'measured: test accuracy by client': g.measure(accuracy_index, 3),
    }

  title = "Jain's index; 1 means that all clients are equal"
  counted = [g for g in _side_by_side(groups) if g.every(lambda run: run.counts is not None)]
  blocks = study.by_group('fairness', title, counted, columns, 'participation')
  return published.notes('fairness', blocks)


def noise(groups: Sequence[study.StudyGroup]) -> list[pages.Block]:
  """Noise to signal by round (theory document, 7.3)."""
  ratio = 'noise_to_signal'

  def is_noisy(g: study.StudyGroup) -> bool:
    return any(run.mean_of(ratio) for run in g.runs)

  noisy = list(filter(is_noisy, groups))

  def columns(g: study.StudyGroup) -> dict[str, pages.Cell]:
    what = (('noise / signal', ratio, 2), ('noise norm', 'noise_norm', 4), ('signal norm', 'signal_norm', 4))
    return {name: _mean_of(g, column, digits) for name, column, digits in what}

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
      lambda g: _mean_of(g, ratio),
      log=True,
    )
  )


def _mean_of(g: study.StudyGroup, column: str, digits: int = 2) -> Optional[pages.Quantity]:
  """The mean of a column of metrics.csv over the rounds."""
  return g.measure(lambda run: run.mean_of(column), digits)


def communication(groups: Sequence[study.StudyGroup]) -> list[pages.Block]:
  """Bytes that a client sends and receives in a round: table 1 of the November 2025 document."""
  sent, received = 'up_bytes_per_client', 'down_bytes_per_client'
  logged = [g for g in groups if _mean_of(g, sent)]
  fedavg = {}
  for g in reversed(logged):
    if g.method == 'fedavg':
      fedavg[g.dataset, g.setting.get('model')] = pages.known(_mean_of(g, sent)).mean

  def columns(g: study.StudyGroup) -> dict[str, pages.Cell]:
    up, down = pages.known(_mean_of(g, sent)).mean, _mean_of(g, received)
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

  def columns(g: study.StudyGroup) -> dict[str, pages.Cell]:
    def seconds(reduce: Callable[[np.ndarray], Any]) -> Optional[pages.Quantity]:
      return g.measure(lambda run: float(reduce(run.curve('seconds').to_numpy())))

    def machine(name: str) -> str:
      return ', '.join(sorted({str(run.machine.get(name, '?')) for run in g.runs}))

    return {
      'seconds a round (median)': seconds(np.median),
      'seconds of the first round': seconds(lambda s: s[0]),
      'minutes of all rounds': seconds(lambda s: s.sum() / 60),
      'cores': machine('cores'),
      'GPUs': machine('gpus'),
    }

  timed = [g for g in groups if g.every(lambda run: len(run.curve('seconds')) > 0)]
  blocks = study.by_group('cost', 'Time of a round, training and test', timed, columns)
  return published.notes('cost', blocks)
