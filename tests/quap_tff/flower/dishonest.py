"""A ServerApp that lies to the nodes of a held run, with the operator's key, and says what they answer.

Its configuration is that of quap_tff.flower.server_app. It plays a round, and then lies. Each lie is a line of its log:
`LIE name: answer`, with one node's answer.
"""

import logging

from flwr.app import ConfigRecord
from flwr.app import Message
from flwr.app import MessageType
from flwr.serverapp import ServerApp
import numpy as np

from quap_tff.bundle import player
from quap_tff.flower import enrolment
from quap_tff.flower import messages
from quap_tff.flower import operators
from quap_tff.flower import server_run
from quap_tff.flower.secure_sum import agreement
from quap_tff.flower.secure_sum import records
from quap_tff.flower.secure_sum import server
from tests import processes
from tests.quap_tff.flower import waiting

_LOG = logging.getLogger('flwr')
NUM_NODES = 4
app = ServerApp()


class _Grid:
  """Flower's, with messages that are changed on their way; keeps what nodes refuse."""

  def __init__(self, grid, stage, change):
    self._grid, self._stage, self._change, self.refused = grid, stage, change, {}

  def send_and_receive(self, sent, *, timeout=None):
    for message in sent:
      told = message.content.config_records.get(records.TOLD, ConfigRecord())
      if told.get('stage') == self._stage:
        self._change(message.content, message.metadata.dst_node_id)
    found = list(self._grid.send_and_receive(sent, timeout=timeout))
    for reply in found:
      if reply.has_content() and 'refused' in (said := reply.content.config_records.get('answered', {})):
        self.refused.setdefault(reply.metadata.src_node_id, said['refused'])
    return found


@app.main()
def main(grid, context):
  config = context.run_config
  grid = waiting.Grid(grid, config)
  signing = operators.SigningGrid(grid, operators.private_key(config['operator']))
  run = server_run.ServerRun(player.Bundle(config['bundle']), config['output'])
  everybody = enrolment.Enrolled(config['enrolment']).everybody
  present = lambda: enrolment.Enrolled(config['enrolment']).present(grid.get_nodes(), everybody)
  processes.until(lambda: len(present()) == NUM_NODES)
  nodes = present()
  victim = min(nodes)

  first = {}

  def play(stage='', change=None, history=None, again=False):
    """A round, of which every message of a stage is changed; what the first node refuses."""
    announced = run.announce(everybody, 1, 60.0)
    first.setdefault('announced', announced)
    lying = _Grid(signing, stage, change)
    history = history or announced.history
    told = announced._replace(history=history, models=announced.models[: history[-1].round_num])
    if again:
      told = first['announced']
    found = server.obtained(lying, nodes, told, lambda summed: None)
    if len(found.came):
      run.release(found)
    else:
      del run.rounds[run.server.done :]
    return lying.refused.get(victim) or next(iter(lying.refused.values()), 'ANSWERED')

  lies = _lies(run, nodes, victim)
  _LOG.info('HONEST: %s', play())
  for name, lie in lies.items():
    _LOG.info('LIE %s: %s', name, play(**lie()))
  content = messages.round_content(run.announce(everybody, 1, 60.0))
  (reply,) = signing.send_and_receive([Message(content, victim, MessageType.TRAIN)], timeout=processes.DEADLINE_SECONDS)
  _LOG.info('LIE a sum that the server sees: %s', reply.content['answered'].get('refused', 'ANSWERED'))
  _LOG.info('LIES are over')


def _lies(run, nodes, victim):
  """By name, a function that makes a lie when it is told: its stage and the change, or the history."""
  own_keys = [agreement.public_key(agreement.new_private_key()) for _ in range(2)]
  other = max(nodes)

  def threshold(content, node):
    content[records.TERMS]['threshold'] = 2

  def keys(content, node):
    content[records.KEYS][str(other)] = own_keys

  def another_bundle(content, node):
    content['announced']['bundle'] = '0' * 64

  def another_version(content, node):
    content['announced']['flwr'] = '1.0.0'

  def two_cohorts(content, node):
    if node == victim:
      content['history'] = messages.round_content(_announced(run, 0))['history']

  def overlap(content, node):
    told = content[records.PARTIES]
    told['dead'] = told['active'][:1]

  def masks(content, node):
    content[records.TERMS]['masks'] = ''

  return {
    'the same round again': lambda: {'again': True},
    'a threshold of 2': lambda: {'stage': records.SETUP, 'change': threshold},
    'masks of another kind': lambda: {'stage': records.SETUP, 'change': masks},
    'keys of its own': lambda: {'stage': records.SHARE, 'change': keys},
    'another bundle': lambda: {'stage': records.COLLECT, 'change': another_bundle},
    'another version of Flower': lambda: {'stage': records.COLLECT, 'change': another_version},
    'two cohorts': lambda: {'stage': records.COLLECT, 'change': two_cohorts},
    'overlapping lists': lambda: {'stage': records.UNMASK, 'change': overlap},
    'an old state': lambda: {'history': [*run.links()[:1], run.links()[1]._replace(came=np.zeros(0, np.int64))]},
  }


def _announced(run, first):
  """The last announcement, with another cohort."""
  links = run.links()
  another = [*links[:-1], links[-1]._replace(cohort=links[-1].cohort[1:])]
  return messages.Announced(run.bundle, run.run_id, run.models, run.bundle.prepare(run.server.state), another, 1, 60.0)
