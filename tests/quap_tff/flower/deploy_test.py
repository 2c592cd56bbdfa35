"""Tests of runs between processes: SuperLink and SuperNodes on the loopback interface. `make test-deploy` runs them."""

import contextlib
import functools
import json
import pathlib
import shutil
import subprocess

import numpy as np
import pytest

pytest.importorskip('flwr', reason='make test-deploy sets up the newest Python that Flower runs on, and Flower.')

import quap_tff
from quap_tff.bundle import server as servers
from quap_tff.bundle import simulation
from quap_tff.bundle import values
from quap_tff.flower import enrolment
from quap_tff.flower import server_run
from quap_tff.mechanisms.held import guard
from tests.quap_tff.flower import federation

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).absolute().parents[3]
# How long the first server waits for a node that never answers; and the second one for nodes that connect again.
SECONDS, SECONDS_AGAIN = 25.0, 180.0
KINDS = {'trusted': 'certified:clip=0.5', 'held': 'certified:trust=secure_sum,clip=0.5,noise=independent,threshold=0.5'}


@pytest.fixture(scope='module')
def exported(tmp_path_factory):
  """A folder with a bundle of each kind and with clients.npz, made where TFF is."""
  folder = tmp_path_factory.mktemp('exported')
  flags = [
    line
    for line in (ROOT / 'experiments/presets/digits_secure_sum.flags').read_text().splitlines()
    if not line.startswith(('#', '--algorithm', '--rounds', '--averaging'))
  ]
  running = []
  for kind, algorithm in KINDS.items():
    output = [f'--output={folder / kind}', *([f'--clients={folder / "clients.npz"}'] if kind == 'trusted' else [])]
    command = [ROOT / '.venv/bin/python', '-m', 'experiments.export', *flags, f'--algorithm={algorithm}', '--rounds=5']
    running.append(subprocess.Popen([*command, *output], cwd=ROOT, stderr=subprocess.PIPE, text=True))
  for process in running:
    _, said = process.communicate(timeout=300)
    assert not process.returncode, said
  return folder


def _nodes(cohorts):
  """The clients of four nodes: many; some; many; and a few who come in round 2 alone."""
  everybody = np.unique(np.concatenate(cohorts))
  others = np.unique(np.concatenate([*cohorts[:1], *cohorts[2:]]))
  never = np.setdiff1d(cohorts[1], others)[:3]
  rest = np.setdiff1d(everybody, never)
  return {'a': rest[20::2], 'b': rest[:20], 'c': rest[21::2], 'd': never}


@pytest.fixture(name='start')
def _start(exported, tmp_path):
  """From a kind of run to its federation, of which all nodes are connected, and its bundle."""
  with contextlib.ExitStack() as stack:

    def start(kind):
      bundle = quap_tff.Bundle(exported / kind)
      started = stack.enter_context(federation.Federation(tmp_path / 'federation'))
      started.start_superlink()
      nodes = _nodes(bundle.rounds.cohorts)
      for name, clients in nodes.items():
        started.enrol(name, ','.join(map(str, clients.tolist())))
        started.start_node(name, exported / kind, exported / 'clients.npz')
      app = ('app', 'app', f'--bundle={exported / kind}', '--enrolment=nodes', '--output=out')
      started.run('python', '-m', 'quap_tff.flower', *app)
      for name in nodes:
        started.wait_for(name, 'SuperNode ID')
      return started, bundle, nodes

    yield start


def test_a_run_with_a_trusted_server_outlives_its_nodes_and_its_server(start, exported):
  started, bundle, nodes = start('trusted')
  started.pause('d')  # It stays connected, and never answers.
  play = functools.partial(started.start_run, 'app', test=str(exported / 'clients.npz'), quorum=0.6)
  play(seconds=SECONDS)
  started.wait_for('app', 'Round 1:')
  started.pause('b')
  started.wait_for('b', r'ROUND 2\]\s+.*Receiving')
  started.kill('b')
  started.start_node('b', exported / 'trusted', exported / 'clients.npz')
  started.wait_for('app', 'Round 3:')
  started.pause('c')
  started.wait_for('a', r'ROUND 4\]\s+.*Receiving')
  started.kill('superlink')
  started.kill('app')
  started.resume('c')
  started.start_superlink()
  started.wait_for('b', 'SuperNode ID')
  play(seconds=SECONDS_AGAIN)
  started.wait_for('app', 'Round 5:', 2 * SECONDS_AGAIN)
  started.wait_for('app', 'The run is in')
  verdict = started.run('python', '-m', 'quap_tff.verify', 'out/run').stdout
  assert verdict.startswith('VALID'), verdict
  out = started.folder / 'out'
  run = server_run.ServerRun(bundle, str(out))
  _check_who_came(run, nodes, bundle.rounds.cohorts)
  certificate = json.loads((out / 'run' / 'certificate.json').read_text())
  assert (certificate['achieved']['rounds'], certificate['guarantee']['trust']) == (5, 'server')
  _compare(run, simulation.read_clients(str(exported / 'clients.npz'))[0], started.folder, nodes)


def test_guards_of_real_nodes_refuse_a_server_that_lies(start, exported):
  """Without a secure sum, such a run gets no certificate."""
  started, bundle, nodes = start('held')
  started.start_run('app', test=str(exported / 'clients.npz'), quorum=1.0, seconds=SECONDS_AGAIN)
  started.wait_for('app', 'Round 5:', 2 * SECONDS_AGAIN)
  started.wait_for('app', 'It has no certificate. Its clients hold the noise .*no secure sum was run')
  run = server_run.ServerRun(bundle, str(started.folder / 'out'))
  for (_, came), cohort in zip(run.rounds, bundle.rounds.cohorts):
    np.testing.assert_array_equal(came, np.sort(cohort))
  _compare(run, simulation.read_clients(str(exported / 'clients.npz'))[0], started.folder, nodes)
  _check_lies(started)


def _check_who_came(run, nodes, cohorts):
  came = [one for _, one in run.rounds]
  # Nobody is expected whose budget pays for no more.
  cohorts = [ids[one.weights > 0] for ids, one in zip(cohorts, run.bundle.plan.config.simulated(cohorts))]
  lost = np.concatenate([nodes['b'], nodes['d']])
  for number in (1, 5):
    np.testing.assert_array_equal(came[number - 1], np.sort(cohorts[number - 1]))
  np.testing.assert_array_equal(came[1], np.setdiff1d(cohorts[1], lost))
  for number in (2, 5):
    assert np.intersect1d(cohorts[number - 1], nodes['b']).size
  assert nodes['d'].size
  np.testing.assert_array_equal(came[3], np.sort(cohorts[3]))


def _compare(run, examples, folder, nodes):
  """Plays the same rounds in this process, by the bundle alone: state, weights and ledger have the same bits."""
  bundle, server = run.bundle, servers.Server(run.bundle)
  server.state = _with_keys_of(server.state, run.server.state)
  guards = {}
  if run.holds_noise:
    for name, clients in nodes.items():
      secret = enrolment.secret_of(str(folder / name))
      guards.update({one: guard.ClientGuard(bundle.plan, one, secret) for one in clients.tolist()})
  links = {link.round_num: link for link in run.links()} if run.holds_noise else {}
  chain = guard.Chain(guard.PublicPlan.of(bundle.plan)) if run.holds_noise else None
  for number, (_, came) in enumerate(run.rounds, 1):
    message, total = bundle.prepare(server.state), bundle.zero()
    chain = chain.then(*links[number]) if run.holds_noise else None
    for client in came.tolist():
      answers = {client: guards[client].answer_at(chain)} if run.holds_noise else None
      data = simulation.client_data(bundle, client, examples[client], answers=answers)
      total = bundle.add(total, bundle.work(data, message))
    cohort = came
    if not run.holds_noise:
      cohort = bundle.rounds.cohorts[number - 1]
      for client in np.setdiff1d(cohort, came).tolist():
        total = bundle.add(total, bundle.work(simulation.no_data(bundle, client), message))
    server.release(total, cohort)
  expected, found = server.state_dict(), run.server.state_dict()
  assert expected.keys() == found.keys()
  for name, array in expected.items():
    assert array.dtype == found[name].dtype
    np.testing.assert_array_equal(found[name], array, err_msg=name)
  with np.load(folder / 'out' / 'run' / 'final_model.npz') as kept:
    for index, tensor in enumerate(server.published().trainable):
      np.testing.assert_array_equal(kept[f'arr_{index}'], tensor)


def _with_keys_of(state, other):
  """A first state with the keys of another one."""
  aggregator = state['aggregator']
  if 'noise' in aggregator:
    noise = values.Struct(aggregator['noise'], seed=other['aggregator']['noise']['seed'])
    aggregator = values.Struct(aggregator, noise=noise)
  work = values.Struct(state['client_work'], seed=other['client_work']['seed'])
  return values.Struct(state, aggregator=aggregator, client_work=work)


def _check_lies(started):
  """What a server that lies gets from a node."""
  app = started.folder / 'lies'
  shutil.copytree(started.folder / 'app', app)
  file = app / 'pyproject.toml'
  # The folder of the run is locked by this process.
  shutil.copytree(started.folder / 'out', started.folder / 'out_of_lies')
  text = file.read_text().replace('quap_tff.flower.server_app', 'tests.quap_tff.flower.dishonest')
  file.write_text(text.replace('/out"', '/out_of_lies"'))
  started.start_run('lies')
  started.wait_for('lies', 'LIES are over')
  said = started.text('lies')
  for name, answer in {
    'the same round again': 'Round 5 was answered already',
    'an old state': 'another history than before',
    'two cohorts': 'another history than before',
    'somebody else came': 'another history than before',
    'a weight of 10': 'message must have',
    'a round after the last': 'The plan has 5 rounds',
    'another bundle': 'Give both the same one',
    'another version of Flower': 'Install one version of it on all machines',
  }.items():
    (line,) = (line for line in said.splitlines() if f'LIE {name}: ' in line)
    assert 'refuses' in line and answer in line, line
