"""The kinds of figures that sections share, and the look of a series, which follows from its place among the methods.

Each kind of figure is a function that returns what draws the figure, and the figure's size in inches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import itertools
import textwrap
from typing import Any, NamedTuple, Optional, TYPE_CHECKING, Union

import numpy as np
import pandas as pd

from experiments.reporting import pages
from experiments.running import plots

if TYPE_CHECKING:
  from matplotlib.axes import Axes

MOST_LABELS = len(plots.COLOURS)
_MOST_BANDS = 4
# How far the marks of two series at one place are moved apart, as a share of a logarithmic axis.
_ASIDE = 0.012
# How far an axis reaches beyond the means, as a share of their range.
_ROOM = 0.12

Drawing = tuple[plots.Draw, tuple[float, float]]


class Series(NamedTuple):
  """A curve by round of one method, or of one group of runs.

  Attributes:
    place: The place of its --algorithm spec among those of the report, which decides the look in all figures.
    label: Its name in this figure.
    x: float[n], the rounds.
    y: float[seeds, n].
    total: The one number that sums up the series, if the figure shows it.
  """

  place: int
  label: str
  x: np.ndarray
  y: np.ndarray
  total: Optional[pages.Quantity] = None


class Point(NamedTuple):
  """A figure of one method at a number, or at a text that titles a panel. `place` and `label` are as in `Series`."""

  place: int
  label: str
  at: Any
  total: Optional[pages.Quantity]


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


def most(totals: Mapping[str, Sequence[Optional[pages.Quantity]]]) -> tuple[list[str], str]:
  """The labels that a figure shows, and a sentence for its caption if these are not all: those with the best means."""
  if len(totals) <= MOST_LABELS:
    return list(totals), ''

  def mean(label: str) -> float:
    means = [total.mean for total in totals[label] if total is not None]
    return float(np.mean(means)) if means else -np.inf

  kept = sorted(totals, key=mean, reverse=True)[:MOST_LABELS]
  words = f' Of {len(totals)} lines, the figure has the {MOST_LABELS} with the largest means. The tables have all.'
  return [label for label in totals if label in kept], words


def _wrapped(words: str, width: int) -> str:
  return '\n'.join(textwrap.wrap(words, width))


def legend(axes: Axes) -> None:
  """Puts a legend at the right of the axes, where it hides nothing."""
  handles, names = axes.get_legend_handles_labels()
  names = [_wrapped(name, 34) for name in names]
  axes.legend(handles, names, loc='upper left', bbox_to_anchor=(1.01, 1), borderaxespad=0)


def curves(axes: Axes, shown: Sequence[Series], ylabel: str) -> None:
  """Means over seeds by round. If there are few curves, a band shows the smallest and the largest seed."""
  few, look = len(shown) <= _MOST_BANDS, looks(shown)
  weight: plots.Style = {} if few else {'linewidth': 1.1, 'markersize': 4.5}
  for index, series in enumerate(shown):
    style = look[series.label]
    if len(series.y) > 1 and few:
      axes.fill_between(series.x, np.min(series.y, 0), np.max(series.y, 0), color=style['color'], alpha=0.15, lw=0)
    every = max(1, len(series.x) // 6)
    axes.plot(series.x, np.mean(series.y, 0), markevery=(index * every // 5 % every, every), **style, **weight)
  axes.set_ylabel(ylabel)
  plots.whole_rounds(axes)


def _less_total(series: Series) -> float:
  return -pages.known(series.total).mean


def by_round(shown: Sequence[Series], ylabel: str, total_label: str, log: bool = False) -> Drawing:
  """Curves by round. At their right is a row for each, with its total and name, the largest on top."""

  def draw(figure: plots.Figure) -> None:
    axes, *panel = figure.subplots(1, 2, width_ratios=(2, 1)) if len(shown) > 1 else [figure.subplots()]
    curves(axes, shown, ylabel)
    (plots.plain_log if log else plots.within_percent)(axes.yaxis)
    if panel:
      ranked, look = sorted(shown, key=_less_total), looks(shown)
      _draw_rows(panel[0], [(series.total, look[series.label]) for series in ranked], total_label, log)
      panel[0].set_yticks(range(len(shown)), [_wrapped(f'{one.total} {one.label}', 54) for one in ranked])
      panel[0].yaxis.tick_right()
      if log:
        plots.plain_log(panel[0].xaxis)
      else:
        plots.widen(panel[0].xaxis, 0.002)
        plots.within_percent(panel[0].xaxis)
      panel[0].spines['left'].set_visible(False)

  return draw, (9, max(4, 0.3 * len(shown) + 1.2)) if len(shown) > 1 else (6.5, 4)


def over_values(points: Sequence[Point], xlabel: str, ylabel: str, log: bool = False) -> Drawing:
  """Lines over numbers, or panels for texts, in the order of the points.

  Args:
    points: At least one.
    xlabel: The label of the points' axis.
    ylabel: The label of the quantities' axis.
    log: Whether an axis of numbers is logarithmic.
  """
  if any(isinstance(point.at, str) for point in points):
    by_title: dict[str, list[Point]] = {}
    for point in points:
      by_title.setdefault(str(point.at), []).append(point)
    return panels(by_title, ylabel)
  return lines(points, xlabel, ylabel, log)


def panels(shown: Mapping[str, Sequence[Point]], xlabel: str) -> Drawing:
  """The totals in small panels with a common axis, a row for each label, in one order: the best on top.

  Panels with more labels come first.

  Args:
    shown: The points by the title of their panel. If all have one label, the titles are the rows of a single panel.
    xlabel: The name of the axis.
  """
  look = looks(itertools.chain.from_iterable(shown.values()))
  totals = pd.DataFrame({title: _totals(points) for title, points in shown.items()})
  totals = totals[totals.count().sort_values(ascending=False, kind='stable').index]
  means = totals.map(lambda total: total.mean if isinstance(total, pages.Quantity) else np.nan)
  # A panel with a single method does not say how good that method is.
  lead = (means - means.mean()).loc[:, means.count() > 1].mean(axis=1)
  totals = totals.loc[lead.sort_values(ascending=False, kind='stable').index]
  look_of_row = {label: look[label] for label in totals.index}
  styles = pd.DataFrame({title: look_of_row for title in totals})
  if len(totals) == 1:
    totals, styles = totals.T, styles.T
  names = [_wrapped(name, 40) for name in totals.index]
  columns = min(3, totals.shape[1])
  lines, most = -(-totals.shape[1] // columns), max(1 + name.count('\n') for name in names)
  height = 0.9 + len(names) * (0.13 + 0.14 * most)

  def draw(figure: plots.Figure) -> None:
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for axes in grid.flat[totals.shape[1] :]:
      axes.set_axis_off()
    for axes, title in zip(grid.flat, totals):
      _draw_rows(axes, list(zip(totals[title], styles[title])), xlabel)
      axes.set_yticks(range(len(names)), names)
      axes.tick_params(labelbottom=True)
      for place, total in enumerate(totals[title]):
        if isinstance(total, pages.Quantity):
          axes.text(1.02, place, str(total), transform=axes.get_yaxis_transform(), va='center', fontsize=8)
      if totals.shape[1] > 1:
        axes.set_title(title, loc='left')
    plots.widen(grid[0, 0].xaxis, 0.002)
    plots.within_percent(grid[0, 0].xaxis)

  return draw, (3.4 + 2.6 * max(columns, 2), lines * height)


def _totals(points: Iterable[Point]) -> dict[str, Optional[pages.Quantity]]:
  return {point.label: point.total for point in points}


def _draw_rows(axes: Axes, shown: Sequence[tuple[Any, Mapping[str, Any]]], xlabel: str, log: bool = False) -> None:
  """A row for each total with its style, the first one on top: a mark, and a bar for the deviation over seeds."""
  for place, (total, style) in enumerate(shown):
    if isinstance(total, pages.Quantity):
      spread = total.deviation or 0
      low = min(spread, 0.9 * total.mean) if log else spread
      axes.errorbar(total.mean, place, xerr=[[low], [spread]], capsize=3, **style)
  axes.tick_params(axis='y', length=0, labelsize=9)
  axes.set(xlabel=xlabel, ylim=(len(shown) - 0.5, -0.5))


def in_panels(shown: Mapping[str, Sequence[Point]], xlabel: str, ylabel: str) -> Drawing:
  """Percentages over a positive number, with a panel for each title. A line joins the points of a label.

  The axes are common, and logarithmic: the one of percentages in the distance to 100, so that 98 and 99 are as far
  apart as 60 and 80. Bars are the points' deviations. The means decide the range of percentages, so that a wide bar may
  be cut off.
  """
  every = [point for points in shown.values() for point in points]
  look = looks(every)
  first, last = min(point.at for point in every), max(point.at for point in every)
  columns = min(2, len(shown))
  lines_, legend_rows = -(-len(shown) // columns), -(-len(look) // 2)

  def draw(figure: plots.Figure) -> None:
    grid = figure.subplots(lines_, columns, sharex=True, sharey=True, squeeze=False)
    for axes in grid.flat[len(shown) :]:
      axes.set_axis_off()
    for axes, (title, points) in zip(grid.flat, shown.items()):
      for index, (label, style) in enumerate(look.items()):
        own = [point for point in points if point.label == label]
        if own:
          aside = (last / first) ** (_ASIDE * (index - (len(look) - 1) / 2))
          _draw_line(axes, own, aside, capsize=2, elinewidth=1, **style)
      axes.set_title(title, loc='left')
      axes.tick_params(labelbottom=True)
    means = [pages.known(point.total).mean for point in every]
    room = _ROOM * (max(means) - min(means))
    plots.log_of_error(grid[0, 0].yaxis, [min(means) - room, min(max(means) + room, (2 * max(means) + 100) / 3)])
    plots.plain_log(grid[0, 0].xaxis)
    ticks = sorted({round(point.at) for point in every if round(point.at) > 0})
    if len(ticks) > 1:
      grid[0, 0].set_xticks(ticks, [f'{tick:g}' for tick in ticks])
    for axes in grid[-1]:
      axes.set_xlabel(xlabel)
    for axes in grid[:, 0]:
      axes.set_ylabel(ylabel)
    handles = [grid[0, 0].errorbar([], [], [], capsize=2, elinewidth=1, **style) for style in look.values()]
    names = [_wrapped(label, 40) for label in look]
    figure.legend(handles, names, loc='outside lower center', ncols=2, fontsize=8.5)

  return draw, (6.8, 2.7 * lines_ + 0.27 * legend_rows + 0.3)


def lines(points: Sequence[Point], xlabel: str, ylabel: str, log: bool = False) -> Drawing:
  """Quantities over a number. A line joins the quantities of a label. Bars are the deviation over seeds."""
  labels, ticks = dict.fromkeys(point.label for point in points), sorted({point.at for point in points})

  def draw(figure: plots.Figure) -> None:
    axes, look = figure.subplots(), looks(points)
    for label in labels:
      _draw_line(axes, [point for point in points if point.label == label], capsize=3, **look[label])
    xscale = 'log' if log else 'linear'
    axes.set(xlabel=xlabel, ylabel=ylabel, xscale=xscale)
    plots.within_percent(axes.yaxis)
    plots.widen(axes.xaxis, 0.05)
    axes.minorticks_off()
    axes.set_xticks(ticks, [f'{tick:g}' for tick in ticks])
    legend(axes)

  return draw, (9, max(4.0, 0.36 * len(labels) + 1))


def _draw_line(axes: Axes, points: Iterable[Point], aside: float = 1.0, **style: Any) -> None:
  """A line through the means of points from left to right, with bars for the deviations over seeds."""
  own = sorted(points, key=lambda point: point.at)
  totals = [pages.known(point.total) for point in own]
  means, bars = [total.mean for total in totals], [total.deviation or 0 for total in totals]
  axes.errorbar([aside * point.at for point in own], means, bars, **style)
