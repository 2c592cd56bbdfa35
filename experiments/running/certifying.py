"""Statements of a certified run in its certificate, and whether it could get one. TensorFlow is not loaded here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
import datetime
from typing import Optional, TYPE_CHECKING

import numpy as np

from experiments.command import run as run_lib
from experiments.folders import folder as run_folder
from quap_tff import plans
from quap_tff.certificates import certificate as certificates
from quap_tff.certificates.folders import about as abouts
from quap_tff.common import json_types

if TYPE_CHECKING:
  from experiments.running import setup  # It loads TensorFlow.

_OF_SECRET_COINS = 'The rates of the coins follow from a public seed, and the coins from the entropy of this machine.'


def about(
  run: run_lib.Run,
  plan: plans.Plan,
  resolved: json_types.JsonView,
  *,
  tests: int,
  test_accuracy: Optional[float],
  date: datetime.date,
  stretches: Iterable[run_folder.StatedStretch] = (),
) -> abouts.About:
  """The statements of a run's certificate beyond its mechanism, its schedule and its ledger.

  Args:
    run: Its configuration.
    plan: Its plan.
    resolved: The facts that follow from the data, see `setup.Experiment.resolved`. It may have other names of dataset
      and features than the flags.
    tests: How often loss and accuracy on the test set were released.
    test_accuracy: The accuracy of the released model.
    date: The day on which the run's last process began.
    stretches: Which code ran which rounds.

  Raises:
    ValueError: If a text is not one that a certificate can repeat.
  """
  cohorts = _OF_SECRET_COINS if run.cohorts.are_secret else run.cohorts.participation.provenance
  return abouts.About(
    dataset=resolved.get('dataset', run.identity()['dataset']),
    cohorts=cohorts,
    tuning=run.flags['tuning'],
    test_set=resolved['test_set'],
    tests=tests,
    test_accuracy=test_accuracy,
    public_data=resolved['public_data'],
    post_processing=run.post_processing(plan),
    algorithm=run.flags['algorithm'],
    model=resolved['model'],
    features=resolved.get('features', run.identity()['features']),
    data_commitment=resolved.get('data_commitment') or '',
    date=date.isoformat(),
    stretches=tuple(stretches),
  )


def check_before(experiment: setup.Experiment) -> None:
  """Asks before the first round whether the run could get a certificate: nobody should train in vain.

  The planned rounds are taken for those that were run. A problem that this finds would also come up after training.

  Args:
    experiment: The run. One of a method that gives no certificate is not looked at.

  Raises:
    ValueError: With every reason why the run could get no certificate, if there is one.
  """
  run, plan = experiment.run, experiment.plan
  if not run.method.gives_certificate:
    return

  def stated() -> abouts.About:
    return about(run, plan, experiment.resolved, tests=0, test_accuracy=None, date=datetime.date.today())

  check_statements(plan, experiment.schedule, stated)


def check_statements(plan: plans.Plan, schedule: Sequence[np.ndarray], stated: Callable[[], abouts.About]) -> None:
  """The same, for a run of a plan with these statements.

  Args:
    plan: The plan.
    schedule: int64[M_t], the cohort of each planned round, where the plan itself has none.
    stated: Makes the statements.

  Raises:
    ValueError: With every reason why the run could get no certificate, if there is one.
  """
  ledger = plan.planned_ledger(plan.expected or schedule)
  try:
    reasons = certificates.refusals(plan, ledger, stated())
  except ValueError as error:
    reasons = [str(error)]
  if reasons:
    raise ValueError(
      f'No certificate could be issued for this run, so it was not begun. {" ".join(reasons)} Change these flags, or '
      'mark the run as a rehearsal: --algorithm=certified:certificate=false.'
    )
