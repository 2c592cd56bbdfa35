"""Who may take part: for each node, a JSON file with its public key and the ids of its clients.

    {"public_key": "ecdsa-sha2-nistp384 AAAA…", "clients": "0-24,30"}

A node makes it together with its keys, in a folder of its own. The server keeps those of all nodes in one folder, and
reads it anew before each round. Where clients hold the noise, each node also has such a folder, from somebody whom its
clients trust: by it, nodes know each other's signatures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
import os
import re
import secrets
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
import numpy as np

from quap_tff.common import files

# In a node's folder: the key by which Flower knows it, the secret of its clients' noise, and what it tells the server.
NODE_KEY, PUBLIC_KEY, SECRET, CARD = 'node_key', 'node_key.pub', 'secret', 'enrolment.json'
_SECRET_BYTES = 32
_SIGNATURE = ec.ECDSA(hashes.SHA256())


def clients_of(text: str) -> np.ndarray:
  """int64[M], ascending, of a text such as `0-24,30`. Raises `ValueError` for another text, or an id twice."""
  if not re.fullmatch(r'\d+(-\d+)?(,\d+(-\d+)?)*', text):
    raise ValueError(f'clients must be ids and ranges of them, such as 0-24,30, found {text!r}.')
  ends = [list(map(int, part.split('-'))) for part in text.split(',')]
  clients = np.concatenate([np.arange(part[0], part[-1] + 1) for part in ends])
  if len(np.unique(clients)) != len(clients):
    raise ValueError(f'{text} has a client twice. Give each id once.')
  return np.sort(clients)


def new_node(folder: str, clients: str) -> None:
  """Makes a node's folder, with its keys. Only its owner can read what is secret.

  Raises:
    ValueError: If the folder exists, or these are no clients.
  """
  if os.path.lexists(folder):
    raise ValueError(f'{folder} already exists: a key is for one run. Give a new folder.')
  clients_of(clients)
  key = ec.generate_private_key(ec.SECP384R1())
  private = key.private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
  )
  public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
  with files.new_folder(folder) as unfinished:
    for name, content in ((NODE_KEY, private), (SECRET, secrets.token_bytes(_SECRET_BYTES))):
      with files.new_private(os.path.join(unfinished, name)) as f:
        f.write(content)
    files.write(os.path.join(unfinished, PUBLIC_KEY), public)
    files.write_json(os.path.join(unfinished, CARD), {'public_key': public.decode(), 'clients': clients})


def secret_of(folder: str) -> bytes:
  """The secret of a node's clients, 32 bytes; raises `ValueError` if the node has none."""
  path = os.path.join(folder, SECRET)
  try:
    with open(path, 'rb') as f:
      secret = f.read()
  except OSError:
    secret = b''
  if not folder or len(secret) != _SECRET_BYTES:
    raise ValueError(
      f'This node has no key for the noise of its clients: {path} must hold {_SECRET_BYTES} bytes. Make a folder with '
      "python -m quap_tff.flower enrol FOLDER --clients=…, and name it in the node's configuration: folder=…."
    )
  return secret


def signed(folder: str, message: bytes) -> bytes:
  """A node's signature, by the key in its folder; raises `ValueError` if there is none."""
  path = os.path.join(folder, NODE_KEY)
  try:
    with open(path, 'rb') as f:
      key = serialization.load_ssh_private_key(f.read(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
      raise ValueError('it is a key of another kind')
  except (OSError, ValueError) as error:
    raise ValueError(f'{path} cannot be read ({error}). It is the key that was made with the folder.') from None
  return key.sign(message, _SIGNATURE)


def is_signed(public_key: bytes, signature: bytes, message: bytes) -> bool:
  """True if this is the signature of the node with this public key (PEM)."""
  key = serialization.load_pem_public_key(public_key)
  try:
    key.verify(signature, message, _SIGNATURE)  # type: ignore[union-attr, call-arg, arg-type]
  except (InvalidSignature, TypeError):
    return False
  return True


def clients_text(folder: str) -> str:
  """The clients of a node, as its card has them; raises `ValueError` if it has none."""
  path = os.path.join(folder, CARD)
  try:
    return files.read_json(path)['clients']
  except (OSError, ValueError, LookupError, TypeError) as error:
    raise ValueError(
      f'{path} cannot be read ({error}). Make the folder by python -m quap_tff.flower enrol {folder} --clients=….'
    ) from None


class Enrolled:
  """The nodes that may take part, and their clients.

  Attributes:
    clients: int64[M_k] by public key (PEM): the clients of each node.
    names: The name of each node by public key: that of its file, without .json.
  """

  def __init__(self, folder: str):
    """Reads the files of a folder; raises `ValueError` if one is damaged, or two nodes have one key or one client."""
    self.clients: dict[bytes, np.ndarray] = {}
    self.names: dict[bytes, str] = {}
    owners: dict[int, str] = {}
    try:
      names = sorted(name for name in os.listdir(folder) if name.endswith('.json'))
    except OSError as error:
      raise ValueError(f'The enrolment folder cannot be read: {error}. It holds a JSON file of each node.') from None
    for name in names:
      key, clients = _card(os.path.join(folder, name))
      if key in self.clients:
        raise ValueError(f'{folder}/{name} has the key of another node. Remove one of the two files.')
      for client in clients.tolist():
        if client in owners:
          raise ValueError(
            f'Client {client} is enrolled in {owners[client]} and in {name}. A client has one id and one node: give '
            'one of the two another id, or remove it.'
          )
        owners[client] = name
      self.clients[key], self.names[key] = clients, name.removesuffix('.json')

  @property
  def everybody(self) -> np.ndarray:
    """int64[N], ascending: the clients of all nodes."""
    return np.sort(np.concatenate([np.zeros(0, np.int64), *self.clients.values()]))

  def keys_of(self, nodes: Mapping[int, np.ndarray]) -> dict[int, bytes]:
    """The public key (PEM) of each node, by the clients that it has.

    Args:
      nodes: int64[M_k] by node id.

    Raises:
      ValueError: If the clients of a node are not enrolled at one node, or two nodes have clients of one.
    """
    known: dict[int, bytes] = {}
    for node, clients in nodes.items():
      keys = [key for key, own in self.clients.items() if np.isin(clients, own).all()]
      if len(keys) != 1 or keys[0] in known.values():
        raise ValueError(
          f'The clients {clients.tolist()} are said to be at a node of their own, and the enrolment folder knows none '
          'that has them alone. Give all nodes, and the server, one folder.'
        )
      known[node] = keys[0]
    return known

  def present(self, nodes: Iterable[Any], cohort: np.ndarray) -> Mapping[int, np.ndarray]:
    """int64[M_k] by node id: those of the cohort who are at each node that is connected, if anybody is.

    Args:
      nodes: From `Grid.get_nodes`. Flower has checked that each holds its private key.
      cohort: int64[M], clients.
    """
    return those_of({node.node_id: self.clients.get(bytes(node.public_key), cohort[:0]) for node in nodes}, cohort)

  def names_at(self, nodes: Iterable[Any]) -> dict[int, str]:
    """The name of each connected node that is enrolled, by node id."""
    keys = {node.node_id: bytes(node.public_key) for node in nodes}
    return {node: self.names[key] for node, key in keys.items() if key in self.names}

  def away(self, nodes: Iterable[Any], cohort: np.ndarray) -> dict[str, int]:
    """The number of clients of a cohort by name of each node that has some and is not connected."""
    keys = {bytes(node.public_key) for node in nodes}
    missing = {self.names[key]: own for key, own in self.clients.items() if key not in keys}
    counts = {name: len(np.intersect1d(own, cohort)) for name, own in missing.items()}
    return {name: count for name, count in counts.items() if count}


def those_of(clients: Mapping[int, np.ndarray], cohort: np.ndarray) -> Mapping[int, np.ndarray]:
  """int64[M_k] by node id: the clients of nodes that are in a cohort, without the nodes that have none."""
  present = {node: np.intersect1d(own, cohort) for node, own in clients.items()}
  return {node: own for node, own in present.items() if len(own)}


def _card(path: str) -> tuple[bytes, np.ndarray]:
  try:
    card = files.read_json(path)
    key = serialization.load_ssh_public_key(card['public_key'].encode())
    pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return pem, clients_of(card['clients'])
  except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
    raise ValueError(
      f'{path} must have public_key and clients ({error}). Copy {CARD} of the node there again.'
    ) from None
