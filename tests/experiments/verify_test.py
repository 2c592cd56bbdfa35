"""What `experiments.verify` answers, on folders that were written by the version that introduced their certificates.

That tampering is detected, that earlier versions are still verified, and that their pages are the bytes of today's.
"""

import contextlib
import csv
import html.parser
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from experiments import evidence
from experiments import verify
from quap_tff import accounting
from quap_tff import plans
from quap_tff.accounting import certificate as certificates
from quap_tff.accounting import certificate_evidence
from quap_tff.accounting import certificate_folder as folders
from quap_tff.accounting import certificate_page
from tests.experiments import harness

_HERE = pathlib.Path(__file__).absolute().parent


@pytest.fixture(scope='module', name='originals')
def _originals(tmp_path_factory):
  """Runs of old versions: `plain`, of 6 rounds with a fixed clip; `audited`, stopped, with own bounds and an audit."""
  path = tmp_path_factory.mktemp('runs')
  for version, target in ((3, path / 'version_3'), (4, path)):
    with zipfile.ZipFile(_HERE / f'certificate_version_{version}.zip') as archive:
      archive.extractall(target)
  return path


@pytest.fixture(name='certified')
def _certified(originals, tmp_path):
  return pathlib.Path(shutil.copytree(originals / 'plain', tmp_path / 'certified'))


@pytest.fixture(name='audited')
def _audited(originals, tmp_path):
  return pathlib.Path(shutil.copytree(originals / 'audited', tmp_path / 'audited'))


@pytest.fixture(name='version_3')
def _version_3(originals, tmp_path):
  return pathlib.Path(shutil.copytree(originals / 'version_3', tmp_path / 'version_3'))


def _problems(path):
  return verify.verify(str(path)).problems


def _answer(path, capsys, *arguments):
  """Exit status, and the lines of standard output."""
  status = verify.main(['verify', str(path), *arguments])
  return status, capsys.readouterr().out.splitlines()


def _read(path, name):
  return json.loads((path / name).read_text(encoding='utf-8'))


def _write(path, name, value):
  (path / name).write_text(json.dumps(value, ensure_ascii=False), encoding='utf-8')


def _changed(path, name, change):
  """Changes a JSON file."""
  value = _read(path, name)
  _write(path, name, change(value) or value)


def _seal(path, certificate):
  """Writes a certificate with its own digest and page made anew, as one who tampers would."""
  content = {name: value for name, value in certificate.items() if name != 'sha256'}
  sealed = {**content, 'sha256': certificates.digest(content)}
  _write(path, folders.CERTIFICATE, sealed)
  (path / folders.PAGE).write_text(certificate_page.render(sealed), encoding='utf-8')


def _of_today(path):
  """Adds what summary.json says in folders of today's version."""
  summary = _read(path, 'summary.json') if (path / 'summary.json').is_file() else None
  if isinstance(summary, dict) and 'trust' not in summary:
    if summary['formal']:
      summary['formal']['notes'].append(plans.Plan.noise_note)
    _write(path, 'summary.json', {**summary, 'trust': 'server'})


def _reissue(path):
  """Issues a certificate for the folder as it is now, whatever is wrong with it: the forger has the program, too."""
  _of_today(path)
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


class TestValid:
  def test_a_good_one(self, certified, capsys):
    assert verify.main(['verify', str(certified)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith('VALID\nThe certificate has version 4. ')
    # It was made by other code.
    assert err.startswith('Warning: The run was made by other code') and err.count('\n') == 1
    _reissue(certified)
    assert verify.main(['verify', str(certified)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith('VALID\nIn real arithmetic, with a trusted server, ') and not err
    assert 'for each of the 8 clients with ε = 4 and δ = 1e-05' in out and out.endswith('that the run took place.\n')

  def test_a_run_that_was_stopped_says_how_far_it_came(self, audited, capsys):
    status, lines = _answer(audited, capsys)
    out = '\n'.join(lines)
    assert status == 0 and 'in total over all 8 planned rounds' in out
    assert 'The run ended after 5 of 8 planned rounds' in out and 'ε = 2 for 4, ε = 4 for 4' in out
    assert 'A reading of the account at that moment gives ε = ' in out and 'A reading is not a guarantee' in out
    assert 'has spent ε' not in out

  @pytest.mark.slow
  def test_loads_no_tensorflow(self, certified):
    code = (
      'import sys\nfrom experiments import verify\n'
      f'assert verify.main(["verify", {str(certified)!r}]) == 0\n'
      'assert not [name for name in sys.modules if name.startswith(("tensorflow", "jax"))]\n'
    )
    subprocess.run([sys.executable, '-c', code], check=True, timeout=120)

  @pytest.mark.slow
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

  def test_kept_checkpoints_are_named(self, certified, capsys):
    (certified / 'checkpoints').mkdir()
    assert verify.main(['verify', str(certified)]) == 0
    assert 'contains the seed of the noise' in capsys.readouterr().err

  def test_what_float32_makes_of_equal_rates_is_no_contradiction(self):
    assert certificate_evidence.is_close('1.8e-07', 0.0) and not certificate_evidence.is_close('1.8e-06', 0.0)


class TestCannotBeVerified:
  @pytest.mark.parametrize(
    'break_it, words',
    [
      (shutil.rmtree, 'does not exist'),
      (lambda path: (path / 'certificate.json').unlink(), 'holds no certificate.json. Only runs of --algorithm=cert'),
      (lambda path: _seal(path, {**_read(path, 'certificate.json'), 'version': 99}), 'has version 99'),
      (
        lambda path: _changed(path, 'run.json', lambda run: run['resolved'].update(num_clients=2**31 - 1)),
        'verifies runs of at most 10,000,000',
      ),
    ],
  )
  def test_a_reason_that_is_not_the_folders_fault(self, break_it, words, certified, capsys):
    break_it(certified)
    status, lines = _answer(certified, capsys)
    assert status == 2 and lines[0] == 'CANNOT BE VERIFIED' and words in lines[1] and len(lines) == 2

  def test_a_file_in_place_of_a_folder(self, certified, capsys):
    status, lines = _answer(certified / 'run.json', capsys)
    assert status == 2 and 'run.json is not a folder' in lines[1]

  def test_a_key_that_cannot_be_read(self, certified, tmp_path, capsys):
    status, lines = _answer(certified, capsys, f'--public_key={tmp_path / "nowhere.pem"}')
    assert status == 2 and 'cannot be read' in lines[1]

  @pytest.mark.parametrize('name', ['h5py', 'jinja2', 'cryptography.hazmat.primitives.serialization'])
  def test_a_package_that_is_missing(self, name, certified, tmp_path, monkeypatch, capsys):
    (tmp_path / 'k.pem').write_text('x')
    _reissue(certified)  # Only pages of today's version are made again.
    certificate_page._template.cache_clear()
    monkeypatch.setitem(sys.modules, name, None)
    key = [f'--public_key={tmp_path / "k.pem"}'] if name.startswith('cryptography') else []
    status, lines = _answer(certified, capsys, *key)
    assert status == 2 and lines[0] == 'CANNOT BE VERIFIED' and f'the package {name.partition(".")[0]},' in lines[1]

  @pytest.mark.slow
  def test_a_package_that_every_answer_needs(self, certified):
    code = (
      'import sys\nsys.modules["scipy"] = None\nfrom experiments import verify\n'
      f'sys.exit(verify.main(["verify", {str(certified)!r}]))\n'
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2 and 'Traceback' not in done.stderr, done.stderr
    assert done.stdout.startswith('CANNOT BE VERIFIED') and 'scipy' in done.stdout

  @pytest.mark.parametrize('arguments', [[], ['a', 'b'], ['--unknown=1', 'a']])
  def test_wrong_arguments(self, arguments, capsys):
    assert verify.main(['verify', *arguments]) == 2
    assert capsys.readouterr().err.startswith('Error: ')


class TestInvalid:
  @pytest.mark.parametrize(
    'name', ['ledger.npz', 'run.json', 'final_model.keras', 'summary.json', 'clients.csv', 'metrics.csv']
  )
  def test_a_file_that_is_missing(self, certified, name):
    (certified / name).unlink()
    assert len(_problems(certified)) == 1 and name in _problems(certified)[0]

  @pytest.mark.parametrize('name', ['certificate.json', 'ledger.npz', 'run.json', 'summary.json'])
  def test_a_file_that_is_damaged(self, certified, name):
    for content in (b'', b'{"a": ', b'\xff\xfe', b'NaN', b'[]', b'{"provenance": {}}', b'[' * 9999):
      (certified / name).write_bytes(content)
      assert _problems(certified), content

  @pytest.mark.parametrize('number', ['NaN', 'Infinity', '1e999'])
  def test_a_number_that_is_none(self, certified, number):
    mean = _read(certified, 'certificate.json')['achieved']['epsilon_mean']
    path = certified / 'certificate.json'
    path.write_text(path.read_text(encoding='utf-8').replace(repr(mean), number), encoding='utf-8')
    assert _problems(certified)

  def test_another_page(self, certified):
    _reissue(certified)
    page = certified / 'certificate.html'
    page.write_text(page.read_text(encoding='utf-8').replace('ε = 4', 'ε = 1'), encoding='utf-8')
    assert _problems(certified) == ['certificate.html does not match certificate.json.']
    page.unlink()
    assert not _problems(certified)

  @pytest.mark.parametrize(
    'name',
    [
      *('certificate.json', 'certificate.html', 'run.json', 'ledger.npz', 'summary.json', 'clients.csv'),
      *('metrics.csv', 'final_model.keras', 'plot.png', '.lock', 'audit.json', 'another'),
    ],
  )
  def test_a_pipe_does_not_hold_it_up(self, name, certified, capsys):
    if (certified / name).exists():
      (certified / name).unlink()
    os.mkfifo(certified / name)
    status, lines = _answer(certified, capsys)
    assert status == 1 and lines[0] == 'INVALID' and any(name in line for line in lines[1:])

  @pytest.mark.parametrize('name', ['run.json', 'another'])
  def test_a_link(self, name, certified, tmp_path, capsys):
    place = tmp_path / 'elsewhere'
    if (certified / name).exists():
      (certified / name).rename(place)
    (certified / name).symlink_to(place)
    status, lines = _answer(certified, capsys)
    assert status == 1 and any(name in line for line in lines[1:])

  @pytest.mark.parametrize(
    'put, words',
    [
      (lambda path: (path / 'checkpoints').symlink_to(path.parent), 'checkpoints is a link'),
      (lambda path: (path / 'client 7 has the label 3').mkdir(), 'is an empty folder'),
      (lambda path: (path / '.lock').write_text('client 7 has the label 3'), '.lock must be empty'),
    ],
  )
  def test_what_no_digest_covers(self, put, words, certified, capsys):
    (certified / '.lock').write_text('')
    assert not _problems(certified)
    put(certified)
    status, lines = _answer(certified, capsys)
    assert status == 1 and words in lines[1]

  @pytest.mark.parametrize('value', [10**9, 6.0, True, '6', -1])
  def test_rounds_that_no_run_has_take_no_time(self, value, certified, capsys):
    _changed(certified, 'run.json', lambda run: run['identity'].update(rounds=value))
    status, lines = _answer(certified, capsys)
    assert status == 1 and 'rounds must be an integer from 1 to 1,000,000' in lines[1]

  def test_a_plan_of_more_participations_than_memory_holds(self, certified, capsys, monkeypatch):
    from quap_tff.methods import base

    monkeypatch.setattr(base, '_MOST_PARTICIPATIONS', 10)
    status, lines = _answer(certified, capsys)
    assert status == 1 and 'more than 10 participations' in lines[1]

  def test_a_ledger_of_another_population_is_not_unpacked(self, certified, capsys):
    _change_ledger(certified, lambda arrays: {**arrays, 'num_clients': np.array(2**31 - 1, np.int64)})
    status, lines = _answer(certified, capsys)
    assert status == 1 and 'it is of 2,147,483,647 clients' in lines[1]

  def test_a_run_of_another_method(self, certified):
    _changed(certified, 'run.json', lambda run: run['identity'].update(algorithm='quap'))
    [problem] = _problems(certified)
    assert 'a run of --algorithm=quap has no certificate' in problem


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
  return lambda path: _changed(path, 'run.json', lambda run: change(run))


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


@pytest.mark.slow
class TestForgeries:
  @pytest.mark.parametrize('name', _FORGERIES)
  def test_is_found_out(self, name, certified):
    forge, reissued, words = _FORGERIES[name]
    forge(certified)
    if reissued:
      with contextlib.suppress(ValueError):  # Nothing can be issued for such a folder.
        _reissue(certified)
    problems = _problems(certified)
    assert [problem for problem in problems if words in problem], problems

  def test_a_forger_who_changes_nothing_is_not_found_out(self, certified):
    _reissue(certified)
    assert not _problems(certified)


class TestStretches:
  def test_rounds_by_other_code_are_named_first(self, certified, capsys):
    def change(run):
      (first,) = run['stretches']
      other = {**first, 'first_round': 6, 'code': {'quap_tff': '0.1.0', 'source_sha256': 'of clean code'}}
      run['stretches'] = [first, other]

    _changed(certified, 'run.json', change)
    _reissue(certified)
    status, lines = _answer(certified, capsys)
    assert status == 0 and lines[0] == 'VALID' and lines[1].startswith('The rounds were run by different code.')
    assert lines[2].startswith('  rounds 1 to 5: quap_tff') and lines[3].endswith('of clean code')
    assert 'rounds 6 to 6' in lines[3] and 'run in 2 stretches' in lines[4]

  def test_code_that_was_not_recorded_is_named(self, certified, capsys):
    def change(run):
      (first,) = run['stretches']
      run['stretches'] = [{**first, 'code': None}, {**first, 'first_round': 4}]

    _changed(certified, 'run.json', change)
    _reissue(certified)
    assert _answer(certified, capsys)[1][2] == '  rounds 1 to 3: code that was not recorded'

  @pytest.mark.parametrize(
    'stretches',
    [
      *(None, [], 'x', [{}], [{'first_round': 2}], [{'first_round': 1}]),
      [{'first_round': '1', 'code': None, 'versions': 1}],
    ],
  )
  def test_a_list_that_makes_no_sense(self, stretches, certified, capsys):
    _changed(certified, 'run.json', lambda run: run.update(stretches=stretches))
    status, lines = _answer(certified, capsys)
    assert status == 1 and 'does not say which code ran which rounds' in lines[1]


class TestVersion3:
  def test_is_valid_under_the_present_statement(self, version_3, capsys):
    assert any('tensorboard holds the time' in warning for warning in verify.verify(str(version_3)).warnings)
    # Its own words are not repeated.
    _seal(version_3, {**_read(version_3, 'certificate.json'), 'statement': 'ε = 0 for everybody.'})
    status, lines = _answer(version_3, capsys)
    assert status == 0 and lines[0] == 'VALID' and 'has version 3' in lines[1]
    assert lines[2].startswith('In real arithmetic, with a trusted server') and 'ε = 3 and δ = 1e-05' in lines[2]
    assert 'everybody' not in '\n'.join(lines)

  @pytest.mark.parametrize(
    'change',
    [
      lambda certificate: certificate['guarantee'].update(epsilon=2.0),
      lambda certificate: certificate['achieved'].update(epsilon_max=0.5),
      lambda certificate: certificate['releases'][0].update(share_of_worst_client=0.5),
      lambda certificate: certificate['facts'].update(tuning='By luck.'),
      lambda certificate: certificate['provenance'].update(noise_multiplier=9.0),
      lambda certificate: certificate['guarantee'].update(unit='a client'),
      lambda certificate: certificate.update(version=4),
    ],
  )
  def test_its_figures_are_compared(self, change, version_3):
    certificate = _read(version_3, 'certificate.json')
    change(certificate)
    _seal(version_3, certificate)
    assert _problems(version_3)


class TestSignature:
  def test_a_signed_run(self, certified, tmp_path, capsys):
    key, public = harness.keys(tmp_path / 'keys')
    _, other = harness.keys(tmp_path / 'other')
    [problem] = verify.verify(str(certified), public).problems
    assert 'is not signed' in problem
    _of_today(certified)
    folders.write(str(certified), evidence.read, key)
    assert verify.main(['verify', str(certified), f'--public_key={public}']) == 0
    assert not capsys.readouterr().err
    assert verify.main(['verify', str(certified)]) == 0
    assert 'was not checked' in capsys.readouterr().err
    assert verify.verify(str(certified), other).problems == [
      f'certificate.sig is not a signature of certificate.json with the key of {other}.'
    ]
    # Somebody who makes the whole folder anew cannot sign it.
    _reissue(certified)
    assert not _problems(certified) and verify.verify(str(certified), public).problems
    (certified / 'certificate.sig').write_text('?')
    assert verify.verify(str(certified), public).problems

  def test_a_public_key_signs_nothing(self, tmp_path):
    _, public = harness.keys(tmp_path / 'keys')
    with pytest.raises(ValueError, match='must hold a PEM key without a password'):
      folders.read_private_key(public)


class TestPublish:
  def test_is_what_may_be_handed_out(self, certified, tmp_path, capsys):
    published = tmp_path / 'published'
    (certified / 'checkpoints').mkdir()
    assert verify.main(['verify', str(certified), f'--publish={published}']) == 0
    capsys.readouterr()
    names = {str(file.relative_to(published)) for file in published.rglob('*')}
    assert names == {file.name for file in certified.iterdir()} - {'checkpoints', '.lock'} and len(names) == 9
    assert verify.main(['verify', str(published)]) == 0
    assert 'checkpoints' not in capsys.readouterr().err
    assert verify.main(['verify', str(certified), f'--publish={published}']) == 2
    assert 'already exists: give a new folder' in capsys.readouterr().err

  def test_an_invalid_folder_is_not_published(self, certified, tmp_path):
    (certified / 'losses.csv').write_text('x')
    assert verify.main(['verify', str(certified), f'--publish={tmp_path / "published"}']) == 1
    assert not (tmp_path / 'published').exists()

  @pytest.mark.parametrize('place', ['.', 'inside', 'checkpoints/inside', '../certified/inside'])
  def test_into_the_folder_itself(self, place, certified, capsys):
    before = harness.files(certified)
    assert verify.main(['verify', str(certified), f'--publish={certified / place}']) == 2
    assert 'publish' in capsys.readouterr().err and harness.files(certified) == before

  def test_a_failure_leaves_nothing(self, certified, tmp_path, monkeypatch, capsys):
    def fail(source, target):
      raise OSError(28, 'No space left on device')

    monkeypatch.setattr(shutil, 'copyfile', fail)
    assert verify.main(['verify', str(certified), f'--publish={tmp_path / "published"}']) == 2
    assert 'No space left' in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == ['certified']


def test_refusals_leave_no_certificate(certified):
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
