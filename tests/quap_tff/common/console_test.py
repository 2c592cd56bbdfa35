"""How commands end: Ctrl-C, a reader that goes, a full disk, closed or ASCII output. Each in a process of its own."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from quap_tff.common import console
from tests import processes

ROOT = pathlib.Path(__file__).absolute().parents[3]


def _run(body, **more):
  program = (
    f'import os, signal, sys\nfrom quap_tff.common import console\ndef main(argv):\n  {body}\nconsole.run(main)\n'
  )
  return processes.run([sys.executable, '-c', program], cwd=ROOT, stderr=subprocess.PIPE, **more)


def test_texts_command_nothing():
  assert console.shown('a\x1b[2J\u202e\n\u200bΩ é') == 'a\\x1b[2J\\u202e\\n\\u200bΩ é'


@pytest.mark.slow
class TestRun:
  @pytest.mark.parametrize('body, status', [('return 1', 1), ('return 0', 0), ('sys.exit(2)', 2), ('sys.exit(0)', 0)])
  def test_status(self, body, status):
    done = _run(body, stdout=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (status, '')

  def test_ctrl_c(self):
    restored = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)
    done = _run('os.kill(os.getpid(), signal.SIGINT)', stdout=subprocess.PIPE, preexec_fn=restored)
    assert (done.returncode, done.stderr.strip()) == (130, 'Interrupted.')

  @pytest.mark.parametrize('body', ["print('x')\n  return 0", "print('x' * 10**6)\n  return 0"])
  def test_nobody_reads(self, body):
    read, write = os.pipe()
    os.close(read)
    done = _run(body, stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, '')

  @pytest.mark.skipif(not os.path.exists('/dev/full'), reason='This system has no /dev/full.')
  def test_a_full_disk(self):
    with open('/dev/full', 'w') as full:
      done = _run("print('x')\n  return 0", stdout=full)
    assert done.returncode == 2
    assert done.stderr == 'Error: standard output cannot be written: No space left on device.\n'

  def test_closed_output(self):
    done = _run("print('δ', file=sys.stdout)\n  return 1 if sys.stdout.encoding else 0", preexec_fn=lambda: os.close(1))
    assert (done.returncode, done.stderr) == (1, '')

  def test_ascii(self):
    done = _run("print('δ')\n  return 0", stdout=subprocess.PIPE, env={**os.environ, 'PYTHONIOENCODING': 'ascii'})
    assert (done.returncode, done.stdout) == (0, '\\u03b4\n')


@pytest.mark.slow
@pytest.mark.parametrize('command', ['account', 'verify'])
def test_commands_end_in_this_way(command, tmp_path):
  arguments = ['solve', '--epsilon=1', '--delta=.1'] if command == 'account' else [str(tmp_path)]
  read, write = os.pipe()
  os.close(read)
  run = [sys.executable, '-m', f'quap_tff.{command}', *arguments]
  done = processes.run(run, cwd=ROOT, stdout=write, stderr=subprocess.PIPE)
  os.close(write)
  assert done.returncode == 141 and 'Traceback' not in done.stderr and 'rror' not in done.stderr
