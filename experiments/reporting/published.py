"""The figures that the three QuAP-FL documents print, and the paragraphs of the report.

"First" is the first document (version 1.1.2), "theory" the theory document, "November" the November 2025 document. The
printed figures are in published.csv, the report's paragraphs in notes.md. A printed figure stands without its ±.
"""

from __future__ import annotations

from collections.abc import Sequence
import os
import re
from typing import Optional, TYPE_CHECKING

import pandas as pd

from experiments.reporting import pages
from experiments.reporting import quantity
from quap_tff.common import json_types

if TYPE_CHECKING:
  from experiments.reporting import study

_FOLDER = os.path.dirname(__file__)
# What the documents' tables have in common, as flags of a run.
COMMON: json_types.JsonObject = {'num_clients': 100, 'partition': 'dirichlet:alpha=0.5', 'alpha': 0.5, 'beta': 2}
SEEDS = (42, 123, 999)
DATASETS = ('mnist', 'cifar10')
# November, table 1: the bytes of a client's upload above FedAvg's.
_EXTRA_BYTES = {'fedavg': 0, 'fixed_dp': 0, 'quap': 4}

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
  columns = [column for block in blocks if isinstance(block, pages.Table) for column in block.frame]
  kept = list(blocks)
  for note in map(str, NOTES[name]):
    need = _NEEDS.match(note)
    if need is None:
      kept.append(note)
    elif any(column.startswith(need[1]) for column in columns):
      kept.append(note[need.end() :])
  return kept


def find(name: str, **values: json_types.Json) -> pages.Cell:
  """The figure of the first row of a table that has these values, or has none in their place; None if none is there."""
  rows = _FIGURES[_FIGURES['table'] == name]
  for key, value in values.items():
    rows = rows[rows[key].isna() | (rows[key] == value)]
  if rows.empty:
    return None
  value, digits = rows.iloc[0][['value', 'digits']]
  return 'not reached' if value is None else quantity.Quantity(value, digits=digits)


def accuracy(group: study.StudyGroup) -> pages.Cell:
  """The final accuracy in percent that a document prints for such runs, or None. Runs without noise match any ε."""
  place = {'dataset': group.dataset, 'scenario': group.scenario, 'method': group.method}
  if group.dataset not in DATASETS or group.scenario is None or not group.has(calibration='documents'):
    return None
  if group.parts[-1] and not group.has(critical_layers='final_dense'):
    return None
  if group.has(num_clients=1000, cohort_size=50):
    return find('at_scale_accuracy', **place)
  if not group.is_of_documents:
    values = {name: group.setting.get(name) for name in ('alpha', 'beta')}
    is_on_grid = group.has(**{**COMMON, **values})
    return find('alpha_beta', **place, **values) if is_on_grid else None
  epsilon = group.setting.get('epsilon')
  if group.scenario == 'heterogeneous' and (epsilon == 6 or group.method == 'fedavg'):
    return find('accuracy_epsilon_6', **place) or find('ablation', **place)
  return find('accuracy_epsilon_3', **place) if epsilon == 3 else None


def rounds_to_90(group: study.StudyGroup) -> pages.Cell:
  """The rounds to 90% accuracy on MNIST that a document prints for such runs, at ε = 3."""
  if group.dataset != 'mnist' or not group.is_of_documents or group.setting.get('epsilon') != 3:
    return None
  return find('rounds_to_90', scenario=group.scenario, method=group.method)


def fairness(group: study.StudyGroup) -> pages.Cell:
  """Jain's index that a document prints for such runs, without saying which quantity it is for."""
  return find('fairness', scenario=group.scenario, method=group.method) if group.is_of_documents else None


def extra_bytes(group: study.StudyGroup) -> Optional[int]:
  """The bytes above FedAvg's upload that a document prints for such runs."""
  return _EXTRA_BYTES.get(group.method) if group.is_of_documents else None
