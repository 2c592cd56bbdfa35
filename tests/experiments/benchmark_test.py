"""The benchmark leaves nothing behind, however it ends, and refuses wrong flags before it measures."""

import signal
import subprocess
import sys

import psutil
import pytest

from experiments import benchmark
from experiments import command_line
from tests.experiments import harness

# A measurement in a process of its own, as the benchmark starts it, with a program that never ends in place of Python.
# That the workers of a measurement end with it, tests/runtime/workers_test.py says.
_MEASURING = '''
import sys, types
from experiments import benchmark
benchmark.sys = types.SimpleNamespace(executable=sys.argv[1])
benchmark._measure('case', name='ceiling')
'''


@pytest.mark.parametrize('signum', [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_it(signum, tmp_path):
  endless = tmp_path / 'endless'
  endless.write_text('#!/bin/sh\nexec sleep 1000\n')
  endless.chmod(0o755)
  process = subprocess.Popen(
      [sys.executable, '-c', _MEASURING, str(endless)], cwd=harness.REPOSITORY, stdout=subprocess.PIPE,
      stderr=subprocess.PIPE, encoding='utf-8',
  )
  harness.wait_for(
      lambda: [child for child in psutil.Process(process.pid).children() if child.name() == 'sleep'], process
  )
  children = psutil.Process(process.pid).children(recursive=True)
  process.send_signal(signum)
  harness.finish(process)
  assert children and not psutil.wait_procs(children, timeout=30)[1]


@pytest.mark.parametrize('arguments, said', [
    (['--clients=0'], 'clients'), (['--sections=growht'], "Did you mean 'growth'"),
    (['--csv=no/such/folder/x.csv'], 'x.csv'), (['stray'], "'stray'"),
])
def test_wrong_flags_are_refused_before_anything_is_measured(arguments, said, capsys, monkeypatch):
  monkeypatch.setattr(benchmark, '_measure', None)
  assert command_line.status_of(benchmark.main, ['benchmark', *arguments]) == command_line.FAILED
  out, err = capsys.readouterr()
  assert not out and said in err and len(err.splitlines()) == 1
