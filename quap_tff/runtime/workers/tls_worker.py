"""A worker behind TLS with certificates on both sides: only programs that the authority has certified can use it.

TFF's worker has no authentication and listens on all interfaces. So it runs in a network namespace of its own, which
has no way out, and this process passes on what comes through TLS. The namespace needs root or user namespaces.
"""

import asyncio
import ctypes
import fcntl
import os
import pathlib
import socket
import ssl
import struct
import subprocess
import sys

from quap_tff.runtime.workers import processes

# The files of a folder of credentials: the authority that both sides trust, one's own certificate, and its key.
AUTHORITY, CERTIFICATE, KEY = 'authority.pem', 'certificate.pem', 'key.pem'
# What a worker's certificate must be for, whatever its address is.
NAME = 'quap-tff-worker'

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000  # <sched.h>
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1  # <linux/sockios.h>, <net/if.h>
_INNER_PORT = 8000
_BYTES_AT_ONCE = 1 << 18
_SECONDS_TO_START = 60


def read_credentials(directory: str) -> 'dict[str, bytes]':
  """The files of a folder of credentials by name; raises `FileNotFoundError` that says which one is missing."""
  found = {}
  for name in (AUTHORITY, CERTIFICATE, KEY):
    path = pathlib.Path(directory, name)
    if not path.is_file():
      raise FileNotFoundError(
        f'The credentials in {directory!r} are incomplete: {name} is missing. A folder of credentials has'
        f' {AUTHORITY}, {CERTIFICATE} and {KEY}; experiments/distributed/make_credentials.sh makes them.'
      )
    found[name] = path.read_bytes()
  return found


def run(port: int, credentials: str) -> int:
  """Runs a worker behind TLS on `port` of all interfaces until it ends; returns its exit status.

  Raises:
    FileNotFoundError: If a file of the credentials or TFF's worker is missing.
    OSError: If the port is taken, there may be no new network namespace, or TFF's worker does not answer.
  """
  read_credentials(credentials)
  context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
  context.minimum_version = ssl.TLSVersion.TLSv1_2
  context.verify_mode = ssl.CERT_REQUIRED
  context.load_verify_locations(os.path.join(credentials, AUTHORITY))
  context.load_cert_chain(os.path.join(credentials, CERTIFICATE), os.path.join(credentials, KEY))
  context.set_alpn_protocols(['h2'])
  listening = socket.create_server(('', port), backlog=16)
  _enter_new_network()  # The socket stays where it was bound.
  with subprocess.Popen(
    processes.ending_with_this_one(processes.worker_command(_INNER_PORT)), stdin=subprocess.DEVNULL
  ) as worker:
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
  for _ in range(_SECONDS_TO_START * 10):
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
      f"TFF's worker did not answer on port {_INNER_PORT} within {_SECONDS_TO_START} s. Start it again on a machine "
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
