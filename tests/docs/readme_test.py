"""Runs the Python blocks of README.md and docs/usage.md, each by itself, as a reader would who copies one.

The first one runs as a program.
"""

import os
import pathlib
import re
import sys

import pytest

from tests import processes

pytest.importorskip('tensorflow_federated', reason='The code of the pages trains.')

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
def test_the_first_block_prints_the_report_alone(tmp_path: pathlib.Path):
  environment = {**os.environ, 'PYTHONPATH': os.pathsep.join([str(ROOT), *sys.path])}
  environment.pop('TF_CPP_MIN_LOG_LEVEL', None)
  done = processes.run([sys.executable, '-c', BLOCKS[0]], cwd=tmp_path, env=environment)
  assert (done.returncode, done.stderr) == (0, '') and done.stdout.startswith('Noise covers every layer')


def test_there_are_blocks():
  assert len(BLOCKS) >= 3
