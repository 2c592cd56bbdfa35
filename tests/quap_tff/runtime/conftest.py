"""What tests of the runtimes share."""

import pytest

from quap_tff.common import lazy

tensorflow_blocks = lazy.module('quap_tff.runtime.in_process.tensorflow_blocks')  # It loads TensorFlow.


@pytest.fixture
def calls(monkeypatch):
  """A list of the `GraphFunction`s called, in their order."""
  called, call = [], tensorflow_blocks.GraphFunction.__call__

  def counted(function, arguments, device):
    called.append(function)  # Several threads call.
    return call(function, arguments, device)

  monkeypatch.setattr(tensorflow_blocks.GraphFunction, '__call__', counted)
  return called
