"""A gate and its log say the same, whenever a program stops between them."""

import pathlib
import shutil

import numpy as np
import pytest

import quap_tff
from quap_tff import accounting
from quap_tff import states
from quap_tff.accounting import log_writer
from quap_tff.accounting import logs
from quap_tff.common import durable
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


def _full(*_):
  raise OSError('full')


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
def test_a_crash_between_log_and_state(lost, monkeypatch):
  """The state is that of some round, and the log goes on to the next one, of which it has some bytes."""
  writer = log_writer.LogWriter(_gate())
  _rounds(writer, 5)
  length = len(_LOG.read_text())
  with monkeypatch.context() as patch, pytest.raises(OSError):
    patch.setattr(durable.StateFile, 'write', _full)
    _rounds(writer, 1, seed=7)
  text = _LOG.read_text()
  _LOG.write_text(text[: length + min(lost, len(text) - length)])
  again = log_writer.LogWriter(quap_tff.Gate.load('gate.state'))
  assert again.gate.rounds == 5 and _LOG.read_text() == text[:length]
  _rounds(again, 3, seed=1)
  _check(again.gate)


def test_a_crash_of_the_save_itself(monkeypatch):
  writer = log_writer.LogWriter(_gate())
  _rounds(writer, 2)
  with monkeypatch.context() as patch, pytest.raises(OSError):
    patch.setattr(durable.StateFile, 'write', _full)
    _rounds(writer, 1)
  again = log_writer.LogWriter(quap_tff.Gate.load('gate.state'))
  assert again.gate.rounds == 2
  _check(again.gate)


@pytest.mark.parametrize('text', ['', 'round,cl'])
def test_a_crash_at_the_start(text):
  log_writer.LogWriter(_gate()).close()
  _LOG.write_text(text)
  _rounds(writer := log_writer.LogWriter(_gate()), 3)
  _check(writer.gate)


def test_a_second_run_in_one_folder_is_refused():
  _rounds(log_writer.LogWriter(_gate()), 3)
  with pytest.raises(ValueError, match='is of an earlier run, with 3 committed rounds. This gate has 0'):
    log_writer.LogWriter(_gate())
  with pytest.raises(ValueError, match='or other rounds or parameters'):
    log_writer.LogWriter(_gate(2.0))


def test_missing_files_are_refused(tmp_path):
  _rounds(log_writer.LogWriter(_gate()), 3)
  gate = quap_tff.Gate.load('gate.state')
  _STATE.rename('elsewhere')
  with pytest.raises(ValueError, match=r'gate\.state was there and is gone'):
    log_writer.LogWriter(_gate())
  with pytest.raises(ValueError, match=r'log\.csv is there without gate\.state'):
    log_writer.LogWriter(_gate(), counters=str(tmp_path / 'another machine'))
  _LOG.unlink()
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


def test_two_writers_in_one_folder():
  """Each would spend what it believes is left: 4.38 in truth, 2.94 by the state, and a log that a restart accepts."""
  first = log_writer.LogWriter(_gate())
  with pytest.raises(ValueError, match=r'gate\.state is in use'):
    log_writer.LogWriter(quap_tff.Gate.load('gate.state'))
  _rounds(first, 3)
  first.close()
  with log_writer.LogWriter(quap_tff.Gate.load('gate.state')) as second:
    with pytest.raises(ValueError, match='is not open in this process'):
      _rounds(first, 1)
    assert second.gate.rounds == 3
    _check(second.gate)


def test_a_gate_that_was_loaded_before_another_one_went_on():
  _rounds(log_writer.LogWriter(_gate()), 3)
  gates = [quap_tff.Gate.load('gate.state') for _ in range(2)]
  _rounds(log_writer.LogWriter(gates[0]), 1)
  with pytest.raises(ValueError, match='is of an earlier run, with 4 committed rounds. This gate has 3'):
    log_writer.LogWriter(gates[1])
  gates[1].ask([0])
  gates[1].commit([0], 0.1)  # As many rounds, and another one.
  with pytest.raises(ValueError, match='or other rounds'):
    log_writer.LogWriter(gates[1])


def test_a_folder_that_is_put_back_is_refused(tmp_path):
  (tmp_path / 'run').mkdir()
  files = 'run/log.csv', 'run/gate.state'
  with log_writer.LogWriter(_gate(), *files) as writer:
    _rounds(writer, 2)
    shutil.copytree('run', 'older')
    _rounds(writer, 2)
  shutil.rmtree('run')
  with pytest.raises(ValueError, match=r'gate\.state was there and is gone'):
    log_writer.LogWriter(_gate(), log=str(tmp_path / 'run' / 'log.csv'), state=str(tmp_path / 'run' / 'gate.state'))
  shutil.move('older', 'run')
  with pytest.raises(ValueError, match='is not the latest copy'):
    log_writer.LogWriter(quap_tff.Gate.load('run/gate.state'), *files)


@pytest.mark.parametrize('broken', ['log', 'state'])
def test_a_round_that_could_not_be_written_is_not_passed_over(broken, monkeypatch):
  """A retry left rounds 1 and 3 in the log."""
  writer = log_writer.LogWriter(_gate())
  _rounds(writer, 1)
  with monkeypatch.context() as patch, pytest.raises(OSError):
    patch.setattr(*(durable.StateFile, 'write', _full) if broken == 'state' else (writer, '_append', _full))
    _rounds(writer, 1)
  writer.gate.ask([0])
  with pytest.raises(ValueError, match=r'The gate has committed 2 rounds, and .*gate\.state has 1: .*Go on with'):
    writer.commit([0], 0.1)
  with pytest.raises(ValueError, match='with 1 committed rounds. This gate has 2'):
    log_writer.LogWriter(writer.gate)
  _rounds(again := log_writer.LogWriter(quap_tff.Gate.load('gate.state')), 2, seed=3)
  assert again.gate.rounds == 3
  _check(again.gate)


def test_a_round_that_was_committed_past_the_writer_is_found_out():
  writer = log_writer.LogWriter(_gate())
  writer.gate.ask([0])
  writer.gate.commit([0], 0.1)
  writer.gate.ask([1])
  with pytest.raises(ValueError, match='was not committed by this writer'):
    writer.commit([1], 0.1)
  assert _LOG.read_text() == 'round,client,weight,released\n'


@pytest.mark.parametrize('released', ['yes', 1, 0, 'no', []])
def test_released_is_a_bool_before_anybody_is_charged(released):
  """It charged, raised, and left a file that could not be loaded."""
  gate = _gate()
  gate.ask([0])
  with pytest.raises(ValueError, match='released must be True, False or None'):
    gate.commit([0], 0.1, released=released)
  assert gate.rounds == 0 and not gate.epsilon().any() and not gate.digests


class TestSpent:
  def _first(self, path):
    path.mkdir()
    with log_writer.LogWriter(_gate(), str(path / 'log.csv'), str(path / 'gate.state')) as writer:
      _rounds(writer, 2)
    return str(path / 'gate.state')

  def _heir(self, path, source):
    path.mkdir(exist_ok=True)
    gate = quap_tff.Gate(5, 3.0, 3.0, 1e-5, spent=source)
    return log_writer.LogWriter(gate, str(path / 'log.csv'), str(path / 'gate.state'))

  def test_a_second_heir_is_refused(self, tmp_path):
    source = self._first(tmp_path / 'first')
    with self._heir(tmp_path / 'heir', source) as heir:
      _rounds(heir, 2)
    shutil.copy(source, tmp_path / 'copy')
    for one in (source, str(tmp_path / 'copy')):
      with pytest.raises(ValueError, match=rf'{tmp_path}/heir/gate\.state counts from it already.*unclaim {one}$'):
        self._heir(tmp_path / 'another', one)
    assert not (tmp_path / 'another' / 'gate.state').exists()
    # The heir goes on, and has an heir of its own.
    files = str(tmp_path / 'heir' / 'log.csv'), str(tmp_path / 'heir' / 'gate.state')
    log_writer.LogWriter(quap_tff.Gate.load(files[1]), *files).close()
    self._heir(tmp_path / 'another', files[1]).close()

  def test_what_an_heir_counts_from_does_not_go_on(self, tmp_path):
    source = self._first(tmp_path / 'first')
    self._heir(tmp_path / 'heir', source).close()
    with pytest.raises(ValueError, match=r'heir/gate\.state counts from what was spent here'):
      log_writer.LogWriter(quap_tff.Gate.load(source), str(tmp_path / 'first' / 'log.csv'), source)

  def test_what_is_in_use_or_put_back_has_no_heir(self, tmp_path):
    source = self._first(tmp_path / 'first')
    shutil.copy(source, tmp_path / 'older')
    with log_writer.LogWriter(quap_tff.Gate.load(source), str(tmp_path / 'first' / 'log.csv'), source) as writer:
      with pytest.raises(ValueError, match='is in use'):
        self._heir(tmp_path / 'heir', source)
      _rounds(writer, 1)
    with pytest.raises(ValueError, match='is not the latest copy'):
      self._heir(tmp_path / 'heir', str(tmp_path / 'older'))

  def test_who_only_reads_claims_nothing(self, tmp_path):
    source = self._first(tmp_path / 'first')
    for _ in range(2):
      accounting.read_spent(source)
      quap_tff.Gate(5, 3.0, 3.0, 1e-5, spent=source)
      quap_tff.Gate.calibrated([[0, 1]], 3.0, 1e-5, 5, spent=source)
    assert durable.heir_of(durable.id_of(source)) is None

  def test_a_calibrated_gate_is_an_heir(self, tmp_path):
    source = self._first(tmp_path / 'first')
    gate = quap_tff.Gate.calibrated([[0, 1]], 3.0, 1e-5, 5, spent=source)
    log_writer.LogWriter(gate).close()
    with pytest.raises(ValueError, match='counts from it already'):
      self._heir(tmp_path / 'another', source)

  def test_a_person_may_say_that_an_heir_released_nothing(self, tmp_path, capsys):
    source = self._first(tmp_path / 'first')
    self._heir(tmp_path / 'heir', source).close()
    assert states.main(['unclaim', source]) == 0 and source in capsys.readouterr().out
    self._heir(tmp_path / 'another', source).close()
