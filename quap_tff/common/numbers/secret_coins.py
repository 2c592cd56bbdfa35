"""Coins that stay secret: exact, and from ChaCha20 (RFC 8439), a cryptographic stream."""

import numpy as np

from quap_tff.common import checks
from quap_tff.common import lazy

ciphers = lazy.module('cryptography.hazmat.primitives.ciphers')
algorithms = lazy.module('cryptography.hazmat.primitives.ciphers.algorithms')

KEY_BITS = 256
_KEY_BYTES, _WORD_BYTES = 32, 8


def heads(key: int, round_num: int, rates: np.ndarray) -> np.ndarray:
  """The clients whose coins show heads in a round, int64[M] in ascending order.

  Client i comes if its word, uniform over 64 bits, is below q_i·2^64, rounded down. So its rate is never above q_i, and
  it is exactly q_i from 2^-12 on.

  Args:
    key: In [0, 2^256). The coins are secret for as long as it is, and it must have no other use.
    round_num: In [0, 2^64).
    rates: float64[N] in [0, 1]. At 0 a client never comes, and at 1 always.

  Raises:
    ValueError: If the key or the round is out of range.
  """
  checks.integer('key of secret coins', key, at_least=0, at_most=2**KEY_BITS - 1)
  checks.integer('round_num', round_num, at_least=0, at_most=2**64 - 1)
  # The counter of blocks comes first, from 0.
  nonce = bytes(_WORD_BYTES) + round_num.to_bytes(_WORD_BYTES, 'little')
  stream = ciphers.Cipher(algorithms.ChaCha20(key.to_bytes(_KEY_BYTES, 'little'), nonce), mode=None).encryptor()
  words = np.frombuffer(stream.update(bytes(_WORD_BYTES * len(rates))), '<u8')
  always = rates >= 1
  # A float64 times a power of two is exact, and so is a whole one below 2^64 as an integer.
  limits = np.floor(np.where(always, 0.0, rates) * 2.0**64).astype(np.uint64)
  return np.flatnonzero(always | (words < limits))
