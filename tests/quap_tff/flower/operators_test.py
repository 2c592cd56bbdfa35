"""Tests of who is answered by a node: the operator of its run, about a round that goes on from the last one."""

import os
import stat

import numpy as np
import pytest

pytest.importorskip('flwr', reason='make test-deploy sets up the newest Python that Flower runs on, and Flower.')
pytest.importorskip('tensorflow', reason='Values of bundles need TensorFlow.')

from flwr.app import RecordDict

from quap_tff.flower import enrolment
from quap_tff.flower import messages
from quap_tff.flower import node as nodes
from quap_tff.flower import notes
from quap_tff.flower import operators
from quap_tff.mechanisms.held import guard
from tests.quap_tff.flower.secure_sum import parties


class TrustedBundle(parties.Bundle):
  """With a server that is trusted: clients have no guards."""

  def __init__(self):
    super().__init__()
    self.plan = None


@pytest.fixture(name='bundle')
def _bundle():
  return TrustedBundle()


@pytest.fixture(name='start')
def _start(bundle, tmp_path):
  """Starts the node, also for the second time."""
  enrolment.new_node(str(tmp_path / 'a'), '0-4')
  operators.new_operator(str(tmp_path / 'operator'))
  return lambda: nodes.Node(bundle, {}, str(tmp_path / 'a'), str(tmp_path / 'operator' / operators.PUBLIC_KEY))


@pytest.fixture(name='node')
def _node(start):
  return start()


@pytest.fixture(name='key')
def _key(node, tmp_path):
  return operators.private_key(str(tmp_path / 'operator'))


def _content(bundle, values, run=parties.RUN, cohort=(0, 1)):
  """The message of the last of some rounds, whose messages have these values."""
  sent = [np.full(2, value, np.float32) for value in values]
  models = [messages.message_digest(bundle, one) for one in sent]
  link = messages.Link(len(values), np.array(cohort), np.zeros(0, np.int64))
  return messages.round_content(messages.Announced(bundle, run, models, sent[-1], [link], 1, 1.0))


def _signed(content, key):
  operators.sign(content, key)
  return content


class TestSignature:
  def test_operator_is_answered(self, node, key, bundle):
    heading = node.admit(_signed(_content(bundle, [1.0]), key))
    assert (heading.run, heading.round_num) == (parties.RUN, 1)

  def test_a_stranger_gets_nothing(self, node, key, bundle, tmp_path):
    operators.new_operator(str(tmp_path / 'stranger'))
    stranger = operators.private_key(str(tmp_path / 'stranger'))
    for content in (_content(bundle, [1.0], cohort=[7]), _signed(_content(bundle, [1.0], cohort=[7]), stranger)):
      with pytest.raises(messages.RefusedRoundError, match='operator whose key this node has did not sign'):
        node.admit(content)
    assert not os.path.exists(tmp_path / 'a' / notes.NOTES)

  @pytest.mark.parametrize('name', ['run', 'round', 'bundle', 'models', 'message', 'history', 'another record'])
  def test_what_was_changed_on_its_way(self, node, key, bundle, name):
    content, other = _content(bundle, [1.0]), _content(bundle, [2.0], run='ef' * 16, cohort=[7])
    content['message'], content['history'] = content['message'], content['history']
    _signed(content, key)
    if name == 'another record':
      content['more'] = other['history']
    elif name in ('message', 'history'):
      content[name] = other[name]
    else:
      content[messages.HEADING][name] = {**other[messages.HEADING], 'round': 2, 'bundle': 'cd' * 32}[name]
    with pytest.raises(messages.RefusedRoundError, match='was changed on its way'):
      node.admit(content)

  def test_signature_of_another_message(self, node, key, bundle):
    content = _content(bundle, [1.0], cohort=[7])
    content['operator'] = _signed(_content(bundle, [1.0]), key)['operator']
    with pytest.raises(messages.RefusedRoundError, match='did not sign'):
      node.admit(content)

  def test_texts_and_bytes_differ(self):
    one, other = (RecordDict({'a': messages.ConfigRecord({'b': value})}) for value in ('00', b'00'))
    assert operators._to_sign(one) != operators._to_sign(other)

  def test_heading_is_that_of_the_message(self, bundle, key):
    content = _content(bundle, [1.0])
    content['message'] = _content(bundle, [2.0])['message']
    with pytest.raises(messages.RefusedRoundError, match='another message, or another round, than its heading'):
      messages.read_round(_signed(content, key), bundle)


class TestRounds:
  """With a server that is trusted, too. Another node is started before each message."""

  @pytest.fixture(name='ask')
  def _ask(self, start, node, key, bundle):
    return lambda values, **arguments: start().admit(_signed(_content(bundle, values, **arguments), key))

  def test_go_on(self, ask):
    for values in ([1.0], [1.0, 2.0], [1.0, 2.0, 3.0, 4.0]):
      ask(values)

  def test_the_last_one_again_for_another_cohort(self, ask):
    ask([1.0, 2.0])
    ask([1.0, 2.0], cohort=[1])

  @pytest.mark.parametrize(
    'values, said',
    [
      ([1.0], 'Round 1 was asked for after round 2.*older'),
      ([1.0, 5.0], 'other messages of the rounds until 2'),
      ([5.0, 2.0], 'other messages of the rounds until 2'),
      ([1.0, 5.0, 3.0], 'other messages of the rounds until 2'),
    ],
  )
  def test_what_does_not_go_on_is_refused(self, ask, values, said):
    ask([1.0, 2.0])
    with pytest.raises(messages.RefusedRoundError, match=said):
      ask(values)
    ask([1.0, 2.0, 3.0])

  def test_another_run(self, ask):
    ask([1.0])
    with pytest.raises(messages.RefusedRoundError, match='A folder of a node is for one run'):
      ask([1.0], run='ef' * 16)

  @pytest.mark.parametrize('removed', [True, False])
  def test_notes_that_were_removed_or_put_back(self, ask, tmp_path, removed):
    note = tmp_path / 'a' / notes.NOTES
    ask([1.0])
    older = note.read_bytes()
    ask([1.0, 2.0])
    if removed:
      note.unlink()
    else:
      note.write_bytes(older)
    with pytest.raises(ValueError, match='Put (it|the latest one) back'):
      ask([1.0, 2.0, 3.0])


def test_keys_of_another_run_are_refused_before_guards_answer(tmp_path):
  federation = parties.Parties(tmp_path, [[0], [1], [2], [3]], parties.Bundle(num_clients=4))
  federation.obtained()
  federation.log.clear()
  plan = guard.PublicPlan.of(federation.bundle.plan)
  before = [_memory(federation, node) for node in federation.nodes]
  announced = federation.announced(2)._replace(run='ef' * 16)
  found = parties.server.obtained(federation, federation.nodes, announced, lambda summed: None)
  assert not len(found.came) and plan.num_rounds == 3
  assert all('A folder of a node is for one run' in said for said in federation.refusals('setup').values())
  assert [_memory(federation, node) for node in federation.nodes] == before


def _memory(federation, node):
  (client,) = federation.nodes[node].tolist()
  with open(os.path.join(federation.folder(node), f'guard_{client}'), 'rb') as f:
    return f.read()


class TestFolder:
  def test_only_its_owner_reads_the_key(self, tmp_path):
    operators.new_operator(str(tmp_path / 'operator'))
    assert stat.S_IMODE(os.stat(tmp_path / 'operator' / operators.KEY).st_mode) == 0o600

  def test_is_not_replaced(self, tmp_path):
    with pytest.raises(ValueError, match='already exists, and a key in it would be lost. Give a new folder'):
      operators.new_operator(str(tmp_path))

  @pytest.mark.parametrize('read', [operators.public_key, operators.private_key])
  def test_without_a_key(self, tmp_path, read):
    with pytest.raises(ValueError, match='cannot be read'):
      read(str(tmp_path / 'nowhere'))
