"""What tests of the package share."""

import pytest

from quap_tff import runtime
from tests import light
from tests.quap_tff import remembered_curves
from tests.quap_tff import without_noise


@pytest.fixture(scope='module', autouse=True)
def loops():
  """Whatever a test computes outside of a graph takes compiled loops, which give the same values."""
  if light.ON:
    yield
    return
  from tests.quap_tff import compiled_loops

  with compiled_loops.used():
    yield


@pytest.fixture(scope='module', autouse=True)
def curves():
  with remembered_curves.used():
    yield


@pytest.fixture(scope='module')
def context():
  """The runtime on two threads of the processor, active for a module's tests."""
  with runtime.activate(runtime.RuntimeConfig(device='cpu', num_threads=2)) as active:
    yield active


@pytest.fixture
def undrawn():
  """Certified rounds without noise, for accounts, which do not depend on it: drawing takes most of a round's time."""
  with without_noise.used():
    yield
