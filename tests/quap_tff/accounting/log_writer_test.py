"""A gate and its log say the same, whenever a program stops between them."""

import pathlib

import numpy as np
import pytest

import quap_tff
from quap_tff.accounting import log_writer
from quap_tff.accounting import logs
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms.noise import correlation as correlations

_LOG, _STATE = pathlib.Path('log.csv'), pathlib.Path('gate.state')


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)


def _gate(epsilon=3.0):
  return quap_tff.Gate(5, 3.0, epsilon, 1e-5, num_rounds=20, correlation=correlations.Ar1(0.7))


def _rounds(writer, num_rounds, seed=0):
  rng = np.random.default_rng(seed)
  for _ in range(num_rounds):
    cohort = np.flatnonzero(rng.random(5) < 0.4)
    weights = writer.gate.ask(cohort)
    writer.commit(cohort, weights)


def _check(gate):
  """The log gives each client what the gate does."""
  found = logs.account(logs.Log('log.csv'), 3.0, correlations.Ar1(0.7), 20)
  epsilon = np.zeros(5)
  epsilon[list(map(int, found.names))] = tradeoff.epsilon_of(np.sqrt(found.mu_squared), 1e-5)
  assert found.num_rounds == gate.rounds and epsilon.tolist() == gate.epsilon().tolist()


def test_the_log_is_that_of_the_gate():
  writer = log_writer.LogWriter(_gate())
  _rounds(writer, 12)
  assert ',,,no\n' in _LOG.read_text()  # A round to which nobody came.
  _check(writer.gate)


@pytest.mark.slow
@pytest.mark.parametrize('lost', range(40))
def test_a_crash_between_log_and_state(lost):
  """The state is that of some round, and the log goes on to the next one, of which it has some bytes."""
  writer = log_writer.LogWriter(_gate())
  _rounds(writer, 5)
  state, length = _STATE.read_bytes(), len(_LOG.read_text())
  _rounds(writer, 1, seed=7)
  text = _LOG.read_text()
  _LOG.write_text(text[: length + min(lost, len(text) - length)])
  _STATE.write_bytes(state)
  again = log_writer.LogWriter(quap_tff.Gate.load('gate.state'))
  assert again.gate.rounds == 5 and _LOG.read_text() == text[:length]
  _rounds(again, 3, seed=1)
  _check(again.gate)


def test_a_crash_of_the_save_itself(monkeypatch):
  writer = log_writer.LogWriter(_gate())
  _rounds(writer, 2)
  with monkeypatch.context() as patch, pytest.raises(OSError):
    patch.setattr(quap_tff.Gate, 'save', lambda *_: (_ for _ in ()).throw(OSError('full')))
    _rounds(writer, 1)
  again = log_writer.LogWriter(quap_tff.Gate.load('gate.state'))
  assert again.gate.rounds == 2
  _check(again.gate)


@pytest.mark.parametrize('text', ['', 'round,cl'])
def test_a_crash_at_the_start(text):
  log_writer.LogWriter(_gate())
  _LOG.write_text(text)
  _rounds(writer := log_writer.LogWriter(_gate()), 3)
  _check(writer.gate)


def test_a_second_run_in_one_folder_is_refused():
  _rounds(log_writer.LogWriter(_gate()), 3)
  with pytest.raises(ValueError, match='is of an earlier run, with 3 committed rounds. This gate has 0'):
    log_writer.LogWriter(_gate())
  with pytest.raises(ValueError, match='or other parameters'):
    log_writer.LogWriter(_gate(2.0))


def test_missing_files_are_refused():
  _rounds(log_writer.LogWriter(_gate()), 3)
  gate = quap_tff.Gate.load('gate.state')
  _STATE.rename('elsewhere')
  with pytest.raises(ValueError, match=r'log\.csv is there without gate\.state'):
    log_writer.LogWriter(_gate())
  _LOG.unlink()
  with pytest.raises(ValueError, match='Put their log back'):
    log_writer.LogWriter(gate)
  pathlib.Path('elsewhere').rename(_STATE)
  with pytest.raises(ValueError, match='Put their log back'):
    log_writer.LogWriter(gate)


def test_a_log_that_is_too_short_is_refused():
  _rounds(log_writer.LogWriter(_gate()), 3)
  _LOG.write_text('round,client,weight,released\n1,,,no\n')
  with pytest.raises(ValueError, match='ends with round 1, but the gate has committed 3'):
    log_writer.LogWriter(quap_tff.Gate.load('gate.state'))
  _LOG.write_text('round,client\n1,\n')
  with pytest.raises(ValueError, match='it is not the log of a LogWriter'):
    log_writer.LogWriter(quap_tff.Gate.load('gate.state'))


def test_a_round_that_the_gate_refuses_is_not_written():
  writer = log_writer.LogWriter(_gate())
  with pytest.raises(ValueError, match='was not asked for'):
    writer.commit([1])
  assert _LOG.read_text() == 'round,client,weight,released\n' and writer.gate.rounds == 0
