"""The masks of the secure sum: ChaCha20 in place of Flower's generator, which has a seed of 32 bits.

    mask = ChaCha20(key = the whole shared secret, nonce = SHA-256(session)[:12]), as 32-bit words

The session is what both ends of a mask agree on. Otherwise the two masks do not cancel.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
import contextlib
import functools
import hashlib
import importlib
import math
import threading

from cryptography.hazmat.primitives.ciphers import algorithms
from cryptography.hazmat.primitives.ciphers import Cipher
import numpy as np

# What both ends must have. Another way to make masks needs another name.
NAME = 'chacha20-1'
RANGE = 2**32
_KEY_BYTES, _NONCE_BYTES = 32, 12
_FROM_BLOCK_0 = bytes(4)
# Flower's module, whose name its package hides behind a function. A node that masks holds the lock.
_MOD = importlib.import_module('flwr.client.mod.secure_aggregation.secaggplus_mod')
_GENERATOR = 'pseudo_rand_gen'  # In it: the function that makes masks.
_LOCK = threading.Lock()


def generated(session: bytes, secret: bytes, num_range: int, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
  """A mask. Without `session`, it has the signature of Flower's `pseudo_rand_gen`.

  Args:
    session: What both ends of the mask agree on.
    secret: 32 bytes, or these in base64, as Flower derives keys. It makes one mask in each session.
    num_range: 2³².
    shapes: Those of the arrays.

  Returns:
    int64 arrays of these shapes, uniform in [0, 2³²).

  Raises:
    ValueError: If the secret has another length, or the range is another.
  """
  key = secret if len(secret) == _KEY_BYTES else base64.urlsafe_b64decode(secret)
  if len(key) != _KEY_BYTES or num_range != RANGE:
    raise ValueError(
      f'A mask needs a secret of {_KEY_BYTES} bytes and the range 2^32, found {len(key)} bytes and the range '
      f'{num_range}. Give both ends this version of quap_tff.'
    )
  # The nonce names what both ends of a mask must agree on: the history that the server tells, and the nodes that share
  # keys. So masks of two nodes that were told different things do not cancel.
  nonce = _FROM_BLOCK_0 + hashlib.sha256(session).digest()[:_NONCE_BYTES]
  stream = Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor()
  sizes = [math.prod(shape) for shape in shapes]
  # Zeros, encrypted: the bare stream.
  words = np.frombuffer(stream.update(bytes(4 * sum(sizes))), '<u4').astype(np.int64)
  parts = np.split(words, np.cumsum(sizes)[:-1])
  return [part.reshape(shape) for part, shape in zip(parts, shapes)]


@contextlib.contextmanager
def in_place_of_flowers(session: bytes) -> Iterator[None]:
  """In the block, Flower's mod makes its masks by `generated`."""
  # Flower's function is one for the process, and two nodes in a process have two sessions.
  with _LOCK:
    replaced = getattr(_MOD, _GENERATOR)
    setattr(_MOD, _GENERATOR, functools.partial(generated, session))
    try:
      yield
    finally:
      setattr(_MOD, _GENERATOR, replaced)
