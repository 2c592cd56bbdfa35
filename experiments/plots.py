"""The plot of a run: accuracy, ε, clipping norm and noise ratio by round."""

import csv
from typing import Dict, List

import matplotlib

matplotlib.use('Agg')

import matplotlib.pyplot as plt  # pylint: disable=g-import-not-at-top
import numpy as np


def read_metrics(path: str) -> Dict[str, np.ndarray]:
  """Columns of a run's metrics.csv as float arrays; NaN where a round has no value."""
  with open(path, newline='') as f:
    rows: List[Dict[str, str]] = list(csv.DictReader(f))
  columns = rows[0].keys() if rows else ()
  return {name: np.array([float(row[name] or 'nan') for row in rows]) for name in columns}


def plot_run(metrics_path: str, plot_path: str, title: str):
  """Draws metrics.csv into a PNG: a panel for each of its parts that the run has."""
  metrics = read_metrics(metrics_path)
  panels = [draw for needed, draw in _PANELS if needed <= metrics.keys()]
  figure, grid = plt.subplots(
      (len(panels) + 1) // 2, min(2, len(panels)), figsize=(10, 3.5 * ((len(panels) + 1) // 2)), sharex=True,
      squeeze=False, constrained_layout=True,
  )
  for axes, draw in zip(grid.flat, panels):
    draw(axes, metrics)
    axes.grid(alpha=0.3)
    axes.tick_params(labelbottom=True)
    axes.set(xlabel='round')
  for axes in list(grid.flat)[len(panels):]:
    axes.set_visible(False)
  figure.suptitle(title)
  figure.savefig(plot_path, dpi=120)
  plt.close(figure)


def _accuracy(axes, metrics):
  rounds = metrics['round']
  # There is no such column where a run was cut off before its first test.
  test_accuracy = metrics.get('test_accuracy', np.full(len(rounds), np.nan))
  tested = ~np.isnan(test_accuracy)
  axes.plot(rounds[tested], 100 * test_accuracy[tested], color='black', label='test')
  if 'train_accuracy' in metrics:
    axes.plot(
        rounds, 100 * metrics['train_accuracy'], color='grey', linestyle=':', label='training, during local steps'
    )
  axes.set(ylabel='accuracy (%)', ylim=(0, 100))
  axes.legend(loc='lower right')


def _epsilon(axes, metrics):
  axes.plot(metrics['round'], metrics['epsilon'], color='black')
  axes.set(ylabel='nominal ε of the round')


def _clip(axes, metrics):
  rounds = metrics['round']
  axes.plot(rounds, metrics['clipping_norm'], color='black', label='clipping norm C')
  if 'norm_p10' in metrics:
    axes.fill_between(
        rounds, metrics['norm_p10'], metrics['norm_p90'], color='lightgrey', label='10-90% of update norms'
    )
  axes.set(ylabel='norm (critical layers)')
  axes.legend()


def _ratio(axes, metrics):
  noisy = metrics['noise_to_signal'] > 0
  if noisy.any():
    axes.semilogy(metrics['round'][noisy], metrics['noise_to_signal'][noisy], color='black')
  else:
    axes.text(0.5, 0.5, 'no noise', ha='center', va='center', transform=axes.transAxes)
  axes.set(ylabel='noise norm / signal norm')


# What each panel needs of the columns.
_PANELS = (
    (set(), _accuracy),
    ({'epsilon'}, _epsilon),
    ({'clipping_norm'}, _clip),
    ({'noise_to_signal'}, _ratio),
)
