"""Tests run TFF computations in this process, unless they say otherwise."""

import atexit
import gc
import os
import shutil
import signal
import tempfile

import hypothesis

from tests import light

# Before TensorFlow is loaded: its log of sessions would bury what a failed test says.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

# A shell that starts tests in the background has them ignore SIGINT, and so do the workers that TFF starts. TFF ends
# them by SIGINT and waits for them, which would last for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
  signal.signal(signal.SIGINT, signal.default_int_handler)

# Counters of states (`quap_tff.common.durable`) of tests, and of the processes that they start, are not the user's.
os.environ['XDG_STATE_HOME'] = tempfile.mkdtemp(prefix='states_of_tests_')
atexit.register(shutil.rmtree, os.environ['XDG_STATE_HOME'], ignore_errors=True)

# Properties have the same examples in each run, and no example fails for being slow.
hypothesis.settings.register_profile('tests', derandomize=True, deadline=None)
hypothesis.settings.load_profile('tests')

if light.ON:
  light.install()


def pytest_configure(config):
  """Sets up TensorFlow and TFF wherever tests run; a process that only deals them out to others loads neither."""
  deals_out = config.getoption('dist', 'no') != 'no' and not hasattr(config, 'workerinput')
  if light.ON or deals_out:
    return
  import tensorflow as tf
  import tensorflow_federated as tff

  from quap_tff import runtime

  # TensorFlow makes its pool once, and tests activate runtimes with one to four threads.
  tf.config.threading.set_inter_op_parallelism_threads(4)

  # Also lets go of TFF's own default context now: left to the interpreter's exit, it complains there.
  tff.framework.set_default_context(runtime.InProcessContext(num_threads=2))


def pytest_collection_finish():
  """Spares a tenth of the time: packages and tests stay, and tracing makes many objects that are not garbage."""
  gc.freeze()
  gc.set_threshold(20_000, 20, 10)


def pytest_sessionfinish():
  """Spares some seconds: pytest and Python look for garbage several times as they end."""
  gc.freeze()


def pytest_terminal_summary(terminalreporter):
  if light.ON:
    light.summary(terminalreporter)
