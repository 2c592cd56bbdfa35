"""Child processes that end when this program does, however it ends, and TFF's C++ worker as such a process.

This module imports neither TensorFlow nor TFF, so small programs may use it.
"""

import asyncio
from collections.abc import Sequence
import ctypes
import fcntl
import importlib.util
import os
import pathlib
import socket
import ssl
import struct
import subprocess
import sys
import tempfile

from quap_tff.runtime.values import errors

# The files of a folder of credentials: the authority that both sides trust, one's own certificate, and its key.
_AUTHORITY, _CERTIFICATE, _KEY = 'authority.pem', 'certificate.pem', 'key.pem'
# What a worker's certificate must be for, whatever its address is.
NAME = 'quap-tff-worker'

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000  # <sched.h>
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1  # <linux/sockios.h>, <net/if.h>
_INNER_PORT = 8000
_BYTES_AT_ONCE = 1 << 18
_SECONDS_TO_ANSWER = 60
_SECONDS_TO_END = 5
_BYTES_OF_LOG = 2000

# Asks the kernel to kill this process when its parent ends, then becomes the command. If the parent has ended by then,
# the parent's id has changed. (A `preexec_fn` would run this between fork and exec of a program full of threads.)
_LAUNCHER = (
  'import ctypes, os, signal, sys\n'
  'ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n'
  'if os.getppid() != int(sys.argv[1]): sys.exit(1)\n'
  'os.execv(sys.argv[2], sys.argv[2:])\n'
)


def ending_with_this_one(command: Sequence[str]) -> list[str]:
  """A command line that runs `command` (its program given by path) in a process that is killed when this one ends.

  The kernel kills it, however this process ends, and also when the thread that started the command ends.
  """
  return [sys.executable, '-I', '-S', '-c', _LAUNCHER, str(os.getpid()), *command]


def worker_command(port: int) -> list[str]:
  """The command line of TFF's worker that listens on `port` of all interfaces.

  Raises:
    FileNotFoundError: If TFF or the worker in it is missing; the message says where it was expected.
  """
  spec = importlib.util.find_spec('tensorflow_federated')
  if spec is None or not spec.submodule_search_locations:
    raise FileNotFoundError(
      'TensorFlow Federated is not installed, and its worker is part of it. Install it with '
      '`pip install --no-deps -r requirements.txt`.'
    )
  path = os.path.join(spec.submodule_search_locations[0], 'data', 'worker_binary')
  if not os.path.isfile(path):
    raise FileNotFoundError(f"TFF's worker is missing at {path}, where TFF 0.87 installs it.")
  return [path, f'--port={port}', '--max_concurrent_computation_calls=-1']


class WorkerProcess:
  """A worker on this machine, started by this program.

  Raises:
    errors.RuntimeStackError: If TFF's worker is not installed.
  """

  def __init__(self):
    with socket.socket(socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET) as s:
      s.bind(('', 0))
      port = s.getsockname()[1]
    try:
      command = worker_command(port)
    except FileNotFoundError as e:
      raise errors.RuntimeStackError(str(e)) from e
    # The worker inherits neither output: if it held this program's, a pipeline behind the program would hang.
    self._log = tempfile.TemporaryFile()
    self._process = subprocess.Popen(
      ending_with_this_one(command),
      stdin=subprocess.DEVNULL,
      stdout=self._log,
      stderr=subprocess.STDOUT,
      env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '1'},
      # Ctrl-C at the terminal is meant for this program, which then ends its workers.
      start_new_session=True,
    )
    self.address = f'localhost:{port}'
    self.pid = self._process.pid

  @property
  def has_ended(self) -> bool:
    return self._process.poll() is not None

  def last_words(self) -> str:
    """How the process ended, if it has, and the end of its output."""
    code = self._process.poll()
    text = ' It is still running.'
    if code is not None:
      text = f' It ended with {f"signal {-code}" if code < 0 else f"status {code}"}.'
    self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - _BYTES_OF_LOG))
    output = self._log.read().decode(errors='replace').strip()
    return f'{text} Its last output:\n{output}' if output else text

  def end(self, seconds: float = _SECONDS_TO_END) -> None:
    """Gives the process some time to end by itself, and then kills it."""
    try:
      self._process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
      self._process.kill()
      self._process.wait()

  def close(self) -> None:
    """Ends the process."""
    if not self.has_ended:
      self._process.terminate()
      self.end()
    self._log.close()


def read_credentials(directory: str) -> list[bytes]:
  """The authority, the certificate and the key in a folder; raises `FileNotFoundError` that says which is missing."""
  found = []
  for name in (_AUTHORITY, _CERTIFICATE, _KEY):
    path = pathlib.Path(directory, name)
    if not path.is_file():
      raise FileNotFoundError(
        f'The credentials in {directory!r} are incomplete: {name} is missing. A folder of credentials has'
        f' {_AUTHORITY}, {_CERTIFICATE} and {_KEY}; experiments/distributed/make_credentials.sh makes them.'
      )
    found.append(path.read_bytes())
  return found


def listen(port: int) -> socket.socket:
  """A socket that listens on `port` of all interfaces. Raises `OSError` if that cannot be, and says what to do."""
  try:
    if socket.has_dualstack_ipv6():
      return socket.create_server(('', port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=16)
    return socket.create_server(('', port), backlog=16)
  except OSError as error:
    raise OSError(
      f'A worker cannot listen on port {port}: {error}. Give another --port, or end the program that has this one.'
    ) from error


def run_behind_tls(port: int, credentials: str) -> int:
  """Runs a worker behind TLS on `port` of all interfaces until it ends; returns its exit status.

  Both sides have certificates: only programs that the authority has certified can use the worker. TFF's worker has no
  authentication and listens on all interfaces. So it runs in a network namespace of its own, which has no way out, and
  this process passes on what comes through TLS. The namespace needs root or user namespaces.

  Raises:
    FileNotFoundError: If a file of the credentials or TFF's worker is missing.
    OSError: If the port is taken, there may be no new network namespace, or TFF's worker does not answer.
  """
  read_credentials(credentials)
  context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
  context.minimum_version = ssl.TLSVersion.TLSv1_2
  context.verify_mode = ssl.CERT_REQUIRED
  context.load_verify_locations(os.path.join(credentials, _AUTHORITY))
  context.load_cert_chain(os.path.join(credentials, _CERTIFICATE), os.path.join(credentials, _KEY))
  context.set_alpn_protocols(['h2'])
  listening = listen(port)
  _enter_new_network()  # The socket stays where it was bound.
  command = ending_with_this_one(worker_command(_INNER_PORT))
  with subprocess.Popen(command, stdin=subprocess.DEVNULL) as worker:
    try:
      asyncio.run(_serve(listening, context, worker))
    finally:
      worker.terminate()
  return worker.returncode


def _enter_new_network() -> None:
  """Moves this process, and those that it starts, to a network of their own that has nothing but a loopback."""
  kinds = _NEW_NETWORK if os.geteuid() == 0 else _NEW_NETWORK | _NEW_USER
  if ctypes.CDLL(None, use_errno=True).unshare(kinds):
    raise OSError(
      ctypes.get_errno(),
      'A worker behind TLS needs a network namespace of its own, and the system refuses one. Run'
      ' as root, or allow user namespaces',
    )
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    name, flags = struct.unpack('16sh', fcntl.ioctl(s, _GET_FLAGS, struct.pack('16sh', b'lo', 0)))
    fcntl.ioctl(s, _SET_FLAGS, struct.pack('16sh', name, flags | _UP))


async def _serve(listening: socket.socket, context: ssl.SSLContext, worker: subprocess.Popen) -> None:
  for _ in range(_SECONDS_TO_ANSWER * 10):
    if worker.poll() is not None:
      return
    try:
      _, writer = await asyncio.open_connection('127.0.0.1', _INNER_PORT)
      writer.close()
      break
    except OSError:
      await asyncio.sleep(0.1)
  else:
    raise TimeoutError(
      f"TFF's worker did not answer on port {_INNER_PORT} within {_SECONDS_TO_ANSWER} s. Start it again on a machine "
      'with less load.'
    )
  async with await asyncio.start_server(_pass_on, sock=listening, ssl=context):
    print(f'A worker behind TLS listens on port {listening.getsockname()[1]}.', file=sys.stderr, flush=True)
    # Ends with the worker: programs must see their connections break.
    await asyncio.get_running_loop().run_in_executor(None, worker.wait)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
  try:
    inner_reader, inner_writer = await asyncio.open_connection('127.0.0.1', _INNER_PORT)
  except OSError:
    writer.close()
    return
  await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
  try:
    while data := await reader.read(_BYTES_AT_ONCE):
      writer.write(data)
      await writer.drain()
  except OSError:
    pass  # Either side may break off.
  finally:
    writer.close()
