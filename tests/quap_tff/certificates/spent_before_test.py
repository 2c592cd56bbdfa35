"""Runs that begin with what clients have spent before: budgets, figures, files and certificates count from there."""

import dataclasses
import json
import math
import shutil

import numpy as np
import pytest

import quap_tff
from quap_tff import accounting
from quap_tff.accounting import spent as spents
from quap_tff.common import durable
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


def _spent(*mu_squared):
  return accounting.SpentBefore(mu_squared, trust='server')


def _sums(*mu_squared):
  return accounting.SpentBefore(mu_squared, trust='secure_sum')


@pytest.fixture(name='chain', scope='module')
def _of_independent_noise(tmp_path_factory):
  """A chain of two runs, which is only to be read."""
  return _chain(tmp_path_factory.mktemp('chain'), 'independent', 'ledger.npz')


def _chain(tmp_path, kind, file):
  """The folder of a first run, and that of a second run that counts from a file of it."""
  first = made.folder(tmp_path / 'first', made.plan(schedule=([0], [0, 1], [0, 2], [0]), **KINDS[kind]))
  second = made.plan(schedule=SECOND, num_clients=7, options={'spent': str(first / file)}, **KINDS[kind])
  return first, made.folder(tmp_path / 'second', second), second


@pytest.mark.slow
@pytest.mark.parametrize('file', ['ledger.npz', pytest.param('clients.csv', marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
  'kind', [kind if kind in ('online', 'held') else pytest.param(kind, marks=pytest.mark.thorough) for kind in KINDS]
)
def test_a_second_run_counts_from_the_first(kind, file, tmp_path, capsys):
  first, second, plan = _chain(tmp_path, kind, file)
  status, lines = made.answer(second, capsys)
  assert (status, lines[0]) == (0, 'VALID'), lines
  before = accounting.total_mu(accounting.RunLedger.load(first / 'ledger.npz')).whole ** 2
  counted = np.asarray(plan.config.spent_before.mu_squared)
  np.testing.assert_allclose(counted[:6], before, rtol=2e-4, atol=1e-9)
  assert counted[6] == 0
  ledger = accounting.RunLedger.load(second / 'ledger.npz')
  own = accounting.total_mu(made.ledger(plan)).updates ** 2
  total = accounting.total_mu(ledger).whole ** 2
  np.testing.assert_allclose(total, own + counted, rtol=1e-12)
  assert (tradeoff.epsilon_of(np.sqrt(own + np.append(before, 0)), DELTA) <= 3).all()
  # Client 0 has nothing left, and the newcomer has all of it.
  assert own[0] < 0.04 < before[0] and own[6] > 0.1
  certificate = made.read(second, 'certificate.json')
  assert certificate['guarantee']['spent_before']['clients'] == np.count_nonzero(counted)
  assert 2.9 < certificate['guarantee']['spent_before']['epsilon_max'] <= 3
  assert certificate['achieved']['epsilon_max'] <= 3
  assert 'The account does not begin at 0' in certificate['statement']
  assert any('taken from the issuer' in one for one in certificate['assumptions'])
  rows = [line.split(',') for line in (second / 'clients.csv').read_text().splitlines()[1:]]
  assert (rows[0][1], float(rows[0][2]) > 2.9) == ('2', True)  # Its rounds in this run, and the ε of both.


@pytest.mark.slow
def test_the_files_of_a_certificate_have_one_heir(chain, tmp_path):
  folder, counters = chain[0], str(tmp_path / 'counters')
  one, other = (durable.Heir(name, f'runs/{name}') for name in ('one', 'other'))
  spents.claim(str(folder / 'ledger.npz'), one, counters)
  with pytest.raises(ValueError, match='runs/one counts from it already'):
    spents.claim(str(folder / 'clients.csv'), other, counters)
  spents.claim(str(folder / 'clients.csv'), one, counters)


@pytest.mark.slow
@pytest.mark.parametrize('file', ['ledger.npz', 'clients.csv'])
def test_a_third_run_counts_from_both(file, chain):
  """The files of the second run carry what the first one has spent, also of clients that never came again."""
  _, second, plan = chain
  found = np.asarray(accounting.read_spent(second / file, 9).mu_squared)
  expected = accounting.total_mu(made.ledger(plan)).whole ** 2
  assert (found[:7] >= expected * (1 - 1e-8)).all() and (found[:7] <= expected * 1.01 + 1e-8).all()
  assert not found[7:].any() and found[1] > plan.config.spent_before.mu_squared[1] > 0


@pytest.mark.slow
def test_the_delta_of_an_earlier_run_may_be_another(tmp_path):
  path = made.folder(tmp_path / 'run', made.plan(delta=1e-7, epsilon=2.0))
  by_epsilon, exact = (
    np.asarray(accounting.read_spent(path / file).mu_squared) for file in ('clients.csv', 'ledger.npz')
  )
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
def test_other_figures_in_the_second_folder_are_found(chain, tmp_path, capsys):
  second = shutil.copytree(chain[1], tmp_path / 'second')
  value = made.read(second, 'mechanism.json')
  value['mechanism']['spent_before']['mu_squared'][1] = 0.0
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
    known = accounting.read_spent(path / 'clients.csv', 7).mu_squared
    np.testing.assert_allclose(known, gate.mu_squared, rtol=1e-3, atol=1e-8)

  def test_those_who_never_came_again_are_listed(self, tmp_path):
    gate, path = gate_logs_test._folder(tmp_path, spent=_spent(0, 0, 0, 0, 0, 0, 0.01))  # Client 6 is in no round.
    assert not gate._spending.counts[6]
    assert accounting.read_spent(path / 'clients.csv', 7).mu_squared[6] == pytest.approx(0.01, rel=1e-4)

  def test_goes_on_where_it_was_saved(self, tmp_path):
    gate = quap_tff.Gate(3, 4.0, 3.0, DELTA, spent=_spent(0.1, 0, 0.2))
    gate.ask([0])
    gate.commit([0], 0.5)
    gate.save(str(tmp_path / 'state'))
    again = quap_tff.Gate.load(str(tmp_path / 'state'), spent=_spent(0.1, 0, 0.2))
    assert again.mu_squared.tobytes() == gate.mu_squared.tobytes()
    with pytest.raises(ValueError, match='expected None'):
      quap_tff.Gate.load(str(tmp_path / 'state'), spent=None)

  def test_calibrated(self):
    schedule = [[0, 1]] * 6
    gate = quap_tff.Gate.calibrated(schedule, 3.0, DELTA, spent=_spent(0.3, 0.1))
    ends = gate.planned(schedule)
    assert gate.config.spent_before == _spent(0.3, 0.1) and (ends == 0).any()


class TestRefuses:
  def _config(self, spent, **more):
    return configs.CertifiedConfig(3, 3.0, DELTA, spent_before=_spent(*spent), **more)

  @pytest.mark.slow
  def test_more_than_the_bound(self):
    over = tradeoff.mu_at_most(3.2, DELTA) ** 2
    with pytest.raises(
      ValueError, match='Client 1 has spent ε = 3.2 at delta=1e-05, and its bound is 3. Give it a bound'
    ):
      self._config((0, over, 0))
    own = configs.CertifiedConfig(3, 4.0, DELTA, own_epsilon=(1, 3.5, 4), spent_before=_spent(0, over, 0))
    assert own.limit[1] > 0 and own.limit[0] < own.limit[2]
    with pytest.raises(ValueError, match='Client 0 .* its bound is 1'):
      configs.CertifiedConfig(3, 4.0, DELTA, own_epsilon=(1, 3.5, 4), spent_before=_spent(over, 0, 0))

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
    for config in (
      self._config((most, most, 0)),
      quap_tff.HeldConfig(3, 3.0, DELTA, spent_before=_sums(most, most, 0)),
    ):
      with pytest.raises(ValueError, match='No client that takes part has anything left'):
        config.settled([[0, 1]])
    assert self._config((most, most, 0)).settled([[0, 2]]).mechanism.limit[2] > 0

  def test_a_weight_without_a_budget(self):
    most = tradeoff.mu_at_most(3.0, DELTA) ** 2
    config = quap_tff.HeldConfig(3, 3.0, DELTA, spent_before=_sums(most, 0, 0)).settled([[0, 1], [1, 2]]).mechanism
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
    (path / 'other').write_bytes((path / 'mechanism.json').read_bytes())
    with pytest.raises(ValueError, match='not a whole file of a gate'):
      accounting.read_spent(path / 'other')

  @pytest.mark.parametrize('name, said', [('', 'is a folder'), ('certificate.json', 'is no file of spending')])
  def test_what_is_no_such_file(self, name, said, tmp_path):
    with pytest.raises(ValueError, match=f'{said}. Give the ledger.npz of a run'):
      accounting.read_spent(tmp_path / name)
    with pytest.raises(FileNotFoundError, match='no such file of an earlier run'):
      accounting.read_spent(tmp_path / 'nofile')

  def test_rounds_without_noise(self, tmp_path):
    ledger = accounting.RunLedger(2, DELTA, 'a run')
    ledger.append(accounting.RoundRecord(np.array([1]), np.ones(1), np.ones(1), 0.0, np.inf, 1.0))
    files.write(str(tmp_path / 'ledger.npz'), files.npz(ledger.state_dict()))
    with pytest.raises(ValueError, match='client 1 was in a round without noise'):
      accounting.read_spent(tmp_path / 'ledger.npz')


class TestConditions:
  """A figure takes along what its run protected."""

  PAIRS = tuple([i, i + 1] for i in (0, 2, 4)) * 2

  def _ledger(self, path, plan, ledger=None):
    """A ledger's file."""
    files.write(str(path), files.npz((made.ledger(plan) if ledger is None else ledger).state_dict()))
    return str(path)

  def _held(self, epsilon, colluders=(), **options):
    return made.plan(
      dict(attendance=self.PAIRS, colluders=colluders, **options), self.PAIRS, epsilon=epsilon, **made.HELD
    )

  @pytest.mark.slow
  @pytest.mark.parametrize('file', [pytest.param('ledger.npz', marks=pytest.mark.thorough), 'clients.csv'])
  def test_colluders_of_the_first_run_count_in_the_second(self, file, tmp_path, capsys):
    first = self._held(2.0, [1])
    folder = made.folder(tmp_path / 'first', first)
    spent = str(folder / file)
    second = self._held(4.0, [1], spent=spent)
    parts = [float(np.sqrt(one.mu_squared_against[1].max())) for one in (first, second)]
    alone = float(np.sqrt((second.mu_squared_against[1] - np.asarray(second.config.spent_before.against_any(1))).max()))
    assert parts[1] == pytest.approx(math.hypot(parts[0], alone), rel=1e-4)
    # Much more than with what the first run spent without colluders.
    assert parts[1] ** 2 > alone**2 + max(second.config.spent_before.mu_squared) + 0.2
    path = made.folder(tmp_path / 'second', second)
    status, lines = made.answer(path, capsys)
    assert (status, lines[0]) == (0, 'VALID'), lines
    (row,) = made.read(path, 'certificate.json')['guarantee']['colluders']
    assert row['clients'] == 1 and row['mu'] >= parts[1]
    # The file of both runs has the figures of both, and covers no larger number.
    third = accounting.read_spent(path / 'ledger.npz')
    np.testing.assert_allclose(third.against_any(1), second.mu_squared_against[1], rtol=1e-12)
    assert third.against_any(2) is None
    with pytest.raises(ValueError, match='no figure against 2 colluders.*plan the earlier runs with colluders=2'):
      self._held(4.0, [1, 2], spent=spent)

  def test_without_a_figure_against_colluders_there_is_none_later(self, tmp_path):
    spent = self._ledger(tmp_path / 'ledger.npz', self._held(2.0))
    assert self._held(4.0, spent=spent).config.spent_before.against == ()
    with pytest.raises(ValueError, match='no figure against 1 colluders'):
      self._held(4.0, [1], spent=spent)

  def test_more_colluders_cover_fewer(self, tmp_path):
    spent = accounting.read_spent(self._ledger(tmp_path / 'ledger.npz', self._held(2.0, [3, 1])))
    assert [k for k, _ in spent.against] == [1, 3]
    assert (spent.against_any(2) == spent.against_any(3)).all() and (spent.against_any(3) >= spent.against_any(1)).all()

  def test_a_run_without_a_finite_epsilon(self, tmp_path):
    quap = quap_tff.Plan(examples.quap(noise=examples.NoiseConfig('server')))
    assert not quap.protection.model_protected
    with pytest.raises(ValueError, match='ledger.npz: the model that its run released has no finite ε'):
      made.plan(dict(spent=self._ledger(tmp_path / 'ledger.npz', quap, quap.new_ledger())))

  def test_a_run_that_logged_exact_values(self, tmp_path):
    plan = made.plan(dict(certificate=False, client_metrics=True))
    with pytest.raises(ValueError, match='has also logged exact functions'):
      made.plan(dict(spent=self._ledger(tmp_path / 'ledger.npz', plan)))

  def test_another_relation_and_no_conditions(self, tmp_path):
    ledger = made.ledger(made.plan())
    state = ledger.state_dict()
    of_clients = ledger.conditions._replace(trust='client', relation='replace_one')
    state['conditions'] = np.frombuffer(of_clients.text.encode(), np.uint8)
    files.write(str(tmp_path / 'one.npz'), files.npz(state))
    with pytest.raises(ValueError, match='its figures are for replace .*trust: client.*do not add up'):
      accounting.read_spent(tmp_path / 'one.npz')
    del state['conditions'], state['against']
    files.write(str(tmp_path / 'one.npz'), files.npz(state))
    with pytest.raises(ValueError, match='does not say what its run protected'):
      accounting.read_spent(tmp_path / 'one.npz')

  @pytest.mark.slow
  @pytest.mark.parametrize('file', ['ledger.npz', 'clients.csv', 'gate.state'])
  def test_a_trusted_server_in_a_run_without_one(self, file, tmp_path, capsys):
    folder = made.folder(tmp_path / 'first')
    quap_tff.Gate(6, 4.0, 3.0, DELTA, spent=str(folder / 'ledger.npz')).save(str(folder / 'gate.state'))
    with pytest.raises(ValueError, match="of runs whose server saw the clients' updates"):
      made.plan(dict(spent=str(folder / file)), **made.HELD)
    # The other way round less is said than both runs have kept.
    held = self._ledger(tmp_path / 'ledger.npz', self._held(2.0))
    path = made.folder(tmp_path / 'second', made.plan(dict(spent=held), epsilon=4.0))
    status, lines = made.answer(path, capsys)
    assert (status, lines[0]) == (0, 'VALID'), lines
    assert 'whose servers saw secure sums alone, if these opened as the plans of those runs assume' in lines[1]
    third = accounting.read_spent(path / 'ledger.npz')
    assert third.trust == 'server' and not third.is_ideal

  @pytest.mark.slow
  def test_a_gate_counts_noise_as_ideal(self, tmp_path, capsys):
    (tmp_path / 'first').mkdir()
    gate, path = gate_logs_test._folder(tmp_path / 'first')
    gate.save(str(tmp_path / 'gate.state'))
    for file in (tmp_path / 'gate.state', path / 'clients.csv'):
      spent = accounting.read_spent(file)
      assert (spent.trust, spent.is_ideal) == ('server', True) and len(spent.files) == 1
    of = made.plan(dict(spent=str(path / 'clients.csv')), num_clients=7, epsilon=4.0)
    second = made.folder(tmp_path / 'second', of)
    assert 'Noise of those runs is counted as ideal' in made.answer(second, capsys)[1][1]
    assert accounting.read_spent(second / 'ledger.npz').is_ideal
    assert accounting.read_spent(second / 'clients.csv').is_ideal

  def test_clients_are_read_beside_the_mechanism(self, tmp_path):
    path = made.folder(tmp_path / 'first')
    mechanism = (path / 'mechanism.json').read_text()
    (path / 'mechanism.json').write_text(mechanism.replace('"server"', '"secure_sum"'))
    with pytest.raises(ValueError, match='SHA-256 of mechanism.json is not the one'):
      accounting.read_spent(path / 'clients.csv')
    (path / 'mechanism.json').unlink()
    with pytest.raises(ValueError, match='mechanism.json is not there'):
      accounting.read_spent(path / 'clients.csv')

  def test_bare_numbers(self):
    for refused in (
      lambda: quap_tff.Gate(2, 4.0, 3.0, DELTA, spent=[0.1, 0]),
      lambda: configs.CertifiedConfig(2, 3.0, DELTA, spent_before=(0.1, 0.0)),
    ):
      with pytest.raises(TypeError, match='numbers alone do not say what'):
        refused()

  def test_two_runs_are_added_with_what_both_protect(self):
    two = accounting.SpentBefore((0.1, 0.2), 'secure_sum', False, ((1, (0.2, 0.3)), (2, (0.4, 0.4))), ('a',))
    one = accounting.SpentBefore((0.1, 0.0), 'secure_sum', True, ((2, (0.3, 0.1)),), ('b',))
    expected = accounting.SpentBefore((0.2, 0.2), 'secure_sum', True, ((1, (0.5, 0.4)), (2, (0.7, 0.5))), ('a', 'b'))
    assert one + two == dataclasses.replace(expected, files=('b', 'a')) and two + one == expected
    assert (two + _spent(0, 0)).trust == 'server' and (two + _spent(0, 0)).against == ()


def test_rounding_of_earlier_runs_is_kept_for():
  plain, later = (configs.CertifiedConfig(2, 3.0, DELTA, spent_before=one) for one in (None, _spent(0.1, 0.0)))
  kept = 1 - 2 * 2.0**-11
  assert later.limit[1] == pytest.approx(tradeoff.mu_at_most(3.0 * kept, DELTA * kept) ** 2, rel=1e-8)
  assert later.limit[0] == later.limit[1] - 0.1 and later.limit[1] < plain.limit
