"""Draws the figures of docs/results.md and README.md from equal_epsilon.csv: python docs/results/figures.py"""

import csv
import io
import math
import pathlib

import matplotlib
from matplotlib import pyplot as plt
from matplotlib import ticker
import numpy as np
from PIL import Image

FOLDER = pathlib.Path(__file__).absolute().parent
# Okabe and Ito's colours, which people with any colour vision can tell apart. Markers and dashes tell the series apart
# without colours, too.
LOOKS = {
  'Certified, trusted server': ('#0072b2', 'o', '-', True),
  'Certified, no trusted server': ('#56b4e9', 's', (0, (5, 2)), False),
  'DP-FedAvg, secret cohorts, amplified': ('#000000', '*', (0, (1, 1.5)), True),
  'Certified, independent noise': ('#009e73', 'P', (0, (3, 1)), True),
  'Published account, banded noise': ('#e69f00', 'X', (0, (5, 1.5, 1, 1.5)), True),
  "TFF's DP-FTRL": ('#d55e00', '^', '-', True),
  "TFF's DP-FedAvg": ('#882255', 'v', (0, (5, 2)), False),
  "TFF's adaptive clip": ('#777777', 'D', (0, (5, 1.5, 1, 1.5)), True),
}
PATTERNS = {
  'uniform': 'uniform cohorts',
  'Beta(2,5)': 'uneven cohorts: Beta(2,5)',
  'extreme imbalance': 'extreme imbalance',
  'separated': 'separated cohorts',
}
FIGURES = {
  'accuracy': (['MNIST', 'FEMNIST stand-in'], ['uniform', 'Beta(2,5)'], [*list(LOOKS)[:3], *list(LOOKS)[5:]]),
  'accuracy_all': (['MNIST', 'FEMNIST stand-in', 'MNIST, real writers'], list(PATTERNS), list(LOOKS)),
}


def _panel(axes, rows, methods):
  """Mean accuracies over seeds at ε = 1, 3 and 6, with their 95% intervals."""
  for place, method in enumerate(methods):
    colour, marker, dash, filled = LOOKS[method]
    found = [row for row in rows if row['method'] == method]
    if not found:
      continue
    epsilons, accuracies, halves = ([float(r[key]) for r in found] for key in ('epsilon', 'accuracy', 'half_interval'))
    axes.errorbar(
      # Moved apart a little, so that no interval hides another one.
      [math.log(epsilon) + 0.03 * (place - (len(methods) - 1) / 2) for epsilon in epsilons],
      accuracies,
      yerr=[halves, [min(half, 99.5 - a) for half, a in zip(halves, accuracies)]],
      label=method,
      color=colour,
      marker=marker,
      linestyle=dash,
      markerfacecolor=colour if filled else 'white',
      markersize=9 if marker == '*' else 5.5,
      linewidth=1.3,
      elinewidth=0.7,
      capsize=2,
    )
  axes.set_xticks([math.log(epsilon) for epsilon in (1, 3, 6)], ['1', '3', '6'])
  # Equal steps are equal factors of the error.
  axes.set_yscale('function', functions=(lambda a: -np.log(np.maximum(100 - a, 1e-3)), lambda v: 100 - np.exp(-v)))
  axes.yaxis.set_major_locator(ticker.FixedLocator([40, 60, 70, 80, 85, 90, 95, 97, 98, 99]))
  axes.yaxis.set_major_formatter(ticker.FormatStrFormatter('%d%%'))
  axes.yaxis.set_minor_locator(ticker.NullLocator())
  axes.grid(axis='y', color='#dddddd', linewidth=0.6)
  axes.spines[['top', 'right']].set_visible(False)


def draw(name: str) -> None:
  datasets, patterns, methods = FIGURES[name]
  with open(FOLDER / 'equal_epsilon.csv', newline='', encoding='utf-8') as f:
    rows = list(csv.DictReader(f))
  plt.rcParams.update({'font.size': 9, 'axes.titlesize': 9})
  tall = len(patterns) > len(datasets)  # Then datasets are columns.
  rows_and_columns = (len(patterns), len(datasets)) if tall else (len(datasets), len(patterns))
  size = (3.9 * rows_and_columns[1], 2.75 * rows_and_columns[0] + 0.5)
  figure, grid = plt.subplots(*rows_and_columns, figsize=size, sharey='col' if tall else 'row', squeeze=False)
  for dataset, line in zip(datasets, grid.T if tall else grid):
    for pattern, axes in zip(patterns, line):
      found = [row for row in rows if (row['dataset'], row['participation']) == (dataset, pattern)]
      if not found:
        axes.set_axis_off()
        continue
      _panel(axes, found, methods)
      axes.set_title(f'{dataset}, {PATTERNS[pattern]}')
    line[0].set_ylabel('test accuracy')
    # No interval that leaves the chart decides its range.
    lowest = min(float(r['accuracy']) for r in rows if r['dataset'] == dataset and r['method'] in methods)
    line[0].set_ylim(lowest - 4, 99.2 if dataset.startswith('MNIST') else 88)
  for axes in grid[-1]:
    axes.set_xlabel('formal ε of the released model (δ = 1e-5)')
  handles, labels = grid[0][0].get_legend_handles_labels()
  figure.legend(handles, labels, loc='lower center', ncols=3 if len(labels) < 7 else 4, frameon=False)
  figure.tight_layout(rect=(0, 0.5 / figure.get_figheight(), 1, 1))
  drawn = io.BytesIO()
  figure.savefig(drawn, dpi=90 if tall else 120)
  plt.close(figure)
  Image.open(drawn).convert('RGB').quantize(48).save(FOLDER / f'{name}.png', optimize=True)


if __name__ == '__main__':
  matplotlib.use('Agg')
  for figure_name in FIGURES:
    draw(figure_name)
