r"""Draws a figure again from a table of a report, without the runs.

    python -m experiments.reporting.redraw docs/results/digits/tables/dirichlet.csv 'Accuracy by Dirichlet a: digits'

This works for tables of accuracies over the values of a flag, and for tables of certified runs. The figure goes to the
report's folder `figures`, under the table's name. Certified runs get a figure for each ε with several methods, of the
rows with the usual setting, and figures of accuracy over ε. The report's text is left alone.
"""

import os
import sys

import pandas as pd

from experiments import plots
from experiments.reporting import accuracy
from experiments.reporting import figures
from experiments.reporting import pages
from quap_tff.common import files

_EPSILON = ('epsilon', 'ε asked for')


def main(table: str, title: str) -> None:
  """Draws the figures of the table at this path under a title."""
  folder, name = os.path.dirname(table), os.path.splitext(os.path.basename(table))[0]
  points = _points(pd.read_csv(table), _places(folder))
  flag = next((flag for flag in _EPSILON if flag in points), None)
  drawn = {name: (title, points)}
  if flag:
    drawn = {
      f'{name}_epsilon_{epsilon:g}': (f'{title}, ε = {epsilon:g}', own)
      for epsilon, own in points[points['is_usual']].groupby(flag)
      if own['label'].nunique() > 1
    }
    varied = points[points.groupby(['label', 'at'])[flag].transform('nunique') > 1]
    for number, (where, own) in enumerate(varied.groupby('at'), 1):
      words = f'{title}, by ε: participation={where}'
      drawn[f'{name}_by_epsilon_{number}'] = (words, own.assign(at=own[flag], axis='requested ε'))
  for name, (words, own) in drawn.items():
    values = [figures.Point(*row) for row in own[['place', 'label', 'at', 'total']].itertuples(index=False)]
    drawing = figures.over_values(values, own['axis'].iloc[0], accuracy.ACCURACY, 'Dirichlet' in own['axis'].iloc[0])
    image = plots.png(*pages.Figure(name, words, '', *drawing).titled)
    files.write(os.path.join(folder, os.pardir, 'figures', f'{name}.png'), image)


def _places(folder) -> dict[str, int]:
  """A place for each method of all tables, so that it has one look in all figures."""
  tables = [pd.read_csv(os.path.join(folder, name)) for name in os.listdir(folder)]
  names = {'QuAP-FL', *(name for table in tables if 'method' in table for name in table['method'])}
  return {name: place for place, name in enumerate(sorted(names))}


def _points(table, places) -> pd.DataFrame:
  """The table with `place`, `label`, `at` (the number or text at which a row is), `axis`, `total` and `is_usual`.

  A label names the setting if several rows differ in nothing else. Rows without a setting are the usual ones then.
  """
  if 'method' not in table:
    table = table.assign(method='QuAP-FL')  # The table of α and β.
  value = next(name for name in ('measured: accuracy (%)', 'accuracy (%)') if name in table)
  table = table[pd.to_numeric(table[value], errors='coerce').notna()].reset_index(drop=True)
  axis = next(name for name in table if name not in ('dataset', 'method', 'setting', *_EPSILON))
  at = table[axis]
  if {'α', 'β'} <= set(table):
    at, axis = 'α = ' + table['α'].map('{:g}'.format) + ', β = ' + table['β'].map('{:g}'.format), 'α and β'
  nothing = pd.Series(index=table.index, dtype=float)
  spread = table.get(f'{value}, 95% ±', table.get(f'{value}, deviation', nothing))
  totals = [
    pages.Quantity(float(mean), None if pd.isna(deviation) else float(deviation))
    for mean, deviation in zip(table[value], spread)
  ]
  label, is_usual = table['method'], True
  keys = [label, at, *(table[flag] for flag in _EPSILON if flag in table)]
  if 'setting' in table and pd.concat(keys, axis=1).duplicated().any():
    label, is_usual = label.str.cat(table['setting'].fillna(''), ', ').str.rstrip(', '), table['setting'].isna()
  place = table['method'].map(places)
  return table.assign(place=place, label=label, at=at, axis=axis, total=pd.Series(totals), is_usual=is_usual)


if __name__ == '__main__':
  main(*sys.argv[1:])
