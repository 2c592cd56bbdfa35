"""Tests of what server and nodes say to wrong input: what was wrong, what was expected, and what to do."""

import shutil
import types

import numpy as np
import pytest

pytest.importorskip('flwr', reason='make test-deploy sets up the newest Python that Flower runs on, and Flower.')

from flwr.app import Array
from flwr.app import ArrayRecord
from flwr.app import Error
from flwr.app import Message
from flwr.app import MessageType
from flwr.app import RecordDict

from quap_tff.bundle import player
from quap_tff.flower import __main__ as program
from quap_tff.flower import client_app
from quap_tff.flower import enrolment
from quap_tff.flower import messages
from quap_tff.flower import node as nodes
from quap_tff.flower import operators
from tests.quap_tff.flower.secure_sum import parties


class OddError(Exception):
  """One that nobody expects."""


def read(config, client):
  """A node's own reader, which fails for one client."""
  if client == 3:
    raise OddError('the record of Ms. Smith is damaged')
  return {'x': np.ones(parties.SHAPE, np.int64)}


@pytest.fixture(name='bundle')
def _bundle():
  return parties.Bundle()


@pytest.fixture(name='enrolled')
def _enrolled(tmp_path):
  """Two nodes, a and b, and the folder of their cards."""
  folder = tmp_path / 'nodes'
  folder.mkdir()
  for name, clients in (('a', '0-4'), ('b', '5-9')):
    enrolment.new_node(str(tmp_path / name), clients)
    shutil.copy(tmp_path / name / enrolment.CARD, folder / f'{name}.json')
  return folder


class TestRound:
  @pytest.fixture(name='announced')
  def _announced(self, bundle):
    link = messages.Link(1, np.arange(10), np.zeros(0, np.int64))
    message = np.zeros(2, np.float32)
    models = [messages.message_digest(bundle, message)]
    return messages.Announced(bundle, parties.RUN, models, message, [link], 1, 1.0)

  @pytest.mark.parametrize(
    'name, value, said',
    [
      ('flwr', '1.0.0', 'The server has flwr 1.0.0, and this node has .* Install one version of it on all machines'),
      ('quap_tff', '0.0.1', 'The server has quap_tff 0.0.1.*Install one version'),
      ('bundle', 'cd' * 32, 'plays a bundle with the digest cdcd.*, and this node has abab.*Give both the same one'),
    ],
  )
  def test_node_refuses_another_side(self, announced, bundle, name, value, said):
    content = messages.round_content(announced)
    content['announced'][name] = value
    with pytest.raises(messages.RefusedRoundError, match=said):
      messages.read_round(content, bundle)

  @pytest.mark.parametrize('arrays', [[], [np.zeros(3, np.float32)], [np.zeros(2, np.float32)] * 2])
  def test_node_refuses_a_message_of_another_type(self, announced, bundle, arrays):
    content = messages.round_content(announced)
    content['message'] = ArrayRecord({str(index): Array(one) for index, one in enumerate(arrays)})
    with pytest.raises(messages.RefusedRoundError, match='sent what is no round of this bundle: .*message'):
      messages.read_round(content, bundle)

  @pytest.mark.parametrize(
    'came, round_num, said',
    [
      ([0, 1], 2, 'answers round 2 .*was asked for round 1'),
      ([0, 7], 1, r'for the clients \[0, 7\], and was asked for round 1 of \[0, 1, 2\]'),
      ([0, 0], 1, 'Its answer is left out'),
    ],
  )
  def test_server_leaves_out_an_answer_to_something_else(self, bundle, came, round_num, said):
    answer = messages.Answer(round_num, _sums(), np.array(came))
    with pytest.raises(messages.RefusedRoundError, match=said):
      messages.answer(_reply(messages.answer_content(answer, bundle)), bundle, 1, np.arange(3))

  def test_server_leaves_out_sums_of_another_shape(self, bundle):
    content = messages.answer_content(messages.Answer(1, _sums(), np.arange(2)), bundle)
    content['secure'] = ArrayRecord({'0': Array(np.zeros([2, 2], np.int64)), '1': Array(np.array(1))})
    with pytest.raises(
      messages.RefusedRoundError, match='sent what is no answer: .*Give it the quap_tff of the server'
    ):
      messages.answer(_reply(content), bundle, 1, np.arange(3))


@pytest.mark.parametrize(
  'reason, said',
  [('Traceback\n  …\nKeyError: 7', 'failed: KeyError: 7. Its log'), ('', 'failed: it does not say why.')],
)
def test_server_says_in_a_line_how_a_node_failed(bundle, reason, said):
  reply = Message(Error(1, reason), reply_to=Message(RecordDict(), 1, MessageType.TRAIN))
  with pytest.raises(messages.RefusedRoundError, match=said):
    messages.answer(reply, bundle, 1, np.arange(3))


def _sums():
  return player.Sums(parties.structures.Struct(ids=np.int64(0)), [np.zeros(parties.SHAPE, np.int64), np.int64(1)])


def _reply(content):
  return Message(content, reply_to=Message(RecordDict(), 1, MessageType.TRAIN))


class TestEnrolment:
  def test_two_nodes_with_one_client(self, enrolled, tmp_path):
    enrolment.new_node(str(tmp_path / 'c'), '9,12')
    shutil.copy(tmp_path / 'c' / enrolment.CARD, enrolled / 'c.json')
    with pytest.raises(ValueError, match='Client 9 is enrolled in b.json and in c.json. A client has one id'):
      enrolment.Enrolled(str(enrolled))

  def test_two_nodes_with_one_key(self, enrolled):
    shutil.copy(enrolled / 'a.json', enrolled / 'c.json')
    with pytest.raises(ValueError, match='c.json has the key of another node. Remove one'):
      enrolment.Enrolled(str(enrolled))

  @pytest.mark.parametrize('text', ['', '{}', '{"public_key": "ecdsa", "clients": "1"}', '[]'])
  def test_a_damaged_card(self, enrolled, text):
    (enrolled / 'b.json').write_text(text)
    with pytest.raises(ValueError, match='b.json must have public_key and clients .* Copy enrolment.json'):
      enrolment.Enrolled(str(enrolled))

  @pytest.mark.parametrize('text', ['', 'a', '1-', '1,,2', '-3', '3-1,1-2 '])
  def test_clients_that_are_none(self, text):
    with pytest.raises(ValueError, match='clients must be ids and ranges of them, such as 0-24,30'):
      enrolment.clients_of(text)

  def test_a_client_twice(self):
    with pytest.raises(ValueError, match='1-3,2 has a client twice'):
      enrolment.clients_of('1-3,2')

  def test_signatures(self, enrolled, tmp_path):
    known = enrolment.Enrolled(str(enrolled))
    signature = enrolment.signed(str(tmp_path / 'a'), b'text')
    keys = known.keys_of({1: np.arange(5), 2: np.array([7])})
    assert enrolment.is_signed(keys[1], signature, b'text')
    assert not enrolment.is_signed(keys[1], signature, b'other')
    assert not enrolment.is_signed(keys[2], signature, b'text')
    assert not enrolment.is_signed(keys[1], b'', b'text')


class TestNode:
  @pytest.mark.parametrize('folder', ['', 'nowhere'])
  def test_without_a_key(self, bundle, enrolled, folder):
    with pytest.raises(ValueError, match='no folder for its keys.* enrol FOLDER --clients='):
      nodes.Node(bundle, {}, folder, '', str(enrolled))

  def test_without_the_operator(self, bundle, tmp_path, enrolled):
    with pytest.raises(ValueError, match='The key nowhere cannot be read'):
      nodes.Node(bundle, {}, str(tmp_path / 'a'), 'nowhere', str(enrolled))

  def test_without_the_others(self, bundle, tmp_path, enrolled):
    operators.new_operator(str(tmp_path / 'operator'))
    operator = str(tmp_path / 'operator' / operators.PUBLIC_KEY)
    with pytest.raises(ValueError, match='whose keys this one must know. Name the folder.*enrolment=…'):
      nodes.Node(bundle, {}, str(tmp_path / 'a'), operator)

  def test_without_a_bundle(self):
    with pytest.raises(ValueError, match='The node has no bundle'):
      nodes.Node.of({'data': 'x.npz'})


class TestClientsOfANode:
  @pytest.fixture(name='node_of')
  def _node_of(self, bundle, enrolled, tmp_path, monkeypatch):
    monkeypatch.setattr(nodes.player, 'Bundle', lambda path: bundle)
    operators.new_operator(str(tmp_path / 'operator'))
    operator = str(tmp_path / 'operator' / operators.PUBLIC_KEY)
    config = {'bundle': 'b', 'clients': '0-4', 'folder': str(tmp_path / 'a'), 'operator': operator}
    config['enrolment'] = str(enrolled)
    return lambda data: nodes.Node.of({**config, 'data': data})

  def test_a_client_that_cannot_be_read_keeps_nobody_out(self, node_of, tmp_path):
    node = node_of(f'{__name__}:read')
    assert {client: bool(one) for client, one in node.examples.items()} == {client: client != 3 for client in range(5)}
    (line,) = (tmp_path / 'a' / nodes.PRIVATE_LOG).read_text().splitlines()
    assert 'client 3 adds zero. OddError: the record of Ms. Smith is damaged' in line

  def test_who_is_at_a_node_does_not_follow_from_data(self, node_of, tmp_path):
    rows = np.array([0, 0, 2, 3, 7])
    np.savez(tmp_path / 'x.npz', x=np.ones([5, 2]), y=np.ones(5), client=rows)
    node = node_of(str(tmp_path / 'x.npz'))
    assert {client: bool(one) for client, one in node.examples.items()} == {
      client: client in rows for client in range(5)
    }

  @pytest.mark.parametrize('kind', [OddError, ZeroDivisionError, AssertionError, RuntimeError, MemoryError, EOFError])
  def test_no_text_of_an_error_reaches_the_server(self, kind, monkeypatch, caplog):
    def answer(content):
      raise kind('the record of Ms. Smith is damaged')

    noted = []
    node = types.SimpleNamespace(
      admit=lambda content: None, holds_noise=False, answer=answer, note_failure=noted.append
    )
    monkeypatch.setattr(client_app, '_node', node)
    reply = client_app.train(Message(RecordDict(), 1, MessageType.TRAIN), None)
    assert reply.content['answered'] == {'refused': messages.UNSAID} and len(noted) == 1

  def test_a_failure_is_told_to_the_owner_of_the_node_alone(self, node_of, tmp_path, caplog):
    node = node_of(f'{__name__}:read')
    node.note_failure(OddError('the record of Ms. Smith is damaged'))
    assert 'Smith' in (tmp_path / 'a' / nodes.PRIVATE_LOG).read_text() and 'Smith' not in caplog.text


class TestProgram:
  @pytest.mark.parametrize(
    'arguments, said',
    [
      (['enrol', '{a}', '--clients=1'], 'already exists: a key is for one run. Give a new folder.'),
      (['enrol', '{new}', '--clients=x'], 'clients must be ids and ranges of them'),
      (
        ['app', '{a}', '--bundle=b', '--enrolment=e', '--operator=p', '--output=o'],
        'already exists: give a new folder.',
      ),
      (
        ['node', '{new}', '--superlink=h:1', '--root-certificates=c', '--operator=p', '--bundle=b', '--data=d'],
        'Make the folder by',
      ),
    ],
  )
  def test_says_what_is_wrong(self, enrolled, tmp_path, arguments, said, capsys):
    arguments = [one.format(a=tmp_path / 'a', new=tmp_path / 'new') for one in arguments]
    assert program.main(arguments) == 2
    out, err = capsys.readouterr()
    assert not out and err.startswith('Error: ') and said in err and err.count('\n') == 1
