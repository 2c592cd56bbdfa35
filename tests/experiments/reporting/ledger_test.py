"""ledger.npz: what clients spent, and refusal of what does not fit together."""

import numpy as np
import pytest

from experiments.reporting import ledger as ledger_lib

# Round 1: clients 0 and 2; round 2: nobody; round 3: client 2.
ARRAYS = {'offsets': [0, 2, 2, 3], 'clients': [0, 2, 2], 'budgets': [0.1, 0.2, 0.4], 'num_clients': 4}


def _write(path, **changes):
  np.savez(path, **{**ARRAYS, **changes})
  return str(path)


def test_what_clients_spent(tmp_path):
  ledger = ledger_lib.load(_write(tmp_path / 'ledger.npz'))
  assert ledger.num_rounds == 3
  assert ledger.counts.tolist() == [1, 0, 2, 0]
  np.testing.assert_allclose(ledger.epsilon, [0.1, 0, 0.6, 0])


def test_cumulative_mean_of_a_group(tmp_path):
  ledger = ledger_lib.load(_write(tmp_path / 'ledger.npz'))
  np.testing.assert_allclose(ledger.cumulative(np.array([2, 3])), [0.1, 0.1, 0.3])


@pytest.mark.parametrize('changes, words', [
    ({'offsets': [0, 2, 1, 3]}, 'offsets do not ascend'),
    ({'offsets': [1, 2, 3]}, 'offsets do not ascend'),
    ({'budgets': [0.1]}, '3 entries expected, found 3 clients and 1 budgets'),
    ({'clients': [0, 2, 4]}, 'clients outside 0..3'),
    ({'budgets': [0.1, -0.2, 0.4]}, 'a budget is negative'),
])
def test_arrays_that_do_not_fit(tmp_path, changes, words):
  with pytest.raises(ledger_lib.LedgerError, match=words):
    ledger_lib.load(_write(tmp_path / 'ledger.npz', **changes))


def test_no_archive(tmp_path):
  (tmp_path / 'ledger.npz').write_bytes(b'PK\x03\x04 torn')
  with pytest.raises(ledger_lib.LedgerError):
    ledger_lib.load(str(tmp_path / 'ledger.npz'))


def test_a_missing_array(tmp_path):
  np.savez(tmp_path / 'ledger.npz', offsets=[0])
  with pytest.raises(ledger_lib.LedgerError, match='clients'):
    ledger_lib.load(str(tmp_path / 'ledger.npz'))
