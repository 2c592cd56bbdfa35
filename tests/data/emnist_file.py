"""A small file in the format of Federated EMNIST, for tests."""

import sqlite3

import numpy as np
import tensorflow as tf


def write(path, clients, feature='pixels', tables=('examples', 'client_metadata'), prefix='all'):
  """A file in the format of TFF's loader; `clients`: name -> {'train': (x, y), 'test': (x, y)}."""
  connection = sqlite3.connect(path)
  columns = {
    'examples': 'split_name TEXT, client_id TEXT, serialized_example_proto BLOB',
    'client_metadata': 'client_id TEXT, split_name TEXT, num_examples INTEGER',
  }
  for table in tables:
    connection.execute(f'CREATE TABLE {table} ({columns[table]})')
  for client, splits in clients.items():
    for split, (x, y) in splits.items():
      connection.execute('INSERT INTO client_metadata VALUES (?, ?, ?)', (client, f'{prefix}_{split}', len(x)))
      for pixels, label in zip(x, y):
        proto = tf.train.Example()
        proto.features.feature[feature].float_list.value.extend(pixels.reshape(-1))
        proto.features.feature['label'].int64_list.value.append(label)
        connection.execute(
          'INSERT INTO examples VALUES (?, ?, ?)', (f'{prefix}_{split}', client, proto.SerializeToString())
        )
  connection.commit()
  connection.close()


def writers(names='abcde', num_classes=62):
  rng = np.random.default_rng(1)
  part = lambda n: (rng.random((n, 28, 28), np.float32), rng.integers(0, num_classes, n))
  return {f'writer_{name}': {'train': part(3 + i), 'test': part(1 + i % 2)} for i, name in enumerate(names)}
