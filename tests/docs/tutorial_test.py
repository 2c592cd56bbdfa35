"""Runs docs/tutorial.ipynb, and checks that the outputs in the file are still what it prints.

`make tutorial` runs it and writes its outputs into the file.
"""

import os
import pathlib
import re
import sys

import nbclient
import nbformat
import pytest

from tests import processes

ROOT = pathlib.Path(__file__).absolute().parents[2]
NOTEBOOK = ROOT / 'docs' / 'tutorial.ipynb'


def _code_cells(notebook):
  return [cell for cell in notebook.cells if cell.cell_type == 'code']


def _text(cell):
  return ''.join(output.text for output in cell.outputs if output.output_type == 'stream')


def _pattern(cell):
  """What a cell prints, without digests and numbers, which depend on the noise and the processor; and its plots."""
  # Somebody may edit the sources while the test runs.
  lines = [line for line in _text(cell).splitlines() if not line.startswith('Warning: The run was made by other code')]
  words = re.sub(r'[0-9a-f]{64}|\d+(\.\d+)?(e-?\d+)?', '#', '\n'.join(lines))
  return ' '.join(words.split()), sum('image/png' in output.get('data', {}) for output in cell.outputs)


@pytest.fixture(scope='module', name='kept')
def _kept():
  return nbformat.read(NOTEBOOK, as_version=4)


class TestTutorial:
  def test_reads_without_running(self, kept):
    nbformat.validate(kept)
    cells = _code_cells(kept)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), 'Run `make tutorial`.'
    assert not [o for cell in cells for o in cell.outputs if o.output_type == 'error' or o.get('name') == 'stderr']
    assert sum(_pattern(cell)[1] for cell in cells) == 3
    plot = next(cell for cell in cells if 'ledger.epsilon' in cell.source)
    assert 'Nominal ε by participation: no guarantee' in plot.source and _pattern(plot)[1] == 1
    verdicts = [_text(cell).split('\n')[0].strip() for cell in cells if 'quap_tff.verify' in cell.source]
    assert verdicts == ['VALID', 'INVALID']

  def test_is_small_and_names_no_folder_of_a_machine(self):
    content = NOTEBOOK.read_text(encoding='utf-8')
    assert len(content) < 200_000
    assert not re.findall(r'(?<![\w.:/])/(?:home|root|tmp|work|usr|var)\b[^"\s]*|site-packages', content)

  @pytest.mark.thorough
  def test_runs_and_prints_what_the_file_holds(self, kept, tmp_path, monkeypatch):
    monkeypatch.setenv('PYTHONPATH', os.pathsep.join([str(ROOT), *sys.path]))
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    monkeypatch.setenv('IPYTHONDIR', str(tmp_path / 'ipython'))
    monkeypatch.setenv('JUPYTER_PLATFORM_DIRS', '1')
    run = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(
      run,
      timeout=processes.DEADLINE_SECONDS,
      kernel_name='python3',
      resources={'metadata': {'path': str(NOTEBOOK.parent)}},
    ).execute()
    for before, now in zip(_code_cells(kept), _code_cells(run)):
      assert _pattern(now) == _pattern(before), 'If the change is meant, run `make tutorial`.'
