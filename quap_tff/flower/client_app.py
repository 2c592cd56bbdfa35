"""The ClientApp: answers rounds for the clients of a node."""

from __future__ import annotations

import logging
import time
from typing import Optional

from flwr.app import Context
from flwr.app import Message
from flwr.clientapp import ClientApp

from quap_tff.flower import logs
from quap_tff.flower import messages
from quap_tff.flower import node as nodes
from quap_tff.flower.secure_sum import client

_LOG = logging.getLogger('flwr')

app = ClientApp()
# The node of the process that runs it, see `node_program`.
_node: Optional[nodes.Node] = None


def keep(node: nodes.Node) -> None:
  """Answers for this node from now on."""
  global _node
  _node = node


@app.train()
def train(message: Message, context: Context) -> Message:
  """The answer of this node's clients, or the reason for having none."""
  node, began = _node, time.monotonic()
  try:
    if node is None:
      node = nodes.Node.of(context.node_config)
    heading = node.admit(message.content)
    logs.enter_round(heading.run, heading.round_num, len(node.bundle.rounds.cohorts))
    if node.holds_noise:
      return client.SecureSum(node)(heading, message, context)
    answer = node.answer(message.content)
    content = messages.answer_content(answer, node.bundle)
    came, seconds = len(answer.came), time.monotonic() - began
    said = logs.facts(event=logs.ROUND, came=came, seconds=seconds)
    _LOG.info('Round %d: %d clients answer, %.1f seconds.', answer.round_num, came, seconds, extra=said)
  except messages.RefusedRoundError as error:
    _LOG.error('Refused: %s', error, extra=logs.facts(event=logs.REFUSED))
    content = messages.refusal_content(str(error))
  except Exception as error:  # Whatever it is, its text may tell of data.
    if node is not None:
      node.note_failure(error)
    else:
      _LOG.error('%s: %s', type(error).__name__, str(error).strip())
    content = messages.refusal_content(messages.UNSAID)
  return Message(content, reply_to=message)
