"""A SuperLink and SuperNodes as processes on the loopback interface, with TLS, node authentication and free ports."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from unittest import mock

from flwr.cli import app as flower_cli

from quap_tff.flower import __main__ as programs
from tests import processes
from tests.quap_tff.flower import waiting

ROOT = pathlib.Path(__file__).absolute().parents[3]
BIN = pathlib.Path(sys.executable).parent


def free_port():
  """A port that nobody listens on."""
  with socket.socket() as s:
    s.bind(('127.0.0.1', 0))
    return s.getsockname()[1]


def listens(port):
  """Whether a program listens on a port of this machine."""
  with socket.socket() as s:
    return s.connect_ex(('127.0.0.1', port)) == 0


def write_certificate(folder):
  """server.pem, which signs itself, with server.key, for this machine: as in docs/deploy.md."""
  command = 'openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost'
  names = ['-addext', 'subjectAltName=IP:127.0.0.1,DNS:localhost']
  files = ['-keyout', str(folder / 'server.key'), '-out', str(folder / 'server.pem')]
  processes.run([*command.split(), *names, *files], check=True)


def environment(folder):
  """The variables of a program whose Flower has its home in a folder."""
  return {
    **{name: value for name, value in os.environ.items() if name not in ('PYTHONHOME', 'VIRTUAL_ENV')},
    'PATH': f'{BIN}{os.pathsep}{os.environ["PATH"]}',
    'PYTHONPATH': str(ROOT),
    'PYTHONUNBUFFERED': '1',
    'FLWR_HOME': str(folder / 'home'),
    'FLWR_TELEMETRY_ENABLED': '0',
    'FLWR_DISABLE_UPDATE_CHECK': '1',
    'CUDA_VISIBLE_DEVICES': '',
    'TF_CPP_MIN_LOG_LEVEL': '2',
  }


class Federation:
  """Everything that was started ends with it, also on failure.

  Attributes:
    folder: Of this federation: certificates, database, logs, a folder of each node.
    port: The SuperLink's.
  """

  def __init__(self, folder):
    self.folder, self.port, self._processes, self._offsets = folder, free_port(), {}, {}
    self.env = environment(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / 'home').mkdir()
    (folder / 'nodes').mkdir()
    write_certificate(folder)
    self.make('operator', 'operator')
    (folder / 'secret').write_bytes(secrets.token_bytes(32))
    (folder / 'home' / 'config.toml').write_text(
      f'[superlink]\ndefault = "test"\n\n[superlink.test]\naddress = "127.0.0.1:{self.port}"\n'
      f'root-certificates = "{folder / "server.pem"}"\n'
    )

  def __enter__(self):
    return self

  def __exit__(self, *_):
    for name in list(self._processes):
      self.kill(name)

  def run(self, *command, check=True):
    """The standard output of a program of the environment."""
    found = processes.run([BIN / command[0], *command[1:]], cwd=self.folder, env=self.env)
    if check and found.returncode:
      raise AssertionError(f'{command} ended with {found.returncode}:\n{found.stdout}\n{found.stderr}')
    return found

  def make(self, command, name, *options):
    """Makes a folder as `python -m quap_tff.flower COMMAND NAME` does, without the seconds that a new process takes."""
    assert programs.main([command, str(self.folder / name), *options]) == 0

  def start(self, name, *command):
    """Starts a program in a session of its own; its output goes to NAME.log."""
    with open(self.folder / f'{name}.log', 'ab') as log:
      self._processes[name] = subprocess.Popen(
        [str(BIN / command[0]), *map(str, command[1:])],
        cwd=self.folder,
        env=self.env,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
      )

  def kill(self, name, how=signal.SIGKILL):
    """Ends a program and all that it has started."""
    process = self._processes.pop(name)
    of_it = [process.pid, *children(process.pid)]
    for pid in of_it:
      with contextlib.suppress(ProcessLookupError):
        os.kill(pid, how)
    process.wait(processes.DEADLINE_SECONDS)
    self.until(lambda: not any(map(is_alive, of_it)), f'the end of {name}')

  def pause(self, name):
    """A program stands still, but not those that it has started."""
    os.kill(self._processes[name].pid, signal.SIGSTOP)

  def resume(self, name):
    """It goes on."""
    os.kill(self._processes[name].pid, signal.SIGCONT)

  def start_superlink(self, *options):
    """Also for the second time: it goes on with the same database. `ISOLATED` leaves ServerApps to others."""
    files = [f'--ssl-{kind}={self.folder / name}' for kind, name in _CERTIFICATES.items()]
    self.start(
      'superlink',
      'flower-superlink',
      *files,
      '--enable-supernode-auth',
      '--disable-runtime-dependency-installation',
      f'--database={self.folder / "database"}',
      '--host=127.0.0.1',
      f'--port={self.port}',
      *options,
    )
    self.until(lambda: listens(self.port), 'the SuperLink')

  def start_server(self, app):
    """Starts the operator's program, which plays the run of an app; its ServerApp is that of `waiting`."""
    options = [f'--superlink=127.0.0.1:{self.port}', '--root-certificates=server.pem', '--secret=secret']
    self.start(f'{app}_server', 'python', '-m', 'tests.quap_tff.flower.waiting', 'server', app, *options)

  def enrol(self, name, clients):
    """Makes a node's folder; enrols it at the SuperLink, by `flwr supernode register`, and at the ServerApp."""
    self.make('enrol', name, f'--clients={clients}')
    shutil.copy(self.folder / name / 'enrolment.json', self.folder / 'nodes' / f'{name}.json')
    self.flwr('supernode', 'register', str(self.folder / name / 'node_key.pub'), 'test')

  def flwr(self, *command):
    """Does as `flwr COMMAND`; raises an error of its own if that fails."""
    with mock.patch.dict(os.environ, self.env):
      flower_cli.app(command, standalone_mode=False)

  def expect_silence(self, names):
    """A ServerApp of `waiting` does not wait for the nodes in `names`, by the number of the round."""
    (self.folder / waiting.SILENT).write_text(json.dumps(names))

  def make_app(self, bundle):
    """Makes the folder `app` of a ServerApp, whose run is to be in `out`."""
    files = {'enrolment': 'nodes', 'operator': 'operator', 'output': 'out'}
    own = [f'--{option}={self.folder / name}' for option, name in files.items()]
    self.make('app', 'app', f'--bundle={bundle}', *own)

  def start_node(self, name, bundle):
    """Starts a node that has been enrolled, with the clients in BUNDLE.npz. It knows all that have been enrolled."""
    files = {'root-certificates': 'server.pem', 'bundle': bundle, 'data': f'{bundle}.npz', 'enrolment': 'nodes'}
    files['operator'] = 'operator/operator_key.pub'
    options = [f'--superlink=127.0.0.1:{self.port}', *(f'--{option}={file}' for option, file in files.items())]
    self.start(name, 'python', '-m', 'quap_tff.flower', 'node', name, *options)

  def start_run(self, app, **config):
    """Starts a ServerApp, whose output goes to APP.log."""
    text = ' '.join(f'{name}={json.dumps(value)}' for name, value in config.items())
    self.start(f'{app}', 'flwr', 'run', app, 'test', '--stream', *(['--run-config', text] if text else []))

  def text(self, name):
    """What a program has said."""
    return re.sub(r'\x1b\[[0-9;]*m', '', (self.folder / f'{name}.log').read_text(errors='replace'))

  def wait_for(self, name, pattern):
    """Waits until a program says something that it has not said at the last call; returns the match."""
    found = None

    def look():
      nonlocal found
      found = re.compile(pattern).search(self.text(name), self._offsets.get(name, 0))
      return found

    self.until(look, f'{pattern!r} in {name}.log')
    self._offsets[name] = found.end()
    return found

  def until(self, holds, what):
    """Waits until something holds."""
    try:
      processes.until(holds)
    except AssertionError as error:
      logs = '\n\n'.join(f'{log.name}:\n{self.text(log.stem)[-4000:]}' for log in sorted(self.folder.glob('*.log')))
      raise AssertionError(f'Waited for {what}, in vain.\n{logs}') from error


# The SuperLink starts no ServerApp.
ISOLATED = ('--isolation=process', '--superexec-auth-secret-file=secret')
_CERTIFICATES = {'certfile': 'server.pem', 'keyfile': 'server.key', 'ca-certfile': 'server.pem'}


def children(pid):
  """The processes that a process has started, and those that they have."""
  found = []
  for task in pathlib.Path('/proc').glob(f'{pid}/task/*/children'):
    with contextlib.suppress(OSError):
      for child in map(int, task.read_text().split()):
        found += [child, *children(child)]
  return found


def is_alive(pid):
  """Whether a process runs; one that has ended and that nobody has waited for does not."""
  try:
    return (pathlib.Path('/proc') / str(pid) / 'stat').read_text().rpartition(')')[2].split()[0] != 'Z'
  except OSError:
    return False
