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
  """Draws metrics.csv into a PNG."""
  metrics = read_metrics(metrics_path)
  rounds = metrics['round']
  figure, ((accuracy, epsilon), (clip, ratio)) = plt.subplots(
      2, 2, figsize=(10, 7), sharex=True, constrained_layout=True
  )

  # There is no such column where a run was cut off before its first test.
  test_accuracy = metrics.get('test_accuracy', np.full(len(rounds), np.nan))
  tested = ~np.isnan(test_accuracy)
  accuracy.plot(rounds[tested], 100 * test_accuracy[tested], color='black', label='test')
  accuracy.plot(
      rounds, 100 * metrics['train_accuracy'], color='grey', linestyle=':', label='training, during local steps'
  )
  accuracy.set(ylabel='accuracy (%)', ylim=(0, 100))
  accuracy.legend(loc='lower right')

  epsilon.plot(rounds, metrics['epsilon'], color='black')
  epsilon.set(ylabel='nominal ε of the round')

  clip.plot(rounds, metrics['clipping_norm'], color='black', label='clipping norm C')
  clip.fill_between(rounds, metrics['norm_p10'], metrics['norm_p90'], color='lightgrey', label='10-90% of update norms')
  clip.set(ylabel='norm (critical layers)', xlabel='round')
  clip.legend()

  noisy = metrics['noise_to_signal'] > 0
  if noisy.any():
    ratio.semilogy(rounds[noisy], metrics['noise_to_signal'][noisy], color='black')
  else:
    ratio.text(0.5, 0.5, 'no noise', ha='center', va='center', transform=ratio.transAxes)
  ratio.set(ylabel='noise norm / signal norm', xlabel='round')

  for axes in (accuracy, epsilon, clip, ratio):
    axes.grid(alpha=0.3)
  figure.suptitle(title)
  figure.savefig(plot_path, dpi=120)
  plt.close(figure)
