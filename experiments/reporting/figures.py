"""The look of each method, which is the same in every figure, and the kinds of figures that the sections share."""

from collections.abc import Iterator, Sequence
import textwrap
from typing import Any, NamedTuple, Optional

import numpy as np

from experiments import plots
from experiments.reporting import pages
from experiments.reporting import runs

_DOTS, _DASHES, _DASH_DOT = (0, (1, 1.5)), (0, (5, 2)), (0, (5, 1.5, 1, 1.5))
_LONG, _DASH_DOT_DOT, _LONG_SHORT = (0, (10, 2)), (0, (5, 1.5, 1, 1.5, 1, 1.5)), (0, (10, 1.5, 3, 1.5))


class Look(NamedTuple):
  """Attributes:
  label: The method's name in print.
  colour: The colour of its lines and markers. No two methods have the same colour or the same marker.
  dash: Matplotlib's line style. Methods with the same dash differ in brightness.
  marker: Matplotlib's marker.
  parts: (adaptive budget, adaptive clip, layer-wise noise), for the methods of the documents' ablation.
  """

  label: str
  colour: str
  dash: Any
  marker: str
  parts: Optional[tuple[bool, bool, bool]] = None


LOOKS: dict[str, Look] = {
  'quap': Look('QuAP-FL', '#b2182b', '-', 'o', (True, True, True)),
  'certified': Look('Certified QuAP-FL', '#40004b', _LONG_SHORT, 'd'),
  'fedavg': Look('FedAvg (no privacy)', '#000000', _DOTS, 'x'),
  'fixed_dp': Look('Fixed-DP', '#4393c3', _DASHES, 's', (False, False, False)),
  'fixed_dp_layerwise': Look('Fixed-DP, layer-wise', '#92c5de', _DASHES, 'D', (False, False, True)),
  'adaptive_clip': Look('Adaptive clipping (Andrew et al.)', '#1b7837', _DASH_DOT, '^'),
  'layerwise': Look('Layer-wise, uniform budget', '#f4a582', _LONG, 'v', (False, True, True)),
  'quantile_clip': Look('Quantile clip', '#762a83', _DOTS, 'P', (False, True, False)),
  'adaptive_budget': Look('Adaptive budget', '#01665e', _DASH_DOT_DOT, '<', (True, False, False)),
  'adaptive_budget_clip': Look('Adaptive budget and clip', '#35978f', _LONG, '>', (True, True, False)),
  'adaptive_budget_layerwise': Look('Adaptive budget, layer-wise', '#d8b365', _DASH_DOT_DOT, 'p', (True, False, True)),
  'pt_adp': Look('PT-ADP (an interpretation)', '#8c510a', (0, (5, 1.5, 5, 1.5, 1, 1.5)), '1'),
  'dynamic_budget': Look('Dynamic budget', '#5e4fa2', (0, (6, 1)), '$B$'),
  'd2dp': Look('D2DP (an interpretation)', '#9e0142', (0, (6, 1)), '$2$'),
  'acdp': Look('ACDP (an interpretation)', '#d53e4f', (0, (6, 1, 2, 1)), '$C$'),
  'fedapca': Look('FedAPCA (an interpretation)', '#3288bd', (0, (6, 1, 2, 1)), '$P$'),
  'lee_kifer': Look('Lee and Kifer', '#66c2a5', (0, (6, 1, 2, 1)), '$L$'),
  'local_dp': Look('Local DP', '#a6761d', (0, (3, 1, 1, 1, 1, 1, 1, 1)), '8'),
  'fedbuff': Look('FedBuff (asynchronous)', '#1f78b4', (0, (8, 1, 3, 1)), 'H'),
  'tff_dp_fedavg': Look('TFF DP-FedAvg', '#4d4d4d', _DASHES, '*'),
  'tff_dp_fedavg_adaptive': Look('TFF DP-FedAvg, adaptive clip', '#e7298a', _LONG, 'X'),
  'tff_dp_ftrl': Look('TFF DP-FTRL', '#66a61e', _DASH_DOT, '+'),
  'tff_layerwise_adaptive': Look('TFF adaptive by layer', '#adadad', _DOTS, '2'),
  'scaffold': Look('SCAFFOLD', '#003c30', (0, (3, 1)), '$S$'),
  'fednova': Look('FedNova', '#7fbc41', (0, (3, 1)), '$N$'),
  'feddyn': Look('FedDyn', '#fbb4d9', (0, (3, 1)), '$D$'),
  'fedvarp': Look('FedVARP', '#2166ac', (0, (7, 1, 3, 1)), '$V$'),
  'fl_fdms': Look('FL-FDMS', '#fdae61', (0, (7, 1, 3, 1)), '$F$'),
  'safari': Look('SAFARI (an interpretation)', '#542788', (0, (7, 1, 3, 1)), '$A$'),
}

# The ablation's methods by the parts they have.
BY_PARTS = {look.parts: name for name, look in LOOKS.items() if look.parts is not None}


def of(algorithm: str) -> Look:
  """The look of the method that an --algorithm spec names."""
  name = algorithm.partition(':')[0]
  return LOOKS.get(name, Look(name, '#333333', _DASH_DOT_DOT, '|'))


def order(algorithm: str) -> tuple[int, str]:
  """Sorts specs in the order of `LOOKS`."""
  name, names = algorithm.partition(':')[0], list(LOOKS)
  return (names.index(name) if name in names else len(names), algorithm)


def labels(algorithms: Sequence[str]) -> list[str]:
  """The methods' names, with the parameters in which specs of one method differ and no others."""
  parsed = [runs.parse('algorithm', algorithm) for algorithm in algorithms]
  found = []
  for algorithm, (name, own, _) in zip(algorithms, parsed):
    others = [parameters for other, parameters, _ in parsed if other == name]
    differing = [key for key in own if any(other.get(key) != own[key] for other in others)]
    words = ', '.join(f'{key}={own[key]}' for key in differing)
    found.append(of(algorithm).label + (f' ({words})' if words else ''))
  return found


class Series(NamedTuple):
  """What a figure shows about one method, or about one group of runs.

  Attributes:
    algorithm: Its --algorithm spec, which decides the look.
    label: Its name in this figure.
    x: float[n].
    y: float[seeds, n], or n quantities.
    total: The one number that sums up the series, if the figure shows it.
    variant: The text that distinguishes the series from others of its method. Each such text has its own marker fill.
      If it is '', the label is used.
  """

  algorithm: str
  label: str
  x: Sequence[float] = ()
  y: Any = ()
  total: Optional[pages.Quantity] = None
  variant: str = ''


def styled(shown: Sequence[Series]) -> Iterator[tuple[Series, dict[str, Any]]]:
  """Each series with Matplotlib's arguments for its look. Markers of one method differ in their fill."""
  for series in shown:
    look = of(series.algorithm)
    # Sorted, so that panels agree even if they order their series differently.
    variants = sorted({s.variant or s.label for s in shown if of(s.algorithm) == look})
    fill = ('full', 'none', 'left', 'top', 'right', 'bottom')[variants.index(series.variant or series.label) % 6]
    yield series, dict(color=look.colour, linestyle=look.dash, marker=look.marker, fillstyle=fill, label=series.label)


def _wrapped(words: str, width: int) -> str:
  return '\n'.join(textwrap.wrap(words, width))


def legend(axes):
  """Puts a legend beside the axes, where it hides nothing."""
  handles, names = axes.get_legend_handles_labels()
  names = [_wrapped(name, 34) for name in names]
  axes.legend(handles, names, loc='upper left', bbox_to_anchor=(1.01, 1), borderaxespad=0)


def curves(axes, shown: Sequence[Series], ylabel: str):
  """Means over seeds by round. If there are few curves, a band shows the smallest and the largest seed."""
  few = len(shown) <= 4
  weight = {} if few else {'linewidth': 1.1, 'markersize': 4.5}
  for index, (series, style) in enumerate(styled(shown)):
    if len(series.y) > 1 and few:
      axes.fill_between(series.x, np.min(series.y, 0), np.max(series.y, 0), color=style['color'], alpha=0.15, lw=0)
    every = max(1, len(series.x) // 6)
    axes.plot(series.x, np.mean(series.y, 0), markevery=(index * every // 5 % every, every), **style, **weight)
  axes.set_ylabel(ylabel)
  plots.whole_rounds(axes)


def by_round(figure, shown: Sequence[Series], ylabel: str, total_label: str, log: bool = False):
  """Curves by round. The legend beside them is a row for each, with its name and total, the largest on top."""
  axes, *panel = figure.subplots(1, 2, width_ratios=(2, 1)) if len(shown) > 1 else [figure.subplots()]
  curves(axes, shown, ylabel)
  (plots.plain_log if log else plots.within_percent)(axes.yaxis)
  if panel:
    rows(panel[0], sorted(shown, key=lambda series: -series.total.mean), total_label, log)


def rows(axes, shown: Sequence[Series], xlabel: str, log: bool = False):
  """A row for each total, the first one on top: a mark, a bar for the deviation over seeds, the value and the name."""
  for place, (series, style) in enumerate(styled(shown)):
    mean, spread = series.total.mean, series.total.deviation or 0
    axes.errorbar(mean, place, xerr=[[min(spread, 0.9 * mean) if log else spread], [spread]], capsize=3, **style)
  axes.set_yticks(range(len(shown)), [_wrapped(f'{series.total} {series.label}', 54) for series in shown])
  axes.yaxis.tick_right()
  axes.tick_params(axis='y', length=0, labelsize=9)
  axes.spines['left'].set_visible(False)
  axes.set(xlabel=xlabel, ylim=(len(shown) - 0.5, -0.5))
  if log:
    plots.plain_log(axes.xaxis)
  else:
    plots.widen(axes.xaxis, 0.002)
    plots.within_percent(axes.xaxis)


def lines(axes, shown: Sequence[Series], xlabel: str, ylabel: str, log: bool = False, ticks: Sequence[float] = ()):
  """Quantities over a number. A line joins the quantities of a series. Bars are the deviation over seeds."""
  for series, style in styled(shown):
    axes.errorbar(series.x, [y.mean for y in series.y], [y.deviation or 0 for y in series.y], capsize=3, **style)
  axes.set(xlabel=xlabel, ylabel=ylabel, xscale='log' if log else 'linear')
  plots.within_percent(axes.yaxis)
  plots.widen(axes.xaxis, 0.05)
  if ticks:
    axes.minorticks_off()
    axes.set_xticks(ticks, [f'{tick:g}' for tick in ticks])
  legend(axes)
