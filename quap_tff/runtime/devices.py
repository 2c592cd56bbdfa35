"""Which devices clients run on, and the process-wide TensorFlow settings that go with them.

The code for GPUs has never run on one: no machine with a GPU was available.

TensorFlow fixes both memory growth and thread pools when it first touches a device. Activating the runtime sets both if
it happens before anything builds a model. Otherwise they stay as they are, and a log line says so.
"""

import os

from absl import logging
import tensorflow as tf

from quap_tff.runtime import errors


def choose_devices(device: str) -> tuple[str, ...]:
  """Returns the names of the devices that clients take in turn.

  Args:
    device: 'cpu', 'gpu' or 'auto' (GPUs if there are any, else the CPU).

  Returns:
    Full device names, at least one; the first is also where server computations run.

  Raises:
    errors.DeviceError: If 'gpu' is asked for and TensorFlow sees none.
  """
  gpus = tf.config.list_physical_devices('GPU') if device != 'cpu' else []
  if not gpus:
    if device == 'gpu':
      has_cuda = tf.test.is_built_with_cuda()
      advice = 'Check the driver and CUDA_VISIBLE_DEVICES' if has_cuda else 'Install a build with CUDA'
      raise errors.DeviceError(
        f'device="gpu" was asked for, but TensorFlow {tf.__version__}, a build {"with" if has_cuda else "without"} '
        f'CUDA, sees no GPU here. {advice}, or use device="cpu" or device="auto".'
      )
    return ('/device:CPU:0',)
  for gpu in gpus:
    try:
      # Without this, TensorFlow allocates all memory of the GPU at once, whatever the model needs.
      tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError:
      logging.warning('TensorFlow had already opened %s: memory growth stays as it was.', gpu.name)
  return tuple(f'/device:GPU:{i}' for i in range(len(tf.config.list_logical_devices('GPU'))))


def one_core_per_client(num_threads: int) -> None:
  """Gives each operation one thread, so that parallelism comes from the clients. Call it before any use of TensorFlow.

  Clients share no data, so running them in parallel scales better than splitting each client's small kernels, and
  threads of both kinds would compete for the cores. It is set however many clients run at once: kernels split their
  sums by the number of threads, and results must not depend on how many clients run together. A value that the program
  has set itself stays.

  Args:
    num_threads: How many clients run at once.
  """
  try:
    if tf.config.threading.get_intra_op_parallelism_threads() == 0:
      tf.config.threading.set_intra_op_parallelism_threads(1)
    if num_threads > (os.cpu_count() or 1) and tf.config.threading.get_inter_op_parallelism_threads() == 0:
      tf.config.threading.set_inter_op_parallelism_threads(num_threads)
  except RuntimeError:
    logging.info(
      'TensorFlow was in use before the runtime was activated, so its thread pools stay as they were. Activate first'
      ' to give each client a core of its own: that is faster and gives the same results for any number of threads.'
    )


def is_gpu(device: str) -> bool:
  return 'GPU' in device.upper()


def is_host(device: str) -> bool:
  """Whether eager values without a device of their own lie there already."""
  return device.upper().endswith('CPU:0')
