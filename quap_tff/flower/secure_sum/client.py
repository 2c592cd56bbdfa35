"""A node's side of the secure sum: what it refuses in each stage, and what it answers.

    setup     the terms of the round, and the digest of what was announced   public keys, signed with all of this
    share     public keys of all others, with their signatures               sealed shares of two secrets
    collect   shares of others, the history, the message                     guards answer; the masked sum
    unmask    who is in the sum, and who dropped out                         a share of one secret of each

Nothing that depends on data leaves before the third stage, and nothing opens before the fourth. A refusal ends the
round at this node: another one begins with its setup.
"""

from __future__ import annotations

from collections.abc import Mapping
import logging
import os
from typing import Any, NamedTuple

from flwr.app import ConfigRecord
from flwr.app import Context
from flwr.app import Message
from flwr.app import RecordDict
import numpy as np

from quap_tff.flower import enrolment
from quap_tff.flower import logs
from quap_tff.flower import messages
from quap_tff.flower import node as nodes
from quap_tff.flower.secure_sum import agreement
from quap_tff.flower.secure_sum import checks
from quap_tff.flower.secure_sum import integers
from quap_tff.flower.secure_sum import masks
from quap_tff.flower.secure_sum import openings
from quap_tff.flower.secure_sum import records
from quap_tff.flower.secure_sum import shares
from quap_tff.flower.secure_sum import terms
from quap_tff.mechanisms.held import guard

_LOG = logging.getLogger('flwr')


class _Asked(NamedTuple):
  """A message of the server after the first stage.

  Attributes:
    node: The id of this node.
    content: The records.
    agreed: The terms of the round.
    session: What all nodes of the round agree on.
  """

  node: int
  content: RecordDict
  agreed: terms.Terms
  session: bytes


class SecureSum:
  """Replies to a message in Flower's context, for a node of a run in which clients hold the noise."""

  def __init__(self, node: nodes.Node):
    """Serves a node, which notes in its folder which rounds it has opened.

    Raises:
      ValueError: If clients do not hold the noise of this run.
    """
    self._node = node
    self._plan = guard.PublicPlan.of(node.bundle.plan)
    self._openings = openings.Openings(node.folder, self._plan.number)

  def __call__(self, heading: messages.Heading, message: Message, context: Context) -> Message:
    """The reply, or a refusal, after which this node takes no further part in the round.

    Args:
      heading: From `Node.admit`.
      message: The operator's message.
      context: This node's context in Flower, which keeps its secrets until the round is over.
    """
    try:
      content = self._answered(heading, message, context.state)
      return Message(content, reply_to=message)
    except messages.RefusedRoundError as error:
      _LOG.error('Refused: %s', error, extra=logs.facts(event=logs.REFUSED))
      reason = str(error)
    except Exception as error:  # Whatever it is, its text may tell of data.
      self._node.note_failure(error)
      reason = messages.UNSAID
    # The round is over at this node: another stage of it finds no state.
    records.forget(context.state)
    return Message(messages.refusal_content(reason), reply_to=message)

  def _answered(self, heading: messages.Heading, message: Message, state: RecordDict) -> RecordDict:
    content, node_id = message.content, int(message.metadata.dst_node_id)
    if records.TOLD not in content.config_records:
      raise messages.RefusedRoundError(
        'The server asks for a sum that it would see, and this node takes part only in secure sums. Let the server '
        'use quap_tff.flower.secure_sum.'
      )
    told = content.config_records[records.TOLD]
    stage = told.get('stage')
    if stage == records.SETUP:
      # A new setup takes the place of a round that was not finished: nothing of that one opens any more.
      records.forget(state)
      kept, reply = self._set_up(heading, content, node_id)
      kept.keep(state)
      return reply
    kept = records.Kept.of(state)
    checks.check_order(kept, heading, stage)
    asked = _Asked(node_id, content, _terms(self._node, kept.setup), kept.setup.session(heading.run))
    if stage == records.SHARE:
      kept, reply = self._share(kept, asked)
    elif stage == records.COLLECT:
      kept, reply = self._collect(kept, asked)
    else:
      reply = self._unmask(kept, asked)
      # The secrets are of no use after this, and anyone who found them later could open the sum of this node.
      records.forget(state)
      return reply
    kept.keep(state)
    return reply

  def _set_up(self, heading: messages.Heading, content: RecordDict, node_id: int) -> tuple[records.Kept, RecordDict]:
    """The first stage: a node draws its keys."""
    with records.reading(records.SETUP):
      told = content.config_records[records.TERMS]
      setup = records.Setup.from_record(told)
    self._check_setup(setup, told, node_id)
    kept = records.Kept(setup, '', (), agreement.new_private_key(), agreement.new_private_key())
    checks.check_order(kept, heading, records.SETUP)
    keys = records.PublicKeys(agreement.public_key(kept.mask_key), agreement.public_key(kept.share_key))
    # The server relays the keys of other nodes. Without signatures it could put its own in their place.
    signature = enrolment.signed(self._node.folder, records.to_sign(setup.session(heading.run), node_id, keys))
    agreed = {'masks': masks.NAME, 'digest': setup.digest, 'keys': list(keys), 'signature': signature}
    return kept._replace(stage=records.SETUP), RecordDict({records.AGREED: ConfigRecord(agreed)})

  def _share(self, kept: records.Kept, asked: _Asked) -> tuple[records.Kept, RecordDict]:
    """The second stage: a node draws the seed of its own mask, and shares its two secrets."""
    with records.reading(records.SHARE):
      keys = records.public_keys(asked.content.config_records[records.KEYS])
    self._check_keys(kept, asked, keys)
    seed = os.urandom(agreement.KEY_BYTES)
    threshold, count = asked.agreed.threshold, len(asked.agreed.nodes)
    split = zip(shares.split(seed, threshold, count), shares.split(kept.mask_key, threshold, count))
    of_each = {node: shares.Shares(*both) for node, both in zip(sorted(asked.agreed.nodes), split)}
    sealed = {}
    for other in set(keys) - {asked.node}:
      key = agreement.agreed(kept.share_key, keys[other].for_shares, agreement.FOR_SHARES)
      sealed[other] = shares.sealed(key, asked.session, asked.node, other, of_each[other])
    own = {asked.node: of_each[asked.node]}
    kept = kept._replace(stage=records.SHARE, parties=list(keys), seed=seed, keys=keys, shares=own)
    return kept, RecordDict({records.SHARES: records.by_name(sealed)})

  def _collect(self, kept: records.Kept, asked: _Asked) -> tuple[records.Kept, RecordDict]:
    """The third stage: guards answer, and a node masks the sum of its clients."""
    with records.reading(records.COLLECT):
      sealed = records.by_node(asked.content.config_records[records.SHARES])
    # All checks come before guards answer: they answer once a round, and the account charges their clients for it.
    parties = checks.present(kept, asked.agreed, sealed, asked.node)
    self._check_history(kept.setup, asked)
    with records.reading(records.COLLECT):
      own = dict(kept.shares)
      for other, text in sealed.items():
        key = agreement.agreed(kept.share_key, kept.keys[other].for_shares, agreement.FOR_SHARES)
        own[other] = shares.opened(key, asked.session, other, asked.node, text)
    answer = self._node.answer(asked.content)
    vector = integers.encoded(self._node.bundle, answer.sums.secure)
    # Between this node and each other one whose shares it has.
    secrets = {
      other: agreement.agreed(kept.mask_key, kept.keys[other].for_masks, agreement.FOR_MASKS) for other in sealed
    }
    masked = masks.masked(terms.masked_session(asked.session, parties), asked.node, vector, kept.seed, secrets)
    sent = messages.answer_content(answer, self._node.bundle)
    # What is not secret of the plan's sums. The rest is masked.
    reply = RecordDict({name: sent[name] for name in records.PLAIN})
    reply[records.MASKED] = records.vector_record(masked)
    return kept._replace(stage=records.COLLECT, parties=parties, shares=own), reply

  def _unmask(self, kept: records.Kept, asked: _Asked) -> RecordDict:
    """The fourth stage: a share of the seed of each node in the sum, and of the key of each that dropped out."""
    with records.reading(records.UNMASK):
      told = asked.content.config_records[records.PARTIES]
      active, dead = list(told['active']), list(told['dead'])  # type: ignore[arg-type]
    checks.check_opening(kept, asked.agreed, active, dead, asked.node)
    # Written down before the share leaves: a node that is restarted in between must not open another sum.
    self._openings.note(kept.setup.round_num, asked.agreed.clients(active))
    own = {node: kept.shares[node].of_seed for node in active}
    own.update({node: kept.shares[node].of_key for node in dead})
    return RecordDict({records.SHARES: records.by_name(own)})

  def _check_setup(self, setup: records.Setup, told: Mapping[str, Any], node_id: int) -> None:
    if setup.masks != masks.NAME:
      raise messages.RefusedRoundError(
        f'The server makes masks by {setup.masks!r}, and this node by {masks.NAME!r}. Give both the same quap_tff.'
      )
    agreed = _terms(self._node, setup)
    # All clients of a node are in a sum or none. A client that the server leaves out of its node's list would be lost
    # without a word.
    expected = np.intersect1d(agreed.cohort, list(self._node.examples))
    if node_id not in setup.nodes or not np.array_equal(np.sort(setup.nodes[node_id]), expected):
      raise messages.RefusedRoundError(
        f'The server announces the clients {setup.nodes.get(node_id, expected[:0]).tolist()} at this node, which has '
        f'{expected.tolist()} of the cohort. Enrol each client at the node that has it.'
      )
    # Now, and not when keys come: a node without a key would have the round fail later.
    self._enrolled_keys(setup)
    # A lower threshold or another range would be the server's choice of what opens.
    for name, value in agreed.settings.items():
      if told.get(name) != value:
        raise messages.RefusedRoundError(f'The server sets {name} to {told.get(name)}, and by the plan it is {value}.')

  def _enrolled_keys(self, setup: records.Setup) -> Mapping[int, bytes]:
    """The announced nodes' keys, from this node's own folder, which is read anew: others may have been enrolled."""
    try:
      return enrolment.Enrolled(self._node.enrolment).keys_of(setup.nodes)
    except ValueError as error:
      raise messages.RefusedRoundError(str(error)) from None

  def _check_keys(self, kept: records.Kept, asked: _Asked, keys: Mapping[int, records.PublicKeys]) -> None:
    """Raises `RefusedRoundError` unless each party has signed its keys, and the session, which this node has, too."""
    checks.check_parties(asked.agreed, keys, asked.node)
    own = (agreement.public_key(kept.mask_key), agreement.public_key(kept.share_key))
    every = [key for both in keys.values() for key in both]
    if keys[asked.node] != own or len(set(every)) != len(every):
      raise messages.RefusedRoundError(
        'The server tells other keys of this node than it has sent, or a key twice: a key is of one node, and is for '
        'one purpose.'
      )
    signatures = asked.content.config_records.get(records.SIGNATURES, ConfigRecord())
    enrolled = self._enrolled_keys(kept.setup)
    for node, both in keys.items():
      text = records.to_sign(asked.session, node, both)
      if not enrolment.is_signed(enrolled[node], signatures.get(str(node), b''), text):
        raise messages.RefusedRoundError(
          f'Node {node} has not signed these keys for the history with the digest {kept.setup.digest} and these nodes: '
          'the server replaces keys, or tells two histories, or the enrolment folder of this node has another key.'
        )

  def _check_history(self, setup: records.Setup, asked: _Asked) -> None:
    """Checks that what guards are asked is what all nodes have compared, and ends as this node has opened it."""
    _, history = messages.read_round(asked.content, self._node.bundle)
    digest = records.digest_of(self._plan, history)
    # The history itself comes only now. What the nodes have signed before is its digest.
    if digest != setup.digest or history[-1].round_num != setup.round_num:
      raise messages.RefusedRoundError(
        f'The server tells a history with the digest {digest}, and the nodes of this round have compared '
        f'{setup.digest}.'
      )
    if not np.array_equal(np.sort(history[-1].cohort), asked.agreed.cohort):
      raise messages.RefusedRoundError('The clients of the announced nodes are not the cohort of the history.')
    # This node has seen these itself. The server has not told it.
    known = self._openings.by_round()
    for before, link in zip(history, history[1:]):
      own = known.get(before.round_num)
      if own is not None and not np.array_equal(np.sort(link.came), own):
        raise messages.RefusedRoundError(
          f'The clients {link.came.tolist()} are said to have come in round {before.round_num}, and this node has '
          f'opened the sum of {own.tolist()}.'
        )


def _terms(node: nodes.Node, setup: records.Setup) -> terms.Terms:
  try:
    return terms.Terms.of(node.bundle, setup.nodes)
  except ValueError as error:
    raise messages.RefusedRoundError(str(error)) from None
