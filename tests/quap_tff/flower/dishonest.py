"""A ServerApp that lies to nodes about a held run that they have played, and says what they answer.

Its configuration is that of quap_tff.flower.server_app. The lies are told to one node after another, and each is one
line of its log: `LIE name: answer`.
"""

import logging

from flwr.app import Array
from flwr.app import ArrayRecord
from flwr.app import Message
from flwr.app import MessageType
from flwr.serverapp import ServerApp
import numpy as np

from quap_tff.bundle import player
from quap_tff.flower import enrolment
from quap_tff.flower import messages
from quap_tff.flower import server_run

_LOG = logging.getLogger('flwr')
app = ServerApp()


@app.main()
def main(grid, context):
  config = context.run_config
  run = server_run.ServerRun(player.Bundle(config['bundle']), config['output'])
  last = run.rounds[-1][0]
  nodes = enrolment.Enrolled(config['enrolment']).present(grid.get_nodes(), last)
  node = max(nodes, key=lambda one: len(nodes[one]))
  for name, content in lies(run, last).items():
    (reply,) = grid.send_and_receive([Message(content, node, MessageType.TRAIN)], timeout=120)
    try:
      messages.answer(reply, run.bundle, len(run.rounds), nodes[node])
      said = 'ANSWERED'
    except messages.RefusedError as error:
      said = str(error)
    _LOG.info('LIE %s: %s', name, said)
  _LOG.info('LIES are over')


def lies(run, last):
  """Messages by name."""
  links, message = list(run.links()), run.bundle.prepare(run.server.state)
  told = lambda history: messages.of_round(messages.Announced(run.bundle, message, history, 1, 1.0))
  another = links[-1]._replace(cohort=last[:-1])
  absent = links[-1]._replace(came=links[-1].came[:0])
  heavier = told(links)
  arrays = heavier['message']
  weight = {str(len(arrays)): Array(np.array(10, np.float32))}
  heavier['message'] = ArrayRecord({**{name: arrays[name] for name in arrays}, **weight})
  after = messages.Link(len(run.rounds) + 1, last, run.rounds[-1][1])
  other_bundle = told(links)
  other_bundle['announced']['bundle'] = '0' * 64
  old_version = told(links)
  old_version['announced']['flwr'] = '1.0.0'
  return {
    'the same round again': told(links),
    'an old state': told(links[:-1]),
    'two cohorts': told([*links[:-1], another]),
    'somebody else came': told([*links[:-1], absent]),
    'a weight of 10': heavier,
    'a round after the last': told([*links, after]),
    'another bundle': other_bundle,
    'another version of Flower': old_version,
  }
