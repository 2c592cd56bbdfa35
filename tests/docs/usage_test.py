"""What docs/usage.md says of the public rule and of `experiments.tune` is what defaults.csv has."""

import collections
import csv
import math
import pathlib

import pytest

DOCS = pathlib.Path(__file__).absolute().parents[2] / 'docs'
BY_RULE, TUNED, BEST = 'by the rule', 'tuned', 'best of the grid'


@pytest.fixture(name='means', scope='module')
def _means():
  """The mean accuracy over seeds, in percent, by data and method and then by who chose the constants."""
  found = collections.defaultdict(lambda: collections.defaultdict(list))
  with open(DOCS / 'results' / 'defaults.csv', encoding='utf-8') as file:
    for row in csv.DictReader(file):
      for chosen in (BY_RULE, TUNED, BEST):
        if row[chosen]:
          found[row['data'], row['method']][chosen].append(float(row[chosen]))
  for accuracies in found.values():
    for chosen, values in accuracies.items():
      accuracies[chosen] = sum(values) / len(values)
  return found


def _below_the_best(means, method, chosen):
  """By how many points a choice lies below the best of the grid, rounded up to a tenth, from the most on."""
  below = [one[BEST] - one[chosen] for (_, by), one in means.items() if by == method and BEST in one]
  return sorted((math.ceil(round(10 * points, 6)) / 10 for points in below), reverse=True)


def test_the_rule_and_tune_against_the_best_of_a_grid(means):
  page = ' '.join((DOCS / 'usage.md').read_text(encoding='utf-8').split())
  assert _below_the_best(means, 'certified', BY_RULE)[0] == 3.2
  assert _below_the_best(means, 'fedavg', BY_RULE)[0] == 2.1
  assert 'up to 3.2 points below the best of the grid for certified runs at ε = 3, and up to 2.1 for FedAvg' in page
  assert _below_the_best(means, 'certified', TUNED)[:2] == [6.7, 1.7]
  assert 'up to 1.7 points below the best of the grid, and 6.7 for wine' in page


def test_tune_against_the_rule(means):
  differences = {data: one[TUNED] - one[BY_RULE] for (data, _), one in means.items() if TUNED in one}
  assert differences.pop('mnist') == pytest.approx(4.0, abs=0.05)
  assert differences.pop('12 columns, 3 classes') == pytest.approx(1.1, abs=0.05)
  assert min(differences.values()) == pytest.approx(-4.8, abs=0.05)
  assert max(differences.values()) == pytest.approx(-0.9, abs=0.05) and len(differences) == 4
