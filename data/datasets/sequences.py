"""Text as sequences of tokens, each with the tokens that follow: speeches of roles, sentences of users.

Token 0 is padding. Then come the known characters or words, one token for all others, and the marks of a text's start
and end, as in TFF's baselines.
"""

from collections.abc import Iterable, Sequence
import string

import numpy as np

from data import federation

PADDING = 0
# The characters of TFF's baseline (its order is another, which does not matter).
CHARACTERS = string.digits + string.ascii_letters + ' !"#$%&\'()*,-./:;?@[]_\n\r'
_SPECIAL = 4  # Padding, an unknown character or word, start, end.
CHARACTER_TOKENS = len(CHARACTERS) + _SPECIAL
_UNKNOWN, _START, _END = (len(CHARACTERS) + i for i in (1, 2, 3))
_TOKEN_OF_BYTE = np.full(256, _UNKNOWN, np.int32)
_TOKEN_OF_BYTE[np.frombuffer(CHARACTERS.encode(), np.uint8)] = np.arange(1, len(CHARACTERS) + 1)


def of_speeches(speeches: Iterable[bytes], length: int) -> federation.Examples:
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
  return _labelled(np.concatenate(rows) if rows else np.zeros([0, length + 1], np.int32))


class Vocabulary:
  """Words and their tokens. Args: the words, most frequent first."""

  def __init__(self, words: Sequence[str]):
    self._tokens = {word.encode(): token for token, word in enumerate(words, 1)}
    self._unknown = len(words) + 1
    self.start, self.end, self.num_tokens = len(words) + 2, len(words) + 3, len(words) + _SPECIAL

  def tokens(self, words: Sequence[bytes]) -> Sequence[int]:
    """The token of each word."""
    return [self._tokens.get(word, self._unknown) for word in words]


def of_sentences(sentences: Sequence[bytes], vocabulary: Vocabulary, length: int) -> federation.Examples:
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
