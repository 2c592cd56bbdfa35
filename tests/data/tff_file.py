"""Small files in the format of TFF's federated datasets, for tests."""

import sqlite3

import numpy as np
import tensorflow as tf


def write(path, splits):
  """A SQLite file as TFF's loaders read it; `splits`: split -> client -> list of examples {feature: value}."""
  connection = sqlite3.connect(path)
  connection.execute('CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)')
  connection.execute('CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)')
  for split, clients in splits.items():
    for client, examples in clients.items():
      connection.execute('INSERT INTO client_metadata VALUES (?, ?, ?)', (client, split, len(examples)))
      connection.executemany('INSERT INTO examples VALUES (?, ?, ?)', [(split, client, _proto(e)) for e in examples])
  connection.commit()
  connection.close()


def _proto(example):
  proto = tf.train.Example()
  for name, value in example.items():
    feature = proto.features.feature[name]
    if isinstance(value, bytes):
      feature.bytes_list.value.append(value)
    else:
      feature.int64_list.value.extend(np.ravel(value).tolist())
  return proto.SerializeToString()


def shakespeare(path, train=None, test=None):
  """Roles with their speeches."""
  train = train or {'HAMLET': [b'To be', b'or not'], 'OPHELIA': [b'My lord!'], 'YORICK': [b'Alas', b'poor', b'me']}
  test = test or {'HAMLET': [b'that is'], 'OPHELIA': [b'No'], 'YORICK': [b'a fellow']}
  one = lambda roles: {role: [{'snippets': speech} for speech in speeches] for role, speeches in roles.items()}
  write(path, {'train': one(train), 'test': one(test)})


def cifar100(path):
  """Five clients with two photographs each, and two of one photograph for the test; returns the splits."""
  rng = np.random.default_rng(0)
  one = lambda: {'image': rng.integers(0, 256, (32, 32, 3)), 'label': rng.integers(0, 100), 'coarse_label': 3}
  splits = {'train': {str(i): [one(), one()] for i in range(5)}, 'test': {str(i): [one()] for i in range(2)}}
  write(path, splits)
  return splits


def stackoverflow(path, counts_path, words=(b'the', b'is', b'code')):
  """Users with sentences, some of them held out, and the list of words."""
  one = lambda *sentences: [
    {'tokens': s, 'title': b't', 'tags': b'a|b', 'type': b'answer', 'score': 1, 'creation_date': b'2010'}
    for s in sentences
  ]
  write(
    path,
    {
      'train': {'1': one(b'the code is the code', b'unheard of'), '2': one(b'is'), '3': one(b'the the the')},
      'heldout': {'10': one(b'the is', b'code'), '20': one(b'is the code')},
      'test': {'1': one(b'later')},
    },
  )
  counts_path.write_text(''.join(f'{word.decode()} {100 - i}\n' for i, word in enumerate(words)))
