"""The additions of the secure sum to the messages of Flower's SecAgg+, and a node's state between stages.

setup    terms: masks, round, digest, nodes, sizes, clients     reply    agreed: masks, digest, signature
share    signatures: that of each node, of its public keys, the run and the digest
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flwr.app import ConfigRecord
from flwr.app import RecordDict
import numpy as np

from quap_tff.flower import messages
from quap_tff.flower.secure_sum import masks
from quap_tff.mechanisms.held import guard

TERMS, AGREED, SIGNATURES = 'terms', 'agreed', 'signatures'
# The records of `messages.answer_content` that the server sees of each node.
PLAIN = ('answered', 'came', 'plain')


class Session(NamedTuple):
  """A round at a node.

  Attributes:
    masks: The generator of the server's masks; '' for Flower's own.
    round_num: t.
    digest: That of the history, see `guard.ClientGuard.digest`.
    nodes: int64[M_k] by node id: the clients of each announced node.
    parties: The nodes that take part, as far as this one has been told.
    stage: The last stage that this node has answered; '' before the first one.
  """

  masks: str
  round_num: int
  digest: str
  nodes: Mapping[int, np.ndarray]
  parties: Sequence[int] = ()
  stage: str = ''

  def as_record(self) -> ConfigRecord:
    """The session as a record."""
    return ConfigRecord(
      {
        'masks': self.masks,
        'round': self.round_num,
        'digest': self.digest,
        'nodes': list(self.nodes),
        'sizes': [len(clients) for clients in self.nodes.values()],
        'clients': [client for clients in self.nodes.values() for client in clients.tolist()],
        'parties': list(self.parties),
        'stage': self.stage,
      }
    )

  @classmethod
  def from_record(cls, record: ConfigRecord) -> Session:
    """The session in such a record; raises `LookupError`, `TypeError` or `ValueError` if it is invalid."""
    sizes, clients = (np.array(record[name], np.int64) for name in ('sizes', 'clients'))
    if len(sizes) != len(record['nodes']) or sizes.sum() != len(clients) or (sizes < 1).any():
      raise ValueError('sizes must say how many clients each node has, at least one')
    parts = dict(zip(record['nodes'], np.split(clients, np.cumsum(sizes)[:-1])))
    if len(parts) != len(sizes):
      raise ValueError('a node is there twice')
    return cls(
      str(record['masks']),
      int(record['round']),
      str(record['digest']),
      parts,
      list(record['parties']),
      str(record['stage']),
    )

  @classmethod
  def from_setup(cls, content: RecordDict) -> Session:
    """The session in the server's first message, before any stage. Without terms, `masks` is ''."""
    if TERMS not in content.config_records:
      # A server of Flower's own. The node refuses it in words of its own.
      return cls('', 0, '', {})
    try:
      # A server that says which stages were answered is not believed.
      return cls.from_record(content.config_records[TERMS])._replace(parties=(), stage='')
    except (LookupError, TypeError, ValueError) as error:
      raise messages.RefusedRoundError(f'The server sent invalid terms of a secure sum: {error}.') from None


def to_sign(run: str, digest: str, node: int, keys: Sequence[bytes]) -> bytes:
  """The text that a node signs: that these are its public keys in the round of this run with this history."""
  # The first line says what is signed, so that no signature for something else fits here.
  lines = ['quap_tff secure sum', masks.NAME, run, digest, str(node), *(key.hex() for key in keys)]
  return '\n'.join(lines).encode()


def digest_of(plan: guard.PublicPlan, history: Sequence[messages.Link]) -> str:
  """The digest of a chain with these links, in hex; raises `messages.RefusedRoundError` if they make no chain."""
  chain = guard.Chain(plan)
  try:
    for link in history:
      chain = chain.then(*link)
  except ValueError as error:
    raise messages.RefusedRoundError(str(error)) from None
  return chain.digest.hex()
