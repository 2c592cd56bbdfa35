"""Groups of runs made by hand."""

import itertools

import pytest

from tests.experiments.reporting import factory


@pytest.fixture
def groups_of(tmp_path):
  """The groups of runs with these arguments of `factory.write_run`; each call has a folder of its own."""
  numbers = itertools.count()
  return lambda *runs: factory.groups_of(tmp_path / f'groups_{next(numbers)}', *runs)
