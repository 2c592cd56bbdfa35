"""The figures that the three QuAP-FL documents print, and the paragraphs of the report.

"First" is the first document (version 1.1.2), "theory" the theory document, "November" the November 2025 document. The
printed figures are in published.csv, the report's paragraphs in notes.md.
"""

from collections.abc import Sequence
import os
import re
from typing import Optional

import pandas as pd

from experiments.reporting import pages
from quap_tff.common import json_types

_FOLDER = os.path.dirname(__file__)

# Where the documents print the figures that a table of the report compares with. Tables of published.csv come first.
SOURCES = {
  'accuracy_epsilon_3': 'first document, table 1',  # Final test accuracy in percent at ε = 3.
  'accuracy_epsilon_6': 'November 2025, table 2',  # The same at ε = 6 under Beta(2,5), after 200 rounds.
  'ablation': 'November 2025, table 3',  # Accuracy in percent on MNIST.
  'rounds_to_90': 'first document, table 2, at ε = 3',  # Rounds to 90% test accuracy on MNIST. No value: not reached.
  # A thousand clients: accuracy in percent, rounds to convergence, noise in percent of Vanilla DP-FL's.
  **dict.fromkeys(('at_scale_accuracy', 'at_scale_rounds', 'at_scale_noise'), 'first document, table 5'),
  'fairness': 'first document, table 3',  # Jain's index. The document does not say which quantity it is for.
  'alpha_beta': 'first document, figure 3',  # Accuracy in percent by α and β.
  'early_stop': 'November 2025, table 2',
  'cumulative_privacy': 'November 2025, figure 3',
  'communication': 'November 2025, table 1',
}

# What the documents' tables have in common, as flags of a run.
COMMON: json_types.JsonObject = {'num_clients': 100, 'partition': 'dirichlet:alpha=0.5', 'alpha': 0.5, 'beta': 2}
AT_SCALE_FLAGS: json_types.JsonObject = {'num_clients': 1000, 'cohort_size': 50}
SCENARIOS = {'uniform': 'uniform', 'heterogeneous': 'heterogeneous, Beta(2,5)', 'extreme': 'extreme imbalance'}
SEEDS = (42, 123, 999)

DATASETS = ('mnist', 'cifar10')

# First, section 5.3 and figure 2: the budget of a round at ε_base = 0.015, by participation rate.
BUDGET_BASE = 0.015
BUDGET_BY_RATE = {0.1: 0.021, 0.5: 0.016, 0.9: 0.015}

# November, table 1: a client's upload in a round with ResNet-18 over FedAvg's, and the bytes above FedAvg's.
UPLOAD_RATIO, UPLOAD_EXTRA_BYTES = 1.0, {'fedavg': 0, 'fixed_dp': 0, 'quap': 4}

# November, section 5.3.3 and figure 4: QuAP-FL's accuracy minus Fixed-DP's, in words, by Dirichlet a.
DIRICHLET_GAIN = {0.1: 'more than 5 points', 10: 'hardly any'}

# The methods of the ablation: whether they have (adaptive budget, adaptive clip, layer-wise noise).
PARTS = {
  'quap': (True, True, True),
  'fixed_dp': (False, False, False),
  'fixed_dp_layerwise': (False, False, True),
  'layerwise': (False, True, True),
  'quantile_clip': (False, True, False),
  'adaptive_budget': (True, False, False),
  'adaptive_budget_clip': (True, True, False),
  'adaptive_budget_layerwise': (True, False, True),
}
BY_PARTS = {parts: name for name, parts in PARTS.items()}


# Notes that are shown only under tables with a column whose name begins with these words.
_NEEDS = re.compile(r'\[([^\]]+)\] ')


def _read_notes() -> dict[str, list[pages.Block]]:
  with open(os.path.join(_FOLDER, 'notes.md'), encoding='utf-8') as f:
    _, *parts = re.split(r'^## (\w+)$', f.read(), flags=re.MULTILINE)
  return {name: [*text.strip().split('\n\n')] for name, text in zip(parts[::2], parts[1::2])}


# Paragraphs, by the headings of notes.md.
NOTES = _read_notes()
_FIGURES = pd.read_csv(os.path.join(_FOLDER, 'published.csv')).astype(object)
_FIGURES = _FIGURES.where(_FIGURES.notna(), None)


def notes(name: str, blocks: Sequence[pages.Block]) -> list[pages.Block]:
  """The blocks and the paragraphs of a heading; of those that are about a column, the ones whose column is there."""
  if not blocks:
    return []
  columns = [c.removeprefix('measured: ') for block in blocks if isinstance(block, pages.Table) for c in block.frame]
  kept = list(blocks)
  for note in map(str, NOTES[name]):
    need = _NEEDS.match(note)
    if need is None:
      kept.append(note)
    elif any(column.startswith(need[1]) for column in columns):
      kept.append(note[need.end() :])
  return kept


def table(name: str) -> list[json_types.JsonObject]:
  """The rows of one table, in order: dataset, scenario and method, None if the table does not give them; and figure.

  `figure` is a `pages.Quantity`, or None where the document prints that a value was not reached.
  """
  rows = _FIGURES[_FIGURES['table'] == name].to_dict('records')
  return [{**row, 'figure': _quantity(row)} for row in rows]


def _quantity(row: json_types.JsonView) -> Optional[pages.Quantity]:
  if row['value'] is None:
    return None
  return pages.Quantity(row['value'], row['deviation'], None, row['digits'])


def find(name: str, **values: json_types.Json) -> Optional[pages.Quantity]:
  """The figure of the row of a table that has these values; None if there is none."""
  for row in table(name):
    if all(row[key] == value for key, value in values.items()):
      return row['figure']
  return None
