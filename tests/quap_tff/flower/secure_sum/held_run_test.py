"""Tests of held runs over the secure sum in one process: accounts, certificates, and a server that is lost."""

import pathlib

import numpy as np
import pytest

pytest.importorskip('flwr', reason='make test-deploy sets up the newest Python that Flower runs on, and Flower.')

import quap_tff
from quap_tff import certificates
from quap_tff.bundle import bundle_engine
from quap_tff.flower import enrolment
from quap_tff.flower import node as nodes
from quap_tff.flower import server_app
from quap_tff.flower import server_run
from quap_tff.flower.secure_sum import records
from quap_tff.flower.secure_sum import server
from quap_tff.mechanisms.held import guard
from tests.quap_tff.flower import exports
from tests.quap_tff.flower.secure_sum import parties

pytestmark = pytest.mark.slow

NODES = [range(first, first + 5) for first in range(0, 20, 5)]
ROUNDS = 4
PLAN = 'certified:trust=secure_sum,clip=0.5,noise=independent'
KINDS = {
  'planned': f'{PLAN},threshold=0.4',
  'as they came': f'{PLAN},threshold=0.4,expected=1',
  'for all or nobody': f'{PLAN}',
}


@pytest.fixture(scope='module', name='bundles')
def _bundles(tmp_path_factory):
  """A bundle of each kind."""
  flags = '--dataset=digits --num_clients=20 --cohort_size=20 --model=logistic_regression --epsilon=3 --delta=1e-5'
  flags = [*flags.split(), f'--rounds={ROUNDS}']
  of_kinds = {kind: [*flags, f'--algorithm={algorithm}'] for kind, algorithm in KINDS.items()}
  of_kinds['as they came'].append('--dropout=bernoulli:rate=0.3')  # Room for rounds with fewer clients.
  folder = exports.made(tmp_path_factory, 'held', of_kinds)
  return {kind: quap_tff.Bundle(folder / kind) for kind in KINDS}


@pytest.fixture(name='started')
def _started(bundles, tmp_path):
  """From a kind to its nodes and its run."""

  def start(kind):
    bundle, rng = bundles[kind], np.random.default_rng(0)
    examples = {
      client: {'x': rng.random((5, 8, 8, 1), np.float32), 'y': rng.integers(0, 10, 5, np.int64)} for client in range(20)
    }
    (tmp_path / 'nodes').mkdir()
    federation = parties.Parties(
      tmp_path / 'nodes', NODES, bundle, {c: _typed(bundle, one) for c, one in examples.items()}
    )
    config = {'enrolment': str(tmp_path / 'nodes' / 'enrolled'), 'seconds': 1e-9, 'quorum': 0.5}
    return federation, config, str(tmp_path / 'out')

  return start


def _typed(bundle, examples):
  """Examples of the types that the bundle takes."""
  kinds = dict(dict(bundle.data_type['fields'])['examples']['sequence']['fields'])
  return {
    name: np.reshape(array, (len(array), *kinds[name]['shape'][1:])).astype(kinds[name]['dtype'])
    for name, array in examples.items()
  }


def _play(federation, config, folder):
  run = server_run.ServerRun(federation.bundle, folder)
  server_app.play(run, federation, config, server.SECURE)
  return run, run.write_run(None, secure_sum=server.SECURE.name)


def _lose(federation, losses):
  """Nodes are lost in a stage of a round, by the number of the round."""

  def forge(message, stage):
    if stage == records.SETUP:
      number = int(message.metadata.group_id)
      federation.lost = {(sorted(federation.nodes)[node], stage) for node, stage in losses.get(number, ())}

  federation.forge = forge


def _expected(run, federation):
  """The state of the same rounds, played by the bundle alone with those who came."""
  bundle = run.bundle
  found, plan, guards = (
    bundle_engine.new_server(bundle_engine.BundleEngine(bundle)),
    guard.PublicPlan.of(bundle.plan),
    {},
  )
  chain = guard.Chain(plan)
  for node, clients in federation.nodes.items():
    for client in clients.tolist():
      guards[client] = guard.ClientGuard(plan, client, enrolment.secret_of(federation.folder(node)))
  links = {link.round_num: link for link in run.links()}
  for number, (announced, came) in enumerate(run.rounds, 1):
    if number in links:
      chain = chain.then(*links[number])
    message, total = bundle.prepare(found.state), bundle.zero()
    for client in came.tolist():
      answers = {client: guards[client].answer_at(chain)}
      data = bundle_engine.client_data(bundle, client, federation.examples[client], answers=answers)
      total = bundle.add(total, bundle.work(data, message))
    found.release(found.computed(*bundle.update(found.state, total), came, announced))
  return found.state_dict()


def _check(run, summary, federation, folder, cohorts):
  assert 'no_certificate' not in summary, summary['no_certificate']
  verdict = certificates.verify(folder)
  assert not verdict.problems
  assert 'SecAgg+ over Flower' in verdict.statement and cohorts in verdict.statement
  expected = _expected(run, federation)
  for name, array in run.server.state_dict().items():
    if not name.startswith('notes/'):
      np.testing.assert_array_equal(array, expected[name], err_msg=name)


def _charged(run):
  """How many clients pay for each round."""
  return [int((one.weights > 0).sum()) for one in run.server.ledger.history]


class TestThreshold:
  @pytest.mark.parametrize('kind, cohorts', [('planned', 'public cohorts'), ('as they came', 'cohorts as they came')])
  def test_nodes_that_are_lost_take_no_guarantee_with_them(self, started, kind, cohorts):
    federation, config, folder = started(kind)
    _lose(federation, {1: [(3, records.SETUP)], 2: [(1, records.COLLECT)], 4: [(2, records.UNMASK)]})
    run, summary = _play(federation, config, folder)
    of = [federation.nodes[node].tolist() for node in sorted(federation.nodes)]
    everybody = set(range(20))
    expected = [everybody - set(of[3]), everybody - set(of[1]), everybody, everybody]
    assert [set(came.tolist()) for _, came in run.rounds] == expected
    _check(run, summary, federation, folder, cohorts)
    # All who were announced are charged, by the server as by each guard.
    np.testing.assert_array_equal(run.server.ledger.rounds, [ROUNDS] * 20)

  def test_a_server_that_is_lost_in_a_round(self, started):
    federation, config, folder = started('planned')
    run = server_run.ServerRun(federation.bundle, folder)
    announced = run.announce(np.arange(20), 1, 1.0)
    # And it never releases it.
    assert len(server.obtained(federation, federation.nodes, announced, run.open).came) == 20
    del run
    run, summary = _play(federation, config, folder)
    assert [len(came) for _, came in run.rounds] == [20, 20, 20, 20]
    assert certificates.verify(folder).problems == []
    # The sum that was opened is counted.
    np.testing.assert_array_equal(run.server.ledger.rounds, [ROUNDS] * 20)

  def test_one_clients_bad_label_moves_the_sum_by_that_client_alone(self, started):
    federation, config, folder = started('planned')
    node, examples = sorted(federation.nodes)[2], federation.examples
    bad = federation.nodes[node][1]
    examples[bad] = {**examples[bad], 'y': np.full_like(examples[bad]['y'], 12)}
    federation.start(node)
    federation.served[node].check_clients()
    run, summary = _play(federation, config, folder)
    assert [len(came) for _, came in run.rounds] == [20] * ROUNDS and not federation.refusals()
    examples[bad] = []
    _check(run, summary, federation, folder, 'public cohorts')
    lines = (pathlib.Path(federation.folder(node)) / nodes.PRIVATE_LOG).read_text().splitlines()
    whens = ['At the start', *(f'Round {number}' for number in range(1, ROUNDS + 1))]
    problem = f': client {bad} adds zero. InvalidArgumentError: '
    assert [line.partition(' ')[2].partition(problem)[0] for line in lines] == whens


class TestForAllOrNobody:
  def test_a_node_that_is_lost_makes_a_round_of_nobody(self, started):
    federation, config, folder = started('for all or nobody')
    _lose(federation, {2: [(1, records.SHARE)]})
    run, summary = _play(federation, config, folder)
    assert [len(came) for _, came in run.rounds] == [20, 0, 20, 20]
    _check(run, summary, federation, folder, 'public cohorts')

  def test_a_server_that_is_lost_before_a_sum_could_open(self, started):
    federation, config, folder = started('for all or nobody')
    server_run.ServerRun(federation.bundle, folder).announce(np.arange(20), 1, 1.0)
    run, summary = _play(federation, config, folder)
    assert [len(came) for _, came in run.rounds] == [0, 20, 20, 20]
    _check(run, summary, federation, folder, 'public cohorts')
    assert _charged(run) == [0, 20, 20, 20]

  def test_a_share_that_comes_late_is_counted(self, started):
    federation, config, folder = started('for all or nobody')
    _lose(federation, {2: [(1, records.UNMASK)]})
    run, summary = _play(federation, config, folder)
    assert 'no_certificate' not in summary and certificates.verify(folder).problems == []
    # The server never had the sum of round 2. Whoever is given the last share has it.
    assert [len(came) for _, came in run.rounds] == [20] * ROUNDS
    assert _charged(run) == [20] * ROUNDS
    assert all(np.isfinite(tensor).all() for tensor in run.server.weights.trainable)


def test_one_node_is_too_few_before_anything_is_announced(started):
  federation, config, folder = started('as they came')
  federation.nodes = dict(list(federation.nodes.items())[:1])
  run = server_run.ServerRun(federation.bundle, folder)
  with pytest.raises(ValueError, match='at least two nodes'):
    server_app.play(run, federation, {**config, 'quorum': 0.1}, server.SECURE)
  assert not run.rounds and not federation.log
