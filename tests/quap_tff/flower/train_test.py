"""Tests of nodes whose clients train by a program of their owner, also in every way in which it fails."""

import pathlib
import re
import subprocess

import numpy as np
import pytest

pytest.importorskip('flwr', reason='make test-deploy sets up the newest Python that Flower runs on, and Flower.')

import quap_tff
from quap_tff.bundle import bundle_engine
from quap_tff.flower import __main__ as program
from quap_tff.flower import enrolment
from quap_tff.flower import messages
from quap_tff.flower import node as nodes
from quap_tff.flower import operators
from quap_tff.flower import own_program
from quap_tff.flower import server_app
from quap_tff.flower import server_run
from tests import processes
from tests.quap_tff.flower import own_functions

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).absolute().parents[3]
CLIENTS = 10
# By client: what is said of it, where `own_functions.of_client` fails.
SAID = {
  1: 'failed. LookupError: .*the record of Ms. Smith is damaged',
  2: 'failed. SystemExit: in the middle',
  3: r'failed. The new weights of a client must be float32\[3, 2\], float32\[2\], found float32\[1, 2\], float32\[1\]',
  4: r'failed. .* found float64\[3, 2\], float64\[2\]',
  5: 'The update has NaN or infinity',
  6: 'failed. ValueError: 0 must be an array of numbers or texts, found one of objects',
  7: 'failed. It took more than 5 seconds, and was ended',
}


@pytest.fixture(scope='module', name='exported')
def _exported(tmp_path_factory):
  """A folder with `updates`, a bundle that takes updates, made where TFF is; and `examples`, one that does not."""
  folder = tmp_path_factory.mktemp('exported')
  np.savez(folder / 'weights.npz', a=np.zeros([3, 2], np.float32), b=np.ones(2, np.float32))
  flags = ['--algorithm=certified:clip=0.5', f'--num_clients={CLIENTS}', '--participation=full', '--rounds=2']
  running = []
  for name, own in (('updates', f'--weights={folder}/weights.npz'), ('examples', '--model=logistic_regression')):
    command = [ROOT / '.venv/bin/python', '-m', 'experiments.export', *flags, own, f'--output={folder / name}']
    running.append(subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True))
  for process in running:
    _, said = processes.finish(process)
    assert not process.returncode, said
  return folder


@pytest.fixture(scope='module', name='bundle')
def _bundle(exported):
  return quap_tff.Bundle(exported / 'updates')


@pytest.fixture(name='node_of')
def _node_of(exported, tmp_path):
  """From a function's name to the node of all clients that trains by it."""
  enrolment.new_node(str(tmp_path / 'node'), f'0-{CLIENTS - 1}')
  operators.new_operator(str(tmp_path / 'operator'))
  operator = str(tmp_path / 'operator' / operators.PUBLIC_KEY)
  made = []

  def node_of(function, bundle='updates', **more):
    config = {'bundle': str(exported / bundle), 'clients': f'0-{CLIENTS - 1}', 'folder': str(tmp_path / 'node')}
    name = f'{own_functions.__name__}:{function}'
    made.append(nodes.Node.of({**config, 'operator': operator, 'train': name, **more}))
    return made[-1]

  yield node_of
  for node in made:
    node.close()


def _answer(node, bundle, clients=range(CLIENTS)):
  """A node's answer in round 1, and the message."""
  message = bundle.prepare(bundle.initialize())
  link = messages.Link(1, np.array(clients), np.zeros(0, np.int64))
  digest = messages.message_digest(bundle, message)
  announced = messages.Announced(bundle, 'ab' * 16, [digest], message, [link], 1, 1.0)
  return node.answer(messages.round_content(announced)), message


def _sum(bundle, message, updates):
  total = bundle.zero()
  for client, update in updates.items():
    data = bundle_engine.client_data(bundle, client, update)
    total = bundle.add(total, bundle.work(data, message))
  return total


def _check_same(one, other):
  for kind in ('plain', 'secure'):
    for a, b in zip(_leaves(getattr(one, kind)), _leaves(getattr(other, kind)), strict=True):
      np.testing.assert_array_equal(a, b)


def _leaves(value):
  if isinstance(value, dict):
    value = list(value.values())
  return [leaf for part in value for leaf in _leaves(part)] if isinstance(value, list) else [value]


class TestAnswer:
  def test_has_zero_for_each_client_whose_function_fails_and_the_others_count(self, node_of, bundle, tmp_path):
    answer, message = _answer(node_of('of_client', train_seconds=5.0), bundle)
    assert answer.came.tolist() == list(range(CLIENTS))
    steps = {
      client: [np.full_like(one, 2**-10 * client) for one in bundle.sent_weights(message)] for client in (0, 8, 9)
    }
    _check_same(answer.sums, _sum(bundle, message, {client: steps.get(client, []) for client in range(CLIENTS)}))
    lines = (tmp_path / 'node' / nodes.PRIVATE_LOG).read_text().splitlines()
    assert len(lines) == len(SAID)
    for client, said in SAID.items():
      (line,) = (one for one in lines if f'Round 1: client {client} adds zero.' in one)
      assert re.search(said, line), line

  def test_no_client_is_in_the_update_of_another(self, node_of, bundle):
    """The function remembers all clients before. In one process, the second one's update would tell the first's."""
    node = node_of('leaks')
    for clients in ([9, 2], [2]):
      answer, message = _answer(node, bundle, clients)
      own = {one: [np.full_like(weight, -one) for weight in bundle.sent_weights(message)] for one in clients}
      _check_same(answer.sums, _sum(bundle, message, own))

  def test_a_program_that_is_gone_is_said_by_the_node(self, node_of, bundle):
    """No client adds zero for it: then a run would go on with nobody's updates."""
    node = node_of('of_client')
    node.close()
    with pytest.raises(OSError):
      _answer(node, bundle, [8])

  def test_each_client_is_tried_at_the_start(self, node_of, tmp_path):
    node_of('fails').check_clients()
    lines = (tmp_path / 'node' / nodes.PRIVATE_LOG).read_text().splitlines()
    assert len(lines) == CLIENTS and all('At the start: client' in line and 'LookupError' in line for line in lines)


class TestNode:
  def test_does_not_begin_with_a_function_that_cannot_be_imported(self, node_of):
    with pytest.raises(ValueError, match="own_functions:nothing cannot be imported: AttributeError: .*'nothing'"):
      node_of('nothing')

  @pytest.mark.parametrize(
    'bundle, more, said',
    [('updates', {'data': 'x.npz'}, 'Leave --data out'), ('examples', {}, 'Clients train in this bundle, on --data')],
  )
  def test_refuses_what_does_not_fit_the_bundle(self, bundle, more, said, node_of):
    with pytest.raises(ValueError, match=said):
      node_of('of_client', bundle, **more)

  def test_needs_a_function_for_a_bundle_that_takes_updates(self, exported, tmp_path):
    config = {'bundle': str(exported / 'updates'), 'folder': str(tmp_path), 'operator': 'o', 'data': 'x.npz'}
    with pytest.raises(ValueError, match='no function that trains them. Start it with --train=module:function'):
      nodes.Node.of(config)

  def test_the_program_says_it_in_a_line(self, exported, tmp_path, capsys):
    enrolment.new_node(str(tmp_path / 'node'), '0-4')
    operators.new_operator(str(tmp_path / 'operator'))
    options = {'superlink': 'h:1', 'root-certificates': 'c', 'bundle': exported / 'updates', 'train': 'nowhere:train'}
    options['operator'] = tmp_path / 'operator' / operators.PUBLIC_KEY
    arguments = [f'--{name}={value}' for name, value in options.items()]
    assert program.main(['node', str(tmp_path / 'node'), *arguments]) == 2
    assert capsys.readouterr().err.startswith('Error: nowhere:train cannot be imported: ModuleNotFoundError')


class TestEvaluate:
  @pytest.fixture(name='evaluate_by')
  def _evaluate_by(self, monkeypatch):
    made = []

    def evaluate_by(name):
      made.append(own_program.OwnFunction(f'{own_functions.__name__}:{name}', processes.DEADLINE_SECONDS))
      monkeypatch.setattr(server_app, '_evaluate', made[-1])

    yield evaluate_by
    for function in made:
      function.close()

  def test_gives_the_accuracy_of_the_result(self, evaluate_by, bundle, tmp_path):
    evaluate_by('half')
    run = server_run.ServerRun(bundle, str(tmp_path / 'out'))
    evaluate = server_app.evaluation(bundle, '')
    for _ in range(2):
      run.give_up()
    assert run.write_run(evaluate)['test_accuracy'] == 0.5

  @pytest.mark.parametrize(
    'name, said',
    [
      ('two', 'two must give the accuracy of weights, a number in .0, 1., found 2.0'),
      ('leaves', 'missing 2 required positional arguments'),
      ('weights_again', 'must give the accuracy of weights'),
    ],
  )
  def test_refuses_what_is_no_accuracy(self, name, said, evaluate_by, bundle):
    evaluate_by(name)
    weights = bundle.weights(bundle.initialize())
    with pytest.raises(ValueError, match=said):
      server_app.evaluation(bundle, '')(weights)

  def test_is_not_given_twice(self, evaluate_by, bundle):
    evaluate_by('half')
    with pytest.raises(ValueError, match='Both the file test.npz and .*:half are to test the weights'):
      server_app.evaluation(bundle, 'test.npz')

  def test_a_file_cannot_test_weights_of_a_model_that_the_bundle_does_not_have(self, bundle, tmp_path):
    np.savez(
      tmp_path / 't.npz', x=np.zeros(1), y=np.zeros(1), client=np.zeros(1), x_test=np.zeros(1), y_test=np.zeros(1)
    )
    evaluate = server_app.evaluation(bundle, str(tmp_path / 't.npz'))
    with pytest.raises(ValueError, match='no evaluation'):
      evaluate(bundle.weights(bundle.initialize()))
