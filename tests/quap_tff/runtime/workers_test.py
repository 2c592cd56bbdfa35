"""Tests of the runtimes that have worker processes: `native` and `workers`."""

import contextlib
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff import runtime
from quap_tff.runtime import worker_processes
from quap_tff.runtime import workers
from tests import processes
from tests.quap_tff.runtime import cases
from tests.quap_tff.runtime import comparison

pytestmark = pytest.mark.slow

_FLOATS_AT_CLIENTS = tff.FederatedType(np.float32, tff.CLIENTS)


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
  [
    ('native', 1, None),
    pytest.param('native', 1, ValueError, marks=pytest.mark.thorough),
    pytest.param('workers', 2, None, marks=pytest.mark.thorough),
    ('workers', 2, KeyboardInterrupt),
  ],
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
  [
    pytest.param(_ACTIVATES, 'error', 1, marks=pytest.mark.thorough),
    (_STARTS_WORKERS, 'exit', 0),
    (_STARTS_WORKERS, 'kill', -signal.SIGKILL),
  ],
)
def test_workers_and_pipelines_end_with_the_program(begin, how, status):
  # Nobody leaves the block in these programs: the interpreter ends, by itself, by an error, or by a kill. The two that
  # start workers alone do not load TFF: the kernel ends their workers, and the interpreter must not wait for them.
  program = subprocess.Popen(
    [sys.executable, '-c', begin + _ENDS, how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
  )
  # Returns when nothing holds the pipe any more.
  output, errors = processes.finish(program)
  pids = [int(pid) for pid in output.split()]
  assert len(pids) == 2, errors[-2000:]
  assert program.returncode == status, errors[-2000:]
  processes.until(lambda: not any(_alive(pid) for pid in pids))


@pytest.fixture(name='two_workers', scope='module')
def _two_workers():
  config = runtime.RuntimeConfig('workers', num_workers=2)
  with runtime.activate(config) as context:
    yield context


@pytest.mark.parametrize(
  'name', [pytest.param('fed_avg_functional', marks=pytest.mark.thorough), 'clipping_factory', 'local_computations']
)
def test_two_workers_give_the_single_contexts_result(two_workers, name):
  with tff.framework.get_context_stack().install(two_workers):
    found = cases.CASES[name]()
  with runtime.activate(runtime.RuntimeConfig(device='cpu', num_threads=2)):
    expected = cases.CASES[name]()
  comparison.assert_same(found, expected, tolerance=1e-4)


def test_cohort_smaller_than_the_number_of_workers(two_workers):
  with tff.framework.get_context_stack().install(two_workers):
    assert _add_up([3.0]) == 3.0
    assert _add_up([]) == 0.0


def test_dependent_aggregations_are_refused_with_the_way_out(two_workers):
  with tff.framework.get_context_stack().install(two_workers):
    with pytest.raises(runtime.NotMergeableError, match='timing=previous'):
      cases.CASES['dependent_levels']()


@pytest.mark.parametrize('kind', [pytest.param('native', marks=pytest.mark.thorough), 'workers'])
def test_a_worker_that_died_is_named_with_how_it_ended(kind):
  before = _children()
  with runtime.activate(runtime.RuntimeConfig(kind, num_workers=2)):
    assert _add_up([1.0, 2.0]) == 3.0
    victim = max(set(_children()) - set(before))
    os.kill(victim, signal.SIGKILL)
    for _ in range(2):  # As it is noticed, and later.
      with pytest.raises(
        runtime.WorkerError, match=f'worker .process {victim}. broke its .* signal 9.* fewer'
      ) as caught:
        _add_up([1.0, 2.0])
      assert caught.value.pid == victim
  assert _children() == before


def test_a_worker_that_does_not_start_is_named_with_what_it_said(monkeypatch):
  before = _children()
  monkeypatch.setattr(worker_processes, '_worker_binary', lambda: sys.executable)  # It knows no --port.
  with pytest.raises(runtime.WorkerError, match=r'(?s)did not start.* status 2\. .*unknown option --port='):
    with runtime.activate('native'):
      pass
  assert _children() == before


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
  invoke = workers.Worker.invoke

  def in_turn(own, comp, arg):
    if own is two_workers.workers[0]:
      assert second_is_done.wait(processes.DEADLINE_SECONDS)
    result = invoke(own, comp, arg)
    if own is two_workers.workers[1]:
      second_is_done.set()
    return result

  monkeypatch.setattr(workers.Worker, 'invoke', in_turn)
  with tff.framework.get_context_stack().install(two_workers):
    assert joined(list('abcde')) == b'abcde'


def test_workers_compute_at_the_same_time(two_workers, monkeypatch):
  """Each result is asked for only when the other one is asked for, too."""
  compute, both = workers._Stub.compute, threading.Barrier(2, timeout=processes.DEADLINE_SECONDS)

  def together(stub, request):
    both.wait()
    return compute(stub, request)

  monkeypatch.setattr(workers._Stub, 'compute', together)
  with tff.framework.get_context_stack().install(two_workers):
    assert _add_up([1.0, 2.0]) == 3.0
