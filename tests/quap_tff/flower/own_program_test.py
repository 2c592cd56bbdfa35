"""Tests of functions of somebody's own program: each call has a fresh process, and every failure is said."""

import concurrent.futures
import os
import signal
import sys

import numpy as np
import pytest

pytest.importorskip('flwr', reason='make test-deploy sets up the newest Python that Flower runs on, and Flower.')

# ruff: noqa: E402
from quap_tff.flower import own_program
from tests import processes
from tests.quap_tff.flower import federation
from tests.quap_tff.flower import own_functions

pytestmark = pytest.mark.slow

_MODULE = own_functions.__name__
_WEIGHTS = [np.zeros([2, 3], np.float32), np.ones(3, np.float32)]


@pytest.fixture(name='opened')
def _opened():
  """From a function's name to the function, which is closed after the test."""
  made = []

  def opened(name, seconds=processes.DEADLINE_SECONDS):
    made.append(own_program.OwnFunction(f'{_MODULE}:{name}', seconds))
    return made[-1]

  yield opened
  for function in made:
    function.close()


class TestCall:
  def test_gives_the_arrays_and_numbers(self, opened):
    *weights, numbers = opened('arguments')(_WEIGHTS, 7, 3)
    assert numbers.tolist() == [7, 3]
    for given, found in zip(_WEIGHTS, weights, strict=True):
      np.testing.assert_array_equal(given, found)

  def test_may_change_what_it_is_given(self, opened):
    found = opened('in_place')(_WEIGHTS, 0, 1)
    np.testing.assert_array_equal(found[0], np.ones([2, 3], np.float32))
    assert not _WEIGHTS[0].any()

  def test_may_give_a_number(self, opened):
    (found,) = opened('alone')(_WEIGHTS[1:])
    assert float(found) == 3.0

  def test_leaves_nothing_to_the_next_one(self, opened):
    """A function that adds updates of earlier clients gives each client the update that it would have alone."""
    before = [own_functions.leaks(_WEIGHTS, client, 1)[0] for client in (5, 2)]
    assert before[1][0, 0] == 5002  # In one process, it leaks.
    function = opened('leaks')
    for client in (5, 2, 5, 2):
      found, _ = function(_WEIGHTS, client, 1)
      np.testing.assert_array_equal(found, np.full([2, 3], client, np.float32))

  def test_large_arrays_pass(self, opened):
    large = np.random.default_rng(0).random([1000, 1000]).astype(np.float32)
    found, _ = opened('arguments')([large], 0, 1)
    np.testing.assert_array_equal(found, large)

  def test_several_at_once(self, opened):
    function = opened('arguments')
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
      found = list(pool.map(lambda client: function([], client, 1)[0][0], range(8)))
    assert found == list(range(8))

  def test_what_it_has_started_ends_with_it(self, opened):
    (pid,) = opened('pid_of_a_child')(_WEIGHTS, 0, 1)
    processes.until(lambda: not federation.is_alive(int(pid)))


class TestFailure:
  @pytest.mark.parametrize(
    'name, said',
    [
      ('fails', 'LookupError: .*Ms. Smith is damaged'),
      ('leaves', 'SystemExit: in the middle'),
      ('is_killed', 'Its process ended with -9'),
      ('gives_objects', 'must be an array of numbers or texts, found one of objects'),
      ('gives_text', 'must be an array of numbers or texts, found one of objects'),
    ],
  )
  def test_is_said_and_the_next_call_is_answered(self, name, said, opened):
    function = opened(name)
    for _ in range(2):
      with pytest.raises(own_program.CallFailedError, match=said):
        function(_WEIGHTS, 0, 1)

  def test_a_call_that_hangs_ends_after_its_time(self, opened):
    with pytest.raises(own_program.CallFailedError, match='It took more than 0.3 seconds, and was ended'):
      opened('hangs', seconds=0.3)(_WEIGHTS, 0, 1)

  def test_a_call_that_hangs_does_not_keep_others_waiting(self, opened):
    function = opened('of_client', seconds=5.0)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
      late = pool.submit(function, _WEIGHTS, 7, 1)
      found = function(_WEIGHTS, 8, 1)
      assert found[0][0, 0] == -np.float32(2**-7)
      assert 'more than 5 seconds' in str(late.exception())

  def test_a_program_that_is_gone_is_no_clients_fault(self, opened):
    function = opened('arguments')
    os.kill(function._process.pid, signal.SIGKILL)
    function._process.wait()
    with pytest.raises(OSError):
      function(_WEIGHTS, 0, 1)

  def test_it_ends_when_it_is_closed_although_a_fork_could_still_call(self, opened):
    function = opened('arguments')
    pid = os.fork()
    if not pid:
      signal.pause()
    try:
      function.close()
      assert function._process.returncode == 0
    finally:
      os.kill(pid, signal.SIGKILL)
      os.waitpid(pid, 0)

  def test_it_ends_with_the_process_that_made_it(self):
    """A node that is killed leaves a fork behind, which holds the socket."""
    code = (
      'import os, signal\n'
      'from quap_tff.flower import own_program\n'
      f'function = own_program.OwnFunction("{_MODULE}:arguments", 60)\n'
      'pid = os.fork()\n'
      'if not pid:\n'
      '  os.close(1)\n'
      '  os.close(2)\n'
      '  signal.pause()\n'
      'print(function._process.pid, pid, flush=True)\n'
      'os.kill(os.getpid(), signal.SIGKILL)\n'
    )
    done = processes.run([sys.executable, '-c', code], env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)})
    program, fork = map(int, done.stdout.split())
    try:
      processes.until(lambda: not federation.is_alive(program))
      assert federation.is_alive(fork)
    finally:
      os.kill(fork, signal.SIGKILL)


class TestImport:
  @pytest.mark.parametrize(
    'name, said',
    [
      ('nowhere:train', "nowhere:train cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
      (f'{_MODULE}:nothing', f"AttributeError: module '{_MODULE}' has no attribute 'nothing'"),
      (f'{_MODULE}:not_a_function', 'is not module:function'),
      (_MODULE, 'is not module:function. Name a function of a Python file'),
    ],
  )
  def test_that_fails_is_said(self, name, said):
    with pytest.raises(ValueError, match=said):
      own_program.OwnFunction(name, 1.0)

  def test_of_a_module_that_ends_its_process(self, tmp_path, monkeypatch):
    (tmp_path / 'ending.py').write_text('import os\nos._exit(3)\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match='cannot be imported: its process ended'):
      own_program.OwnFunction('ending:train', 1.0)
