"""The command file of the table at equal formal ε: its sweeps are right before the first of a thousand runs starts."""

import collections
import json
import os
import re
import sys

import pytest

from experiments import compare
from experiments.sweeps import sweep_runs
from tests import processes
from tests.experiments import harness

_FILE = harness.REPOSITORY / 'docs' / 'results' / 'run.sh'
# Stands for Python: writes its arguments down.
_FAKE = """#!{python}
import json, sys
with open({log!r}, 'a') as f:
  f.write(json.dumps(sys.argv[1:]) + chr(10))
sys.exit({status})
"""


@pytest.fixture(name='call')
def _call(tmp_path):
  """Runs steps of the file; returns the exit status and the arguments of each call of Python."""

  def call(*steps, status=0, features='none'):
    log = tmp_path / 'log'
    log.write_text('')
    fake = tmp_path / 'python'
    fake.write_text(_FAKE.format(python=sys.executable, log=str(log), status=status))
    fake.chmod(0o755)
    path = f'{tmp_path}{os.pathsep}{os.environ["PATH"]}'
    environment = {**os.environ, 'PATH': path, 'DATA': '/data', 'RUNS': str(tmp_path / 'runs'), 'FEATURES': features}
    ended = processes.run([_FILE, *steps], env=environment)
    return ended.returncode, [json.loads(line) for line in log.read_text().splitlines()]

  return call


@pytest.fixture(name='imagenet')
def _imagenet(tmp_path):
  """The network of photographs is there."""
  folder = tmp_path / 'runs' / 'lite0'
  folder.mkdir(parents=True)
  (folder / 'card.json').write_text('{}')


@pytest.mark.thorough
@pytest.mark.slow
def test_the_sweeps_are_right_and_have_the_seeds(call, monkeypatch, imagenet):
  del imagenet
  monkeypatch.chdir(harness.REPOSITORY)
  tunings = 'tune', 'tune_unipen', 'tune_cifar10', 'tune_secret'
  compared = 'mnist', 'writers', 'femnist', 'unipen', 'cifar10', 'secret'
  status, calls = call(*tunings, *compared, 'others', 'documents', 'report')
  assert status == 0
  seeds, bases = collections.defaultdict(set), {}
  for _, module, *arguments in calls:
    if module != 'experiments.sweep':
      continue
    base = arguments[arguments.index('--') + 1 :]
    axes = [argument[len('--vary=') :] for argument in arguments if argument.startswith('--vary=')]
    (folder,) = (argument[len('--output_dir=') :] for argument in arguments if argument.startswith('--output_dir='))
    assert bases.setdefault(folder, base) == base  # A sweep's folder has one set of flags.
    (runs,) = sweep_runs.runs_of(folder, base, [axes])
    for run in runs:
      if not re.search('/tune|/others|/documents', folder):
        setting = {name: value for name, value in run.identity.items() if name != 'seed'}
        seeds[setting['dataset'].partition(':')[0], setting['epsilon'], json.dumps(setting, sort_keys=True)].add(
          run.identity['seed']
        )
  counts = collections.defaultdict(set)
  for (dataset, epsilon, _), found in seeds.items():
    counts[dataset, epsilon].add(len(found))
  five = (('mnist', 3.0), ('mnist_writers', 3.0), ('cifar10', 3.0), ('cifar10', 6.0), ('digits', 3.0))
  assert counts == {**dict.fromkeys(five, {5}), ('femnist', 3.0): {3}, ('unipen', 3.0): {3}}
  assert [module for _, module, *_ in calls if module != 'experiments.sweep'] == [
    *['experiments.reporting.best'] * 4,
    *['experiments.report'] * 9,
  ]


@pytest.mark.parametrize('steps', [(), ('bogus',)])
def test_steps_are_looked_at_before_anything_runs(call, steps):
  assert call(*steps, features='') == (2, [])


def test_the_network_of_the_default_features_is_trained_first(call):
  status, calls = call('writers', features='')
  assert status == 0 and [module for _, module, *_ in calls][:2] == ['experiments.pretrain', 'experiments.sweep']


def test_a_failed_sweep_does_not_stop_the_others_and_an_interrupt_does(call):
  status, calls = call('mnist', status=1)
  assert status == 1 and len(calls) == 3
  status, calls = call('mnist', status=130)
  assert status == 130 and len(calls) == 1


@pytest.mark.parametrize('name, column', [('mnist', 0), ('femnist', 2)])
def test_the_comparison_has_the_pairs_of_this_file(name, column):
  lines = re.findall(r"'(\S+clip=) (\S+) (\S+) ([^\s']+)", _FILE.read_text(encoding='utf-8'))
  *rows, (of_secret, *secret) = lines[:9]  # Those of photographs come after.
  pairs = {method: tuple(map(float, cells[column].split('/'))) for method, *cells in rows}
  found = [pairs[method] for method in (*compare._OURS, *compare._THEIRS)]
  assert of_secret == 'tff_dp_fedavg:clip='
  assert compare.SETTINGS[name].constants == (*found, tuple(map(float, secret[column].split('/'))))
