"""Certificates of library code: what is written verifies, what was changed does not, and no TensorFlow is needed."""

import json
import pathlib
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from quap_tff import accounting
from quap_tff import plans
from quap_tff import verify
from quap_tff.accounting import certificate as certificates
from quap_tff.accounting import certificate_folder
from quap_tff.accounting import certificate_page
from quap_tff.mechanisms import banded
from quap_tff.mechanisms import clip_rules
from quap_tff.mechanisms import correlation
from quap_tff.mechanisms import layers
from quap_tff.mechanisms import planning
from quap_tff.mechanisms import sparsity
from quap_tff.mechanisms import weight_rules
from quap_tff.mechanisms.certified_config import CertifiedConfig
from tests.experiments import harness

_MODEL = layers.ModelShape((layers.Layer('dense', (0, 1), True),), (6, 2))
_WEIGHTS = [np.zeros((3, 2), np.float32), np.zeros(2, np.float32)]
_SCHEDULE = [[0, 3, 4], [1, 2], [], [4, 3, 2, 0]]
_ABOUT = plans.About('my data', 'I drew them with a <public> seed.', 'By theory.', 'Forty public pictures.', tests=4)
_OWN = tuple([2.0] * 2 + [3.0] * 4)
_RUN_FOLDERS = pathlib.Path(__file__).absolute().parents[2] / 'experiments' / 'certificate_version_4.zip'


def _plan(options=(), **config):
  return plans.CertifiedPlan(CertifiedConfig(6, 3.0, 1e-5, **config), _SCHEDULE, model=_MODEL, **dict(options))


def _ledger(plan, rounds=len(_SCHEDULE)):
  ledger = plan.new_ledger()
  for cohort, planned in zip(plan.schedule[:rounds], planning.planned_rounds(plan.config, plan.schedule)):
    clip = float(np.float32(plan.config.clip.initial_norm))
    spent = plan.config.cost(cohort, np.asarray(planned.weights, np.float64), clip)
    ledger.append(accounting.RoundRecord(*spent))
  return ledger


@pytest.fixture(scope='module', name='original')
def _original(tmp_path_factory):
  plan, path = _plan(), tmp_path_factory.mktemp('certified') / 'run'
  plans.write_certificate(str(path), plan, _ledger(plan), _WEIGHTS, _ABOUT)
  return path


@pytest.fixture(name='certified')
def _certified(original, tmp_path):
  return pathlib.Path(shutil.copytree(original, tmp_path / 'certified'))


def _changed(path, name, change):
  value = json.loads((path / name).read_text(encoding='utf-8'))
  change(value)
  (path / name).write_text(json.dumps(value, ensure_ascii=False), encoding='utf-8')


def _upgraded(certificate):
  """A certificate of version 4 in the fields of version 5, whose page is compared."""
  certificate['version'] = 5
  certificate['guarantee'].update(arithmetic='float', trust='server', colluders=[])
  return certificate


def _resealed(path, change):
  """Changes the certificate, and makes its digest anew. Without an audit its page is compared."""

  def seal(value):
    change(value)
    value['sha256'] = certificates.digest({name: part for name, part in value.items() if name != 'sha256'})

  (path / 'audit.json').unlink()
  _changed(path, 'certificate.json', seal)


def _answers(capsys, *arguments):
  status = verify.main(list(map(str, arguments)))
  return status, capsys.readouterr().out


class TestWrite:
  @pytest.mark.slow
  @pytest.mark.parametrize(
    'config, options',
    [
      (dict(weights=weight_rules.Online(prior_b=3.0), own_epsilon=_OWN), {}),
      (dict(weights=weight_rules.SpendEvenly(), correlation=correlation.Ar1()), {}),
      (dict(weights=weight_rules.Scale(), own_epsilon=_OWN), dict(sparsity=sparsity.RandomMask(), sparsity_seed=3)),
      (dict(weights=weight_rules.Uniform(), correlation=correlation.Blt()), {}),
      (dict(weights=weight_rules.WorstCase(), correlation=banded.Banded(2)), {}),
      (dict(clip=clip_rules.PrivateQuantile(count_stddev=5.0)), {}),
      (dict(weights=weight_rules.WorstCase(), clip_split='sqrt_size', noise_multiplier=9.0), {}),
    ],
  )
  def test_what_was_written_is_valid(self, config, options, tmp_path, capsys):
    plan = _plan(options, **config)
    plans.write_certificate(str(tmp_path / 'run'), plan, _ledger(plan), _WEIGHTS, _ABOUT)
    status, out = _answers(capsys, tmp_path / 'run')
    assert status == 0 and out.startswith('VALID\n') and 'for each of the 6 clients with ε = 3 and δ = 1e-05' in out

  def test_a_run_that_ended_early_and_a_keras_file(self, tmp_path, capsys):
    with zipfile.ZipFile(_RUN_FOLDERS) as archive:
      archive.extract('plain/final_model.keras', tmp_path)
    model = layers.ModelShape((layers.Layer('logits', (0, 1), True),), (640, 10))
    plan = plans.CertifiedPlan(CertifiedConfig(6, 3.0, 1e-5), _SCHEDULE, model=model)
    plans.write_certificate(
      str(tmp_path / 'run'), plan, _ledger(plan, 2), tmp_path / 'plain' / 'final_model.keras', _ABOUT
    )
    status, out = _answers(capsys, tmp_path / 'run')
    assert status == 0 and 'The run ended after 2 of 4 planned rounds' in out

  def test_words_are_those_of_the_issuer(self, certified):
    certificate = json.loads((certified / 'certificate.json').read_text(encoding='utf-8'))
    page = (certified / 'certificate.html').read_text(encoding='utf-8')
    assert any(_ABOUT.cohorts in text for text in certificate['assumptions'])
    assert not any('cohorts follow from a public seed' in text for text in certificate['assumptions'])
    assert certificate['facts']['cohorts'] == _ABOUT.cohorts and 'I drew them with a &lt;public&gt; seed.' in page
    assert 'python -m quap_tff.verify DIR' in page and 'mechanism.json and schedule.npz' in page
    assert 'from the flags' not in page

  @pytest.mark.parametrize(
    'plan, words',
    [
      (_plan(noise_seed=3), 'seed of the noise is fixed'),
      (_plan(dict(client_metrics=True)), 'Exact functions of clients'),
      (_plan(dict(test_is_of_clients=True)), 'Exact functions of clients'),
    ],
  )
  def test_what_no_certificate_covers_is_refused(self, plan, words, tmp_path):
    with pytest.raises(ValueError, match=words):
      plans.write_certificate(str(tmp_path / 'run'), plan, _ledger(plan), _WEIGHTS, _ABOUT)
    assert not list(tmp_path.iterdir())

  def test_a_ledger_or_a_model_of_another_run_is_refused(self, tmp_path):
    plan, other = _plan(), _plan(noise_multiplier=9.0)
    for ledger, weights, words in (
      (_ledger(other), _WEIGHTS, "ledger's fingerprint"),
      (_ledger(plan), _WEIGHTS[:1], r'model.npz holds tensors of \[6\] weights, but mechanism.json says \[2, 6\]'),
    ):
      with pytest.raises(ValueError, match=words):
        plans.write_certificate(str(tmp_path / 'run'), plan, ledger, weights, _ABOUT)
    plan._model = None
    with pytest.raises(ValueError, match='shape of the plan.s model is not known'):
      plans.write_certificate(str(tmp_path / 'run'), plan, _ledger(plan), _WEIGHTS, _ABOUT)
    with pytest.raises(ValueError, match='already exists'):
      plans.write_certificate(str(tmp_path), plan, _ledger(plan), _WEIGHTS, _ABOUT)
    assert not list(tmp_path.iterdir())

  def test_a_signature(self, tmp_path, capsys):
    key, public = harness.keys(tmp_path / 'keys')
    plan = _plan()
    plans.write_certificate(str(tmp_path / 'run'), plan, _ledger(plan), _WEIGHTS, _ABOUT, signing_key=key)
    assert _answers(capsys, tmp_path / 'run', f'--public_key={public}')[0] == 0
    _, other = harness.keys(tmp_path / 'other')
    status, out = _answers(capsys, tmp_path / 'run', f'--public_key={other}')
    assert status == 1 and 'is not a signature of certificate.json' in out


def _mechanism(**changes):
  return lambda path: _changed(path, 'mechanism.json', lambda value: value['mechanism'].update(changes))


def _schedule(path):
  np.savez(path / 'schedule.npz', offsets=np.array([0, 3, 5, 5, 9]), clients=np.array([0, 3, 5, 1, 2, 4, 3, 2, 0]))


def _arrays(name, change):
  def forge(path):
    with np.load(path / name) as kept:
      arrays = {key: kept[key].copy() for key in kept}
    change(arrays)
    np.savez(path / name, **arrays)

  return forge


# What a forger changes before issuing the certificate anew, and a word of the answer.
_FORGERIES = {
  'more budget': (_mechanism(epsilon=4.0), 'fingerprint'),
  'less noise': (_mechanism(noise_multiplier=0.5), 'fingerprint'),
  'other weights': (_mechanism(weights={'class': 'Uniform'}), 'fingerprint'),
  'other cohorts': (_schedule, 'other clients'),
  'halved weights': (_arrays('ledger.npz', lambda arrays: arrays['weights'].__imul__(0.5)), 'other weights'),
  'a fixed seed': (_mechanism(noise_seed=3), 'seed of the noise is fixed'),
  'a smaller model': (
    lambda path: _changed(path, 'mechanism.json', lambda v: v.update(sizes=[5, 2])),
    'model.npz holds',
  ),
  'a class that is none': (_mechanism(weights={'class': 'Popen', 'args': 'x'}), "damaged: 'Popen'"),
  'a class of elsewhere': (_mechanism(weights={'class': 'Path'}), "damaged: 'Path'"),
  'no mechanism': (
    lambda path: (path / 'mechanism.json').write_text('[]'),
    'mechanism.json or schedule.npz is damaged',
  ),
  'a schedule without an end': (
    lambda path: np.savez(path / 'schedule.npz', offsets=np.arange(10**6 + 2), clients=np.arange(3)),
    'at most 1,000,000 rounds',
  ),
  'a mechanism without an end': (
    lambda path: (path / 'mechanism.json').write_text('[' * 900 + ']' * 900),
    'is damaged',
  ),
  'no schedule': (lambda path: (path / 'schedule.npz').unlink(), 'schedule.npz is missing'),
  'a damaged schedule': (lambda path: (path / 'schedule.npz').write_bytes(b'PK?'), 'schedule.npz cannot be read'),
  "a client's ε": (
    lambda path: (path / 'clients.csv').write_text((path / 'clients.csv').read_text().replace('0,2,', '0,1,')),
    'rounds of client 0 is 1',
  ),
}


class TestForgeries:
  @pytest.mark.parametrize('name', _FORGERIES)
  def test_is_found_out(self, name, certified, monkeypatch, capsys):
    forge, words = _FORGERIES[name]
    forge(certified)
    with monkeypatch.context() as patch:
      patch.setattr(certificates, 'refusals', lambda ledger, facts: [])
      try:
        kept = plans.certificates.read(str(certified))
        certificate = certificates.issue(kept.ledger, kept.facts, kept.provenance)
        (certified / 'certificate.json').write_text(json.dumps(certificate), encoding='utf-8')
        certificate_folder.write_page(str(certified), certificate, None)
      except ValueError:
        pass  # Nothing can be issued for such a folder.
    status, out = _answers(capsys, certified)
    assert status == 1 and out.startswith('INVALID\n') and words in out

  @pytest.mark.parametrize('name', ['model.npz', 'ledger.npz', 'mechanism.json', 'schedule.npz', 'clients.csv', 'more'])
  def test_a_file_that_is_not_the_certificates(self, name, certified, capsys):
    with open(certified / name, 'ab') as f:
      f.write(b'\n')
    assert _answers(capsys, certified)[0] == 1

  def test_a_population_that_is_too_large(self, certified, capsys):
    _mechanism(num_clients=2**31 - 1)(certified)
    status, out = _answers(capsys, certified)
    assert status == 2 and 'verifies runs of at most 10,000,000' in out


class TestRunsOfExperiments:
  """Their plan follows from flags, which the library does not read."""

  @pytest.fixture(name='run')
  def _run(self, tmp_path):
    with zipfile.ZipFile(_RUN_FOLDERS) as archive:
      archive.extractall(tmp_path)
    return tmp_path / 'audited'

  def test_is_never_called_valid(self, run, capsys):
    for path in (run, run.parent / 'plain'):
      status, out = _answers(capsys, path)
      assert status == 2 and out.startswith('CANNOT BE VERIFIED\n  The files agree with the digests')
      assert 'python -m experiments.verify computes them again' in out

  @pytest.mark.parametrize(
    'change',
    [
      lambda path: (path / 'metrics.csv').write_text('round\n1\n'),
      lambda path: (path / 'plot.png').unlink(),
      lambda path: _changed(path, 'certificate.json', lambda value: value['achieved'].update(epsilon_max=1.0)),
      lambda path: _changed(path, 'certificate.json', lambda value: value['guarantee'].update(epsilon=1.0)),
      lambda path: _changed(path, 'certificate.json', lambda value: value['provenance'].update(noise_multiplier=9.0)),
      lambda path: _changed(path, 'certificate.json', lambda value: value.update(facts=[])),
      lambda path: _resealed(path, lambda value: value['facts'].update(epsilon=5)),
      lambda path: _resealed(path, lambda value: value['provenance'].pop('code')),
      lambda path: _resealed(path, lambda value: _upgraded(value)['provenance'].pop('run')),
      lambda path: _resealed(path, lambda value: value['provenance'].update(stretches=5)),
      lambda path: _resealed(path, lambda value: value['achieved'].update(clients=[])),
      _arrays('ledger.npz', lambda arrays: arrays['weights'].__imul__(0.5)),
    ],
  )
  def test_what_is_wrong_is_said(self, change, run, capsys):
    change(run)
    status, out = _answers(capsys, run)
    assert status == 1 and out.startswith('INVALID\n')

  def test_several_folders(self, run, certified, capsys):
    status, out = _answers(capsys, certified, run)
    assert status == 2 and out.startswith(f'{certified}:\nVALID\n') and f'\n{run}:\nCANNOT BE VERIFIED\n' in out
    (run / 'more').write_text('x')
    assert _answers(capsys, certified, run)[0] == 1


def test_a_page_that_was_changed(certified, capsys):
  page = certified / certificate_folder.PAGE
  page.write_text(page.read_text(encoding='utf-8').replace('ε = 3', 'ε = 1'), encoding='utf-8')
  assert 'certificate.html does not match certificate.json.' in _answers(capsys, certified)[1]


def test_a_package_that_is_missing(certified, monkeypatch, capsys):
  certificate_page._template.cache_clear()
  monkeypatch.setitem(sys.modules, 'jinja2', None)
  status, out = _answers(capsys, certified)
  assert status == 2 and out.startswith('CANNOT BE VERIFIED') and 'jinja2' in out


@pytest.mark.slow
def test_the_command_loads_no_tensorflow(certified):
  code = (
    'import runpy, sys\n'
    f'sys.argv = ["verify", {str(certified)!r}]\n'
    'try:\n  runpy.run_module("quap_tff.verify", run_name="__main__")\n'
    'except SystemExit as error:\n  assert not error.code, error.code\n'
    'assert not [name for name in sys.modules if name.startswith(("tensorflow", "jax", "experiments"))]\n'
  )
  done = subprocess.run([sys.executable, '-c', code], check=True, timeout=120, capture_output=True, text=True)
  assert done.stdout.startswith('VALID\n')
