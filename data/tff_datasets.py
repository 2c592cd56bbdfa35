"""Reads CIFAR-100, Shakespeare and Stack Overflow through TFF's loaders, for `data.natural`.

TFF's loader finds or downloads the file and names the clients. A client's examples are read from the file when it takes
part (`tff_files.Split`), and are not kept.
"""

import collections
from collections.abc import Sequence
import hashlib
import os

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from data import arrays
from data import base
from data import errors
from data import federation
from data import natural
from data import sequences
from data import tff_files

WORD_COUNTS = 'stackoverflow.word_count'
_SPEECH = {'snippets': tf.io.FixedLenFeature([], tf.string)}
_SENTENCE = {'tokens': tf.io.FixedLenFeature([], tf.string)}
_PHOTOGRAPH = {'image': tf.io.FixedLenFeature([32, 32, 3], tf.int64), 'label': tf.io.FixedLenFeature([], tf.int64)}


def cifar100(request: base.Request) -> federation.Federation:
  """The federation of `natural.Cifar100`; see `data.load`."""
  load_data = tff.simulation.datasets.cifar100.load_data
  path = tff_files.find('cifar100.sqlite', request.data_dir, load_data, ('train', 'test'))
  train, test = load_data(cache_dir=os.path.dirname(path))

  def examples(raw):
    image = raw['image']
    # Such as another file's, or the same of another version.
    if image.size and not (image.min() >= 0 and image.max() <= 255):
      raise errors.DataFileError(f'{path}: expected pixels from 0 to 255, found {image.min()} to {image.max()}.')
    return federation.Examples(np.divide(image, np.float32(255), dtype=np.float32), raw['label'].astype(np.int32))

  ids, others = _chosen(request, train.client_ids)
  split = tff_files.Split(path, 'train', _PHOTOGRAPH)
  test_split = tff_files.Split(path, 'test', _PHOTOGRAPH)
  tested = federation.together([examples(_read(path, test_split, i)) for i in test.client_ids])
  return federation.Federation(
    name=request.name,
    num_classes=100,
    client_ids=ids,
    clients=federation.OnDemand(len(ids), lambda i: examples(_read(path, split, ids[i])), tff_files.digest(path, ids)),
    test=tested,
    auxiliary=federation.together([examples(_read(path, split, i)) for i in others]) if others else None,
    test_set=f'{len(tested):,} examples that no client holds.',
  )


def shakespeare(dataset: natural.Shakespeare, request: base.Request) -> federation.Federation:
  """The federation that `dataset` describes; see `data.load`."""
  load_data = tff.simulation.datasets.shakespeare.load_data
  path = tff_files.find('shakespeare.sqlite', request.data_dir, load_data, ('train', 'test'))
  train, test = load_data(cache_dir=os.path.dirname(path))
  splits = {name: tff_files.Split(path, name, _SPEECH) for name in ('train', 'test')}

  def examples(split, client_ids):
    speeches = [speech for i in client_ids for speech in _read(path, splits[split], i, may_be_empty=True)['snippets']]
    return sequences.of_speeches(speeches, dataset.length)

  chosen, held_out, helpers = base.divide_clients(request, len(train.client_ids), dataset.test_roles)
  ids = [train.client_ids[i] for i in chosen]
  if len(held_out):
    others = [train.client_ids[i] for i in held_out]
    tested = federation.together([examples('train', others), examples('test', others)])
    test_set = f'{len(tested):,} sequences of {len(held_out):,} other roles, who take part in no round.'
  else:
    tested = examples('test', sorted(set(ids).intersection(test.client_ids)))
    test_set = f'{len(tested):,} sequences of speeches that the clients themselves hold back from training.'
  return federation.Federation(
    name=request.name,
    num_classes=sequences.CHARACTER_TOKENS,
    client_ids=ids,
    clients=federation.OnDemand(len(ids), lambda i: examples('train', [ids[i]]), tff_files.digest(path, ids)),
    test=tested,
    auxiliary=examples('train', [train.client_ids[i] for i in helpers]) if len(helpers) else None,
    test_set=test_set,
    test_is_of_clients=not len(held_out),
  )


def stackoverflow_words(dataset: natural.StackOverflowWords, request: base.Request) -> federation.Federation:
  """The federation that `dataset` describes; see `data.load`."""
  load_data = tff.simulation.datasets.stackoverflow.load_data
  path = tff_files.find('stackoverflow.sqlite', request.data_dir, load_data, ('train', 'heldout', 'test'))
  vocabulary = sequences.Vocabulary(_words(dataset.words, request.data_dir))
  train, held_out, _ = load_data(cache_dir=os.path.dirname(path))
  ids, others = _chosen(request, train.client_ids)
  order = base.client_order(len(held_out.client_ids), request.seed)
  tested = _sentences_of(
    (held_out.client_ids[i] for i in order),
    tff_files.Split(path, 'heldout', _SENTENCE, dataset.test_sentences),
    dataset.test_sentences,
  )
  split = tff_files.Split(path, 'train', _SENTENCE, dataset.sentences)
  encode = lambda sentences: sequences.of_sentences(sentences, vocabulary, dataset.length)
  return federation.Federation(
    name=request.name,
    num_classes=vocabulary.num_tokens,
    client_ids=ids,
    clients=federation.OnDemand(
      len(ids), lambda i: encode(_read(path, split, ids[i])['tokens']), _digest_of_large(path, ids)
    ),
    test=encode(tested),
    auxiliary=federation.together([encode(_read(path, split, i)['tokens']) for i in others]) if others else None,
    test_set=f"{len(tested):,} sentences of TFF's held-out users, who take part in no round.",
    public_data=(
      f'The vocabulary is the {dataset.words:,} most frequent words of the list that TFF publishes. TFF counted '
      "them over all training users, so the list is an exact function of clients' data."
    ),
  )


def _sentences_of(client_ids, split, count) -> Sequence[bytes]:
  found = []
  for client_id in client_ids:
    found.extend(split.read(client_id)['tokens'][: count - len(found)])
    if len(found) >= count:
      break
  return found


def _words(count: int, data_dir) -> Sequence[str]:
  """The most frequent words: from the published list, which TFF's loader downloads if no folder is given."""
  if data_dir is None:
    advice = f'Put {WORD_COUNTS} and stackoverflow.sqlite into a folder and give that folder as --data_dir.'
    with arrays.downloading(f"{WORD_COUNTS} could neither be found in Keras' cache nor downloaded", advice):
      return list(tff.simulation.datasets.stackoverflow.load_word_counts(vocab_size=count))
  # TFF's loader would look for the packed list and download it if it is not there.
  path = os.path.join(data_dir, WORD_COUNTS)
  expected = f'expected the list of words that TFF publishes: a word and its count on each of at least {count} lines'
  errors.check_is_file(path, f'{expected}. It is in stackoverflow.word_count.tar.bz2')
  words = collections.OrderedDict()
  try:
    with open(path, encoding='utf-8') as f:
      for line in f:
        word, number = line.split()
        words[word] = int(number)
        if len(words) == count:
          return list(words)
  except ValueError as e:
    raise errors.DataFileError(f'{path} is damaged: {expected}, found {e}.') from e
  raise errors.DataFileError(f'{path} is too short: {expected}, found {len(words)}. Give words={len(words)}.')


def _chosen(request: base.Request, client_ids: Sequence[str]) -> tuple[list[str], list[str]]:
  """The ids of those that take part, and of those whose examples the server has."""
  chosen, _, helpers = base.divide_clients(request, len(client_ids))
  return [client_ids[i] for i in chosen], [client_ids[i] for i in helpers]


def _read(path: str, split: tff_files.Split, client_id: str, may_be_empty: bool = False) -> dict[str, np.ndarray]:
  raw = split.read(client_id)
  if not may_be_empty and not len(next(iter(raw.values()))):
    raise errors.DataFileError(f'{path} is damaged: it lists the client {client_id!r}, but holds no examples of it.')
  return raw


def _digest_of_large(path: str, ids: Sequence[str]) -> bytes:
  """SHA-256 of a file's size and first and last megabytes, and of names: the whole of it would take minutes to read."""
  found, size = hashlib.sha256(), os.path.getsize(path)
  found.update(f'{size}\0'.encode())
  with open(path, 'rb') as f:
    found.update(f.read(1 << 20))
    f.seek(max(0, size - (1 << 20)))
    found.update(f.read(1 << 20))
  found.update('\0'.join(ids).encode())
  return found.digest()
