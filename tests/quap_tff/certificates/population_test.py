"""The certificate of a population of a million clients: numbers of operations and of bytes, not times."""

import dataclasses
import tracemalloc

import numpy as np
import pytest

from quap_tff import accounting
from quap_tff.certificates import certificate as certificates
from quap_tff.certificates.folders import folder as folders
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms.noise import correlation
from tests.quap_tff.certificates import made

_N, _DELTA, _ROUNDS, _SIZE = 10**6, 1e-7, 20, 100


def _content(path, num_clients, ids=None):
  """Many different weights, so that nothing is saved by equal ones. Anybody of `ids` may be in a round."""
  rng = np.random.default_rng(0)
  cohorts = [rng.choice(num_clients if ids is None else ids, _SIZE, replace=False) for _ in range(_ROUNDS)]
  noise = dict(correlation=correlation.Ar1(0.5), noise_multiplier=5.0)
  plan = made.plan(schedule=cohorts, num_clients=num_clients, epsilon=8.0, delta=_DELTA, **noise)
  ledger = plan.new_ledger()
  for cohort in cohorts:
    weights = rng.uniform(0.1, 1, _SIZE)
    ledger.append(accounting.RoundRecord(cohort, np.full(_SIZE, 0.1), weights, 5.0, np.inf, 1.0))
  return folders.read(str(path))._replace(plan=plan, ledger=ledger, leaving=made.leaving(plan))


@pytest.mark.thorough
@pytest.mark.slow
def test_a_certificate_takes_a_few_arrays_of_the_population(originals, monkeypatch):
  content, computed = _content(originals / 'server', _N), []
  log_delta = tradeoff._log_delta
  monkeypatch.setattr(tradeoff, '_log_delta', lambda e, m: computed.append(np.size(m)) or log_delta(e, m))
  tracemalloc.start()
  issued = certificates.make(content)
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert peak < 15 * 8 * _N
  # One ε for each client that took part and one for the others.
  assert max(computed) <= 2001
  assert issued['achieved']['clients'] == _N and issued['achieved']['clients_that_took_part'] < 2000
  assert sum(issued['achieved']['epsilon_histogram']['clients']) == _N


@pytest.mark.slow
def test_the_certificate_is_that_of_a_small_population_of_the_same_participants(originals):
  small, large = (certificates.make(_content(originals / 'server', n, 5000))['achieved'] for n in (5000, _N))
  for name in ('epsilon_max', 'mu_max', 'clients_that_took_part', 'rounds'):
    assert small[name] == large[name]
  assert small['epsilon_mean'] * 5000 == pytest.approx(large['epsilon_mean'] * _N, rel=1e-5)


@pytest.mark.slow
def test_a_folder_lists_those_who_took_part(tmp_path, capsys):
  cohorts = [[7, 19_999], [7], [123, 4567]]
  plan = made.plan(schedule=cohorts, num_clients=20_000)
  about = dataclasses.replace(made.ABOUT, tests=0)
  path = made.folder(tmp_path / 'run', plan, about=about)
  rows = (path / folders.CLIENTS).read_text().splitlines()[1:]
  assert [row.split(',')[:2] for row in rows] == [['7', '2'], ['123', '1'], ['4567', '1'], ['19999', '1']]
  assert made.answer(path, capsys)[0] == 0 and (path / folders.CERTIFICATE).stat().st_size < 20_000
