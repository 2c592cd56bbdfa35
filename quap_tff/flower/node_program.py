"""The program of a node: Flower's SuperNode, and the process that works for it.

By itself, a SuperNode starts a process for each message, and loads in it the app that the server has sent: whatever
that is. Then no guard helps against a server that sends other code. This program works for the SuperNode in its place
(`--isolation=process`), by the ClientApp that is installed on this machine and no other. TensorFlow and the bundle are
loaded once: each message has a fork of this process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import logging
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
from typing import Any, Callable

from flwr.clientapp import ClientApp
from flwr.supercore.constant import TaskType
from flwr.supercore.exit import add_exit_handler
from flwr.supercore.superexec.executor import ExecutionSpec
from flwr.supernode.runtime import run_clientapp

from quap_tff.common.lazy import tf
from quap_tff.flower import client_app
from quap_tff.flower import forks
from quap_tff.flower import node as nodes

_LOG = logging.getLogger('flwr')
_SECRET_BYTES = 32
_SECONDS_BETWEEN_STARTS = 5.0
ENDED = 'This node has ended. When it is started again, it goes on.'


class _Supervised:
  """A SuperNode that is started again whenever it has ended, as it does when it no longer works (see `supernode`).

  Flower refuses a node that was killed and comes back, until it has missed it for a minute.
  """

  def __init__(self, command: Sequence[str]):
    self._command, self._is_stopped = command, threading.Event()
    self._process = subprocess.Popen(command)
    threading.Thread(target=self._watch, daemon=True).start()

  def _watch(self) -> None:
    while True:
      self._process.wait()
      if self._is_stopped.wait(_SECONDS_BETWEEN_STARTS):
        return
      _LOG.warning('The SuperNode has ended: it says above why. It is started again.')
      self._process = subprocess.Popen(self._command)

  def stop(self) -> None:
    """Ends it, in a way that tells the SuperLink."""
    self._is_stopped.set()
    self._process.terminate()
    self._process.wait()


def _try_clients(node: nodes.Node) -> None:
  """Tries the data of each client, in a fork. Whatever comes out, the node goes on."""
  pid = os.fork()
  if not pid:
    try:
      node.check_clients()
    except Exception as error:
      node.note_failure(error)
    finally:
      os._exit(0)
  os.waitpid(pid, 0)
  _LOG.info(
    'The data of each client were tried: %s names those who add zero.', os.path.join(node.folder, nodes.PRIVATE_LOG)
  )


def _install_nothing(*_: Any, **__: Any) -> None:
  """In place of the installation of the app that the server has sent."""


def _client_app_loader(**_: Any) -> Callable[..., ClientApp]:
  """In place of the loader of that app: gives the ClientApp of this installation."""

  def load(*_: Any) -> ClientApp:
    return client_app.app

  return load


def main(config: Mapping[str, Any], options: Sequence[str], logging_options: Sequence[str] = ()) -> None:
  """Runs a node until it is stopped.

  Args:
    config: The node's configuration, see `node.Node.of`, which is checked first.
    options: For `flower-supernode`: the address of the SuperLink, certificates, the private key of the node.
    logging_options: For `supernode`: how it logs.

  Raises:
    ValueError: If the configuration is wrong.
  """
  os.umask(0o077)  # What is written here is for the owner of the node.
  known = nodes.Node.of(config)
  tf.__version__  # noqa: B018  # Loads it, for all forks. Nothing is computed here: threads do not survive a fork.
  _try_clients(known)
  client_app.keep(known)
  run_clientapp.install_from_fab = _install_nothing
  run_clientapp.get_load_client_app_fn = _client_app_loader
  with socket.socket() as s:
    s.bind(('127.0.0.1', 0))
    port = s.getsockname()[1]
  secret = secrets.token_bytes(_SECRET_BYTES)
  with tempfile.NamedTemporaryFile() as f:
    f.write(secret)
    f.flush()
    command = [
      sys.executable,
      '-m',
      'quap_tff.flower.supernode',
      *logging_options,
      *options,
      '--isolation=process',
      f'--superexec-auth-secret-file={f.name}',
    ]
    supernode = _Supervised([*command, '--host=127.0.0.1', f'--port={port}'])
    # The last one of them is first at the end: forks, which are made below, then the SuperNode, then a last line.
    add_exit_handler(lambda: _LOG.info(ENDED), run_before_force_exit=True)
    add_exit_handler(supernode.stop, run_before_force_exit=True)
    forks.work_for(f'127.0.0.1:{port}', forks.Forks(TaskType.CLIENT_APP, _work), secret)


def _work(spec: ExecutionSpec) -> None:
  run_clientapp.run_clientapp(spec.runtime_api_address, spec.token, insecure=True, parent_pid=spec.parent_pid)
