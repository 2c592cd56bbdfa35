"""Runs that begin with what clients have spent before: budgets, figures, files and certificates count from there."""

import dataclasses
import json
import math

import numpy as np
import pytest

import quap_tff
from quap_tff import accounting
from quap_tff.common import files
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms.certified import config as configs
from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.noise import correlation as correlations
from tests.quap_tff import examples
from tests.quap_tff.certificates import gate_logs_test
from tests.quap_tff.certificates import made

DELTA = 1e-5
# Client 0 is in every round, client 6 joins in the second run.
SECOND = ([0, 3, 5], [1, 2, 6], [6, 5], [4, 3, 2, 0])
KINDS = {
  'independent': {},
  'ar1': {'correlation': correlations.Ar1(0.6)},
  'online': {'weights': weight_rules.Online(), 'correlation': correlations.Ar1(0.9)},
  'held': made.HELD,
}


def _chain(tmp_path, kind, file):
  """The folder of a first run, and that of a second run that counts from a file of it."""
  first = made.folder(tmp_path / 'first', made.plan(schedule=([0], [0, 1], [0, 2], [0]), **KINDS[kind]))
  second = made.plan(schedule=SECOND, num_clients=7, options={'spent': str(first / file)}, **KINDS[kind])
  return first, made.folder(tmp_path / 'second', second), second


@pytest.mark.slow
@pytest.mark.parametrize('file', ['ledger.npz', pytest.param('clients.csv', marks=pytest.mark.thorough)])
@pytest.mark.parametrize('kind', KINDS)
def test_a_second_run_counts_from_the_first(kind, file, tmp_path, capsys):
  first, second, plan = _chain(tmp_path, kind, file)
  status, lines = made.answer(second, capsys)
  assert (status, lines[0]) == (0, 'VALID'), lines
  before = accounting.total_mu(accounting.RunLedger.load(first / 'ledger.npz')).whole ** 2
  np.testing.assert_allclose(plan.config.spent_before[:6], before, rtol=2e-4, atol=1e-9)
  assert plan.config.spent_before[6] == 0
  ledger = accounting.RunLedger.load(second / 'ledger.npz')
  own = accounting.total_mu(made.ledger(plan)).updates ** 2
  total = accounting.total_mu(ledger).whole ** 2
  np.testing.assert_allclose(total, own + plan.config.spent_before, rtol=1e-12)
  assert (tradeoff.epsilon_of(np.sqrt(own + np.append(before, 0)), DELTA) <= 3).all()
  # Client 0 has nothing left, and the newcomer has all of it.
  assert own[0] < 0.04 < before[0] and own[6] > 0.1
  certificate = made.read(second, 'certificate.json')
  assert certificate['guarantee']['spent_before']['clients'] == np.count_nonzero(plan.config.spent_before)
  assert 2.9 < certificate['guarantee']['spent_before']['epsilon_max'] <= 3
  assert certificate['achieved']['epsilon_max'] <= 3
  assert 'The account does not begin at 0' in certificate['statement']
  assert any('taken from the issuer' in one for one in certificate['assumptions'])
  rows = [line.split(',') for line in (second / 'clients.csv').read_text().splitlines()[1:]]
  assert (rows[0][1], float(rows[0][2]) > 2.9) == ('2', True)  # Its rounds in this run, and the ε of both.


@pytest.mark.slow
@pytest.mark.parametrize('file', ['ledger.npz', 'clients.csv'])
def test_a_third_run_counts_from_both(file, tmp_path):
  """The files of the second run carry what the first one has spent, also of clients that never came again."""
  _, second, plan = _chain(tmp_path, 'independent', 'ledger.npz')
  found = accounting.read_spent(second / file, 9)
  expected = accounting.total_mu(made.ledger(plan)).whole ** 2
  assert (found[:7] >= expected * (1 - 1e-8)).all() and (found[:7] <= expected * 1.01 + 1e-8).all()
  assert not found[7:].any() and found[1] > plan.config.spent_before[1] > 0


@pytest.mark.slow
def test_the_delta_of_an_earlier_run_may_be_another(tmp_path):
  path = made.folder(tmp_path / 'run', made.plan(delta=1e-7, epsilon=2.0))
  by_epsilon, exact = (accounting.read_spent(path / file) for file in ('clients.csv', 'ledger.npz'))
  np.testing.assert_allclose(by_epsilon, exact, rtol=2e-3, atol=1e-9)
  assert (by_epsilon >= exact * (1 - 1e-9)).all()


@pytest.mark.slow
def test_a_run_that_ends_early_is_bounded_by_what_is_left(tmp_path, capsys):
  first, _, plan = _chain(tmp_path, 'independent', 'clients.csv')
  stopped = made.folder(tmp_path / 'stopped', plan, rounds=2, about=dataclasses.replace(made.ABOUT, tests=2))
  assert made.answer(stopped, capsys)[0] == 0
  report = plan.report(made.ledger(plan, rounds=2), plan.schedule)
  assert report.formal.reading is not None
  assert (report.formal.reading.epsilon <= report.formal.epsilon + 1e-12).all()
  assert 2.99 < report.formal.epsilon.max() <= 3
  assert all(figure.epsilon_max >= report.formal.epsilon.max() * 0.999 for figure in report.formal.figures)


@pytest.mark.slow
def test_other_figures_in_the_second_folder_are_found(tmp_path, capsys):
  _, second, _ = _chain(tmp_path, 'independent', 'ledger.npz')
  value = made.read(second, 'mechanism.json')
  value['mechanism']['spent_before'][1] = 0.0
  (second / 'mechanism.json').write_text(json.dumps(value, indent=1, ensure_ascii=False) + '\n')
  assert made.answer(second, capsys)[0] == 1


class TestGate:
  def test_its_certificate_counts_from_a_state(self, tmp_path, capsys):
    (tmp_path / 'first').mkdir()
    first, _ = gate_logs_test._committed(tmp_path / 'first')
    first.save(str(tmp_path / 'gate.state'))
    gate, path = gate_logs_test._folder(tmp_path, spent=str(tmp_path / 'gate.state'), noise_multiplier=8.0)
    status, lines = made.answer(path, capsys)
    assert (status, lines[0]) == (0, 'VALID'), lines
    assert gate.mu_squared.tobytes() == (gate._spending.mu_squared + first.mu_squared).tobytes()
    assert (gate.epsilon() <= 3).all() and gate.epsilon().max() > 2.9
    found = made.read(path, 'certificate.json')
    assert found['achieved']['epsilon_max'] == pytest.approx(gate.epsilon().max(), rel=1e-5)
    assert 'The account does not begin at 0' in found['statement']
    known = accounting.read_spent(path / 'clients.csv', 7)
    np.testing.assert_allclose(known, gate.mu_squared, rtol=1e-3, atol=1e-8)

  def test_those_who_never_came_again_are_listed(self, tmp_path):
    gate, path = gate_logs_test._folder(tmp_path, spent=[0, 0, 0, 0, 0, 0, 0.01])  # Client 6 is in no round.
    assert not gate._spending.counts[6]
    assert accounting.read_spent(path / 'clients.csv', 7)[6] == pytest.approx(0.01, rel=1e-4)

  def test_goes_on_where_it_was_saved(self, tmp_path):
    gate = quap_tff.Gate(3, 4.0, 3.0, DELTA, spent=[0.1, 0, 0.2])
    gate.ask([0])
    gate.commit([0], 0.5)
    gate.save(str(tmp_path / 'state'))
    again = quap_tff.Gate.load(str(tmp_path / 'state'), spent=[0.1, 0, 0.2])
    assert again.mu_squared.tobytes() == gate.mu_squared.tobytes()
    with pytest.raises(ValueError, match='expected None'):
      quap_tff.Gate.load(str(tmp_path / 'state'), spent=None)

  def test_calibrated(self):
    schedule = [[0, 1]] * 6
    gate = quap_tff.Gate.calibrated(schedule, 3.0, DELTA, spent=[0.3, 0.1])
    ends = gate.planned(schedule)
    assert gate.config.spent_before == (0.3, 0.1) and (ends == 0).any()


class TestRefuses:
  def _config(self, spent, **more):
    return configs.CertifiedConfig(3, 3.0, DELTA, spent_before=spent, **more)

  @pytest.mark.slow
  def test_more_than_the_bound(self):
    over = tradeoff.mu_at_most(3.2, DELTA) ** 2
    with pytest.raises(
      ValueError, match='Client 1 has spent ε = 3.2 at delta=1e-05, and its bound is 3. Give it a bound'
    ):
      self._config((0, over, 0))
    own = configs.CertifiedConfig(3, 4.0, DELTA, own_epsilon=(1, 3.5, 4), spent_before=(0, over, 0))
    assert own.limit[1] > 0 and own.limit[0] < own.limit[2]
    with pytest.raises(ValueError, match='Client 0 .* its bound is 1'):
      configs.CertifiedConfig(3, 4.0, DELTA, own_epsilon=(1, 3.5, 4), spent_before=(over, 0, 0))

  @pytest.mark.parametrize(
    'bad, said', [((0, -1, 0), 'at least 0'), ((0, math.nan, 0), 'at least 0'), ((0, 0), 'float')]
  )
  def test_what_is_no_cost(self, bad, said):
    with pytest.raises(ValueError, match=said):
      self._config(bad)

  def test_nothing_is_as_none(self):
    assert self._config((0, 0, 0)) == configs.CertifiedConfig(3, 3.0, DELTA)
    assert 'spent_before' not in examples.noised().fingerprint

  def test_when_nobody_has_anything_left(self):
    most = tradeoff.mu_at_most(3.0, DELTA) ** 2
    for config in (self._config((most, most, 0)), quap_tff.HeldConfig(3, 3.0, DELTA, spent_before=(most, most, 0))):
      with pytest.raises(ValueError, match='No client that takes part has anything left'):
        config.settled([[0, 1]])
    assert self._config((most, most, 0)).settled([[0, 2]]).mechanism.limit[2] > 0

  def test_a_weight_without_a_budget(self):
    most = tradeoff.mu_at_most(3.0, DELTA) ** 2
    config = quap_tff.HeldConfig(3, 3.0, DELTA, spent_before=(most, 0, 0)).settled([[0, 1], [1, 2]]).mechanism
    assert config.planned_weights[0] == 0 < min(config.planned_weights[1:])
    assert dataclasses.replace(config.config, planned_weights=(0.5, 0.5, 0.5)).planned_weights == (0, 0.5, 0.5)

  def test_one_worst_case_for_all(self):
    with pytest.raises(ValueError, match='by spent_before each has something else left'):
      self._config((0, 0.1, 0), weights=weight_rules.WorstCase())

  def test_files(self, tmp_path):
    path = made.folder(tmp_path / 'run')
    with pytest.raises(ValueError, match='has 6 clients, and this run has 4'):
      accounting.read_spent(path / 'ledger.npz', 4)
    clients = path / 'clients.csv'
    text = clients.read_text()
    clients.write_text(text.replace('\n0,', '\n0,1', 1))
    with pytest.raises(ValueError, match='the file was changed, or is of another run'):
      accounting.read_spent(clients)
    clients.write_text(text)
    (path / 'certificate.json').unlink()
    with pytest.raises(ValueError, match='certificate.json is not there'):
      accounting.read_spent(clients)
    with pytest.raises(ValueError, match='not a whole file of a gate'):
      accounting.read_spent(path / 'mechanism.json')

  def test_rounds_without_noise(self, tmp_path):
    ledger = accounting.RunLedger(2, DELTA, 'a run')
    ledger.append(accounting.RoundRecord(np.array([1]), np.ones(1), np.ones(1), 0.0, np.inf, 1.0))
    files.write(str(tmp_path / 'ledger.npz'), files.npz(ledger.state_dict()))
    with pytest.raises(ValueError, match='client 1 was in a round without noise'):
      accounting.read_spent(tmp_path / 'ledger.npz')


def test_rounding_of_earlier_runs_is_kept_for():
  plain, later = (configs.CertifiedConfig(2, 3.0, DELTA, spent_before=one) for one in (None, (0.1, 0.0)))
  kept = 1 - 2 * 2.0**-11
  assert later.limit[1] == pytest.approx(tradeoff.mu_at_most(3.0 * kept, DELTA * kept) ** 2, rel=1e-8)
  assert later.limit[0] == later.limit[1] - 0.1 and later.limit[1] < plain.limit
