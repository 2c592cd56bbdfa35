"""Certified runs as a user makes them: what they write, when there is a certificate, that nobody passes the budget."""

import math

import numpy as np
import pytest

from experiments import run_directory
from experiments import setup
from experiments import verify
from quap_tff import accounting
from quap_tff.mechanisms import tradeoff
from tests.experiments import harness

_DELTA = 1e-5


def _run(output_dir, *arguments):
  return harness.main(*harness.TINY, f'--output_dir={output_dir}', '--algorithm=certified', *arguments)


def _experiment(*arguments):
  with harness.parsed(*harness.TINY, *arguments) as values:
    return setup.from_flags(values)


def _spent(output_dir):
  ledger = accounting.RunLedger.load(output_dir / 'ledger.npz')
  return ledger, tradeoff.epsilon_of(accounting.total_mu(ledger).whole, _DELTA)


class TestRun:
  @pytest.mark.parametrize(
    'spec, participation',
    [
      ('certified', 'uniform'),
      ('certified:weights=uniform,quantile=0.6', 'bernoulli:q=0.9'),
      ('certified:weights=spend_evenly', 'uniform'),
      ('certified:weights=scale,own=0.5/2/0.5/4', 'uniform'),
      ('certified:weights=sample,own=0.5/1/0.5/4', 'uniform'),
    ],
  )
  def test_ends_with_a_certificate_that_holds(self, spec, participation, tmp_path, capsys):
    arguments = [f'--algorithm={spec}', f'--participation={participation}']
    assert harness.main(*harness.TINY, *arguments, f'--output_dir={tmp_path / "run"}') == 0
    summary = harness.last_line(capsys.readouterr().out)
    assert summary['formal']['covers'] == 'released model' and summary['nominal_epsilon_max'] is None
    # Noise and weights follow the cohorts, so however these were drawn, no amplification is earned.
    formal = harness.summary(tmp_path / 'run')['formal']
    assert {figure['amplification'] for figure in formal['figures']} == {'none'}
    assert any('No amplification' in note for note in formal['notes'])
    assert verify.main(['verify', str(tmp_path / 'run')]) == 0
    assert capsys.readouterr().out.startswith('VALID')
    _, epsilon = _spent(tmp_path / 'run')
    # The most exposed of the clients spends all it may, or nearly.
    assert 3.5 < epsilon.max() <= 4
    columns = harness.rows(tmp_path / 'run')[0]
    assert not [column for column in columns if column.startswith(('train', 'norm', 'signal'))]
    assert set(harness.table(tmp_path / 'run' / 'clients.csv')[0]) == {'client', 'rounds', 'formal_epsilon'}

  def test_a_resumed_run_is_the_uninterrupted_one_and_spends_once(self, tmp_path, capsys):
    arguments = ['--noise_seed=3', '--checkpoint_every=2', '--algorithm=certified:certificate=false']
    assert _run(tmp_path / 'whole', *arguments) == 0
    for stop in (3, 6, 8):
      assert _run(tmp_path / 'parts', *arguments, f'--stop_after={stop}') == 0
    assert harness.rows(tmp_path / 'parts') == harness.rows(tmp_path / 'whole')
    ledgers = [_spent(tmp_path / name)[0].state_dict() for name in ('whole', 'parts')]
    for name, value in ledgers[0].items():
      np.testing.assert_array_equal(ledgers[1][name], value, name)

  def test_a_round_is_kept_before_anything_of_it_is_reported(self, tmp_path, capsys, monkeypatch):
    reported = []
    for name in ('save', 'log'):
      method = getattr(run_directory.RunDirectory, name)
      monkeypatch.setattr(
        run_directory.RunDirectory,
        name,
        lambda self, t, *rest, name=name, method=method: (reported.append((name, t)), method(self, t, *rest)),
      )
    assert _run(tmp_path / 'run', '--stop_after=2', '--checkpoint_every=99') == 0
    assert reported[:5] == [('save', 0), ('save', 1), ('log', 1), ('save', 2), ('log', 2)]

  @pytest.mark.parametrize('algorithm', ['certified', 'tff_dp_fedavg', 'tff_dp_fedavg_adaptive', 'tff_dp_ftrl'])
  def test_what_a_killed_run_has_reported_stays_as_it_was(self, algorithm, tmp_path, capsys, monkeypatch):
    class Killed(BaseException):
      pass

    log = run_directory.RunDirectory.log

    def killed(self, round_num, row):
      log(self, round_num, row)
      if round_num == 3:
        raise Killed

    arguments = [*harness.TINY, f'--output_dir={tmp_path / "run"}', f'--algorithm={algorithm}', '--checkpoint_every=99']
    with monkeypatch.context() as patch, pytest.raises(Killed):
      patch.setattr(run_directory.RunDirectory, 'log', killed)
      harness.main(*arguments)
    reported = harness.rows(tmp_path / 'run')
    assert len(reported) == 3 and harness.main(*arguments, '--stop_after=4') == 0
    assert harness.rows(tmp_path / 'run')[:3] == reported

  def test_a_client_that_has_spent_its_budget_adds_nothing_and_is_counted(self, tmp_path, capsys):
    # Two rounds of weight 1 at this noise are the budget, and everyone comes to all eight.
    mu = float(1 / accounting.solve(epsilon=4.0, delta=_DELTA).noise_multiplier)
    spec = f'certified:weights=uniform,noise_multiplier={math.sqrt(2.01) / mu}'
    arguments = [f'--output_dir={tmp_path / "run"}', f'--algorithm={spec}', '--participation=full']
    assert harness.main(*harness.TINY, *arguments) == 0
    rows = harness.rows(tmp_path / 'run')
    assert [row['exhausted_clients'] for row in rows] == ['0'] * 2 + ['8'] * 6
    # Nothing is released then: the model stays.
    assert len({row['test_loss'] for row in rows[1:]}) == 1
    _, epsilon = _spent(tmp_path / 'run')
    assert (epsilon <= 4).all() and (epsilon > 3.9).all()
    capsys.readouterr()
    assert verify.main(['verify', str(tmp_path / 'run')]) == 0


class TestCalibration:
  def test_everyone_in_every_round(self):
    config = _experiment('--algorithm=certified:weights=uniform', '--participation=full', '--epsilon=3').plan.config
    mu = 1 / accounting.solve(epsilon=3.0, delta=_DELTA).noise_multiplier
    assert config.noise_multiplier == pytest.approx(math.sqrt(8) / mu, rel=1e-6)
    assert config.divisor == 8

  def test_alpha_and_beta_are_the_weights(self):
    experiment = _experiment('--algorithm=certified', '--alpha=0.9', '--beta=3', '--warmup_rounds=0')
    weights = experiment.plan.config.weights
    assert (weights.alpha, weights.beta) == (0.9, 3.0)

  def test_the_mechanisms_noise_flags_do_not_apply(self):
    # ε_base would be too large for the classic calibration.
    assert _experiment('--algorithm=certified', '--rounds=2', '--epsilon=8').plan.config.epsilon == 8

  @pytest.mark.parametrize(
    'spec, message',
    [
      ('certified:weights=unifrom', "'uniform'"),
      ('certified:clip=0', 'clipping norm'),
      ('certified:clip_split=sqrt', "'sqrt_size'"),
      ('certified:quantile=0.5,count_stddev=0', 'un-noised'),
    ],
  )
  def test_bad_parameters(self, spec, message):
    with pytest.raises(ValueError, match=message):
      _experiment(f'--algorithm={spec}')
