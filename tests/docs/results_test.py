"""Compares the tables of docs/results.md with the files behind them, and looks at the figures' series."""

import csv
import importlib.util
import itertools
import pathlib
import re
import sys

import pytest

from experiments.running import plots

DOCS = pathlib.Path(__file__).absolute().parents[2] / 'docs'
PAGE = (DOCS / 'results.md').read_text(encoding='utf-8')
FILES = ('equal_epsilon.csv', 'coins.csv')


def _tables():
  for block in re.findall(r'(?:^\|.*\n)+', PAGE, re.MULTILINE):
    yield [[cell.strip().replace('`', '') for cell in line.strip('|\n').split('|')] for line in block.splitlines()]


def _csv(name):
  with open(DOCS / 'results' / name, newline='', encoding='utf-8') as f:
    return list(csv.reader(f))


def _script(file):
  name = f'docs_results_{file}'
  spec = importlib.util.spec_from_file_location(name, DOCS / 'results' / f'{file}.py')
  module = importlib.util.module_from_spec(spec)
  sys.modules[name] = module  # Where a dataclass looks for the names in its annotations.
  spec.loader.exec_module(module)
  return module


def test_accuracies_at_equal_epsilon():
  rows = [dict(zip(header, row)) for header, *rows in map(_csv, FILES) for row in rows]
  found = {
    (row['epsilon'], row['dataset'], row['participation'], row['method']): f'{row["accuracy"]} ± {row["half_interval"]}'
    for row in rows
  }
  shown = {}
  for head, _, *lines in _tables():
    if not head[0].startswith('method at ε = '):
      continue
    epsilon, dataset = head[0].rpartition(' ')[2], 'MNIST, real writers'
    for place, column in enumerate(head[1:], 1):
      named, _, participation = column.rpartition(', ')
      dataset = named or dataset
      cells = {(epsilon, dataset, participation, line[0]): line[place] for line in lines}
      shown.update({key: cell for key, cell in cells.items() if cell != '–'})
  assert shown == {key: found[key] for key in shown} and len(shown) > 110
  # Of what the page leaves out, there is nothing at this ε.
  assert {key for key in found if key[0] == '3'} == {key for key in shown if key[0] == '3'}


@pytest.mark.parametrize('name', ['compare.csv', 'documents.csv'])
def test_other_tables(name):
  header, *rows = _csv(name)
  assert [header, *rows] in [[head, *lines] for head, _, *lines in _tables()]


def test_runs_become_the_rows_of_their_datasets_and_the_others_stay(tmp_path, monkeypatch, capsys):
  table = _script('table')
  # It asks for pandas, which the other tests do without.
  factory = importlib.import_module('tests.experiments.reporting.factory')
  before = _csv('equal_epsilon.csv')
  monkeypatch.setattr(table, 'FOLDER', tmp_path)
  file = tmp_path / 'equal_epsilon.csv'
  with open(file, 'w', newline='', encoding='utf-8') as f:
    csv.writer(f).writerows(before)
  runs = {
    'certified:weights=online,noise=ar1,clip=1': dict(certified_epsilon=3.0, share_of_ceiling=0.5),
    'tff_dp_fedavg:clip=1': dict(covers='released model', epsilon_max=3.0),
  }
  for number, (algorithm, facts) in enumerate(runs.items()):
    for seed, accuracy in enumerate((0.8, 0.81, 0.82)):
      setting = dict(algorithm=algorithm, epsilon=3.0, dataset='cifar10', participation='full', seed=seed)
      factory.write_run(tmp_path / 'runs' / f'{number}-{seed}', accuracy=accuracy - number / 10, **setting, **facts)
  factory.write_run(
    tmp_path / 'runs' / 'alone', algorithm='tff_dp_ftrl:clip=1', dataset='cifar10', covers='released model'
  )
  assert table.main(['table', 'equal_epsilon', str(tmp_path / 'runs')]) == 0
  with open(file, newline='', encoding='utf-8') as f:
    rows = list(csv.reader(f))
  others = [row for row in before if row[0] != 'CIFAR-10']
  assert sorted(row for row in rows if row[0] != 'CIFAR-10') == sorted(others)
  # Student's 97.5% quantile with two degrees of freedom, 4.303, times 1/√3.
  assert [row for row in rows if row[0] == 'CIFAR-10'] == [
    ['CIFAR-10', 'everybody', '3', 'Certified, trusted server', '81.00', '2.48', '0 1 2', '0.50'],
    ['CIFAR-10', 'everybody', '3', "TFF's DP-FedAvg", '71.00', '2.48', '0 1 2', ''],
  ]
  said = capsys.readouterr()
  assert '| Certified, trusted server | 81.00 ± 2.48 |' in said.out
  assert 'Left out: tff_dp_ftrl' in said.err


def test_runs_by_coins_are_told_apart_by_who_knows_the_cohorts(tmp_path, monkeypatch):
  table = _script('table')
  factory = importlib.import_module('tests.experiments.reporting.factory')
  monkeypatch.setattr(table, 'FOLDER', tmp_path)
  (tmp_path / 'coins.csv').write_text(','.join(table.COLUMNS) + '\n')
  runs = {
    'certified:weights=online,noise=ar1,clip=1': dict(certified_epsilon=3.0, cohort_seed='42'),
    'certified:clip=1': dict(certified_epsilon=3.0, cohort_seed='secret'),
    'tff_dp_fedavg:clip=1': dict(covers='released model', epsilon_max=3.0, cohort_seed='secret'),
  }
  for (number, (algorithm, facts)), seed in itertools.product(enumerate(runs.items()), range(3)):
    setting = dict(algorithm=algorithm, epsilon=3.0, participation='beta_bernoulli:a=2,b=5', seed=seed)
    factory.write_run(tmp_path / 'runs' / f'{number}-{seed}', accuracy=0.8 + seed / 100, **setting, **facts)
  assert table.main(['table', 'coins', str(tmp_path / 'runs')]) == 0
  with open(tmp_path / 'coins.csv', newline='', encoding='utf-8') as f:
    rows = [(row['participation'], row['method']) for row in csv.DictReader(f)]
  methods = ['Certified, public', 'Certified, secret', "TFF's DP-FedAvg, secret"]
  assert rows == [('Beta(2,5) coins', method) for method in methods]


@pytest.mark.parametrize('arguments', [[], ['coins'], ['bogus', 'runs']])
def test_a_table_of_nothing_is_refused_in_words(arguments, capsys):
  assert _script('table').main(['table', *arguments]) == 2
  assert 'Give a file, equal_epsilon or coins, and folders of runs' in capsys.readouterr().err


def test_the_figure_shows_each_pattern_and_each_method_has_a_look_of_its_own():
  pytest.importorskip('matplotlib', reason='The figures are drawn with it.')
  figures = _script('figures')
  for shown in figures.ROWS:
    rows = shown.rows()
    assert {row['method'] for row in rows} == set(shown.methods)
    # A place beyond the looks would have the look of another.
    places = set(shown.methods.values())
    assert len(places) == len(shown.methods) and max(places) < len(plots.COLOURS)
    for dataset, patterns in shown.panels.items():
      assert {row['participation'] for row in rows if row['dataset'] == dataset} == set(patterns)
  for page in (PAGE, (DOCS.parent / 'README.md').read_text(encoding='utf-8')):
    assert 'results/accuracy.png' in page
