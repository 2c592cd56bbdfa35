"""The masks of the secure sum, which cancel in the sum of all nodes.

    PRG(s) = ChaCha20(key = s, nonce = SHA-256(session)[:12]), as words of 32 bits
    y_i = x_i + PRG(b_i) + Σ_{j > i} PRG(s_ij) - Σ_{j < i} PRG(s_ij)   mod 2³²,  where s_ij = s_ji

The session is what both ends of a mask must agree on: the history that the server tells, and the nodes between which
there are masks. Two nodes that were told different things have masks that do not cancel.
"""

from __future__ import annotations

from collections.abc import Mapping
import hashlib

from cryptography.hazmat.primitives.ciphers import algorithms
from cryptography.hazmat.primitives.ciphers import Cipher
import numpy as np

# What both ends must have. Another way to make keys, shares or masks needs another name.
NAME = 'x25519-chacha20-1'
MODULUS = 2**32
_NONCE_BYTES = 12
_FROM_BLOCK_0 = bytes(4)


def generated(session: bytes, secret: bytes, size: int) -> np.ndarray:
  """A mask, uint32[size], uniform in [0, 2³²).

  Args:
    session: What both ends of the mask agree on.
    secret: 32 bytes. It makes one mask in each session.
    size: The number of entries.
  """
  nonce = _FROM_BLOCK_0 + hashlib.sha256(session).digest()[:_NONCE_BYTES]
  stream = Cipher(algorithms.ChaCha20(secret, nonce), mode=None).encryptor()
  # Zeros, encrypted: the bare stream.
  return np.frombuffer(stream.update(bytes(4 * size)), '<u4').astype(np.uint32)


def between(session: bytes, node: int, other: int, secret: bytes, size: int) -> np.ndarray:
  """The mask that `node` adds for `other`, uint32[size]: the negative of what `other` adds for `node`."""
  mask = generated(session, secret, size)
  return mask if node < other else np.negative(mask)


def masked(session: bytes, node: int, vector: np.ndarray, seed: bytes, secrets: Mapping[int, bytes]) -> np.ndarray:
  """A node's vector with all of its masks, y_i: uint32[D].

  Args:
    session: What all nodes in the sum agree on.
    node: i.
    vector: x_i, uint32[D]. Sums of uint32 are modulo 2³².
    seed: b_i.
    secrets: s_ij by the id of each other node.
  """
  total = vector + generated(session, seed, len(vector))
  for other, secret in secrets.items():
    total += between(session, node, other, secret, len(vector))
  return total
