"""Draws the figures of docs/results.md and README.md from equal_epsilon.csv: python docs/results/figures.py"""

from __future__ import annotations

import csv
import io
import math
import pathlib

from PIL import Image

from experiments.running import plots

FOLDER = pathlib.Path(__file__).absolute().parent
# The methods' places decide their looks.
METHODS = (
  'Certified, trusted server',
  'Published account, banded noise',
  'Certified, no trusted server',
  "TFF's DP-FedAvg",
  "TFF's DP-FTRL",
  'Certified, independent noise',
  'DP-FedAvg, secret cohorts, amplified',
  "TFF's adaptive clip",
)
PATTERNS = {
  'uniform': 'uniform cohorts',
  'Beta(2,5)': 'uneven cohorts: Beta(2,5)',
  'extreme imbalance': 'extreme imbalance',
  'separated': 'separated cohorts',
}
_FEW = [name for name in METHODS if name not in ('Certified, independent noise', 'Published account, banded noise')]
FIGURES = {
  'accuracy': (['MNIST', 'FEMNIST stand-in', 'CIFAR-10'], ['uniform', 'Beta(2,5)'], _FEW),
  'accuracy_all': (['MNIST', 'FEMNIST stand-in'], list(PATTERNS), METHODS),
}


def _panel(axes: plots.Axes, rows: list[dict[str, str]], methods: list[str]) -> None:
  """Mean accuracies over seeds at ε = 1, 3 and 6, with their 95% intervals."""
  for place, method in enumerate(methods):
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
      linewidth=1.3,
      elinewidth=0.7,
      capsize=2,
      **plots.look(METHODS.index(method)),
    )
  axes.set_xticks([math.log(epsilon) for epsilon in (1, 3, 6)], ['1', '3', '6'])


def draw(name: str) -> None:
  datasets, patterns, methods = FIGURES[name]
  with open(FOLDER / 'equal_epsilon.csv', newline='', encoding='utf-8') as f:
    rows = [row for row in csv.DictReader(f) if row['method'] in methods]
  tall = len(patterns) > len(datasets)  # Then datasets are columns.
  rows_and_columns = (len(patterns), len(datasets)) if tall else (len(datasets), len(patterns))

  def into(figure: plots.Figure) -> None:
    grid = figure.subplots(*rows_and_columns, sharey='col' if tall else 'row', squeeze=False)
    for dataset, line in zip(datasets, grid.T if tall else grid):
      for pattern, axes in zip(patterns, line):
        found = [row for row in rows if (row['dataset'], row['participation']) == (dataset, pattern)]
        if not found:
          axes.set_axis_off()
          continue
        _panel(axes, found, methods)
        axes.set_title(f'{dataset}, {PATTERNS[pattern]}')
      line[0].set_ylabel('test accuracy (%)')
      plots.log_of_error(line[0].yaxis, [float(row['accuracy']) for row in rows if row['dataset'] == dataset])
    for axes in grid[-1]:
      axes.set_xlabel('formal ε of the released model (δ = 1e-5)')
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc='outside lower center', ncols=3 if len(labels) < 7 else 4)

  size = (4.3 * rows_and_columns[1], 2.75 * rows_and_columns[0] + 0.5)
  image = Image.open(io.BytesIO(plots.png(into, size)))
  image.convert('RGB').quantize(128).save(FOLDER / f'{name}.png', optimize=True)


if __name__ == '__main__':
  for figure_name in FIGURES:
    draw(figure_name)
