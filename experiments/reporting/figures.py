"""Figures as PNG bytes, and the style that all share."""

import io
from typing import Sequence

import matplotlib
from matplotlib import figure as mpl_figure
from matplotlib.backends import backend_agg
import numpy as np

from experiments.reporting import document
from experiments.reporting import methods
from experiments.reporting import quantities

_DPI = 130
_STYLE = {
    'font.size': 10, 'axes.grid': True, 'grid.alpha': 0.3, 'legend.fontsize': 8, 'legend.framealpha': 0.85,
    'lines.linewidth': 1.6, 'lines.markersize': 6, 'lines.markeredgewidth': 1.4, 'legend.handlelength': 3.6,
}


def png(shown: document.Figure) -> bytes:
  """Draws a figure; the same runs give the same bytes."""
  with matplotlib.rc_context(_STYLE):
    figure = mpl_figure.Figure(figsize=shown.size, layout='constrained')
    backend_agg.FigureCanvasAgg(figure)
    shown.draw(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format='png', dpi=_DPI, metadata={'Software': None})
  return buffer.getvalue()


def line(axes, algorithm: str, x, y, index: int = 0, label: str = '', **changes):
  """A method's line over rounds, with about eight markers; `index` shifts them, so that two lines' do not coincide."""
  style = methods.of(algorithm)
  every = max(1, len(x) // 8)
  options = dict(
      color=style.colour, linestyle=style.dash, marker=style.marker, markevery=(index * every // 5 % every, every),
      label=label or style.label
  )
  axes.plot(x, y, **{**options, **changes})


def band(axes, algorithm: str, x, values):
  """The spread of a method over seeds: its values' smallest to largest. `values`: float[seeds, len(x)]."""
  if len(values) > 1:
    axes.fill_between(x, np.min(values, 0), np.max(values, 0), color=methods.of(algorithm).colour, alpha=0.15, lw=0)


def points(axes, algorithm: str, x, accuracies: Sequence[quantities.Quantity], fill: str, joined: bool = True):
  """A method's accuracies with their deviations as bars, a line through them if x is a number."""
  style = methods.of(algorithm)
  means, bars = [a.mean for a in accuracies], [a.deviation or 0 for a in accuracies]
  axes.errorbar(x, means, bars, color=style.colour, linestyle='none', capsize=3)
  axes.plot(
      x, means, color=style.colour, linestyle=style.dash if joined else 'none', marker=style.marker, fillstyle=fill,
      label=style.label
  )


def legend(axes):
  """A legend outside the axes, where it hides nothing."""
  axes.legend(loc='upper left', bbox_to_anchor=(1.01, 1), borderaxespad=0)
