"""Tests of runs between processes: SuperLink and SuperNodes on the loopback interface. `make test-deploy` runs them."""

import contextlib
import functools
import json
import re

import numpy as np
import pytest

pytest.importorskip('flwr', reason='make test-deploy sets up the newest Python that Flower runs on, and Flower.')

import quap_tff
from quap_tff.bundle import bundle_engine
from quap_tff.bundle import simulation
from quap_tff.bundle import structures
from quap_tff.common import durable
from quap_tff.flower import enrolment
from quap_tff.flower import notes
from quap_tff.flower import server_run
from quap_tff.mechanisms.held import guard
from quap_tff.serving import store as stores
from tests.quap_tff.flower import exports
from tests.quap_tff.flower import federation

pytestmark = pytest.mark.slow

# With cohorts that nobody planned, and room for rounds in which a node is away.
HELD = 'certified:trust=secure_sum,clip=0.5,noise=independent,threshold=0.4,expected=1'
# Of a node, by the names that `dishonest` gives to its lies.
LIES = {
  'the same round again': 'Round 1 was answered already',
  'a threshold of 2': 'sets threshold to 2, and by the plan it is',
  'masks of another kind': "The server makes masks by ''",
  'keys of its own': 'has not signed these keys',
  'another bundle': 'Give both the same one',
  'another version of Flower': 'Install one version of it on all machines',
  'two cohorts': 'the nodes of this round have compared',
  'overlapping lists': 'is in both lists',
  'an old state': 'was asked for after round',
  'a sum that the server sees': 'takes part only in secure sums',
}
KINDS = {
  'trusted': ['--algorithm=certified:clip=0.5'],
  'held': [f'--algorithm={HELD}', '--num_clients=20', '--cohort_size=20', '--dropout=bernoulli:rate=0.4'],
}


@pytest.fixture(scope='module')
def exported(tmp_path_factory):
  """A folder with a bundle of each kind, and its clients."""
  flags = [
    line
    for line in (exports.ROOT / 'experiments/presets/digits_secure_sum.flags').read_text().splitlines()
    if not line.startswith(('#', '--algorithm', '--rounds', '--averaging'))
  ]
  return exports.made(tmp_path_factory, 'deployed', {kind: [*flags, *own, '--rounds=5'] for kind, own in KINDS.items()})


def _nodes(kind, cohorts):
  """The clients of four nodes. Where clients hold the noise, as many at each, so that a sum opens without one of them.

  Otherwise many; some; many; and a few who come in round 2 alone.
  """
  if kind == 'held':
    return {name: np.arange(first, first + 5) for name, first in zip('abcd', range(0, 20, 5))}
  everybody = np.unique(np.concatenate(cohorts))
  others = np.unique(np.concatenate([*cohorts[:1], *cohorts[2:]]))
  never = np.setdiff1d(cohorts[1], others)[:3]
  rest = np.setdiff1d(everybody, never)
  return {'a': rest[20::2], 'b': rest[:20], 'c': rest[21::2], 'd': never}


@pytest.fixture(name='start')
def _start(exported, tmp_path):
  """From a kind of run to its federation, of which all nodes are connected, its bundle, and these nodes."""
  with contextlib.ExitStack() as stack:

    def start(kind, *options, names='abcd'):
      bundle = quap_tff.Bundle(exported / kind)
      started = stack.enter_context(federation.Federation(tmp_path / 'federation'))
      started.start_superlink(*options)
      everyone = _nodes(kind, bundle.rounds.cohorts)
      nodes = {name: everyone[name] for name in names}
      for name, clients in nodes.items():
        started.enrol(name, ','.join(map(str, clients.tolist())))
      for name in nodes:
        started.start_node(name, exported / kind)
      started.make_app(exported / kind)
      for name in nodes:
        started.wait_for(name, 'SuperNode ID')
      return started, bundle, nodes

    yield start


def test_a_run_with_a_trusted_server_outlives_its_nodes_and_its_server(start, exported):
  started, bundle, nodes = start('trusted', *federation.ISOLATED)
  file = started.folder / 'app' / 'pyproject.toml'
  file.write_text(file.read_text().replace('test = ""', f'test = "{exported / "trusted.npz"}"'))
  started.pause('d')  # It stays connected, and never answers.
  started.expect_silence({2: 'bd', 3: 'b'})
  # What is not of the one who starts a run is left out.
  play = functools.partial(started.start_run, 'app', quorum=0.6, output='elsewhere')
  started.start_server('app')
  play()
  started.wait_for('b', r'ROUND 1\]\s+.*Sending')
  started.pause('b')
  started.wait_for('b', r'ROUND 2\]\s+.*Receiving')
  started.kill('b')
  started.start_node('b', exported / 'trusted')
  started.wait_for('c', r'ROUND 3\]\s+.*Sending')
  started.pause('c')
  started.wait_for('a', r'ROUND 4\]\s+.*Receiving')
  started.kill('superlink')
  started.kill('app')
  started.kill('app_server')
  before = _kept_state(bundle, started.folder)
  started.resume('c')
  started.start_superlink(*federation.ISOLATED)
  started.start_server('app')
  started.wait_for('b', 'SuperNode ID')
  play()
  started.wait_for('app', r'Round 5 of 5: \d+ of')
  started.wait_for('app', 'The run is in')
  verdict = started.run('python', '-m', 'quap_tff.verify', 'out').stdout
  assert verdict.startswith('VALID'), verdict
  out = started.folder / 'out'
  run = server_run.ServerRun(bundle, str(out))
  _check_who_came(run, nodes, bundle.rounds.cohorts)
  certificate = json.loads((out / 'certificate' / 'certificate.json').read_text())
  assert (certificate['achieved']['rounds'], certificate['guarantee']['trust']) == (5, 'server')
  _compare(run, simulation.read_clients(str(exported / 'trusted.npz'))[0], started.folder, nodes, before)


def test_a_run_without_a_trusted_server_outlives_its_nodes_and_its_server(start, exported):
  started, bundle, nodes = start('held')
  _play_instead(started, 'waiting')
  started.pause('d')  # It stays connected, and never answers.
  started.expect_silence({1: 'd', 2: 'b', 3: 'b'})
  play = functools.partial(started.start_run, 'app', test=str(exported / 'held.npz'), quorum=0.6)
  play()
  started.wait_for('app', r'Round 1 of 5: \d+ of')
  started.wait_for('b', r'ROUND 2\]\s+.*Receiving')
  started.pause('b')
  started.kill('b')
  started.start_node('b', exported / 'held')
  started.resume('d')  # Without it, the round does not go on.
  started.wait_for('app', r'Round 3 of 5: \d+ of')
  started.wait_for('a', r'ROUND 4\]\s+.*Receiving')
  started.kill('superlink')
  started.kill('app')
  started.start_superlink()
  play()
  started.wait_for('app', r'Round 5 of 5: \d+ of')
  started.wait_for('app', 'The run is in')
  verdict = started.run('python', '-m', 'quap_tff.verify', 'out').stdout
  assert verdict.startswith('VALID') and 'The secure sum was SecAgg+ over Flower' in verdict, verdict
  run = server_run.ServerRun(bundle, str(started.folder / 'out'))
  came = [set(own.tolist()) for _, own in run.rounds]
  everybody = set(range(20))
  assert came[0] == everybody - set(nodes['d'].tolist()) and came[1] == everybody - set(nodes['b'].tolist())
  assert came[3] == set() and len(came[4]) >= 15
  _compare(run, simulation.read_clients(str(exported / 'held.npz'))[0], started.folder, nodes)


def test_real_nodes_refuse_a_server_that_lies(start):
  started, _, _ = start('held')
  _play_instead(started, 'dishonest')
  started.start_run('app')
  started.wait_for('app', 'LIES are over')
  said = started.text('app')
  assert 'HONEST: ANSWERED' in said
  for name, answer in LIES.items():
    (line,) = (line for line in said.splitlines() if f'LIE {name}: ' in line)
    assert answer in line, line


def test_a_stranger_with_tools_of_flower_gets_nothing(start):
  started, _, nodes = start('trusted', names='a')
  _play_instead(started, 'stranger')
  started.start_run('app')
  started.wait_for('app', 'AT ONCE: 0 answers')
  started.wait_for('app', 'STRANGER has asked')
  answers = re.findall('(UNSIGNED|SIGNED): (.*)', started.text('app'))
  assert len(answers) == 2 * len(nodes)
  for _, answer in answers:
    assert answer.startswith("['answered'], {'refused': 'The operator whose key this node has did not sign"), answer
  for name in nodes:
    assert not (started.folder / name / notes.NOTES).exists()


def _play_instead(started, module):
  """The app is one of these tests."""
  file = started.folder / 'app' / 'pyproject.toml'
  file.write_text(file.read_text().replace('quap_tff.flower.server_app', f'tests.quap_tff.flower.{module}'))


def _check_who_came(run, nodes, cohorts):
  came = [one for _, one in run.rounds]
  # Nobody is expected whose budget pays for no more.
  cohorts = [ids[one.weights > 0] for ids, one in zip(cohorts, run.bundle.plan.core.simulated(cohorts))]
  lost = np.concatenate([nodes['b'], nodes['d']])
  for number in (1, 5):
    np.testing.assert_array_equal(came[number - 1], np.sort(cohorts[number - 1]))
  np.testing.assert_array_equal(came[1], np.setdiff1d(cohorts[1], lost))
  for number in (2, 5):
    assert np.intersect1d(cohorts[number - 1], nodes['b']).size
  assert nodes['d'].size
  np.testing.assert_array_equal(came[3], np.sort(cohorts[3]))


def _kept_state(bundle, folder):
  """How many rounds the state on disk has, and the state."""
  arrays = _kept_arrays(folder)
  engine = bundle_engine.BundleEngine(bundle)
  first = engine.initialize()
  leaves = [arrays[f'state/{index}'] for index in range(len(engine.leaves(first)))]
  return int(arrays['done']), engine.state_of(first, leaves)


def _kept_arrays(folder):
  return stores.arrays_of(durable.content_of(folder / 'out' / 'state'))


def _compare(run, examples, folder, nodes, before=None):
  """Plays the same rounds in this process, by the bundle alone: state, weights and ledger have the same bits.

  A server that is started again draws a new key of its noise. `before` has the rounds until then, and the state.
  """
  bundle, server = run.bundle, bundle_engine.new_server(bundle_engine.BundleEngine(run.bundle))
  _, last = _kept_state(bundle, folder)
  played, keys = (0, last) if before is None else before
  server.state = _with_keys_of(server.state, keys)
  guards = {}
  if run.holds_noise:
    for name, clients in nodes.items():
      secret = enrolment.secret_of(str(folder / name))
      guards.update({one: guard.ClientGuard(bundle.plan, one, secret) for one in clients.tolist()})
  links = {link.round_num: link for link in run.links()} if run.holds_noise else {}
  chain = guard.Chain(guard.PublicPlan.of(bundle.plan)) if run.holds_noise else None
  for number, (announced, came) in enumerate(run.rounds, 1):
    if number == played + 1:
      server.state = _with_keys_of(server.state, last)
    message, total = bundle.prepare(server.state), bundle.zero()
    chain = chain.then(*links[number]) if run.holds_noise else None
    for client in came.tolist():
      answers = {client: guards[client].answer_at(chain)} if run.holds_noise else None
      data = bundle_engine.client_data(bundle, client, examples[client], answers=answers)
      total = bundle.add(total, bundle.work(data, message))
    cohort = came
    if not run.holds_noise:
      cohort = bundle.rounds.cohorts[number - 1]
      for client in np.setdiff1d(cohort, came).tolist():
        total = bundle.add(total, bundle.work(bundle_engine.no_data(bundle, client), message))
    computed = server.computed(*bundle.update(server.state, total), cohort, announced if run.holds_noise else None)
    server.release(computed)
  expected = server.state_dict()
  found = {name: array for name, array in _kept_arrays(folder).items() if not name.startswith('notes/')}
  assert expected.keys() == found.keys()
  for name, array in expected.items():
    assert array.dtype == found[name].dtype
    np.testing.assert_array_equal(found[name], array, err_msg=name)
  with np.load(folder / 'out' / 'certificate' / 'final_model.npz') as kept:
    for index, tensor in enumerate(server.weights.trainable):
      np.testing.assert_array_equal(kept[f'arr_{index}'], tensor)


def _with_keys_of(state, other):
  """A first state with the keys of another one."""
  aggregator = state['aggregator']
  if 'noise' in aggregator:
    noise = structures.Struct(aggregator['noise'], seed=other['aggregator']['noise']['seed'])
    aggregator = structures.Struct(aggregator, noise=noise)
  work = structures.Struct(state['client_work'], seed=other['client_work']['seed'])
  return structures.Struct(state, aggregator=aggregator, client_work=work)
