"""Nodes of a held run in this process: the real client's side, and a grid in memory."""

import functools
import shutil
import types

from flwr.app import Context
from flwr.app import Error
from flwr.app import Message
from flwr.app import RecordDict
import numpy as np

from quap_tff import plans
from quap_tff.bundle import bundle_files
from quap_tff.bundle import player
from quap_tff.bundle import structures
from quap_tff.flower import client_app
from quap_tff.flower import enrolment
from quap_tff.flower import messages
from quap_tff.flower import node as nodes
from quap_tff.flower import operators
from quap_tff.flower.secure_sum import records
from quap_tff.flower.secure_sum import server
from quap_tff.mechanisms import mechanism
from quap_tff.mechanisms.noise import correlation
from tests.quap_tff import examples

RUN = 'cd' * 16
SHAPE = (3, 2)
_INT64 = lambda *shape: {'dtype': 'int64', 'shape': list(shape)}


class Bundle(player.Bundle):
  """A run whose clients send the integers that they have, without a graph."""

  def __init__(self, num_clients=10, threshold=0.5, rounds=3, modulus=2**32 - 1):
    config = examples.held(num_clients=num_clients, correlation=correlation.HeldNoise(0.0), threshold=threshold)
    self.plan = plans.Plan.certified(config, [list(range(num_clients))] * rounds)
    self.rounds = bundle_files.PlannedRounds([np.arange(num_clients)] * rounds)
    self.digest, self._modulus, self.worked = 'ab' * 32, modulus, []

  data_type = {'fields': [[name, None] for name in ('client_id', 'answer', 'examples')]}
  message_type = {'dtype': 'float32', 'shape': [2]}
  sums_types = player.Sums({'fields': [['ids', _INT64()]]}, {'fields': [[None, _INT64(*SHAPE)], [None, _INT64()]]})

  @property
  def modulus(self):
    return [np.int64(self._modulus), np.int64(mechanism.COUNT_MODULUS)]

  def _worked(self, data, message):
    self.worked.append((int(data['answer']['round']), int(data['client_id'])))
    x = data['examples']['x'] if data['examples'] else np.zeros(SHAPE, np.int64)
    return player.Sums(structures.Struct(ids=np.int64(data['client_id'])), [x, np.int64(1)]), True

  def zero(self):
    return player.Sums(structures.Struct(ids=np.int64(0)), [np.int64(0), np.int64(0)])

  def merge(self, total, other):
    return player.Sums(structures.Struct(ids=total.plain.ids + other.plain.ids), self._secure(total, other))

  add = merge


def bound(bundle):
  """The largest absolute value of a client's integers."""
  return (int(bundle.modulus[0]) - 1) // (2 * bundle.plan.core.most_clients)


class Parties:
  """Some nodes with one or more clients each, and a `Grid` whose server may be dishonest.

  Attributes:
    nodes: int64[M_k] by node id.
    lost: Pairs of a node and a stage in which it does not answer.
    forge: Is given each message before it is delivered, and its stage.
    log: Stage, node and what it has refused, '' if it has answered, of each message.
    uploads: What nodes have sent, by stage and node.
  """

  def __init__(self, folder, clients, bundle, examples=None, seed=0):
    rng = np.random.default_rng(seed)
    self.bundle, self.nodes = bundle, {}
    self.lost, self.forge, self.log, self.uploads = set(), lambda message, stage: None, [], {}
    self.names = {}  # Of the records in uploads, before the server works on them.
    self.served = {}  # The nodes.
    self.apps, self.contexts, self._folder = {}, {}, folder
    self.x = {}  # Of a bundle without a graph, what clients send.
    self.examples = examples or {}
    (folder / 'enrolled').mkdir()
    operators.new_operator(str(folder / 'operator'))
    self.key = operators.private_key(str(folder / 'operator'))  # Of who signs the messages.
    for number, own in enumerate(clients):
      node_id = 1000 - 7 * number
      self.nodes[node_id] = np.array(own, np.int64)
      for one in own if examples is None else ():
        most = bound(bundle)
        self.x[one] = rng.integers(-most, most, SHAPE, endpoint=True)
        self.examples[one] = {'x': self.x[one]}
      self.start(node_id)

  def start(self, node_id):
    """Starts a node, also for the second time: what it keeps in its folder is still there."""
    folder, enrolled = self._folder / str(node_id), self._folder / 'enrolled'
    if not folder.exists():
      enrolment.new_node(str(folder), ','.join(map(str, self.nodes[node_id].tolist())))
      shutil.copy(folder / enrolment.CARD, enrolled / f'{node_id}.json')
    own = {one: self.examples[one] for one in self.nodes[node_id].tolist()}
    operator = str(self._folder / 'operator' / operators.PUBLIC_KEY)
    self.served[node_id] = nodes.Node(self.bundle, own, str(folder), operator, str(enrolled))
    self.apps[node_id] = functools.partial(_answer, self.served[node_id])
    self.contexts[node_id] = Context(1, node_id, {}, RecordDict(), {})

  def folder(self, node_id):
    """A node's own."""
    return str(self._folder / str(node_id))

  def announced(self, rounds, came=None, bundle=None):
    """A round, after others in which all came, or those of `came`."""
    bundle = bundle or self.bundle
    cohort = np.sort(np.concatenate(list(self.nodes.values())))
    came = came or {}
    links, before = [], cohort[:0]
    for number in range(1, rounds + 1):
      links.append(messages.Link(number, cohort, before))
      before = came.get(number, cohort)
    message = np.zeros(2, np.float32)
    models = [messages.message_digest(bundle, message)] * rounds
    return messages.Announced(bundle, RUN, models, message, links, 1, 1.0)

  def obtained(self, rounds=1, nodes=None, **arguments):
    """The sum of a round, as the server obtains it. `opening` has who is in it as soon as it may open."""
    self.opening = []
    announced = self.announced(rounds, **arguments)
    return server.obtained(self, nodes if nodes is not None else self.nodes, announced, self.opening.append)

  def get_nodes(self):
    """As Flower gives them: who is connected."""
    keys = enrolment.Enrolled(str(self._folder / 'enrolled')).keys_of(self.nodes)
    return [types.SimpleNamespace(node_id=node, public_key=keys[node]) for node in self.nodes]

  def send_and_receive(self, sent, *, timeout=None):
    replies = []
    for message in sent:
      node = message.metadata.dst_node_id
      stage = message.content.config_records.get(records.TOLD, {}).get('stage', '')
      self.forge(message, stage)
      operators.sign(message.content, self.key)
      if (node, stage) in self.lost:
        continue
      replies.append(self.deliver(message, stage))
    return replies

  def deliver(self, message, stage):
    """A node's reply to one message, over the wire's own form."""
    node = message.metadata.dst_node_id
    try:
      reply = self.apps[node](message, self.contexts[node])
    except Exception as error:  # As Flower does.
      reply = Message(Error(1, str(error)), reply_to=message)
    refused = reply.content.config_records.get('answered', {}).get('refused', '') if reply.has_content() else 'failed'
    self.log.append((stage, node, refused))
    self.uploads[stage, node] = reply
    self.names[stage, node] = set(reply.content) if reply.has_content() else set()
    return reply

  def refusals(self, stage=None):
    """What was refused, by node."""
    return {node: said for at, node, said in self.log if said and stage in (None, at)}

  def total(self, clients):
    """The exact sum of some clients' integers."""
    return sum(self.x[one] for one in clients)


def _answer(node, message, context):
  client_app.keep(node)
  return client_app.train(message, context)
