"""Tests that a bundle plays the rounds that TFF plays: here, without TFF, and by the newest TensorFlow and Python."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests.quap_tff.bundle import kinds
from tests.quap_tff.bundle import playing

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).absolute().parents[3]
# `make test-bundle` makes it. It takes 1 GB, so no other test does.
NEWEST = ROOT / 'build' / 'bundle_venv' / 'bin' / 'python'
_BLOCKED = """
import runpy, sys
sys.modules['tensorflow_federated'] = None
runpy.run_module(sys.argv.pop(1), None, '__main__')
"""


@pytest.fixture(scope='module')
def exported(tmp_path_factory, context):
  """The folders of all kinds, by kind."""
  found = {}
  for name in kinds.KINDS:
    found[name] = tmp_path_factory.mktemp('kind')
    kinds.export(name, str(found[name]))
  return found


@pytest.mark.parametrize('name', kinds.KINDS)
def test_plays_what_tff_plays(name, exported):
  found = playing.play(str(exported[name]))
  assert found.compared >= 10
  assert found == playing.Comparison(found.compared, [], [], 0.0, True)


def _played(command, exported):
  """The comparisons by kind."""
  names = {os.path.basename(folder): name for name, folder in exported.items()}
  run = subprocess.run(
    [*command, *map(str, exported.values())], cwd=ROOT, capture_output=True, text=True, timeout=600, check=True
  )
  found = json.loads(run.stdout.splitlines()[-1])
  return {names[folder]: playing.Comparison(**one) for folder, one in found.items()}


def test_plays_without_tff(exported):
  few = {name: exported[name] for name in ('independent', 'held', 'quap', 'stock dp_fedavg', 'tff fed_avg')}
  found = _played([sys.executable, '-c', _BLOCKED, playing.__name__], few)
  assert all(one.same_bits and not one.states_differ for one in found.values()) and len(found) == len(few)


@pytest.mark.skipif(not NEWEST.exists(), reason='make test-bundle sets up the newest Python and TensorFlow for it')
def test_plays_in_the_newest_environment(exported, record_property):
  found = _played([str(NEWEST), '-m', playing.__name__], exported)
  for name, one in found.items():
    record_property(name, 'the same bits' if one.same_bits else f'floats within {one.largest:.1g}')
    # Where kernels round updates differently, an integer on the grid may be the next one.
    assert not one.sums_differ and not one.states_differ or 'convolutions' in name, (name, one)
    assert one.largest < 1e-4, (name, one)
  assert found.keys() == exported.keys()
