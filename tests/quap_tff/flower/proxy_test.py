"""Tests of the reverse proxy in front of a SuperLink: nodes reach it, and nobody its Control API."""

import http.client
import os
import pathlib
import shutil
import ssl

import pytest

pytest.importorskip('flwr', reason='make test-deploy sets up the newest Python that Flower runs on, and Flower.')

from tests.quap_tff.flower import federation

NGINX = os.environ.get('NGINX') or shutil.which('nginx')
pytestmark = [
  pytest.mark.slow,
  pytest.mark.skipif(NGINX is None, reason='nginx is not installed, or name it by NGINX=PATH.'),
]

CONFIGURATION = pathlib.Path(__file__).absolute().parents[3] / 'docs' / 'nginx.conf'
CONTROL = 'POST', '/v1/control/list-runs'


@pytest.fixture(scope='module')
def started(tmp_path_factory):
  """A SuperLink, and nginx in front of it; `proxy_port` is that of nginx."""
  with federation.Federation(tmp_path_factory.mktemp('proxy') / 'federation') as one:
    one.start_superlink()
    one.proxy_port = federation.free_port()
    text = CONFIGURATION.read_text().replace('127.0.0.1:8000', f'127.0.0.1:{one.port}')
    (one.folder / 'nginx.conf').write_text(text.replace('listen 8443', f'listen 127.0.0.1:{one.proxy_port}'))
    one.start('nginx', NGINX, '-p', one.folder, '-c', 'nginx.conf', '-g', 'daemon off;')
    one.until(lambda: federation.listens(one.proxy_port), 'nginx')
    yield one


def _status(started, port, method, path):
  trusted = ssl.create_default_context(cafile=started.folder / 'server.pem')
  connection = http.client.HTTPSConnection('127.0.0.1', port, context=trusted)
  connection.request(method, path, body=b'')
  return connection.getresponse().status


def test_control_is_there_without_the_proxy(started):
  assert _status(started, started.port, *CONTROL) != 404


@pytest.mark.parametrize(
  'path',
  [
    CONTROL[1],
    '/v1/runtime/acquire-task',
    '/v1/fleet/../control/list-runs',
    '/v1/fleet/%2e%2e/control/list-runs',
    '/v1/fleet/..%2fcontrol/list-runs',
    '//v1/control/list-runs',
    '/v1/control/list-runs?x=/v1/fleet/',
    '/v1/fleet',
    '/',
  ],
)
def test_nothing_else_is_reached(started, path):
  assert _status(started, started.proxy_port, 'POST', path) in (301, 404)


def test_nodes_connect(started):
  started.enrol('a', '0-4')
  options = [f'--superlink=127.0.0.1:{started.proxy_port}', '--root-certificates=server.pem']
  key = '--auth-supernode-private-key=a/node_key'
  started.start('a', 'flower-supernode', *options, key, f'--port={federation.free_port()}')
  started.wait_for('a', 'SuperNode ID')
