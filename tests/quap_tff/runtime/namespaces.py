"""Workers in network namespaces of their own, which stand for other machines. Needs root and iproute2."""

import os
import shutil
import signal
import subprocess
import sys
from typing import Optional

from quap_tff.runtime import worker_processes

_HOSTS = '10.213'


def why_not() -> Optional[str]:
  """Why there can be no network namespaces here, `None` if there can."""
  if os.geteuid():
    return 'Network namespaces need root.'
  if shutil.which('ip') is None:
    return 'Network namespaces need the command ip (iproute2).'
  name = f'quap-try-{os.getpid()}'
  tried = subprocess.run(['ip', 'netns', 'add', name], capture_output=True, check=False, text=True)
  if tried.returncode:
    return f'The system refuses network namespaces: {tried.stderr.strip()}'
  _ip('netns', 'del', name)
  return None


def _ip(*arguments: str) -> None:
  subprocess.run(['ip', *arguments], check=True, capture_output=True)


class Machine:
  """A network namespace with one link to this one, and at most one worker in it.

  Args:
    number: From 0, one for each machine that there is at the same time.
    port: Where its worker listens.
    arguments: Of `experiments.worker`, beside the port.
  """

  def __init__(self, number: int, port: int = 8000, arguments: Optional[list[str]] = None):
    self._name = f'quap-{os.getpid()}-{number}'
    self._link = f'quap{os.getpid() % 10**6}x{number}'
    self._port = port
    self._arguments = ['--insecure'] if arguments is None else arguments
    self._worker: Optional[subprocess.Popen] = None
    # Tests that run at the same time have subnets of their own, by process.
    self._subnet = f'{_HOSTS}.{os.getpid() % 64 * 4 + number}'
    self.address = f'{self._subnet}.2:{port}'
    _ip('netns', 'add', self._name)
    try:
      _ip('link', 'add', self._link, 'type', 'veth', 'peer', 'name', 'eth0', 'netns', self._name)
      _ip('address', 'add', f'{self._subnet}.1/30', 'dev', self._link)
      _ip('-n', self._name, 'address', 'add', f'{self._subnet}.2/30', 'dev', 'eth0')
      _ip('-n', self._name, 'link', 'set', 'eth0', 'up')
      _ip('-n', self._name, 'link', 'set', 'lo', 'up')
      _ip('link', 'set', self._link, 'up')
    except BaseException:
      self.close()
      raise

  @property
  def host(self) -> str:
    return self.address.partition(':')[0]

  def start(self) -> None:
    """Starts the worker, unless one runs; returns before it listens."""
    if self._worker is not None and self._worker.poll() is None:
      return
    command = [sys.executable, '-m', 'experiments.worker', f'--port={self._port}', *self._arguments]
    self._worker = subprocess.Popen(
      worker_processes.ending_with_this_one([shutil.which('ip'), 'netns', 'exec', self._name, *command]),
      stdin=subprocess.DEVNULL,
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
    )

  def kill(self) -> None:
    """Ends the worker, as the kernel does when memory runs out."""
    self._worker.kill()
    self._worker.wait()

  def stop(self) -> None:
    """Stops the worker without ending it: it hangs."""
    self._worker.send_signal(signal.SIGSTOP)

  def go_on(self) -> None:
    """Lets a worker that hangs go on."""
    self._worker.send_signal(signal.SIGCONT)

  def disconnect(self) -> None:
    """Unplugs the cable: what is sent is lost without an error.

    The worker loses its address. Without a link, the route here would go, too, and somebody else might answer.
    """
    _ip('-n', self._name, 'address', 'del', f'{self._subnet}.2/30', 'dev', 'eth0')

  def connect(self) -> None:
    """Plugs it in again."""
    _ip('-n', self._name, 'address', 'replace', f'{self._subnet}.2/30', 'dev', 'eth0')

  def received_bytes(self) -> int:
    """What has come in through the link, headers included."""
    with open(f'/sys/class/net/{self._link}/statistics/tx_bytes', encoding='ascii') as f:
      return int(f.read())

  def close(self) -> None:
    """Ends the worker and removes the namespace, and with it the link."""
    if self._worker is not None:
      self.kill()
    _ip('netns', 'del', self._name)
