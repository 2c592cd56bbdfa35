"""The program of a run's operator: works for a SuperLink as its ServerApp.

By itself, a SuperLink starts each ServerApp as its own user, by the app that somebody has sent. Anyone who reaches
its Control API can then read the operator's key. This program runs as another user than the SuperLink
(`--isolation=process`), by the ServerApp that is installed on this machine and no other. Its settings are in the
operator's own folder of the app: a person who starts a run chooses only how long it waits, and for how many.
"""

from __future__ import annotations

from collections.abc import Mapping
import importlib
import logging
import pathlib
import queue
from typing import Any

from flwr.app import Context
from flwr.common.config import get_fused_config_from_dir
from flwr.server.run_serverapp import run as run_app
from flwr.serverapp import Grid
from flwr.supercore.constant import TaskType
from flwr.supercore.exit import add_exit_handler
from flwr.supercore.logger import mirror_output_to_queue
from flwr.supercore.superexec.executor import ExecutionSpec
from flwr.supercore.tls import validate_and_resolve_root_certificates

from quap_tff.flower import forks
from quap_tff.flower import operators
from quap_tff.flower import own_program
from quap_tff.flower import server_app

# Its package has a function of this name.
run_serverapp: Any = importlib.import_module('flwr.superlink.runtime.run_serverapp')
_LOG = logging.getLogger('flwr')
_EVALUATE_SECONDS = 600.0
ENDED = 'The server has ended. When it is started again, flwr run goes on.'
# What `flwr run --run-config` may change.
OF_ANYBODY = ('seconds', 'quorum')


def main(folder: str, superlink: str, root_certificates: str, secret_file: str, evaluate: str = '') -> None:
  """Plays the run of a folder whenever it is started at the SuperLink, until this program is stopped.

  Args:
    folder: From `python -m quap_tff.flower app`.
    superlink: Address of the SuperLink, HOST:PORT.
    root_certificates: Certificate of who signed that of the SuperLink (PEM).
    secret_file: The file that was given to `flower-superlink --superexec-auth-secret-file`.
    evaluate: `module:function`, a function from weights to their accuracy on public test data; '' for none.

  Raises:
    ValueError: If the folder is not a bundle or has no key, or if the function cannot be imported.
    OSError: If a file cannot be read.
  """
  operators.private_key(str(config_of(folder)['operator']))
  with open(secret_file, 'rb') as f:
    secret = f.read()
  if evaluate:
    server_app.evaluate_by(own_program.OwnFunction(evaluate, _EVALUATE_SECONDS))
  _replace_loading(folder)
  # It is said last: handlers that were added later are called before.
  add_exit_handler(lambda: _LOG.info(ENDED), run_before_force_exit=True)
  forks.work_for(superlink, forks.Forks(TaskType.SERVER_APP, _work), secret, root_certificates)


def _replace_loading(folder: str) -> None:
  """Has Flower run the ServerApp of this installation, with the configuration of `folder`, and install nothing."""

  def install(*_: Any, **__: Any) -> None:
    pass

  def project_config(_: Any) -> Mapping[str, Any]:
    return {'tool': {'flwr': {'app': {'components': {'serverapp': ''}}}}}

  def fused_config(_: Any, told: Mapping[str, Any]) -> Mapping[str, Any]:
    return config_of(folder, told)

  def run(grid: Grid, context: Context, **_: Any) -> Context:
    return run_app(grid, context, '', loaded_server_app=server_app.app)

  run_serverapp.install_from_fab = install
  run_serverapp.get_project_config = project_config
  run_serverapp.get_fused_config_from_dir = fused_config
  run_serverapp.run_ = run


def config_of(folder: str, told: Mapping[str, Any] = {}) -> Mapping[str, Any]:
  """The configuration in a folder, with what whoever starts the run may change. The rest of `told` is left out."""
  try:
    return get_fused_config_from_dir(pathlib.Path(folder), {name: told[name] for name in OF_ANYBODY if name in told})
  except (OSError, LookupError, ValueError) as error:
    raise ValueError(
      f'{folder} is not the folder of an app ({error}). Make it by python -m quap_tff.flower app {folder} …'
    ) from None


def _work(spec: ExecutionSpec) -> None:
  """Does a task in the way of Flower's own program of a ServerApp."""
  said: queue.Queue[Any] = queue.Queue()
  mirror_output_to_queue(said)
  run_serverapp.run_serverapp(
    spec.runtime_api_address,
    said,
    spec.token,
    spec.insecure,
    validate_and_resolve_root_certificates(spec.root_certificates_path, spec.insecure),
    parent_pid=spec.parent_pid,
    runtime_dependency_install=False,
  )
