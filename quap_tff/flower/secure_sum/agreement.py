"""Key agreement of two nodes, KA in the paper: X25519 (RFC 7748), and HKDF with SHA-256 (RFC 5869).

    KA.gen:    sk of 32 random bytes,  pk = X25519(sk, 9)
    KA.agree:  HKDF(X25519(sk_i, pk_j), info = purpose) = HKDF(X25519(sk_j, pk_i), info = purpose)

A node draws two pairs for each round: one for masks, of which the secret key is shared, and one for shares.
"""

from __future__ import annotations

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import x25519
from cryptography.hazmat.primitives.kdf import hkdf

KEY_BYTES = 32
# What an agreed key is for. One key has one purpose.
FOR_MASKS, FOR_SHARES = b'quap_tff secure sum: mask', b'quap_tff secure sum: shares'


def new_private_key() -> bytes:
  """A secret key, 32 bytes of the operating system's entropy."""
  return x25519.X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
  """The public key of a secret key, 32 bytes."""
  return x25519.X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def check_public_key(public: bytes) -> None:
  """Raises `ValueError` unless two nodes can agree on a key by this public key."""
  agreed(new_private_key(), public, FOR_MASKS)


def agreed(private: bytes, public: bytes, purpose: bytes) -> bytes:
  """The key that two nodes agree on, 32 bytes.

  Args:
    private: The secret key of one of them.
    public: The public key of the other one.
    purpose: `FOR_MASKS` or `FOR_SHARES`.

  Raises:
    ValueError: If a key has another length, or the public key is of small order, so that anybody knows the result.
  """
  try:
    other = x25519.X25519PublicKey.from_public_bytes(public)
    shared = x25519.X25519PrivateKey.from_private_bytes(private).exchange(other)
  except ValueError as error:
    raise ValueError(f'A public key must be {KEY_BYTES} bytes of X25519, of no small order ({error}).') from None
  return hkdf.HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=purpose).derive(shared)
