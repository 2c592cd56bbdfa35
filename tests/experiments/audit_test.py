"""Audits as a user runs them: of a method, and of the folder of a certified run.

Forgeries of audits are in tests/quap_tff/certificates/audits_test.py.
"""

import contextlib
import io
import json
import os
import pathlib
import secrets
import shutil
import sys
import types

import numpy as np
import pytest

from experiments import audit
from experiments.auditing import canary_run
from experiments.command import command_line
from quap_tff import certificates
from quap_tff import runtime
from quap_tff.auditing import canaries
from quap_tff.auditing.bounds import lower_bounds
from quap_tff.auditing.bounds import one_run
from quap_tff.certificates import audits as record
from quap_tff.certificates.folders import folder as folders
from quap_tff.certificates.folders import folder_files
from quap_tff.certificates.folders import signatures
from quap_tff.common.lazy import tf
from quap_tff.common.numbers import rounding
from quap_tff.common.numbers import seeds
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms.certified import rounds as certified
from tests import processes
from tests.experiments import harness
from tests.quap_tff.certificates import made

pytestmark = pytest.mark.slow

_CERTIFIED = (*harness.TINY, '--algorithm=certified:clip=0.5,weights=online,noise=ar1', '--rounds=6')
_SMALL = ('--canaries=6', '--unseen=300', '--repeats=1', '--draws=5000')


@contextlib.contextmanager
def _same_keys():
  """Keys of noise are those of the last run of the tests: of bounds that hold with 95%, some do not."""
  drawn = np.random.default_rng(1)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(secrets, 'token_bytes', drawn.bytes)
    patch.setattr(seeds, 'entropy', lambda size: tf.constant(np.frombuffer(drawn.bytes(8 * size), np.int64)))
    yield


def _audit(*arguments):
  """The binary in this process, with its errors as a user sees them; returns the exit status."""
  with harness.signal_handlers_kept(), _same_keys():
    return command_line.status_of(audit.main, ['audit', *arguments])


@contextlib.contextmanager
def _experiment(*arguments):
  experiment = harness.experiment(*harness.TINY, *arguments)
  with runtime.activate(experiment.runtime), _same_keys():
    yield experiment


@pytest.fixture(scope='module', name='finished')
def _finished(library, tmp_path_factory):
  """The folder of a certified run that was audited, and what the audit printed."""
  path = library.copy('certified', tmp_path_factory.mktemp('runs') / 'certified')
  with contextlib.redirect_stdout(io.StringIO()) as out:
    status = _audit(str(path), *_SMALL)
  assert status == 0, out.getvalue()
  return path, out.getvalue()


@pytest.fixture(name='audited')
def _audited(finished, tmp_path):
  """A copy of the folder."""
  return pathlib.Path(shutil.copytree(finished[0], tmp_path / 'audited'))


@pytest.fixture(name='signed')
def _signed(audited, tmp_path):
  """The copy, with a signed certificate and a signed audit; and the files of both keys."""
  private, public = harness.keys(tmp_path / 'keys')
  for place, name in ((audited / folders.SUBFOLDER, folders.CERTIFICATE), (audited, folders.AUDIT)):
    signatures.sign(str(place), name, signatures.read_private_key(private))
  return audited, private, public


@pytest.mark.thorough
def test_a_run_without_a_trusted_server(library, tmp_path, capsys):
  path = library.copy('held', tmp_path / 'held')
  assert _audit(str(path), *_SMALL, '--draws=20000') == 0
  found = _kept(path)
  assert found['epsilon_lower_bound'] <= found['claimed_epsilon']
  error = np.sqrt(2 / found['game']['draws'])
  assert found['game']['mu_estimate'] == pytest.approx(found['game']['claimed_mu'], abs=5 * error)
  verdict = certificates.verify(str(path))
  assert not verdict.problems and 'does not refute' in verdict.scope


def _kept(path):
  return json.loads((path / record.AUDIT).read_text(encoding='utf-8'))


def _scores(summary):
  return one_run.CanaryScores(*(summary[name] for name in one_run.CanaryScores._fields))


def _of_game(summary, confidence):
  guesses = lower_bounds.Guesses(*(summary['game'][name] for name in lower_bounds.Guesses._fields))
  return lower_bounds.bound(guesses, summary['delta'], confidence)


class TestCanaryRun:
  _SETTINGS = canary_run.Settings(canaries=8, unseen=400, repeats=2)

  @pytest.mark.thorough
  def test_scores_are_those_of_the_claim(self):
    with _experiment('--algorithm=certified:clip=0.5,weights=online,noise=ar1', '--participation=full') as experiment:
      found = canary_run.audit_run(experiment, self._SETTINGS)
    assert found.claim == canary_run.Claim(4.0, 1e-5, 'certified')
    assert found.scores.shape == found.heads.shape == (16,) and found.unseen.shape == (800,)
    assert found.unseen.mean() == pytest.approx(0, abs=4 / np.sqrt(800))
    assert found.unseen.std() == pytest.approx(1, abs=0.1)
    inserted, absent = found.scores[found.heads], found.scores[~found.heads]
    assert inserted.mean() == pytest.approx(tradeoff.mu_at_most(4.0, 1e-5), abs=4 / np.sqrt(inserted.size))
    assert absent.mean() == pytest.approx(0, abs=4 / np.sqrt(absent.size))
    assert found.found.unseen == 800 + absent.size
    assert found.bounds['epsilon_lower_bound'] < 4.0

  def test_groups_are_thirds_by_participation(self):
    scores, heads = np.arange(12.0), np.arange(12) % 2 == 0
    counts = np.array([5, 1, 3, 2, 9, 4])
    found = one_run.found(scores, heads, np.ones(100), 1.0, 4)
    groups = canary_run._groups(found, scores, heads, counts, 1e-5, 0.95)
    assert [(one['group'], one['fewest_rounds'], one['most_rounds']) for one in groups] == [
      ('rare', 1, 2),
      ('middle', 3, 4),
      ('frequent', 5, 9),
    ]
    # Two runs of six canaries: those of index 1 and 3 are rare, and their coins fell tails.
    assert [(one['coins'], one['inserted'], one['inserted_mean']) for one in groups] == [
      (4, 0, 0.0),
      (4, 2, (2 + 8) / 2),
      (4, 4, (0 + 4 + 6 + 10) / 4),
    ]
    alone = found._replace(inserted=4, inserted_mean=5.0)
    # All three hold together.
    expected = one_run.gaussian_mu(alone, 0.05 / 3)
    assert groups[2]['mu_lower_bound'] == pytest.approx(expected) and expected > 0

  @pytest.mark.thorough
  def test_layers_without_noise_refute_the_nominal_epsilon(self):
    with _experiment('--algorithm=quap', '--model=mlp', '--noise_seed=1') as experiment:
      found = canary_run.audit_run(experiment, canary_run.Settings(6, 100, 6, part='unnoised'))
    assert found.claim.kind == 'nominal'
    # The test says how each coin fell, and the audit guesses all of them.
    assert found.found.correct == found.found.guesses == found.found.coins == 36
    assert found.scores[found.heads].min() > 10 * np.abs(found.scores[~found.heads]).max()
    # Without noise there is no Gaussian curve, and one analysis is left.
    assert found.bounds['mu_lower_bound'] is None
    assert found.bounds['epsilon_lower_bound'] == found.bounds['epsilon_lower_bound_by_any_dp'] > 2

  def test_a_round_of_tffs_tree_is_divided_by_a_constant_and_has_no_single_sigma(self):
    plan = harness.experiment(*harness.TINY, '--algorithm=tff_dp_ftrl').plan
    measured = dict(round=1, cohort_size=2, clipping_norms=np.float32([0.5]))
    found = types.SimpleNamespace(output=types.SimpleNamespace(measurements=measured))
    clip, divisor, multiplier = canary_run._units(plan, found, np.arange(2))
    assert (clip, divisor, multiplier) == (0.5, plan.mechanism.clients_per_round, None) and divisor != 2

  @pytest.mark.thorough
  @pytest.mark.parametrize('algorithm', ['fixed_dp', 'tff_dp_ftrl', 'tff_dp_fedavg_adaptive', 'fedavg'])
  def test_runs_for_every_kind_of_method(self, algorithm):
    with _experiment(f'--algorithm={algorithm}', '--rounds=4') as experiment:
      found = canary_run.audit_run(experiment, canary_run.Settings(3, 60, 1))
    assert found.claim.kind == ('none' if algorithm == 'fedavg' else 'formal')
    assert np.isfinite(found.scores).all() and np.isfinite(found.unseen).all()

  @pytest.mark.parametrize(
    'algorithm,message',
    [
      ('fedbuff', 'There is no audit for this method: clients train on versions of the model'),
      ('scaffold:base=quap', 'Audit the base that the method is built around'),
    ],
  )
  def test_refuses_methods_that_keep_more_than_an_aggregate(self, algorithm, message):
    with _experiment(f'--algorithm={algorithm}') as experiment:
      with pytest.raises(ValueError, match=message):
        canary_run.audit_run(experiment, canary_run.Settings(canaries=3, unseen=60))

  def test_refuses_more_canaries_than_clients_take_part(self):
    with _experiment('--algorithm=certified:clip=0.5', '--rounds=1') as experiment:
      with pytest.raises(ValueError, match=r'only 3 of the 8 clients take part.*--canaries=3'):
        canary_run.audit_run(experiment, canary_run.Settings(canaries=4))


class TestCommand:
  def test_last_line(self, finished):
    out = finished[1]
    summary = harness.last_line(out)
    assert summary['claimed_epsilon'] == 4.0 and summary['confidence'] == 0.95 and summary['canaries'] == 6
    assert 0 <= summary['epsilon_lower_bound'] < 4.0
    assert summary['game']['mu_lower_bound'] <= summary['game']['claimed_mu']
    assert 'The certified ε is 4, which this audit does not refute.' in out
    # One μ is claimed, and it says of whom.
    assert out.count('claimed_mu') == 1
    claimed = rounding.up(summary['game']['claimed_mu'])
    assert f'For its client, the one that spends most, μ = {claimed} is claimed\n' in out
    assert not summary['refuted'] and summary['seconds'] is None
    # The canaries get most of the error.
    assert summary['mu_lower_bound'] == pytest.approx(one_run.gaussian_mu(_scores(summary), 0.045))
    assert summary['game']['mu_lower_bound'] == _of_game(summary, 0.995).mu
    assert '95% that all bounds hold, 95.5% for the canaries and 99.5% for the game' in out
    assert f'ε ≥ {rounding.down(summary["epsilon_lower_bound"])}' in out

  def test_clients_that_are_not_clipped_are_caught(self, monkeypatch, capsys):
    whole = lambda self, update, report, announced, clip=None: list(update.values())
    monkeypatch.setattr(certified.CertifiedRounds, 'contribution', whole)
    tiny = [line for line in harness.TINY_FLAGS.read_text().splitlines() if 'cohort_size' not in line]
    flags = ('--participation=full', '--canaries=8', '--unseen=400', '--repeats=2', '--draws=0')
    seeds, placed = [], canaries.with_directions
    monkeypatch.setattr(
      canaries, 'with_directions', lambda state, seed: seeds.append(tuple(seed)) or placed(state, seed)
    )
    assert _audit(*tiny[1:], '--algorithm=certified:clip=0.5', *flags) == 1
    out = capsys.readouterr().out
    found = harness.last_line(out)
    assert found['refuted'] and found['epsilon_lower_bound'] > 4.0
    assert 'More is proved than' in out and 'does not refute' not in out
    assert len(set(seeds)) == 2  # Each repeat has directions of its own.

  @pytest.mark.thorough
  def test_a_game_alone_refutes(self, monkeypatch, capsys):
    # The canaries' run is sound. The game's mechanism adds a client as often as it likes.
    real, play = certified.CertifiedRounds.contribution, audit.game.play

    def twenty_times(self, update, report, announced, clip=None):
      more = {i: 20 * part for i, part in update.items()}
      return real(self, more, report, dict(announced, weights=20 * announced['weights']))

    def broken(*arguments):
      monkeypatch.setattr(certified.CertifiedRounds, 'contribution', twenty_times)
      return play(*arguments)

    monkeypatch.setattr('experiments.auditing.game.play', broken)
    assert _audit(*_CERTIFIED, *_SMALL) == 1
    out = capsys.readouterr().out
    assert harness.last_line(out)['refuted'] and harness.last_line(out)['epsilon_lower_bound'] < 4
    assert 'More is proved than the μ = ' in out and 'does not refute' not in out

  @pytest.mark.parametrize(
    'arguments,message',
    [
      (['--canaries=0'], '--canaries must be an integer at least 1, found 0.'),
      (['--unseen=0'], '--unseen must be an integer at least 1, found 0.'),
      (['--repeats=0'], '--repeats must be an integer at least 1, found 0.'),
      (['--confidence=1.5'], '--confidence must be a finite number at least 0.5 and less than 1, found 1.5.'),
      (['--draws=-1'], '--draws must be 0, for no game, or at least 100, found -1'),
      (['--canary_seed=-1'], '--canary_seed must be an integer at least 0'),
      (['--confidence=nan'], '--confidence must be a finite number at least 0.5 and less than 1'),
      (['--canaries=9'], '--canaries=9: only 8 of the 8 clients take part'),
      (['--part=unnoised', '--algorithm=fixed_dp'], 'every layer of this run has noise. Use --part=all.'),
      (['--signing_key=key.pem'], '--signing_key signs the audit of a folder'),
      (['--device=gpu'], 'sees no GPU here'),
      (['--output_dir=x'], '--output_dir: an audit keeps no run'),
      (['--cannaries=3'], "Unknown command line flag 'cannaries'"),
      (['one', 'two'], 'Give at most one folder to audit, found 2'),
      (['nowhere'], 'nowhere/certificate does not exist'),
      (['nowhere', '--rounds=3'], '--rounds: the flags of the run in nowhere say what is audited'),
      (['--unseen=5000'], 'Ask for at most 644 unseen directions'),
    ],
  )
  def test_refuses_in_words(self, arguments, message, capsys):
    tiny = () if 'nowhere' in arguments or 'two' in arguments else (*_CERTIFIED, '--canaries=6')
    assert _audit(*tiny, *arguments) == 1
    out, err = capsys.readouterr()
    assert message in ' '.join(err.split()) and not out

  @pytest.mark.parametrize(
    'arguments,message',
    [
      (['--algorithm=tff_dp_fedavg'], 'only certified runs have a game for secret coins'),
      (['--algorithm=certified', '--canaries=3'], '--canaries: canaries are scored by the rounds that they are in'),
      (['--algorithm=certified', '--part=all'], '--part: canaries are scored'),
      (['--algorithm=certified', '--draws=0'], 'the distinguishing game is the only test'),
    ],
  )
  def test_refuses_canaries_among_secret_cohorts(self, arguments, message, capsys):
    assert _audit('--participation=bernoulli', '--cohort_seed=secret', *arguments) == 1
    assert message in ' '.join(capsys.readouterr().err.split())

  @pytest.mark.thorough
  def test_says_one_line_and_no_more(self):
    """As a process: TFF must not complain when the interpreter ends."""
    command = [sys.executable, '-m', 'experiments.audit', *_CERTIFIED, *_SMALL, '--part=unnoised']
    found = processes.run(command, env={**os.environ, 'PYTHONPATH': harness.PYTHONPATH})
    assert (found.returncode, found.stdout) == (1, '')
    assert found.stderr == 'Error: --part=unnoised: every layer of this run has noise. Use --part=all.\n'


class TestFolder:
  def test_lies_alongside_the_certificate_and_is_read_with_it(self, audited):
    kept = _kept(audited)
    verdict = certificates.verify(str(audited))
    assert verdict.problems == [] and f'ε ≥ {rounding.down(kept["epsilon_lower_bound"])}' in verdict.scope
    certificate = folder_files.read_json(str(audited / folders.SUBFOLDER), folders.CERTIFICATE)
    assert kept['certificate_sha256'] == certificate['sha256']
    assert certificates.verify(str(audited / folders.SUBFOLDER)).problems == []

  def test_signatures_that_were_not_checked_are_named(self, signed):
    path, _, public = signed
    warnings = certificates.verify(str(path)).warnings
    assert [warning.partition(' ')[0] for warning in warnings] == ['certificate.sig', 'audit.sig']
    assert certificates.verify(str(path), public)[:2] == ([], [])

  def test_a_signed_run_needs_the_key_before_the_audit_starts(self, signed, tmp_path, monkeypatch, capsys):
    path, private, public = signed
    other, _ = harness.keys(tmp_path / 'other')
    before = harness.files(path)
    monkeypatch.setattr(audit, '_measure', lambda values: pytest.fail('the audit has started'))
    for more, message in (
      ([], 'give --signing_key, the key of the certificate'),
      ([f'--signing_key={other}'], 'is not a signature of certificate.json'),
      ([f'--signing_key={public}'], 'must hold a PEM key'),
    ):
      assert _audit(str(path), *more) == 1
      assert message in capsys.readouterr().err
    signature = path / folders.SUBFOLDER / folders.SIGNATURE
    signature.unlink()
    assert _audit(str(path), f'--signing_key={private}') == 1
    assert 'is not signed, so its audit is not signed either' in capsys.readouterr().err
    signature.write_bytes(before[f'{folders.SUBFOLDER}/{folders.SIGNATURE}'][0])
    assert {name: content for name, (content, _) in harness.files(path).items()} == {
      name: content for name, (content, _) in before.items()
    }

  @pytest.mark.thorough
  def test_the_audit_of_a_signed_run_is_signed_and_one_test_has_all_of_the_confidence(self, signed, capsys):
    path, private, public = signed
    (path / folders.AUDIT_SIGNATURE).unlink()
    (path / record.AUDIT).write_text('{')  # Of an audit that was killed: it does not stop another.
    assert certificates.verify(str(path)).problems
    assert _audit(str(path), *_SMALL, '--draws=0', f'--signing_key={private}') == 0
    assert certificates.verify(str(path), public).problems == []
    summary = harness.last_line(capsys.readouterr().out)
    assert summary['game'] is None
    assert summary['mu_lower_bound'] == pytest.approx(one_run.gaussian_mu(_scores(summary), 0.05))

  def test_a_run_without_a_certificate_is_refused(self, audited, capsys):
    (audited / folders.SUBFOLDER / folders.CERTIFICATE).unlink()
    assert _audit(str(audited)) == 1
    assert 'has no certificate' in capsys.readouterr().err


def test_a_run_with_secret_cohorts_has_the_game_alone(tmp_path, capsys):
  secretly = ('--algorithm=certified', '--participation=bernoulli:q=0.4', '--cohort_seed=secret', '--epsilon=3')
  assert harness.main(*harness.TINY, *secretly, '--rounds=4', f'--output_dir={tmp_path}') == 0
  capsys.readouterr()
  assert _audit(str(tmp_path), '--draws=5000') == 0
  summary, kept = harness.last_line(capsys.readouterr().out), _kept(tmp_path)
  assert 0.3 < summary['epsilon_lower_bound'] < kept['game']['claimed_epsilon'] <= 3
  assert kept['game']['rate'] == 0.4 and kept['game']['draws'] == 5000 and 'canaries' not in kept
  verdict = certificates.verify(str(tmp_path))
  assert not verdict.problems and 'for a client that is drawn at 0.4' in verdict.scope


def test_a_suggested_command_can_be_given_as_it_stands(tmp_path):
  path = tmp_path / 'a run'
  certificate = made.folder(path / folders.SUBFOLDER)
  (certificate / 'more').write_text('x')
  with pytest.raises(ValueError) as error:
    audit._certificate(str(path))
  assert str(error.value).endswith(f"no valid certificate: python -m quap_tff.verify '{path}' says why.")
