import dataclasses

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from data import partition

SETTINGS = hypothesis.settings(max_examples=30)
SPECS = st.one_of(
  st.just('iid'), st.sampled_from([0.001, 0.1, 0.5, 10.0, 1e6]).map(lambda alpha: f'dirichlet:alpha={alpha}')
)


def sizes(rows):
  return np.array([len(r) for r in rows])


@SETTINGS
@hypothesis.given(SPECS, st.lists(st.integers(0, 9), min_size=1, max_size=200), st.data(), st.integers(0, 2**64))
def test_every_example_goes_to_exactly_one_client_and_none_is_empty(spec, labels, data, seed):
  num_clients = data.draw(st.integers(1, len(labels)))
  rows = partition.split(spec, np.array(labels), num_clients, seed)
  assert len(rows) == num_clients
  assert sizes(rows).min() >= 1
  assert all(r.dtype == np.int64 for r in rows)
  np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(len(labels)))


@SETTINGS
@hypothesis.given(SPECS, st.integers(0, 2**40))
def test_a_partition_is_a_pure_function_of_the_seed(spec, seed):
  labels = np.arange(200) % 10
  np.random.seed(1)
  first = partition.split(spec, labels, 7, seed)
  np.random.seed(2)
  again = partition.split(spec, labels, 7, seed)
  other = partition.split(spec, labels, 7, seed + 1)
  assert all(np.array_equal(a, b) for a, b in zip(first, again))
  assert not all(np.array_equal(a, b) for a, b in zip(first, other))


def test_rows_are_sorted_so_that_reading_them_is_one_pass():
  for rows in partition.split('dirichlet:alpha=0.5', np.arange(500) % 10, 20, 3):
    np.testing.assert_array_equal(rows, np.sort(rows))


def test_iid_sizes_differ_by_at_most_one_and_labels_are_mixed():
  labels = np.repeat(np.arange(10), 103)
  rows = partition.split('iid', labels, 100, 0)
  assert set(sizes(rows)) == {10, 11}
  # Ten of 1,030 examples that lie in label order: a partition that did not shuffle would give each client one label.
  assert np.mean([len(np.unique(labels[r])) for r in rows]) > 5


def second_moment_of_shares(alpha, num_clients, seeds):
  """The mean over labels and seeds of N * sum of squared shares."""
  labels = np.arange(20000) % 10
  moments = []
  for seed in seeds:
    rows = partition.split(f'dirichlet:alpha={alpha}', labels, num_clients, seed)
    for label in range(10):
      shares = np.array([np.sum(labels[r] == label) for r in rows]) / 2000
      moments.append(num_clients * np.sum(shares**2))
  return np.mean(moments)


@pytest.mark.parametrize('alpha', [0.1, 0.5, 10.0])
def test_alpha_is_honoured(alpha):
  # For a Dirichlet with equal parameters, N * E[sum p_i^2] = N * (alpha + 1) / (N * alpha + 1).
  num_clients = 20
  expected = lambda a: num_clients * (a + 1) / (num_clients * a + 1)
  found = second_moment_of_shares(alpha, num_clients, range(8))
  assert abs(found / expected(alpha) - 1) < 0.1
  # The test has the power to tell alpha from its 2/3 and its 3/2, as far as these differ at all.
  for wrong in (alpha * 2 / 3, alpha * 3 / 2):
    gap = abs(expected(wrong) / expected(alpha) - 1)
    assert abs(found / expected(wrong) - 1) > gap / 2


@dataclasses.dataclass(frozen=True)
class Lopsided(partition.Partition):
  """Of 100 examples 60 for client 1, 40 for client 3, none for the others."""

  def assign(self, labels, num_clients, rng):
    return np.repeat([1, 3], [60, 40])


def test_an_empty_client_gets_one_example_of_the_largest_and_nothing_else_moves(monkeypatch):
  monkeypatch.setitem(partition.PARTITIONS, 'lopsided', Lopsided)
  rows = partition.split('lopsided', np.zeros(100, np.int64), 5, 0)
  np.testing.assert_array_equal(sizes(rows), [1, 57, 1, 40, 1])
  assert all(r.max() < 60 for r in (rows[0], rows[1], rows[2], rows[4]))
  np.testing.assert_array_equal(rows[3], np.arange(60, 100))


def test_few_examples_are_displaced_at_the_documents_setting():
  labels = np.arange(60000) % 10
  counts = np.bincount(partition.Dirichlet(0.5).assign(labels, 100, np.random.default_rng(0)), minlength=100)
  assert counts.min() > 0  # None at all: the rule changes nothing where it is not needed.


def test_as_many_clients_as_examples_gives_each_one():
  rows = partition.split('dirichlet:alpha=0.1', np.arange(300) % 10, 300, 0)
  assert set(sizes(rows)) == {1}


@pytest.mark.parametrize(
  'spec, num_clients, message',
  [
    ('iid', 11, r'found 11 clients and only 10 examples\. Give a smaller --num_clients\.'),
    ('iid', 0, 'num_clients must be an integer at least 1, found 0'),
    ('iid', 2.0, 'num_clients must be an integer'),
    ('dirichlet:alpha=0', 2, 'dirichlet alpha must be a finite number at least 0.001'),
    ('dirichlet:alpha=-1', 2, 'dirichlet alpha'),
    ('dirichlet:alpha=nan', 2, 'dirichlet alpha'),
    ('dirichlet:alpha=inf', 2, 'dirichlet alpha'),
    ('dirichlet:beta=1', 2, "parameter of partition 'dirichlet': 'beta'"),
    ('dirichlett', 2, "Unknown partition 'dirichlett'. Did you mean 'dirichlet'"),
    ('iid:alpha=1', 2, "partition 'iid' takes no parameters, found 'alpha=1'"),
  ],
)
def test_a_bad_partition_is_an_error(spec, num_clients, message):
  with pytest.raises(ValueError, match=message):
    partition.split(spec, np.zeros(10, np.int64), num_clients, 0)


def test_a_negative_seed_is_an_error():
  with pytest.raises(ValueError, match='seed must be an integer at least 0'):
    partition.split('iid', np.zeros(3, np.int64), 2, -1)
