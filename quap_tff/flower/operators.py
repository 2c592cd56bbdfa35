"""Who asks: the operator of a run has a key, and a node answers nothing that this key has not signed.

The operator keeps the private half, with which the ServerApp signs every message to a node. Each node has the public
half, which came from the operator and not through the SuperLink. So nodes tell nothing to a person who runs the
SuperLink, or starts another app on it. Such a person can withhold messages, and deliver them twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import hashlib
import json
import os
from typing import Any, Optional

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from flwr.app import ArrayRecord
from flwr.app import ConfigRecord
from flwr.app import Message
from flwr.app import RecordDict
from flwr.serverapp import Grid

from quap_tff.certificates.folders import signatures
from quap_tff.common import files
from quap_tff.flower import messages

# In the operator's folder. Only the second one is given to nodes.
KEY, PUBLIC_KEY = 'operator_key', 'operator_key.pub'
_RECORD, _SIGNATURE = 'operator', 'signature'
_PURPOSE = b'quap_tff message to a node\n'


def new_operator(folder: str) -> None:
  """Makes an operator's folder, with a new key. Raises `ValueError` if the folder exists."""
  if os.path.lexists(folder):
    raise ValueError(f'{folder} already exists, and a key in it would be lost. Give a new folder.')
  key = ed25519.Ed25519PrivateKey.generate()
  private = key.private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
  )
  public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
  with files.new_folder(folder) as unfinished:
    with files.new_private(os.path.join(unfinished, KEY)) as f:
      f.write(private)
    files.write(os.path.join(unfinished, PUBLIC_KEY), public)


def private_key(folder: str) -> ed25519.Ed25519PrivateKey:
  """The key in an operator's folder. Raises `ValueError` if the folder has no key."""
  return signatures.read_private_key(os.path.join(folder, KEY))


def public_key(path: str) -> ed25519.Ed25519PublicKey:
  """The public half in a file. Raises `ValueError` if it holds none."""
  return signatures.read_public_key(path)


class SigningGrid:
  """Flower's grid, which signs every message before it is sent."""

  def __init__(self, grid: Grid, key: ed25519.Ed25519PrivateKey):
    self._grid, self._key = grid, key

  def get_nodes(self) -> Iterable[Any]:
    """The nodes that are connected."""
    return self._grid.get_nodes()

  def send_and_receive(self, sent: Sequence[Message], *, timeout: Optional[float] = None) -> Iterable[Message]:
    """Signs the messages, sends them, and gives the replies that come within `timeout` seconds."""
    contents = {id(message.content): message.content for message in sent}
    for content in contents.values():
      sign(content, self._key)
    return self._grid.send_and_receive(sent, timeout=timeout)


def sign(content: RecordDict, key: ed25519.Ed25519PrivateKey) -> None:
  """Adds the operator's signature of all other records."""
  content[_RECORD] = ConfigRecord({_SIGNATURE: key.sign(_to_sign(content))})


def check(content: RecordDict, key: ed25519.Ed25519PublicKey) -> None:
  """Raises `RefusedRoundError` unless the operator has signed a message as it is."""
  signature = content.config_records.get(_RECORD, ConfigRecord()).get(_SIGNATURE)
  if not isinstance(signature, bytes):  # None was given, or a value of another type. The empty one is refused, too.
    signature = b''
  try:
    key.verify(signature, _to_sign(content))
  except InvalidSignature:
    raise messages.RefusedRoundError(
      'The operator whose key this node has did not sign this message, or it was changed on its way. Let the server '
      'sign by that key, or start the node with the key of the operator of this run.'
    ) from None


def _to_sign(content: RecordDict) -> bytes:
  """A text that no other content has."""
  digests = {name: _digest(record) for name, record in content.items() if name != _RECORD}
  return _PURPOSE + json.dumps(digests, sort_keys=True).encode()


def _digest(record: Any) -> list[Any]:
  if isinstance(record, ArrayRecord):
    return ['arrays', *([name, *messages.array_digest(array)] for name, array in sorted(record.items()))]
  return [type(record).__name__, *([name, _plain(value)] for name, value in sorted(record.items()))]


def _plain(value: Any) -> Any:
  """A value of a record for JSON, in which bytes and texts differ."""
  if isinstance(value, bytes):
    return {'sha256': hashlib.sha256(value).hexdigest()}
  if isinstance(value, list):
    return [_plain(one) for one in value]
  return value
