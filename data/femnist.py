"""Reads Federated EMNIST through TFF's loader, for `data.natural.Femnist`.

TFF's per-example parsing costs 10 to 90 ms a client, most of it overhead. Here `load_data` finds and downloads the file
and names the clients. The rows then come from TFF's `SqlClientData`, with one parse for each client: the same values in
1 to 2 ms a client.
"""

import collections
from collections.abc import Sequence
import functools
import os
from typing import Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from data import base
from data import errors
from data import federation
from data import natural
from data import tff_files

FILENAME = 'emnist_all.sqlite'
# Clients whose rows are fetched at a time.
_READERS = 4
# Examples parsed at a time; a published client has at most a few hundred.
_BATCH = 4096


def load(dataset: natural.Femnist, request: base.Request) -> federation.Federation:
  """The federation that `dataset` describes; see `data.load`."""
  prefix = 'digits_only' if dataset.only_digits else 'all'
  splits = f'{prefix}_train', f'{prefix}_test'
  load_data = functools.partial(tff.simulation.datasets.emnist.load_data, dataset.only_digits)
  path = tff_files.find(FILENAME, request.data_dir, load_data, splits)
  train, test = load_data(cache_dir=os.path.dirname(path))
  chosen, held_out, helpers = base.divide_clients(request, len(train.client_ids), dataset.test_writers)
  client_ids = [train.client_ids[i] for i in chosen]
  if len(held_out):
    # All examples of these writers are test examples.
    others = [train.client_ids[i] for i in held_out]
    wanted = [(splits[0], client_ids), (splits[0], others), (splits[1], _also_in(test, others))]
  else:
    wanted = [(splits[0], client_ids), (splits[1], _also_in(test, client_ids))]
  num_tested = len(wanted)
  if len(helpers):
    wanted.append((splits[0], [train.client_ids[i] for i in helpers]))
  total, done, rows = sum(len(ids) for _, ids in wanted), 0, []
  for split, ids in wanted:
    rows.append(_read(path, split, ids, lambda count, before=done: request.progress(before + count, total)))
    done += len(ids)
  test_parts = [part for read in rows[1:num_tested] for part in read.values()]
  tested = _examples(dataset, path, test_parts)
  if len(held_out):
    test_set = f'{len(tested):,} examples of {len(held_out):,} other writers, who take part in no round.'
  else:
    test_set = f'{len(tested):,} examples that the clients themselves hold back from training.'
  return federation.Federation(
    name=request.name,
    num_classes=dataset.num_classes,
    client_ids=tuple(client_ids),
    clients=tuple(_examples(dataset, path, [rows[0][c]]) for c in client_ids),
    test=tested,
    auxiliary=_examples(dataset, path, list(rows[-1].values())) if len(helpers) else None,
    test_set=test_set,
    test_is_of_clients=not len(held_out),
  )


def _also_in(client_data, client_ids) -> list[str]:
  return sorted(set(client_ids).intersection(client_data.client_ids))


def _examples(
  dataset: natural.Femnist, path: str, parts: Sequence[tuple[np.ndarray, np.ndarray]]
) -> federation.Examples:
  empty = np.zeros([0, 28, 28], np.float32), np.zeros([0], np.int32)
  x, y = (np.concatenate(p) for p in zip(empty, *parts))
  # NaN also fails this comparison.
  if len(x) and not (x.min() >= 0 and x.max() <= 1):
    raise errors.DataFileError(f'{path}: expected pixels in [0, 1], found {x.min()} to {x.max()}.')
  if not dataset.published_polarity:
    np.subtract(np.float32(1), x, out=x)
  return federation.Examples(x[..., None], y)


def _read(
  path: str, split: str, client_ids: list[str], progress: Callable[[int], None]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
  """Pixels float32[n, 28, 28] and labels int32[n] of each client; features named and typed as by TFF's loader."""
  source = tff.simulation.datasets.SqlClientData(path, split)
  features = {'pixels': tf.io.FixedLenFeature([28, 28], tf.float32), 'label': tf.io.FixedLenFeature([], tf.int64)}

  def read_client(client_id):
    return (
      source.serializable_dataset_fn(client_id)
      .batch(_BATCH)
      .map(lambda protos: (client_id, tf.io.parse_example(protos, features)))
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
