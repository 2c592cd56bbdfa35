"""Runs the Python blocks of README.md, each by itself, as a reader would who copies one."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).absolute().parents[2]
BLOCKS = re.findall(
  r'^```python\n(.*?)^```', (ROOT / 'README.md').read_text(encoding='utf-8'), re.MULTILINE | re.DOTALL
)


@pytest.mark.slow
@pytest.mark.parametrize('number', range(len(BLOCKS)))
def test_block_runs_by_itself(number: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
  monkeypatch.chdir(tmp_path)
  exec(compile(BLOCKS[number], f'{ROOT}/README.md, block {number}', 'exec'), {'__name__': '__main__'})


def test_there_are_blocks():
  assert len(BLOCKS) >= 3
