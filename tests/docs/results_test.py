"""Compares the tables of docs/results.md with the files behind them, and looks at the figures' series."""

import csv
import importlib.util
import pathlib
import re

import pytest

from experiments.running import plots

DOCS = pathlib.Path(__file__).absolute().parents[2] / 'docs'
PAGE = (DOCS / 'results.md').read_text(encoding='utf-8')


def _tables():
  for block in re.findall(r'(?:^\|.*\n)+', PAGE, re.MULTILINE):
    yield [[cell.strip().replace('`', '') for cell in line.strip('|\n').split('|')] for line in block.splitlines()]


def _csv(name):
  with open(DOCS / 'results' / name, newline='', encoding='utf-8') as f:
    return list(csv.reader(f))


def test_accuracies_at_equal_epsilon():
  header, *rows = _csv('equal_epsilon.csv')
  rows = [dict(zip(header, row)) for row in rows]
  found = {
    (row['dataset'], row['participation'], row['method']): f'{row["accuracy"]} ± {row["half_interval"]}'
    for row in rows
    if row['epsilon'] == '3'
  }
  shown = {}
  for head, _, *lines in _tables():
    if head[0] != 'method at ε = 3':
      continue
    dataset = 'MNIST, real writers'
    for place, column in enumerate(head[1:], 1):
      named, _, participation = column.rpartition(', ')
      dataset = named or dataset
      shown.update({(dataset, participation, line[0]): line[place] for line in lines if line[place] != '–'})
  assert shown == {key: found[key] for key in shown} and len(shown) > 90
  # Of what the page leaves out, there is nothing at this ε.
  assert found.keys() == shown.keys()


@pytest.mark.parametrize('name', ['certified.csv', 'compare.csv', 'documents.csv', 'step_sizes.csv'])
def test_other_tables(name):
  header, *rows = _csv(name)
  assert [header, *rows] in [[head, *lines] for head, _, *lines in _tables()]


def test_every_series_of_a_figure_has_points_and_a_look_of_its_own():
  pytest.importorskip('matplotlib', reason='The figures are drawn with it.')
  spec = importlib.util.spec_from_file_location('figures', DOCS / 'results' / 'figures.py')
  figures = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(figures)
  methods = {row[3] for row in _csv('equal_epsilon.csv')}
  assert methods >= set(figures.METHODS)
  for datasets, patterns, labels in figures.FIGURES.values():
    assert datasets and patterns and set(labels) <= set(figures.METHODS)
  # A place beyond them would have the look of another.
  assert len(set(figures.METHODS)) == len(figures.METHODS) <= len(plots.COLOURS)
  for name in figures.FIGURES:
    assert f'results/{name}.png' in PAGE + (DOCS / 'index.md').read_text(encoding='utf-8')
