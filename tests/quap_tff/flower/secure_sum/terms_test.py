"""Tests of what a secure sum may lose: the table of docs/deploy.md is what `terms` says."""

import pathlib
import re

import numpy as np
import pytest
from scipy import stats

pytest.importorskip('flwr', reason='make test-deploy sets up the newest Python that Flower runs on, and Flower.')

from quap_tff.flower.secure_sum import terms
from tests.quap_tff.flower.secure_sum import parties

PAGE = pathlib.Path(__file__).absolute().parents[4] / 'docs' / 'deploy.md'
THRESHOLDS = (0.2, 0.3, 0.4, 0.5)


def _rows():
  """The cells of each row of the table, by number of nodes."""
  rows = re.findall(r'^ *\| (\d+) nodes \| (.*) \|$', PAGE.read_text(encoding='utf-8'), re.M)
  return {int(count): cells.split(' | ') for count, cells in rows}


@pytest.mark.parametrize('count', [3, 4, 5, 8])
def test_the_page_says_what_one_lost_node_may_have(count):
  nodes = {node: np.arange(5 * node, 5 * node + 5) for node in range(count)}
  found = []
  for threshold in THRESHOLDS:
    agreed = terms.Terms.of(parties.Bundle(num_clients=5 * count, threshold=threshold), nodes)
    most = np.floor(1000 * (1 - agreed.share) + 1e-9) / 10
    found.append(f'{most:.1f}%' if count - 1 >= agreed.threshold else 'none')
  assert _rows()[count] == found


@pytest.mark.parametrize('sizes, opens', [([5, 5, 5, 5], True), ([6, 5, 5, 4], False)])
def test_four_nodes_at_a_threshold_of_two_fifths_may_lose_a_quarter(sizes, opens):
  ends = np.cumsum([0, *sizes])
  nodes = {node: np.arange(ends[node], ends[node + 1]) for node in range(4)}
  agreed = terms.Terms.of(parties.Bundle(num_clients=20, threshold=0.4), nodes)
  assert (agreed.shortfall([1, 2, 3]) == '') == opens


@pytest.mark.parametrize('count, threshold, expected', [(4, 0.4, 0.49), (4, 0.2, 0.07), (8, 0.4, 0.01)])
def test_how_often_a_lost_node_has_too_many_of_the_drawn_clients(count, threshold, expected):
  nodes = {node: np.arange(5 * node, 5 * node + 5) for node in range(count)}
  agreed = terms.Terms.of(parties.Bundle(num_clients=5 * count, threshold=threshold), nodes)
  too_many = stats.hypergeom(100, 100 // count, 30).sf(np.floor(30 * (1 - agreed.share)))
  assert too_many == pytest.approx(expected, abs=0.006)
