"""`mnist_writers`: MNIST with its real writers as clients, a natural federation.

Each MNIST digit is a digit of NIST Special Database 19, whose writers are known. `mnist_writers.npz` holds the writer
of each row of `mnist.npz`. MNIST's test digits are by writers of their own, so test accuracy here is accuracy on
people whom no client has met.
"""

import dataclasses
import os

import numpy as np

from data import arrays
from data import errors
from data import federation
from data.datasets import base
from data.datasets import mnist

FILENAME = 'mnist_writers.npz'


@dataclasses.dataclass(frozen=True)
class MnistWriters(base.Dataset):
  """float32[28, 28, 1], 1.0 = ink; 539 training writers in the published MNIST."""

  def load(self, request):
    if request.data_dir is None:
      raise errors.DataFileError(
          f'mnist_writers needs {FILENAME} (the writer of each row of {mnist.FILENAME}), which no loader downloads. '
          f'Put {FILENAME} and {mnist.FILENAME} into a folder and give that folder as --data_dir.'
      )
    path = os.path.join(request.data_dir, FILENAME)
    writers = arrays.read_npz(path, ['writer_train'], f'the writers of {mnist.FILENAME}')['writer_train']
    pool = mnist.Mnist().read(request.data_dir)
    if writers.shape != pool.train_y.shape or writers.dtype.kind not in 'iu':
      raise errors.DataFileError(
          f'{path}: expected writer_train to be {len(pool.train_y)} integers, one for each row of {mnist.FILENAME}, '
          f'found {writers.dtype}{list(writers.shape)}.'
      )
    names, owners = np.unique(writers, return_inverse=True)
    rows = np.split(np.argsort(owners, kind='stable'), np.cumsum(np.bincount(owners))[:-1])
    chosen = base.choose_clients('mnist_writers', len(names), request.num_clients, request.seed)
    clients = []
    for i in chosen:
      clients.append(pool.train(rows[i]))
      request.progress(len(clients), len(chosen))
    return federation.Federation(
        name=request.name,
        num_classes=pool.num_classes,
        client_ids=tuple(f'writer_{names[i]:04d}' for i in chosen),
        clients=tuple(clients),
        test=pool.test(),
    )
