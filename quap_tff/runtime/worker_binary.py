"""TFF's worker as a command line, found without importing TFF."""

import importlib.util
import os


def path() -> str:
  """Where TFF installs its worker.

  Raises:
    FileNotFoundError: If TFF or the worker in it is missing; the message says where it was expected.
  """
  spec = importlib.util.find_spec('tensorflow_federated')
  if spec is None:
    raise FileNotFoundError(
      'TensorFlow Federated is not installed, and its worker is part of it. Install it with '
      '`pip install --no-deps -r requirements.txt`.'
    )
  found = os.path.join(spec.submodule_search_locations[0], 'data', 'worker_binary')
  if not os.path.isfile(found):
    raise FileNotFoundError(f"TFF's worker is missing at {found}, where TFF 0.87 installs it.")
  return found


def command(port: int) -> list[str]:
  """The command line of a worker that listens on `port` of all interfaces."""
  return [path(), f'--port={port}', '--max_concurrent_computation_calls=-1']
