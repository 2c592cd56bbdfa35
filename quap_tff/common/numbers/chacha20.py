"""ChaCha20, a stream cipher, as a generator of random bits in TensorFlow's integer operations (RFC 8439, section 2.3).

With a secret key of 256 random bits, nobody is known to tell its stream from random bits. The integers are the same on
every machine and runtime. A stream is named by a key and a nonce; no two uses may share both.
"""

from __future__ import annotations

from typing import Optional, Union

import numpy as np

from quap_tff.common.lazy import tf
from quap_tff.common.numbers import seeds

# The constants of the first row, "expand 32-byte k".
_CONSTANTS = np.frombuffer(b'expand 32-byte k', np.uint32)
_DOUBLE_ROUNDS = 10
# Pairs of 32-bit words in a block.
_WORDS_OF_BLOCK = 8


def initial_key(seed: Optional[int], stream: int) -> tf.Tensor:
  """A key, int64[4].

  Args:
    seed: A non-negative integer makes the key, and so all noise, reproducible and public. None draws 256 bits from the
      operating system's entropy.
    stream: A number for the use of the seed.
  """
  if seed is not None:
    return tf.constant([seed, stream, 0, 0], tf.int64)
  return seeds.entropy(4)


def blocks(key: tf.Tensor, nonces: tf.Tensor, count: Union[int, tf.Tensor], first: int = 0) -> tf.Tensor:
  """uint32[K, count, 16]: the blocks of K streams, each word as RFC 8439 writes it in little-endian order.

  Args:
    key: int64[4].
    nonces: uint32[K, 3], one for each stream.
    count: The number of blocks of each, at most 2^32 - first.
    first: The counter of the first block.
  """
  streams, count = tf.shape(nonces)[0], tf.cast(count, tf.int32)
  counters = tf.tile(tf.cast(first + tf.range(count), tf.uint32), [streams])

  def columns(values: tf.Tensor) -> tf.Tensor:
    """Repeats four words for each block."""
    return tf.tile(tf.reshape(values, [4, 1]), [1, tf.size(counters)])

  words = tf.reshape(tf.bitcast(key, tf.uint32), [2, 4])
  last = tf.concat([counters[tf.newaxis], tf.repeat(tf.transpose(nonces), count, axis=1)], axis=0)
  rows = (columns(_CONSTANTS), columns(words[0]), columns(words[1]), last)

  def double_round(index: tf.Tensor, a: tf.Tensor, b: tf.Tensor, c: tf.Tensor, d: tf.Tensor) -> tuple[tf.Tensor, ...]:
    a, b, c, d = _quarter_rounds(a, b, c, d)
    a, b, c, d = _quarter_rounds(a, tf.roll(b, -1, 0), tf.roll(c, -2, 0), tf.roll(d, -3, 0))
    return index + 1, a, tf.roll(b, 1, 0), tf.roll(c, 2, 0), tf.roll(d, 3, 0)

  _, *mixed = tf.while_loop(lambda index, *_: index < _DOUBLE_ROUNDS, double_round, (0, *rows))
  whole = tf.transpose(tf.concat([old + new for old, new in zip(rows, mixed)], axis=0))
  return tf.reshape(whole, [streams, count, 16])


def integers(key: tf.Tensor, nonces: tf.Tensor, count: Union[int, tf.Tensor]) -> tf.Tensor:
  """int64[K, count]: the first words of K streams, each uniform over all 2^64 values.

  Args:
    key: int64[4].
    nonces: uint32[K, 3], one for each stream.
    count: How many words of each.
  """
  count = tf.cast(count, tf.int32)
  whole = blocks(key, nonces, (count + _WORDS_OF_BLOCK - 1) // _WORDS_OF_BLOCK)
  return tf.bitcast(tf.reshape(whole, [tf.shape(nonces)[0], -1, 2]), tf.int64)[:, :count]


def derived_key(key: tf.Tensor, nonce: tf.Tensor) -> tf.Tensor:
  """int64[4]: a key of its own for each nonce (uint32[3]), from which nobody can compute `key`."""
  return integers(key, nonce[tf.newaxis], 4)[0]


def nonce(*parts: Union[int, tf.Tensor]) -> tf.Tensor:
  """uint32[3] from up to three integers in [0, 2^32)."""
  padded = [*parts, *[0] * (3 - len(parts))]
  return tf.stack([tf.cast(part, tf.uint32) for part in padded])


def _quarter_rounds(
  a: tf.Tensor, b: tf.Tensor, c: tf.Tensor, d: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
  a = a + b
  d = _rotated(tf.bitwise.bitwise_xor(d, a), 16)
  c = c + d
  b = _rotated(tf.bitwise.bitwise_xor(b, c), 12)
  a = a + b
  d = _rotated(tf.bitwise.bitwise_xor(d, a), 8)
  c = c + d
  b = _rotated(tf.bitwise.bitwise_xor(b, c), 7)
  return a, b, c, d


def _rotated(words: tf.Tensor, bits: int) -> tf.Tensor:
  # A product and a sum modulo 2^32 are faster in TensorFlow than a shift and an "or".
  return words * tf.constant(2**bits, tf.uint32) + tf.bitwise.right_shift(words, tf.constant(32 - bits, tf.uint32))
