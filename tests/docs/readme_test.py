"""Runs the Python blocks of README.md and docs/usage.md, each by itself, as a reader would who copies one."""

import pathlib
import re

import pytest

pytest.importorskip('tensorflow_federated', reason='The code of the pages trains.')

ROOT = pathlib.Path(__file__).absolute().parents[2]
BLOCKS = [
  block
  for page in ('README.md', 'docs/usage.md')
  for block in re.findall(r'^```python\n(.*?)^```', (ROOT / page).read_text(encoding='utf-8'), re.MULTILINE | re.DOTALL)
]


@pytest.mark.slow
@pytest.mark.parametrize('number', range(len(BLOCKS)))
def test_block_runs_by_itself(number: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
  monkeypatch.chdir(tmp_path)
  exec(compile(BLOCKS[number], f'block {number} of README.md and docs/usage.md', 'exec'), {'__name__': '__main__'})


def test_there_are_blocks():
  assert len(BLOCKS) >= 3
