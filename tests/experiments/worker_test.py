"""experiments.worker: what it refuses before it becomes TFF's worker."""

import os
import socket

import pytest

from experiments import worker
from experiments.command import command_line


@pytest.fixture(name='started', autouse=True)
def _started(monkeypatch):
  """The command lines that this process would have become."""
  found = []
  monkeypatch.setattr(os, 'execv', lambda path, command: found.append(command))
  monkeypatch.setattr(worker.worker_processes, 'worker_command', lambda port: ['worker', f'--port={port}'])
  return found


def _listening(host):
  return socket.create_server((host, 0))


@pytest.mark.parametrize('host', ['127.0.0.1', ''])
def test_a_port_that_is_taken(host, started, capsys):
  with _listening(host) as taken:
    port = taken.getsockname()[1]
    assert command_line.status_of(worker.main, ['worker', f'--port={port}', '--insecure']) == 1
  said = capsys.readouterr().err
  assert f'cannot listen on port {port}: ' in said and 'Give another --port' in said and not started


def test_a_port_that_is_free(started):
  with _listening('127.0.0.1') as taken:
    port = taken.getsockname()[1]
  worker.main(['worker', f'--port={port}', '--insecure'])
  assert started == [['worker', f'--port={port}']]


def test_insecure_must_be_said(started, capsys):
  assert command_line.status_of(worker.main, ['worker']) == 1
  assert 'or --insecure' in capsys.readouterr().err and not started
