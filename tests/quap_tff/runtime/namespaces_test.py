"""Workers on other machines, which network namespaces stand for: their results, and what happens when one is lost."""

import collections
import contextlib
import pathlib
import shutil
import socket
import subprocess
import time

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import quap_tff
from quap_tff import runtime
from quap_tff.mechanisms.held import guarded_clients
from quap_tff.mechanisms.noise import correlation
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.runtime import remote_workers
from tests.quap_tff import examples
from tests.quap_tff import linear_model
from tests.quap_tff.runtime import comparison
from tests.quap_tff.runtime import namespaces

_WHY_NOT = namespaces.why_not()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(_WHY_NOT is not None, reason=str(_WHY_NOT))]

_TIMEOUT = 3.0
# For what is not the detection itself, on a machine that is busy with other things.
_MARGIN = 20.0
_FLOATS_AT_CLIENTS = tff.FederatedType(np.float32, tff.CLIENTS)
_COHORTS = ([0, 1, 2, 3, 4], [5, 1, 6, 7, 2])
_SCRIPT = pathlib.Path(__file__).absolute().parents[3] / 'experiments' / 'distributed' / 'make_credentials.sh'


def _wait_for(condition):
  deadline = time.monotonic() + 60
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.02)


@pytest.fixture(name='machines', scope='module')
def _machines():
  with contextlib.ExitStack() as stack:
    machines = [stack.enter_context(contextlib.closing(namespaces.Machine(i))) for i in range(2)]
    yield machines


@pytest.fixture(name='workers')
def _workers(machines):
  """The two machines with a worker each, whatever earlier tests did to them."""
  for machine in machines:
    machine.connect()
    machine.start()
    machine.go_on()
  return machines


def _activate(machines):
  return runtime.activate(
    runtime.RuntimeConfig(
      'workers', worker_addresses=tuple(machine.address for machine in machines), worker_timeout=_TIMEOUT
    )
  )


class _Method:
  """QuAP-FL with noise, aggregating once a round."""

  def __init__(self):
    self.plan = quap_tff.Plan(
      quap_tff.QuapConfig(
        num_clients=8,
        budget=quap_tff.BudgetConfig(epsilon_total=1.0, num_rounds=2),
        clip=clip_rules.QuantileEma(timing='previous', initial_clip=1.0),
        noise=quap_tff.NoiseConfig(seed=5),
      )
    )
    self.process = self.plan.build_process(linear_model.functional(4, 3), client_work=quap_tff.ClientWorkConfig(seed=1))


class _Certified:
  """A certified run, of which clients hold the noise if the server is not trusted."""

  def __init__(self, trust):
    held = dict(correlation=correlation.Held(0.5)) if trust == 'secure_sum' else {}
    config = examples.guarantee(num_clients=8, clip=clip_rules.Fixed(0.5), noise_seed=5, **held)
    self.plan = quap_tff.certified_plan(config, _COHORTS, certificate=False)
    self.process = self.plan.build_process(linear_model.functional(4, 3), client_work=quap_tff.ClientWorkConfig(seed=1))


def _client(client_id, answer=None):
  random = np.random.RandomState(client_id)
  examples = collections.OrderedDict(
    x=random.normal(size=(6, 4)).astype(np.float32), y=random.normal(size=(6, 3)).astype(np.float32)
  )
  parts = [] if answer is None else [('answer', answer)]
  parts = [('client_id', np.int64(client_id)), *parts, ('examples', examples)]
  return collections.OrderedDict((name, tf.data.Dataset.from_tensors(part)) for name, part in parts)


class _Run:
  """Two rounds, one at a time; a round counts when it has returned, as in `experiments.running.training`."""

  def __init__(self, method, in_order=list):
    self._method, self._in_order = method, in_order
    is_held = getattr(method.plan, 'holds_noise', False)
    self._guarded = guarded_clients.GuardedClients(method.plan, b'a secret') if is_held else None
    self.ledger = method.plan.new_ledger()
    self.state = method.process.initialize()
    self.outputs, self.records = [], []

  def round(self):
    cohort = _COHORTS[len(self.outputs)]
    answers = {} if self._guarded is None else self._guarded.answers(len(self.outputs) + 1, cohort)
    clients = [_client(client, answers.get(client)) for client in self._in_order(cohort)]
    output = self._method.process.next(self.state, clients)
    self.state = output.state
    self.records.append(self._method.plan.record(output, cohort))
    self.ledger.append(self.records[-1])
    self.outputs.append(output)


def _assert_same_ledger(found, expected):
  comparison.assert_same(dict(found.state_dict()), dict(expected.state_dict()), tolerance=0)


@pytest.fixture(name='method', scope='module')
def _method():
  return _Method()


@pytest.fixture(name='undisturbed', scope='module')
def _undisturbed(method):
  """Two rounds on two workers of this machine."""
  with runtime.activate(runtime.RuntimeConfig('workers', num_workers=2)):
    run = _Run(method)
    run.round()
    run.round()
  # What is compared below contains noise, so another draw of it would be seen.
  assert all(record.noise_multiplier > 0 for record in run.records)
  return run


def _at_the_next_request_for_a_result(monkeypatch, machine, happens):
  """Has something happen in the middle of a round: the worker has begun its part, and its result is asked for."""
  compute = remote_workers._Stub.compute
  begin = []

  def disturbed(stub, request):
    if stub.worker.address == machine.address and not begin:
      happens()
      begin.append(time.monotonic())
    return compute(stub, request)

  monkeypatch.setattr(remote_workers._Stub, 'compute', disturbed)
  return begin


def _when_given_up(monkeypatch):
  """The times at which a worker was given up."""
  give_up, times = remote_workers.Worker.give_up, []

  def timed(worker, why):
    times.append(time.monotonic())
    give_up(worker, why)

  monkeypatch.setattr(remote_workers.Worker, 'give_up', timed)
  return times


def test_other_machines_give_the_bits_of_this_one(workers, undisturbed, method):
  before = [worker.received_bytes() for worker in workers]
  with _activate(workers):
    run = _Run(method)
    run.round()
    run.round()
  comparison.assert_same(run.outputs, undisturbed.outputs, tolerance=0)
  _assert_same_ledger(run.ledger, undisturbed.ledger)
  # Both really were asked, through their links: each state has 24 bytes of weights and each client 168 of examples.
  assert all(worker.received_bytes() - b > 1000 for worker, b in zip(workers, before))


def test_one_context_gives_the_same_but_for_the_order_of_sums(undisturbed, method):
  with runtime.activate(runtime.RuntimeConfig(device='cpu', num_threads=2)):
    run = _Run(method)
    run.round()
    run.round()
  comparison.assert_same(run.outputs, undisturbed.outputs, tolerance=1e-5)


def test_sums_that_need_no_rounding_have_the_bits_of_one_context(workers):
  add_up = tff.federated_computation(tff.federated_sum, _FLOATS_AT_CLIENTS)
  numbers = [2.0**-i for i in range(20)]
  with _activate(workers):
    assert add_up(numbers) == np.float32(sum(numbers))


@pytest.mark.parametrize('what', ['killed', 'hangs', 'unreachable'])
def test_a_worker_lost_in_mid_round_changes_no_bit(workers, undisturbed, method, monkeypatch, caplog, what):
  lost = workers[1]
  happens = {'killed': lost.kill, 'hangs': lost.stop, 'unreachable': lost.disconnect}[what]
  with _activate(workers) as context:
    run = _Run(method)
    begin = _at_the_next_request_for_a_result(monkeypatch, lost, happens)
    noticed = _when_given_up(monkeypatch)
    run.round()
    run.round()  # The other worker computes two parts here: how the cohort is cut has not changed.
    assert [worker.is_usable for worker in context.workers] == [True, False]
  # A broken connection is seen at once, silence after the timeout.
  seconds = noticed[0] - begin[0]
  assert seconds < (0 if what == 'killed' else _TIMEOUT) + _MARGIN
  assert what == 'killed' or seconds > _TIMEOUT / 2
  comparison.assert_same(run.outputs, undisturbed.outputs, tolerance=0)
  _assert_same_ledger(run.ledger, undisturbed.ledger)
  why = 'broke its connection' if what == 'killed' else f'gave no sign of life for {_TIMEOUT:g} s'
  assert f'worker at {lost.address} (not started by this program) {why}' in caplog.text


@pytest.mark.parametrize('trust', ['server', 'secure_sum'])
def test_a_certified_run_of_a_linear_model_has_the_bits_of_one_process(workers, monkeypatch, trust):
  """On two machines, with clients in another order, and with one machine that is killed in mid-round."""
  method = _Certified(trust)
  with runtime.activate(runtime.RuntimeConfig(device='cpu', num_threads=2)):
    expected = _Run(method)
    expected.round()
    expected.round()
  with _activate(workers) as context:
    run = _Run(method, in_order=reversed)
    run.round()
    _at_the_next_request_for_a_result(monkeypatch, workers[1], workers[1].kill)
    run.round()
    assert [worker.is_usable for worker in context.workers] == [True, False]
  assert all(record.noise_multiplier > 0 for record in run.records)
  comparison.assert_same(run.outputs, expected.outputs, tolerance=0)
  _assert_same_ledger(run.ledger, expected.ledger)


@pytest.mark.parametrize('what', ['killed', 'hangs', 'unreachable'])
def test_a_worker_that_comes_back_is_used_again(workers, undisturbed, method, what):
  lost = workers[0]
  leave, come_back = {
    'killed': (lost.kill, lost.start),
    'hangs': (lost.stop, lost.go_on),
    'unreachable': (lost.disconnect, lost.connect),
  }[what]
  with _activate(workers) as context:
    run = _Run(method)
    run.round()
    begin = time.monotonic()
    leave()
    _wait_for(lambda: not context.workers[0].is_usable)  # Noticed between rounds, too.
    assert time.monotonic() - begin < _TIMEOUT + _MARGIN
    come_back()
    _wait_for(lambda: context.workers[0].is_usable)
    before = lost.received_bytes()
    run.round()
    assert lost.received_bytes() - before > 1000
  comparison.assert_same(run.outputs, undisturbed.outputs, tolerance=0)


def test_without_workers_a_round_fails_and_can_be_called_again(workers, undisturbed, method, monkeypatch):
  with _activate(workers) as context:
    run = _Run(method)
    run.round()
    state, ledger = run.state, dict(run.ledger.state_dict())
    begin = _at_the_next_request_for_a_result(monkeypatch, workers[0], lambda: [worker.kill() for worker in workers])
    with pytest.raises(runtime.WorkerError, match='No worker is left.') as caught:
      run.round()
    assert time.monotonic() - begin[0] < _TIMEOUT + _MARGIN
    assert all(worker.address in str(caught.value) for worker in workers)
    assert run.state is state
    comparison.assert_same(dict(run.ledger.state_dict()), ledger, tolerance=0)
    for worker in workers:
      worker.start()
    _wait_for(lambda: all(worker.is_usable for worker in context.workers))
    run.round()
  # The noise of the round that failed is the noise of the one that was called again.
  comparison.assert_same(run.outputs, undisturbed.outputs, tolerance=0)
  _assert_same_ledger(run.ledger, undisturbed.ledger)


@pytest.fixture(name='credentials', scope='module')
def _credentials(tmp_path_factory):
  if shutil.which('openssl') is None:
    pytest.skip('Making credentials needs openssl.')
  root = tmp_path_factory.mktemp('credentials')
  for name in ('ours', 'theirs'):
    subprocess.run([str(_SCRIPT), str(root / name)], check=True, timeout=60)
  return root


@pytest.fixture(name='tls_machine', scope='module')
def _tls_machine(credentials):
  arguments = [f'--credentials={credentials / "ours" / "worker"}']
  with contextlib.closing(namespaces.Machine(2, 8443, arguments)) as machine:
    machine.start()
    yield machine


def _with_credentials(machine, folder):
  return runtime.activate(
    runtime.RuntimeConfig(
      'workers', worker_addresses=(machine.address,), worker_credentials=folder and str(folder), worker_timeout=_TIMEOUT
    )
  )


def test_a_worker_behind_tls_serves_whom_its_authority_certified(tls_machine, credentials):
  with _with_credentials(tls_machine, credentials / 'ours' / 'program'):
    assert tff.federated_computation(tff.federated_sum, _FLOATS_AT_CLIENTS)([1.0, 2.0, 4.0]) == 7.0


# No certificate, one of another authority, and one of a worker, which may not give orders to others.
@pytest.mark.parametrize('folder', [None, 'theirs/program', 'ours/worker'])
def test_a_worker_behind_tls_refuses_others(tls_machine, credentials, monkeypatch, folder):
  with _with_credentials(tls_machine, credentials / 'ours' / 'program'):
    pass  # It runs.
  monkeypatch.setattr(remote_workers, 'SECONDS_TO_START', 2)
  with pytest.raises(runtime.WorkerError, match=f'worker at {tls_machine.address} .* could not be reached'):
    with _with_credentials(tls_machine, folder and credentials / folder):
      pass


def test_a_worker_behind_tls_has_no_other_door(tls_machine, credentials):
  with _with_credentials(tls_machine, credentials / 'ours' / 'program'):
    with pytest.raises(ConnectionRefusedError):
      socket.create_connection((tls_machine.host, 8000), timeout=5)


def test_a_worker_behind_tls_that_dies_is_seen_at_once(tls_machine, credentials, monkeypatch):
  with _with_credentials(tls_machine, credentials / 'ours' / 'program'):
    _at_the_next_request_for_a_result(monkeypatch, tls_machine, tls_machine.kill)
    with pytest.raises(runtime.WorkerError, match='broke its connection'):
      tff.federated_computation(tff.federated_sum, _FLOATS_AT_CLIENTS)([1.0, 2.0, 4.0])
  tls_machine.start()
