"""Makes a runtime TFF's current execution context for the length of a `with` block."""

import atexit
from collections.abc import Iterator, Sequence
import contextlib
from typing import Callable, Union

from absl import logging
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff.common import array_types
from quap_tff.common import kernels
from quap_tff.runtime import config as config_lib
from quap_tff.runtime import workers
from quap_tff.runtime.in_process import context as in_process
from quap_tff.runtime.values import errors
from quap_tff.runtime.values import traffic
from quap_tff.runtime.values import values


def _config(config: Union[config_lib.RuntimeConfig, str]) -> config_lib.RuntimeConfig:
  if isinstance(config, str):
    return config_lib.RuntimeConfig(kind=config)
  if not isinstance(config, config_lib.RuntimeConfig):
    raise TypeError(
      f'config must be a quap_tff.runtime.RuntimeConfig or the name of a runtime ({", ".join(config_lib.KINDS)}), '
      f'found {type(config).__name__}.'
    )
  return config


def prepare(config: Union[config_lib.RuntimeConfig, str]) -> Sequence[str]:
  """Sets TensorFlow's devices and thread pools for `config`, which TensorFlow allows only before its first use.

  `activate` does it too. Call this first in a program that uses TensorFlow before it activates (to read data, say).
  After TensorFlow's first use the settings stay as they are, and a log line says so.

  Returns:
    The devices that clients take in turn; server computations run on the first. Empty unless the runtime is
    `in_process`.

  Raises:
    errors.DeviceError: If the configuration asks for a GPU and there is none.
  """
  config = _config(config)
  if config.kind != 'in_process':
    return ()
  if config.device == 'cpu':
    _hide_gpus()
  gpus = tf.config.get_visible_devices('GPU') if config.device != 'cpu' else []
  if not gpus:
    if config.device == 'gpu':
      has_cuda = tf.test.is_built_with_cuda()
      build, advice = 'with', 'Check the driver and CUDA_VISIBLE_DEVICES'
      if not has_cuda:
        build, advice = 'without', 'Install a build with CUDA'
      raise errors.DeviceError(
        f'device="gpu" was asked for, but TensorFlow {tf.__version__}, a build {build} '
        f'CUDA, sees no GPU here. {advice}, or use device="cpu" or device="auto".'
      )
    _one_core_per_client(config.resolved_num_threads())
    return ('/device:CPU:0',)
  for gpu in gpus:
    try:
      # Without this, TensorFlow allocates all memory of the GPU at once, even for a small model.
      tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError:
      logging.warning('TensorFlow had already opened %s: memory growth stays as it was.', gpu.name)
  return tuple(f'/device:GPU:{i}' for i in range(len(tf.config.list_logical_devices('GPU'))))


def _hide_gpus() -> None:
  """Keeps TensorFlow from taking all memory of the GPUs, and from evaluating models there."""
  try:
    tf.config.set_visible_devices([], 'GPU')
  except RuntimeError:
    logging.warning('TensorFlow had already opened a GPU, and may use it. Activate the runtime first.')


def _one_core_per_client(num_threads: int) -> None:
  """Gives each operation one thread, and TensorFlow a pool of `num_threads` of them, a core for each client.

  Clients share no data, so running them in parallel scales better than splitting each client's small kernels, and
  threads of both kinds would compete for the cores. A larger pool would hand a client's ops from thread to thread,
  which costs time. The first setting does not depend on `num_threads`: kernels split their sums by it, and results must
  not depend on the number of clients that run at once. A value that the program has set itself stays.
  """
  pools = tf.config.threading
  try:
    if pools.get_intra_op_parallelism_threads() == 0:
      pools.set_intra_op_parallelism_threads(1)
    if pools.get_inter_op_parallelism_threads() == 0:
      pools.set_inter_op_parallelism_threads(num_threads)
  except RuntimeError:
    logging.info(
      'TensorFlow was in use before the runtime was activated, so its thread pools stay as they were. Activate first,'
      ' with the largest num_threads, to give each client a core of its own: that is faster, and results are the same.'
    )


def _context(config: config_lib.RuntimeConfig) -> tff.program.FederatedContext:
  if config.kind == 'in_process':
    if said := kernels.late_setting():
      logging.log_first_n(logging.WARNING, said, 1)
    return in_process.InProcessContext(config.resolved_num_threads(), prepare(config), config.clients_per_call)
  if config.kind == 'native':
    return workers.Worker()
  return workers.WorkersContext(config.num_workers)


@contextlib.contextmanager
def activate(
  config: Union[config_lib.RuntimeConfig, str] = config_lib.RuntimeConfig(),
) -> Iterator[tff.program.FederatedContext]:
  """Runs TFF computations called in the `with` block, on the calling thread, where `config` says.

  Activate `in_process` before the program builds a model or reads a dataset: TensorFlow's thread pools and memory
  growth are fixed by then. Whatever ends the block (its end, an error, Ctrl-C) ends the runtime's threads and
  processes; so do the interpreter's exit and, for processes, a kill of this program.

  Args:
    config: What to run on, or the name of a runtime: `activate('native')` is TFF's own worker, ended with the block.

  Yields:
    The execution context. An `in_process` one has `statistics`.

  Raises:
    TypeError: If `config` is neither a configuration nor a name.
    ValueError: If it is the name of no runtime.
    errors.DeviceError: If a GPU is asked for and there is none.
    errors.WorkerError: If a worker cannot be started; it names the worker.
  """
  # Closed after TFF's stack has let go of it, also if the block raises.
  with contextlib.closing(_context(_config(config))) as context:
    with tff.framework.get_context_stack().install(context):
      yield context


def client_values(
  make: Callable[[int], array_types.Structure], clients: Union[Sequence[int], np.ndarray]
) -> Sequence[array_types.Structure]:
  """A value for a client-placed argument: `make(client)` for each of `clients`.

      output = process.next(state, runtime.client_values(client_data, cohort))

  Under an `in_process` context the values are made when each client's turn comes, on the calling thread, and are not
  kept. So a large cohort's data need not be in memory all at once. A round with two dependent levels of aggregation may
  make a client's value twice, so `make` must return the same each time. Any other context gets a list, since TFF's
  contexts accept nothing else.

  A sequence may be a list of its elements. It costs less to make than a dataset, which small clients notice.
  """
  if isinstance(tff.framework.get_context_stack().current, in_process.InProcessContext):
    return values.MadeOnDemand(make, clients)
  return [make(client) for client in clients]


@contextlib.contextmanager
def measure_traffic() -> Iterator[traffic.TrafficMeasurement]:
  """Measures what computations called in the `with` block move between server and clients (see `traffic`).

      with runtime.measure_traffic() as measured:
        output = process.next(state, client_data)
      measured.traffic  # Traffic(down_bytes_per_client, up_bytes_per_client, clients)

  Yields:
    A `Measurement`. Its `traffic` is that of the last computation called in the block, and stays None under any
    context but an `in_process` one: only that one sees the values.
  """
  context = tff.framework.get_context_stack().current
  if isinstance(context, in_process.InProcessContext):
    with context.measure_traffic() as measurement:
      yield measurement
  else:
    yield traffic.TrafficMeasurement()


@atexit.register
def _let_go_of_default_context() -> None:
  """TFF's own default context complains if it lasts until the interpreter has taken modules apart."""
  tff.framework.set_default_context(in_process.InProcessContext(num_threads=1))
