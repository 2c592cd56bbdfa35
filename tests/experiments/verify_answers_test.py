"""What `experiments.verify` answers: valid, invalid or cannot be verified; and of runs by other code and versions."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import tensorflow as tf

from experiments import evidence
from experiments import predict
from experiments import pretrain
from experiments import verify
from quap_tff.accounting import certificate as certificates
from quap_tff.accounting import certificate_folder
from quap_tff.accounting import certificate_page
from tests.experiments import harness

_FLAGS = ('--algorithm=certified:clip=0.5', '--rounds=6', '--warmup_rounds=0')
_VERSION_3 = harness.REPOSITORY / 'tests' / 'experiments' / 'certificate_version_3.zip'


@pytest.fixture(scope='module', name='original')
def _original(tmp_path_factory):
  """The folder of a certified run."""
  path = tmp_path_factory.mktemp('runs') / 'certified'
  assert harness.main(*harness.TINY, *_FLAGS, f'--output_dir={path}') == 0
  return path


@pytest.fixture(name='certified')
def _certified(original, tmp_path):
  return pathlib.Path(shutil.copytree(original, tmp_path / 'certified'))


@pytest.fixture(name='version_3')
def _version_3(tmp_path):
  """A certified run of the version that wrote certificates of version 3."""
  path = tmp_path / 'version_3'
  with zipfile.ZipFile(_VERSION_3) as archive:
    archive.extractall(path)
  return path


def _answer(path, capsys, *arguments):
  """Exit status, and the lines of standard output."""
  status = verify.main(['verify', str(path), *arguments])
  return status, capsys.readouterr().out.splitlines()


def _changed(path, name, change):
  """Changes a JSON file."""
  value = json.loads((path / name).read_text(encoding='utf-8'))
  (path / name).write_text(json.dumps(change(value) or value, ensure_ascii=False), encoding='utf-8')


def _resealed(path, change):
  """Changes the certificate, and makes its digest and its page anew."""

  def seal(certificate):
    change(certificate)
    content = {name: value for name, value in certificate.items() if name != 'sha256'}
    certificate['sha256'] = certificates.digest(content)
    (path / certificate_folder.PAGE).write_text(certificate_page.render(certificate), encoding='utf-8')

  _changed(path, certificate_folder.CERTIFICATE, seal)


class TestCannotBeVerified:
  @pytest.mark.parametrize(
    'break_it, words',
    [
      (shutil.rmtree, 'does not exist'),
      (lambda path: (path / 'certificate.json').unlink(), 'holds no certificate.json'),
      (lambda path: _resealed(path, lambda certificate: certificate.update(version=99)), 'has version 99'),
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

  @pytest.mark.parametrize('package', ['h5py', 'jinja2', 'scipy', 'cryptography'])
  def test_a_package_that_is_missing(self, package, certified, tmp_path):
    code = (
      f'import sys\nsys.modules[{package!r}] = None\nfrom experiments import verify\n'
      f'sys.exit(verify.main(["verify", {str(certified)!r}, "--public_key={tmp_path / "k.pem"}"]'
      f'[:{3 if package == "cryptography" else 2}]))\n'
    )
    (tmp_path / 'k.pem').write_text('x')
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2 and 'Traceback' not in done.stderr, done.stderr
    assert done.stdout.startswith('CANNOT BE VERIFIED') and package in done.stdout

  def test_a_population_that_is_too_large(self, certified, capsys):
    _changed(certified, 'run.json', lambda run: run['resolved'].update(num_clients=2**31 - 1))
    status, lines = _answer(certified, capsys)
    assert status == 2 and 'verifies runs of at most 10,000,000' in lines[1]

  @pytest.mark.parametrize('arguments', [[], ['a', 'b'], ['--unknown=1', 'a']])
  def test_wrong_arguments(self, arguments, capsys):
    assert verify.main(['verify', *arguments]) == 2
    assert capsys.readouterr().err.startswith('Error: ')


class TestInvalid:
  @pytest.mark.parametrize(
    'name',
    [
      'certificate.json',
      'certificate.html',
      'run.json',
      'ledger.npz',
      'summary.json',
      'clients.csv',
      'metrics.csv',
      'final_model.keras',
      'plot.png',
      '.lock',
      'audit.json',
      'another',
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

  def test_checkpoints_that_lead_elsewhere(self, certified, tmp_path, capsys):
    (certified / 'checkpoints').symlink_to(tmp_path)
    status, lines = _answer(certified, capsys)
    assert status == 1 and 'checkpoints is a link' in lines[1]

  def test_an_empty_folder(self, certified, capsys):
    (certified / 'client 7 has the label 3').mkdir()
    status, lines = _answer(certified, capsys)
    assert status == 1 and 'is an empty folder' in lines[1]

  def test_what_is_written_into_the_lock(self, certified, capsys):
    (certified / '.lock').write_text('')
    assert _answer(certified, capsys)[0] == 0
    (certified / '.lock').write_text('client 7 has the label 3')
    status, lines = _answer(certified, capsys)
    assert status == 1 and '.lock must be empty' in lines[1]

  @pytest.mark.parametrize(
    'name, value', [('rounds', 10**9), ('rounds', 6.0), ('rounds', True), ('rounds', '6'), ('rounds', -1)]
  )
  def test_rounds_that_no_run_has_take_no_time(self, name, value, certified, capsys):
    _changed(certified, 'run.json', lambda run: run['identity'].update({name: value}))
    status, lines = _answer(certified, capsys)
    assert status == 1 and 'rounds must be an integer from 1 to 1,000,000' in lines[1]

  def test_a_plan_of_more_participations_than_memory_holds(self, certified, capsys, monkeypatch):
    from experiments.methods import base  # pylint: disable=g-import-not-at-top

    monkeypatch.setattr(base, '_MOST_PARTICIPATIONS', 10)
    status, lines = _answer(certified, capsys)
    assert status == 1 and 'more than 10 participations' in lines[1]

  def test_a_ledger_of_another_population_is_not_unpacked(self, certified, capsys):
    with np.load(certified / 'ledger.npz') as kept:
      arrays = {**kept, 'num_clients': np.array(2**31 - 1, np.int64)}
    np.savez(certified / 'ledger.npz', **arrays)
    status, lines = _answer(certified, capsys)
    assert status == 1 and 'it is of 2,147,483,647 clients' in lines[1]

  def test_what_float32_makes_of_equal_rates_is_no_contradiction(self, tmp_path):
    path = tmp_path / 'full'
    flags = '--flagfile=' + str(harness.PRESETS / 'digits_certified.flags'), '--rounds=1', '--num_clients=4'
    assert harness.main(*flags, '--features=none', '--model=logistic_regression', f'--output_dir={path}') == 0
    rows = (path / 'metrics.csv').read_text().splitlines()
    place, cells = rows[0].split(',').index('participation_stddev'), rows[1].split(',')
    assert float(cells[place]) == 0
    cells[place] = '1.8e-07'
    (path / 'metrics.csv').write_text('\n'.join([rows[0], ','.join(cells)]) + '\n')
    [problem] = verify.verify(str(path)).problems
    assert 'files_sha256.metrics.csv' in problem


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
      None,
      [],
      'x',
      [{}],
      [{'first_round': 2}],
      [{'first_round': 1}],
      [{'first_round': '1', 'code': None, 'versions': 1}],
    ],
  )
  def test_a_list_that_makes_no_sense(self, stretches, certified, capsys):
    _changed(certified, 'run.json', lambda run: run.update(stretches=stretches))
    status, lines = _answer(certified, capsys)
    assert status == 1 and 'does not say which code ran which rounds' in lines[1]


def _reissue(path):
  kept = evidence.read(str(path))
  issued = certificates.issue(kept.ledger, kept.facts, kept.provenance)
  _resealed(path, lambda certificate: (certificate.clear(), certificate.update(issued)))


class TestVersion3:
  def test_is_valid_under_the_present_statement(self, version_3, capsys):
    status, lines = _answer(version_3, capsys)
    assert status == 0 and lines[0] == 'VALID' and 'has version 3' in lines[1]
    assert lines[2].startswith('In real arithmetic, with a trusted server') and 'ε = 3 and δ = 1e-05' in lines[2]

  def test_its_own_words_are_not_repeated(self, version_3, capsys):
    _resealed(version_3, lambda certificate: certificate.update(statement='ε = 0 for everybody.'))
    status, lines = _answer(version_3, capsys)
    assert status == 0 and 'everybody' not in '\n'.join(lines)

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
  def test_its_figures_are_compared(self, change, version_3, capsys):
    _resealed(version_3, change)
    assert _answer(version_3, capsys)[0] == 1

  def test_its_times_are_pointed_out(self, version_3):
    assert any('tensorboard holds the time' in warning for warning in verify.verify(str(version_3)).warnings)


class TestPublish:
  @pytest.mark.parametrize('place', ['.', 'inside', 'checkpoints/inside', '../certified/inside'])
  def test_into_the_folder_itself(self, place, certified, capsys):
    before = harness.files(certified)
    assert verify.main(['verify', str(certified), f'--publish={certified / place}']) == 2
    assert 'publish' in capsys.readouterr().err and harness.files(certified) == before

  def test_an_extractor_goes_with_it_and_no_folder_of_the_operator_is_named(self, tmp_path):
    home = tmp_path / 'home'
    network = tf.keras.Sequential([tf.keras.Input((8, 8, 1)), tf.keras.layers.Flatten()], name='network')
    pretrain.write(str(home / 'glyphs'), network, {'public_data': 'None.'})
    path, published = home / 'run', tmp_path / 'published'
    arguments = (*_FLAGS, f'--features=pretrained:path={home / "glyphs"}', '--model=auto', f'--output_dir={path}')
    assert harness.main(*harness.TINY, *arguments) == 0
    assert verify.main(['verify', str(path), f'--publish={published}']) == 0
    labels = predict.predict(str(path), np.zeros((2, 8, 8), np.float32))
    shutil.rmtree(home)
    assert not any(str(tmp_path).encode() in file.read_bytes() for file in published.rglob('*') if file.is_file())
    assert verify.main(['verify', str(published)]) == 0
    np.testing.assert_array_equal(predict.predict(str(published), np.zeros((2, 8, 8), np.float32)), labels)

  def test_a_failure_leaves_nothing(self, certified, tmp_path, monkeypatch, capsys):
    def fail(source, target):
      raise OSError(28, 'No space left on device')

    monkeypatch.setattr(shutil, 'copyfile', fail)
    assert verify.main(['verify', str(certified), f'--publish={tmp_path / "published"}']) == 2
    assert 'No space left' in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == ['certified']
