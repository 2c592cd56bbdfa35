"""Datasets whose clients are real, read through TFF's loaders: writers, roles of plays, users of a forum.

TensorFlow is loaded when the first of them is read, not when their flags are.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from data import base
from quap_tff.common import checks
from quap_tff.common import lazy

femnist = lazy.module('data.femnist')
tff_datasets = lazy.module('data.tff_datasets')


@dataclasses.dataclass(frozen=True)
class Femnist(base.Dataset):
  """Federated EMNIST with its writers as clients, 62 classes: digits, upper and lower case; float32[28, 28, 1].

  The published file stores paper as 1.0 and ink as 0.0, the opposite of MNIST. Pixels are turned over as they are read,
  so that ink is 1.0 in every dataset of this package and a model or a feature map may move between them.

  Attributes:
    published_polarity: Keep the file's own polarity, which TFF's baselines train on.
    test_writers: The share of the writers, in [0, 1), who are no clients and on whose examples models are tested. With
      0, as TFF has it, models are tested on held-out examples of the clients themselves.
  """

  has_own_clients = True
  image_shape = (28, 28, 1)
  only_digits: ClassVar[bool] = False
  num_classes: ClassVar[int] = 62

  published_polarity: bool = False
  test_writers: float = 0.0

  def __post_init__(self):
    checks.number('femnist test_writers', self.test_writers, at_least=0, below=1)

  @property
  def tests_clients(self):
    return not self.test_writers

  def load(self, request):
    return femnist.load(self, request)


@dataclasses.dataclass(frozen=True)
class FemnistDigits(Femnist):
  """The digits of `Femnist` only, 10 classes."""

  only_digits = True
  num_classes = 10


@dataclasses.dataclass(frozen=True)
class Cifar100(base.Dataset):
  """TFF's federated CIFAR-100: 500 clients with 100 photographs each, 100 classes; float32[32, 32, 3], RGB.

  TFF drew the clients by the Pachinko allocation method: each has a few of the 20 coarse labels, and of those the fine
  ones. The test set is CIFAR-100's own, and holds no client's data. A client is read from cifar100.sqlite when it takes
  part.
  """

  has_own_clients = True
  image_shape = (32, 32, 3)

  def load(self, request):
    return tff_datasets.cifar100(request)


@dataclasses.dataclass(frozen=True)
class Shakespeare(base.Dataset):
  """TFF's federated Shakespeare: each of 715 roles of the plays is a client; next-character prediction.

  An example is a sequence of `length` characters, and its labels are the characters that follow each of them. A speech
  starts and ends with a mark, and its last sequence is filled up with padding, which has no labels. The vocabulary, of
  90 tokens, is a constant of TFF's baseline. A client is read from shakespeare.sqlite when it takes part.

  Attributes:
    length: Characters in a sequence.
    test_roles: The share of the roles, in [0, 1), that are no clients and on whose speeches models are tested. With 0,
      as TFF has it, models are tested on held-out speeches of the clients themselves.
  """

  has_own_clients = True
  is_sequences = True

  length: int = 80
  test_roles: float = 0.0

  def __post_init__(self):
    checks.integer('shakespeare length', self.length, at_least=1)
    checks.number('shakespeare test_roles', self.test_roles, at_least=0, below=1)

  @property
  def tests_clients(self):
    return not self.test_roles

  def load(self, request):
    return tff_datasets.shakespeare(self, request)


@dataclasses.dataclass(frozen=True)
class StackOverflowWords(base.Dataset):
  """TFF's Stack Overflow: each of 342,477 users is a client; next-word prediction.

  An example is a sentence, cut or filled up to `length` words, and its labels are the words that follow. The vocabulary
  is the head of the list of words that TFF publishes with the file. That list was counted over the training users.
  Models are tested on sentences of TFF's held-out users, who are no clients. A client is read from stackoverflow.sqlite
  when it takes part.

  Attributes:
    words: Words in the vocabulary. Padding, an unknown word, the start and the end of a sentence come on top.
    length: Words in a sequence.
    sentences: The most sentences of a client that are used, the first in the file.
    test_sentences: Sentences in the test set.
  """

  has_own_clients = True
  is_sequences = True

  words: int = 10_000
  length: int = 20
  sentences: int = 256
  test_sentences: int = 10_000

  def __post_init__(self):
    for field in dataclasses.fields(self):
      checks.integer(f'stackoverflow_words {field.name}', getattr(self, field.name), at_least=1)

  def load(self, request):
    return tff_datasets.stackoverflow_words(self, request)
