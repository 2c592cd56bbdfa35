"""Tests of the secure sum over Flower: that it is exact, what it survives, and what nodes refuse."""

import hashlib
import os
import pathlib
import shutil
import stat

import numpy as np
import pytest

pytest.importorskip('flwr', reason='The secure sum goes over Flower: make test-deploy sets it up.')
pytest.importorskip('tensorflow', reason='Values of bundles need TensorFlow.')

from flwr.app import ConfigRecord
from flwr.app import Message
from flwr.app import MessageType

from quap_tff.bundle import player
from quap_tff.flower import enrolment
from quap_tff.flower import messages
from quap_tff.flower import node as nodes
from quap_tff.flower.secure_sum import agreement
from quap_tff.flower.secure_sum import client
from quap_tff.flower.secure_sum import integers
from quap_tff.flower.secure_sum import masks
from quap_tff.flower.secure_sum import openings
from quap_tff.flower.secure_sum import records
from quap_tff.flower.secure_sum import server
from quap_tff.flower.secure_sum import terms
from quap_tff.mechanisms.held import guard
from tests.quap_tff.flower.secure_sum import parties

_EACH = [[0], [1], [2], [3], [4], [5], [6], [7], [8], [9]]


@pytest.fixture(name='federation')
def _federation(tmp_path):
  return parties.Parties(tmp_path, _EACH, parties.Bundle())


def _check(federation, found, clients):
  clients = sorted(clients)
  assert found.came.tolist() == clients
  modulus = int(federation.bundle.modulus[0])
  values, count = found.total.secure
  np.testing.assert_array_equal(values, federation.total(clients) % modulus)
  assert int(count) == len(clients)
  assert int(found.total.plain.ids) == sum(clients)


class TestSum:
  def test_is_exact_for_three_rounds(self, federation):
    for number in (1, 2, 3):
      found = federation.obtained(number)
      _check(federation, found, range(10))
    assert sorted(federation.bundle.worked) == [(number, one) for number in (1, 2, 3) for one in range(10)]
    assert not federation.refusals()

  def test_is_exact_where_nodes_have_many_clients(self, tmp_path):
    federation = parties.Parties(tmp_path, [[0, 3, 4, 9], [1, 2], [5], [6, 7, 8]], parties.Bundle())
    _check(federation, federation.obtained(1), range(10))

  @pytest.mark.parametrize('data', [{}, {'y': np.zeros(3)}, 'text'])
  def test_a_client_whose_data_cannot_be_used_adds_zero_alone(self, tmp_path, data):
    federation = parties.Parties(tmp_path, [[0, 3, 4, 9], [1, 2], [5], [6, 7, 8]], parties.Bundle())
    node = next(node for node, clients in federation.nodes.items() if 3 in clients)
    federation.examples[3], federation.x[3] = data, np.zeros(parties.SHAPE, np.int64)
    federation.start(node)
    _check(federation, federation.obtained(), range(10))
    noted = pathlib.Path(federation.folder(node)) / nodes.PRIVATE_LOG
    if data:
      (line,) = noted.read_text().splitlines()
      assert 'Round 1: client 3 adds zero. ' in line
      assert stat.S_IMODE(noted.stat().st_mode) == 0o600
    others = [pathlib.Path(federation.folder(other)) / nodes.PRIVATE_LOG for other in federation.nodes if other != node]
    assert not any(map(os.path.exists, others))

  def test_node_sends_no_integer_of_its_own(self, federation):
    federation.obtained(1)
    for node, (one,) in federation.nodes.items():
      reply = federation.uploads[records.COLLECT, node].content
      names = federation.names[records.COLLECT, node]
      assert names == {records.MASKED, *records.PLAIN}
      masked = records.vector(reply[records.MASKED], integers.num_entries(federation.bundle))
      own = integers.encoded(federation.bundle, [federation.x[one], np.int64(1)])
      assert not (masked == own).any()


class TestLostNodes:
  @pytest.mark.parametrize('stage', [records.SETUP, records.SHARE, records.COLLECT, records.UNMASK])
  def test_sum_is_that_of_the_others(self, federation, stage):
    lost = sorted(federation.nodes)[3:5]
    federation.lost = {(node, stage) for node in lost}
    found = federation.obtained(1)
    # In the last stage, they are in the sum, which the others open.
    gone = [] if stage == records.UNMASK else [int(federation.nodes[node][0]) for node in lost]
    _check(federation, found, set(range(10)) - set(gone))
    came = {1: found.came}
    federation.lost = set()
    _check(federation, federation.obtained(2, came=came), range(10))

  def test_lost_one_after_another(self, tmp_path):
    federation = parties.Parties(tmp_path, [[one] for one in range(14)], parties.Bundle(num_clients=14))
    a, b, c = sorted(federation.nodes)[::5]
    federation.lost = {(a, records.SHARE), (b, records.COLLECT), (c, records.UNMASK)}
    found = federation.obtained(1)
    _check(federation, found, set(range(14)) - {int(federation.nodes[node][0]) for node in (a, b)})

  @pytest.mark.parametrize('stage', [records.SETUP, records.SHARE, records.COLLECT, records.UNMASK])
  def test_too_many_lost_open_for_nobody(self, federation, stage):
    federation.lost = {(node, stage) for node in sorted(federation.nodes)[:4]}
    found = federation.obtained(1)
    assert not any(np.any(one) for one in found.total.secure)
    if stage == records.UNMASK:  # It may open as soon as one more answers, however late.
      assert found.came.tolist() == federation.opening[0].came.tolist() == list(range(10))
      return
    assert not len(found.came) and not federation.opening
    assert not any(at == records.UNMASK for at, _, _ in federation.log)

  def test_round_whose_sum_may_have_opened_is_not_one_of_nobody(self, federation):
    federation.lost = {(node, records.UNMASK) for node in sorted(federation.nodes)[:4]}
    federation.obtained()
    federation.lost = set()
    federation.log.clear()
    assert not len(federation.obtained(2, came={1: np.zeros(0, np.int64)}).came)
    refusals = federation.refusals(records.COLLECT)
    assert set(refusals) == set(sorted(federation.nodes)[4:])
    assert all('The clients [] are said to have come in round 1' in one for one in refusals.values())

  def test_without_a_threshold_for_all_or_nobody(self, tmp_path):
    federation = parties.Parties(tmp_path, _EACH, parties.Bundle(threshold=None))
    _check(federation, federation.obtained(1), range(10))
    federation.lost = {(min(federation.nodes), records.COLLECT)}
    assert not len(federation.obtained(2).came)


def _forge(federation, at, change, nodes=None):
  """Before a message of a stage is delivered, changes its content."""

  def forge(message, stage):
    if stage == at and (nodes is None or message.metadata.dst_node_id in nodes):
      change(message.content)

  federation.forge = forge


def _sends_nothing(federation, stage, name):
  """Whether no node has sent a record in a stage since the log began."""
  return not any(
    at == stage and reply.has_content() and name in reply.content for (at, _), reply in federation.uploads.items()
  )


class TestDishonestServer:
  """What it asks, and that each node refuses, in words, before anything that depends on data leaves it."""

  @pytest.mark.parametrize('restarts', [False, True])
  def test_same_round_twice(self, federation, restarts, caplog):
    federation.obtained()
    for node in federation.nodes if restarts else ():
      federation.start(node)
    federation.log.clear(), federation.uploads.clear()
    assert not len(federation.obtained().came)
    refusals = federation.refusals(records.COLLECT)
    assert set(refusals) == set(federation.nodes)
    assert all('Round 1 was answered already' in one for one in refusals.values())
    assert 'Refused: Round 1 was answered already' in caplog.text
    assert _sends_nothing(federation, records.COLLECT, records.MASKED)
    assert len(federation.bundle.worked) == 10

  def test_old_state(self, federation):
    federation.obtained(), federation.obtained(2)
    federation.log.clear(), federation.uploads.clear()
    assert not len(federation.obtained().came)
    refusals = federation.refusals(records.SETUP)
    assert set(refusals) == set(federation.nodes)
    assert all('Round 1 was asked for after round 2' in one for one in refusals.values())

  @pytest.mark.parametrize('stage', [records.COLLECT, records.UNMASK])
  def test_stage_straight_after_the_setup(self, federation, stage):
    ids = sorted(federation.nodes)

    def change(content):
      told = content[records.TOLD]
      if told['stage'] == records.SETUP:
        content[records.TERMS].update({'parties': ids, 'stage': records.SHARE})
      else:
        told['stage'] = stage
        content[records.PARTIES] = ConfigRecord({'active': ids, 'dead': []})

    federation.forge = lambda message, _: change(message.content)
    assert not len(federation.obtained().came)
    refusals = federation.refusals()
    assert set(refusals) == set(ids) and all(f'the stage {stage} after setup' in one for one in refusals.values())
    number = guard.PublicPlan.of(federation.bundle.plan).number
    assert not any(openings.Openings(federation.folder(node), number).by_round() for node in ids)
    federation.forge = lambda message, _: None
    _check(federation, federation.obtained(2, came={1: np.zeros(0, np.int64)}), range(10))

  @pytest.mark.parametrize('name, value', [('threshold', 2), ('modulus', 2**31)])
  def test_other_parameters_such_as_a_threshold_of_2(self, federation, name, value, caplog):
    _forge(federation, records.SETUP, lambda content: content[records.TERMS].update({name: value}))
    assert not len(federation.obtained().came)
    refusals = federation.refusals(records.SETUP)
    assert set(refusals) == set(federation.nodes)
    assert all(f'sets {name} to {value}, and by the plan it is' in one for one in refusals.values())
    assert f'Refused: The server sets {name} to {value}' in caplog.text
    assert not federation.bundle.worked

  def test_two_cohorts_told_honestly(self, federation, caplog):
    victim = sorted(federation.nodes)[4]
    other = _digest_of_another_history(federation)
    _forge(federation, records.SETUP, lambda content: content[records.TERMS].update({'digest': other}), {victim})
    # The server gives on what each node has signed.
    read, server._Round._keys = server._Round._keys, _keys_of_any_history
    try:
      assert not len(federation.obtained().came)
    finally:
      server._Round._keys = read
    refusals = federation.refusals(records.SHARE)
    assert set(refusals) == set(federation.nodes)
    assert all('tells two histories' in one for one in refusals.values())
    assert f'Refused: Node {victim} has not signed these keys for the history' in caplog.text
    assert not federation.bundle.worked

  def test_keys_of_two_runs_do_not_mix(self, federation):
    victim = sorted(federation.nodes)[4]

    def forge(message, stage):
      if message.metadata.dst_node_id == victim:
        message.content[messages.HEADING]['run'] = 'ef' * 16

    federation.forge = forge
    assert not len(federation.obtained().came)
    refusals = federation.refusals(records.SHARE)
    assert set(refusals) == set(federation.nodes)
    assert all('has not signed these keys' in one for one in refusals.values())
    assert not federation.bundle.worked

  def test_two_cohorts_and_a_lie_about_digests(self, federation):
    # It says to each that all were told the same. In the third stage, the history is another than was compared.
    link = federation.announced(1).history[0]
    other = messages.round_content(federation.announced(1)._replace(history=[link._replace(cohort=link.cohort[:-1])]))
    victim = sorted(federation.nodes)[4]
    change = lambda content: content.update({'history': other['history']})
    _forge(federation, records.COLLECT, change, {victim})
    federation.obtained()
    assert 'the nodes of this round have compared' in federation.refusals()[victim]
    assert set(federation.refusals()) == {victim}
    assert (1, int(federation.nodes[victim][0])) not in federation.bundle.worked

  def test_masks_of_two_histories_do_not_cancel(self, federation):
    nodes, secret = federation.nodes, bytes(range(32))
    some = list(nodes)[1:]
    one, same, other = (terms.session_of(parties.RUN, 1, digest, nodes) for digest in 'aab')
    others = [
      terms.masked_session(other, nodes),
      terms.masked_session(one, some),
      terms.masked_session(terms.session_of('another run', 1, 'a', nodes), nodes),
      terms.masked_session(terms.session_of(parties.RUN, 2, 'a', nodes), nodes),
      terms.masked_session(terms.session_of(parties.RUN, 1, 'a', {node: nodes[node] for node in some}), nodes),
    ]
    mask = masks.generated(terms.masked_session(one, nodes), secret, 4)
    np.testing.assert_array_equal(mask, masks.generated(terms.masked_session(same, list(nodes)[::-1]), secret, 4))
    assert all((mask != masks.generated(session, secret, 4)).all() for session in others)

  @pytest.mark.parametrize(
    'lie, reason',
    [
      ('overlap', 'is in both lists'),
      ('overlap, in place of another', 'is in both lists'),
      ('one is left out', 'those who have answered are'),
      ('one who has answered is said to be dead', ''),
      ('a stranger', 'was not announced'),
      ('one twice', 'those who have answered are'),
      ('fewer than the threshold', 'fewer than the threshold'),
      ('the node itself is dead', 'is said to have dropped out'),
    ],
  )
  def test_lists_of_the_last_stage(self, federation, lie, reason, caplog):
    ids = sorted(federation.nodes)

    def change(content):
      active, dead = list(ids), []
      if lie == 'overlap':
        dead = ids[:1]
      elif lie == 'overlap, in place of another':
        active, dead = ids[:-1], ids[:1]
      elif lie == 'one is left out':
        active = ids[:-1]
      elif lie == 'one who has answered is said to be dead':
        active, dead = ids[:-1], ids[-1:]
      elif lie == 'a stranger':
        active = [*ids[:-1], 5]
      elif lie == 'one twice':
        active = [*ids, ids[0]]
      elif lie == 'fewer than the threshold':
        active, dead = ids[:6], ids[6:]
      else:
        active, dead = ids[1:], ids[:1]
      content[records.PARTIES] = ConfigRecord({'active': active, 'dead': dead})

    asked = ids[:1] if lie == 'the node itself is dead' else ids[:4]
    _forge(federation, records.UNMASK, change, asked)
    federation.obtained()
    refusals = federation.refusals(records.UNMASK)
    if not reason:  # No node can know that. Its share is one of fewer than t, of the other secret.
      assert not refusals
      return
    assert set(refusals) == set(asked) and all(reason in one for one in refusals.values())
    assert reason in caplog.text
    for node in asked:
      assert records.SHARES not in federation.uploads[records.UNMASK, node].content

  def test_second_opening(self, federation):
    kept = {}
    federation.forge = lambda message, stage: kept.setdefault((message.metadata.dst_node_id, stage), message)
    node = min(federation.nodes)
    states = {}

    def forge(message, stage):
      if stage == records.UNMASK and message.metadata.dst_node_id == node:
        context = federation.contexts[node]
        states.update({name: ConfigRecord(dict(one)) for name, one in context.state.config_records.items()})
        states['told'] = ConfigRecord(dict(message.content[records.PARTIES]))

    federation.forge = forge
    federation.obtained()
    # At once, as if two messages had come before the state of the first was kept.
    told = states.pop('told')
    for name, one in states.items():
      federation.contexts[node].state[name] = one
    told['active'], told['dead'] = told['active'][:-1], told['active'][-1:]
    heading = messages.heading_record(federation.announced(1))
    stage = ConfigRecord({'stage': records.UNMASK})
    content = messages.RecordDict({records.TOLD: stage, records.PARTIES: told, messages.HEADING: heading})
    again = Message(content, node, MessageType.TRAIN)
    federation.forge = lambda message, stage: None
    federation.log.clear()
    (reply,) = federation.send_and_receive([again])
    assert 'was opened already' in federation.refusals()[node]
    assert records.SHARES not in reply.content

  def test_another_sum_than_was_opened(self, federation):
    federation.obtained()
    federation.log.clear()
    federation.obtained(2, came={1: np.arange(9)})
    refusals = federation.refusals(records.COLLECT)
    assert set(refusals) == set(federation.nodes)
    assert all('has opened the sum of' in one for one in refusals.values())

  @pytest.mark.parametrize('puts_back', [False, True])
  def test_notes_of_openings_that_are_removed_or_put_back(self, federation, puts_back):
    node, plan = min(federation.nodes), guard.PublicPlan.of(federation.bundle.plan)
    path = os.path.join(federation.folder(node), f'opened_{plan.number}')
    federation.obtained()
    shutil.copy(path, f'{path}.older')
    federation.obtained(2, came={1: np.arange(10)})
    os.remove(path)
    if puts_back:
      shutil.move(f'{path}.older', path)
    federation.log.clear()
    federation.obtained(3, came={1: np.arange(10), 2: np.arange(10)})
    said = 'is not the latest copy' if puts_back else 'was there and is gone'
    assert said in federation.refusals(records.COLLECT)[node]

  def test_a_crash_while_an_opening_is_noted_leaves_a_node_that_answers(self, federation, monkeypatch):
    """An empty note would be read in each later round, and refused."""
    folder = federation.folder(min(federation.nodes))
    plan = guard.PublicPlan.of(federation.bundle.plan)
    notes = openings.Openings(folder, plan.number)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
      patch.setattr(os, 'fsync', lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
      notes.note(1, np.arange(10))
    assert not notes.by_round()
    federation.obtained()
    assert notes.by_round()[1].tolist() == list(range(10))
    with pytest.raises(messages.RefusedRoundError, match='was opened already'):
      notes.note(1, np.arange(9))

  def test_a_sum_that_the_server_sees(self, federation):
    node = min(federation.nodes)
    message = Message(messages.round_content(federation.announced(1)), node, MessageType.TRAIN)
    federation.send_and_receive([message])
    assert 'takes part only in secure sums' in federation.refusals()[node]
    assert not federation.bundle.worked

  @pytest.mark.parametrize('signs', [False, True])
  def test_keys_of_the_servers_own(self, federation, signs):
    """With them it would see through the masks between two nodes."""
    victim, asked = sorted(federation.nodes)[4:6]
    both = records.PublicKeys(*(agreement.public_key(agreement.new_private_key()) for _ in range(2)))

    def change(content):
      content[records.KEYS][str(victim)] = list(both)
      if signs:  # By a node that helps the server.
        digest = records.digest_of(guard.PublicPlan.of(federation.bundle.plan), federation.announced(1).history)
        session = terms.session_of(parties.RUN, 1, digest, federation.nodes)
        folder = federation.folder(min(federation.nodes))
        content[records.SIGNATURES][str(victim)] = enrolment.signed(folder, records.to_sign(session, victim, both))

    _forge(federation, records.SHARE, change, {asked})
    federation.obtained()
    assert f'Node {victim} has not signed these keys' in federation.refusals(records.SHARE)[asked]
    assert (1, int(federation.nodes[asked][0])) not in federation.bundle.worked

  def test_two_nodes_by_one_key(self, federation):
    a, b = sorted(federation.nodes)[:2]
    nodes = {**federation.nodes, a: federation.nodes[b]}
    with pytest.raises(messages.RefusedRoundError, match='at a node of their own'):
      client.SecureSum(federation.served[b])._enrolled_keys(records.Setup(masks.NAME, 1, 'ab', nodes))

  @pytest.mark.parametrize('how', ['strangers', 'few'])
  def test_other_parties_in_the_second_stage(self, federation, how):
    def change(content):
      told = content[records.KEYS]
      names = list(told)
      if how == 'few':
        for name in names[3:]:
          if name != str(max(federation.nodes)):
            del told[name], content[records.SIGNATURES][name]
      else:
        told['5'] = told[names[0]]

    _forge(federation, records.SHARE, change)
    federation.obtained()
    reason = {'strangers': 'was not announced', 'few': 'fewer than the threshold'}[how]
    assert reason in federation.refusals(records.SHARE)[max(federation.nodes)]
    assert not federation.bundle.worked

  def test_clients_that_the_node_does_not_have(self, federation):
    a, b = sorted(federation.nodes)[:2]
    federation.nodes[a], federation.nodes[b] = federation.nodes[b], federation.nodes[a]
    federation.obtained()
    refusals = federation.refusals(records.SETUP)
    assert set(refusals) == {a, b} and all('Enrol each client at the node' in one for one in refusals.values())


def _digest_of_another_history(federation):
  link = federation.announced(1).history[0]
  plan = guard.PublicPlan.of(federation.bundle.plan)
  return records.digest_of(plan, [link._replace(cohort=link.cohort[:-1])])


def _keys_of_any_history(round_):
  """A server that does not mind what history a node answers for."""
  announcement = {**round_._setup.as_record(), **round_._terms.settings}
  make = lambda node: round_._content(records.SETUP, {records.TERMS: announcement})

  def read(node, reply):
    agreed = reply.content[records.AGREED]
    return server._Signed(records.PublicKeys(*agreed['keys']), agreed['signature'])

  return round_._stage(list(round_._terms.nodes), make, read)


class TestGenerator:
  def test_server_refuses_a_node_with_another(self, federation, caplog):
    node = min(federation.nodes)
    honest = federation.apps[node]

    def other(message, context):
      reply = honest(message, context)
      reply.content[records.AGREED]['masks'] = 'another'
      return reply

    federation.apps[node] = other
    found = federation.obtained()
    _check(federation, found, set(range(10)) - set(federation.nodes[node].tolist()))
    assert f"node {node} makes masks by 'another', and this server by '{masks.NAME}'" in caplog.text
    assert not any(at == records.SHARE and who == node for at, who, _ in federation.log)

  def test_node_refuses_a_server_with_another(self, federation):
    _forge(federation, records.SETUP, lambda content: content[records.TERMS].update({'masks': 'another'}))
    assert not len(federation.obtained().came)
    assert all("The server makes masks by 'another'" in one for one in federation.refusals().values())
    assert set(federation.refusals()) == set(federation.nodes)

  def test_is_chacha20_under_the_whole_secret(self):
    # RFC 8439, A.1, test vector 1: key, nonce and counter are zero. The nonce here is that of a session.
    plain = masks.Cipher(masks.algorithms.ChaCha20(bytes(32), bytes(16)), mode=None).encryptor().update(bytes(8))
    assert plain.hex() == '76b8e0ada0f13d90'
    nonce = bytes(4) + hashlib.sha256(b's').digest()[:12]
    for secret in (bytes(32), bytes([7, *bytes(31)]), bytes([*bytes(31), 7])):
      stream = masks.Cipher(masks.algorithms.ChaCha20(secret, nonce), mode=None).encryptor().update(bytes(16))
      assert masks.generated(b's', secret, 4).astype('<u4').tobytes() == stream
    with pytest.raises(ValueError):
      masks.generated(b's', bytes(16), 1)

  def test_is_uniform(self):
    mask = masks.generated(b's', bytes(32), 1000)
    assert mask.shape == (1000,) and mask.dtype == np.uint32
    assert abs(mask.mean() / 2**31 - 1) < 0.1


class TestIntegers:
  @pytest.mark.parametrize('sign', [-1, 0, 1])
  def test_largest_sums_and_counts(self, sign):
    bundle = parties.Bundle()
    value = np.full(parties.SHAPE, sign * parties.bound(bundle))
    one = integers.encoded(bundle, [value, np.int64(3)])
    assert one.shape == (integers.num_entries(bundle),) and one.dtype == np.uint32
    values, count = integers.decoded(bundle, 10 * one, 10)
    np.testing.assert_array_equal(values, 10 * value % int(bundle.modulus[0]))
    assert int(count) == 30

  def test_an_integer_that_is_too_large(self):
    with pytest.raises(ValueError, match=r'2\^31 or larger'):
      integers.encoded(parties.Bundle(modulus=2**40 + 1), [np.full(parties.SHAPE, 2**31), np.int64(1)])

  def test_a_sum_of_others_is_found(self):
    bundle = parties.Bundle()
    one = integers.encoded(bundle, [np.zeros(parties.SHAPE, np.int64), np.int64(1)])
    with pytest.raises(ValueError, match='masks are left'):
      integers.decoded(bundle, 9 * one, 10)

  def test_refuses_what_does_not_fit(self, federation):
    with pytest.raises(ValueError, match=r'takes sums below 2\^32, and with up to 10 clients.*smaller cohorts'):
      federation.obtained(bundle=parties.Bundle(modulus=2**32 + 1))
    with pytest.raises(ValueError, match=r'takes sums below 2\^32'):
      federation.obtained(bundle=_OneNumber(modulus=2**40 + 1))
    with pytest.raises(ValueError, match='at least two nodes'):
      federation.obtained(nodes={1: np.arange(10)})
    assert not federation.log


class _OneNumber(parties.Bundle):
  """A model of one number beside the count of clients: what it is decides how it is sent, and not its size."""

  sums_types = player.Sums({}, {'fields': [[None, {'dtype': 'int64', 'shape': []}]] * 2})


class TestTerms:
  @pytest.mark.parametrize('threshold', [0.3, 0.5, 2 / 3, 0.9, None])
  @pytest.mark.parametrize('count', [2, 3, 4, 7, 10, 40])
  def test_no_lists_open_for_fewer_than_the_plan_says(self, threshold, count):
    nodes = {one: np.array([one]) for one in range(count)}
    agreed = terms.Terms.of(parties.Bundle(num_clients=count, threshold=threshold), nodes)
    least, t = threshold or 1.0, agreed.threshold
    assert 2 * t > count and t >= 2
    # Of n nodes, each may be told that `absent` are not in the sum: those who can be left out.
    accepted = [k for k in range(count + 1) if not agreed.shortfall(list(nodes)[:k])]
    absent = count - min(accepted)
    left_out = absent + count * absent // t
    assert (count - left_out) / count >= least - 1e-9
