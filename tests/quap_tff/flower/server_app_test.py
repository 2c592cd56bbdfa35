"""Tests of the rounds of a ServerApp without processes: cohorts as they come, and who is waited for."""

import pathlib
import types

import numpy as np
import pytest

pytest.importorskip('flwr', reason='make test-deploy sets up the newest Python that Flower runs on, and Flower.')

import quap_tff
from quap_tff.bundle import simulation
from quap_tff.common import files
from quap_tff.flower import enrolment
from quap_tff.flower import server_app
from quap_tff.flower import server_run
from quap_tff.flower import sums
from tests import processes

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).absolute().parents[3]
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
  """A run whose cohorts nobody planned, exported where TFF is."""
  folder = tmp_path_factory.mktemp('exported') / 'bundle'
  flags = '--dataset=digits --num_clients=50 --cohort_size=10 --model=logistic_regression --epsilon=3 --delta=1e-5'
  flags = [*flags.split(), '--algorithm=certified:clip=0.5,expected=1', f'--rounds={ROUNDS}', f'--output={folder}']
  command = [ROOT / '.venv/bin/python', '-m', 'experiments.export', *flags]
  done = processes.run(command, cwd=ROOT)
  assert not done.returncode, done.stderr
  return quap_tff.Bundle(folder)


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

  def sum_of(grid, nodes, announced):
    announced_to.append(nodes)
    total, came = announced.bundle.zero(), announced.cohort[:-1]
    for client in came.tolist():
      data = simulation.no_data(announced.bundle, client)
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
  verdict = quap_tff.certificates.verify(str(tmp_path / 'out' / 'run'))
  assert not verdict.problems and 'cohorts as they came' in verdict.statement


def test_a_client_whose_budget_is_spent_is_not_announced(bundle, keys, tmp_path, monkeypatch):
  run, told = server_run.ServerRun(bundle, str(tmp_path / 'out')), []
  ask = bundle.plan.ask
  monkeypatch.setattr(type(bundle.plan), 'ask', lambda self, ledger, ids: ask(ledger, ids) * (ids != 3) * (ids < 40))
  server_app.play(run, Grid(keys, [[1, 2, 3]]), config_of(tmp_path), lone_sum(told))
  assert [sorted(nodes) for nodes in told] == [[1, 2]] * ROUNDS and 3 not in told[0][1]


def test_nobody_there_stops_the_run_in_words(bundle, keys, tmp_path):
  run = server_run.ServerRun(bundle, str(tmp_path / 'out'))
  with pytest.raises(ValueError, match='5 of 26 clients of round 1 are there, after 0 seconds'):
    server_app.play(run, Grid(keys, [[3]]), config_of(tmp_path, seconds=0.0), lone_sum([]))


def test_a_server_that_starts_goes_on_with_a_quorum_when_its_time_is_over(bundle, keys, tmp_path):
  run, told = server_run.ServerRun(bundle, str(tmp_path / 'out')), []
  server_app.play(run, Grid(keys, [[1]]), config_of(tmp_path, seconds=0.0), lone_sum(told))
  assert [sorted(nodes) for nodes in told] == [[1]] * ROUNDS
