r"""The files that a run over Flower needs on its machines.

    python -m quap_tff.flower operator FOLDER                 on the server: the operator's key, and its public half
    python -m quap_tff.flower enrol NODE --clients=0-24       on a node: its keys, and the file for the server
    python -m quap_tff.flower node NODE --superlink=… --root-certificates=… --operator=… --bundle=… --data=…
                                                              runs a node; --train=module:function in place of --data
                                                              trains by a program of its own
    python -m quap_tff.flower app APP --bundle=… --enrolment=… --operator=… --output=…
                                                              on the server: what `flwr run` takes
    python -m quap_tff.flower server APP --superlink=… --root-certificates=… --secret=…
                                                              on the server, as the operator: plays it

docs/deploy.md has the whole way. Exit status: 0; 2 for wrong input.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import json
import os
import sys

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')  # TensorFlow's messages would bury the rounds.

from quap_tff.common import files
from quap_tff.common import lazy
from quap_tff.common import version
from quap_tff.flower import enrolment
from quap_tff.flower import logs

metrics = lazy.module('quap_tff.flower.metrics')
operators = lazy.module('quap_tff.flower.operators')
server_program = lazy.module('quap_tff.flower.server_program')
node_program = lazy.module('quap_tff.flower.node_program')

_OF_NODE = ('folder', 'bundle', 'data', 'train', 'train_seconds', 'operator', 'enrolment')
_OF_APP = ('bundle', 'enrolment', 'operator', 'output')
# The code is installed on each machine, so that no server decides what runs there: this package names it.
_APP = """[project]
name = "quap-tff-run"
version = "{version}"
description = "A run of quap_tff"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "quap-tff"

[tool.flwr.app.components]
serverapp = "quap_tff.flower.server_app:app"
clientapp = "quap_tff.flower.client_app:app"

[tool.flwr.app.config]
{config}
test = ""
signing-key = ""
# The next ones may also be given to `flwr run`: --run-config 'seconds=60.0 quorum=0.8'
seconds = 0.0
quorum = 0.5
"""


def _begin_log(arguments: argparse.Namespace, program: str, name: str = '') -> None:
  """Logs, and answers Prometheus, as the arguments ask for it."""
  logs.begin(arguments.log_format, program, name)
  if arguments.metrics_port is not None:
    metrics.serve(arguments.metrics_port, arguments.metrics_address)


def main(argv: Sequence[str]) -> int:
  """Makes what the arguments ask for; returns the exit status."""
  parser = argparse.ArgumentParser(
    'python -m quap_tff.flower', description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  commands = parser.add_subparsers(dest='command', required=True)
  operator = commands.add_parser('operator', help="makes the folder of a run's operator")
  operator.add_argument('folder', metavar='FOLDER', help='new folder')
  enrol = commands.add_parser('enrol', help='makes the folder of a node')
  enrol.add_argument('folder', metavar='NODE', help='new folder')
  enrol.add_argument('--clients', required=True, help='ids of its clients, such as 0-24,30')
  node = commands.add_parser('node', help='runs a node until it is stopped')
  node.add_argument('folder', metavar='NODE', help='its folder, from enrol')
  node.add_argument('--superlink', required=True, help='address of the SuperLink, HOST:PORT')
  node.add_argument('--root-certificates', required=True, help='certificate of who signed that of the SuperLink (PEM)')
  node.add_argument('--operator', required=True, help="file with the operator's public key (PEM)")
  node.add_argument('--bundle', required=True, help='folder of the bundle')
  source = node.add_mutually_exclusive_group(required=True)
  source.add_argument('--data', help='data of its clients: an .npz file, or module:function')
  source.add_argument(
    '--train', help='for a bundle that takes updates: module:function, from (weights, client, round_num) to new weights'
  )
  node.add_argument(
    '--train-seconds', type=float, help='how long the training of one client may take in a round (default: 60)'
  )
  node.add_argument(
    '--enrolment', default='', help='folder with the enrolment.json of all nodes, where clients hold the noise'
  )
  node.add_argument('--name', default='', help="the node's name in its log (default: that of its folder)")
  server = commands.add_parser('server', help='plays a run, whenever it is started, until it is stopped')
  server.add_argument('folder', metavar='APP', help='its folder, from app')
  server.add_argument('--superlink', required=True, help='address of the SuperLink, HOST:PORT')
  server.add_argument('--root-certificates', required=True, help='certificate of who signed that of the SuperLink')
  server.add_argument('--secret', required=True, help='file that the SuperLink has as --superexec-auth-secret-file')
  server.add_argument(
    '--evaluate', default='', help='module:function, from weights to the accuracy on public test data, in [0, 1]'
  )
  for program in (node, server):
    program.add_argument(
      '--log-format', '--log_format', choices=logs.LOG_FORMATS, default='text', help='one event a line (default: text)'
    )
    program.add_argument(
      '--metrics-port', '--metrics_port', type=int, help='answers Prometheus at this port (default: no metrics)'
    )
    program.add_argument(
      '--metrics-address', '--metrics_address', default='', help='where it does so (default: this machine alone)'
    )
  app = commands.add_parser('app', help='makes the folder that `flwr run` takes')
  app.add_argument('folder', metavar='APP', help='new folder')
  for name, what in (
    ('bundle', 'folder of the bundle'),
    ('enrolment', 'folder with the enrolment.json of each node'),
    ('operator', 'folder of the operator'),
    ('output', 'folder of the run'),
  ):
    app.add_argument(f'--{name}', required=True, type=os.path.abspath, help=f"{what}, on the server's machine")
  arguments = parser.parse_args(argv)
  try:
    if arguments.command == 'operator':
      operators.new_operator(arguments.folder)
      print(
        f'{arguments.folder} holds the key of the operator. Give each node {arguments.folder}/{operators.PUBLIC_KEY}.'
      )
      return 0
    if arguments.command == 'enrol':
      enrolment.new_node(arguments.folder, arguments.clients)
      print(f'{arguments.folder} holds the keys of the node. Give the server {arguments.folder}/{enrolment.CARD}.')
      return 0
    if arguments.command == 'node':
      name = arguments.name or os.path.basename(os.path.abspath(arguments.folder))
      run_node = node_program.main  # It imports Flower, whose log is replaced.
      _begin_log(arguments, logs.NODE, name)
      given = {name: getattr(arguments, name) for name in _OF_NODE}
      node_config = {name: value for name, value in given.items() if value is not None}
      node_config['clients'] = enrolment.clients_text(arguments.folder)
      run_node(
        node_config,
        [
          f'--superlink={arguments.superlink}',
          f'--root-certificates={arguments.root_certificates}',
          f'--auth-supernode-private-key={os.path.join(arguments.folder, enrolment.NODE_KEY)}',
        ],
        [f'--log-format={arguments.log_format}', f'--name={name}'],
      )
      return 0
    if arguments.command == 'server':
      run_server = server_program.main
      _begin_log(arguments, logs.SERVER)
      run_server(
        arguments.folder, arguments.superlink, arguments.root_certificates, arguments.secret, arguments.evaluate
      )
      return 0
    if os.path.lexists(arguments.folder):
      raise ValueError(f'{arguments.folder} already exists: give a new folder.')
    # A string of JSON is also one of TOML.
    config = '\n'.join(f'{name} = {json.dumps(getattr(arguments, name))}' for name in _OF_APP)
    with files.new_folder(arguments.folder) as unfinished:
      files.write(os.path.join(unfinished, 'pyproject.toml'), _APP.format(version=version.VERSION, config=config))
    print(f'{arguments.folder} is ready: flwr run {arguments.folder} SUPERLINK --stream')
    return 0
  except (ValueError, OSError, ImportError) as error:
    print(f'Error: {" ".join(str(error).split())}', file=sys.stderr)
  return 2


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
