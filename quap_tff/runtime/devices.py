"""Which devices clients run on, and the process-wide TensorFlow settings that go with them.

TensorFlow fixes both memory growth and thread pools when it first touches a device. Activate the runtime before
anything builds a model and both are set; afterwards they stay as they are, and a log line says so.
"""

from typing import Tuple

from absl import logging
import tensorflow as tf

from quap_tff.runtime import errors


def choose_devices(device: str) -> Tuple[str, ...]:
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
      built = 'is a build with CUDA' if tf.test.is_built_with_cuda() else 'is a build without CUDA'
      raise errors.DeviceError(
          f'device="gpu" was asked for, but TensorFlow {tf.__version__} ({built}) sees no GPU here. Check the driver and'
          ' CUDA_VISIBLE_DEVICES, or use device="cpu" or device="auto".'
      )
    return ('/device:CPU:0',)
  for gpu in gpus:
    try:
      # Without it TensorFlow takes the whole card at once, whatever the model needs.
      tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError:
      logging.warning('TensorFlow had already opened %s: memory growth stays as it was.', gpu.name)
  return tuple(f'/device:GPU:{i}' for i in range(len(tf.config.list_logical_devices('GPU'))))


def is_gpu(device: str) -> bool:
  return 'GPU' in device.upper()
