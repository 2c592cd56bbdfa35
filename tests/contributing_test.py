"""The examples of CONTRIBUTING.md: each adds a choice from outside, which then trains, is reported and is drawn."""

import json
import re

import pytest

from data import cohorts
from data import datasets
from data import features
from experiments import report
from experiments.command import run as run_lib
from quap_tff import methods
from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import robust
from tests.experiments import harness

pytestmark = pytest.mark.slow

_REGISTRIES = (
  methods.METHODS,
  clip_rules.RULES,
  robust.AGGREGATORS,
  weight_rules.RULES,
  cohorts.PARTICIPATION_MODELS,
  datasets.DATASETS,
  features.FEATURES,
)
_OTHERS = {
  'clip': ['--clip=median:first=2', '--epsilon=1'],
  'aggregator': ['--algorithm=fedavg', '--aggregator=winsorized_mean:share=0.3', '--malicious=sign_flip:share=0.2'],
  'weights': ['--algorithm=certified:weights=half', '--participation=shifts'],
  'data': ['--algorithm=fedavg', '--dataset=stripes', '--features=row_sums', '--model=linear_features'],
}


@pytest.fixture(scope='module', autouse=True)
def added():
  """The examples' choices, for this module only."""
  before = [dict(registry) for registry in _REGISTRIES]
  text = (harness.REPOSITORY / 'CONTRIBUTING.md').read_text(encoding='utf-8')
  for block in re.findall(r'```python\n(.*?)```', text, re.DOTALL):
    exec(block, {})  # Each block must run by itself.
  yield
  for registry, kept in zip(_REGISTRIES, before):
    registry.clear()
    registry.update(kept)


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
  """A run of the added method, and one of quap."""
  folder = tmp_path_factory.mktemp('runs')
  for name, spec in (('own', 'decaying_dp:clip=0.5'), ('quap', 'quap')):
    arguments = ['--rounds=3', '--epsilon=2', f'--algorithm={spec}', f'--output_dir={folder / name}']
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

  def test_it_is_reported_and_drawn(self, runs, tmp_path, capsys):
    assert report.main(['report', str(runs), f'--output_dir={tmp_path / "report"}']) == 0
    capsys.readouterr()
    assert 'decaying_dp' in (tmp_path / 'report' / 'report.md').read_text()
    assert list((tmp_path / 'report' / 'figures').glob('*.png'))


@pytest.mark.parametrize('name', _OTHERS)
def test_other_choices_train(name, tmp_path, capsys):
  assert harness.main(*harness.TINY, '--rounds=2', *_OTHERS[name], f'--output_dir={tmp_path / "run"}') == 0, name
  assert harness.summary(tmp_path / 'run')['rounds'] == 2
