"""Small files in the formats of TFF's and Keras' datasets, for tests."""

import numpy as np

from data.datasets import tff_files


def keras_images(shape=(28, 28), **changes):
  """The arrays of 40 training and 10 test images as Keras has them; changes by `changes`, and without those of None."""
  rng = np.random.default_rng(0)
  contents = dict(
    x_train=rng.integers(0, 256, (40, *shape), np.uint8),
    y_train=np.arange(40, dtype=np.uint8) % 10,
    x_test=rng.integers(0, 256, (10, *shape), np.uint8),
    y_test=np.arange(10, dtype=np.uint8),
  )
  return {name: array for name, array in {**contents, **changes}.items() if array is not None}


def mnist_writers(folder, writers):
  """MNIST's file of 40 training images, and the `writers` of these."""
  np.savez(folder / 'mnist.npz', **keras_images())
  np.savez(folder / 'mnist_writers.npz', writer_train=writers)


def unipen(folder, **changes):
  """UNIPEN's file with 40 characters of 8 writers; changes by `changes`. Returns its arrays."""
  contents = dict(x=keras_images()['x_train'], y=np.arange(40) % 62, writer=np.arange(40) % 8)
  contents.update(changes)
  np.savez(folder / 'unipen62.npz', **contents)
  return contents


def writers(names='abcde', num_classes=62):
  """Writers of Federated EMNIST: name -> {'train': (x, y), 'test': (x, y)}."""
  rng = np.random.default_rng(1)
  part = lambda n: (rng.random((n, 28, 28), np.float32), rng.integers(0, num_classes, n))
  return {f'writer_{name}': {'train': part(3 + i), 'test': part(1 + i % 2)} for i, name in enumerate(names)}


def emnist(path, clients=None, feature='pixels', prefix='all'):
  """Federated EMNIST; `clients` as from `writers`, which is the default. Returns them."""
  clients = writers() if clients is None else clients
  one = lambda x, y: [{feature: pixels, 'label': int(label)} for pixels, label in zip(x, y)]
  split = lambda name: {client: one(*parts[name]) for client, parts in clients.items()}
  tff_files.write_splits(str(path), {f'{prefix}_{name}': split(name) for name in ('train', 'test')})
  return clients


def shakespeare(path, train=None, test=None):
  """Roles with their speeches."""
  train = train or {'HAMLET': [b'To be', b'or not'], 'OPHELIA': [b'My lord!'], 'YORICK': [b'Alas', b'poor', b'me']}
  test = test or {'HAMLET': [b'that is'], 'OPHELIA': [b'No'], 'YORICK': [b'a fellow']}
  one = lambda roles: {role: [{'snippets': speech} for speech in speeches] for role, speeches in roles.items()}
  tff_files.write_splits(str(path), {'train': one(train), 'test': one(test)})


def cifar100(path):
  """Five clients with two photographs each, and two of one photograph for the test; returns the splits."""
  rng = np.random.default_rng(0)
  one = lambda: {'image': rng.integers(0, 256, (32, 32, 3)), 'label': rng.integers(0, 100), 'coarse_label': 3}
  splits = {'train': {str(i): [one(), one()] for i in range(5)}, 'test': {str(i): [one()] for i in range(2)}}
  tff_files.write_splits(str(path), splits)
  return splits


def stackoverflow(path, counts_path, words=(b'the', b'is', b'code')):
  """Users with sentences, some of them held out, and the list of words."""
  one = lambda *sentences: [
    {'tokens': s, 'title': b't', 'tags': b'a|b', 'type': b'answer', 'score': 1, 'creation_date': b'2010'}
    for s in sentences
  ]
  tff_files.write_splits(
    str(path),
    {
      'train': {'1': one(b'the code is the code', b'unheard of'), '2': one(b'is'), '3': one(b'the the the')},
      'heldout': {'10': one(b'the is', b'code'), '20': one(b'is the code')},
      'test': {'1': one(b'later')},
    },
  )
  counts_path.write_text(''.join(f'{word.decode()} {100 - i}\n' for i, word in enumerate(words)))
