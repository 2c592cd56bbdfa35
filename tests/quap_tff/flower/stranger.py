"""A ServerApp of somebody without the operator's key, who has all that is public, and asks a node for one client.

It asks a first time without waiting for an answer: Flower gives none when its time is over, and goes on. The other
lines of its log say what the node has answered.
"""

import logging
import os

from flwr.app import Message
from flwr.app import MessageType
from flwr.serverapp import ServerApp
import numpy as np

from quap_tff.bundle import player
from quap_tff.flower import messages
from quap_tff.flower import operators
from tests import processes

_LOG = logging.getLogger('flwr')
CLIENT = 7
app = ServerApp()


@app.main()
def main(grid, context):
  config = context.run_config
  bundle = player.Bundle(config['bundle'])
  message = bundle.prepare(bundle.initialize())
  link = messages.Link(1, np.array([CLIENT]), np.zeros(0, np.int64))
  models = [messages.message_digest(bundle, message)]
  announced = messages.Announced(bundle, 'ab' * 16, models, message, [link], 1, 60.0)
  operators.new_operator(os.path.join(config['output'], 'stranger'))
  own_key = operators.private_key(os.path.join(config['output'], 'stranger'))
  processes.until(lambda: list(grid.get_nodes()))
  node = next(iter(grid.get_nodes())).node_id
  sent = [Message(messages.round_content(announced), node, MessageType.TRAIN)]
  _LOG.info('AT ONCE: %d answers', len(list(grid.send_and_receive(sent, timeout=0.1))))
  for name, asked in (('UNSIGNED', grid), ('SIGNED', operators.SigningGrid(grid, own_key))):
    sent = [Message(messages.round_content(announced), node, MessageType.TRAIN)]
    for reply in asked.send_and_receive(sent, timeout=processes.DEADLINE_SECONDS):
      _LOG.info('%s: %s, %s', name, sorted(reply.content), dict(reply.content['answered']))
  _LOG.info('STRANGER has asked')
