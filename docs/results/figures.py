"""Draws the figure of docs/results.md and README.md from its two files of rows: python docs/results/figures.py"""

from __future__ import annotations

from collections.abc import Mapping
import csv
import dataclasses
import io
import pathlib
import textwrap

from PIL import Image

from experiments.running import plots

FOLDER = pathlib.Path(__file__).absolute().parent
EPSILON = '3'
WIDTH = 0.1  # From one method to the next.
LETTERS = 10  # In a line of a pattern's name.


@dataclasses.dataclass(frozen=True)
class Row:
  """A row of panels.

  Attributes:
    title: Who knows the cohorts.
    file: The name of the .csv file.
    methods: The methods, in their order at each pattern of participation, each with the place of its look.
    panels: The patterns of each dataset.
  """

  title: str
  file: str
  methods: Mapping[str, int]
  panels: Mapping[str, tuple[str, ...]]

  def rows(self) -> list[dict[str, str]]:
    """The file's rows that are shown."""
    with open(FOLDER / f'{self.file}.csv', newline='', encoding='utf-8') as f:
      return [row for row in csv.DictReader(f) if row['epsilon'] == EPSILON and row['method'] in self.methods]


COINS = ('coins of 0.3', 'Beta(2,5) coins', 'extreme imbalance')
ROWS = (
  Row(
    title='Public cohorts (pink: secret ones)',
    file='equal_epsilon',
    methods={
      'Certified, trusted server': 0,
      'Certified, no trusted server': 1,
      'Certified, independent noise': 2,
      'Published account, banded noise': 3,
      "TFF's DP-FTRL": 4,
      "TFF's DP-FedAvg": 5,
      'DP-FedAvg, secret cohorts, amplified': 6,
      "TFF's adaptive clip": 7,
    },
    panels={
      'MNIST': ('uniform', 'Beta(2,5)', 'extreme imbalance', 'separated'),
      'FEMNIST stand-in': ('uniform', 'Beta(2,5)'),
      'CIFAR-10': ('uniform', 'Beta(2,5)', 'everybody'),
    },
  ),
  Row(
    title='Each client comes by a coin; coins are public for the black points, and secret for the others',
    file='coins',
    methods={'Certified, public': 0, 'Certified, secret': 2, "TFF's DP-FedAvg, secret": 6},
    panels={dataset: COINS for dataset in ('8×8 digits', 'MNIST', 'FEMNIST stand-in', 'CIFAR-10')},
  ),
)


def _panel(axes: plots.Axes, row: Row, rows: list[dict[str, str]], patterns: tuple[str, ...]) -> None:
  """Mean accuracies over seeds, with their 95% intervals: a group of methods for each pattern."""
  for place, (method, look) in enumerate(row.methods.items()):
    found = [one for one in rows if one['method'] == method and one['participation'] in patterns]
    accuracies, halves = ([float(one[key]) for one in found] for key in ('accuracy', 'half_interval'))
    offset = WIDTH * (place - (len(row.methods) - 1) / 2)
    axes.errorbar(
      [patterns.index(one['participation']) + offset for one in found],
      accuracies,
      yerr=[halves, [min(half, 99.5 - a) for half, a in zip(halves, accuracies)]],
      label=method,
      elinewidth=1,
      capsize=2,
      **{**plots.look(look), 'linestyle': 'none'},
    )
  axes.set_xticks(range(len(patterns)), [textwrap.fill(pattern, LETTERS) for pattern in patterns])
  axes.set_xlim(-0.5, len(patterns) - 0.5)
  axes.grid(axis='x', visible=False)
  for place in range(1, len(patterns)):
    axes.axvline(place - 0.5, color='0.8', linewidth=0.8)
  plots.log_of_error(
    axes.yaxis, [float(one['accuracy']) + off * float(one['half_interval']) for one in rows for off in (-1, 1)]
  )


def _draw_row(figure: plots.Figure, row: Row) -> None:
  """A panel for each dataset, with the row's title above and its legend below."""
  widths, rows = [len(patterns) + 0.6 for patterns in row.panels.values()], row.rows()
  grid = figure.subplots(1, len(row.panels), width_ratios=widths)
  for axes, (dataset, patterns) in zip(grid, row.panels.items()):
    _panel(axes, row, [one for one in rows if one['dataset'] == dataset], patterns)
    axes.set_title(dataset)
  grid[0].set_ylabel(f'test accuracy (%) at formal ε = {EPSILON}')
  handles, labels = grid[0].get_legend_handles_labels()
  figure.legend(handles, labels, loc='outside lower center', ncols=4)
  figure.suptitle(row.title)


def _draw(figure: plots.Figure) -> None:
  for part, row in zip(figure.subfigures(len(ROWS), 1), ROWS):
    _draw_row(part, row)


if __name__ == '__main__':
  image = Image.open(io.BytesIO(plots.png(_draw, (12.5, 9.4))))
  image.convert('RGB').quantize(128).save(FOLDER / 'accuracy.png', optimize=True)
