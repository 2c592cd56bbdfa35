"""The in-process runtime gives what TFF's own context gives, for computations of every kind."""

import pytest

from quap_tff import runtime
from tests.quap_tff.runtime import cases
from tests.quap_tff.runtime import comparison


@pytest.fixture(scope='module')
def native():
  with runtime.activate(runtime.RuntimeConfig('native')) as context:
    yield context


@pytest.mark.parametrize('name', sorted(cases.CASES))
def test_in_process_gives_what_tffs_context_gives(native, name):
  del native  # The current context outside the block below.
  expected = cases.CASES[name]()
  with runtime.activate(runtime.RuntimeConfig('in_process', device='cpu', num_threads=2)):
    found = cases.CASES[name]()
  comparison.assert_same(found, expected, tolerance=2e-5)
