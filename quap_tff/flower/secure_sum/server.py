"""The server's side of the secure sum: the four stages of SecAgg+, in integers."""

from __future__ import annotations

from collections.abc import Mapping
import functools
import logging
from typing import Any, Callable, NamedTuple

from flwr.app import ConfigRecord
from flwr.app import Message
from flwr.app import RecordDict
from flwr.serverapp import Grid
import numpy as np

from quap_tff import certificates
from quap_tff.bundle import player
from quap_tff.flower import messages
from quap_tff.flower import sums
from quap_tff.flower.secure_sum import agreement
from quap_tff.flower.secure_sum import integers
from quap_tff.flower.secure_sum import masks
from quap_tff.flower.secure_sum import records
from quap_tff.flower.secure_sum import shares
from quap_tff.flower.secure_sum import terms
from quap_tff.mechanisms.held import guard

_LOG = logging.getLogger('flwr')


class _Signed(NamedTuple):
  """A node's public keys, and its signature."""

  keys: records.PublicKeys
  signature: bytes


class _Masked(NamedTuple):
  """A node's message in the third stage."""

  answer: messages.Answer
  vector: np.ndarray


class _Collected(NamedTuple):
  """What nodes have sent in the first three stages.

  Attributes:
    signed: The public keys of each node.
    parties: The nodes that have shared their secrets.
    masked: The message of each node that is in the sum.
    summed: Who is in the sum, with zeros for all that is masked.
  """

  signed: Mapping[int, _Signed]
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
    digest = records.digest_of(self._plan, announced.history)
    self._setup = records.Setup(masks.NAME, announced.round_num, digest, agreed.nodes)
    self._session = self._setup.session(announced.run)
    zero = player.Sums(self._bundle.zero().plain, integers.nothing(self._bundle))
    empty = messages.Answer(announced.round_num, zero, agreed.cohort[:0])
    # In place of what is masked, where an answer is read.
    self._nothing = messages.answer_content(empty, self._bundle)['secure']

  def collected(self) -> _Collected:
    """The first three stages, after which nothing is open."""
    signed = self._keys()
    sent = self._shares(signed)
    masked = self._masked(sent)
    # Sorted, so that sums of floats do not depend on who was fast.
    plain = functools.reduce(
      self._bundle.merge, (masked[node].answer.sums for node in sorted(masked)), self._bundle.zero()
    )
    return _Collected(signed, sorted(sent), masked, sums.Summed(plain, self._terms.clients(masked)))

  def opened(self, collected: _Collected) -> sums.Summed:
    """The last stage.

    Σ x_i = Σ y_i - Σ PRG(b_i) - Σ_i Σ_j (the mask that i has added for j),  i in the sum, j dropped out
    """
    signed, parties, masked, summed = collected
    active = sorted(masked)
    secrets = self._secrets(signed, parties, active)
    session = terms.masked_session(self._session, parties)
    size = integers.num_entries(self._bundle)
    total = np.zeros(size, np.uint32)  # Its sums are modulo 2³².
    for node in active:
      # Each node adds a mask of its own, too. Where its message comes late, its masks with others are open by then.
      total += masked[node].vector - masks.generated(session, secrets[node], size)
    for node in set(parties) - set(active):
      for other in active:
        secret = agreement.agreed(secrets[node], signed[other].keys.for_masks, agreement.FOR_MASKS)
        total -= masks.between(session, other, node, secret, size)
    try:
      secure_part = integers.decoded(self._bundle, total, len(active))
    except ValueError as error:
      raise _TooFewError(str(error)) from None
    return summed._replace(total=player.Sums(summed.total.plain, secure_part))

  def _keys(self) -> dict[int, _Signed]:
    """The keys of each node that takes part."""
    announcement = {**self._setup.as_record(), **self._terms.settings}

    def make(node: int) -> RecordDict:
      return self._content(records.SETUP, {records.TERMS: announcement})

    def read(node: int, reply: Message) -> _Signed:
      agreed = reply.content.config_records.get(records.AGREED, {})
      if agreed.get('masks') != masks.NAME:
        raise messages.RefusedRoundError(
          f'makes masks by {agreed.get("masks")!r}, and this server by {masks.NAME!r}. Let it run the ClientApp of '
          'this quap_tff.'
        )
      if agreed.get('digest') != self._setup.digest:
        raise messages.RefusedRoundError('answers for another history.')
      keys = records.PublicKeys(*agreed['keys'])
      for key in keys:
        agreement.check_public_key(key)
      return _Signed(keys, agreed['signature'])

    return self._stage(list(self._terms.nodes), make, read)

  def _shares(self, signed: Mapping[int, _Signed]) -> dict[int, dict[int, bytes]]:
    """For each node that has sent shares the sealed one for each other node."""
    keys = records.by_name({node: one.keys for node, one in signed.items()})
    signatures = records.by_name({node: one.signature for node, one in signed.items()})

    def make(node: int) -> RecordDict:
      return self._content(records.SHARE, {records.KEYS: keys, records.SIGNATURES: signatures})

    def read(node: int, reply: Message) -> dict[int, bytes]:
      sealed = records.by_node(reply.content.config_records[records.SHARES])
      # With a share missing, a secret might not open, and the round would be lost after all had answered.
      if set(sealed) != set(signed) - {node}:
        raise messages.RefusedRoundError('has not sent one share to each other node.')
      return sealed

    return self._stage(list(signed), make, read)

  def _masked(self, sent: Mapping[int, Mapping[int, bytes]]) -> dict[int, _Masked]:
    """The reply of each node that answers."""

    def make(node: int) -> RecordDict:
      sealed = {other: sent[other][node] for other in sent if other != node}
      content = messages.round_content(self._announced)
      content.update(self._content(records.COLLECT, {records.SHARES: records.by_name(sealed)}))
      return content

    size = integers.num_entries(self._bundle)

    def read(node: int, reply: Message) -> _Masked:
      vector = records.vector(reply.content.array_records[records.MASKED], size)
      # The sums in an answer are masked, and what reads answers expects them plain.
      reply.content['secure'] = self._nothing
      clients = self._terms.nodes[node]
      answer = messages.answer(reply, self._bundle, self._announced.round_num, clients)
      if not np.array_equal(np.sort(answer.came), np.sort(clients)):
        raise messages.RefusedRoundError(f'answers for {answer.came.tolist()}, and was asked for {clients.tolist()}.')
      return _Masked(answer, vector)

    return self._stage(list(sent), make, read)

  def _secrets(self, signed: Mapping[int, _Signed], parties: list[int], active: list[int]) -> dict[int, bytes]:
    """One secret of each party: of its own mask if it is in the sum, and of its masks with others if it is not."""
    dead = sorted(set(parties) - set(active))

    def make(node: int) -> RecordDict:
      return self._content(records.UNMASK, {records.PARTIES: {'active': active, 'dead': dead}})

    def read(node: int, reply: Message) -> dict[int, bytes]:
      return records.by_node(reply.content.config_records[records.SHARES])

    # Who is in the sum is settled. Any t nodes open it.
    replies = self._stage(active, make, read, self._terms.threshold)
    secrets = {}
    for owner in parties:
      name = self._announced.name(owner)
      own = {self._terms.position(node): one[owner] for node, one in replies.items() if owner in one}
      if len(own) < self._terms.threshold:
        raise _TooFewError(f'There are {len(own)} shares of the secret of node {name}')
      # As many as are needed: with more, opening takes longer.
      enough = dict(list(own.items())[: self._terms.threshold])
      try:
        secrets[owner] = shares.combined(enough)
      except (TypeError, ValueError) as error:
        raise _TooFewError(f'The shares of the secret of node {name} do not fit together: {error}') from None
      if owner in dead and agreement.public_key(secrets[owner]) != signed[owner].keys.for_masks:
        raise _TooFewError(f'The shares of the key of node {name} give another key: one of them is wrong')
    return secrets

  def _content(self, stage: str, told: Mapping[str, Mapping[str, Any]]) -> RecordDict:
    """A message about this round with some records."""
    content = RecordDict({name: ConfigRecord(dict(record)) for name, record in told.items()})
    content[records.TOLD] = ConfigRecord({'stage': stage})
    content[messages.HEADING] = messages.heading_record(self._announced)
    return content

  def _stage(
    self, nodes: list[int], make: Callable[[int], RecordDict], read: Callable[[int, Message], Any], least: int = 0
  ) -> dict[int, Any]:
    """Each node's reply as `read` decodes it; raises `_TooFewError` if the sum does not open for those who reply."""
    # A node that is lost in any stage leaves a round of the others, as long as the sum may open for them.
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
        sums.say_refused(self._announced, node, said)
    shortfall = '' if least and len(answers) >= least else self._terms.shortfall(answers)
    if shortfall:
      raise _TooFewError(shortfall)
    return answers


SECURE = sums.Sum(certificates.SECAGG, terms.Terms.of, obtained)
