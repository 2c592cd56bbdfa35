"""What tests of the package share."""

import pytest

from quap_tff import runtime
from quap_tff.common.lazy import tf
from quap_tff.common.numbers import chacha20
from quap_tff.mechanisms.noise import integer_noise
from tests import light


@pytest.fixture(scope='module', autouse=True)
def loops():
  """Whatever a test computes outside of a graph takes compiled loops: the same values in a third of the time."""
  if light.ON:
    yield
    return
  from tests.quap_tff import compiled_loops

  with compiled_loops.used():
    yield


@pytest.fixture(scope='module')
def context():
  """The runtime on two threads of the processor, active for a module's tests."""
  with runtime.activate(runtime.RuntimeConfig(device='cpu', num_threads=2)) as active:
    yield active


@pytest.fixture
def undrawn(monkeypatch):
  """Certified rounds without noise, for accounts, which do not depend on it: drawing takes most of a round's time."""
  monkeypatch.setattr(chacha20, 'derived_key', lambda key, nonce: key)
  monkeypatch.setattr(integer_noise.Sampler, 'draw', lambda self, key, count, *_, **__: tf.zeros([count], tf.int64))
