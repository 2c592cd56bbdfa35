"""Reads Federated EMNIST through TFF's loader, for `data.datasets.Femnist`.

TFF's per-example parsing costs 10 to 90 ms a client, most of it overhead. Here `load_data` finds and downloads the file
and names the clients. The rows then come from TFF's `SqlClientData`, with one parse for each client: the same values in
1 to 2 ms a client.
"""

import collections
import math
import os
import pathlib
import sqlite3
import struct
import tempfile
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from data import arrays
from data import datasets
from data import errors
from data import federation

FILENAME = 'emnist_all.sqlite'
# Clients whose rows are fetched at a time.
_READERS = 4
# Examples parsed at a time; a published client has at most a few hundred.
_BATCH = 4096
_TABLES = {
    'examples': {'split_name', 'client_id', 'serialized_example_proto'},
    'client_metadata': {'client_id', 'split_name'},
}


def load(dataset: datasets.Femnist, request: datasets.Request) -> federation.Federation:
  """The federation that `dataset` describes; see `data.load`."""
  prefix = 'digits_only' if dataset.only_digits else 'all'
  splits = f'{prefix}_train', f'{prefix}_test'
  path = _find_file(request.data_dir, dataset.only_digits, splits)
  _check_sqlite(path, splits)
  train, test = tff.simulation.datasets.emnist.load_data(dataset.only_digits, cache_dir=os.path.dirname(path))
  available = len(train.client_ids)
  held_out = min(math.ceil(dataset.test_writers * available), available - 1)
  order = datasets.client_order(available, request.seed)
  chosen = datasets.choose_clients(request.name, available - held_out, request.num_clients, order)
  client_ids = [train.client_ids[i] for i in chosen]
  if held_out:
    # All examples of these writers are test examples.
    others = [train.client_ids[i] for i in np.sort(order[available - held_out:])]
    wanted = [(splits[0], client_ids), (splits[0], others), (splits[1], _also_in(test, others))]
  else:
    wanted = [(splits[0], client_ids), (splits[1], _also_in(test, client_ids))]
  total, done, rows = sum(len(ids) for _, ids in wanted), 0, []
  for split, ids in wanted:
    rows.append(_read(path, split, ids, lambda count, before=done: request.progress(before + count, total)))
    done += len(ids)
  test_parts = [part for read, (_, ids) in zip(rows[1:], wanted[1:]) for part in (read[i] for i in ids)]
  tested = _examples(dataset, path, test_parts)
  if held_out:
    test_set = f'{len(tested):,} examples of {held_out:,} other writers, who take part in no round.'
  else:
    test_set = f'{len(tested):,} examples that the clients themselves hold back from training.'
  return federation.Federation(
      name=request.name,
      num_classes=dataset.num_classes,
      client_ids=tuple(client_ids),
      clients=tuple(_examples(dataset, path, [rows[0][c]]) for c in client_ids),
      test=tested,
      test_set=test_set,
      test_is_of_clients=not held_out,
  )


def _also_in(client_data, client_ids) -> List[str]:
  return sorted(set(client_ids).intersection(client_data.client_ids))


def _examples(
    dataset: datasets.Femnist, path: str, parts: Sequence[Tuple[np.ndarray, np.ndarray]]
) -> federation.Examples:
  empty = np.zeros([0, 28, 28], np.float32), np.zeros([0], np.int32)
  x, y = (np.concatenate(p) for p in zip(empty, *parts))
  # NaN also fails this comparison.
  if len(x) and not (x.min() >= 0 and x.max() <= 1):
    raise errors.DataFileError(f'{path}: expected pixels in [0, 1], found {x.min()} to {x.max()}.')
  if not dataset.published_polarity:
    np.subtract(np.float32(1), x, out=x)
  return federation.Examples(x[..., None], y)


def _find_file(data_dir: Optional[str], only_digits: bool, splits: Sequence[str]) -> str:
  """The path of the file, after TFF's download if no `data_dir` is given and TFF's cache has none."""
  if data_dir is not None:
    path = os.path.join(data_dir, FILENAME)
    if not os.path.isfile(path):
      raise errors.DataFileError(f'{path} not found; expected the Federated EMNIST file of TFF\'s loader there.')
    return path
  cache_dir = os.path.join(os.path.expanduser('~'), '.tff')
  path = os.path.join(cache_dir, FILENAME)
  advice = f'Put {FILENAME} into a folder and give that folder as --data_dir, or put it into {cache_dir}.'
  if not os.path.isfile(path):
    with arrays.downloading(f'{FILENAME} was not given, is not in TFF\'s cache and could not be downloaded', advice):
      os.makedirs(cache_dir, exist_ok=True)
      # TFF writes straight to the final name, and the next time takes whatever it finds there for the complete file. So
      # it downloads into a separate folder, and only a complete file gets the name.
      with tempfile.TemporaryDirectory(dir=cache_dir) as unfinished:
        tff.simulation.datasets.emnist.load_data(only_digits, cache_dir=unfinished)
        # TFF does not notice a connection that ends early.
        _check_sqlite(os.path.join(unfinished, FILENAME), splits)
        os.replace(os.path.join(unfinished, FILENAME), path)
  return path


def _check_sqlite(path: str, splits: Sequence[str]):
  """Raises `errors.DataFileError` unless the file is a whole SQLite database in TFF's format with these splits."""
  expected = f'expected a SQLite database in TFF\'s format with the splits {" and ".join(splits)}'
  with open(path, 'rb') as f:
    header = f.read(100)
  if len(header) < 100 or not header.startswith(b'SQLite format 3\0'):
    raise errors.DataFileError(f'{path} is the wrong file: {expected}, found no SQLite header.')
  # SQLite opens a file whose end is missing, and fails only when it needs a missing page. The header says how many
  # pages there were.
  page_size, = struct.unpack('>H', header[16:18])
  size = (65536 if page_size == 1 else page_size) * struct.unpack('>I', header[28:32])[0]
  if os.path.getsize(path) < size:
    raise errors.DataFileError(f'{path} is cut short: expected {size} bytes, found {os.path.getsize(path)}.')
  try:
    connection = sqlite3.connect(f'{pathlib.Path(path).resolve().as_uri()}?mode=ro', uri=True)
    try:
      for table, columns in _TABLES.items():
        found = {row[1] for row in connection.execute(f'PRAGMA table_info({table})')}
        if not columns <= found:
          raise errors.DataFileError(
              f'{path} is the wrong file: {expected}, found '
              + (f'table {table!r} without {sorted(columns - found)}.' if found else f'no table {table!r}.')
          )
      found = [row[0] for row in connection.execute('SELECT DISTINCT split_name FROM client_metadata')]
      if not set(splits) <= set(found):
        raise errors.DataFileError(f'{path} is the wrong file: {expected}, found the splits {sorted(found)}.')
    finally:
      connection.close()
  except sqlite3.Error as e:
    raise errors.DataFileError(f'{path} is damaged: {expected}, found {type(e).__name__}: {e}') from e


def _read(
    path: str, split: str, client_ids: List[str], progress: Callable[[int], None]
) -> Dict[str, Tuple[np.ndarray, np.ndarray]]:
  """Pixels float32[n, 28, 28] and labels int32[n] of each client; features named and typed as by TFF's loader."""
  source = tff.simulation.datasets.SqlClientData(path, split)
  features = {
      'pixels': tf.io.FixedLenFeature([28, 28], tf.float32),
      'label': tf.io.FixedLenFeature([], tf.int64),
  }

  def read_client(client_id):
    return source.serializable_dataset_fn(client_id).batch(_BATCH).map(
        lambda protos: (client_id, tf.io.parse_example(protos, features))
    )

  dataset = tf.data.Dataset.from_tensor_slices(client_ids).interleave(
      read_client, cycle_length=_READERS, num_parallel_calls=_READERS, deterministic=True
  )
  parts = collections.defaultdict(list)
  try:
    for client_id, batch in dataset.as_numpy_iterator():
      parts[client_id.decode()].append((batch['pixels'], batch['label'].astype(np.int32)))
      progress(len(parts))
  except tf.errors.OpError as e:
    raise errors.DataFileError(
        f'{path} is damaged or the wrong file: expected examples with pixels float32[28, 28] and an integer label in '
        f'split {split!r}, found {e.message}'
    ) from e
  empty = [(np.zeros([0, 28, 28], np.float32), np.zeros([0], np.int32))]
  return {c: tuple(map(np.concatenate, zip(*(parts.get(c) or empty)))) for c in client_ids}
