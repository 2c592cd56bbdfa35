"""The kinds of figures that sections share: curves by round, rows of marks, and lines over a number.

A method has one look in all of them, which follows from its place among the methods of the report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import textwrap
from typing import Any, NamedTuple, TYPE_CHECKING, Union

import numpy as np

from experiments.reporting import quantity
from experiments.running import plots

if TYPE_CHECKING:
  from matplotlib.axes import Axes

MOST_LABELS = len(plots.COLOURS)
BARS = f'Bars are 95% intervals of the means over seeds; fewer than {quantity.FEWEST_SEEDS} seeds have none.'
SCALE = (
  'The scale of accuracies is logarithmic in the error, and cuts off what is far below all means. Marks at one place '
  'are moved apart.'
)
_MOST_BANDS = 4
# An axis of percentages has at least as many ticks.
_FEWEST_TICKS = 3
# How far the marks of two series at one place are moved apart, as a share of a logarithmic axis.
_ASIDE = 0.012
# How far an axis reaches beyond the means, as a share of their range.
_ROOM = 0.12


class Drawing(NamedTuple):
  """How to draw a figure, its size in inches, and what it shows, in words."""

  draw: plots.Draw
  size: tuple[float, float]
  shows: str


class Series(NamedTuple):
  """A curve by round of one method, or of one group of runs.

  Attributes:
    place: The place of its --algorithm spec among those of the report, which decides the look in all figures.
    label: Its name in this figure.
    x: float[n], the rounds.
    y: float[seeds, n].
    total: The one number that sums up the series.
  """

  place: int
  label: str
  x: np.ndarray
  y: np.ndarray
  total: quantity.Quantity


class Point(NamedTuple):
  """A mean of one method at a number, in a panel; or at no number. `place` and `label` are as in `Series`."""

  place: int
  label: str
  total: quantity.Quantity
  panel: str = ''
  at: float = 0.0


def looks(shown: Iterable[Union[Series, Point]]) -> dict[str, plots.Style]:
  """Matplotlib's arguments for each label: a colour, a marker and a dash, by its place.

  If several labels have one look, the first of them keeps it, and each other label gets one that is free.
  """
  pairs = sorted({(one.place, one.label) for one in shown})
  wanted = {place % MOST_LABELS for place, _ in pairs}
  by_label: dict[str, plots.Style] = {}
  taken: set[int] = set()
  for place, label in pairs:
    look = place % MOST_LABELS
    if look in taken:
      look = next((n for n in range(MOST_LABELS) if n not in taken | wanted), look)
    taken.add(look)
    by_label[label] = {**plots.look(look), 'label': label}
  return by_label


def _wrapped(words: str, width: int) -> str:
  return '\n'.join(textwrap.wrap(words, width))


def curves(shown: Sequence[Series], ylabel: str) -> Drawing:
  """Percentages by round, as means over seeds, with a legend at the right that has the totals, the largest first.

  If there are few curves, a band shows the smallest and the largest seed.
  """
  ranked = sorted(shown, key=lambda series: series.total.mean, reverse=True)
  names = {series.label: f'{series.total}  {series.label}' for series in ranked}
  few, look = len(shown) <= _MOST_BANDS, looks(shown)
  weight: plots.Style = {} if few else {'linewidth': 1.1, 'markersize': 4.5}

  def draw(figure: plots.Figure) -> None:
    axes = figure.subplots()
    for index, series in enumerate(ranked):
      style = {**look[series.label], **weight, 'label': _wrapped(names[series.label], 44)}
      if len(series.y) > 1 and few:
        axes.fill_between(series.x, np.min(series.y, 0), np.max(series.y, 0), color=style['color'], alpha=0.15, lw=0)
      every = max(1, len(series.x) // 6)
      axes.plot(series.x, np.mean(series.y, 0), markevery=(index * every // 5 % every, every), **style)
    axes.set_ylabel(ylabel)
    plots.whole_rounds(axes)
    plots.within_percent(axes.yaxis)
    axes.legend(loc='upper left', bbox_to_anchor=(1.01, 1), borderaxespad=0)

  return Drawing(draw, (9, max(4, 0.3 * len(shown) + 1.2)), '; '.join(names.values()))


def _in_words(panels: Mapping[str, Sequence[Point]]) -> str:
  """The means, by panel."""
  texts = []
  for panel, shown in panels.items():
    means = []
    for point in shown:
      place = f' at {point.at:.4g}' if point.at else ''
      means.append(f'{point.label}{place}: {point.total}')
    texts.append('; '.join(means))
    if panel:
      texts[-1] = f'{panel}: {texts[-1]}'
  return '. '.join(texts)


def _by_panel(points: Iterable[Point]) -> dict[str, list[Point]]:
  """The points by panel: panels with more points come first."""
  found: dict[str, list[Point]] = {}
  for point in points:
    found.setdefault(point.panel, []).append(point)
  return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def rows(points: Sequence[Point], xlabel: str) -> Drawing:
  """Percentages in small panels with a common axis, a row for each label, in one order: the best on top.

  Args:
    points: If all have one label, the panels' titles are the rows of a single panel.
    xlabel: The name of the axis.
  """
  look, panels = looks(points), _by_panel(points)
  # A panel with a single method does not say how good that method is.
  leads: dict[str, list[float]] = {label: [] for label in look}
  for shown in panels.values():
    middle = np.mean([point.total.mean for point in shown])
    for point in shown:
      if len(shown) > 1:
        leads[point.label].append(float(point.total.mean - middle))
  order = sorted(leads, key=lambda label: -float(np.mean(leads[label] or [-np.inf])))
  if len(look) == 1:
    order = list(panels)
    panels = {'': [point._replace(label=point.panel) for point in points]}
    look = {title: next(iter(look.values())) for title in order}
  names = [_wrapped(name, 40) for name in order]
  columns, shows = min(3, len(panels)), _in_words(panels)
  lines_, tallest = -(-len(panels) // columns), max(1 + name.count('\n') for name in names)
  height = 0.9 + len(names) * (0.13 + 0.14 * tallest)

  def draw(figure: plots.Figure) -> None:
    grid = figure.subplots(lines_, columns, sharex=True, sharey=True, squeeze=False)
    for axes in grid.flat[len(panels) :]:
      axes.set_axis_off()
    for axes, (title, shown) in zip(grid.flat, panels.items()):
      for point in sorted(shown, key=lambda point: order.index(point.label)):
        place = order.index(point.label)
        axes.errorbar(point.total.mean, place, xerr=point.total.half or 0, capsize=3, **look[point.label])
        place_of_text = axes.get_yaxis_transform()
        axes.text(1.02, place, str(point.total), transform=place_of_text, va='center', fontsize=8)
      axes.set(xlabel=xlabel, ylim=(len(names) - 0.5, -0.5))
      axes.set_yticks(range(len(names)), names)
      axes.tick_params(axis='y', length=0, labelsize=9)
      axes.tick_params(labelbottom=True)
      axes.set_title(title, loc='left')
    plots.widen(grid[0, 0].xaxis, 0.002)
    plots.within_percent(grid[0, 0].xaxis)

  return Drawing(draw, (3.4 + 2.6 * max(columns, 2), lines_ * height), shows)


def lines(points: Sequence[Point], xlabel: str, ylabel: str) -> Drawing:
  """Percentages over a positive number, in panels with common axes. A line joins the points of a label.

  The axes are logarithmic: the one of percentages in the distance to 100, so that 98 and 99 are as far apart as 60 and
  80. The means decide the range of percentages, so that a wide bar may be cut off.
  """
  look, panels = looks(points), _by_panel(points)
  first, last = min(point.at for point in points), max(point.at for point in points)
  columns, shows = min(2, len(panels)), _in_words(panels)
  lines_, legend_rows = -(-len(panels) // columns), -(-len(look) // 2)

  def draw(figure: plots.Figure) -> None:
    grid = figure.subplots(lines_, columns, sharex=True, sharey=True, squeeze=False)
    for axes in grid.flat[len(panels) :]:
      axes.set_axis_off()
    for axes, (title, shown) in zip(grid.flat, panels.items()):
      for index, (label, style) in enumerate(look.items()):
        aside = (last / first) ** (_ASIDE * (index - (len(look) - 1) / 2))
        _draw_line(axes, [point for point in shown if point.label == label], aside, style)
      axes.set_title(title, loc='left')
      axes.tick_params(labelbottom=True)
    means = [point.total.mean for point in points]
    room = _ROOM * (max(means) - min(means))
    plots.log_of_error(grid[0, 0].yaxis, [min(means) - room, min(max(means) + room, (2 * max(means) + 100) / 3)])
    low, high = grid[0, 0].get_ylim()
    if np.count_nonzero((low <= grid[0, 0].get_yticks()) & (grid[0, 0].get_yticks() <= high)) < _FEWEST_TICKS:
      grid[0, 0].yaxis.set_major_locator(plots.ticker.MaxNLocator(5, steps=[1, 2, 5, 10]))
    plots.plain_log(grid[0, 0].xaxis)
    ticks = sorted({float(f'{point.at:.2g}') for point in points})
    if len(ticks) > 1:
      grid[0, 0].set_xticks(ticks, [f'{tick:g}' for tick in ticks])
    for axes in grid[-1]:
      axes.set_xlabel(xlabel)
    for axes in grid[:, 0]:
      axes.set_ylabel(ylabel)
    handles = [grid[0, 0].errorbar([], [], [], capsize=2, elinewidth=1, **style) for style in look.values()]
    names = [_wrapped(label, 40) for label in look]
    figure.legend(handles, names, loc='outside lower center', ncols=2, fontsize=8.5)

  return Drawing(draw, (6.8, 2.7 * lines_ + 0.27 * legend_rows + 0.3), shows)


def _draw_line(axes: Axes, points: Sequence[Point], aside: float, style: Mapping[str, Any]) -> None:
  """A line through the means of points from left to right, with bars for the intervals."""
  ordered = sorted(points, key=lambda point: point.at)
  means, bars = [point.total.mean for point in ordered], [point.total.half or 0 for point in ordered]
  if ordered:
    axes.errorbar([aside * point.at for point in ordered], means, bars, capsize=2, elinewidth=1, **style)
