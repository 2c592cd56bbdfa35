"""A folder is made once, and each test gets a copy."""

import pathlib
import shutil

import pytest

from tests.quap_tff.certificates import made


@pytest.fixture(scope='session', name='originals')
def _originals(tmp_path_factory):
  """`server`, of a run with a trusted server; `held`, of one without, with colluders and clients who stay away.

  `own_updates` is of one whose clients brought updates that a program of the issuer's own had computed.
  """
  path = tmp_path_factory.mktemp('certified')
  made.folder(path / 'server')
  made.folder(path / 'held', made.plan(dict(attendance=made.ATTENDANCE, colluders=[1, 3]), **made.HELD))
  made.folder(path / 'own_updates', made.plan(dict(own_updates=True)))
  return path


@pytest.fixture
def certified(originals, tmp_path):
  return pathlib.Path(shutil.copytree(originals / 'server', tmp_path / 'certified'))


@pytest.fixture
def held(originals, tmp_path):
  return pathlib.Path(shutil.copytree(originals / 'held', tmp_path / 'held'))


@pytest.fixture
def own_updates(originals, tmp_path):
  return pathlib.Path(shutil.copytree(originals / 'own_updates', tmp_path / 'own_updates'))
