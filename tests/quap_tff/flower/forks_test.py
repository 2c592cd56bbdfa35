"""Tests of forks that do Flower's tasks: none outlives the process that made it."""

import os
import signal
import subprocess
import sys

import pytest

pytest.importorskip('flwr', reason='make test-deploy sets up the newest Python that Flower runs on, and Flower.')

from tests import processes
from tests.quap_tff.flower import federation

pytestmark = pytest.mark.slow

# A program with a fork that hangs, as one does that receives a message of a SuperNode which has gone.
_PROGRAM = r"""
import logging, os, signal, time
from flwr.supercore.constant import TaskType
from flwr.supercore.exit import add_exit_handler, register_signal_handlers
from flwr.supercore.superexec.executor import ExecutionSpec
from quap_tff.flower import forks

def hang(spec):
  for one in (signal.SIGTERM, signal.SIGINT):
    signal.signal(one, signal.SIG_IGN)
  os.write(1, b'hangs %d\n' % os.getpid())  # One write: two processes share the pipe.
  while True:
    time.sleep(1000)

forks._GRACE_SECONDS = 0.1
add_exit_handler(lambda: print('the last line', flush=True), run_before_force_exit=True)
own = forks.Forks(TaskType.CLIENT_APP, hang)
register_signal_handlers(None)
spec = ExecutionSpec(TaskType.CLIENT_APP, 'address', 'token', True, None, False, None, False, 1)
os.write(1, f'{own.launch(spec).status}\n'.encode())
while True:
  time.sleep(1000)
"""


@pytest.mark.parametrize('how', [signal.SIGTERM, signal.SIGKILL])
def test_a_fork_that_hangs_ends_with_the_program(how, tmp_path):
  process = subprocess.Popen(
    [sys.executable, '-c', _PROGRAM],
    cwd=federation.ROOT,
    env=federation.environment(tmp_path),
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )
  try:
    said = [process.stdout.readline(), process.stdout.readline()]
    [fork] = [int(line.split()[1]) for line in said if line.startswith('hangs')]
    assert federation.is_alive(fork), said
    os.kill(process.pid, how)
    rest, _ = processes.finish(process)
    processes.until(lambda: not federation.is_alive(fork))
  finally:
    process.kill()  # A test that fails leaves no program behind.
  # The fork does nothing of this at its end.
  assert rest.count('the last line') == (how == signal.SIGTERM), rest
