"""A population of a million clients: what is computed follows from who takes part, and the figures are the same."""

import tracemalloc

import numpy as np
import pytest

from quap_tff import accounting
from quap_tff.accounting import formal
from quap_tff.accounting import history
from quap_tff.accounting import protection
from quap_tff.accounting import run_ledger
from quap_tff.common.lazy import tf
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms.noise import correlation as correlations
from tests.quap_tff import examples

N = 10**6
DELTA = 1e-7
WHOLE = protection.Protection('released model', 'All is noised.', 'All is noised.')


def _ledger(num_clients=N, rounds=20, size=100, correlation=correlations.Ar1(0.5), ids=None, seed=0):
  rng = np.random.default_rng(seed)
  ledger = accounting.RunLedger(num_clients, DELTA, 'a run', correlation)
  for _ in range(rounds):
    cohort = rng.choice(num_clients if ids is None else ids, size, replace=False)
    # Many different weights, so that nothing is saved by equal ones.
    ledger.append(accounting.RoundRecord(cohort, np.full(size, 0.1), rng.uniform(0.1, 1, size), 5.0, np.inf, 1.0))
  return ledger


class TestListed:
  def test_everyone_in_a_small_population_and_participants_in_a_large_one(self):
    small, large = (_ledger(n, rounds=1, size=3) for n in (10_000, 10_001))
    np.testing.assert_array_equal(small.listed, np.arange(10_000))
    np.testing.assert_array_equal(large.listed, np.sort(large.state_dict()['clients']))


@pytest.mark.slow
class TestFigures:
  def test_epsilon_of_many_is_that_of_each(self, monkeypatch):
    mu = np.repeat(np.random.default_rng(0).uniform(0, 3, 50), 400)
    seen = []
    log_delta = tradeoff._log_delta
    monkeypatch.setattr(tradeoff, '_log_delta', lambda e, m: seen.append(np.size(m)) or log_delta(e, m))
    found = tradeoff.epsilon_of(mu, DELTA)
    assert max(seen) == 50
    np.testing.assert_allclose(found[::400], [float(tradeoff.epsilon_of(m, DELTA)) for m in mu[::400]], rtol=1e-12)
    np.testing.assert_array_equal(found, np.repeat(found[::400], 400))

  def test_epsilon_of_keeps_the_shape(self):
    assert tradeoff.epsilon_of(np.full([101, 100], 0.5), DELTA).shape == (101, 100)

  @pytest.mark.thorough
  @pytest.mark.parametrize('correlation', [correlations.Ar1(0.5), correlations.Independent()])
  def test_rounded_histories_give_no_smaller_figures_and_the_exact_one_stays(self, correlation, monkeypatch):
    ledger = _ledger(20_000, size=30, correlation=correlation)
    exact = formal.formal_report(ledger, DELTA, WHOLE)
    monkeypatch.setattr(history, '_MOST_MERGED', 10)
    assert len(history.merged_histories(accounting.total_mu(ledger).whole).histories) < 9000
    rounded = formal.formal_report(ledger, DELTA, WHOLE)
    np.testing.assert_array_equal(exact.epsilon, rounded.epsilon)
    np.testing.assert_array_equal(exact.epsilon, accounting.epsilon_by_client(ledger, DELTA))
    for before, after in zip(exact.figures, rounded.figures):
      assert before.accountant == after.accountant
      # Mechanisms are rounded up, so a figure falls by no more than an accountant's own grids.
      assert before.epsilon_mean * (1 - 1e-3) <= after.epsilon_mean <= before.epsilon_mean * 1.01, before.accountant

  def test_histories_are_grouped_as_one_client_after_the_other(self):
    mechanisms = [history.GaussianMechanism(z) for z in (1.0, 2.0)]
    clients, kinds = [4, 1, 4, 7], [0, 1, 1, 1]
    found = history.group(clients, kinds, mechanisms, 1000)
    of_each = [found.histories[k].releases for k in found.index[:9]]
    one = lambda *indices: tuple(sorted((mechanisms[i], 1) for i in indices))
    assert of_each == [(), one(1), (), (), one(0, 1), (), (), one(1), ()]
    assert set(found.index[8:]) == {found.index[0]} and len(found.histories) == 3
    everyone = history.group([0, 1], [0, 1], mechanisms, 2)
    assert [everyone.histories[k].releases for k in everyone.index] == [one(0), one(1)]


@pytest.mark.slow
class TestMillion:
  """Numbers of operations and of bytes, not times."""

  def test_a_ledger_keeps_two_arrays_of_the_population(self):
    tracemalloc.start()
    ledger = _ledger()
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept < 2.2 * 8 * N and ledger.num_rounds == 20
    assert sum(array.nbytes for array in ledger.state_dict().values()) < 60_000

  def test_the_server_keeps_five_numbers_for_each_client(self):
    config = examples.noised(num_clients=N, delta=DELTA, num_rounds=200, correlation=correlations.Ar1(0.9))
    state = config.for_model([tf.TensorSpec([2])], []).initial_state()
    # Counts and weights of 4 bytes; what is spent, the sum of exponentials and the latest release of 8.
    accounts = state.accounts
    arrays = [state.participation['counts'], state.weights, accounts.spent, *accounts.sums, accounts.latest]
    assert sum(array.numpy().nbytes for array in arrays) == 32 * N

  def test_the_threshold_is_one(self):
    assert run_ledger.LARGE_POPULATION == history._MOST_MERGED  # pylint: disable=protected-access
