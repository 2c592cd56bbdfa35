"""A node's side of the secure sum: checks in front of Flower's mod, and the work behind it.

    setup       the terms of the round, and the digest of what was announced   public keys, signed with the digest
    share       public keys of all others, with their signatures               encrypted shares of two secrets
    collect     shares of others, the history, the message                     guards answer; the masked sum
    unmask      who is in the sum, and who dropped out                         a share of one secret of each

Nothing that depends on data leaves before the third stage, and nothing opens before the fourth. A refusal ends the
round at this node: another one begins with its setup.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
import functools
import logging
from typing import Any

from flwr.app import ConfigRecord
from flwr.app import Context
from flwr.app import Message
from flwr.app import RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code
from flwr.common import FitRes
from flwr.common import ndarrays_to_parameters
from flwr.common import Status
from flwr.common.secure_aggregation.secaggplus_constants import Key
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS
from flwr.common.secure_aggregation.secaggplus_constants import Stage
from flwr.compat.common import recorddict_compat
import numpy as np

from quap_tff.flower import enrolment
from quap_tff.flower import messages
from quap_tff.flower import node as nodes
from quap_tff.flower.secure_sum import integers
from quap_tff.flower.secure_sum import masks
from quap_tff.flower.secure_sum import openings
from quap_tff.flower.secure_sum import records
from quap_tff.flower.secure_sum import terms
from quap_tff.mechanisms.held import guard

_LOG = logging.getLogger('flwr')
_STATE = 'quap_secure_sum'
_ORDER = (Stage.SETUP, Stage.SHARE_KEYS, Stage.COLLECT_MASKED_VECTORS, Stage.UNMASK)


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
      context: This node's context in Flower.
    """
    try:
      return self._answered(heading, message, context)
    except messages.RefusedRoundError as error:
      _LOG.error('Refused: %s', error)
      reason = str(error)
    except Exception as error:  # Whatever it is, its text may tell of data.
      self._node.note_failure(error)
      reason = messages.UNSAID
    # The round is over at this node: another stage of it finds no state.
    context.state.config_records.pop(_STATE, None)
    return Message(messages.refusal_content(reason), reply_to=message)

  def _answered(self, heading: messages.Heading, message: Message, context: Context) -> Message:
    if RECORD_KEY_CONFIGS not in message.content.config_records:
      raise messages.RefusedRoundError(
        'The server asks for a sum that it would see, and this node takes part only in secure sums. Let the server '
        'use quap_tff.flower.secure_sum.'
      )
    told = message.content.config_records[RECORD_KEY_CONFIGS]
    stage = told.get(Key.STAGE)
    node_id = int(message.metadata.dst_node_id)
    if stage == Stage.SETUP:
      # A new setup takes the place of a round that was not finished: nothing of that one opens any more.
      session = records.Session.from_setup(message.content)
      self._check_setup(session, told, node_id)
    else:
      if _STATE not in context.state.config_records:
        raise messages.RefusedRoundError('No round was set up here, or it was refused. Begin it with its setup.')
      session = records.Session.from_record(context.state.config_records[_STATE])
    # In each stage: Flower's mod checks the order of stages, and not whose round they are of.
    _check_order(session, heading, stage)
    agreed = _terms(self._node, session)
    if stage == Stage.SHARE_KEYS:
      parties = self._sharing(heading.run, session, agreed, message.content, node_id)
      session = session._replace(parties=parties)
    elif stage == Stage.COLLECT_MASKED_VECTORS:
      # Before guards answer: they answer once a round, and the account charges their clients for it.
      session = session._replace(parties=_present(session, agreed, told, node_id))
      self._check_history(session, agreed, message.content)
    elif stage == Stage.UNMASK:
      active = _opening(session, agreed, told, node_id)
      # Written down before the share leaves: a node that is restarted in between must not open another sum.
      self._openings.note(session.round_num, agreed.clients(active))
    with masks.in_place_of_flowers(agreed.session(session.digest, session.parties)):
      answered: list[messages.Answer] = []
      # Only after all checks: Flower's mod does what the server says.
      reply = secaggplus_mod(message, context, functools.partial(self._work, answered))
    # After the mod, so that a stage that failed is not one that was answered.
    context.state.config_records[_STATE] = session._replace(stage=stage).as_record()
    if stage == Stage.SETUP:
      sent = reply.content[RECORD_KEY_CONFIGS]
      keys = [sent[name] for name in (Key.PUBLIC_KEY_1, Key.PUBLIC_KEY_2)]
      # The server relays the keys of other nodes. Without signatures it could put its own in their place.
      signature = enrolment.signed(self._node.folder, records.to_sign(heading.run, session.digest, node_id, keys))
      reply.content[records.AGREED] = ConfigRecord(
        {'masks': masks.NAME, 'digest': session.digest, 'signature': signature}
      )
    for one in answered:
      sent = messages.answer_content(one, self._node.bundle)
      # What is not secret of the plan's sums. The rest is masked.
      reply.content = RecordDict(
        {RECORD_KEY_CONFIGS: reply.content[RECORD_KEY_CONFIGS], **{name: sent[name] for name in records.PLAIN}}
      )
    return reply

  def _check_setup(self, session: records.Session, told: Mapping[str, Any], node_id: int) -> None:
    if session.masks != masks.NAME:
      raise messages.RefusedRoundError(
        f'The server makes masks by {session.masks or "the generator of Flower, which has a seed of 32 bits"}, and '
        f'this node by {masks.NAME}. Give both the same quap_tff, and let the server use quap_tff.flower.secure_sum.'
      )
    agreed = _terms(self._node, session)
    # All clients of a node are in a sum or none. A client that the server leaves out of its node's list would be lost
    # without a word.
    expected = np.intersect1d(agreed.cohort, list(self._node.examples))
    if node_id not in session.nodes or not np.array_equal(np.sort(session.nodes[node_id]), expected):
      raise messages.RefusedRoundError(
        f'The server announces the clients {session.nodes.get(node_id, expected[:0]).tolist()} at this node, which has '
        f'{expected.tolist()} of the cohort. Enrol each client at the node that has it.'
      )
    # Now, and not when keys come: a node without a key would have the round fail later.
    self._public_keys(session)
    # A lower threshold or another range would be the server's choice of what opens.
    for name, value in agreed.flower_settings.items():
      if told.get(name) != value:
        raise messages.RefusedRoundError(f'The server sets {name} to {told.get(name)}, and by the plan it is {value}.')

  def _public_keys(self, session: records.Session) -> Mapping[int, bytes]:
    """The announced nodes' keys, from this node's own folder, which is read anew: others may have been enrolled."""
    try:
      return enrolment.Enrolled(self._node.enrolment).keys_of(session.nodes)
    except ValueError as error:
      raise messages.RefusedRoundError(str(error)) from None

  def _sharing(
    self, run: str, session: records.Session, agreed: terms.Terms, content: RecordDict, node_id: int
  ) -> list[int]:
    """The nodes that share keys; raises `RefusedRoundError` unless each has signed its own, the run and the history."""
    told = content.config_records[RECORD_KEY_CONFIGS]
    keys = {int(name): value for name, value in told.items() if name != Key.STAGE}
    _check_parties(agreed, keys, node_id)
    signatures = content.config_records.get(records.SIGNATURES, ConfigRecord())
    public = self._public_keys(session)
    for node, both in keys.items():
      message = records.to_sign(run, session.digest, node, both)
      if not enrolment.is_signed(public[node], signatures.get(str(node), b''), message):
        raise messages.RefusedRoundError(
          f'Node {node} has not signed these keys for the history with the digest {session.digest}: the server '
          'replaces keys, or tells two histories, or the enrolment folder of this node has another key.'
        )
    return list(keys)

  def _check_history(self, session: records.Session, agreed: terms.Terms, content: RecordDict) -> None:
    """Checks that what guards are asked is what all nodes have compared, and ends as this node has opened it."""
    _, history = messages.read_round(content, self._node.bundle)
    digest = records.digest_of(self._plan, history)
    # The history itself comes only now. What the nodes have signed before is its digest.
    if digest != session.digest or history[-1].round_num != session.round_num:
      raise messages.RefusedRoundError(
        f'The server tells a history with the digest {digest}, and the nodes of this round have compared '
        f'{session.digest}.'
      )
    if not np.array_equal(np.sort(history[-1].cohort), agreed.cohort):
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

  def _work(self, answered: list[messages.Answer], message: Message, context: Context) -> Message:
    """The app behind Flower's mod. Guards answer here, once a round: they write it down before."""
    answer = self._node.answer(message.content)
    arrays = integers.encoded(self._node.bundle, answer.sums.secure)
    answered.append(answer)
    result = FitRes(Status(Code.OK, ''), ndarrays_to_parameters(arrays), terms.WEIGHT, {})
    return Message(recorddict_compat.fitres_to_recorddict(result, keep_input=False), reply_to=message)


def _check_order(session: records.Session, heading: messages.Heading, stage: Any) -> None:
  """Raises `RefusedRoundError` unless this is the next stage of the round in which this node is."""
  if session.round_num != heading.round_num:
    raise messages.RefusedRoundError(
      f'The server goes on with round {heading.round_num}, and round {session.round_num} was set up here. Begin it '
      'with its setup.'
    )
  # No stage follows the last one.
  expected = _ORDER[_ORDER.index(session.stage) + 1 :][:1] if session.stage else _ORDER[:1]
  if stage not in expected:
    raise messages.RefusedRoundError(
      f'The server asks for the stage {stage} after {session.stage or "nothing"}. The stages are {", ".join(_ORDER)}, '
      'in this order and each once.'
    )


def _terms(node: nodes.Node, session: records.Session) -> terms.Terms:
  try:
    return terms.Terms.of(node.bundle, session.nodes)
  except ValueError as error:
    raise messages.RefusedRoundError(str(error)) from None


def _present(session: records.Session, agreed: terms.Terms, told: Mapping[str, Any], node_id: int) -> list[int]:
  """The nodes whose shares this one has: between them are masks."""
  # Flower's list names the others only.
  parties = [node_id, *told.get(Key.SOURCE_LIST, ())]
  strangers = set(parties) - set(session.parties)
  if strangers:
    raise messages.RefusedRoundError(f'Node {min(strangers)} sends shares, and no keys were exchanged with it.')
  _check_parties(agreed, parties, node_id)
  return parties


def _check_parties(agreed: terms.Terms, parties: Collection[int], node_id: int) -> None:
  strangers = set(parties) - set(agreed.nodes)
  if strangers:
    raise messages.RefusedRoundError(f'Node {min(strangers)} was not announced for this round.')
  if node_id not in parties or len(set(parties)) != len(parties):
    raise messages.RefusedRoundError('This node must be among the parties of the sum, and each of them once.')
  _check_enough(agreed, parties)


def _check_enough(agreed: terms.Terms, parties: Collection[int]) -> None:
  shortfall = agreed.shortfall(parties)
  if shortfall:
    raise messages.RefusedRoundError(f'{shortfall}.')


def _opening(session: records.Session, agreed: terms.Terms, told: Mapping[str, Any], node_id: int) -> list[int]:
  """The nodes in the sum; raises `RefusedRoundError` for lists that would open more than one sum."""
  active, dead = (list(told.get(name, ())) for name in (Key.ACTIVE_NODE_ID_LIST, Key.DEAD_NODE_ID_LIST))
  both = set(active) & set(dead)
  if both:
    raise messages.RefusedRoundError(
      f'Node {min(both)} is in both lists, of those who are in the sum and of those who dropped out. Both of its '
      'secrets would show its own sum.'
    )
  strangers = (set(active) | set(dead)) - set(agreed.nodes)
  if strangers:
    raise messages.RefusedRoundError(f'Node {min(strangers)} was not announced for this round.')
  # As lists, not as sets: a node that is named twice would count twice towards the threshold.
  if sorted(active + dead) != sorted(session.parties):
    raise messages.RefusedRoundError(
      f'The lists name the nodes {sorted(active + dead)}, and those who have answered are {sorted(session.parties)}.'
    )
  if node_id not in active:
    raise messages.RefusedRoundError('This node has answered, and is said to have dropped out.')
  # Of those in the sum alone: the dead have no noise in it.
  _check_enough(agreed, active)
  return active
