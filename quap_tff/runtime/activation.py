"""Makes a runtime TFF's current execution context for the length of a `with` block."""

import contextlib
from typing import Any, Iterator

import tensorflow_federated as tff

from quap_tff.runtime import config as config_lib
from quap_tff.runtime import devices
from quap_tff.runtime import in_process


def _in_process(config: config_lib.RuntimeConfig) -> in_process.InProcessContext:
  return in_process.InProcessContext(config.resolved_num_threads(), devices.choose_devices(config.device))


@contextlib.contextmanager
def activate(config: config_lib.RuntimeConfig = config_lib.RuntimeConfig()) -> Iterator[Any]:
  """Installs the runtime that `config` describes on TFF's context stack.

  Args:
    config: What to run on.

  Yields:
    The execution context. An in-process one has `statistics`.
  """
  with contextlib.ExitStack() as stack:
    context = stack.enter_context(contextlib.closing(_in_process(config)))
    stack.enter_context(tff.framework.get_context_stack().install(context))
    yield context
