r"""Exports a run, so that it can be played where TensorFlow runs, without TFF.

    python -m experiments.export --flagfile=experiments/presets/digits_certified.flags --output=bundle
    python -m experiments.export --flagfile=… --output=bundle --clients=clients.npz
    python -m experiments.export --weights=weights.npz --algorithm=certified --num_clients=100 --output=bundle

All other flags are those of experiments.train. Nothing is trained. The bundle holds the round as graphs, who takes part
in which round, and the plan that keeps the account; quap_tff.Bundle plays it. It holds no data of clients. For a
simulation on another machine, --clients writes them to a file of their own:

    python -m quap_tff.bundle run bundle --clients=clients.npz --output=run

With --weights, the bundle trains nothing: clients bring updates that a program of your own computes, of any framework.
The file has the first weights, float32 arrays in order. Data are read only for --clients.

A method that waits for clients in mid-round cannot be exported. Neither can one that sends each client something else.
The error says so. Exit status: 0; 1 for a wrong flag or a failure.
"""

from collections.abc import Collection, Mapping
import dataclasses
import datetime
import os
import sys
from typing import Optional, TYPE_CHECKING
import zipfile

from absl import flags
import numpy as np

from experiments.command import command_line
from experiments.command import flags as experiment_flags
from experiments.command import run as run_lib
from experiments.command import run_choices
from quap_tff import plans
from quap_tff.bundle import bundle_files
from quap_tff.certificates.folders import about as abouts
from quap_tff.common import files
from quap_tff.common import json_types
from quap_tff.common import lazy

if TYPE_CHECKING:
  from data import Federation
  from data.cohorts import ParticipationModel

# These load TensorFlow, so they wait until the flags are found right.
certifying = lazy.module('experiments.running.certifying')
exporting = lazy.module('quap_tff.exporting.export')
given_weights = lazy.module('quap_tff.training.given_weights')
runtime = lazy.module('quap_tff.runtime')
setup = lazy.module('experiments.running.setup')

_FLAGS = command_line.new_flags()
_OUTPUT = flags.DEFINE_string('output', None, 'Folder of the bundle, which must not exist.', flag_values=_FLAGS)
_CLIENTS = flags.DEFINE_string(
  'clients', None, "File for the clients' data and the test set (.npz), for a simulation.", flag_values=_FLAGS
)

_WEIGHTS = flags.DEFINE_string(
  'weights',
  None,
  'File with the first weights of a model (.npz) that a program of your own trains: clients bring their updates.',
  flag_values=_FLAGS,
)
_UNSTATED, _OF_OWN = 'not stated', 'a model of its own'

# Nothing is trained here, so the public rule has nothing to choose. Flags that are given stay as they are.
_OF_OWN_PROGRAM = ('--features=none', '--model=logistic_regression')


def main(argv: list[str]) -> int:
  """Exports the run that the flags in `argv[1:]` describe; returns the exit status."""
  rest = command_line.parse(_FLAGS, argv, __doc__, known_only=True)
  if _WEIGHTS.value is not None:
    rest = [*_OF_OWN_PROGRAM, *rest]
  run = experiment_flags.checked_run(experiment_flags.read_flags([argv[0], *rest]))
  output, clients = _OUTPUT.value, _CLIENTS.value
  if output is None or os.path.lexists(output):
    raise ValueError(f'--output must be a new folder, found {output}.')
  if run.publication.output_dir is not None:
    raise ValueError('--output_dir: nothing is trained here. Leave it out; --output names the folder of the bundle.')
  federation: Optional[Federation]
  if _WEIGHTS.value is None:
    federation = _export_training(run, output)
  else:
    _check_trains_nothing(experiment_flags.names_in(argv))
    federation = _export_updates(run, output, read_weights(_WEIGHTS.value), reads_data=clients is not None)
  print(f'{output} holds the run. quap_tff.Bundle({output!r}) plays it.', file=sys.stderr)
  if clients is not None and federation is not None:
    content = files.npz(examples_of(federation))
    with files.replacing(clients) as unfinished, files.new_private(unfinished) as f:
      f.write(content)
    print(f'{clients} holds the data of the clients: keep it where they may be kept.', file=sys.stderr)
  return 0


def _export_training(run: run_lib.Run, output: str) -> 'Federation':
  """Exports a run whose clients train in the bundle; returns its federation."""
  experiment = setup.from_run(run)
  certifying.check_before(experiment)
  with runtime.activate(experiment.runtime):
    built = experiment.build_process()
    rounds = rounds_of(experiment.run, experiment.cohorts)
    exporting.export(built, output, rounds=rounds, about=_about(experiment.run, experiment.plan, experiment.resolved))
  return experiment.federation


def _export_updates(
  run: run_lib.Run, output: str, weights: Mapping[str, np.ndarray], reads_data: bool
) -> Optional['Federation']:
  """Exports a run whose clients bring their updates; returns its federation, None unless the data are asked for."""
  runtime.prepare(run.runtime.config)
  federation, num_clients = None, run.data.num_clients
  stated = {'dataset': _UNSTATED, 'test_set': _UNSTATED, 'public_data': '', 'model': _OF_OWN, 'features': 'none'}
  if reads_data:
    federation = setup.federation_of(run)
    num_clients = federation.num_clients
    run = run.with_cohorts(run.cohorts.participation.for_clients(federation.client_ids))
    stated.update(test_set=federation.test_set, public_data=federation.public_data)
    stated.update({name: run.identity()[name] for name in ('dataset', 'features')})
  elif num_clients is None:
    num_clients = run.data.dataset.default_num_clients
  if num_clients is None:
    raise ValueError('--num_clients: with --weights no data are read, so give the number of clients.')
  plan, cohorts = run.plan(num_clients, given_weights.shape_of(weights)), run.participation(num_clients)
  about = None
  if run.method.gives_certificate:
    schedule = [cohorts.cohort(round_num) for round_num in range(1, run.schedule.rounds + 1)]
    about = _about(run, plan, stated)
    certifying.check_statements(plan, schedule, lambda: about)
  with runtime.activate(run.runtime.config):
    built = plan.build_update_process(weights, run.method.server_optimizer.build())
    exporting.export(built, output, rounds=rounds_of(run, cohorts), about=about)
  return federation


def _check_trains_nothing(given: Collection[str]) -> None:
  """Raises `ValueError` for a flag of local training on the command line. Those of a preset have no effect."""
  of_training = {field.name for field in dataclasses.fields(run_choices.LocalTraining)}
  for name in given:
    if name in of_training:
      raise ValueError(
        f'--{name}: with --weights, clients train by a program of your own, which decides this. Leave it out.'
      )


def read_weights(path: str) -> dict[str, np.ndarray]:
  """The arrays of an .npz file by name, in its order; raises `ValueError` for another file."""
  try:
    with np.load(path, allow_pickle=False) as kept:
      return dict(kept)
  except (OSError, ValueError, TypeError, zipfile.BadZipFile) as error:
    raise ValueError(
      f'--weights: {path} must be an .npz file of float32 arrays ({error}). numpy.savez writes one.'
    ) from None


def rounds_of(run: run_lib.Run, cohorts: 'ParticipationModel') -> bundle_files.PlannedRounds:
  """The rounds that a simulation plays. Cohorts that are secret are not written."""
  rounds = range(1, run.schedule.rounds + 1)
  if cohorts.secret:
    rounds = range(0)
  return bundle_files.PlannedRounds(
    [cohorts.cohort(round_num) for round_num in rounds],
    [np.asarray(cohorts.absent(round_num)) for round_num in rounds],
    run.publication.shrinkage,
  )


def _about(run: run_lib.Run, plan: plans.Plan, resolved: json_types.JsonView) -> Optional[abouts.About]:
  """The issuer's statements, if the run may get a certificate. Tests, accuracy and date are a simulation's."""
  if not run.method.gives_certificate:
    return None
  return certifying.about(run, plan, resolved, tests=0, test_accuracy=None, date=datetime.date.today())


def examples_of(federation: 'Federation') -> dict[str, np.ndarray]:
  """All examples as the dataset `npz` has them, ready to be trained on."""
  clients = range(len(federation.clients))
  parts = [federation.clients[client] for client in clients]
  return {
    'x': np.concatenate([part.x for part in parts]),
    'y': np.concatenate([part.y for part in parts]),
    'client': np.repeat(np.arange(len(parts)), list(map(len, parts))),
    'x_test': federation.test.x,
    'y_test': federation.test.y,
  }


if __name__ == '__main__':
  command_line.run(main)
