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


def _most_below_the_best(means, method, chosen):
  """By how many points a choice lies below the best of the grid at most, rounded up to a tenth."""
  below = [one[BEST] - one[chosen] for (_, by), one in means.items() if by == method and BEST in one]
  return math.ceil(round(10 * max(below), 6)) / 10


def test_the_rule_and_tune_against_the_best_of_a_grid(means):
  page = ' '.join((DOCS / 'usage.md').read_text(encoding='utf-8').split())
  assert _most_below_the_best(means, 'certified', BY_RULE) == 2.4
  assert _most_below_the_best(means, 'certified', TUNED) == 2.4
  assert _most_below_the_best(means, 'fedavg', BY_RULE) == 1.5
  assert page.count('up to 2.4 points below the best of the grid') == 2 and 'up to 1.5' in page


def test_tune_against_the_rule(means):
  differences = {data: one[TUNED] - one[BY_RULE] for (data, _), one in means.items() if TUNED in one}
  assert differences.pop('12 columns, 3 classes') == pytest.approx(-1.6, abs=0.05)
  assert differences.pop('digits') == pytest.approx(2.7, abs=0.05)
  assert len(differences) == 3 and max(map(abs, differences.values())) <= 0.7
