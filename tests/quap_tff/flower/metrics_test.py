"""Tests of the metrics: Prometheus gets the counts that forks have logged, and nothing else."""

import subprocess
import sys
import urllib.request

import pytest

pytest.importorskip('flwr', reason='make test-deploy sets up the newest Python that Flower runs on, and Flower.')

from tests import processes
from tests.quap_tff.flower import federation

pytestmark = pytest.mark.slow

# A program that answers Prometheus, and whose fork plays a round after a node has refused.
_PROGRAM = """
import logging, os, sys
from quap_tff.flower import logs, metrics
log = logging.getLogger('flwr')
logs.begin('text', logs.SERVER)
metrics.serve(int(sys.argv[1]))
if not os.fork():
  logs.enter_round('ab', 7, 60)
  log.info('A line without facts.')
  log.info('One refuses.', extra=logs.facts(event=logs.REFUSED, node='clinic'))
  figures = dict(expected=25, epsilon_reading=1.04, epsilon_left=1.96, seconds=4.2)
  log.info('It ended.', extra=logs.facts(event=logs.ROUND, came=0, **figures))
  log.info('It ended.', extra=logs.facts(event=logs.ROUND, came=24, **figures))
  os._exit(0)
sys.stdin.read()
"""


def _scraped(port):
  """The metrics by name, as Prometheus reads them; {} if nobody answers."""
  try:
    with urllib.request.urlopen(f'http://127.0.0.1:{port}/metrics') as answer:
      text = answer.read().decode()
  except OSError:
    return {}
  lines = [line.rsplit(' ', 1) for line in text.splitlines() if not line.startswith('#')]
  return {name: float(value) for name, value in lines if '_created' not in name}


@pytest.fixture(name='program')
def _program(tmp_path):
  port = federation.free_port()
  process = subprocess.Popen(
    [sys.executable, '-c', _PROGRAM, str(port)],
    cwd=federation.ROOT,
    env=federation.environment(tmp_path),
    stdin=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  yield process, port
  processes.finish(process)


def test_what_a_fork_logs_is_scraped(program):
  process, port = program
  found = processes.until(lambda: (one := _scraped(port)).get('quap_rounds_total') == 2 and one, process)
  assert found == {
    'quap_rounds_total': 2,
    'quap_empty_rounds_total': 1,
    'quap_refused_total{node="clinic"}': 1,
    'quap_round': 7,
    'quap_planned_rounds': 60,
    'quap_came': 24,
    'quap_expected': 25,
    'quap_round_seconds': 4.2,
    'quap_epsilon_reading': 1.04,
    'quap_epsilon_left': 1.96,
  }


def test_it_listens_on_this_machine_alone(program):
  process, port = program
  processes.until(lambda: _scraped(port), process)
  sockets = (federation.pathlib.Path('/proc') / str(process.pid) / 'net' / 'tcp').read_text().splitlines()
  [address] = {line.split()[1] for line in sockets if line.split()[1].endswith(f':{port:04X}') and ' 0A ' in line}
  assert address == f'0100007F:{port:04X}'
