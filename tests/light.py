"""Tests without TensorFlow: `make test-light`, or pytest where the packages of `_MISSING` are not installed.

There, a test is skipped when it asks for one of these packages, and a file when its imports do. So a file or test that
asks for none runs, and no list says which these are. For `ESSENTIAL` files this is not enough: if the accounting began
to import TensorFlow, its tests would be skipped. There, only what a test's own lines ask for is skipped; otherwise the
test fails, because the library asked. The file itself must be imported without TensorFlow.
"""

import collections
import importlib.abc
import importlib.util
import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).absolute().parents[1]

# Files, or folders of them, that must run wherever `pip install .` works. tests/install_test.py imports all of them.
ESSENTIAL = (
  'tests/quap_tff/account_test.py',
  'tests/quap_tff/accounting/',
  'tests/quap_tff/common/checks_test.py',
  'tests/quap_tff/common/files_test.py',
  'tests/quap_tff/common/registry_test.py',
  'tests/quap_tff/common/numbers/rounding_test.py',
  'tests/quap_tff/gate_test.py',
  'tests/quap_tff/mechanisms/certified/config_test.py',
  'tests/quap_tff/mechanisms/noise/correlation_test.py',
  'tests/quap_tff/mechanisms/noise/held_noise_test.py',
  'tests/quap_tff/mechanisms/held/config_test.py',
  'tests/quap_tff/mechanisms/certified/own_bounds_test.py',
  'tests/quap_tff/mechanisms/certified/planning_test.py',
  'tests/quap_tff/mechanisms/certified/population_test.py',
  'tests/quap_tff/mechanisms/certified/privacy_filter_test.py',
  'tests/quap_tff/mechanisms/noise/published_noise_test.py',
)

# Modules that the whole environment has (requirements.txt) and `pip install .` does not bring.
_TRAINING = ('tensorflow', 'tensorflow_federated', 'tensorflow_privacy', 'grpc')
_EXPERIMENTS = ('PIL', 'filelock', 'kymatio', 'matplotlib', 'pandas', 'psutil', 'sklearn', 'tqdm')
_NOTEBOOKS = ('nbclient', 'nbformat')
_MISSING = frozenset(
  name for name in (*_TRAINING, *_EXPERIMENTS, *_NOTEBOOKS) if importlib.util.find_spec(name) is None
)
ON = 'tensorflow_federated' in _MISSING

_CODE = ('README.md', 'data/', 'docs/', 'experiments/', 'quap_tff/', 'tests/')


class _Skips(importlib.abc.MetaPathFinder):
  """Skips the test, or the file, that imports a missing module."""

  def find_spec(self, fullname, path=None, target=None):
    if fullname not in _MISSING:
      return None
    callers = list(_callers())
    ours = [caller for caller in callers if caller[0].startswith(_CODE) and caller[0] != 'quap_tff/common/lazy.py']
    if not ours or not callers[0][0].startswith(_CODE):
      return None  # Python goes on to say that there is no such module, and a library may do without.
    essential = [function for file, function in ours if file.startswith(ESSENTIAL)]
    if essential and ('<module>' in essential or not ours[0][0].startswith('tests/')):
      return None
    test = next((file for file, _ in ours if file.endswith('_test.py')), 'all tests')
    raise pytest.skip.Exception(f'{ours[0][0]} asks for {fullname}, for {test}', allow_module_level=True)


def _callers():
  """File, relative to the project, and function of each caller of an import, innermost first."""
  frame = sys._getframe()
  while frame is not None:
    name = frame.f_globals.get('__name__', '')
    if name != __name__ and name.partition('.')[0] != 'importlib':
      yield os.path.relpath(frame.f_code.co_filename, ROOT).replace(os.sep, '/'), frame.f_code.co_name
    frame = frame.f_back


def install() -> None:
  sys.meta_path.insert(0, _Skips())


def summary(reporter) -> None:
  """Says at the end how much has run."""
  counts = {outcome: collections.Counter() for outcome in ('ran', 'skipped')}
  for outcome, reports in reporter.stats.items():
    for report in reports:
      if outcome in ('passed', 'failed', 'error', 'skipped'):
        counts['skipped' if outcome == 'skipped' else 'ran'][report.nodeid.partition('::')[0]] += 1
  ran, skipped = counts['ran'], counts['skipped']
  reporter.write_line(
    f'Without TensorFlow: {len(ran.keys() - skipped)} files ran whole, {len(ran.keys() & skipped)} in part and '
    f'{len(skipped.keys() - ran)} not at all. pytest -rs says who asked for which package.'
  )
