r"""Writes a stand-in for shakespeare.sqlite, the file of TFF's loader, from a list of speeches.

    python -m data.shakespeare_file speeches.json.gz CACHE_DIR

`speeches.json.gz` is a gzipped JSON object, {"role": [speech, …]}. The file has the tables, splits and features of the
published one, and each role's speeches are divided as there: at least one in each split, about 15% for the test, roles
with a single speech left out. It is not the published file (its roles, cuts and spelling differ), so results on it are
called "Shakespeare stand-in". The package reads it through TFF's loader and does not know the difference.
"""

from collections.abc import Mapping, Sequence
import gzip
import json
import os
import sqlite3
import sys

import numpy as np
import tensorflow as tf

FILENAME = 'shakespeare.sqlite'
_TEST_SHARE = 0.15
_SEED = 1623  # The year of the First Folio.


def write(path: str, speeches: Mapping[str, Sequence[str]]):
  """Writes the file, completely or not at all.

  Args:
    path: Where to write; an existing file is replaced.
    speeches: The speeches of each role.
  """
  unfinished = path + '.part'
  if os.path.exists(unfinished):
    os.remove(unfinished)
  connection = sqlite3.connect(unfinished)
  connection.execute(
    'CREATE TABLE examples '
    '(split_name TEXT NOT NULL, client_id TEXT NOT NULL, serialized_example_proto BLOB NOT NULL)'
  )
  connection.execute(
    'CREATE TABLE client_metadata (client_id TEXT NOT NULL, split_name TEXT NOT NULL, num_examples INTEGER NOT NULL)'
  )
  rng = np.random.default_rng(_SEED)
  for role in sorted(speeches):
    own = [speeches[role][i] for i in rng.permutation(len(speeches[role]))]
    if len(own) < 2:
      continue
    cut = max(1, round(_TEST_SHARE * len(own)))
    for split, part in (('test', own[:cut]), ('train', own[cut:])):
      connection.execute('INSERT INTO client_metadata VALUES (?, ?, ?)', (role, split, len(part)))
      connection.executemany('INSERT INTO examples VALUES (?, ?, ?)', [(split, role, _proto(text)) for text in part])
  connection.execute('CREATE INDEX by_client ON examples (client_id, split_name)')
  connection.commit()
  connection.close()
  os.replace(unfinished, path)


def _proto(text: str) -> bytes:
  proto = tf.train.Example()
  # One byte a character, as in the published file.
  proto.features.feature['snippets'].bytes_list.value.append(text.encode('ascii', 'replace'))
  return proto.SerializeToString()


def main(argv: list[str]):
  """Writes the stand-in that `argv[1:]` asks for."""
  if len(argv) != 3:
    sys.exit('Usage: python -m data.shakespeare_file speeches.json.gz CACHE_DIR')
  with gzip.open(argv[1], 'rt', encoding='utf-8') as f:
    speeches = json.load(f)
  os.makedirs(argv[2], exist_ok=True)
  write(os.path.join(argv[2], FILENAME), speeches)


if __name__ == '__main__':
  main(sys.argv)
