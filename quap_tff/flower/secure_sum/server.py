"""The server's side of the secure sum: the four stages of SecAgg+, in integers."""

from __future__ import annotations

from collections.abc import Mapping
import functools
import logging
from typing import Any, Callable, NamedTuple

from flwr.app import ConfigRecord
from flwr.app import Message
from flwr.app import RecordDict
from flwr.common import bytes_to_ndarray
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.common.secure_aggregation.secaggplus_constants import Key
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS
from flwr.common.secure_aggregation.secaggplus_constants import Stage
from flwr.serverapp import Grid
from flwr.supercore.primitives.asymmetric import bytes_to_private_key
from flwr.supercore.primitives.asymmetric import bytes_to_public_key
import numpy as np

from quap_tff import certificates
from quap_tff.bundle import player
from quap_tff.flower import messages
from quap_tff.flower import sums
from quap_tff.flower.secure_sum import integers
from quap_tff.flower.secure_sum import masks
from quap_tff.flower.secure_sum import records
from quap_tff.flower.secure_sum import terms
from quap_tff.mechanisms.held import guard

_LOG = logging.getLogger('flwr')


class _Masked(NamedTuple):
  """A node's message in the third stage."""

  answer: messages.Answer
  vectors: list[np.ndarray]


class _Collected(NamedTuple):
  """What nodes have sent in the first three stages.

  Attributes:
    keys: Both public keys of each node.
    parties: The nodes that have shared their secrets.
    masked: The message of each node that is in the sum.
    summed: Who is in the sum, with zeros for all that is masked.
  """

  keys: Mapping[int, list[bytes]]
  parties: list[int]
  masked: Mapping[int, _Masked]
  summed: sums.Summed


class _TooFewError(ValueError):
  """The sum opens for nobody."""


def obtained(
  grid: Grid, nodes: Mapping[int, np.ndarray], announced: messages.Announced, opening: sums.Opening
) -> sums.Summed:
  """The sum of all nodes, of which the server sees nothing else.

  A node that refuses, fails or does not answer within `announced.seconds`, in any stage before the last, did not come.
  As soon as nodes are asked to open the sum, it may open, however late they answer. So those who are in it have come,
  also if the server does not obtain it, and has zeros in its place.

  Raises:
    ValueError: If the sums of this plan do not fit, or there are fewer than two nodes.
  """
  bundle = announced.bundle
  round_ = _Round(grid, terms.Terms.of(bundle, nodes), announced)
  summed = sums.Summed(bundle.zero(), np.zeros(0, np.int64))
  try:
    collected = round_.collected()
    if len(collected.summed.came) < announced.least:
      raise _TooFewError(f'{len(collected.summed.came)} clients came, and the plan asks for {announced.least}')
    summed = collected.summed
    # The account takes them as having come before anything opens: it could not be taken back.
    opening(summed)
    return round_.opened(collected)
  except _TooFewError as error:
    _LOG.warning('Round %d: %s. The server has no sum.', announced.round_num, error)
  return summed


class _Round:
  """One round."""

  def __init__(self, grid: Grid, agreed: terms.Terms, announced: messages.Announced):
    self._grid, self._terms, self._announced, self._bundle = grid, agreed, announced, announced.bundle
    self._plan = guard.PublicPlan.of(self._bundle.plan)
    self._digest = records.digest_of(self._plan, announced.history)
    zero = player.Sums(self._bundle.zero().plain, integers.nothing(self._bundle))
    empty = messages.Answer(announced.round_num, zero, agreed.cohort[:0])
    # In place of what is masked, where an answer is read.
    self._nothing = messages.answer_content(empty, self._bundle)['secure']

  def collected(self) -> _Collected:
    """The first three stages, after which nothing is open."""
    keys = self._keys()
    sent = self._shares(keys)
    masked = self._masked(sent)
    # Sorted, so that sums of floats do not depend on who was fast.
    plain = functools.reduce(
      self._bundle.merge, (masked[node].answer.sums for node in sorted(masked)), self._bundle.zero()
    )
    return _Collected(keys, sorted(sent), masked, sums.Summed(plain, self._terms.clients(masked)))

  def opened(self, collected: _Collected) -> sums.Summed:
    """The last stage."""
    keys, parties, masked, summed = collected
    active = sorted(masked)
    secrets = self._secrets(parties, active)
    vectors = functools.reduce(_plus, (masked[node].vectors for node in active))
    shapes = [array.shape for array in vectors]
    mask = functools.partial(masks.generated, self._terms.session(self._digest, parties), num_range=masks.RANGE)
    for node in parties:
      if node in masked:
        # Each node adds a mask of its own, too. Where its message comes late, its masks with others are open by then.
        vectors = _plus(vectors, mask(secret=secrets[node], shapes=shapes), -1)
        continue
      for other in active:
        shared = generate_shared_key(bytes_to_private_key(secrets[node]), bytes_to_public_key(keys[other][0]))
        # The other node has added this one if its own id is the larger one, and otherwise subtracted it.
        vectors = _plus(vectors, mask(secret=shared, shapes=shapes), -1 if other > node else 1)
    factor, *vectors = (array % masks.RANGE for array in vectors)
    # Flower sends each node's weight along, and all are 1: masks that have not cancelled show here.
    if int(factor[0]) != len(active) * integers.TARGET % masks.RANGE:
      raise _TooFewError('What nodes have sent does not add up: masks are left in their sum')
    secure_part = integers.decoded(self._bundle, vectors, len(active))
    return summed._replace(total=player.Sums(summed.total.plain, secure_part))

  def _keys(self) -> dict[int, list[bytes]]:
    """Both public keys of each node that takes part, and its signature."""
    session = records.Session(masks.NAME, self._announced.round_num, self._digest, self._terms.nodes)
    content = {Key.STAGE: Stage.SETUP, **self._terms.flower_settings}
    make = lambda node: self._content({RECORD_KEY_CONFIGS: dict(content), records.TERMS: session.as_record()})

    def read(node: int, reply: Message) -> list[bytes]:
      agreed = reply.content.config_records.get(records.AGREED, {})
      if agreed.get('masks') != masks.NAME:
        raise messages.RefusedRoundError(
          f'makes masks by {agreed.get("masks") or "the generator of Flower, which has a seed of 32 bits"}, and this '
          f'server by {masks.NAME}. Let it run the ClientApp of this quap_tff.'
        )
      if agreed.get('digest') != self._digest:
        raise messages.RefusedRoundError('answers for another history.')
      told = reply.content.config_records[RECORD_KEY_CONFIGS]
      return [told[Key.PUBLIC_KEY_1], told[Key.PUBLIC_KEY_2], agreed['signature']]

    return self._stage(list(self._terms.nodes), make, read)

  def _shares(self, keys: Mapping[int, list[bytes]]) -> dict[int, dict[int, bytes]]:
    """For each node that has sent shares the encrypted one for each other node."""

    def make(node: int) -> RecordDict:
      content = {Key.STAGE: Stage.SHARE_KEYS, **{str(other): own[:2] for other, own in keys.items()}}
      signatures = {str(other): own[2] for other, own in keys.items()}
      return self._content({RECORD_KEY_CONFIGS: content, records.SIGNATURES: signatures})

    def read(node: int, reply: Message) -> dict[int, bytes]:
      told = reply.content.config_records[RECORD_KEY_CONFIGS]
      shares = dict(zip(told[Key.DESTINATION_LIST], told[Key.CIPHERTEXT_LIST]))
      # With a share missing, a secret might not open, and the round would be lost after all had answered.
      if set(shares) != set(keys) - {node}:
        raise messages.RefusedRoundError('has not sent one share to each other node.')
      return shares

    return self._stage(list(keys), make, read)

  def _masked(self, sent: Mapping[int, Mapping[int, bytes]]) -> dict[int, _Masked]:
    """The reply of each node that answers."""

    def make(node: int) -> RecordDict:
      others = [other for other in sent if other != node]
      content = messages.round_content(self._announced)
      content[RECORD_KEY_CONFIGS] = ConfigRecord(
        {
          Key.STAGE: Stage.COLLECT_MASKED_VECTORS,
          Key.CIPHERTEXT_LIST: [sent[other][node] for other in others],
          Key.SOURCE_LIST: others,
        }
      )
      return content

    shapes = [(1,), *integers.shapes(self._bundle)]

    def read(node: int, reply: Message) -> _Masked:
      vectors = [
        bytes_to_ndarray(one) for one in reply.content.config_records[RECORD_KEY_CONFIGS][Key.MASKED_PARAMETERS]
      ]
      if [array.shape for array in vectors] != shapes or any(array.dtype != np.int64 for array in vectors):
        raise messages.RefusedRoundError('sent masked arrays of another type.')
      # The sums in an answer are masked, and what reads answers expects them plain.
      reply.content['secure'] = self._nothing
      clients = self._terms.nodes[node]
      answer = messages.answer(reply, self._bundle, self._announced.round_num, clients)
      if not np.array_equal(np.sort(answer.came), np.sort(clients)):
        raise messages.RefusedRoundError(f'answers for {answer.came.tolist()}, and was asked for {clients.tolist()}.')
      return _Masked(answer, vectors)

    return self._stage(list(sent), make, read)

  def _secrets(self, parties: list[int], active: list[int]) -> dict[int, bytes]:
    """One secret of each party: of its own mask if it is in the sum, and of its masks with others if it is not."""
    dead = sorted(set(parties) - set(active))
    content = {Key.STAGE: Stage.UNMASK, Key.ACTIVE_NODE_ID_LIST: active, Key.DEAD_NODE_ID_LIST: dead}
    make = lambda node: self._content({RECORD_KEY_CONFIGS: dict(content)})

    def read(node: int, reply: Message) -> dict[int, bytes]:
      told = reply.content.config_records[RECORD_KEY_CONFIGS]
      return dict(zip(told[Key.NODE_ID_LIST], told[Key.SHARE_LIST]))

    # Who is in the sum is settled. Any t nodes open it.
    shares = self._stage(active, make, read, self._terms.threshold)
    secrets = {}
    for owner in parties:
      name = self._announced.name(owner)
      owner_shares = [one[owner] for one in shares.values() if owner in one]
      if len(owner_shares) < self._terms.threshold:
        raise _TooFewError(f'There are {len(owner_shares)} shares of the secret of node {name}')
      try:
        secrets[owner] = combine_shares(owner_shares)
      except ValueError as error:
        raise _TooFewError(f'The shares of the secret of node {name} do not fit together: {error}') from None
    return secrets

  def _content(self, told: Mapping[str, Mapping[str, Any]]) -> RecordDict:
    """A message about this round with some records."""
    content = RecordDict({name: ConfigRecord(dict(record)) for name, record in told.items()})
    content[messages.HEADING] = messages.heading_record(self._announced)
    return content

  def _stage(
    self, nodes: list[int], make: Callable[[int], RecordDict], read: Callable[[int, Message], Any], least: int = 0
  ) -> dict[int, Any]:
    """Each node's reply as `read` decodes it; raises `_TooFewError` if the sum does not open for those who reply."""
    # Flower's own workflow ends a round if a node is lost in one of the first two stages. This one goes on with those
    # who are left, as long as the sum may open for them.
    replies, taken = sums.asked(self._grid, {node: make(node) for node in nodes}, self._announced)
    answers = {}
    for node in sorted(nodes):
      try:
        if node not in replies:
          raise messages.RefusedRoundError(sums.unanswered(taken))
        messages.check_reply(replies[node])
        answers[node] = read(node, replies[node])
      except (LookupError, TypeError, ValueError) as error:
        said = str(error) if isinstance(error, messages.RefusedRoundError) else f'sent what is no answer: {error}.'
        _LOG.warning('Round %d: node %s %s', self._announced.round_num, self._announced.name(node), said)
    shortfall = '' if least and len(answers) >= least else self._terms.shortfall(answers)
    if shortfall:
      raise _TooFewError(shortfall)
    return answers


def _plus(vectors: list[np.ndarray], others: list[np.ndarray], sign: int = 1) -> list[np.ndarray]:
  return [(one + sign * other) % masks.RANGE for one, other in zip(vectors, others)]


SECURE = sums.Sum(certificates.SECAGG, terms.Terms.of, obtained)
