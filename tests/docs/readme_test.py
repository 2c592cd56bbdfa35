"""Runs the Python blocks of README.md and docs/usage.md, each by itself, as a reader would who copies one.

The first one runs as a program.
"""

import os
import pathlib
import re
import sys

import numpy as np
import pytest

import quap_tff
from tests import processes

tff = pytest.importorskip('tensorflow_federated', reason='The code of the pages trains.')
tf = pytest.importorskip('tensorflow')

ROOT = pathlib.Path(__file__).absolute().parents[2]
BLOCKS = [
  block
  for page in ('README.md', 'docs/usage.md')
  for block in re.findall(r'^```python\n(.*?)^```', (ROOT / page).read_text(encoding='utf-8'), re.MULTILINE | re.DOTALL)
]


@pytest.mark.slow
@pytest.mark.parametrize('number', range(1, len(BLOCKS)))
def test_block_runs_by_itself(number: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
  monkeypatch.chdir(tmp_path)
  exec(compile(BLOCKS[number], f'block {number} of README.md and docs/usage.md', 'exec'), {'__name__': '__main__'})


@pytest.mark.slow
def test_the_first_block_prints_the_report_and_leaves_a_certificate(tmp_path: pathlib.Path):
  environment = {**os.environ, 'PYTHONPATH': os.pathsep.join([str(ROOT), *sys.path])}
  environment.pop('TF_CPP_MIN_LOG_LEVEL', None)
  done = processes.run([sys.executable, '-c', BLOCKS[0]], cwd=tmp_path, env=environment)
  assert (done.returncode, done.stderr) == (0, '') and done.stdout.startswith('Noise covers every layer')
  assert not quap_tff.certificates.verify(str(tmp_path / 'runs' / 'mine' / 'certificate')).problems
  code = [line for line in BLOCKS[0].splitlines() if line]
  assert len(code) <= 15, 'A whole run is shown in at most fifteen lines.'


def _versions_of_the_diff() -> tuple[str, str]:
  """The program before and after the change that README.md shows."""
  (diff,) = re.findall(r'^```diff\n(.*?)^```', (ROOT / 'README.md').read_text(encoding='utf-8'), re.M | re.S)
  lines = diff.splitlines()
  before, after = (''.join(f'{line[1:]}\n' for line in lines if line[0] in marks) for marks in (' -', ' +'))
  return before, after


@pytest.mark.slow
@pytest.mark.parametrize('version', [pytest.param('before', marks=pytest.mark.thorough), 'after'])
def test_the_diff_leads_from_one_program_that_trains_to_another(version: str):
  before, after = _versions_of_the_diff()
  batch = {'x': np.zeros([5, 8, 8, 1], np.float32), 'y': np.zeros([5], np.int32)}
  names = {
    'quap_tff': quap_tff,
    'tff': tff,
    'model_fn': quap_tff.models.build_model_fn('logistic_regression', (8, 8, 1), 10),
    'sgd': tff.learning.optimizers.build_sgdm(0.1),
    'cohorts': [[0, 3], [1, 3]],
    'datasets': [tf.data.Dataset.from_tensors(batch) for _ in range(4)],
  }
  with quap_tff.runtime.activate():
    exec(before if version == 'before' else after, names)
  trained = names['process'].get_model_weights(names['state']).trainable
  assert max(np.abs(tensor).max() for tensor in trained) > 0
  if version == 'after':
    assert int(names['metrics']['aggregator']['round']) == 2


def test_there_are_blocks():
  assert len(BLOCKS) >= 3
