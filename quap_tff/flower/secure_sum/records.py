"""The messages of the four stages, as records of Flower, and what a node keeps from one stage to the next.

             server to node                                     node to server
    setup    terms: masks, round, digest, nodes, settings       agreed: masks, digest, both public keys, signature
    share    keys, signatures: those of each node               shares: a sealed one for each other node
    collect  shares: the sealed one of each other node;         masked: uint32[1 + D];
             the round, as without a secure sum                 answered, came, plain
    unmask   parties: active, dead                              shares: a bare one of each node

Each message of the server names its stage in `told`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import types
from typing import Any, NamedTuple

from flwr.app import Array
from flwr.app import ArrayRecord
from flwr.app import ConfigRecord
from flwr.app import RecordDict
import numpy as np

from quap_tff.flower import messages
from quap_tff.flower.secure_sum import masks
from quap_tff.flower.secure_sum import shares
from quap_tff.flower.secure_sum import terms
from quap_tff.mechanisms.held import guard

TOLD, TERMS, AGREED, KEYS, SIGNATURES = 'told', 'terms', 'agreed', 'keys', 'signatures'
SHARES, MASKED, PARTIES = 'shares', 'masked', 'parties'
SETUP, SHARE, COLLECT, UNMASK = STAGES = ('setup', 'share', 'collect', 'unmask')
# The records of `messages.answer_content` that the server sees of each node.
PLAIN = ('answered', 'came', 'plain')
# The records that a node keeps of a round that is not over.
_KEPT = ('secure_sum', 'secure_sum_secrets', 'secure_sum_keys', 'secure_sum_seed_shares', 'secure_sum_key_shares')


class PublicKeys(NamedTuple):
  """A node's public keys of a round: one to agree on masks, and one to agree on what shares are sealed with."""

  for_masks: bytes
  for_shares: bytes


class Setup(NamedTuple):
  """The announcement of a round.

  Attributes:
    masks: How the server makes keys, shares and masks.
    round_num: t.
    digest: That of the history, see `guard.ClientGuard.digest`.
    nodes: int64[M_k] by node id: the clients of each announced node.
  """

  masks: str
  round_num: int
  digest: str
  nodes: Mapping[int, np.ndarray]

  def session(self, run: str) -> bytes:
    """What all nodes of this round of a run agree on."""
    return terms.session_of(run, self.round_num, self.digest, self.nodes)

  def as_record(self) -> ConfigRecord:
    """The announcement as a record."""
    return ConfigRecord(
      {
        'masks': self.masks,
        'round': self.round_num,
        'digest': self.digest,
        'nodes': list(self.nodes),
        'sizes': [len(clients) for clients in self.nodes.values()],
        'clients': [client for clients in self.nodes.values() for client in clients.tolist()],
      }
    )

  @classmethod
  def from_record(cls, record: Mapping[str, Any]) -> Setup:
    """The announcement in such a record; raises `LookupError`, `TypeError` or `ValueError` if it is invalid."""
    sizes, clients = (np.array(record[name], np.int64) for name in ('sizes', 'clients'))
    if len(sizes) != len(record['nodes']) or sizes.sum() != len(clients) or (sizes < 1).any():
      raise ValueError('sizes must say how many clients each node has, at least one')
    parts = dict(zip(record['nodes'], np.split(clients, np.cumsum(sizes)[:-1])))
    if len(parts) != len(sizes):
      raise ValueError('a node is there twice')
    return cls(str(record['masks']), int(record['round']), str(record['digest']), parts)


class Kept(NamedTuple):
  """What a node keeps of a round that is not over.

  Attributes:
    setup: The announcement.
    stage: The last stage that this node has answered.
    parties: The nodes that take part, as far as this one has been told.
    mask_key: sk¹, by which it agrees on masks.
    share_key: sk², by which it agrees on keys for shares.
    seed: b, of its own mask; empty before the second stage.
    keys: The public keys of each party.
    shares: This node's share of the secrets of each party.
  """

  setup: Setup
  stage: str
  parties: Sequence[int]
  mask_key: bytes
  share_key: bytes
  seed: bytes = b''
  keys: Mapping[int, PublicKeys] = types.MappingProxyType({})
  shares: Mapping[int, shares.Shares] = types.MappingProxyType({})

  def keep(self, state: RecordDict) -> None:
    """Puts it into a node's state in Flower."""
    round_ = self.setup.as_record()
    round_.update({'stage': self.stage, 'parties': list(self.parties)})
    secrets = ConfigRecord({'mask_key': self.mask_key, 'share_key': self.share_key, 'seed': self.seed})
    of_seeds = {node: own.of_seed for node, own in self.shares.items()}
    of_keys = {node: own.of_key for node, own in self.shares.items()}
    kept = (round_, secrets, by_name(self.keys), by_name(of_seeds), by_name(of_keys))
    state.update(dict(zip(_KEPT, kept)))

  @classmethod
  def of(cls, state: RecordDict) -> Kept:
    """From a node's state; raises `messages.RefusedRoundError` if no round is set up there."""
    if _KEPT[0] not in state:
      raise messages.RefusedRoundError('No round was set up here, or it was refused. Begin it with its setup.')
    round_, secrets, keys, of_seeds, of_keys = (state.config_records[name] for name in _KEPT)
    own_shares = zip(by_node(of_seeds).values(), by_node(of_keys).values())
    return cls(
      Setup.from_record(round_),
      str(round_['stage']),
      list(round_['parties']),  # type: ignore[arg-type]
      seed=secrets['seed'],
      mask_key=secrets['mask_key'],
      share_key=secrets['share_key'],
      keys=public_keys(keys),
      shares={node: shares.Shares(*both) for node, both in zip(by_node(of_seeds), own_shares)},
    )


def forget(state: RecordDict) -> None:
  """Takes a round, with all secrets, out of a node's state."""
  for name in _KEPT:
    state.pop(name, None)


def by_name(values: Mapping[int, Any]) -> ConfigRecord:
  """A value of each node as a record, which has texts as names."""
  record = ConfigRecord()
  for node, value in values.items():
    record[str(node)] = list(value) if isinstance(value, tuple) else value
  return record


def by_node(record: Mapping[str, Any]) -> dict[int, Any]:
  """A value of each node from such a record; raises `ValueError` if it names something else."""
  return {int(name): value for name, value in record.items()}


def public_keys(record: Mapping[str, Any]) -> dict[int, PublicKeys]:
  """The public keys of each node; raises `TypeError` or `ValueError` if the record has something else."""
  return {node: PublicKeys(*both) for node, both in by_node(record).items()}


def vector_record(vector: np.ndarray) -> ArrayRecord:
  """A masked vector as a record."""
  return ArrayRecord({MASKED: Array(vector)})


def vector(record: ArrayRecord, size: int) -> np.ndarray:
  """A masked vector, uint32[size]; raises `messages.RefusedRoundError` if the record has something else."""
  found = record[MASKED].numpy()
  if found.shape != (size,) or found.dtype != np.uint32:
    raise messages.RefusedRoundError(f'sent a masked vector of {found.dtype}{list(found.shape)}, not uint32[{size}].')
  return found


def to_sign(session: bytes, node: int, keys: PublicKeys) -> bytes:
  """The text that a node signs: that these are its public keys in this session."""
  # The first line says what is signed, so that no signature for something else fits here.
  lines = ['quap_tff secure sum', masks.NAME, session.hex(), str(node), *(key.hex() for key in keys)]
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


@contextlib.contextmanager
def reading(stage: str) -> Iterator[None]:
  """Refuses a message of the server that is not one of its stage."""
  try:
    yield
  except messages.RefusedRoundError:
    raise
  except (LookupError, TypeError, ValueError) as error:
    raise messages.RefusedRoundError(f'The server sent what is no message of the stage {stage}: {error}.') from None
