"""Tests of the certificate in a run's folder: what is verified, and that tampering with a folder is detected."""

import csv
import html.parser
import io
import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from experiments import evidence
from experiments import provenance
from experiments import verify
from quap_tff import accounting
from quap_tff.accounting import certificate as certificates
from quap_tff.accounting import certificate_folder as folders
from quap_tff.accounting import certificate_page
from tests.experiments import harness

_ROUNDS = 6
_FLAGS = ('--algorithm=certified:clip=0.5', f'--rounds={_ROUNDS}', '--warmup_rounds=0', '--tuning=By <theory>.')


@pytest.fixture(scope='module', name='original')
def _original(tmp_path_factory):
  """The folder of a certified run."""
  path = tmp_path_factory.mktemp('runs') / 'certified'
  assert harness.main(*harness.TINY, *_FLAGS, f'--output_dir={path}') == 0
  return path


@pytest.fixture(name='certified')
def _certified(original, tmp_path):
  """A copy of it."""
  return pathlib.Path(shutil.copytree(original, tmp_path / 'certified'))


def _problems(path):
  return verify.verify(str(path)).problems


def _read(path, name):
  return json.loads((path / name).read_text(encoding='utf-8'))


def _write(path, name, value):
  (path / name).write_text(json.dumps(value, ensure_ascii=False), encoding='utf-8')


def _seal(path, certificate):
  """Writes a certificate with its own digest and page made anew, as one who tampers would."""
  content = {name: value for name, value in certificate.items() if name != 'sha256'}
  sealed = {**content, 'sha256': certificates.digest(content)}
  _write(path, folders.CERTIFICATE, sealed)
  (path / folders.PAGE).write_text(certificate_page.render(sealed), encoding='utf-8')


def _reissue(path):
  """Issues a certificate for the folder as it is now, whatever is wrong with it: the forger has the program, too."""
  kept = evidence.read(str(path))
  refusals = certificates.refusals
  certificates.refusals = lambda ledger, facts: []
  try:
    _seal(path, certificates.issue(kept.ledger, kept.facts, kept.provenance))
  finally:
    certificates.refusals = refusals


def _change_ledger(path, change):
  with np.load(path / 'ledger.npz') as kept:
    arrays = {name: kept[name].copy() for name in kept}
  arrays = change(arrays) or arrays
  np.savez(path / 'ledger.npz', **arrays)


def _change_csv(path, name, change):
  rows = harness.table(path / name)
  rows = change(rows) or rows
  with open(path / name, 'w', newline='', encoding='utf-8') as f:
    writer = csv.DictWriter(f, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)


class TestVerify:
  def test_a_good_one(self, certified, capsys):
    assert verify.main(['verify', str(certified)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith('VALID\nIn real arithmetic, with a trusted server, ') and not err
    assert 'for each of the 8 clients with ε = 4 and δ = 1e-05' in out and out.endswith('that the run took place.\n')

  def test_loads_no_tensorflow(self, certified):
    code = (
      'import sys\nfrom experiments import verify\n'
      f'assert verify.main(["verify", {str(certified)!r}]) == 0\n'
      'assert not [name for name in sys.modules if name.startswith(("tensorflow", "jax"))]\n'
    )
    subprocess.run([sys.executable, '-c', code], check=True, timeout=120)

  def test_as_a_command(self, certified):
    (certified / 'final_model.keras').write_bytes(b'another model')
    done = subprocess.run(
      [sys.executable, '-m', 'experiments.verify', str(certified)],
      capture_output=True,
      text=True,
      timeout=120,
      env={**os.environ, 'PYTHONIOENCODING': 'ascii'},
    )
    assert done.returncode == 1 and done.stdout.startswith('INVALID\n  final_model.keras cannot be read')

  @pytest.mark.parametrize(
    'name', ['ledger.npz', 'run.json', 'final_model.keras', 'summary.json', 'clients.csv', 'metrics.csv']
  )
  def test_a_file_that_is_missing(self, certified, name):
    (certified / name).unlink()
    assert len(_problems(certified)) == 1 and name in _problems(certified)[0]

  @pytest.mark.parametrize('name', ['certificate.json', 'ledger.npz', 'run.json', 'summary.json'])
  @pytest.mark.parametrize('content', [b'', b'{"a": ', b'\xff\xfe', b'NaN', b'[]', b'{"provenance": {}}', b'[' * 9999])
  def test_a_file_that_is_damaged(self, certified, name, content):
    (certified / name).write_bytes(content)
    assert _problems(certified)

  @pytest.mark.parametrize('number', ['NaN', 'Infinity', '1e999'])
  def test_a_number_that_is_none(self, certified, number):
    mean = _read(certified, 'certificate.json')['achieved']['epsilon_mean']
    path = certified / 'certificate.json'
    path.write_text(path.read_text(encoding='utf-8').replace(repr(mean), number), encoding='utf-8')
    assert _problems(certified)

  def test_other_code_is_a_warning(self, certified, monkeypatch, capsys):
    monkeypatch.setattr(provenance, 'source_digest', lambda: 'other')
    assert verify.main(['verify', str(certified)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith('VALID') and err.startswith('Warning: The run was made by other code')

  def test_another_page(self, certified):
    page = certified / 'certificate.html'
    page.write_text(page.read_text(encoding='utf-8').replace('ε = 4', 'ε = 1'), encoding='utf-8')
    assert _problems(certified) == ['certificate.html does not match certificate.json.']
    page.unlink()
    assert not _problems(certified)

  def test_a_run_of_another_method(self, tmp_path, capsys):
    path = tmp_path / 'run'
    assert harness.main(*harness.TINY, '--stop_after=1', f'--output_dir={path}') == 0
    capsys.readouterr()
    assert verify.main(['verify', str(path)]) == 2
    assert 'holds no certificate.json. Only runs of --algorithm=certified have one' in capsys.readouterr().out
    (path / 'certificate.json').write_text('{"version": 4}')
    [problem] = _problems(path)
    assert 'a run of --algorithm=quap has no certificate' in problem

  def test_a_run_that_was_stopped_says_how_far_it_came(self, tmp_path, capsys):
    path = tmp_path / 'run'
    assert harness.main(*harness.TINY, *_FLAGS, '--stop_after=2', f'--output_dir={path}') == 0
    capsys.readouterr()
    assert verify.main(['verify', str(path)]) == 0
    out, err = capsys.readouterr()
    assert 'in total over all 6 planned rounds' in out and 'The run ended after 2 of 6 planned rounds' in out
    assert 'A reading of the account at that moment gives ε = ' in out and 'A reading is not a guarantee' in out
    assert 'has spent ε' not in out
    assert 'holds the state of the run, which contains the seed of the noise' in err


def _all_of(*steps):
  def forge(path):
    for step in steps:
      step(path)

  return forge


def _certificate(*place, value, code=None):
  def forge(path):
    certificate = holder = _read(path, 'certificate.json')
    for key in place[:-1]:
      holder = holder[key]
    holder[place[-1]] = value
    if code is not None:
      certificate['provenance']['code'] = code
    _seal(path, certificate)

  return forge


def _run_json(change):
  def forge(path):
    run = _read(path, 'run.json')
    change(run)
    _write(path, 'run.json', run)

  return forge


def _cut_ledger(path):
  ledger = accounting.RunLedger.load(path / 'ledger.npz').truncated(3)
  np.savez(path / 'ledger.npz', **ledger.state_dict())


def _ledger(**changes):
  def change(arrays):
    for name, function in changes.items():
      arrays[name] = function(arrays[name])

  return lambda path: _change_ledger(path, change)


def _without_a_participation(path):
  def change(arrays):
    for name in ('clients', 'budgets', 'weights'):
      arrays[name] = np.delete(arrays[name], 0)
    arrays['offsets'][1:] -= 1

  _change_ledger(path, change)


def _another_model(path):
  """The model with one weight changed, under a weights file of the same shape."""
  source = zipfile.ZipFile(path / 'final_model.keras')
  changed = io.BytesIO()
  with zipfile.ZipFile(changed, 'w') as target:
    for name in source.namelist():
      target.writestr(name, source.read(name))
    target.comment = b'other'
  (path / 'final_model.keras').write_bytes(changed.getvalue())


def _smaller_model(path):
  def change(run):
    run['resolved']['sizes'][0] -= 1

  _run_json(change)(path)


def _add_a_file_deeper(path):
  (path / 'deeper').mkdir()
  (path / 'deeper' / 'more.txt').write_text('x')


_OLD_CODE = {'quap_tff': '0.0.9', 'source_sha256': 'of an older version'}
_METRICS, _CLIENTS = 'metrics.csv', 'clients.csv'

# Each forgery, and whether the forger issues the certificate anew afterwards, digests and page included. What is said
# must hold the word beside it.
_FORGERIES = {
  # Words and figures under a changed version string.
  'statement': (_certificate('statement', value='(0.01, 0)-DP against all', code=_OLD_CODE), False, 'statement'),
  'assumptions': (_certificate('assumptions', value=['None.'], code=_OLD_CODE), False, 'assumptions'),
  'unit': (_certificate('guarantee', 'unit', value='a client', code=_OLD_CODE), False, 'guarantee.unit'),
  'how': (_certificate('releases', 0, 'how', value='noised', code=_OLD_CODE), False, 'releases[0].how'),
  'epsilon': (_certificate('guarantee', 'epsilon', value=2.0, code=_OLD_CODE), False, 'guarantee.epsilon'),
  'code is no object': (
    lambda path: _write(path, 'certificate.json', {**_read(path, 'certificate.json'), 'provenance': {'code': 'mine'}}),
    False,
    'provenance.code',
  ),
  'other relations': (_certificate('other_relations', 1, 'epsilon', value=4.0), False, 'other_relations[1].epsilon'),
  'version': (_certificate('version', value=3), False, 'run.json is of a later version'),
  # A ledger that is not the flags'.
  'rounds cut': (_cut_ledger, True, "metrics.csv does not hold one row for each of the ledger's 3 rounds"),
  'halved weights': (_ledger(weights=lambda w: w / 2), True, 'other weights than follow from the cohorts'),
  'doubled noise': (_ledger(noise_multipliers=lambda z: 2 * z), True, 'noise_multipliers'),
  'one round noisier': (_ledger(noise_multipliers=lambda z: z * (1 + (np.arange(len(z)) == 2))), True, 'Round 3'),
  'participation deleted': (_without_a_participation, True, 'Round 1 of the ledger has other clients'),
  'clients swapped': (_ledger(clients=lambda c: (c + 1) % 8), True, 'other clients than the flags plan'),
  'clip': (_ledger(clipping_norms=lambda c: c / 10), True, 'the clipping norm'),
  'count noise': (_ledger(count_noise_multipliers=lambda c: 0 * c + 50.0), True, 'count_noise_multipliers'),
  "another run's ledger": (_ledger(fingerprint=lambda f: f[::-1]), True, 'fingerprint'),
  'nominal budgets': (_ledger(budgets=lambda b: b * 2), False, 'files_sha256.ledger.npz'),
  # Facts that are not run.json's.
  **{
    f'fact {name}': (_certificate('facts', name, value=value), False, f'facts.{name}')
    for name, value in dict(
      tuning='By a prayer.',
      public_data='None.',
      post_processing='',
      clipping='Not at all.',
      trained_weights=65,
      noised_weights=65,
      test_set='None.',
      tests=0,
      algorithm='certified',
      planned_rounds=7,
    ).items()
  },
  **{
    f'flag {name}': (_run_json(lambda run, n=name, v=value: run['identity'].__setitem__(n, v)), True, word)
    for name, value, word in (
      ('client_metrics', True, 'run.json'),
      ('noise_seed', 7, 'run.json'),
      ('seed', 43, 'fingerprint'),
      ('epsilon', 3.0, 'fingerprint'),
      ('delta', 1e-6, 'delta'),
      ('alpha', 0.9, 'fingerprint'),
      ('rounds', 7, 'fingerprint'),
      ('cohort_size', 4, 'fingerprint'),
      ('participation', 'full', 'fingerprint'),
      ('algorithm', 'certified:clip=0.4', 'fingerprint'),
      ('algorithm ', 'x', 'unknown flags'),
      ('dataset', 'mnist', 'summary.json: dataset'),
    )
  },
  'features': (_run_json(lambda run: run['identity'].__setitem__('features', 'scattering')), False, 'config_sha256'),
  'tuning flag': (_run_json(lambda run: run['identity'].__setitem__('tuning', 'By luck.')), False, 'facts.tuning'),
  'commitment': (
    _run_json(lambda run: run['resolved'].__setitem__('data_commitment', '0' * 64)),
    False,
    'data_commitment',
  ),
  "model's shape": (_smaller_model, True, 'final_model.keras holds tensors of'),
  'model': (_another_model, False, 'files_sha256.final_model.keras'),
  # Tables.
  'accuracy': (
    lambda path: _change_csv(path, _METRICS, lambda rows: rows[-1].update(test_accuracy='0.99')),
    True,
    'summary.json: test_accuracy',
  ),
  'accuracy of an earlier round': (
    lambda path: _change_csv(path, _METRICS, lambda rows: rows[0].update(test_accuracy='1.0')),
    False,
    'files_sha256.metrics.csv',
  ),
  'impossible accuracy': (
    lambda path: _change_csv(path, _METRICS, lambda rows: rows[0].update(test_accuracy='1.5')),
    True,
    'test_accuracy',
  ),
  **{
    f'metrics {column}': (
      lambda path, c=column: _change_csv(path, _METRICS, lambda rows: rows[2].update({c: '0.123'})),
      True,
      f'metrics.csv: {column} of round 3',
    )
    for column in (
      'cohort_size',
      'clipping_norm',
      'noise_multiplier',
      'sigma',
      'weight_mean',
      'weight_min',
      'spent_max',
      'participation_mean',
    )
  },
  'a row less': (lambda path: _change_csv(path, _METRICS, lambda rows: rows[:-1]), True, 'one row for each'),
  'a column of losses': (
    lambda path: _change_csv(path, _METRICS, lambda rows: [row.update(train_loss='0.5') for row in rows] and None),
    True,
    'metrics.csv: train_loss is an exact function',
  ),
  "clients' examples": (
    lambda path: _change_csv(path, _CLIENTS, lambda rows: [row.update(examples='9') for row in rows] and None),
    True,
    'clients.csv: examples is an exact function',
  ),
  "clients' ε": (
    lambda path: _change_csv(path, _CLIENTS, lambda rows: rows[1].update(formal_epsilon='0.5')),
    True,
    'clients.csv: formal_epsilon of client 1',
  ),
  "clients' rounds": (
    lambda path: _change_csv(path, _CLIENTS, lambda rows: rows[1].update(rounds='0')),
    True,
    'rounds of client 1',
  ),
  'a client less': (lambda path: _change_csv(path, _CLIENTS, lambda rows: rows[1:]), True, 'each of the 8 clients'),
  **{
    f'summary {name}': (
      lambda path, n=name, v=value: _write(path, 'summary.json', {**_read(path, 'summary.json'), n: v}),
      True,
      f'summary.json: {word}',
    )
    for name, value, word in (
      ('test_accuracy', 0.99, 'test_accuracy'),
      ('rounds', 3, 'rounds'),
      ('model_protected', False, 'model'),
      ('formal', None, 'formal'),
      ('seconds', 3.5, 'seconds'),
      ('finished', False, 'finished'),
      ('diverged', True, 'diverged'),
    )
  },
  # Files that are not the run's.
  'a file of losses': (lambda path: (path / 'losses.csv').write_text('client,loss\n0,0.3\n'), False, 'losses.csv'),
  'a file deeper': (_add_a_file_deeper, False, 'deeper/more.txt'),
  'a plot': (lambda path: (path / 'plot.png').write_bytes(b'another'), False, 'files_sha256.plot.png'),
  'a file taken away': (lambda path: (path / 'plot.png').unlink(), False, 'files_sha256.plot.png'),
  'a key twice': (
    lambda path: (path / 'certificate.json').write_text(
      (path / 'certificate.json').read_text(encoding='utf-8').replace('{', '{"statement": "ε = 0",', 1),
      encoding='utf-8',
    ),
    False,
    'a key appears twice',
  ),
  'a key twice in run.json': (
    lambda path: (path / 'run.json').write_text(
      (path / 'run.json').read_text(encoding='utf-8').replace('"identity": {', '"identity": {"seed": 1,', 1),
      encoding='utf-8',
    ),
    False,
    'a key appears twice',
  ),
}


class TestForgeries:
  @pytest.mark.parametrize('name', _FORGERIES)
  def test_is_found_out(self, name, certified):
    forge, reissued, words = _FORGERIES[name]
    forge(certified)
    if reissued:
      try:
        _reissue(certified)
      except ValueError:
        pass  # Nothing can be issued for such a folder.
    problems = _problems(certified)
    assert [problem for problem in problems if words in problem], problems

  def test_a_forger_who_changes_nothing_is_not_found_out(self, certified):
    _reissue(certified)
    assert not _problems(certified)


class TestSignature:
  def test_a_signed_run(self, tmp_path, capsys):
    key, public = harness.keys(tmp_path / 'keys')
    _, other = harness.keys(tmp_path / 'other')
    path = tmp_path / 'run'
    assert harness.main(*harness.TINY, *_FLAGS, f'--output_dir={path}', f'--signing_key={key}') == 0
    capsys.readouterr()
    assert verify.main(['verify', str(path), f'--public_key={public}']) == 0
    assert not capsys.readouterr().err
    assert verify.main(['verify', str(path)]) == 0
    assert 'was not checked' in capsys.readouterr().err
    assert verify.verify(str(path), other).problems == [
      f'certificate.sig is not a signature of certificate.json with the key of {other}.'
    ]
    # Whoever makes the whole folder anew cannot sign it.
    _reissue(path)
    assert not _problems(path) and verify.verify(str(path), public).problems
    (path / 'certificate.sig').write_text('?')
    assert verify.verify(str(path), public).problems

  def test_an_unsigned_run(self, certified, tmp_path):
    _, public = harness.keys(tmp_path / 'keys')
    [problem] = verify.verify(str(certified), public).problems
    assert 'is not signed' in problem

  @pytest.mark.parametrize('content, words', [(None, 'cannot be read'), (b'no key', 'must hold a PEM key')])
  def test_bad_keys_are_refused_before_training(self, content, words, tmp_path, capsys):
    key = tmp_path / 'key.pem'
    if content is not None:
      key.write_bytes(content)
    assert harness.main(*harness.TINY, *_FLAGS, f'--output_dir={tmp_path / "run"}', f'--signing_key={key}') == 1
    assert words in capsys.readouterr().err and not (tmp_path / 'run').exists()

  def test_a_public_key_signs_nothing(self, tmp_path):
    _, public = harness.keys(tmp_path / 'keys')
    with pytest.raises(ValueError, match='must hold a PEM key without a password'):
      folders.read_private_key(public)


class TestSecrets:
  def test_checkpoints_are_their_owners_from_the_start_and_gone_at_the_end(self, certified, tmp_path, capsys):
    assert not (certified / 'checkpoints').exists()
    path = tmp_path / 'stopped'
    assert harness.main(*harness.TINY, *_FLAGS, '--stop_after=2', f'--output_dir={path}') == 0
    assert 'It holds the seed of the noise' in capsys.readouterr().err
    files = [path / 'checkpoints', *(path / 'checkpoints').rglob('*')]
    assert len(files) > 4
    for file in files:
      assert not stat.S_IMODE(file.stat().st_mode) & 0o077, file

  def test_kept_checkpoints_are_named(self, tmp_path, capsys):
    path = tmp_path / 'kept'
    assert harness.main(*harness.TINY, *_FLAGS, '--keep_checkpoints', f'--output_dir={path}') == 0
    capsys.readouterr()
    assert verify.main(['verify', str(path)]) == 0
    assert 'contains the seed of the noise' in capsys.readouterr().err

  def test_published_is_what_may_be_handed_out(self, tmp_path, capsys):
    path, published = tmp_path / 'run', tmp_path / 'published'
    assert harness.main(*harness.TINY, *_FLAGS, '--stop_after=2', f'--output_dir={path}') == 0
    assert verify.main(['verify', str(path), f'--publish={published}']) == 0
    capsys.readouterr()
    names = {str(file.relative_to(published)).split(os.sep)[0] for file in published.rglob('*')}
    assert names == {
      'certificate.html',
      'certificate.json',
      'clients.csv',
      'final_model.keras',
      'ledger.npz',
      'metrics.csv',
      'plot.png',
      'run.json',
      'summary.json',
    }
    assert verify.main(['verify', str(published)]) == 0
    assert not capsys.readouterr().err
    assert verify.main(['verify', str(path), f'--publish={published}']) == 2
    assert 'already exists: give a new folder' in capsys.readouterr().err

  def test_an_invalid_folder_is_not_published(self, certified, tmp_path, capsys):
    (certified / 'losses.csv').write_text('x')
    assert verify.main(['verify', str(certified), f'--publish={tmp_path / "published"}']) == 1
    assert not (tmp_path / 'published').exists()


class TestWrite:
  @pytest.mark.parametrize(
    'flag, reason', [('--noise_seed=3', '--noise_seed'), ('--client_metrics', '--client_metrics')]
  )
  def test_what_no_certificate_covers_is_refused_at_the_start(self, flag, reason, tmp_path, capsys):
    assert harness.main(*harness.TINY, *_FLAGS, flag, f'--output_dir={tmp_path / "run"}') == 1
    err = capsys.readouterr().err
    assert reason in err and 'certificate=false' in err and not (tmp_path / 'run').exists()

  def test_a_rehearsal_has_no_certificate_and_claims_nothing(self, tmp_path, capsys):
    arguments = ['--algorithm=certified:clip=0.5,certificate=false', '--noise_seed=3', '--stop_after=2']
    assert harness.main(*harness.TINY, *arguments, f'--output_dir={tmp_path / "run"}') == 0
    summary = harness.last_line(capsys.readouterr().out)
    assert summary['formal'] is None and summary['model_protected'] is False
    assert not (tmp_path / 'run' / 'certificate.json').exists()

  def test_refusals_leave_no_certificate(self, certified):
    (certified / 'metrics.csv').write_text('round,train_loss\n1,0.5\n')
    with pytest.raises(ValueError, match='cannot be certified.*train_loss'):
      folders.write(str(certified), evidence.read)
    assert not [name for name in os.listdir(certified) if name.startswith('certificate')]


class _Tags(html.parser.HTMLParser):
  def __init__(self, text):
    super().__init__()
    self.open, self.text, self.links = [], '', []
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    self.links += [value for name, value in attrs if name in ('src', 'href')]
    if tag != 'meta' and not self.get_starttag_text().endswith('/>'):
      self.open.append(tag)

  def handle_endtag(self, tag):
    if self.open and self.open[-1] == tag:
      self.open.pop()

  def handle_data(self, data):
    self.text += data


class TestPage:
  def test_it_says_all_and_needs_no_network(self, certified):
    tags = _Tags((certified / 'certificate.html').read_text(encoding='utf-8'))
    certificate = _read(certified, 'certificate.json')
    assert not tags.open and not tags.links and 'http' not in tags.text
    texts = [certificate['statement'], certificate['sha256'], *certificate['assumptions'], *certificate['withheld']]
    texts += [release['what'] for release in certificate['releases']]
    texts += list(certificate['provenance']['files_sha256'].values())
    texts += [row['neighbours'] for row in certificate['other_relations']]
    texts += ['digits', 'logistic_regression', certificate['provenance']['run']['date']]
    for text in texts:
      assert text in tags.text  # `By <theory>.` among them: escaped.

  def test_tables_scroll_in_frames_of_their_own(self, certified):
    page = (certified / 'certificate.html').read_text(encoding='utf-8')
    framed = re.findall(r'<div class="wide" role="region" tabindex="0" aria-label="[^"]+"><table', page)
    assert len(framed) == page.count('<table') > 4

  def test_labels_of_the_histogram_can_be_read_on_a_narrow_screen(self, certified):
    page = (certified / 'certificate.html').read_text(encoding='utf-8')
    width = float(re.search(r'viewBox="0 0 (\d+) ', page)[1])
    # A screen of 390 pixels has 358 between the margins.
    assert float(re.search(r'font-size="(\d+)"', page)[1]) * 358 / width >= 12

  def test_bars_stand_for_counts(self, certified):
    certificate = _read(certified, 'certificate.json')
    certificate['achieved']['epsilon_histogram'] = {'edges': [0.0, 1.0, 2.0, 3.0], 'clients': [5000, 0, 20000]}
    page = certificate_page.render(certificate)
    assert page.count('<rect') == 2 and '>5000<' in page and '>20k<' in page
    # The axes and the counts above the bars take 114 of the 260 units.
    assert re.findall(r'<rect.* height="([\d.]+)"', page) == ['36.5', '146.0']
