"""Shares of a node's two secrets, and how they reach the other nodes through the server.

    split:   for each half of a secret, a polynomial q over GF(2¹²⁸) with q(0) = the half, random, of degree t - 1
             the share of the node at position p is q(p + 1), for both halves
    sealed:  nonce ‖ E_auth(k_ij; nonce; share; associated data: session, i, j)          ChaCha20-Poly1305 (RFC 8439)

Any t shares give the secret, and fewer say nothing about it. Positions are those of the announced nodes, in ascending
order of their ids, so no message says which share it has.
"""

from __future__ import annotations

from collections.abc import Mapping
import os
from typing import NamedTuple

from Crypto.Protocol import SecretSharing
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import aead

from quap_tff.flower.secure_sum import agreement

_HALF_BYTES, _NONCE_BYTES = 16, 12


class Shares(NamedTuple):
  """One node's share of each of another node's secrets.

  Attributes:
    of_seed: Of the seed of its own mask, b_i in the paper. It opens a node that is in the sum.
    of_key: Of its secret key for masks, sk¹_i in the paper. It opens the masks of a node that dropped out.
  """

  of_seed: bytes
  of_key: bytes


def split(secret: bytes, threshold: int, count: int) -> list[bytes]:
  """`count` shares of 32 bytes, by position, of which `threshold` give the secret, also of 32 bytes."""
  halves = [secret[:_HALF_BYTES], secret[_HALF_BYTES:]]
  # The library shares blocks of 16 bytes, in the order of positions.
  first, second = (SecretSharing.Shamir.split(threshold, count, half) for half in halves)
  return [a + b for (_, a), (_, b) in zip(first, second)]


def combined(shares: Mapping[int, bytes]) -> bytes:
  """The secret of some shares by position.

  With fewer shares than the threshold, or a wrong one, it is another secret: `server` looks whether it fits.
  """
  first = [(position + 1, share[:_HALF_BYTES]) for position, share in shares.items()]
  second = [(position + 1, share[_HALF_BYTES:]) for position, share in shares.items()]
  return SecretSharing.Shamir.combine(first) + SecretSharing.Shamir.combine(second)


def sealed(key: bytes, session: bytes, source: int, destination: int, plain: Shares) -> bytes:
  """Shares as the server may see them.

  Args:
    key: The nodes' agreed key.
    session: What all nodes of the round agree on.
    source: The node whose secrets are shared.
    destination: The node that gets the shares.
    plain: The shares.
  """
  # Both directions have one key, and a node that was restarted may share again: so nonces are drawn.
  nonce = os.urandom(_NONCE_BYTES)
  context = _context(session, source, destination)
  return nonce + aead.ChaCha20Poly1305(key).encrypt(nonce, plain.of_seed + plain.of_key, context)


def opened(key: bytes, session: bytes, source: int, destination: int, text: bytes) -> Shares:
  """The shares in what `sealed` gives, for the same arguments; raises `ValueError` if it is anything else."""
  try:
    context = _context(session, source, destination)
    plain = aead.ChaCha20Poly1305(key).decrypt(text[:_NONCE_BYTES], text[_NONCE_BYTES:], context)
  except (InvalidTag, ValueError):
    raise ValueError(
      f'What is said to be from node {source} for node {destination} is not, or of another round'
    ) from None
  return Shares(plain[: agreement.KEY_BYTES], plain[agreement.KEY_BYTES :])


def _context(session: bytes, source: int, destination: int) -> bytes:
  return session + f'{source} to {destination}'.encode()
