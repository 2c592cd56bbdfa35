"""The SQLite files of TFF's federated datasets: found or downloaded by TFF's loader, checked, read client by client.

TFF's `ClientData` makes a pipeline for each client and parses example by example: 10 to 90 ms a client, and pipelines
that are made anew in each round leak (TFF's issue 4590). Here `load_data` finds the file and names the clients. A
client's rows then come from the file by the query of TFF's `SqlClientData`, and are parsed all at once.
"""

from collections.abc import Mapping, Sequence
import contextlib
import hashlib
import os
import pathlib
import sqlite3
import struct
import tempfile
import threading
from typing import Any, Callable, Optional

import numpy as np

from data import reading
from quap_tff.common import files
from quap_tff.common.lazy import tf

_TABLES = {
  'examples': {'split_name', 'client_id', 'serialized_example_proto'},
  'client_metadata': {'client_id', 'split_name'},
}


def find(filename: str, data_dir: Optional[str], load_data: Callable[..., Any], splits: Sequence[str]) -> str:
  """The path of a checked file, after TFF's download if no `data_dir` is given and TFF's cache has none.

  Args:
    filename: The name that TFF's loader gives the file.
    data_dir: A folder with the file, or None.
    load_data: TFF's loader; it takes `cache_dir`.
    splits: The splits that the file must have.

  Raises:
    reading.DataFileError: If the file is missing, damaged, the wrong one, or cannot be downloaded.
  """
  if data_dir is not None:
    path = os.path.join(data_dir, filename)
    reading.check_is_file(
      path, f'expected the file of TFF\'s loader there, a SQLite database with the splits {" and ".join(splits)}'
    )
  else:
    path = _cached(filename, load_data, splits)
  check_splits(path, splits)
  return path


def _cached(filename: str, load_data: Callable[..., Any], splits: Sequence[str]) -> str:
  cache_dir = os.path.join(os.path.expanduser('~'), '.tff')
  path = os.path.join(cache_dir, filename)
  advice = f'Put {filename} into a folder and give that folder as --data_dir, or put it into {cache_dir}.'
  if not os.path.isfile(path):
    with reading.downloading(f"{filename} was not given, is not in TFF's cache and could not be downloaded", advice):
      os.makedirs(cache_dir, exist_ok=True)
      # TFF writes straight to the final name, and the next time takes whatever it finds there for the complete file. So
      # it downloads into a separate folder, and only a complete file gets the name.
      with tempfile.TemporaryDirectory(dir=cache_dir) as unfinished:
        load_data(cache_dir=unfinished)
        # TFF does not notice a connection that ends early.
        check_splits(os.path.join(unfinished, filename), splits)
        os.replace(os.path.join(unfinished, filename), path)
  return path


def check_splits(path: str, splits: Sequence[str]) -> None:
  """Raises `reading.DataFileError` unless the file is a whole SQLite database in TFF's format with these splits."""
  expected = f'expected a SQLite database in TFF\'s format with the splits {" and ".join(splits)}'
  with open(path, 'rb') as f:
    header = f.read(100)
  if len(header) < 100 or not header.startswith(b'SQLite format 3\0'):
    raise reading.DataFileError(f'{path} is the wrong file: {expected}, found no SQLite header.')
  # SQLite opens a file whose end is missing, and fails only when it needs a missing page. The header says how many
  # pages there were.
  (page_size,) = struct.unpack('>H', header[16:18])
  size = (65536 if page_size == 1 else page_size) * struct.unpack('>I', header[28:32])[0]
  if os.path.getsize(path) < size:
    raise reading.DataFileError(f'{path} is cut short: expected {size} bytes, found {os.path.getsize(path)}.')
  try:
    with contextlib.closing(_connect(path)) as connection:
      for table, columns in _TABLES.items():
        known_columns = {row[1] for row in connection.execute(f'PRAGMA table_info({table})')}
        if not columns <= known_columns:
          found = f'no table {table!r}'
          if known_columns:
            found = f'table {table!r} without {sorted(columns - known_columns)}'
          raise reading.DataFileError(f'{path} is the wrong file: {expected}, found {found}.')
      names = [row[0] for row in connection.execute('SELECT DISTINCT split_name FROM client_metadata')]
      if not set(splits) <= set(names):
        raise reading.DataFileError(f'{path} is the wrong file: {expected}, found the splits {sorted(names)}.')
  except sqlite3.Error as e:
    raise reading.DataFileError(f'{path} is damaged: {expected}, found {type(e).__name__}: {e}') from e


def _connect(path: str) -> sqlite3.Connection:
  return sqlite3.connect(f'{pathlib.Path(path).resolve().as_uri()}?mode=ro', uri=True)


def write_splits(path: str, splits: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]) -> None:
  """Writes a file in the format of TFF's loaders, completely or not at all; an existing file is replaced.

  Args:
    path: The file.
    splits: For each split and client the examples: the value of each feature, bytes, integers or floats.
  """
  with files.replacing(path) as unfinished:
    with contextlib.suppress(FileNotFoundError):
      os.remove(unfinished)
    with contextlib.closing(sqlite3.connect(unfinished)) as connection:
      connection.execute(
        'CREATE TABLE examples '
        '(split_name TEXT NOT NULL, client_id TEXT NOT NULL, serialized_example_proto BLOB NOT NULL)'
      )
      connection.execute(
        'CREATE TABLE client_metadata '
        '(client_id TEXT NOT NULL, split_name TEXT NOT NULL, num_examples INTEGER NOT NULL)'
      )
      for split, clients in splits.items():
        for client_id, examples in clients.items():
          connection.execute('INSERT INTO client_metadata VALUES (?, ?, ?)', (client_id, split, len(examples)))
          rows = [(split, client_id, _proto(example)) for example in examples]
          connection.executemany('INSERT INTO examples VALUES (?, ?, ?)', rows)
      connection.execute('CREATE INDEX by_client ON examples (client_id, split_name)')
      connection.commit()


def _proto(example: Mapping[str, Any]) -> bytes:
  proto = tf.train.Example()
  for name, value in example.items():
    feature, flat = proto.features.feature[name], np.ravel(value)
    if isinstance(value, bytes):
      feature.bytes_list.value.append(value)
    elif flat.dtype.kind == 'f':
      feature.float_list.value.extend(flat.tolist())
    else:
      feature.int64_list.value.extend(flat.tolist())
  return proto.SerializeToString()


class Split:
  """One split of a file: reads the examples of a client when they are asked for, and keeps none.

  Args:
    path: A file that `check` accepts.
    name: The split.
    features: The features of an example as TFF's loader parses them, e.g. `{'label': tf.io.FixedLenFeature([], …)}`.
    limit: The most examples of a client that are read, the first in the file; None for all.
  """

  def __init__(self, path: str, name: str, features: Mapping[str, Any], limit: Optional[int] = None):
    self._path, self._name, self._features = path, name, dict(features)
    self._limit = '' if limit is None else f' LIMIT {int(limit)}'
    # A connection may be used only by the thread that opened it.
    self._of_thread = threading.local()

  def read(self, client_ids: Sequence[str]) -> dict[str, np.ndarray]:
    """The examples of some clients, one client after the other, each feature as one array [n, ...]; n may be 0.

    Raises:
      reading.DataFileError: If the file is damaged, or its examples have other features.
    """
    query = f'SELECT serialized_example_proto FROM examples WHERE client_id = ? AND split_name = ?{self._limit}'
    try:
      if not hasattr(self._of_thread, 'connection'):
        self._of_thread.connection = _connect(self._path)
      execute = self._of_thread.connection.execute
      protos = [row[0] for client_id in client_ids for row in execute(query, (client_id, self._name))]
      # An explicit device, or the runtime's own could claim these few bytes.
      with tf.device('/cpu:0'):
        parsed = tf.io.parse_example(tf.constant(protos, tf.string, [len(protos)]), self._features)
      return {name: value.numpy() for name, value in parsed.items()}
    except (sqlite3.Error, tf.errors.OpError) as e:
      expected = ' and '.join(_in_words(name, feature) for name, feature in self._features.items())
      raise reading.DataFileError(
        f'{self._path} is damaged or the wrong file: expected examples with {expected} in split {self._name!r}, found '
        f'{getattr(e, "message", e)}'
      ) from e


def _in_words(name: str, feature: Any) -> str:
  shape = str(list(feature.shape)) if feature.shape else ''
  return f'{name} {feature.dtype.name}{shape}'


def digest_of_file(path: str, names: Sequence[str] = ()) -> bytes:
  """SHA-256 of a file's content and of names."""
  sha256 = hashlib.sha256()
  with open(path, 'rb') as f:
    for block in iter(lambda: f.read(1 << 20), b''):
      sha256.update(block)
  sha256.update('\0'.join(names).encode())
  return sha256.digest()
