"""Tests that a bundle plays the rounds that TFF plays: here, without TFF, and by the newest TensorFlow and Python."""

import functools
import json
import os
import pathlib
import sys

import pytest

from tests import processes
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


# A run of ours and one of TFF's.
_FEW = ('independent', 'tff fed_avg')


@pytest.fixture(scope='module')
def exported(tmp_path_factory, context):
  """A function from a kind to its folder, which is written when it is first asked for."""

  @functools.cache
  def folder(name):
    path = tmp_path_factory.mktemp('kind')
    kinds.export(name, str(path))
    return path

  return folder


@pytest.mark.thorough  # Those of `_FEW` are played without TFF, too.
@pytest.mark.parametrize('name', kinds.KINDS)
def test_plays_what_tff_plays(name, exported):
  _check_same(playing.play(str(exported(name))))


def _check_same(found):
  assert found.compared >= 10
  assert found == playing.Comparison(found.compared, [], [], 0.0, True)


def _played(command, exported):
  """The comparisons by kind."""
  names = {os.path.basename(folder): name for name, folder in exported.items()}
  run = processes.run([*command, *exported.values()], cwd=ROOT)
  assert not run.returncode, run.stderr
  found = json.loads(run.stdout.splitlines()[-1])
  return {names[folder]: playing.Comparison(**one) for folder, one in found.items()}


def test_plays_without_tff(exported):
  found = _played([sys.executable, '-c', _BLOCKED, playing.__name__], {name: exported(name) for name in _FEW})
  assert found.keys() == set(_FEW)
  for one in found.values():
    _check_same(one)


@pytest.mark.skipif(not NEWEST.exists(), reason='make test-bundle sets up the newest Python and TensorFlow for it')
def test_plays_in_the_newest_environment(exported, record_property):
  folders = {name: exported(name) for name in kinds.KINDS}
  found = _played([str(NEWEST), '-m', playing.__name__], folders)
  for name, one in found.items():
    record_property(name, 'the same bits' if one.same_bits else f'floats within {one.largest:.1g}')
    # Where kernels round updates differently, an integer on the grid may be the next one.
    assert not one.sums_differ and not one.states_differ or 'convolutions' in name, (name, one)
    assert one.largest < 1e-4, (name, one)
  assert found.keys() == folders.keys()
