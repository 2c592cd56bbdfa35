"""The files that only a run of experiments.train has, compared with those that every certified run has.

The flags in run.json must give the mechanism, the schedule and the statements of the issuer; metrics.csv and
summary.json must say what the ledger says. This module does not import TensorFlow, since verification runs no model.
The folder may come from anybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
import datetime
import json
import math
from typing import Any, Optional, TYPE_CHECKING

import numpy as np

from experiments.command import run as run_lib
from experiments.command import run_choices as run_parts
from experiments.folders import folder as run_folder
from experiments.running import final_summary
from quap_tff import accounting
from quap_tff import plans
from quap_tff.certificates import certificate as certificates
from quap_tff.certificates.folders import about as abouts
from quap_tff.certificates.folders import evidence
from quap_tff.certificates.folders import folder as folders
from quap_tff.certificates.folders import folder_files
from quap_tff.certificates.folders import shapes
from quap_tff.certificates.folders import train_runs
from quap_tff.certificates.folders.folder_files import FolderError
from quap_tff.mechanisms.parts import participation as participations
from quap_tff.plans.accounts import run_account

if TYPE_CHECKING:
  from experiments.running import setup  # It loads TensorFlow.

# Tolerances between float32 figures of TensorFlow and of NumPy. A standard deviation of equal rates is nearly 0.
_RELATIVE, _ABSOLUTE = 1e-5, 1e-6


def about(
  run: run_lib.Run,
  plan: plans.Plan,
  resolved: Mapping[str, Any],
  *,
  tests: int,
  test_accuracy: Optional[float],
  date: datetime.date,
  stretches: Iterable[Mapping[str, Any]] = (),
) -> abouts.About:
  """The statements of a run's certificate beyond its mechanism, its schedule and its ledger.

  Args:
    run: Its configuration.
    plan: Its plan.
    resolved: The facts that follow from the data, see `setup.Experiment.resolved`.
    tests: How often loss and accuracy on the test set were released.
    test_accuracy: The accuracy of the released model.
    date: The day on which the run's last process began.
    stretches: Which code ran which rounds.

  Raises:
    ValueError: If a text is not one that a certificate can repeat.
  """
  return abouts.About(
    dataset=run.identity()['dataset'],
    cohorts=run.cohorts.participation.provenance,
    tuning=run.flags['tuning'],
    test_set=resolved['test_set'],
    tests=tests,
    test_accuracy=test_accuracy,
    public_data=resolved['public_data'],
    post_processing=run.post_processing(plan),
    algorithm=run.flags['algorithm'],
    model=resolved['model'],
    features=run.identity()['features'],
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
  ledger = plan.planned_ledger(plan.expected or experiment.schedule)
  try:
    stated = about(run, plan, experiment.resolved, tests=0, test_accuracy=None, date=datetime.date.today())
    reasons = certificates.refusals(plan, ledger, stated)
  except ValueError as error:
    reasons = [str(error)]
  if reasons:
    raise ValueError(
      f'No certificate could be issued for this run, so it was not begun. {" ".join(reasons)} Change these flags, or '
      'mark the run as a rehearsal: --algorithm=certified:certificate=false.'
    )


def check(content: folders.Content) -> list[str]:
  """The problems of what only a run of experiments.train has, a sentence each; none for a folder of library code.

  Raises:
    FolderError: If a file is missing or damaged.
  """
  if content.made_by != folders.TRAIN:
    return []
  files = train_runs.read(content.path, content.plan, content.ledger)
  plan, run = _plan(content, files.run)
  return _mechanism_problems(content, files, plan, run) or (
    _metrics_problems(content, files.rows) + _summary_problems(content, files, plan, run)
  )


def _plan(content: folders.Content, run_json: dict[str, Any]) -> tuple[plans.Plan, run_lib.Run]:
  """The run's plan, and its configuration, from run.json."""
  with folder_files.damage(run_folder.RUN, 'is damaged, or its flags contradict each other'):
    resolved, identity = run_json['resolved'], run_json['identity']
    # Before a schedule is drawn that fills the memory.
    for name, value, kept in (
      ('rounds', identity['rounds'], content.plan.guarantee.config.num_rounds),
      ('num_clients', resolved['num_clients'], content.plan.num_clients),
    ):
      if type(value) is not int or value != kept:
        raise ValueError(f'{name} is {value!r}, and {folders.MECHANISM} says {kept}')
    if set(run_json['flags']) != set(run_parts.FLAGS):
      raise ValueError('flags must be the flags of experiments.train')
    # The other flags in run.json say nothing about what was computed.
    run = run_lib.Run.from_json({'flags': {}, 'identity': identity})
    if not run.method.gives_certificate:
      raise FolderError(f'{run_folder.RUN}: a run of --algorithm={run.flags["algorithm"]} has no certificate.')
    if run_folder.through_json(run.identity()) != identity:
      raise ValueError('identity must hold the flags that say what is computed, and no others')
    run = run.with_cohorts(run.cohorts.participation.known(content.plan.schedule))
    run = run.with_spent(content.plan.guarantee.config.spent_before)
    return run.plan(resolved['num_clients'], shapes.model_shape(resolved), resolved['test_is_of_clients']), run


def _mechanism_problems(
  content: folders.Content, files: train_runs.RunFiles, plan: plans.Plan, run: run_lib.Run
) -> list[str]:
  """The differences of mechanism.json and schedule.npz from those that the flags give."""
  with folder_files.damage(f'{run_folder.RUN} or {run_folder.SUMMARY}'):
    expected = about(
      run,
      plan,
      files.run['resolved'],
      tests=sum(bool(row.get('test_accuracy')) for row in files.rows),
      test_accuracy=files.summary['test_accuracy'],
      date=datetime.date.fromisoformat(files.summary['date']),
      stretches=train_runs.stated_stretches(files.run, content.ledger.num_rounds),
    )
  kept = folder_files.read_json(content.path, folders.MECHANISM)
  by_flags = json.loads(folders.mechanism_text(plan, content.leaving, expected, content.made_by, content.code))
  problems = [f'{folders.MECHANISM}, by the flags: {one}' for one in certificates.differences(kept, by_flags)]
  if not (_are_same(content.plan.schedule, plan.schedule) and _are_same(content.plan.attendance, plan.attendance)):
    problems.append(f'{folders.SCHEDULE} is not the schedule that the flags give.')
  came = [one.cohort for one in content.ledger.history]
  if not plan.schedule and not _are_same(came, _cohorts(run, plan.num_clients, len(came))):
    problems.append(f'{folders.LEDGER} has other clients than the flags give.')
  return problems


def _cohorts(run: run_lib.Run, num_clients: int, rounds: int) -> list[np.ndarray]:
  participation = run.participation(num_clients)
  return [participation.cohort(round_num) for round_num in range(1, rounds + 1)]


def _are_same(one: Optional[Sequence[Any]], other: Optional[Sequence[Any]]) -> bool:
  if one is None or other is None:
    return one is other
  return len(one) == len(other) and all(map(np.array_equal, map(np.sort, one), map(np.sort, other)))


def _metrics_problems(content: folders.Content, rows: Iterable[Mapping[str, str]]) -> list[str]:
  """The figures of metrics.csv that differ from the ledger's."""
  problems = []
  for row, expected in zip(rows, _expected_rows(content.plan, content.ledger)):
    for column, value in expected.items():
      if column in row and not math.isclose(_number(row[column]), value, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE):
        problems.append(
          f'{run_folder.METRICS}: {column} of round {row["round"]} is {row[column]}, but the ledger gives {value:g}.'
        )
  return problems


def _number(cell: str) -> float:
  return float(cell or math.nan)


def _expected_rows(plan: run_account.RunAccount, ledger: accounting.RunLedger) -> Iterator[dict[str, float]]:
  """The rows that metrics.csv must have, computed from the ledger."""
  config, state = plan.guarantee.config, ledger.state_dict()
  participation = participations.initial_state(config.participation, config.num_clients)
  for number, one in enumerate(evidence.rounds(plan, ledger), 1):
    weights, clip = one.weights, state['clipping_norms'][number - 1]
    participation = participations.next_state(config.participation, participation, one.clients, number)
    multiplier = state['noise_multipliers'][number - 1] if (weights > 0).any() else 0.0
    row = {
      'cohort_size': len(one.clients),
      'clipping_norm': clip,
      'noise_multiplier': multiplier,
      'sigma': multiplier * clip / config.divisor,
      'exhausted_clients': int((weights == 0).sum()),
      'weight_mean': weights.mean() if len(weights) else 0.0,
      'weight_min': weights.min() if len(weights) else 0.0,
      'spent_max': one.spent_max,
    }
    statistics = participations.statistics(config.participation, participation, number)
    yield {**row, **{f'participation_{key}': float(value) for key, value in statistics.items()}}


def _summary_problems(
  content: folders.Content, files: train_runs.RunFiles, plan: plans.Plan, run: run_lib.Run
) -> list[str]:
  """The differences of summary.json from the one that the other files give."""
  name = run_folder.SUMMARY
  with folder_files.damage(f'{name} or {run_folder.METRICS}'):
    expected = final_summary.make(
      run,
      plan.num_clients,
      # The noise of this plan may differ from the folder's in its last bits, and then so does its fingerprint.
      plan.report_of(content.ledger, plan.schedule),
      rounds=content.ledger.num_rounds,
      test={key: _number(files.rows[-1][f'test_{key}']) for key in ('accuracy', 'loss')},
      # The shapes of the tensors have been compared already.
      weights=evidence.in_model(content.path, run_folder.MODEL, lambda tensors: [tensor[()] for tensor in tensors]),
      date=datetime.date.fromisoformat(files.summary['date']),
      share_of_ceiling=plan.share_of_ceiling,
    )
  return [f'{name}: {one}' for one in certificates.differences(files.summary, expected)]
