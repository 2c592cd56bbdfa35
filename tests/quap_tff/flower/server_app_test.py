"""Tests of the rounds of a ServerApp without processes: cohorts as they come, and who is waited for."""

import logging
import shutil
import types

import numpy as np
import pytest

pytest.importorskip('flwr', reason='make test-deploy sets up the newest Python that Flower runs on, and Flower.')

from flwr.app import Error

import quap_tff
from quap_tff.bundle import bundle_engine
from quap_tff.common import files
from quap_tff.flower import enrolment
from quap_tff.flower import server_app
from quap_tff.flower import server_run
from quap_tff.flower import sums
from tests.quap_tff.flower import exports

pytestmark = pytest.mark.slow

CLIENTS = {1: '0-9', 2: '10-19,30', 3: '40-44'}
ROUNDS = 4


class Grid:
  """Nodes that are there at some of the looks, the last of which stands for all that follow."""

  def __init__(self, keys, looks):
    self._keys, self.looks = keys, list(looks)

  def get_nodes(self):
    there = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
    return [types.SimpleNamespace(node_id=node, public_key=self._keys[node]) for node in there]


@pytest.fixture(scope='module')
def bundle(tmp_path_factory):
  """A run whose cohorts nobody planned."""
  flags = '--dataset=digits --num_clients=50 --cohort_size=10 --model=logistic_regression --epsilon=3 --delta=1e-5'
  flags = [*flags.split(), '--algorithm=certified:clip=0.5,expected=1', f'--rounds={ROUNDS}']
  return quap_tff.Bundle(exports.made(tmp_path_factory, 'unplanned', {'bundle': flags}) / 'bundle')


@pytest.fixture
def keys(tmp_path):
  """The nodes' public keys (PEM); their cards are in `enrolled`."""
  (tmp_path / 'enrolled').mkdir()
  for node, clients in CLIENTS.items():
    enrolment.new_node(str(tmp_path / str(node)), clients)
    card = files.read_json(str(tmp_path / str(node) / enrolment.CARD))
    files.write_json(str(tmp_path / 'enrolled' / f'{node}.json'), card)
  found = enrolment.Enrolled(str(tmp_path / 'enrolled')).clients
  return {node: next(key for key, own in found.items() if own[0] == int(text.split('-')[0])) for node, text in
          CLIENTS.items()}  # fmt: skip


def config_of(folder, **changed):
  return {'enrolment': str(folder / 'enrolled'), 'seconds': 60.0, 'quorum': 0.3, **changed}


def lone_sum(announced_to):
  """A protocol for clients without data, of whom the largest does not answer."""

  def sum_of(grid, nodes, announced, opening):
    announced_to.append(nodes)
    total, came = announced.bundle.zero(), announced.cohort[:-1]
    for client in came.tolist():
      data = bundle_engine.no_data(announced.bundle, client)
      total = announced.bundle.add(total, announced.bundle.work(data, announced.message))
    return sums.Summed(total, came)

  return sums.Sum('', lambda bundle, nodes: None, sum_of)


def test_enrolled_clients_come_as_they_do_and_those_who_came_are_charged(bundle, keys, tmp_path):
  run, told = server_run.ServerRun(bundle, str(tmp_path / 'out')), []
  # The first round waits for all of them, and the others for a quorum.
  grid = Grid(keys, [[], [1], [1, 2], [1, 2, 3], [1], [2, 3], [1, 2]])
  server_app.play(run, grid, config_of(tmp_path), lone_sum(told))
  assert [sorted(nodes) for nodes in told] == [[1, 2, 3], [1], [2, 3], [1, 2]]
  assert told[2][2].tolist() == [*range(10, 20), 30]
  with_all = np.concatenate([enrolment.clients_of(text) for text in CLIENTS.values()])
  for (announced, came), one in zip(run.rounds, run.server.ledger.history):
    np.testing.assert_array_equal(came, announced[:-1])
    np.testing.assert_array_equal(one.cohort, came)
  np.testing.assert_array_equal(run.rounds[0][0], np.sort(with_all))
  summary = run.write_run(None)
  assert 'no_certificate' not in summary, summary
  verdict = quap_tff.certificates.verify(str(tmp_path / 'out'))
  assert not verdict.problems and 'cohorts as they came' in verdict.statement
  assert 'clients came whose nodes were connected' in verdict.statement and 'public seed' not in verdict.statement


def test_cards_are_read_before_each_round(bundle, keys, tmp_path):
  """After the first round, a node has another key, and one has left."""
  run, told = server_run.ServerRun(bundle, str(tmp_path / 'out')), []
  enrolled = tmp_path / 'enrolled'

  def obtain(grid, nodes, announced, opening):
    if len(told) == 0:
      enrolment.new_node(str(tmp_path / 'anew'), CLIENTS[1])
      shutil.copy(tmp_path / 'anew' / enrolment.CARD, enrolled / '1.json')
      (enrolled / '3.json').unlink()
      found = enrolment.Enrolled(str(enrolled)).clients
      keys[4] = next(key for key, own in found.items() if own[0] == 0)
    return lone_sum(told).obtain(grid, nodes, announced, opening)

  server_app.play(
    run, Grid(keys, [[1, 2, 3], [1, 2, 3, 4]]), config_of(tmp_path), sums.Sum('', lambda *_: None, obtain)
  )
  assert [sorted(nodes) for nodes in told] == [[1, 2, 3], [2, 4], [2, 4], [2, 4]]
  assert told[1][4].tolist() == list(range(10))


def test_a_client_whose_budget_is_spent_is_not_announced(bundle, keys, tmp_path, monkeypatch):
  run, told = server_run.ServerRun(bundle, str(tmp_path / 'out')), []
  ask = bundle.plan.ask
  monkeypatch.setattr(type(bundle.plan), 'ask', lambda self, ledger, ids: ask(ledger, ids) * (ids != 3) * (ids < 40))
  server_app.play(run, Grid(keys, [[1, 2, 3]]), config_of(tmp_path), lone_sum(told))
  assert [sorted(nodes) for nodes in told] == [[1, 2]] * ROUNDS and 3 not in told[0][1]


def test_nobody_there_stops_the_run_in_words(bundle, keys, tmp_path):
  run = server_run.ServerRun(bundle, str(tmp_path / 'out'))
  with pytest.raises(
    ValueError, match=r'5 of 26 clients of round 1 are there, after 0 seconds. Not connected: 1 \(10\), 2 \(11\)'
  ):
    server_app.play(run, Grid(keys, [[3]]), config_of(tmp_path, seconds=1e-9), lone_sum([]))


def test_a_server_that_starts_goes_on_with_a_quorum_when_its_time_is_over(bundle, keys, tmp_path):
  run, told = server_run.ServerRun(bundle, str(tmp_path / 'out')), []
  server_app.play(run, Grid(keys, [[1]]), config_of(tmp_path, seconds=1e-9), lone_sum(told))
  assert [sorted(nodes) for nodes in told] == [[1]] * ROUNDS


def answered_by(nodes_that_answer):
  """A protocol for clients without data, in which only these nodes answer."""

  def sum_of(grid, nodes, announced, opening):
    came = np.concatenate([np.zeros(0, np.int64), *(own for node, own in nodes.items() if node in nodes_that_answer)])
    total = announced.bundle.zero()
    for client in came.tolist():
      data = bundle_engine.no_data(announced.bundle, client)
      total = announced.bundle.add(total, announced.bundle.work(data, announced.message))
    return sums.Summed(total, np.sort(came))

  return sums.Sum('', lambda bundle, nodes: None, sum_of)


def test_a_run_ends_with_what_there_is_when_the_account_lets_nobody_come_any_more(
  bundle, keys, tmp_path, monkeypatch, caplog
):
  run = server_run.ServerRun(bundle, str(tmp_path / 'out'))
  ask = bundle.plan.ask
  monkeypatch.setattr(type(bundle.plan), 'ask', lambda self, ledger, ids: ask(ledger, ids) * (ledger.num_rounds < 2))
  is_possible = lambda bundle, nodes: pytest.fail('nobody can be asked') if not nodes else None
  protocol = answered_by({1, 2, 3})._replace(check=is_possible)
  server_app.play(run, Grid(keys, [[1, 2, 3]]), config_of(tmp_path), protocol)
  assert (
    len(run.rounds) == 2
    and 'lets nobody come any more: budgets are spent. The run ends after round 2 of 4' in caplog.text
  )
  summary = run.write_run(None)
  assert summary['rounds'] == 2 and 'no_certificate' not in summary
  assert not quap_tff.certificates.verify(str(tmp_path / 'out')).problems


def test_planned_rounds_for_which_nobody_is_paid_end_the_run(bundle, keys, tmp_path, monkeypatch, caplog):
  run = server_run.ServerRun(bundle, str(tmp_path / 'out'))
  monkeypatch.setattr(run, 'allowed', lambda enrolled: np.zeros(0, np.int64))
  protocol = answered_by(())._replace(check=lambda bundle, nodes: pytest.fail('nobody is asked'))
  server_app.play(run, Grid(keys, [[1, 2, 3]]), config_of(tmp_path), protocol)
  assert run.round_num == 4 and 'The run ends after round 3 of 4, with what there is' in caplog.text


def test_rounds_of_nobody_stop_the_run_in_words(bundle, keys, tmp_path):
  run = server_run.ServerRun(bundle, str(tmp_path / 'out'))
  with pytest.raises(ValueError, match='Nobody came in 3 rounds, the last of which is round 3: .*run this again'):
    server_app.play(run, Grid(keys, [[1, 2, 3]]), config_of(tmp_path, quorum=0.0), answered_by(()))
  assert run.round_num == 4


def test_the_log_says_who_is_waited_for_and_who_is_missing(bundle, keys, tmp_path, caplog):
  caplog.set_level(logging.INFO, logger='flwr')
  run = server_run.ServerRun(bundle, str(tmp_path / 'out'))
  grid = Grid(keys, [[1, 3], [1, 2, 3], [1, 2]])
  server_app.play(run, grid, config_of(tmp_path), answered_by({1, 3}))
  said = caplog.text
  assert '15 of 26 clients of round 1 are there. Not connected: 2 (11). It waits for them at most 60 seconds' in said
  assert 'Round 1 of 4: asks 26 clients at 1 (10), 2 (11), 3 (5), and waits at most 60 seconds' in said
  assert 'Round 1 of 4: 15 of 26 clients came' in said and 'Missing: 2 (11).' in said
  assert 'Round 2 of 4: 10 of 26 clients came' in said and 'Missing: 2 (11), 3 (5).' in said


def test_a_round_waits_for_what_a_round_takes():
  patience = server_app.Patience(0.0)
  found = [patience.seconds]
  for taken in (2.0, 30.0, 1.0, 500.0):
    patience.heed(taken)
    found.append(patience.seconds)
  assert found == [600.0, 60.0, 150.0, 150.0, 600.0]
  fixed = server_app.Patience(7.0)
  fixed.heed(100.0)
  assert fixed.seconds == 7.0


def test_a_second_run_with_one_output_stops_without_a_traceback(bundle, keys, tmp_path, monkeypatch, caplog):
  (tmp_path / 'out').mkdir()
  (tmp_path / 'out' / 'summary.json').write_text('{}')
  monkeypatch.setattr(server_app.player, 'Bundle', lambda path: bundle)
  config = config_of(tmp_path, bundle='bundle', output=str(tmp_path / 'out'), test='')
  with pytest.raises(server_app.StoppedError, match='this run has ended. Give another output') as stopped:
    server_app.main(Grid(keys, [[1]]), types.SimpleNamespace(run_config=config))
  logging.getLogger('flwr').error('ServerApp raised an exception', exc_info=stopped.value)
  assert 'this run has ended' in caplog.text and 'Traceback' not in caplog.text


def test_a_node_that_the_superlink_has_lost_is_named(bundle, caplog):
  def lost(sent, timeout):
    sent[0].metadata.__dict__['_message_id'] = 'asked'  # As Flower's grid does.
    reply = server_app.sums.Message(Error(3, 'Error: Node Unavailable'), reply_to=sent[0])
    reply.metadata.__dict__['_src_node_id'] = 1
    return [reply]

  link = server_app.sums.messages.Link(1, np.arange(3), np.zeros(0, np.int64))
  message = bundle.prepare(bundle.initialize())
  announced = server_app.sums.messages.Announced(bundle, 'ab', [], message, [link], 1, 600.0, {7: 'clinic'})
  grid = types.SimpleNamespace(send_and_receive=lost)
  sums.TRUSTED.obtain(grid, {7: np.arange(3)}, announced, lambda summed: None)
  assert 'node clinic failed: Error: Node Unavailable' in caplog.text


def test_an_answer_that_is_cut_off_is_said_to_be_measured(bundle, caplog):
  grid = types.SimpleNamespace(send_and_receive=lambda sent, timeout: [])
  link = server_app.sums.messages.Link(1, np.arange(3), np.zeros(0, np.int64))
  message = bundle.prepare(bundle.initialize())
  announced = server_app.sums.messages.Announced(bundle, 'ab', [], message, [link], 1, 600.0, {7: 'clinic'})
  summed = sums.TRUSTED.obtain(grid, {7: np.arange(3)}, announced, lambda summed: None)
  assert not len(summed.came) and 'node clinic sent no whole answer in 0.0 seconds' in caplog.text


@pytest.mark.parametrize('puts_back', [False, True])
def test_a_state_that_is_removed_or_put_back_is_refused(bundle, keys, tmp_path, puts_back):
  """It played round 1 again: the difference of two published models was the sum of one node."""
  out = tmp_path / 'out'
  run = server_run.ServerRun(bundle, str(out))
  with pytest.raises(ValueError, match='is in use'):
    server_run.ServerRun(bundle, str(out))
  shutil.copytree(out, tmp_path / 'older')
  server_app.play(run, Grid(keys, [[1, 2, 3]]), config_of(tmp_path), lone_sum([]))
  del run
  shutil.rmtree(out)
  if puts_back:
    shutil.move(tmp_path / 'older', out)
  with pytest.raises(ValueError, match='is not the latest copy' if puts_back else 'was there and is gone'):
    server_run.ServerRun(bundle, str(out))
