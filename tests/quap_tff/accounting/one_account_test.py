"""One history has one account, to the last bit: by a gate, its saved state, a log, a ledger, its file, a certificate.

Random histories go through all of these paths: all correlations, weights of all sizes, bounds of clients' own, empty
rounds, weights of 0, rounds that release noise alone, refusals and restarts. The account is never below the dense truth
‖C·W_i‖/z, where C is written out as a matrix.
"""

import dataclasses
import os

import numpy as np
import pytest
import scipy.linalg

import quap_tff
from quap_tff import accounting
from quap_tff.accounting import logs
from quap_tff.certificates import gate_logs
from quap_tff.common import files
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms import mechanism
from quap_tff.mechanisms.certified import spending
from quap_tff.mechanisms.noise import correlation as correlations
from quap_tff.mechanisms.noise import recursions
from tests.quap_tff.certificates import gate_logs_test

_CLIENTS, _ROUNDS, _DELTA = 7, 12, 1e-5
_NOISE = {'independent': 3.0, 'ar1': 9.0, 'banded': 5.0, 'blt': 9.0}
_CORRELATIONS = {
  'independent': correlations.Independent(),
  'ar1': correlations.Ar1(0.9),
  'banded': correlations.Banded(3, (0.8, 0.4)),
  'blt': correlations.Blt((0.5, 0.3), (0.95, 0.4)),
}
_SEEDS = range(12)
# Few values, since each new one is inverted for a tenth of a second.
_OWN_EPSILONS = (0.5, 0.9, 1.7, 2.6, 3.0)


class _Run:
  """A random run of a gate, which is restarted now and then, and the records of its rounds."""

  def __init__(self, name, seed, folder):
    self._rng = np.random.default_rng([seed, *name.encode()])
    own = self._rng.choice(_OWN_EPSILONS, _CLIENTS).tolist() if self._rng.random() < 0.5 else None
    self.gate = quap_tff.Gate(
      _CLIENTS, _NOISE[name], 3.0, _DELTA, num_rounds=_ROUNDS, correlation=_CORRELATIONS[name], own_epsilon=own
    )
    self.records, path = [], os.path.join(folder, 'gate.state')
    for _ in range(int(self._rng.integers(1, _ROUNDS + 1))):
      self._round()
      if self._rng.random() < 0.3:
        self.gate.save(path)
        self.gate = quap_tff.Gate.load(path)

  def _round(self):
    ids = self._rng.permutation(np.flatnonzero(self._rng.random(_CLIENTS) < self._rng.choice([0.0, 0.4, 0.9])))
    most = self.gate.ask(ids)
    if len(ids) and most[0] < 1:
      with pytest.raises(ValueError, match='may have a weight of at most'):
        self.gate.commit(ids[:1], 1.0)
    shares = self._rng.choice([0.0, 0.3, 1.0], len(ids))
    weights = np.where(most * shares < 2.0**-20, 0, most * shares).astype(np.float32)
    is_empty, released = not weights.any(), None
    if is_empty:
      released = bool(self._rng.random() < 0.5)
    charged = self.gate.commit(ids, weights, released)
    self.records.append(mechanism.RoundRecord(ids, None, charged, self.gate.config.noise_multiplier, released=released))

  def log(self, folder):
    """The run as a log in a CSV file."""
    lines = ['client,round,weight,released']
    for number, record in enumerate(self.records, 1):
      says = 'yes' if record.releases else 'no'
      rows = [f'{i},{number},{w!r},{says}' for i, w in zip(record.cohort.tolist(), record.weights.tolist())]
      lines += rows or [f',{number},,{says}']
    path = os.path.join(folder, 'kept.csv')
    files.write(path, '\n'.join(lines) + '\n')
    return path

  def ledger(self):
    config = self.gate.config
    found = accounting.RunLedger(_CLIENTS, _DELTA, 'a run', config.correlation)
    for record in self.records:
      found.append(record._replace(budgets=np.ones(len(record.cohort)), clipping_norm=1.0))
    return found

  def dense(self):
    """‖C·W_i‖/z over the releases, float64[N]."""
    rows = [
      np.bincount(record.cohort, record.weights.astype(np.float64), _CLIENTS)
      for record in self.records
      if record.releases
    ]
    if not rows:
      return np.zeros(_CLIENTS)
    config = self.gate.config
    mixing = scipy.linalg.toeplitz(config.correlation.coefficients(len(rows)), np.zeros(len(rows)))
    return np.linalg.norm(mixing @ np.array(rows), axis=0) / config.noise_multiplier


def _marks(seed):
  return [pytest.mark.slow, *([pytest.mark.thorough] if seed >= 3 else [])]


@pytest.fixture(
  params=[pytest.param((name, seed), marks=_marks(seed)) for name in _CORRELATIONS for seed in _SEEDS], ids=str
)
def run(request, tmp_path):
  return _Run(*request.param, str(tmp_path))


def _squares(account):
  """μ² of the clients of a log, float64[N]; 0 for those that it does not name."""
  found = np.zeros(_CLIENTS)
  found[[int(name) for name in account.names]] = account.mu_squared
  return found


def test_all_paths_have_the_same_bits_and_none_is_below_the_truth(run, tmp_path):
  config = run.gate.config
  squares = spending.spending(run.records, config.correlation, _CLIENTS, _ROUNDS).mu_squared
  epsilon = tradeoff.epsilon_of(np.sqrt(squares), _DELTA)

  run.gate.save(str(tmp_path / 'last.state'))
  for gate in (run.gate, quap_tff.Gate.load(str(tmp_path / 'last.state'))):
    assert gate.epsilon().tobytes() == epsilon.tobytes() and gate.digests == run.gate.digests
  log = run.log(str(tmp_path))
  account = logs.account(logs.Log(log), config.noise_multiplier, config.correlation, _ROUNDS)
  assert _squares(account).tobytes() == squares.tobytes() and account.num_rounds == len(run.records)
  ledger = run.ledger()
  files.write(str(tmp_path / 'ledger.npz'), files.npz(ledger.state_dict()))
  for one in (ledger, accounting.RunLedger.load(tmp_path / 'ledger.npz')):
    assert accounting.total_mu(one, _ROUNDS).whole.tobytes() == np.sqrt(squares).tobytes()
  gate_logs.write_log(str(tmp_path / 'folder'), run.gate, log, gate_logs_test.STATEMENTS)
  content = gate_logs.read(str(tmp_path / 'folder'))
  assert _squares(content.account).tobytes() == squares.tobytes()

  assert (np.sqrt(squares) >= run.dense()).all()


def test_a_complete_history_has_the_dense_account(run, tmp_path):
  """Nothing is charged for releases that a complete history does not hold, by a ledger and by a log alike."""
  config, ledger = run.gate.config, run.ledger()
  found = accounting.total_mu(ledger).whole
  np.testing.assert_allclose(found, run.dense(), rtol=1e-10)
  assert (found >= run.dense() * (1 - 1e-15)).all()
  account = logs.account(logs.Log(run.log(str(tmp_path))), config.noise_multiplier, config.correlation)
  assert np.sqrt(_squares(account)).tobytes() == found.tobytes()


@pytest.mark.thorough
@pytest.mark.slow
def test_the_histories_are_of_all_kinds(tmp_path):
  runs = [_Run(name, seed, str(tmp_path)) for name in _CORRELATIONS for seed in _SEEDS]
  records = [record for one in runs for record in one.records]
  takers = [(record.weights > 0).sum() for record in records]
  assert sum(not len(record.cohort) for record in records) > 10
  assert sum(len(record.cohort) > 0 and not n for record, n in zip(records, takers)) > 3
  assert sum(record.releases and not n for record, n in zip(records, takers)) > 10
  assert sum(not record.releases for record in records) > 10
  assert sum(one.gate.config.own_epsilon is not None for one in runs) > 10


@dataclasses.dataclass(frozen=True)
class _Coupled(recursions.Correlation):
  """c_k = (g + h·(k-1))·d^(k-1) for k ≥ 1: two buffers, of which the second takes from the first."""

  first: float = 0.5
  second: float = 0.1
  decay: float = 0.6

  gains = property(lambda self: np.array([self.first, self.second]))
  decays = property(lambda self: np.array([self.decay, self.decay]))
  formula = 'c_k = (g + h·(k-1))·d^(k-1)'

  def coefficients(self, count):
    lags = np.arange(max(count - 1, 0))
    return np.append(1.0, (self.first + self.second * lags) * self.decay**lags)[:count]

  def after(self, buffers, added, times=lambda buffer, factor: buffer * factor):
    before, other = buffers
    return [times(before, self.decay) + added, times(other, self.decay) + times(before, self.decay)]

  def faded(self, buffers, elapsed):
    power = self.decay ** np.asarray(elapsed)
    return [buffers[0] * power, (buffers[1] + elapsed * buffers[0]) * power]

  def price(self, releases_left):
    lags = np.arange(int(min(releases_left, 200)) + 1)
    column, powers = self.coefficients(len(lags)), self.decay**lags
    by_first, by_second = (self.first + self.second * lags) * powers, self.second * powers
    return column @ column, [column @ by_first, column @ by_second]

  overlap = lasting = None


class TestRegisteredFamily:
  """A noise family of a program of one's own keeps its account on disk."""

  def _ledger(self):
    found, rng = accounting.RunLedger(3, _DELTA, 'a run', _Coupled()), np.random.default_rng(3)
    for _ in range(8):
      cohort = np.flatnonzero(rng.random(3) < 0.8)
      found.append(mechanism.RoundRecord(cohort, np.ones(len(cohort)), np.ones(len(cohort)), 4.0, np.inf, 1.0))
    return found

  def test_has_one_account_live_and_loaded(self, tmp_path, monkeypatch):
    monkeypatch.setitem(correlations.FAMILIES, 'coupled', _Coupled)
    ledger = self._ledger()
    files.write(str(tmp_path / 'ledger.npz'), files.npz(ledger.state_dict()))
    again = accounting.RunLedger.load(tmp_path / 'ledger.npz')
    assert again.correlation == _Coupled()
    assert accounting.total_mu(again).whole.tobytes() == accounting.total_mu(ledger).whole.tobytes()
    rows = np.array([np.isin(np.arange(3), record.cohort) for record in ledger.history], float)
    mixing = scipy.linalg.toeplitz(_Coupled().coefficients(8), np.zeros(8))
    np.testing.assert_allclose(accounting.total_mu(again).whole, np.linalg.norm(mixing @ rows, axis=0) / 4, rtol=1e-9)

  def test_is_refused_by_name_where_it_is_not_registered(self, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match='_Coupled has no name. Register it'):
      self._ledger()
    with monkeypatch.context() as registered:
      registered.setitem(correlations.FAMILIES, 'coupled', _Coupled)
      files.write(str(tmp_path / 'ledger.npz'), files.npz(self._ledger().state_dict()))
    with pytest.raises(ValueError, match="Unknown noise correlation 'coupled'"):
      accounting.RunLedger.load(tmp_path / 'ledger.npz')
