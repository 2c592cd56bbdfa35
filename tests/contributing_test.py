"""The examples in docs/own_choices: each adds a choice from outside, which then trains, is reported and is drawn."""

import inspect
import json
import os
import re
import sys

import numpy as np
import pytest

from data import cohorts
from data import datasets
from data import features
from experiments import report
from experiments.command import run as run_lib
from quap_tff import accounting
from quap_tff import methods
from quap_tff.certificates.folders import folder
from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.certified.config import CertifiedConfig
from quap_tff.mechanisms.parts import aggregators
from quap_tff.mechanisms.parts import clip_rules
from tests import processes
from tests.experiments import harness

pytestmark = pytest.mark.slow

_REGISTRIES = (
  methods.METHODS,
  clip_rules.RULES,
  aggregators.AGGREGATORS,
  weight_rules.RULES,
  cohorts.PARTICIPATION_MODELS,
  datasets.DATASETS,
  features.FEATURES,
  folder.MECHANISMS,
)
_OTHERS = {
  'clip': ['--clip=median:first=2', '--epsilon=1'],
  'aggregator': ['--algorithm=fedavg', '--aggregator=winsorized_mean:share=0.3', '--malicious=sign_flip:share=0.2'],
  'weights': ['--algorithm=certified:weights=half', '--participation=shifts'],
  'data': ['--algorithm=fedavg', '--dataset=stripes', '--features=row_sums', '--model=linear_features'],
}


_FILES = sorted((harness.REPOSITORY / 'docs' / 'own_choices').glob('*.py'))
_BLOCKS = [path.read_text(encoding='utf-8') for path in _FILES]


@pytest.fixture(scope='module', autouse=True)
def added():
  """The examples' choices, for this module only: the names of each block."""
  before, found = [dict(registry) for registry in _REGISTRIES], []
  for block in _BLOCKS:
    found.append({'__name__': 'own'})
    exec(block, found[-1])  # Each file must run by itself.
  yield found
  for registry, kept in zip(_REGISTRIES, before):
    registry.clear()
    registry.update(kept)


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
  """A run of the added method, in a folder of its own."""
  folder = tmp_path_factory.mktemp('runs')
  arguments = ['--rounds=3', '--epsilon=2', '--algorithm=decaying_dp:clip=0.5', f'--output_dir={folder / "own"}']
  assert harness.main(*harness.TINY, *arguments) == 0
  return folder


class TestMethod:
  def test_it_trains_with_its_own_parameters(self, runs):
    norms = [row['clipping_norm'] for row in harness.rows(runs / 'own')]
    assert [float(norm) for norm in norms] == pytest.approx([0.5, 0.45, 0.405])
    assert harness.summary(runs / 'own')['algorithm'] == 'decaying_dp:clip=0.5' and (runs / 'own' / 'plot.png').exists()

  def test_run_json_gives_the_run_again(self, runs):
    found = run_lib.Run.from_json(json.loads((runs / 'own' / 'run.json').read_text()))
    assert (found.method.clip, found.method.decay, found.method.epsilon) == (0.5, 0.9, 2.0)
    assert found.identity() == json.loads((runs / 'own' / 'run.json').read_text())['identity']

  def test_flags_without_a_field_are_refused(self, capsys):
    assert harness.main(*harness.TINY, '--algorithm=decaying_dp', '--alpha=1') == 1
    assert "--alpha: the method 'decaying_dp' does not use this flag" in capsys.readouterr().err

  def test_it_is_in_the_table_of_the_help(self):
    row = 'decaying_dp:clip=1.0,decay=0.9  Fixed-DP whose clipping norm falls from round to round.'
    assert row in methods.table().splitlines()

  @pytest.mark.thorough
  def test_it_is_reported_and_drawn(self, runs, tmp_path, capsys):
    assert report.main(['report', str(runs), f'--output_dir={tmp_path / "report"}']) == 0
    capsys.readouterr()
    assert 'decaying_dp' in (tmp_path / 'report' / 'report.md').read_text()
    assert list((tmp_path / 'report' / 'figures').glob('*.png'))


def _own_functions(names):
  """Each function of an example's class that is in place of one of the project: the two of them."""
  for one in names.values():
    if not inspect.isclass(one) or one.__module__ != 'own':
      continue
    for name, function in vars(one).items():
      for base in one.__mro__[1:]:
        if inspect.isfunction(function) and not name.startswith('__') and name in vars(base):
          yield function, vars(base)[name]
          break


def test_functions_take_what_they_are_given(added):
  pairs = [pair for names in added for pair in _own_functions(names)]
  assert len(pairs) >= len(_BLOCKS) - 2
  for own, theirs in pairs:
    assert list(inspect.signature(own).parameters) == list(inspect.signature(theirs).parameters), own


def test_certified_runs_refuse_a_clip_rule_that_no_certificate_describes():
  class Mine(clip_rules.Fixed):
    pass

  for rule, message in ((clip_rules.RULES['median'](), 'which no ε covers'), (Mine(), 'not one that a certificate')):
    with pytest.raises(ValueError, match=message):
      CertifiedConfig(num_clients=4, epsilon=3.0, delta=1e-5, clip=rule)


class TestMechanism:
  _NAME = 'decaying_noise'

  @pytest.fixture(scope='class')
  def run(self, tmp_path_factory):
    """A run with a certificate, in a folder with the example's file."""
    path = tmp_path_factory.mktemp('mechanism')
    block = _BLOCKS[[path.stem for path in _FILES].index(self._NAME)]
    (path / f'{self._NAME}.py').write_text(block, encoding='utf-8')
    arguments = [
      f'--algorithm={self._NAME}:decay=0.8,weights=uniform,clip=1',
      '--rounds=4',
      '--participation=full',
      f'--output_dir={path / "run"}',
    ]
    assert harness.main(*harness.TINY, *arguments) == 0
    return path

  def _python(self, run, *arguments):
    path = os.pathsep.join([str(run), harness.PYTHONPATH])
    environment = {**os.environ, 'PYTHONPATH': path, 'PYTEST_DISABLE_PLUGIN_AUTOLOAD': '1'}
    return processes.run([sys.executable, '-m', *arguments], cwd=run, env=environment)

  @pytest.mark.thorough
  def test_its_noise_decays_and_its_account_is_exact(self, run):
    rows = harness.rows(run / 'run')
    noise = [float(row['noise_multiplier']) for row in rows]
    np.testing.assert_allclose(np.divide(noise[1:], noise[:-1]), 0.8, rtol=1e-5)
    ledger = accounting.RunLedger.load(run / 'run' / 'certificate' / 'ledger.npz')
    weights = ledger.state_dict()['weights'].reshape(4, 8)
    np.testing.assert_allclose(ledger.state_dict()['noise_multipliers'], noise, rtol=1e-6)
    mu = np.sqrt(((weights / np.array(noise)[:, np.newaxis]) ** 2).sum(axis=0))
    np.testing.assert_allclose(accounting.total_mu(ledger).whole, mu, rtol=1e-6)
    certificate = json.loads((run / 'run' / 'certificate' / 'certificate.json').read_text(encoding='utf-8'))
    assert 0.99 * 4 < certificate['achieved']['epsilon_max'] <= 4
    least, most = re.search(r'multiplier (\S+) to (\S+),', certificate['releases'][0]['how']).groups()
    np.testing.assert_allclose([float(least), float(most)], [noise[3], noise[0]], rtol=1e-4)

  @pytest.mark.thorough
  def test_its_certificate_is_valid_for_who_has_the_file(self, run):
    verified = self._python(run, 'quap_tff.verify', f'--import={self._NAME}', 'run')
    assert verified.returncode == 0 and verified.stdout.startswith('VALID'), verified
    without = self._python(run, 'quap_tff.verify', 'run')
    assert without.returncode == 2 and "Unknown mechanism 'decaying_noise'" in without.stdout

  @pytest.mark.thorough
  def test_it_keeps_the_contract_of_mechanisms(self, run):
    tested = self._python(run, 'pytest', '-q', '-p', 'no:cacheprovider', f'{self._NAME}.py')
    assert tested.returncode == 0 and re.search(r'^1\d passed', tested.stdout, re.MULTILINE), tested.stdout


@pytest.mark.parametrize('name', _OTHERS)
@pytest.mark.thorough
def test_other_choices_train(name, tmp_path, capsys):
  assert harness.main(*harness.TINY, '--rounds=2', *_OTHERS[name], f'--output_dir={tmp_path / "run"}') == 0, name
  assert harness.summary(tmp_path / 'run')['rounds'] == 2
