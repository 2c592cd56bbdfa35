"""The style that all figures share, and the plot of a run: accuracy, ε, clipping norm and noise ratio by round.

The plot of a certified run shows what clients have spent in place of a clipping norm that is the same in all rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import csv
import io
from typing import Any, Callable, TYPE_CHECKING, Union

import numpy as np

from quap_tff.common import lazy

if TYPE_CHECKING:
  from matplotlib.axes import Axes
  from matplotlib.axis import XAxis
  from matplotlib.axis import YAxis
  from matplotlib.figure import Figure

# Only drawing needs them.
matplotlib = lazy.module('matplotlib')
mpl_figure = lazy.module('matplotlib.figure')
ticker = lazy.module('matplotlib.ticker')
backend_agg = lazy.module('matplotlib.backends.backend_agg')

_DPI = 130
_PERCENT_TICKS = (0, 20, 40, 60, 70, 80, 85, 90, 95, 97, 98, 99, 99.5, 99.8)
# A column that a certified run's plot has in addition to those of metrics.csv: the largest ε of any client so far.
SPENT = 'epsilon_spent'

# The colours of Okabe and Ito, which people with any colour vision can tell apart, with a grey in place of yellow. In
# greyscale, markers and dashes tell the labels apart. A figure has no more labels than there are looks.
COLOURS = ('#000000', '#e69f00', '#0072b2', '#56b4e9', '#d55e00', '#009e73', '#cc79a7', '#777777')
_MARKERS = 'osD^vPX<'
_DASHES = ('-', (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (10, 2)))

# A tick label must be the number itself. Matplotlib would otherwise put an offset ("+2.9999") or a factor ("1e-6") at
# the end of an axis with nearly equal values, and the labels would show something else.
STYLE = {
  'axes.formatter.useoffset': False,
  'axes.formatter.limits': (-99, 99),
  'font.size': 10,
  'axes.titlesize': 11,
  'axes.grid': True,
  'grid.alpha': 0.3,
  'axes.axisbelow': True,
  'axes.spines.top': False,
  'axes.spines.right': False,
  'legend.fontsize': 9,
  'legend.frameon': False,
  'legend.handlelength': 3.2,
  'lines.linewidth': 1.6,
  'lines.markersize': 6,
  'lines.markeredgewidth': 1.4,
}

Draw = Callable[['Figure'], None]


# Matplotlib's arguments for a line, by name.
Style = dict[str, Any]


def look(place: int) -> Style:
  """Matplotlib's arguments for the series at a place of a figure: a colour, a marker and a dash."""
  place %= len(COLOURS)
  return dict(color=COLOURS[place], marker=_MARKERS[place], linestyle=_DASHES[place % len(_DASHES)])


def drawn(draw: Draw, size: tuple[float, float]) -> Figure:
  """A figure of `size` inches in the shared style. It is drawn, so its ticks and their labels are final."""
  with matplotlib.rc_context(STYLE):
    figure = _made(draw, size)
    figure.canvas.draw()
  return figure


def png(draw: Draw, size: tuple[float, float]) -> bytes:
  """The figure as a PNG file. The same data give the same bytes."""
  buffer = io.BytesIO()
  with matplotlib.rc_context(STYLE):
    _made(draw, size).savefig(buffer, format='png', dpi=_DPI, metadata={'Software': None})
  return buffer.getvalue()


def _made(draw: Draw, size: tuple[float, float]) -> Figure:
  figure = mpl_figure.Figure(figsize=size, layout='constrained')
  backend_agg.FigureCanvasAgg(figure)
  draw(figure)
  return figure


def whole_rounds(axes: Axes) -> None:
  """Puts the ticks of the x axis on whole rounds."""
  axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
  axes.set_xlabel('round')


def plain_log(axis: Union[XAxis, YAxis]) -> None:
  """Makes an axis logarithmic, with plain numbers as labels. The data must have been drawn."""
  axis.axes.set(**{f'{axis.axis_name}scale': 'log'})
  low, high = axis.get_view_interval()
  log = ticker.LogLocator(subs=(1, 2, 5), numticks=12)
  locator = log if high > 10 * low else ticker.MaxNLocator(6, steps=[1, 2, 5, 10])
  axis.set_major_locator(locator)
  axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: _short(value)))
  axis.set_minor_locator(ticker.NullLocator())


def _short(value: float) -> str:
  """A number for an axis: 20,000 is 20k, so that neighbouring labels do not overlap."""
  return f'{value / 1000:.10g}k' if abs(value) >= 10_000 else f'{value:.10g}'


def widen(axis: Union[XAxis, YAxis], share: float) -> None:
  """Makes an axis reach at least `share` of its middle value to either side, so that rounding errors do not fill it."""
  data, view = axis.get_data_interval(), axis.get_view_interval()
  if np.isfinite(data).all():
    middle = np.mean(data)
    reach = share * abs(middle)
    limits = min(view[0], middle - reach), max(view[1], middle + reach)
    axis.axes.set(**{f'{axis.axis_name}lim': limits})


def within_percent(axis: Union[XAxis, YAxis]) -> None:
  """Limits an axis of percentages, which the data have scaled, to 0 to 100, with room for a marker."""
  low, high = axis.get_view_interval() if np.isfinite(axis.get_data_interval()).all() else (0, 100)
  axis.axes.set(**{f'{axis.axis_name}lim': (max(low, -1.5), min(high, 101.5))})


def log_of_error(axis: YAxis, values: Sequence[float]) -> None:
  """Makes an axis of percentages, which has `values`, logarithmic in the distance to 100, with plain labels."""
  least, most = 0.1, 100.0  # Distances beyond them are drawn at them.

  def distance(percent: Union[float, np.ndarray]) -> np.ndarray:
    return np.clip(100 - np.asarray(percent, float), least, most)

  axis.axes.set_yscale(
    'function', functions=(lambda percent: -np.log10(distance(percent)), lambda height: 100 - 10.0**-height)
  )
  low = 100 - min(most, 1.15 * float(distance(min(values))))
  axis.axes.set_ylim(low, 100 - 0.8 * float(distance(max(values))))
  axis.set_major_locator(ticker.FixedLocator([tick for tick in _PERCENT_TICKS if tick >= low]))
  axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f'{value:g}'))
  axis.set_minor_locator(ticker.NullLocator())


def read_metrics(path: str) -> dict[str, np.ndarray]:
  """The columns of a run's metrics.csv or clients.csv, float64[rows] each; NaN where a row has no value.

  Raises:
    OSError: If the file cannot be opened.
    ValueError: If a value is not a number, or the file is not text.
  """
  with open(path, newline='', encoding='utf-8') as f:
    rows: list[dict[str, str]] = list(csv.DictReader(f))
  columns = rows[0].keys() if rows else ()
  values = {}
  for name in columns:
    values[name] = np.array([float(row[name] or 'nan') for row in rows])
  return values


def plot_run(metrics: Mapping[str, np.ndarray], plot_path: str, title: str) -> None:
  """Draws the columns of metrics.csv into a PNG file: a panel for each part of the run that has a curve."""
  image = png(*run_figure(metrics, title))
  with open(plot_path, 'wb') as f:
    f.write(image)


def panels_of(metrics: Mapping[str, np.ndarray]) -> list[Callable]:
  """Functions that draw the parts of a run that have a curve. A single value makes no curve, and neither do zeros."""
  finite = {name: values[np.isfinite(values)] for name, values in metrics.items()}

  def has(name: str) -> bool:
    return name in metrics and len(finite[name]) > 1 and bool(np.any(finite[name] != 0))

  shown = [panel for names, panel in _PANELS if any(map(has, names))]
  if has(SPENT) and not has('norm_p10') and np.ptp(finite.get('clipping_norm', np.zeros(1))) == 0:
    shown.remove(_clip)
  return shown


def run_figure(metrics: Mapping[str, np.ndarray], title: str) -> tuple[Draw, tuple[float, float]]:
  """How to draw the plot of a run with at least one panel, and its size in inches."""
  panels = panels_of(metrics)
  rows, columns = (len(panels) + 1) // 2, min(2, len(panels))

  def draw(figure: Figure) -> None:
    for place, panel in enumerate(panels, 1):
      axes = figure.add_subplot(rows, columns, place)
      panel(axes, metrics)
      whole_rounds(axes)
    figure.suptitle(title)

  return draw, (5 * columns, 3.5 * rows)


def _accuracy(axes: Axes, metrics: Mapping[str, np.ndarray]) -> None:
  # The column is missing if a run was interrupted before its first test.
  test_accuracy = metrics.get('test_accuracy', np.full(len(metrics['round']), np.nan))
  _line(axes, metrics['round'], 100 * test_accuracy, label='test')
  if 'train_accuracy' in metrics:
    _line(axes, metrics['round'], 100 * metrics['train_accuracy'], color='grey', linestyle=':', label='local training')
  within_percent(axes.yaxis)
  axes.set(ylabel='accuracy (%)')
  _head(axes, 'Accuracy')


def _epsilon(axes: Axes, metrics: Mapping[str, np.ndarray]) -> None:
  _line(axes, metrics['round'], metrics['epsilon'])
  widen(axes.yaxis, 0.05)
  axes.set(ylabel='nominal ε')
  _head(axes, 'Budget of the round')


def _spent(axes: Axes, metrics: Mapping[str, np.ndarray]) -> None:
  _line(axes, metrics['round'], metrics[SPENT])
  axes.set(ylabel='ε, largest of any client', ylim=(0, None))
  _head(axes, 'Spent so far')


def _clip(axes: Axes, metrics: Mapping[str, np.ndarray]) -> None:
  if 'norm_p10' in metrics:
    axes.fill_between(
      metrics['round'], metrics['norm_p10'], metrics['norm_p90'], color='lightgrey', label='10-90% of updates'
    )
  _line(axes, metrics['round'], metrics['clipping_norm'], label='clipping norm')
  widen(axes.yaxis, 0.05)
  axes.set(ylabel='norm of the critical layers')
  _head(axes, 'Norms')


def _ratio(axes: Axes, metrics: Mapping[str, np.ndarray]) -> None:
  _line(axes, metrics['round'], np.where(metrics['noise_to_signal'] > 0, metrics['noise_to_signal'], np.nan))
  plain_log(axes.yaxis)
  axes.set(ylabel='noise norm / signal norm')
  _head(axes, 'Noise')


def _line(axes: Axes, rounds: np.ndarray, values: np.ndarray, **style: Any) -> None:
  """A line through the finite values. A single value gets a mark, since no line would show it."""
  known = np.isfinite(values)
  if known.any():
    marker = 'o' if known.sum() == 1 else None
    axes.plot(rounds[known], values[known], **{'color': 'black', 'marker': marker, **style})


def _head(axes: Axes, title: str) -> None:
  """A panel's title at the left, and its legend at the right, above the data."""
  axes.set_title(title, loc='left')
  if axes.get_legend_handles_labels()[0]:
    axes.legend(loc='lower right', bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0.2, borderpad=0.1, handlelength=2)


# Each panel, with its columns: it is drawn if one of them has a curve.
_PANELS = (
  (('test_accuracy', 'train_accuracy'), _accuracy),
  (('epsilon',), _epsilon),
  ((SPENT,), _spent),
  (('clipping_norm', 'norm_p10'), _clip),
  (('noise_to_signal',), _ratio),
)
