"""Tests of a node's connection: each reason for having none is its own sentence, and a process that fails ends."""

import datetime
import http.server
import shutil
import subprocess
import sys
import threading

import pytest

pytest.importorskip('flwr', reason='make test-deploy sets up the newest Python that Flower runs on, and Flower.')

from flwr.proto import fleet_pb2
import httpx

from quap_tff.flower import supernode
from tests import processes
from tests.quap_tff.flower import federation

NOW = datetime.datetime(2026, 11, 28, 12, 10, tzinfo=datetime.timezone.utc)
URL = 'https://server:8000'


class TestSentences:
  @pytest.mark.parametrize(
    'status, date, said',
    [
      (401, 'Sat, 28 Nov 2026 12:00:00 GMT', 'clock of this machine is 600 seconds ahead of that of the SuperLink'),
      (401, 'Sat, 28 Nov 2026 12:20:00 GMT', 'clock of this machine is 600 seconds behind that of the SuperLink'),
      (401, 'Sat, 28 Nov 2026 12:10:01 GMT', 'does not take the signature of this node'),
      (401, 'today', 'does not take the signature of this node'),
      (404, '', 'What listens at https://server:8000 is no SuperLink for nodes'),
      (500, '', 'The SuperLink at https://server:8000 answers 500'),
    ],
  )
  def test_of_an_answer(self, status, date, said):
    response = httpx.Response(status, headers={'date': date})
    assert said in supernode.answered(URL, response, NOW)

  @pytest.mark.parametrize(
    'error, said',
    [
      (httpx.ConnectError('[Errno 111] Connection refused'), 'Nothing listens at https://server:8000'),
      (httpx.ConnectError('[SSL: CERTIFICATE_VERIFY_FAILED] self-signed'), 'does not fit --root-certificates'),
      (httpx.ConnectError('[SSL: WRONG_VERSION_NUMBER]'), 'speaks no TLS'),
      (httpx.ReadTimeout(''), 'was lost (ReadTimeout)'),
    ],
  )
  def test_of_no_answer(self, error, said):
    assert said in supernode.unreachable(URL, error)


class _Failing(http.server.BaseHTTPRequestHandler):
  """A SuperLink that lets nodes in, and then fails."""

  def do_POST(self):
    self.rfile.read(int(self.headers['content-length']))
    replies = {
      '/v1/fleet/register-node': fleet_pb2.RegisterNodeFleetResponse(node_id=7),
      '/v1/fleet/activate-node': fleet_pb2.ActivateNodeResponse(node_id=7),
    }
    body = replies[self.path].SerializeToString() if self.path in replies else b'broken'
    self.send_response(200 if self.path in replies else 500)
    self.send_header('content-type', 'application/x-protobuf')
    self.send_header('content-length', str(len(body)))
    self.end_headers()
    self.wfile.write(body)

  def log_message(self, *_):
    pass


@pytest.mark.slow
def test_a_node_ends_when_its_superlink_fails_and_can_be_started_again(tmp_path):
  with http.server.ThreadingHTTPServer(('127.0.0.1', 0), _Failing) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    command = [sys.executable, '-m', 'quap_tff.flower.supernode', '--insecure', '--isolation=process']
    command += [f'--superlink=127.0.0.1:{server.server_address[1]}', f'--port={federation.free_port()}']
    node = subprocess.Popen(
      [*command, '--host=127.0.0.1'],
      cwd=federation.ROOT,
      env=federation.environment(tmp_path),
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    said, _ = processes.finish(node)
    server.shutdown()
  assert node.returncode == 1 and 'answers 500: its own log says why' in said, said


_WITH_ANOTHER_CLOCK = """
import datetime
from flwr.supernode import node_auth_http_interceptor as signing
from quap_tff.flower import supernode
late = lambda: datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(minutes=10)
signing.now = supernode.date.now = late
supernode.main()
"""


def _start_supernode(started, name, folder, how=('-m', 'quap_tff.flower.supernode')):
  """Starts the SuperNode of a node's folder alone."""
  options = [f'--superlink=127.0.0.1:{started.port}', '--root-certificates=server.pem', '--isolation=process']
  options += [f'--auth-supernode-private-key={folder}/node_key', '--host=127.0.0.1']
  started.start(name, 'python', *how, *options, f'--port={federation.free_port()}')


@pytest.mark.slow
def test_a_key_that_is_removed_is_refused_for_good_and_a_new_one_is_taken(tmp_path):
  with federation.Federation(tmp_path / 'federation') as started:
    started.start_superlink()
    started.enrol('a', '0-4')
    _start_supernode(started, 'a', 'a')
    node = started.wait_for('a', r'SuperNode ID: (\d+)').group(1)
    started.flwr('supernode', 'unregister', node, 'test')
    started.wait_for('a', 'does not take the signature of this node: its key was registered anew or removed')
    _start_supernode(started, 'again', 'a')
    started.wait_for('again', 'does not know the key of this node')
    with pytest.raises(Exception, match='Public key already in use'):
      started.flwr('supernode', 'register', str(started.folder / 'a' / 'node_key.pub'), 'test')
    started.enrol('anew', '0-4')
    _start_supernode(started, 'anew', 'anew')
    started.wait_for('anew', 'SuperNode ID')


@pytest.mark.slow
def test_a_node_that_is_not_let_in_says_why(tmp_path):
  with federation.Federation(tmp_path / 'federation') as started:
    started.start_superlink()
    started.enrol('a', '0-4')
    started.make('enrol', 'stranger', '--clients=5')
    _start_supernode(started, 'a', 'a')
    started.wait_for('a', 'SuperNode ID')
    shutil.copytree(started.folder / 'a', started.folder / 'copy')
    _start_supernode(started, 'copy', 'copy')
    _start_supernode(started, 'stranger', 'stranger')
    _start_supernode(started, 'late', 'stranger', ['-c', _WITH_ANOTHER_CLOCK])
    started.wait_for('copy', 'has another connection with the key of this node: a copy of its folder')
    started.wait_for('stranger', 'does not know the key of this node. On the server, run flwr supernode register')
    started.wait_for('late', r'clock of this machine is \d+ seconds behind that of the SuperLink')
