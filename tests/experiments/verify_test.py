"""Tests of the certificate in a run's folder: `experiments.certificates`, `experiments.verify` and the page."""

import html.parser
import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest

from experiments import certificate_page
from experiments import certificates as folders
from experiments import verify
from quap_tff.accounting import certificate as certificates
from quap_tff.accounting import run_ledger

_IDENTITY = {'algorithm': 'certified:rule=uniform', 'epsilon': 3.0, 'delta': 1e-5, 'noise_seed': None, 'seed': 42}
_METRICS = 'round,cohort_size,clipping_norm,test_accuracy,seconds\n1,2,1.0,0.5,0.1\n'


def _facts(**changes):
  facts = dict(
      algorithm='certified:rule=uniform', epsilon=3.0, delta=1e-5, noised_weights=70, trained_weights=70,
      clipping='One L2 norm <C>.', tuning='By theory.',
  )
  return certificates.Facts(**{**facts, **changes})


def _folder(path, identity=None, metrics=_METRICS):
  """What a run leaves, but for the certificate."""
  ledger = run_ledger.RunLedger(4, 1e-5, 'a run')
  for cohort, weights in (([0, 1], [1.0, 0.5]), ([2, 0], [0.25, 0.75])):
    ledger.append(run_ledger.RoundRecord(cohort, [0.1, 0.2], weights, 2.0, 8.0, 1.5))
  np.savez(path / 'ledger.npz', **ledger.state_dict())
  (path / 'run.json').write_text(json.dumps({'identity': identity or _IDENTITY, 'flags': {}}))
  (path / 'final_model.keras').write_bytes(b'a model')
  (path / 'metrics.csv').write_text(metrics)
  (path / 'clients.csv').write_text('client,rounds,nominal_epsilon,nominal_delta,formal_epsilon\n')
  return path


@pytest.fixture
def certified(tmp_path):
  """A folder with a certificate that is valid."""
  folders.write(str(_folder(tmp_path)), _facts())
  return tmp_path


def _problems(path):
  return verify.verify(str(path)).problems


def _reseal(path):
  """Makes all digests anew, as one who tampers would."""
  with open(path / 'certificate.json', encoding='utf-8') as f:
    certificate = json.load(f)
  certificate['provenance'] = folders.read_evidence(str(path)).provenance
  del certificate['sha256']
  certificate['sha256'] = certificates.digest(certificate)
  (path / 'certificate.json').write_text(json.dumps(certificate))
  (path / 'certificate.html').write_text(certificate_page.render(certificate))


class TestVerify:

  def test_a_good_one(self, certified, capsys):
    assert verify.main(['verify', str(certified)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith('VALID\nFor each of the 4 clients') and 'ε = 3 and δ = 1e-05' in out and not err

  def test_as_a_command(self, certified):
    (certified / 'final_model.keras').write_bytes(b'another model')
    done = subprocess.run(
        [sys.executable, '-m', 'experiments.verify', str(certified)], capture_output=True, text=True, timeout=120,
        env={**os.environ, 'PYTHONIOENCODING': 'ascii'},
    )
    assert done.returncode == 1 and done.stdout.startswith('INVALID\n  provenance.files_sha256.final_model.keras')

  @pytest.mark.parametrize('name', ['certificate.json', 'ledger.npz', 'run.json', 'final_model.keras'])
  def test_a_file_that_lacks(self, certified, name, capsys):
    (certified / name).unlink()
    assert verify.main(['verify', str(certified)]) == 1
    assert capsys.readouterr().out == f'INVALID\n  {certified} holds no {name}.\n'

  @pytest.mark.parametrize('name', ['certificate.json', 'ledger.npz', 'run.json'])
  @pytest.mark.parametrize('content', [b'', b'{"a": ', b'\xff\xfe', b'NaN', b'[]', b'{"provenance": {}}', b'[' * 9999])
  def test_a_file_that_is_damaged(self, certified, name, content):
    (certified / name).write_bytes(content)
    assert [problem for problem in _problems(certified) if name in problem]

  @pytest.mark.parametrize('number', ['NaN', 'Infinity', '1e999'])
  def test_a_number_that_is_none(self, certified, number):
    path = certified / 'certificate.json'
    mean = json.loads(path.read_text())['achieved']['epsilon_mean']
    path.write_text(path.read_text().replace(repr(mean), number))
    assert _problems(certified)

  def test_what_is_no_folder(self, tmp_path, capsys):
    assert verify.main(['verify', str(tmp_path / 'nowhere')]) == 1
    assert 'nowhere is not a folder' in capsys.readouterr().out

  def test_wrong_arguments(self, capsys):
    assert verify.main(['verify']) == 1 and verify.main(['verify', 'a', 'b']) == 1
    assert 'Usage' in capsys.readouterr().err

  @pytest.mark.parametrize('name, value', [
      ('epsilon', 2.0), ('delta', 1e-6), ('algorithm', 'quap'), ('noise_seed', 7), ('seed', 43), ('other', 1),
  ])
  def test_another_configuration(self, certified, name, value):
    (certified / 'run.json').write_text(json.dumps({'identity': {**_IDENTITY, name: value}, 'flags': {}}))
    assert [p for p in _problems(certified) if p.startswith('provenance.config_sha256')]
    _reseal(certified)
    assert bool(_problems(certified)) == (name not in ('seed', 'other'))

  def test_another_method_in_the_certificate(self, certified):
    path = certified / 'certificate.json'
    path.write_text(path.read_text().replace('certified:rule=uniform', 'certified'))
    _reseal(certified)
    assert _problems(certified)[0].startswith('run.json: --algorithm')

  @pytest.mark.parametrize('column', ['train_loss', 'norm_p50', 'signal_norm', 'what_nobody_knows'])
  def test_a_column_of_exact_values(self, certified, column):
    (certified / 'metrics.csv').write_text(f'round,{column}\n')
    assert _problems(certified) == [
        f'metrics.csv: {column} is an exact function of clients\' data, or not known not to be.'
    ]

  def test_number_of_examples_of_each_client(self, certified):
    (certified / 'clients.csv').write_text('client,examples\n')
    assert [problem for problem in _problems(certified) if 'clients.csv: examples' in problem]

  def test_another_page(self, certified):
    page = certified / 'certificate.html'
    page.write_text(page.read_text().replace('ε = 3', 'ε = 1'))
    assert _problems(certified) == ['certificate.html is not the page of certificate.json.']
    page.unlink()
    assert not _problems(certified)

  def test_other_code_is_a_warning(self, certified, monkeypatch, capsys):
    monkeypatch.setattr(folders, 'source_digest', lambda: 'other')
    assert verify.main(['verify', str(certified)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith('VALID') and err.startswith('Warning: The run was made by other code')

  def _reworded(self, path, place, value):
    certificate = json.loads((path / 'certificate.json').read_text())
    certificate['provenance']['code']['source_sha256'] = 'of an older version'
    holder = certificate
    for key in place[:-1]:
      holder = holder[key]
    holder[place[-1]] = value
    del certificate['sha256']
    certificate['sha256'] = certificates.digest(certificate)
    (path / 'certificate.json').write_text(json.dumps(certificate))

  @pytest.mark.parametrize('place, value', [
      (('statement',), 'ε is nothing.'), (('assumptions',), ['None.']), (('guarantee', 'unit'), 'a client'),
      (('releases', 0, 'how'), 'noised'),
  ])
  def test_words_of_other_code_are_not_believed(self, certified, place, value):
    self._reworded(certified, place, value)
    verdict = verify.verify(str(certified))
    assert not verdict.problems and verdict.warnings and verdict.statement.startswith('For each of the 4 clients')

  @pytest.mark.parametrize('place, value', [
      (('guarantee', 'epsilon'), 2.0), (('achieved', 'epsilon_max'), 1.0), (('releases', 0, 'rounds'), 1),
      (('facts', 'algorithm'), 'quap'), (('provenance', 'config_sha256'), 'c'), (('achieved', 'rounds'), 'two'),
  ])
  def test_figures_of_other_code_are_compared(self, certified, place, value):
    self._reworded(certified, place, value)
    assert _problems(certified)


class TestLedger:

  def _tamper(self, path, change):
    with np.load(path / 'ledger.npz') as kept:
      arrays = {name: kept[name].copy() for name in kept}
    change(arrays)
    np.savez(path / 'ledger.npz', **arrays)

  @pytest.mark.parametrize('name', [
      'clients', 'budgets', 'weights', 'noise_multipliers', 'count_noise_multipliers', 'clipping_norms', 'num_clients',
      'delta', 'fingerprint',
  ])
  def test_any_array(self, certified, name):
    def change(arrays):
      first = arrays[name].reshape(-1)[:1]
      first += {'clients': 3, 'weights': -0.125, 'delta': 1e-6}.get(name, 1)
      arrays[name].reshape(-1)[:1] = first

    self._tamper(certified, change)
    assert [problem for problem in _problems(certified) if problem.startswith('provenance.files_sha256.ledger.npz')]
    _reseal(certified)
    # No figure depends on the nominal budgets, the clip of a noise that is relative to it, or on which run it is.
    nominal = ('budgets', 'clipping_norms', 'delta', 'fingerprint')
    assert [p for p in _problems(certified) if p.startswith('achieved')] or name in nominal

  @pytest.mark.parametrize('row', range(4))
  def test_any_row(self, certified, row):
    def change(arrays):
      arrays['weights'][row] *= 0.999

    self._tamper(certified, change)
    _reseal(certified)
    assert [p for p in _problems(certified) if p.startswith('achieved')]

  @pytest.mark.parametrize('rounds', [1, 3])
  def test_rounds_removed_or_added(self, certified, rounds):
    ledger = run_ledger.RunLedger.load(certified / 'ledger.npz')
    if rounds == 3:
      ledger.append(run_ledger.RoundRecord([3], [0.1], [0.01], 50.0, math.inf, 1.0))
    np.savez(certified / 'ledger.npz', **ledger.truncated(rounds).state_dict())
    _reseal(certified)
    assert f'achieved.rounds: the certificate says 2, the run gives {rounds}.' in _problems(certified)

  def test_offsets(self, certified):
    self._tamper(certified, lambda arrays: arrays['offsets'].__setitem__(1, 1))
    assert _problems(certified)


class TestWrite:

  @pytest.mark.parametrize('identity, metrics, facts, reason', [
      ({'noise_seed': 3}, _METRICS, {}, '--noise_seed is given'),
      ({'epsilon': 4.0}, _METRICS, {}, '--epsilon is 4.0, the certificate is for 3.0'),
      ({}, 'round,train_accuracy\n', {}, 'metrics.csv: train_accuracy'),
      ({}, _METRICS, {'exact_clip': True}, 'un-noised function'),
  ])
  def test_refusals_leave_nothing(self, tmp_path, identity, metrics, facts, reason):
    _folder(tmp_path, {**_IDENTITY, **identity}, metrics)
    with pytest.raises(ValueError, match=reason):
      folders.write(str(tmp_path), _facts(**facts))
    assert not [name for name in os.listdir(tmp_path) if name.startswith('certificate')]

  def test_a_folder_that_is_not_complete(self, tmp_path):
    _folder(tmp_path)
    (tmp_path / 'final_model.keras').unlink()
    with pytest.raises(folders.FolderError, match='final_model.keras'):
      folders.write(str(tmp_path), _facts())

  def test_the_source_digest_is_of_every_file(self, tmp_path):
    def digest(files):
      root = tmp_path / str(len(os.listdir(tmp_path)))
      for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
      return folders.source_digest(str(root))

    files = {'quap_tff/a.py': 'a', 'data/b.py': 'b', 'experiments/x/c.py': 'c'}
    others = [{**files, 'data/b.py': 'd'}, {**files, 'quap_tff/new.py': ''}, {**files, 'experiments/x/c.py': 'd'}]
    assert digest(files) == digest({**files, 'tests/t.py': 't', 'quap_tff/notes.txt': 'n'})
    assert len({digest(f) for f in [files, *others]}) == 4


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
    certificate = json.loads((certified / 'certificate.json').read_text(encoding='utf-8'))
    assert not tags.open and not tags.links and 'http' not in tags.text
    texts = [certificate['statement'], certificate['sha256'], *certificate['assumptions'], *certificate['withheld']]
    texts += [release['what'] for release in certificate['releases']]
    texts += list(certificate['provenance']['files_sha256'].values())
    for text in texts:
      assert text in tags.text  # `One L2 norm <C>.` among them: escaped.

  def test_bars_stand_for_counts(self):
    svg = certificate_page.histogram([0.0, 1.0, 2.0, 3.0], [5000, 0, 20000])
    assert svg.count('<rect') == 2 and '>5000<' in svg and '>20k<' in svg
    heights = [float(part.split('"')[0]) for part in svg.split(' height="')[1:]]
    # The axes take 92 of the 320 units.
    assert heights == [57.0, 228.0]
