"""Datasets whose clients are real, from the files of TFF's loaders: writers, roles of plays, users of a forum.

TFF's loader finds or downloads the file and names the clients. A client's examples are read by `tff_files.Split`.
TensorFlow is loaded when the first of them is read, not when their flags are.

Text becomes sequences of tokens, each with the tokens that follow. Token 0 is padding. Then come the known characters
or words, one token for all others, and the marks of a text's start and end, as in TFF's baselines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
import functools
import hashlib
import itertools
import os
import string
from typing import Any, Callable, ClassVar, Optional

import numpy as np

from data import federation
from data import reading
from data.datasets import base
from data.datasets import tff_files
from quap_tff.common import checks
from quap_tff.common.lazy import tf
from quap_tff.common.lazy import tff

WORD_COUNTS = 'stackoverflow.word_count'

PADDING = 0
# The characters of TFF's baseline (its order is another, which does not matter).
CHARACTERS = string.digits + string.ascii_letters + ' !"#$%&\'()*,-./:;?@[]_\n\r'
_SPECIAL = 4  # Padding, an unknown character or word, start, end.
CHARACTER_TOKENS = len(CHARACTERS) + _SPECIAL
_UNKNOWN, _START, _END = (len(CHARACTERS) + i for i in (1, 2, 3))
_TOKEN_OF_BYTE = np.full(256, _UNKNOWN, np.int32)
_TOKEN_OF_BYTE[np.frombuffer(CHARACTERS.encode(), np.uint8)] = np.arange(1, len(CHARACTERS) + 1)


class _TffDataset(base.Dataset):
  """A dataset of `tff.simulation.datasets`.

  Attributes:
    module: Its module there.
    splits: The splits that its file must have.
  """

  has_own_clients = True
  module: ClassVar[str]
  splits: ClassVar[tuple[str, ...]] = ('train', 'test')

  def _open(self, request: base.Request, filename: str, *args: Any) -> tuple[str, Any]:
    """The path of the checked file, and the result of TFF's `load_data(*args)`, which names the clients."""
    load_data = functools.partial(getattr(tff.simulation.datasets, self.module).load_data, *args)
    path = tff_files.find(filename, request.data_dir, load_data, self.splits)
    return path, load_data(cache_dir=os.path.dirname(path))


def _on_demand(
  request: base.Request,
  division: base.Division,
  examples: Callable[[Sequence[str]], federation.Examples],
  digest: bytes,
  **fields: Any,
) -> federation.Federation:
  """A federation whose clients are read from the file each time they take part; `examples` reads those of some."""
  ids = division.clients
  auxiliary = examples(division.helpers) if division.helpers else None
  return federation.Federation(
    name=request.name,
    client_ids=ids,
    clients=federation.OnDemand(len(ids), lambda i: examples([ids[i]]), digest),
    auxiliary=auxiliary,
    **fields,
  )


def _test_clients(train: Any, test: Any, division: base.Division) -> list[tuple[int, list[str]]]:
  """Whose examples of which split (0 for training, 1 for the test) the test set holds.

  They are all examples of the clients that only test. Without any, they are those that the clients hold back.
  """
  whose = division.testers or division.clients
  held_back = (1, sorted(set(whose).intersection(test.client_ids)))
  return [(0, whose), held_back] if division.testers else [held_back]


def _test_facts(division: base.Division, examples: str, others: str, held_back: str) -> dict[str, Any]:
  """The fields of a federation that say whose `examples` the test set of `_test_clients` holds."""
  if division.testers:
    whose = f'{examples} of {len(division.testers):,} other {others}, who take part in no round.'
  else:
    whose = f'{held_back} that the clients themselves hold back from training.'
  return {'test_set': whose, 'test_is_of_clients': not division.testers}


@dataclasses.dataclass(frozen=True)
class Femnist(_TffDataset):
  """Federated EMNIST with its writers as clients, 62 classes: digits, upper and lower case; float32[28, 28, 1].

  The published file stores paper as 1.0 and ink as 0.0, the opposite of MNIST. Pixels are turned over as they are read,
  so that ink is 1.0 in every dataset of this package and a model or a feature map may move between them. All clients
  are in memory.

  Attributes:
    published_polarity: Keep the file's own polarity, which TFF's baselines train on.
    test_writers: The share of the writers, in [0, 1), who are not clients and on whose examples models are tested. With
      0, as TFF has it, models are tested on held-out examples of the clients themselves.
  """

  title = 'FEMNIST'
  image_shape = (28, 28, 1)
  module = 'emnist'
  splits = ('all_train', 'all_test')
  only_digits: ClassVar[bool] = False
  num_classes = 62

  published_polarity: bool = False
  test_writers: float = checks.number_field('femnist test_writers', 0.0, at_least=0, below=1)

  @property
  def tests_clients(self) -> bool:  # type: ignore[override]  # The base class has a constant.
    return not self.test_writers

  def load(self, request: base.Request) -> federation.Federation:
    path, (train, test) = self._open(request, 'emnist_all.sqlite', self.only_digits)
    division = base.divide_clients(request, train.client_ids, self.test_writers)
    features = {'pixels': tf.io.FixedLenFeature([28, 28], tf.float32), 'label': tf.io.FixedLenFeature([], tf.int64)}
    splits = [tff_files.Split(path, name, features) for name in self.splits]
    tested = _test_clients(train, test, division)
    total = sum(map(len, (division.clients, division.helpers, *(ids for _, ids in tested))))
    done = itertools.count(1)

    def read(split: int, ids: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
      for client_id in ids:
        yield splits[split].read([client_id])
        request.progress(next(done), total)

    clients = [self._examples(path, [part]) for part in read(0, division.clients)]
    tests = self._examples(path, [part for split, ids in tested for part in read(split, ids)])
    auxiliary = self._examples(path, list(read(0, division.helpers))) if division.helpers else None
    examples = f'{len(tests):,} examples'
    return federation.Federation(
      name=request.name,
      num_classes=self.num_classes,
      client_ids=division.clients,
      clients=clients,
      test=tests,
      auxiliary=auxiliary,
      **_test_facts(division, examples, 'writers', held_back=examples),
    )

  def _examples(self, path: str, parts: Sequence[dict[str, np.ndarray]]) -> federation.Examples:
    x = np.concatenate([np.zeros([0, 28, 28], np.float32), *(part['pixels'] for part in parts)])
    y = np.concatenate([np.zeros([0], np.int64), *(part['label'] for part in parts)])
    # NaN also fails this comparison.
    if len(x) and not (x.min() >= 0 and x.max() <= 1):
      raise reading.wrong(path, 'pixels in [0, 1]', f'{x.min()} to {x.max()}')
    if not self.published_polarity:
      np.subtract(np.float32(1), x, out=x)
    return federation.Examples(x[..., None], y.astype(np.int32))


@dataclasses.dataclass(frozen=True)
class FemnistDigits(Femnist):
  """The digits of `Femnist` only, 10 classes."""

  title = 'FEMNIST digits'
  splits = ('digits_only_train', 'digits_only_test')
  only_digits = True
  num_classes = 10


@dataclasses.dataclass(frozen=True)
class Cifar100(_TffDataset):
  """TFF's federated CIFAR-100: 500 clients with 100 photographs each, 100 classes; float32[32, 32, 3], RGB.

  TFF drew the clients by the Pachinko allocation method: each has a few of the 20 coarse labels, and of those the fine
  ones. The test set is CIFAR-100's own, and holds no client's data. A client is read from cifar100.sqlite when it takes
  part.
  """

  title = 'CIFAR-100'
  num_classes = 100
  image_shape = (32, 32, 3)
  module = 'cifar100'

  def load(self, request: base.Request) -> federation.Federation:
    path, (train, test) = self._open(request, 'cifar100.sqlite')
    features = {'image': tf.io.FixedLenFeature([32, 32, 3], tf.int64), 'label': tf.io.FixedLenFeature([], tf.int64)}
    splits = {name: tff_files.Split(path, name, features) for name in self.splits}

    def examples(split: str, client_ids: Sequence[str]) -> federation.Examples:
      raw = splits[split].read(client_ids)
      image = raw['image']
      # Such as in another file, or in another version of this one.
      if image.size and not (image.min() >= 0 and image.max() <= 255):
        raise reading.wrong(path, 'pixels from 0 to 255', f'{image.min()} to {image.max()}')
      return federation.Examples(np.divide(image, np.float32(255), dtype=np.float32), raw['label'].astype(np.int32))

    division = base.divide_clients(request, train.client_ids)
    tested = examples('test', test.client_ids)
    return _on_demand(
      request,
      division,
      functools.partial(examples, 'train'),
      tff_files.digest_of_file(path, division.clients),
      num_classes=self.num_classes,
      test=tested,
      test_set=f'{len(tested):,} examples that no client holds.',
    )


@dataclasses.dataclass(frozen=True)
class Shakespeare(_TffDataset):
  """TFF's federated Shakespeare: each of 715 roles of the plays is a client; next-character prediction.

  An example is a sequence of `length` characters, and its labels are the characters that follow each of them. A speech
  starts and ends with a mark, and its last sequence is filled up with padding, which has no labels. The vocabulary, of
  90 tokens, is a constant of TFF's baseline. A client is read from shakespeare.sqlite when it takes part.

  Attributes:
    length: Characters in a sequence.
    test_roles: The share of the roles, in [0, 1), that are not clients and on whose speeches models are tested. With 0,
      as TFF has it, models are tested on held-out speeches of the clients themselves.
  """

  title = 'Shakespeare'
  is_sequences = True
  module = 'shakespeare'

  length: int = checks.integer_field('shakespeare length', 80, at_least=1)
  test_roles: float = checks.number_field('shakespeare test_roles', 0.0, at_least=0, below=1)

  @property
  def tests_clients(self) -> bool:  # type: ignore[override]  # The base class has a constant.
    return not self.test_roles

  def load(self, request: base.Request) -> federation.Federation:
    path, (train, test) = self._open(request, 'shakespeare.sqlite')
    features = {'snippets': tf.io.FixedLenFeature([], tf.string)}
    splits = [tff_files.Split(path, name, features) for name in self.splits]

    def examples(split: int, ids: Sequence[str]) -> federation.Examples:
      return examples_of_speeches(splits[split].read(ids)['snippets'], self.length)

    division = base.divide_clients(request, train.client_ids, self.test_roles)
    tested = federation.together([examples(split, ids) for split, ids in _test_clients(train, test, division)])
    sequences = f'{len(tested):,} sequences'
    return _on_demand(
      request,
      division,
      functools.partial(examples, 0),
      tff_files.digest_of_file(path, division.clients),
      num_classes=CHARACTER_TOKENS,
      test=tested,
      **_test_facts(division, sequences, 'roles', held_back=f'{sequences} of speeches'),
    )


@dataclasses.dataclass(frozen=True)
class StackOverflowWords(_TffDataset):
  """TFF's Stack Overflow: each of 342,477 users is a client; next-word prediction.

  An example is a sentence, cut or filled up to `length` words, and its labels are the words that follow. The vocabulary
  is the head of the list of words that TFF publishes with the file. That list was counted over the training users.
  Models are tested on sentences of TFF's held-out users, who are not clients. A client is read from
  stackoverflow.sqlite when it takes part.

  Attributes:
    words: Words in the vocabulary. Padding, an unknown word, the start and the end of a sentence come on top.
    length: Words in a sequence.
    sentences: The most sentences of a client that are used, the first in the file.
    test_sentences: Sentences in the test set.
  """

  title = 'Stack Overflow'
  is_sequences = True
  module = 'stackoverflow'
  splits = ('train', 'heldout', 'test')

  words: int = checks.integer_field('stackoverflow_words words', 10_000, at_least=1)
  length: int = checks.integer_field('stackoverflow_words length', 20, at_least=1)
  sentences: int = checks.integer_field('stackoverflow_words sentences', 256, at_least=1)
  test_sentences: int = checks.integer_field('stackoverflow_words test_sentences', 10_000, at_least=1)

  def load(self, request: base.Request) -> federation.Federation:
    path, (train, held_out, _) = self._open(request, 'stackoverflow.sqlite')
    vocabulary = Vocabulary(_words(self.words, request.data_dir))
    features = {'tokens': tf.io.FixedLenFeature([], tf.string)}
    split = tff_files.Split(path, 'train', features, self.sentences)

    def encode(sentences: Any) -> federation.Examples:
      return examples_of_sentences(sentences, vocabulary, self.length)

    division = base.divide_clients(request, train.client_ids)
    tested = self._test_sentences(path, features, held_out.client_ids, request.seed)
    return _on_demand(
      request,
      division,
      lambda ids: encode(split.read(ids)['tokens']),
      _digest_of_large(path, division.clients),
      num_classes=vocabulary.num_tokens,
      test=encode(tested),
      test_set=f"{len(tested):,} sentences of TFF's held-out users, who take part in no round.",
      public_data=(
        f'The vocabulary is the {self.words:,} most frequent words of the list that TFF publishes. TFF counted '
        "them over all training users, so the list is an exact function of clients' data."
      ),
    )

  def _test_sentences(
    self, path: str, features: Mapping[str, Any], client_ids: Sequence[str], seed: int
  ) -> list[bytes]:
    split, sentences = tff_files.Split(path, 'heldout', features, self.test_sentences), list[bytes]()
    for i in base.client_order(len(client_ids), seed):
      sentences.extend(split.read([client_ids[i]])['tokens'][: self.test_sentences - len(sentences)])
      if len(sentences) >= self.test_sentences:
        break
    return sentences


def _words(count: int, data_dir: Optional[str]) -> Sequence[str]:
  """The most frequent words: from the published list, which TFF's loader downloads if no folder is given."""
  if data_dir is None:
    advice = f'Put {WORD_COUNTS} and stackoverflow.sqlite into a folder and give that folder as --data_dir.'
    with reading.downloading(f"{WORD_COUNTS} could neither be found in Keras' cache nor downloaded", advice):
      return list(tff.simulation.datasets.stackoverflow.load_word_counts(vocab_size=count))
  # TFF's loader would look for the packed list and download it if it is not there.
  path = os.path.join(data_dir, WORD_COUNTS)
  expected = f'expected the list of words that TFF publishes: a word and its count on each of at least {count} lines'
  reading.check_is_file(path, f'{expected}. It is in stackoverflow.word_count.tar.bz2')
  words: dict[str, int] = {}
  try:
    with open(path, encoding='utf-8') as f:
      for line in f:
        word, number = line.split()
        words[word] = int(number)
        if len(words) == count:
          return list(words)
  except ValueError as e:
    raise reading.DataFileError(f'{path} is damaged: {expected}, found {e}.') from e
  raise reading.DataFileError(f'{path} is too short: {expected}, found {len(words)}. Give words={len(words)}.')


def _digest_of_large(path: str, ids: Sequence[str]) -> bytes:
  """SHA-256 of a file's size and first and last megabytes, and of names: the whole of it would take minutes to read."""
  sha256, size = hashlib.sha256(), os.path.getsize(path)
  sha256.update(f'{size}\0'.encode())
  with open(path, 'rb') as f:
    sha256.update(f.read(1 << 20))
    f.seek(max(0, size - (1 << 20)))
    sha256.update(f.read(1 << 20))
  sha256.update('\0'.join(ids).encode())
  return sha256.digest()


def examples_of_speeches(speeches: Iterable[bytes], length: int) -> federation.Examples:
  """Speeches as sequences of characters; each speech starts and ends with a mark, and begins a new sequence.

  Args:
    speeches: Texts of one byte a character.
    length: Characters in a sequence.

  Returns:
    x and y int32[n, length]. A sequence takes length + 1 characters, as in TFF's baseline: the last one is only a
    label.
  """
  rows = []
  for speech in speeches:
    tokens = np.concatenate([[_START], _TOKEN_OF_BYTE[np.frombuffer(speech, np.uint8)], [_END]])
    padded = np.full(-(-len(tokens) // (length + 1)) * (length + 1), PADDING, np.int32)
    padded[: len(tokens)] = tokens
    rows.append(padded.reshape(-1, length + 1))
  sentences = np.concatenate(rows) if rows else np.zeros([0, length + 1], np.int32)
  return _labelled(sentences)


class Vocabulary:
  """Words and their tokens. Args: the words, most frequent first."""

  def __init__(self, words: Sequence[str]):
    self._tokens = {word.encode(): token for token, word in enumerate(words, 1)}
    self._unknown = len(words) + 1
    self.start, self.end, self.num_tokens = len(words) + 2, len(words) + 3, len(words) + _SPECIAL

  def tokens(self, words: Sequence[bytes]) -> Sequence[int]:
    """The token of each word."""
    return [self._tokens.get(word, self._unknown) for word in words]


def examples_of_sentences(sentences: Sequence[bytes], vocabulary: Vocabulary, length: int) -> federation.Examples:
  """Sentences as sequences of words, one for each sentence: cut after `length` words, or ended and filled up.

  Args:
    sentences: Words with a space between them.
    vocabulary: The known words.
    length: Words in a sequence.

  Returns:
    x and y int32[n, length].
  """
  rows = np.full([len(sentences), length + 1], PADDING, np.int32)
  for row, sentence in zip(rows, sentences):
    tokens = [vocabulary.start, *vocabulary.tokens(sentence.split()), vocabulary.end][: length + 1]
    row[: len(tokens)] = tokens
  return _labelled(rows)


def _labelled(rows: np.ndarray) -> federation.Examples:
  labels = rows[:, 1:]
  return federation.Examples(
    np.ascontiguousarray(rows[:, :-1]), np.where(labels == PADDING, federation.NO_LABEL, labels).astype(np.int32)
  )
