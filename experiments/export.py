r"""Exports a run, so that it can be played where TensorFlow runs, without TFF.

    python -m experiments.export --flagfile=experiments/presets/digits_certified.flags --output=bundle
    python -m experiments.export --flagfile=… --output=bundle --clients=clients.npz

All other flags are those of experiments.train. Nothing is trained. The bundle holds the round as graphs, who takes part
in which round, and the plan that keeps the account; quap_tff.Bundle plays it. It holds no data of clients. For a
simulation on another machine, --clients writes them to a file of their own:

    python -m quap_tff.bundle run bundle --clients=clients.npz --output=run

A method that waits for clients in mid-round cannot be exported. Neither can one that sends each client something else.
The error says so. Exit status: 0; 1 for a wrong flag or a failure.
"""

import datetime
import os
import sys
from typing import Optional, TYPE_CHECKING

from absl import flags
import numpy as np

from experiments.command import command_line
from experiments.command import flags as experiment_flags
from quap_tff.bundle import bundle_files
from quap_tff.certificates.folders import about as abouts
from quap_tff.common import files
from quap_tff.common import lazy

if TYPE_CHECKING:
  from data import Federation
  from experiments.running.setup import Experiment

# These load TensorFlow, so they wait until the flags are found right.
certifying = lazy.module('experiments.running.certifying')
exporting = lazy.module('quap_tff.exporting.export')
runtime = lazy.module('quap_tff.runtime')
setup = lazy.module('experiments.running.setup')

_FLAGS = command_line.new_flags()
_OUTPUT = flags.DEFINE_string('output', None, 'Folder of the bundle, which must not exist.', flag_values=_FLAGS)
_CLIENTS = flags.DEFINE_string(
  'clients', None, "File for the clients' data and the test set (.npz), for a simulation.", flag_values=_FLAGS
)


def main(argv: list[str]) -> int:
  """Exports the run that the flags in `argv[1:]` describe; returns the exit status."""
  rest = command_line.parse(_FLAGS, argv, __doc__, known_only=True)
  run = experiment_flags.checked_run(experiment_flags.read_flags([argv[0], *rest]))
  output, clients = _OUTPUT.value, _CLIENTS.value
  if output is None or os.path.lexists(output):
    raise ValueError(f'--output must be a new folder, found {output}.')
  if run.publication.output_dir is not None:
    raise ValueError('--output_dir: nothing is trained here. Leave it out; --output names the folder of the bundle.')
  experiment = setup.from_run(run)
  certifying.check_before(experiment)
  with runtime.activate(experiment.runtime):
    built = experiment.build_process()
    exporting.export(built, output, rounds=rounds_of(experiment), about=_about(experiment))
  print(f'{output} holds the run. quap_tff.Bundle({output!r}) plays it.', file=sys.stderr)
  if clients is not None:
    content = files.npz(examples_of(experiment.federation))
    with files.replacing(clients) as unfinished, files.new_private(unfinished) as f:
      f.write(content)
    print(f'{clients} holds the data of the clients: keep it where they may be kept.', file=sys.stderr)
  return 0


def rounds_of(experiment: 'Experiment') -> bundle_files.PlannedRounds:
  """The rounds that a simulation plays. Cohorts that are secret are not written."""
  rounds = range(1, experiment.run.schedule.rounds + 1)
  if experiment.cohorts.secret:
    rounds = range(0)
  return bundle_files.PlannedRounds(
    [experiment.cohorts.cohort(round_num) for round_num in rounds],
    [np.asarray(experiment.cohorts.absent(round_num)) for round_num in rounds],
    experiment.run.publication.shrinkage,
  )


def _about(experiment: 'Experiment') -> Optional[abouts.About]:
  """The issuer's statements, if the run may get a certificate. Tests, accuracy and date are a simulation's."""
  if not experiment.run.method.gives_certificate:
    return None
  return certifying.about(
    experiment.run, experiment.plan, experiment.resolved, tests=0, test_accuracy=None, date=datetime.date.today()
  )


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
