"""experiments/distributed/start_workers.sh, with a stand-in for ssh."""

import os
import signal
import subprocess
import time

import psutil
import pytest

from tests.experiments import harness

_SCRIPT = harness.REPOSITORY / 'experiments' / 'distributed' / 'start_workers.sh'
_SSH = """#!/bin/sh
echo "$@" > "$CALLS/$$"
exec sleep 60
"""


@pytest.fixture(name='calls')
def _calls(tmp_path):
  """The folder where the stand-in for ssh leaves a file for each call: its process id, and its arguments."""
  (tmp_path / 'bin').mkdir()
  (tmp_path / 'calls').mkdir()
  (tmp_path / 'bin' / 'ssh').write_text(_SSH)
  (tmp_path / 'bin' / 'ssh').chmod(0o755)
  return tmp_path / 'calls'


def _start(calls, *arguments):
  path = os.pathsep.join([str(calls.parent / 'bin'), os.environ['PATH']])
  return subprocess.Popen(
    ['sh', str(_SCRIPT), *arguments],
    env={**os.environ, 'PATH': path, 'CALLS': str(calls)},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


@pytest.mark.slow
@pytest.mark.parametrize('signum', [signal.SIGINT, signal.SIGTERM])
def test_the_workers_end_with_it(calls, signum):
  process = _start(calls, '/opt/quap', '8000', 'one', 'two')
  assert process.stdout.readline() == (
    '--runtime=workers --worker_addresses=one:8000,two:8000 --worker_credentials=DIR/program\n'
  )
  harness.wait_for(lambda: sum(path.stat().st_size > 0 for path in calls.iterdir()) == 2, process)
  assert sorted(path.read_text().split()[1] for path in calls.iterdir()) == ['one', 'two']
  process.send_signal(signum)
  process.communicate(timeout=30)
  assert process.returncode == 130
  deadline = time.monotonic() + 30
  while any(psutil.pid_exists(int(path.name)) for path in calls.iterdir()):
    assert time.monotonic() < deadline, 'The connections outlive the script.'


def test_without_machines_it_says_how_to_use_it(calls):
  process = _start(calls, '/opt/quap', '8000')
  _, err = process.communicate(timeout=30)
  assert process.returncode == 2 and 'FOLDER PORT HOST' in err
