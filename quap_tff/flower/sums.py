"""How the server obtains the sum of a round from nodes: by a `Sum`. `secure_sum.server` has another one."""

from __future__ import annotations

from collections.abc import Mapping
import logging
import time
from typing import Callable, NamedTuple

from flwr.app import Message
from flwr.app import MessageType
from flwr.app import RecordDict
from flwr.serverapp import Grid
import numpy as np

from quap_tff.bundle import player
from quap_tff.flower import logs
from quap_tff.flower import messages

_LOG = logging.getLogger('flwr')


class Summed(NamedTuple):
  """The sum of a round.

  Attributes:
    total: The sum over the clients that came.
    came: int64[M'], ascending: who they are.
  """

  total: player.Sums
  came: np.ndarray


# Is told who is in a sum before anybody is asked to open it, with zeros for all that is hidden.
Opening = Callable[[Summed], None]


class Sum(NamedTuple):
  """A protocol.

  Attributes:
    name: As certificates name it (`certificates.About.secure_sum`); '' if the server sees the sum of each node.
    check: Is given the bundle and the nodes of a round, int64[M_k] by node id, before it is announced. Raises
      `ValueError` if their sum could not be obtained.
    obtain: Asks the nodes for a round, and sums what they answer. It is given Flower's grid; the nodes, as above, whose
      clients together are the cohort; and what every node is told. Nobody came if fewer than `announced.least` answer
      in time. A protocol that hides the sums of nodes calls the last argument before it asks them to open the sum.
  """

  name: str
  check: Callable[[player.Bundle, Mapping[int, np.ndarray]], object]
  obtain: Callable[[Grid, Mapping[int, np.ndarray], messages.Announced, Opening], Summed]


def asked(
  grid: Grid, contents: Mapping[int, RecordDict], announced: messages.Announced
) -> tuple[dict[int, Message], float]:
  """The reply of each node that has sent one, and the seconds that it took."""
  group = str(announced.round_num)
  sent = [Message(contents[node], node, MessageType.TRAIN, group_id=group) for node in sorted(contents)]
  began = time.monotonic()
  received = list(grid.send_and_receive(sent, timeout=announced.seconds))
  asked_of = {one.metadata.message_id: one.metadata.dst_node_id for one in sent if one.metadata.message_id}
  replies = {}
  for reply in received:
    node = reply.metadata.src_node_id
    if reply.has_error():  # It may be the SuperLink's, which says so of a node that it has lost.
      node = asked_of.get(reply.metadata.reply_to_message_id, node)
    replies[node] = reply
  return replies, time.monotonic() - began


def unanswered(taken: float) -> str:
  """What is said of a node without a reply, after as many seconds. A reply that was cut off is none."""
  return f'sent no whole answer in {taken:.1f} seconds.'


def say_refused(announced: messages.Announced, node: int, reason: str) -> None:
  """Logs that a node does not take part. The reason is a clause whose subject is the node."""
  name = announced.name(node)
  said = logs.facts(event=logs.REFUSED, node=name)
  _LOG.warning('Round %d: node %s %s', announced.round_num, name, reason, extra=said)


def _trusted(grid: Grid, nodes: Mapping[int, np.ndarray], announced: messages.Announced, opening: Opening) -> Summed:
  """The sum over the nodes that answer.

  A node that refuses, fails or does not answer within `announced.seconds` did not come, nor did its clients.
  """
  bundle = announced.bundle
  total, came = bundle.zero(), np.zeros(0, np.int64)
  content = messages.round_content(announced)
  replies, taken = asked(grid, dict.fromkeys(nodes, content), announced)
  # In the order of nodes, so that sums of floats do not depend on who is faster.
  for node in sorted(nodes):
    try:
      if node not in replies:
        raise messages.RefusedRoundError(unanswered(taken))
      answer = messages.answer(replies[node], bundle, announced.round_num, nodes[node])
    except messages.RefusedRoundError as error:
      say_refused(announced, node, str(error))
      continue
    total, came = bundle.merge(total, answer.sums), np.union1d(came, answer.came)
  if len(came) < announced.least:
    return Summed(bundle.zero(), came[:0])
  return Summed(total, came)


# The server sees the sum of each node: it is trusted with updates.
TRUSTED = Sum('', lambda bundle, nodes: None, _trusted)
