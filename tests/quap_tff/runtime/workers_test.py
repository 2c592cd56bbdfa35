"""Tests of the runtimes that have worker processes: `native` and `workers`."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff import runtime
from quap_tff.runtime import remote_workers
from tests.quap_tff.runtime import cases
from tests.quap_tff.runtime import comparison

pytestmark = pytest.mark.slow

_FLOATS_AT_CLIENTS = tff.FederatedType(np.float32, tff.CLIENTS)
_SECONDS = 60


def _alive(pid):
  try:
    return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
  except psutil.NoSuchProcess:
    return False


def _children():
  """Processes that this one started and that run."""
  return sorted(child.pid for child in psutil.Process().children() if _alive(child.pid))


def _listening(pids):
  """Ports on which `pids` listen."""
  connections = [connection for pid in pids for connection in psutil.Process(pid).connections()]
  return sorted(connection.laddr.port for connection in connections if connection.status == psutil.CONN_LISTEN)


def _wait_until_gone(pids):
  deadline = time.monotonic() + _SECONDS
  while any(_alive(pid) for pid in pids) and time.monotonic() < deadline:
    time.sleep(0.02)
  return not any(_alive(pid) for pid in pids)


def _add_up(numbers):
  return tff.federated_computation(tff.federated_sum, _FLOATS_AT_CLIENTS)(numbers)


def test_in_process_starts_no_process_and_listens_on_no_port():
  children, ports = _children(), _listening([os.getpid()])
  with runtime.activate(runtime.RuntimeConfig(device='cpu', num_threads=2)):
    cases.CASES['dependent_levels']()
    assert (_children(), _listening([os.getpid()])) == (children, ports)
  assert (_children(), _listening([os.getpid()])) == (children, ports)


@pytest.mark.parametrize(
  'kind, count, error',
  [('native', 1, None), ('native', 1, ValueError), ('workers', 2, None), ('workers', 2, KeyboardInterrupt)],
)
def test_workers_end_with_the_block(kind, count, error):
  before = _children()
  started = []
  with pytest.raises(error) if error else contextlib.nullcontext():
    with runtime.activate(runtime.RuntimeConfig(kind, num_workers=count)):
      if error is None:
        assert _add_up([1.0, 2.0, 4.0]) == 7.0
      started.extend(set(_children()) - set(before))
      assert len(started) == count and len(_listening(started)) >= count
      if error:
        raise error
  assert not any(_alive(pid) for pid in started)
  assert _children() == before


_ACTIVATES = """
from quap_tff import runtime
active = runtime.activate(runtime.RuntimeConfig('workers', num_workers=2))
workers = active.__enter__().workers
"""
_STARTS_WORKERS = """
from quap_tff.runtime import worker_processes
workers = [worker_processes.WorkerProcess() for _ in range(2)]
"""
_ENDS = """
import os, signal, sys
print(*(worker.pid for worker in workers), flush=True)
if sys.argv[1] == 'kill':
  os.kill(os.getpid(), signal.SIGKILL)
elif sys.argv[1] == 'error':
  raise ValueError('in the middle of a round')
"""


@pytest.mark.parametrize(
  'begin, how, status',
  [(_ACTIVATES, 'error', 1), (_STARTS_WORKERS, 'exit', 0), (_STARTS_WORKERS, 'kill', -signal.SIGKILL)],
)
def test_workers_and_pipelines_end_with_the_program(begin, how, status):
  # Nobody leaves the block in these programs: the interpreter ends, by itself, by an error, or by a kill. The two that
  # start workers alone do not load TFF: the kernel ends their workers, and the interpreter must not wait for them.
  program = subprocess.Popen(
    [sys.executable, '-c', begin + _ENDS, how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
  )
  # Returns when nothing holds the pipe any more.
  output, errors = program.communicate(timeout=2 * _SECONDS)
  pids = [int(pid) for pid in output.split()]
  assert len(pids) == 2, errors[-2000:]
  assert program.returncode == status, errors[-2000:]
  assert _wait_until_gone(pids)


@pytest.fixture(name='two_workers', scope='module')
def _two_workers():
  config = runtime.RuntimeConfig('workers', num_workers=2)
  with runtime.activate(config) as context:
    yield context


@pytest.mark.parametrize('name', ['fed_avg_functional', 'local_computations'])
def test_two_workers_give_the_single_contexts_result(two_workers, name):
  with tff.framework.get_context_stack().install(two_workers):
    found = cases.CASES[name]()
  with runtime.activate(runtime.RuntimeConfig(device='cpu', num_threads=2)):
    expected = cases.CASES[name]()
  comparison.assert_same(found, expected, tolerance=1e-4)


def test_workers_at_addresses_are_used_and_left_running(two_workers):
  addresses = tuple(worker.address for worker in two_workers.workers)
  with runtime.activate(runtime.RuntimeConfig('workers', worker_addresses=addresses)) as context:
    assert [worker.pid for worker in context.workers] == [None, None]
    assert _add_up([1.0, 2.0, 4.0]) == 7.0
  assert all(_alive(worker.pid) for worker in two_workers.workers)


def test_cohort_smaller_than_the_number_of_workers(two_workers):
  with tff.framework.get_context_stack().install(two_workers):
    assert _add_up([3.0]) == 3.0
    assert _add_up([]) == 0.0


def test_dependent_aggregations_are_refused_with_the_way_out(two_workers):
  with tff.framework.get_context_stack().install(two_workers):
    with pytest.raises(runtime.NotMergeableError, match='timing=previous'):
      cases.CASES['dependent_levels']()


@pytest.mark.parametrize('kind', ['native', 'workers'])
def test_without_any_worker_left_those_that_died_are_named(kind):
  before = _children()
  with runtime.activate(runtime.RuntimeConfig(kind, num_workers=2)):
    assert _add_up([1.0, 2.0]) == 3.0
    victims = set(_children()) - set(before)
    for victim in victims:
      os.kill(victim, signal.SIGKILL)
    with pytest.raises(runtime.WorkerError) as caught:
      _add_up([1.0, 2.0])
    assert caught.value.pid in victims
    for victim in victims:
      words = rf'worker at localhost:\d+ \(process {victim}\) broke its connection.*signal 9'
      assert re.search(words, str(caught.value))
  assert _children() == before


def test_other_workers_do_the_part_of_one_that_died(caplog):
  before = _children()
  with runtime.activate(runtime.RuntimeConfig('workers', num_workers=2)) as context:
    victim = context.workers[0]
    os.kill(victim.pid, signal.SIGKILL)
    for _ in range(2):  # The round in which that is noticed, and a later one.
      assert _add_up([1.0, 2.0, 4.0, 8.0]) == 15.0
    assert [worker.is_usable for worker in context.workers] == [False, True]
  assert f'{victim} broke its connection. It ended with signal 9.' in caplog.text
  assert _children() == before


def test_a_worker_that_hangs_is_given_up_in_time():
  before = _children()
  timeout = 2.0
  with runtime.activate(runtime.RuntimeConfig('native', worker_timeout=timeout)) as context:
    assert _add_up([1.0]) == 1.0
    os.kill(context.pid, signal.SIGSTOP)
    begin = time.monotonic()
    with pytest.raises(runtime.WorkerError, match='gave no sign of life for 2 s. It ended with signal 9'):
      _add_up([1.0])
    assert timeout / 2 < time.monotonic() - begin < timeout + 20
  assert _children() == before


def test_a_worker_that_computes_for_longer_than_the_timeout_is_not_given_up():
  @tff.tensorflow.computation(np.float32)
  def slow(x):
    begin = tf.timestamp()
    return tf.while_loop(lambda y: tf.timestamp() - begin < 2.5, lambda y: (y + 0.0,), (x,))[0]

  with runtime.activate(runtime.RuntimeConfig('native', worker_timeout=1.0)):
    assert slow(7.0) == 7.0


def test_parts_are_merged_in_the_cohorts_order_and_not_as_they_finish(two_workers, monkeypatch):
  """A sum of strings tells the order. The first part's result is held back until the second one's has come."""
  text = tff.TensorType(np.str_)
  join = tff.tensorflow.computation(lambda a, b: tf.strings.join([a, b]), [text, text])
  same = tff.tensorflow.computation(lambda a: a, text)
  empty = tff.tensorflow.computation(lambda: tf.constant(''))

  @tff.federated_computation(tff.FederatedType(text, tff.CLIENTS))
  def joined(values):
    return tff.federated_aggregate(values, empty(), join, join, same)

  second_is_done = threading.Event()
  invoke = remote_workers.Worker.invoke

  def in_turn(worker, comp, arg):
    if worker is two_workers.workers[0]:
      assert second_is_done.wait(_SECONDS)
    result = invoke(worker, comp, arg)
    if worker is two_workers.workers[1]:
      second_is_done.set()
    return result

  monkeypatch.setattr(remote_workers.Worker, 'invoke', in_turn)
  with tff.framework.get_context_stack().install(two_workers):
    assert joined(list('abcde')) == b'abcde'


def test_workers_compute_at_the_same_time(two_workers, monkeypatch):
  """Each result is asked for only when the other one is asked for, too."""
  compute, both = remote_workers._Stub.compute, threading.Barrier(2, timeout=_SECONDS)

  def together(stub, request):
    both.wait()
    return compute(stub, request)

  monkeypatch.setattr(remote_workers._Stub, 'compute', together)
  with tff.framework.get_context_stack().install(two_workers):
    assert _add_up([1.0, 2.0]) == 3.0


def test_traffic_counts_what_goes_to_a_worker_and_comes_back():
  numbers = np.zeros([1000], np.float32)
  add_up = tff.federated_computation(tff.federated_sum, tff.FederatedType((np.float32, [1000]), tff.CLIENTS))
  with runtime.activate(runtime.RuntimeConfig('workers', num_workers=1)) as context:
    add_up([numbers] * 2)
    sent, received = context.workers[0].traffic
    add_up([numbers] * 5)
    sent, received = context.workers[0].traffic[0] - sent, context.workers[0].traffic[1] - received
  assert 5 * numbers.nbytes < sent < 6 * numbers.nbytes + 10000
  assert numbers.nbytes < received < 2 * numbers.nbytes


@pytest.mark.parametrize('version', [-1, 1])
def test_a_worker_of_another_version_is_refused(two_workers, monkeypatch, version):
  address = two_workers.workers[0].address
  monkeypatch.setattr(tf.version, 'GRAPH_DEF_VERSION', tf.version.GRAPH_DEF_VERSION + version)
  with pytest.raises(runtime.WorkerError, match=f'worker at {address} .* another version .*Install the same version'):
    with runtime.activate(runtime.RuntimeConfig('workers', worker_addresses=(address,))):
      pass


def test_worker_that_cannot_be_reached_is_named(monkeypatch, caplog):
  for name, seconds in (('SECONDS_TO_START', 1), ('_SECONDS_UNTIL_FIRST_WORD', 0.2), ('_SECONDS_BETWEEN_WORDS', 0.3)):
    monkeypatch.setattr(f'quap_tff.runtime.remote_workers.{name}', seconds)
  with socket.socket() as s:  # Bound, and not listening: nobody else answers there.
    s.bind(('localhost', 0))
    address = f'localhost:{s.getsockname()[1]}'
    with pytest.raises(runtime.WorkerError, match=f'worker at {address} .* could not be reached') as caught:
      with runtime.activate(runtime.RuntimeConfig('workers', worker_addresses=(address,))):
        pass
  assert caught.value.address == address
  said = [record.getMessage() for record in caplog.records]
  assert len(said) >= 2
  for line in said:
    assert line.startswith(f'The worker at {address}') and 'does not answer yet: is it running' in line
