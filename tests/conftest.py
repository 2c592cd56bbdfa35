"""Tests run TFF computations in this process, unless they say otherwise."""

import gc
import os
import signal

import pytest

from tests import light

# Before TensorFlow is loaded: its log of sessions would bury what a failed test says.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

# A shell that starts tests in the background has them ignore SIGINT, and so do the workers that TFF starts. TFF ends
# them by SIGINT and waits for them, which would last for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
  signal.signal(signal.SIGINT, signal.default_int_handler)

if light.ON:
  light.install()
else:
  import tensorflow as tf
  import tensorflow_federated as tff

  from quap_tff import runtime

  # TensorFlow makes its pool once, and tests activate runtimes with one to four threads.
  tf.config.threading.set_inter_op_parallelism_threads(4)

  # Also lets go of TFF's own default context now: left to the interpreter's exit, it complains there.
  tff.framework.set_default_context(runtime.InProcessContext(num_threads=2))

# Files that take longest, by measured time, some with few tests. Left to the end, they would be waited for.
_FIRST = (
  'tests/contracts/registered_test.py',
  'tests/docs/tutorial_test.py',
  'tests/experiments/command_test.py',
  'tests/experiments/audit_test.py',
  'tests/experiments/certified_test.py',
  'tests/quap_tff/federated/forms_test.py',
  'tests/quap_tff/auditing/distinguisher_test.py',
  'tests/quap_tff/plans/leaving_test.py',
  'tests/quap_tff/runtime/values/secure_intrinsics_test.py',
  'tests/experiments/running/final_summary_test.py',
  'tests/experiments/demo_test.py',
  'tests/quap_tff/runtime/workers_test.py',
)


def pytest_collection_finish():
  """Spares a tenth of the time: packages and tests stay, and tracing makes many objects that are not garbage."""
  gc.freeze()
  gc.set_threshold(20_000, 20, 10)


def pytest_sessionfinish():
  """Spares some seconds: pytest and Python look for garbage several times as they end."""
  gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
  """Under --dist=loadfile, starts with `_FIRST`; pytest-xdist would start with the files that have the most tests."""
  if config.getvalue('dist') != 'loadfile':
    return None
  from xdist import scheduler  # pylint: disable=g-import-not-at-top

  class SlowFirst(scheduler.LoadFileScheduling):
    def _assign_work_unit(self, node):
      for path in reversed(_FIRST):
        if path in self.workqueue:
          self.workqueue.move_to_end(path, last=False)
      super()._assign_work_unit(node)

  return SlowFirst(config, log)


def pytest_terminal_summary(terminalreporter):
  if light.ON:
    light.summary(terminalreporter)
