"""Operates a run over Flower on this machine, while nodes, server, links and a disk fail.

    python docs/soak.py FOLDER --bundle=BUNDLE

BUNDLE is of a plan with expected=…, with its clients, 0 to 99, in BUNDLE.npz. The Python on the path has '.[flower]'
and pytest. Mounting the small disk needs root; without that, no disk is full. Every few rounds something fails; this
program starts again what has ended, as systemd does, and notes in FOLDER/soak.log all that an operator would have to do
by hand. At the end it verifies the certificate.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import json
import pathlib
import select
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parents[1]))

from tests.quap_tff.flower import federation

NODES = {'north': '0-24', 'east': '25-49', 'south': '50-74', 'west': '75-99'}
PAUSE_SECONDS = 10.0  # Before a program is started again.
CUT_SECONDS = 25.0
DELAY_SECONDS = 0.5
DISK_BYTES = 4 << 20


class Link(socketserver.ThreadingTCPServer):
  """A node's way to the SuperLink, which can be cut or slow."""

  daemon_threads = allow_reuse_address = True

  def __init__(self, port: int):
    """Leads to a port of this machine."""
    super().__init__(('127.0.0.1', 0), _Passing)
    self.port, self.is_cut, self.delay = port, False, 0.0
    threading.Thread(target=self.serve_forever, daemon=True).start()


class _Passing(socketserver.BaseRequestHandler):
  def handle(self) -> None:
    with contextlib.suppress(OSError), socket.create_connection(('127.0.0.1', self.server.port)) as far:
      other = {self.request: far, far: self.request}
      while not self.server.is_cut:
        for one in select.select(list(other), [], [], 0.2)[0]:
          data = one.recv(1 << 16)
          if not data:
            return
          time.sleep(self.server.delay)
          other[one].sendall(data)


class Soak:
  """A run, and what happens to it."""

  def __init__(self, started: federation.Federation, bundle: pathlib.Path):
    """Enrols the nodes."""
    self._started, self._bundle = started, bundle
    self.counts, self.memory = collections.Counter(), []
    self._disk = started.folder / 'disk'
    self._disk.mkdir()
    mount = ['mount', '-t', 'tmpfs', '-o', f'size={DISK_BYTES}', 'tmpfs', str(self._disk)]
    self._is_mounted = subprocess.run(mount, check=False).returncode == 0
    started.start_superlink(*federation.ISOLATED)
    self._links = {name: Link(started.port) for name in NODES}
    for name, clients in NODES.items():
      started.enrol(name, clients)
      self._start(name)
    files = {'bundle': bundle, 'enrolment': started.folder / 'nodes', 'operator': started.folder / 'operator'}
    started.make('app', 'app', *(f'--{name}={path}' for name, path in files.items()), f'--output={self._disk / "out"}')
    self._start('server')
    self._run()

  def close(self) -> None:
    """Leaves no disk and no link."""
    for link in self._links.values():
      link.shutdown()
      link.server_close()
    if self._is_mounted:
      subprocess.run(['umount', '--lazy', str(self._disk)], check=True)

  def say(self, line: str) -> None:
    """Notes a line."""
    with open(self._started.folder / 'soak.log', 'a', encoding='utf-8') as log:
      print(time.strftime('%H:%M:%S'), line, file=log)

  def _start(self, name: str) -> None:
    if name == 'superlink':
      self._started.start_superlink(*federation.ISOLATED)
      return
    program = ['python', '-m', 'quap_tff.flower']
    files = ['--root-certificates=server.pem', '--log-format=json']
    if name == 'server':
      at = f'--superlink=127.0.0.1:{self._started.port}'
      self._started.start(name, *program, 'server', 'app', at, '--secret=secret', *files)
      return
    at = f'--superlink=127.0.0.1:{self._links[name].server_address[1]}'
    own = [f'--bundle={self._bundle}', f'--data={self._bundle}.npz', '--operator=operator/operator_key.pub']
    self._started.start(name, *program, 'node', name, at, *own, *files)

  def _run(self) -> None:
    self._started.start_run('app', seconds=120.0, quorum=0.5)

  def _kill(self, *names: str, how: signal.Signals = signal.SIGKILL) -> None:
    for name in names:
      self._started.kill(name, how)
    time.sleep(PAUSE_SECONDS)
    for name in names:
      self._start(name)

  def rounds(self) -> list[dict[str, object]]:
    """The rounds that the server has logged as over."""
    lines = self._started.text('server').splitlines()
    found = [json.loads(line) for line in lines if line.startswith('{')]
    return [one for one in found if one.get('event') == 'round']

  def look(self) -> bool:
    """Starts the run again if it has stopped before its end. False after its end."""
    self.memory.append(sum(map(_resident, federation.children(federation.os.getpid()))))
    if (self._disk / 'out' / 'summary.json').exists():
      return False
    if not federation.is_alive(self._started._processes['app'].pid):
      self.counts['flwr run by hand'] += 1
      self.say('flwr run, by hand')
      self._run()
    return True

  def kill_node(self, name: str) -> None:
    """A node is killed, and started again."""
    self._kill(name)

  def stop_node(self, name: str) -> None:
    """Ends a node by a signal."""
    self._kill(name, how=signal.SIGTERM)

  def cut_link(self, name: str) -> None:
    """A node's link is cut for a while."""
    self._links[name].is_cut = True
    time.sleep(CUT_SECONDS)
    self._links[name].is_cut = False

  def slow_links(self, name: str) -> None:
    """All links are slow for a while."""
    for delay in (DELAY_SECONDS, 0.0):
      for link in self._links.values():
        link.delay = delay
      time.sleep(CUT_SECONDS * bool(delay))

  def kill_server(self, name: str) -> None:
    """The server's program is killed, in the middle of a round."""
    self._kill('server')

  def fill_disk(self, name: str) -> None:
    """The disk of the run's output is full, until the run has stopped."""
    if not self._is_mounted:
      return
    filler = self._disk / 'filler'
    with contextlib.suppress(OSError), open(filler, 'wb', buffering=0) as f:
      while True:
        f.write(bytes(1 << 12))
    self._started.until(lambda: not federation.is_alive(self._started._processes['app'].pid), 'the end of the run')
    filler.unlink()
    self.counts['room made by hand'] += 1

  def restart_all(self, name: str) -> None:
    """Everything is stopped, and started again."""
    self._kill(*NODES, 'server', 'superlink', how=signal.SIGTERM)


FAULTS = (
  Soak.kill_node,
  Soak.cut_link,
  Soak.slow_links,
  Soak.kill_server,
  Soak.stop_node,
  Soak.fill_disk,
  Soak.restart_all,
)


def _resident(pid: int) -> int:
  """The resident memory of a process, in bytes."""
  with contextlib.suppress(OSError):
    return int(pathlib.Path(f'/proc/{pid}/statm').read_text().split()[1]) * federation.os.sysconf('SC_PAGE_SIZE')
  return 0


def main() -> None:
  """Runs it, and prints what came out."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('folder', type=pathlib.Path)
  parser.add_argument('--bundle', type=pathlib.Path, required=True)
  parser.add_argument('--every', type=int, default=5, help='rounds from one fault to the next')
  parser.add_argument('--seconds', type=float, default=float('inf'), help='when no more faults are made')
  arguments = parser.parse_args()
  began, folder = time.monotonic(), arguments.folder.absolute()
  with federation.Federation(folder) as started:
    soak = Soak(started, arguments.bundle.absolute())
    try:
      faults, next_fault = itertools.cycle(FAULTS), arguments.every
      names = itertools.cycle(NODES)
      while soak.look() and time.monotonic() - began < arguments.seconds:
        if len(soak.rounds()) >= next_fault:
          fault, name = next(faults), next(names)
          soak.say(f'after {len(soak.rounds())} rounds: {fault.__name__} {name}')
          fault(soak, name)
          soak.counts[fault.__name__] += 1
          next_fault += arguments.every
        time.sleep(1)
      rounds = soak.rounds()
      everybody = sum(one['came'] == one['expected'] for one in rounds)
      print(f'{len(rounds)} rounds in {time.monotonic() - began:.0f} seconds, {everybody} with all clients')
      print(f'{sum(not one["came"] for one in rounds)} of nobody; faults and what was done: {dict(soak.counts)}')
      first, last = soak.memory[len(soak.memory) // 10], soak.memory[-1]
      print(f'memory: {first >> 20} MB at first, {max(soak.memory) >> 20} at most, {last >> 20} at last')
      out = folder / 'disk' / 'out'
      if (out / 'summary.json').exists():
        print(started.run('python', '-m', 'quap_tff.verify', str(out)).stdout.splitlines()[0])
        shutil.copytree(out, folder / 'out')
    finally:
      soak.close()


if __name__ == '__main__':
  main()
