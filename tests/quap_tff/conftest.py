"""What tests of the package share."""

import pytest

from quap_tff import runtime


@pytest.fixture(scope='module')
def context():
  """The runtime on the processor, active for a module's tests."""
  with runtime.activate(runtime.RuntimeConfig(device='cpu')) as active:
    yield active
