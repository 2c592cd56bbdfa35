"""Faults that are planted in a node or in the server of a secure sum: each is found, before or instead of a sum."""

import numpy as np
import pytest

pytest.importorskip('flwr', reason='The secure sum goes over Flower: make test-deploy sets it up.')
pytest.importorskip('tensorflow', reason='Values of bundles need TensorFlow.')

from quap_tff.flower.secure_sum import agreement
from quap_tff.flower.secure_sum import client
from quap_tff.flower.secure_sum import masks
from quap_tff.flower.secure_sum import records
from quap_tff.flower.secure_sum import server
from quap_tff.flower.secure_sum import shares
from quap_tff.flower.secure_sum import terms
from tests.quap_tff.flower.secure_sum import parties

NODES = [[0, 1], [2], [3], [4], [5], [6, 7]]


@pytest.fixture(name='federation')
def _federation(tmp_path):
  return parties.Parties(tmp_path, NODES, parties.Bundle(num_clients=8))


def _has_no_sum(federation, found):
  """Whether the server has zeros in place of the sum."""
  return not any(np.any(one) for one in found.total.secure)


def _only(federation, node, function, planted):
  """A function that is another one while a node answers."""
  answering, honest = [], federation.apps[node]

  def answer(message, context):
    answering.append(node)
    try:
      return honest(message, context)
    finally:
      answering.pop()

  federation.apps[node] = answer
  return lambda *arguments: (planted if answering else function)(*arguments)


class TestNode:
  def test_a_mask_with_the_wrong_sign(self, federation, monkeypatch, caplog):
    node, right = sorted(federation.nodes)[2], masks.between
    wrong = lambda session, own, other, secret, size: right(session, other, own, secret, size)
    monkeypatch.setattr(masks, 'between', _only(federation, node, right, wrong))
    assert _has_no_sum(federation, federation.obtained())
    assert 'masks are left in their sum' in caplog.text

  @pytest.mark.parametrize('drops_out, said', [(False, 'masks are left'), (True, 'give another key')])
  def test_shares_of_the_wrong_index(self, federation, monkeypatch, caplog, drops_out, said):
    node, right = sorted(federation.nodes)[2], shares.split
    wrong = lambda *arguments: right(*arguments)[1:] + right(*arguments)[:1]
    monkeypatch.setattr(shares, 'split', _only(federation, node, right, wrong))
    if drops_out:
      federation.lost = {(node, records.COLLECT)}
    assert _has_no_sum(federation, federation.obtained())
    assert said in caplog.text

  def test_a_share_that_it_was_not_given(self, federation, caplog):
    a, b = sorted(federation.nodes)[1:3]
    honest = federation.apps[a]

    def answer(message, context):
      reply = honest(message, context)
      if message.content[records.TOLD]['stage'] == records.UNMASK:
        sent = reply.content[records.SHARES]
        sent[str(a)], sent[str(b)] = sent[str(b)], sent[str(a)]
      return reply

    federation.apps[a] = answer
    assert _has_no_sum(federation, federation.obtained())
    assert 'masks are left in their sum' in caplog.text

  def test_a_key_of_two_nodes_or_of_two_purposes(self, federation, monkeypatch):
    monkeypatch.setattr(agreement, 'new_private_key', lambda: bytes(range(32)))
    assert not len(federation.obtained().came)
    refusals = federation.refusals(records.SHARE)
    assert set(refusals) == set(federation.nodes) and all('or a key twice' in one for one in refusals.values())
    assert not federation.bundle.worked

  def test_a_key_by_which_anybody_knows_the_masks(self, federation, caplog):
    node = sorted(federation.nodes)[2]
    honest = federation.apps[node]

    def answer(message, context):
      reply = honest(message, context)
      if records.AGREED in reply.content:
        reply.content[records.AGREED]['keys'] = [bytes(32), bytes(32)]
      return reply

    federation.apps[node] = answer
    assert set(federation.obtained().came.tolist()) == set(range(8)) - set(federation.nodes[node].tolist())
    assert 'of no small order' in caplog.text

  def test_no_secret_and_no_seed_is_used_twice(self, federation, monkeypatch):
    assert not _repeated(federation, monkeypatch)

  def test_a_seed_that_is_used_twice(self, federation, monkeypatch):
    monkeypatch.setattr(client.os, 'urandom', lambda size: bytes(range(size)))
    assert _repeated(federation, monkeypatch) == {bytes(range(32))}


def _repeated(federation, monkeypatch):
  """The secrets by which a node masks more than one vector, or that two nodes have, in two rounds."""
  masked, used = masks.masked, []

  def noting(session, node, vector, seed, secrets):
    used.extend([(node, seed), *((frozenset((node, other)), one) for other, one in secrets.items())])
    return masked(session, node, vector, seed, secrets)

  monkeypatch.setattr(masks, 'masked', noting)
  for number in (1, 2):
    federation.obtained(number)
  seeds = [one for owner, one in used if not isinstance(owner, frozenset)]
  between = [one for owner, one in used if isinstance(owner, frozenset)]
  assert len(seeds) == 2 * len(NODES) and len(between) == 2 * len(NODES) * (len(NODES) - 1)
  repeated = {one for one in seeds if seeds.count(one) > 1 or one in between}
  return repeated | {one for one in between if between.count(one) != 2}


class TestServer:
  def test_announces_a_different_set_to_one_node(self, federation):
    victim, left_out = sorted(federation.nodes)[1:3]
    others = {node: own for node, own in federation.nodes.items() if node != left_out}
    settings = terms.Terms.of(federation.bundle, others).settings

    def forge(message, stage):
      if stage == records.SETUP and message.metadata.dst_node_id == victim:
        told = message.content[records.TERMS]
        setup = records.Setup.from_record(told)._replace(nodes=others)
        told.update({**setup.as_record(), **settings})

    federation.forge = forge
    assert not len(federation.obtained().came)
    refusals = federation.refusals(records.SHARE)
    assert set(refusals) == set(federation.nodes)
    assert all('has not signed these keys' in said or 'was not announced' in said for said in refusals.values())
    assert not federation.bundle.worked

  @pytest.mark.parametrize('stage, record', [(records.SHARE, records.KEYS), (records.COLLECT, records.SHARES)])
  def test_names_other_parties_to_one_node(self, federation, stage, record, caplog):
    victim, left_out = sorted(federation.nodes)[1:3]

    def forge(message, at):
      if at == stage and message.metadata.dst_node_id == victim:
        del message.content[record][str(left_out)]

    federation.forge = forge
    found = federation.obtained()
    if stage == records.COLLECT:
      assert _has_no_sum(federation, found)
      assert 'masks are left in their sum' in caplog.text
      return
    # It has no share for the node that it was not told of.
    gone = set(federation.nodes[victim].tolist())
    assert set(found.came.tolist()) == set(range(8)) - gone
    assert 'has not sent one share to each other node' in caplog.text

  @pytest.mark.parametrize('who', ['another node', 'another round', 'the other direction'])
  def test_gives_a_share_that_is_for(self, federation, who):
    a, b, c = sorted(federation.nodes)[1:4]
    earlier = {}
    if who == 'another round':
      federation.forge = lambda message, stage: earlier.update(_sealed(message, stage, b, c))
      federation.obtained()

    def forge(message, stage):
      if stage == records.COLLECT and message.metadata.dst_node_id == b:
        told = message.content[records.SHARES]
        told[str(c)] = earlier[b] if earlier else told[str(a)]
        if who == 'the other direction':  # Both have one key.
          told[str(c)] = federation.uploads[records.SHARE, b].content[records.SHARES][str(c)]

    federation.forge = forge
    federation.log.clear(), federation.bundle.worked.clear()
    found = federation.obtained(2 if earlier else 1, **({'came': {1: np.arange(8)}} if earlier else {}))
    assert f'from node {c} for node {b} is not' in federation.refusals(records.COLLECT)[b]
    assert not set(federation.nodes[b].tolist()) & {one for _, one in federation.bundle.worked}
    assert len(found.came) and not _has_no_sum(federation, found)

  def test_asks_for_both_shares_of_one_node_in_two_messages(self, federation):
    node, target = sorted(federation.nodes)[1:3]
    second = []

    def forge(message, stage):
      if stage == records.UNMASK and message.metadata.dst_node_id == node:
        told = message.content[records.PARTIES]
        if second:
          told['active'] = [one for one in told['active'] if one != target]
          told['dead'] = [target]

    federation.forge = forge
    federation.obtained()
    # It asks again, with the other list.
    second.append(True)
    agreed = terms.Terms.of(federation.bundle, federation.nodes)
    asking = server._Round(federation, agreed, federation.announced(1))
    federation.log.clear()
    with pytest.raises(server._TooFewError):
      asking._secrets({}, sorted(federation.nodes), sorted(federation.nodes))
    assert 'No round was set up here' in federation.refusals(records.UNMASK)[node]

  def test_keeps_nothing_of_a_round_that_is_over(self, federation):
    federation.obtained()
    assert not any(list(context.state) for context in federation.contexts.values())


def _sealed(message, stage, node, source):
  """What a node was sent of another one in the third stage, by node."""
  if stage == records.COLLECT and message.metadata.dst_node_id == node:
    return {node: message.content[records.SHARES][str(source)]}
  return {}
