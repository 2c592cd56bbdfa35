"""Seeds of the stateless generators: int64[2] tensors in server state, so that a resumed run draws the same numbers.

A seed that is not given comes from the operating system, see `entropy`.
"""

from __future__ import annotations

from collections.abc import Sequence
import secrets
from typing import Optional, Union

import numpy as np

from quap_tff.common.lazy import tf

# One stream for each use, so that no two uses of one run seed ever draw the same numbers. A program adds its own
# under a number that no other use has.
STREAMS = {'mechanism': 1, 'client_update': 2, 'canaries': 4, 'sparsity': 15}


def initial_seed(seed: Optional[int], stream: str) -> tf.Tensor:
  """The seed at round 0, an int64[2] tensor.

  Args:
    seed: A non-negative integer for a reproducible run; `None` draws one from the operating system's entropy.
    stream: The use, a key of `STREAMS`.
  """
  if seed is not None:
    return tf.constant([seed, STREAMS[stream]], tf.int64)
  return entropy(2)


def entropy(size: int) -> tf.Tensor:
  """int64[size] from the operating system's entropy.

  TensorFlow's own non-deterministic ops use seeds of 32 bits, too few to hide noise, so the bits come from Python's
  `secrets`. TensorFlow's are mixed in only so that two runs of one serialized computation do not share their noise.
  """
  drawn = tf.constant(np.frombuffer(secrets.token_bytes(8 * size), np.int64))
  return tf.bitwise.bitwise_xor(drawn, tf.raw_ops.NonDeterministicInts(shape=[size], dtype=tf.int64))


def fold_in(seed: tf.Tensor, *values: tf.Tensor) -> tf.Tensor:
  """A new int64[2] seed for each distinct sequence of integer scalars `values` (a round, a client, a layer)."""
  # `stateless_fold_in` would keep only 64 secret bits: its result is one hashed word and `value` itself.
  for value in values:
    hashed = integers(seed, [2])
    seed = tf.bitwise.bitwise_xor(hashed, tf.stack([tf.zeros([], tf.int64), tf.cast(value, tf.int64)]))
  return seed


# TensorFlow's own functions draw the same numbers with `alg='philox'`. But they derive key and counter from the seed by
# some forty ops, which were a third of all ops of an aggregation, and took as much of the time to trace it.


def integers(seed: tf.Tensor, shape: Union[Sequence[Union[int, tf.Tensor]], tf.Tensor]) -> tf.Tensor:
  """int64 of `shape`, uniform over all of them, as `tf.random.stateless_uniform(…, alg='philox')` draws them."""
  return tf.raw_ops.StatelessRandomUniformFullIntV2(shape=shape, dtype=tf.int64, **_philox(seed))


def normal(seed: tf.Tensor, shape: Union[Sequence[Union[int, tf.Tensor]], tf.Tensor]) -> tf.Tensor:
  """float64 N(0, 1) of `shape`, as `tf.random.stateless_normal(…, alg='philox')` draws them."""
  return tf.raw_ops.StatelessRandomNormalV2(shape=shape, dtype=tf.float64, **_philox(seed))


def _philox(seed: tf.Tensor) -> dict[str, Union[int, tf.Tensor]]:
  key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
  return dict(key=key, counter=counter, alg=tf.random.Algorithm.PHILOX.value)
