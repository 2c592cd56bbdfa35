"""Audits as a user runs them: of a method, and of the folder of a certified run."""

import contextlib
import json
import pathlib
import shutil

import numpy as np
import pytest

from experiments import audit
from experiments import certificates as folders
from experiments import command_line
from experiments import setup
from experiments import verify
from experiments.auditing import canary_run
from experiments.auditing import record
from quap_tff import runtime
from quap_tff.certified import mechanism
from tests.experiments import harness

_CERTIFIED = (*harness.TINY, '--algorithm=certified:clip=0.5,weights=online,noise=ar1', '--rounds=6')
_SMALL = ('--canaries=6', '--unseen=300', '--repeats=1', '--draws=5000')


def _audit(*arguments):
  """The binary in this process, with its errors as a user sees them; returns the exit status."""
  with harness.signal_handlers_kept():
    return command_line.status_of(audit.main, ['audit', *arguments])


@contextlib.contextmanager
def _experiment(*arguments):
  with harness.parsed(*harness.TINY, *arguments) as values:
    experiment = setup.from_flags(values)
    with runtime.activate(experiment.runtime):
      yield experiment


@pytest.fixture(scope='module', name='original')
def _original(tmp_path_factory):
  """The folder of a certified run that was audited."""
  path = tmp_path_factory.mktemp('runs') / 'certified'
  assert harness.main(*_CERTIFIED, f'--output_dir={path}') == 0
  assert _audit(str(path), *_SMALL) == 0
  return path


@pytest.fixture(name='audited')
def _audited(original, tmp_path):
  """A copy of it."""
  return pathlib.Path(shutil.copytree(original, tmp_path / 'audited'))


def _change(path, **changes):
  """Changes the audit as somebody would who also renews its digest."""
  kept = json.loads((path / record.AUDIT).read_text(encoding='utf-8'))
  measured = {name: value for name, value in {**kept, **changes}.items() if not name.endswith('sha256')}
  certificate = {'sha256': changes.get('certificate_sha256', kept['certificate_sha256'])}
  record.write(str(path), record.make(measured, certificate))
  folders.write_page(str(path), folders.read_json(str(path), folders.CERTIFICATE))


class TestCanaryRun:

  _SETTINGS = canary_run.Settings(canaries=8, unseen=400, repeats=2)

  def test_scores_are_those_of_the_claim(self):
    with _experiment('--algorithm=certified:clip=0.5,weights=online,noise=ar1', '--participation=full') as experiment:
      found = canary_run.run(experiment, self._SETTINGS)
    assert found.claim == canary_run.Claim(4.0, 1e-5, 'certified')
    assert found.inserted.shape == (16,) and found.unseen.shape == (800,)
    assert found.unseen.mean() == pytest.approx(0, abs=4 / np.sqrt(800))
    assert found.unseen.std() == pytest.approx(1, abs=0.1)
    assert found.inserted.mean() == pytest.approx(found.claim.mu, abs=4 / np.sqrt(16))
    assert found.bound.epsilon < 4.0

  def test_clients_that_are_not_clipped_are_caught(self, monkeypatch):
    monkeypatch.setattr(mechanism, 'contribute', lambda groups, update, weight, clip: update)
    with _experiment('--algorithm=certified:clip=0.5', '--participation=full') as experiment:
      found = canary_run.run(experiment, self._SETTINGS)
    assert found.guesses.true_positives == 16
    assert found.bound.epsilon > 4.0

  def test_layers_without_noise_refute_the_nominal_epsilon(self):
    with _experiment('--algorithm=quap', '--model=digits_cnn', '--noise_seed=1') as experiment:
      found = canary_run.run(experiment, canary_run.Settings(6, 100, 1, part='unnoised'))
    assert found.claim.kind == 'nominal'
    assert found.guesses.true_positives == 6 and found.guesses.false_positives == 0

  @pytest.mark.parametrize('algorithm', ['fixed_dp', 'tff_dp_ftrl', 'tff_dp_fedavg_adaptive', 'fedavg'])
  def test_runs_for_every_kind_of_method(self, algorithm):
    with _experiment(f'--algorithm={algorithm}', '--rounds=4') as experiment:
      found = canary_run.run(experiment, canary_run.Settings(3, 60, 1))
    assert found.claim.kind == ('none' if algorithm == 'fedavg' else 'formal')
    assert np.isfinite(found.inserted).all() and np.isfinite(found.unseen).all()

  @pytest.mark.parametrize('algorithm,message', [
      ('fedbuff', 'There is no audit for FedBuffPlan'),
      ('scaffold:base=quap', 'Audit the base that the method is built around'),
  ])
  def test_refuses_methods_that_keep_more_than_an_aggregate(self, algorithm, message):
    with _experiment(f'--algorithm={algorithm}') as experiment:
      with pytest.raises(ValueError, match=message):
        canary_run.run(experiment, canary_run.Settings(canaries=3, unseen=60))

  def test_refuses_more_canaries_than_clients_take_part(self):
    with _experiment('--algorithm=certified:clip=0.5', '--rounds=1') as experiment:
      with pytest.raises(ValueError, match=r'only 3 of the 8 clients take part.*--canaries=3'):
        canary_run.run(experiment, canary_run.Settings(canaries=4))


class TestCommand:

  def test_last_line(self, capsys):
    assert _audit(*_CERTIFIED, *_SMALL) == 0
    out = capsys.readouterr().out
    summary = harness.last_line(out)
    assert summary['claimed_epsilon'] == 4.0 and summary['confidence'] == 0.95 and summary['canaries'] == 6
    assert 0 <= summary['epsilon_lower_bound'] < 4.0
    assert summary['game']['mu_lower_bound'] <= summary['game']['claimed_mu']
    assert 'The certified ε is 4, which this audit does not refute.' in out

  @pytest.mark.parametrize('arguments,message', [
      (['--canaries=0'], 'canaries must be an integer at least 1'),
      (['--confidence=1.5'], 'confidence must be'),
      (['--draws=-1'], 'draws must be an integer at least 0'),
      (['--part=unnoised', '--algorithm=fixed_dp'], 'every layer of this run has noise. Use part=all.'),
      (['--output_dir=x'], '--output_dir: an audit keeps no run'),
      (['--cannaries=3'], "Unknown command line flag 'cannaries'"),
      (['one', 'two'], 'Give at most one folder to audit, found 2'),
      (['nowhere'], 'nowhere is not a folder'),
      (['nowhere', '--rounds=3'], '--rounds: the flags of the run in nowhere say what is audited'),
      (['--unseen=5000'], 'Ask for at most 644 unseen directions'),
  ])
  def test_refuses_in_words(self, arguments, message, capsys):
    tiny = () if 'nowhere' in arguments or 'two' in arguments else (*_CERTIFIED, '--canaries=6')
    assert _audit(*tiny, *arguments) == 1
    assert message in ' '.join(capsys.readouterr().err.split())


class TestFolder:

  def test_is_valid_and_the_page_shows_both_figures(self, audited):
    assert verify.verify(str(audited)).problems == []
    page = (audited / folders.PAGE).read_text(encoding='utf-8')
    assert 'What an audit measured' in page and 'no canary took part in the run that this certificate is about' in page
    kept = json.loads((audited / record.AUDIT).read_text(encoding='utf-8'))
    assert f'ε ≥ {kept["epsilon_lower_bound"]:.4g}' in page
    assert kept['certificate_sha256'] == folders.read_json(str(audited), folders.CERTIFICATE)['sha256']

  def test_is_published_with_the_run(self, audited, tmp_path):
    verify.publish(str(audited), str(tmp_path / 'public'))
    assert (tmp_path / 'public' / record.AUDIT).exists()
    assert verify.verify(str(tmp_path / 'public')).problems == []

  @pytest.mark.parametrize('changes,message', [
      (dict(epsilon_lower_bound=0.0, mu_lower_bound=0.5), 'mu_lower_bound is 0.5, but the counts give'),
      (dict(claimed_epsilon=5.0), 'the claim that it audits is not that of the certificate'),
      (dict(certificate_sha256='0' * 64), 'is the audit of another certificate'),
      (dict(true_positives=-1), 'is damaged'),
  ])
  def test_a_changed_audit_is_detected(self, audited, changes, message):
    _change(audited, **changes)
    assert any(message in problem for problem in verify.verify(str(audited)).problems)

  def test_an_audit_that_was_edited_is_detected(self, audited):
    text = (audited / record.AUDIT).read_text(encoding='utf-8')
    (audited / record.AUDIT).write_text(text.replace('"canaries": 6', '"canaries": 600'), encoding='utf-8')
    assert any('its digest is' in problem for problem in verify.verify(str(audited)).problems)

  def test_a_page_without_the_audit_is_detected(self, audited):
    (audited / record.AUDIT).unlink()
    assert any('does not match' in problem for problem in verify.verify(str(audited)).problems)

  def test_a_run_without_a_certificate_is_refused(self, tmp_path, capsys):
    arguments = ['--algorithm=fedavg', '--stop_after=1', f'--output_dir={tmp_path / "plain"}']
    assert harness.main(*harness.TINY, *arguments) == 0
    assert _audit(str(tmp_path / 'plain')) == 1
    assert 'has no certificate' in capsys.readouterr().err
