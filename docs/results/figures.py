"""Draws the figure of docs/results.md and README.md from equal_epsilon.csv: python docs/results/figures.py"""

from __future__ import annotations

import csv
import io
import pathlib

from PIL import Image

from experiments.running import plots

FOLDER = pathlib.Path(__file__).absolute().parent
# The methods' places decide their looks, and their order at each pattern of participation.
METHODS = (
  'Certified, trusted server',
  'Certified, no trusted server',
  'Certified, independent noise',
  'Published account, banded noise',
  "TFF's DP-FTRL",
  "TFF's DP-FedAvg",
  'DP-FedAvg, secret cohorts, amplified',
  "TFF's adaptive clip",
)
# The patterns of each panel.
PANELS = {
  'MNIST': ('uniform', 'Beta(2,5)', 'extreme imbalance', 'separated'),
  'FEMNIST stand-in': ('uniform', 'Beta(2,5)'),
  'CIFAR-10': ('uniform', 'Beta(2,5)', 'everybody'),
}
EPSILON = '3'


def _panel(axes: plots.Axes, rows: list[dict[str, str]], patterns: tuple[str, ...]) -> None:
  """Mean accuracies over seeds, with their 95% intervals: a group of methods for each pattern."""
  for place, method in enumerate(METHODS):
    found = [row for row in rows if row['method'] == method and row['participation'] in patterns]
    accuracies, halves = ([float(row[key]) for row in found] for key in ('accuracy', 'half_interval'))
    axes.errorbar(
      [patterns.index(row['participation']) + 0.1 * (place - (len(METHODS) - 1) / 2) for row in found],
      accuracies,
      yerr=[halves, [min(half, 99.5 - a) for half, a in zip(halves, accuracies)]],
      label=method,
      elinewidth=1,
      capsize=2,
      **{**plots.look(place), 'linestyle': 'none'},
    )
  axes.set_xticks(range(len(patterns)), patterns)
  axes.set_xlim(-0.5, len(patterns) - 0.5)
  axes.grid(axis='x', visible=False)
  for place in range(1, len(patterns)):
    axes.axvline(place - 0.5, color='0.8', linewidth=0.8)
  plots.log_of_error(
    axes.yaxis, [float(row['accuracy']) + off * float(row['half_interval']) for row in rows for off in (-1, 1)]
  )


def draw() -> None:
  with open(FOLDER / 'equal_epsilon.csv', newline='', encoding='utf-8') as f:
    rows = [row for row in csv.DictReader(f) if row['epsilon'] == EPSILON and row['method'] in METHODS]

  def into(figure: plots.Figure) -> None:
    widths = [len(patterns) + 0.6 for patterns in PANELS.values()]
    grid = figure.subplots(1, len(PANELS), width_ratios=widths)
    for axes, (dataset, patterns) in zip(grid, PANELS.items()):
      _panel(axes, [row for row in rows if row['dataset'] == dataset], patterns)
      axes.set_title(dataset)
    grid[0].set_ylabel(f'test accuracy (%) at formal ε = {EPSILON}')
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc='outside lower center', ncols=4)

  image = Image.open(io.BytesIO(plots.png(into, (12.5, 4.6))))
  image.convert('RGB').quantize(128).save(FOLDER / 'accuracy.png', optimize=True)


if __name__ == '__main__':
  draw()
