"""Certified runs as a user makes them: what they write, when there is a certificate, that nobody passes the budget."""

import json
import math
import shutil
import stat
import types

import numpy as np
import pytest
import tensorflow as tf

from experiments import predict
from experiments import pretrain
from experiments.command import command_line
from experiments.folders import directory as run_directory
from experiments.running import certifying
from experiments.running import loop
from experiments.running import setup
from quap_tff import accounting
from quap_tff import certificates as certificates_lib
from quap_tff.certificates import certificate as certificates
from quap_tff.certificates.folders import evidence as certificate_evidence
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms.held import guarded_clients
from quap_tff.serving import store as stores
from tests.experiments import harness
from tests.experiments import library as runs

pytestmark = pytest.mark.slow

_DELTA = 1e-5


def _run(output_dir, *arguments):
  return harness.main(*harness.TINY, f'--output_dir={output_dir}', '--algorithm=certified', *arguments)


def _experiment(*arguments):
  return harness.experiment(*harness.TINY, *arguments)


def _spent(output_dir):
  place = output_dir / 'certificate' if (output_dir / 'certificate').exists() else output_dir
  ledger = accounting.RunLedger.load(place / 'ledger.npz')
  return ledger, tradeoff.epsilon_of(accounting.total_mu(ledger).whole, _DELTA)


class TestSeparation:
  def test_noise_is_chosen_for_what_the_sampler_promises(self):
    """By chance, a client's rounds in these schedules are fewer, and further apart."""
    found = set()
    for seed in range(3):
      arguments = ['--participation=separated:min_separation=2', '--cohort_size=1', '--rounds=6', f'--seed={seed}']
      plan = _experiment('--algorithm=certified:weights=worst_case,noise=blt', *arguments).plan
      found.add((plan.config.noise_multiplier, plan.correlation))
    ((multiplier, noise),) = found
    limit = plan.core.prices.limit
    assert multiplier == pytest.approx(noise.worst_case(3, 2, 6) / math.sqrt(limit), rel=1e-6)

  def test_a_population_that_cannot_serve_it_is_refused_before_anything_is_loaded(self, monkeypatch):
    monkeypatch.setattr(setup, 'from_run', lambda *_: pytest.fail('Data are loaded.'))
    with pytest.raises(ValueError, match='min_separation=3 with cohort_size=3 needs at least 9 clients'):
      _experiment('--algorithm=certified', '--participation=separated:min_separation=3', '--cohort_size=3')
    with pytest.raises(ValueError, match='bands=9 needs at least as many planned rounds'):
      _experiment('--algorithm=certified:noise=banded:bands=9', '--participation=uniform')


class TestRun:
  @pytest.mark.thorough
  @pytest.mark.parametrize(
    'spec, arguments',
    [
      ('certified', ['--keep_checkpoints']),
      ('certified:weights=sample,own=0.5/1/0.5/4', []),
      ('certified:weights=uniform,quantile=0.6', ['--participation=bernoulli:q=0.9', '--rounds=4']),
      (
        'certified:weights=worst_case,noise=banded:bands=2',
        ['--participation=separated:min_separation=2', '--cohort_size=4', '--rounds=4'],
      ),
      ('safari:base=certified:weights=online', ['--rounds=4']),
    ],
  )
  def test_ends_with_a_certificate_that_holds(self, spec, arguments, tmp_path, capsys):
    path = tmp_path / 'run'
    key, public = harness.keys(tmp_path / 'keys')
    arguments = ['--participation=uniform', *arguments, f'--algorithm={spec}', f'--signing_key={key}']
    assert harness.main(*harness.TINY, *arguments, f'--output_dir={path}') == 0
    summary = harness.last_line(capsys.readouterr().out)
    assert summary['formal']['covers'] == 'released model' and summary['nominal_epsilon_max'] is None
    # Noise and weights follow the cohorts, so however these were drawn, no amplification is earned.
    formal = harness.summary(path)['formal']
    assert {figure['amplification'] for figure in formal['figures']} == {'none'}
    assert any('No amplification' in note for note in formal['notes'])
    verdict = certificates_lib.verify(str(path), public)
    assert not verdict.problems and verdict.statement
    assert (path / 'checkpoints').exists() == ('--keep_checkpoints' in arguments)
    ledger = self._holds(path, arguments)
    if spec.startswith('safari'):
      certificate = json.loads((path / 'certificate' / 'certificate.json').read_text(encoding='utf-8'))
      said = certificate['issuer']['post_processing']
      assert 'examples of people who are no clients' in said
      assert 'before the others were dealt out to the clients' in said and ledger.num_clients == 8

  def test_so_does_one_of_the_library(self, library):
    path, out, _ = library.run('certified')
    summary = harness.last_line(out)
    assert summary['formal']['covers'] == 'released model' and summary['nominal_epsilon_max'] is None
    assert certificates_lib.verify(str(path)).problems == [] and not (path / 'checkpoints').exists()
    self._holds(path, runs.RUNS['certified'])

  def _holds(self, path, arguments):
    ledger, epsilon = _spent(path)
    # The most exposed of the clients spends all it may, or nearly.
    assert 3.5 < epsilon.max() <= 4
    columns = harness.rows(path)[0]
    assert not [column for column in columns if column.startswith(('train', 'norm', 'signal'))]
    assert 0 < harness.summary(path)['share_of_ceiling'] <= 1
    assert set(harness.table(path / 'certificate' / 'clients.csv')[0]) == {'client', 'rounds', 'formal_epsilon'}
    # What was computed before the first round is what the rounds then cost.
    plan = _experiment(*arguments).plan
    planned = plan.planned_ledger(plan.expected)
    np.testing.assert_allclose(accounting.total_mu(planned).whole, accounting.total_mu(ledger).whole, rtol=1e-5)
    np.testing.assert_array_equal(planned.rounds, ledger.rounds)
    return ledger

  @pytest.mark.parametrize('weights', ['spend_evenly', 'scale,own=0.5/2/0.5/4', 'worst_case'])
  def test_a_plan_spends_what_it_may(self, weights):
    plan = _experiment(f'--algorithm=certified:weights={weights}').plan
    ledger = plan.planned_ledger(plan.expected)
    assert not certificate_evidence.ledger_problems(plan, ledger)
    assert 3.5 < tradeoff.epsilon_of(accounting.total_mu(ledger).whole, _DELTA).max() <= 4

  @pytest.mark.thorough
  def test_a_resumed_run_is_the_uninterrupted_one_and_spends_once(self, tmp_path, capsys):
    arguments = ['--noise_seed=3', '--checkpoint_every=2', '--algorithm=certified:certificate=false']
    assert _run(tmp_path / 'whole', *arguments) == 0
    for stop in (3, 6, 8):
      assert _run(tmp_path / 'parts', *arguments, f'--stop_after={stop}') == 0
    # Such a rehearsal has no certificate and claims nothing.
    summary = harness.last_line(capsys.readouterr().out)
    assert summary['formal'] is None and summary['model_protected'] is False
    assert not (tmp_path / 'parts' / 'certificate').exists()
    assert harness.rows(tmp_path / 'parts') == harness.rows(tmp_path / 'whole')
    ledgers = [_spent(tmp_path / name)[0].state_dict() for name in ('whole', 'parts')]
    for name, value in ledgers[0].items():
      np.testing.assert_array_equal(ledgers[1][name], value, name)

  def test_a_round_is_kept_before_anything_of_it_is_reported(self, tmp_path, capsys, monkeypatch):
    reported, log, write = [], run_directory.RunDirectory.log, stores.Store.write

    def logged(directory, round_num, row):
      reported.append(('log', round_num))
      log(directory, round_num, row)

    def written(store, arrays):
      reported.append(('save', int(arrays['done'])))
      write(store, arrays)

    monkeypatch.setattr(run_directory.RunDirectory, 'log', logged)
    monkeypatch.setattr(stores.Store, 'write', written)
    assert _run(tmp_path / 'run', *runs.RUNS['certified'], '--stop_after=2', '--checkpoint_every=99') == 0
    assert reported[:5] == [('save', 0), ('save', 1), ('log', 1), ('save', 2), ('log', 2)]

  @pytest.mark.parametrize('algorithm', ['tff_dp_fedavg', 'tff_dp_fedavg_adaptive', 'certified', 'quap'])
  def test_whose_rounds_are_kept_before_they_are_released(self, algorithm):
    assert _experiment(f'--algorithm={algorithm}').plan.mechanism.facts.is_saved_before_release == (algorithm != 'quap')

  @pytest.mark.parametrize(
    'flags', [runs.RUNS['certified'], pytest.param(('--algorithm=tff_dp_ftrl',), marks=pytest.mark.thorough)]
  )
  def test_what_a_killed_run_has_reported_stays_as_it_was(self, flags, tmp_path, capsys, monkeypatch):
    class Killed(BaseException):
      pass

    log = run_directory.RunDirectory.log

    def killed(self, round_num, row):
      log(self, round_num, row)
      if round_num == 3:
        raise Killed

    arguments = [*harness.TINY, *flags, f'--output_dir={tmp_path / "run"}', '--checkpoint_every=99']
    with monkeypatch.context() as patch, pytest.raises(Killed):
      patch.setattr(run_directory.RunDirectory, 'log', killed)
      harness.main(*arguments)
    reported = harness.rows(tmp_path / 'run')
    assert len(reported) == 3 and harness.main(*arguments, '--stop_after=4') == 0
    assert harness.rows(tmp_path / 'run')[:3] == reported

  @pytest.mark.thorough
  def test_a_client_that_has_spent_its_budget_adds_nothing_and_is_counted(self, tmp_path):
    # Two rounds of weight 1 at this noise are the budget, and everyone comes to all eight.
    mu = float(1 / accounting.solve(epsilon=4.0, delta=_DELTA).noise_multiplier)
    spec = f'certified:weights=uniform,noise=independent,noise_multiplier={math.sqrt(2.01) / mu}'
    arguments = [f'--output_dir={tmp_path / "run"}', f'--algorithm={spec}', '--participation=full']
    assert harness.main(*harness.TINY, *arguments) == 0
    rows = harness.rows(tmp_path / 'run')
    assert [row['exhausted_clients'] for row in rows] == ['0'] * 2 + ['8'] * 6
    # Nothing is released then: the model stays.
    assert len({row['test_loss'] for row in rows[1:]}) == 1
    _, epsilon = _spent(tmp_path / 'run')
    assert (epsilon <= 4).all() and (epsilon > 3.9).all()
    assert not certificates_lib.verify(str(tmp_path / 'run')).problems


class TestSecrets:
  def test_checkpoints_are_their_owners_from_the_start(self, tmp_path, capsys):
    path = tmp_path / 'a run'
    assert _run(path, *runs.RUNS['certified'], '--stop_after=2') == 0
    err = capsys.readouterr().err
    assert 'It holds the seed of the noise' in err and f"python -m quap_tff.verify '{path}' checks it." in err
    found = [path / 'checkpoints', *(path / 'checkpoints').rglob('*')]
    assert len(found) == 3 and not [file for file in found if stat.S_IMODE(file.stat().st_mode) & 0o077]

  @pytest.mark.thorough
  def test_a_certificate_names_no_folder_of_the_operator(self, tmp_path):
    home = tmp_path / 'home'
    network = tf.keras.Sequential([tf.keras.Input((8, 8, 1)), tf.keras.layers.Flatten()], name='network')
    pretrain.write_network(str(home / 'glyphs'), network, {'public_data': 'None.'})
    path = tmp_path / 'run'
    flags = [f'--features=pretrained:path={home / "glyphs"}', '--model=auto', '--rounds=2']
    assert _run(path, *flags, '--algorithm=certified:weights=uniform,noise=independent') == 0
    labels = predict.predict(str(path), np.zeros((2, 8, 8), np.float32))
    shutil.rmtree(home)  # The run has a copy of the extractor.
    assert not any(str(tmp_path).encode() in file.read_bytes() for file in (path / 'certificate').iterdir())
    assert certificates_lib.verify(str(path)).problems == []
    np.testing.assert_array_equal(predict.predict(str(path), np.zeros((2, 8, 8), np.float32)), labels)


class TestRefusals:
  @pytest.mark.parametrize('flag', ['--noise_seed=3', '--client_metrics', '--tuning=\udcff'])
  def test_what_no_certificate_covers_is_refused_at_the_start(self, flag, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(loop, 'train', lambda *args, **kwargs: pytest.fail('It was trained.'))
    assert _run(tmp_path / 'run', flag) == command_line.FAILED and not list(tmp_path.iterdir())
    err = capsys.readouterr().err
    assert 'certificate=false' in err and ('U+DCFF' in err if 'tuning' in flag else flag.partition('=')[0] in err)

  def test_every_reason_is_given(self, monkeypatch):
    monkeypatch.setattr(certificates, 'refusals', lambda *_: ['One.', 'Another.'])
    with pytest.raises(ValueError, match='not begun. One. Another. Change'):
      certifying.check_before(_experiment('--algorithm=certified'))

  def test_other_methods_are_not_asked(self):
    certifying.check_before(types.SimpleNamespace(run=harness.run(*harness.TINY), plan=None))

  @pytest.mark.parametrize('content, words', [(None, 'cannot be read'), (b'no key', 'must hold a PEM key')])
  def test_bad_keys_are_refused_before_training(self, content, words, tmp_path, capsys):
    key = tmp_path / 'key.pem'
    if content is not None:
      key.write_bytes(content)
    assert _run(tmp_path / 'run', f'--signing_key={key}') == 1
    assert words in capsys.readouterr().err and not (tmp_path / 'run').exists()


class TestCalibration:
  def test_everyone_in_every_round(self):
    method = '--algorithm=certified:weights=uniform,noise=independent'
    config = _experiment(method, '--participation=full', '--epsilon=3').plan.config
    kept = 1 - 2.0**-11  # Of ε and of δ, 1/2048 is kept for rounding.
    mu = 1 / accounting.solve(epsilon=3.0 * kept, delta=_DELTA * kept).noise_multiplier
    assert config.noise_multiplier == pytest.approx(math.sqrt(8) / mu, rel=1e-6)
    assert config.divisor == 8

  def test_alpha_and_beta_are_the_weights(self):
    method = '--algorithm=certified:weights=participation'
    experiment = _experiment(method, '--alpha=0.9', '--beta=3', '--warmup_rounds=0')
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


_HELD, _WITHOUT_SERVER = '--algorithm=certified', 'trust=secure_sum,noise=held,clip=0.5'


@pytest.mark.slow
class TestSecureSum:
  def test_with_dropout_the_certificate_is_of_those_who_came(self, library):
    output, said, _ = library.run('held')
    assert json.loads(said.splitlines()[-1])['trust'] == 'secure_sum'
    text = ' '.join(said.split())
    assert 'against the server, too, if each secure sum opens for all clients with a weight that were announced' in text
    assert 'It also holds against the server, if secure sums open as the plan assumes (docs/trust.md). {' in text
    rows = harness.table(output / 'metrics.csv')
    assert sum(int(row['dropped_out']) for row in rows) > 0
    certificate = json.loads((output / 'certificate' / 'certificate.json').read_text(encoding='utf-8'))
    guarantee = certificate['guarantee']
    assert guarantee['trust'] == 'secure_sum'
    [against_one] = guarantee['colluders']
    assert against_one['clients'] == 1 and against_one['epsilon'] > certificate['achieved']['epsilon_max']
    assert 'Colluders: 1<' in (output / 'certificate' / 'certificate.html').read_text(encoding='utf-8')

  @pytest.mark.thorough
  @pytest.mark.parametrize('seed', [[], pytest.param(['--noise_seed=5'], marks=pytest.mark.thorough)])
  def test_a_resumed_run_has_the_keys_that_it_began_with(self, tmp_path, monkeypatch, seed):
    secrets, real = [], guarded_clients.GuardedClients
    monkeypatch.setattr(
      guarded_clients, 'GuardedClients', lambda plan, secret: secrets.append(secret) or real(plan, secret)
    )
    # Without a seed, the flags are those of a run of the library, whose process this one may have.
    method = f'{_HELD}:certificate=false,{_WITHOUT_SERVER}' if seed else f'{_HELD}:{_WITHOUT_SERVER},colluders=1'
    arguments = (*harness.TINY, method, *seed, '--rounds=4', '--dropout=bernoulli:rate=0.3')
    for folder in ('one', 'other'):
      assert harness.main(*arguments, f'--output_dir={tmp_path / folder}', '--stop_after=1') == 0
      assert harness.main(*arguments, f'--output_dir={tmp_path / folder}') == 0
      assert not (tmp_path / folder / 'checkpoints').exists()
    assert secrets[0] == secrets[1] and secrets[2] == secrets[3]
    # A rehearsal is reproducible, and nothing else is.
    assert (secrets[0] == secrets[2]) == bool(seed)

  @pytest.mark.parametrize(
    'parameters, message',
    [
      ('trust=secure_sum,noise=blt', 'noise=blt needs a server'),
      ('trust=secure_sum,noise=ar1', 'noise=ar1 needs a server'),
      ('trust=secure_sum,weights=worst_case', 'weights=worst_case'),
      ('trust=secure_sum,weights=participation:alpha=0.3', 'weights=participation'),
      ('trust=secure_sum,weights=participation', 'weights=participation'),
      ('trust=secure_sum,quantile=0.5', 'counts of norms'),
      ('trust=secure_sum,noise_multiplier=2', 'planned from the schedule'),
      ('trust=secure_sum,colluders=0', 'colluders'),
      ('trust=secure_sum,colluders=1000', 'at most'),
      ('trust=secure_sum,noise=held:decay=2', 'decay'),
      ('noise=held', 'trust=secure_sum'),
      ('colluders=3', 'trust=secure_sum'),
      ('trust=everyone', 'trust'),
      ('arithmetic=integer', 'arithmetic'),
    ],
  )
  def test_bad_parameters(self, parameters, message):
    with pytest.raises(ValueError, match=message):
      _experiment(f'--algorithm=certified:{parameters}')

  def test_independent_shares(self):
    config = _experiment('--algorithm=certified:trust=secure_sum,noise=independent').plan.config
    assert config.correlation.decay == 0 and config.holds_noise
