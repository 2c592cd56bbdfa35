"""The evidence for a run's certificate: its plan is made again from the flags, and the files are compared with it.

This module does not import TensorFlow, since verification runs no model. The folder may come from anybody.
"""

from collections.abc import Iterator, Mapping
import dataclasses
import datetime
import os
from typing import Any, Optional

import numpy as np

from experiments import final_summary
from experiments import provenance as provenance_lib
from experiments import run as run_lib
from experiments import run_folder
from experiments import run_parts
from experiments.auditing import record
from quap_tff import accounting
from quap_tff import plans
from quap_tff.accounting import certificate as certificates
from quap_tff.accounting import certificate_evidence as files
from quap_tff.accounting import certificate_folder
from quap_tff.accounting import folder_files
from quap_tff.accounting.certificate_evidence import Evidence
from quap_tff.accounting.folder_files import CannotTellError
from quap_tff.accounting.folder_files import FolderError
from quap_tff.mechanisms import layers as layers_lib
from quap_tff.mechanisms import participation as participations
from quap_tff.mechanisms import planning

_NEEDED = (run_folder.RUN, run_folder.LEDGER, run_folder.MODEL, run_folder.SUMMARY, run_folder.CLIENTS)
# Columns of metrics.csv that follow from the public test set or from message sizes. The plan names the other columns.
_OF_LOOP = frozenset({'round', 'test_accuracy', 'test_loss', 'down_bytes_per_client', 'up_bytes_per_client'})
_SHARE = 'share_of_ceiling'
# Places of summary.json that earlier versions had in other words or not at all.
_EARLIER_SUMMARY = {
  3: ('trust', 'malicious', 'diverged', 'output_dir', 'formal.notes', 'formal.reading'),
  4: ('trust', 'formal.notes'),
}


def read(path: str, version: int = certificates.VERSION) -> Evidence:
  """Reads a run's folder.

  Args:
    path: The folder.
    version: The version of the certificate that the evidence is for.

  Raises:
    FolderError: If a file is missing or damaged. The message names the first one.
    CannotTellError: If there is no such folder, or it holds a run that is too large to be verified here.
  """
  found = folder_files.entries(path, without=run_folder.CHECKPOINTS)
  problems = files.entry_problems(path, found)
  for name in _NEEDED:
    folder_files.check_regular(path, name)
  run_json = folder_files.read_json(path, run_folder.RUN)
  plan, run = _plan(run_json)
  resolved = run_json['resolved']
  ledger = files.read_ledger(path, resolved['num_clients'])
  ledger_problems = plan.ledger_problems(ledger)
  problems += ledger_problems
  rows = folder_files.read_rows(path, run_folder.METRICS) if ledger.num_rounds else []
  if not ledger_problems:
    # Up to version 3, the figures of a run that had ended early were those of the rounds that ran.
    report = plan.report(ledger, plan.schedule if version > 3 else None)
    problems += _metrics_problems(plan, ledger, rows)
    problems += files.clients_problems(path, ledger, report.formal)
    problems += _summary_problems(path, run, resolved['num_clients'], plan, report, ledger, rows, version)
  problems += files.model_problems(path, run_folder.MODEL, plan.model.sizes, run_folder.RUN)
  summary = folder_files.read_json(path, run_folder.SUMMARY)
  if not isinstance(summary, dict):
    raise FolderError(f'{run_folder.SUMMARY} is damaged: it is not a JSON object.')
  tests = sum(bool(row.get('test_accuracy')) for row in rows)
  facts = _facts(plan, run, resolved['test_set'], resolved['public_data'], tests)
  provenance = {
    'code': provenance_lib.code(),
    'run': {
      'dataset': run.flags['dataset'],
      'features': run.flags['features'],
      'model': resolved['model'],
      'test_accuracy': summary.get('test_accuracy'),
      'date': summary.get('date'),
    },
    'config_sha256': certificates.digest(run_json['identity']),
    'data_commitment': resolved['data_commitment'],
    **files.provenance_of(plan, path, found.files, certificate_folder.OWN),
  }
  if version > 3:
    provenance['stretches'] = _stretches(run_json, ledger.num_rounds)
  elif 'stretches' in run_json:
    name = certificate_folder.CERTIFICATE
    problems.append(f'{run_folder.RUN} is of a later version than {name}, which has version {version}.')
  return Evidence(ledger, facts, provenance, problems, _warnings(path, found.files, version))


def read_audit(path: str, certificate: Mapping[str, Any]) -> Optional[certificate_folder.Audit]:
  """The audit in a folder, or None if there is none. Raises `FolderError` if its file cannot be read."""
  if not os.path.lexists(os.path.join(path, record.AUDIT)):
    return None
  found = folder_files.read_json(path, record.AUDIT)
  problems = record.problems(found, certificate)
  if problems:
    return certificate_folder.Audit(problems, False, '', [])
  return certificate_folder.Audit([], record.refutes(found), record.verdict(found), record.rows(found))


def check_before(experiment: Any, run: run_lib.Run) -> None:
  """Asks before the first round whether the run could get a certificate: nobody should train in vain.

  The planned rounds are taken for those that were run. A problem that this finds would come up after training, too.

  Args:
    experiment: The `setup.Experiment`. One of a method that gives no certificate is not looked at.
    run: Its configuration.

  Raises:
    ValueError: With every reason why the run could get no certificate, if there is one.
  """
  if not run.method.gives_certificate:
    return
  plan, federation = experiment.plan, experiment.federation
  ledger = planned_ledger(plan)
  facts = _facts(plan, run, federation.test_set, federation.public_data, tests=0)
  reasons = plan.ledger_problems(ledger) + certificates.refusals(ledger, facts)
  try:
    certificates.digest(dataclasses.asdict(facts))
  except ValueError as error:  # Bytes of the command line that are not text.
    reasons.append(f'A flag is not text that a file can hold: {error}.')
  if reasons:
    raise ValueError(
      f'No certificate could be issued for this run, so it was not begun. {" ".join(reasons)} Change these flags, or '
      'mark the run as a rehearsal: --algorithm=certified:certificate=false.'
    )


def planned_ledger(plan: plans.CertifiedPlan) -> accounting.RunLedger:
  """The ledger of the planned rounds. Its nominal budgets say nothing, and its clipping norms are the first."""
  config, ledger = plan.config, plan.new_ledger()
  for cohort, planned in zip(plan.expected, planning.planned_rounds(config, plan.expected)):
    ledger.append(
      accounting.RoundRecord(
        cohort=cohort,
        budgets=np.ones(len(cohort)),
        weights=np.asarray(planned.weights, np.float64),
        noise_multiplier=config.noise_multiplier,
        count_noise_multiplier=config.clip.count_noise_multiplier,
        clipping_norm=float(np.float32(config.clip.initial_norm)),
      )
    )
  return ledger


def _facts(plan, run, test_set, public_data, tests) -> certificates.Facts:
  return plan.facts(
    algorithm=run.flags['algorithm'],
    tuning=run.flags['tuning'],
    test_set=test_set,
    tests=tests,
    public_data=public_data,
    post_processing=run.post_processing(plan),
  )


def _plan(run_json) -> tuple[plans.CertifiedPlan, run_lib.Run]:
  """The run's plan, and its configuration, from run.json."""
  try:
    resolved, identity = run_json['resolved'], run_json['identity']
    for name in ('test_set', 'public_data', 'data_commitment', 'model'):
      if not isinstance(resolved[name], str):
        raise ValueError(f'{name} is not text')
    for name, value, most in (
      ('rounds', identity['rounds'], run_parts.MOST_ROUNDS),
      ('num_clients', resolved['num_clients'], 2**31 - 1),
    ):
      if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f'{name} must be an integer from 1 to {most:,}, found {value!r}')
    files.check_population(resolved['num_clients'])
    # The other flags in run.json say nothing about what was computed.
    run = run_lib.Run.from_json({'flags': {}, 'identity': identity, 'resolved': resolved})
    if not run.method.gives_certificate:
      raise FolderError(f'{run_folder.RUN}: a run of --algorithm={run.flags["algorithm"]} has no certificate.')
    model = layers_lib.ModelShape(
      tuple(layers_lib.Layer(one['name'], tuple(one['indices']), one['is_dense']) for one in resolved['layers']),
      tuple(resolved['sizes']),
    )
    return run.plan(resolved['num_clients'], model, resolved['test_is_of_clients']), run
  except (FolderError, CannotTellError):
    raise
  except files.DAMAGE as error:
    raise FolderError(
      f'{run_folder.RUN} is damaged, or its flags contradict each other: {error or type(error).__name__}'
    ) from None


def _stretches(run_json, num_rounds) -> list[dict[str, Any]]:
  """Which code ran which rounds, from run.json: a list of first and last round, code and versions."""
  name = run_folder.RUN
  try:
    kept = [one for one in run_json['stretches'] if one['first_round'] <= max(num_rounds, 1)]
    firsts = [one['first_round'] for one in kept]
    if firsts[:1] != [1] or any(type(first) is not int for first in firsts) or sorted(set(firsts)) != firsts:
      raise ValueError(f'the first rounds are {firsts}')
    return [
      {'first_round': one['first_round'], 'last_round': last, 'code': one['code'], 'versions': one['versions']}
      for one, last in zip(kept, [first - 1 for first in firsts[1:]] + [num_rounds])
    ]
  except (KeyError, TypeError, ValueError) as error:
    raise FolderError(f'{name} does not say which code ran which rounds: {type(error).__name__}: {error}') from None


def _warnings(path, names, version) -> list[str]:
  found = []
  folder = os.path.join(path, run_folder.CHECKPOINTS)
  if os.path.isdir(folder):
    found.append(
      f'{folder} holds the state of the run, which contains the seed of the noise. Anyone who has it can subtract '
      'the noise, so do not hand this folder out. --publish copies everything else.'
    )
  if version <= 3 and any(name.startswith(f'{run_folder.TENSORBOARD}{os.sep}') for name in names):
    found.append(
      f'{run_folder.TENSORBOARD} holds the time of every round. Running times depend on how much data clients '
      'have, and no certificate covers them.'
    )
  return found


def _metrics_problems(plan, ledger, rows) -> list[str]:
  """Where metrics.csv has a column that no certificate covers, or a figure that differs from the ledger's."""
  name = run_folder.METRICS
  found = files.column_problems(name, rows, plan.public_metrics | _OF_LOOP)
  if [row.get('round') for row in rows] != [str(number) for number in range(1, ledger.num_rounds + 1)]:
    return found + [f"{name} does not hold one row for each of the ledger's {ledger.num_rounds} rounds."]
  for row, expected in zip(rows, _expected_rows(plan, ledger)):
    for column, value in expected.items():
      if column in row and not files.is_close(row[column], value):
        found.append(f'{name}: {column} of round {row["round"]} is {row[column]}, but the ledger gives {value:g}.')
    accuracy = row.get('test_accuracy')
    if accuracy and not 0 <= files.number(accuracy) <= 1:
      found.append(f'{name}: test_accuracy of round {row["round"]} is {accuracy}, which is not between 0 and 1.')
  return found


def _expected_rows(plan, ledger) -> Iterator[dict[str, float]]:
  """What metrics.csv must say about each round, computed from the ledger."""
  config, state = plan.config, ledger.state_dict()
  participation = participations.initial_state(config.participation, config.num_clients)
  planned = plan.rounds_of(ledger)
  for index in range(ledger.num_rounds):
    entries = slice(state['offsets'][index], state['offsets'][index + 1])
    cohort, weights = state['clients'][entries], state['weights'][entries]
    participation = participations.next_state(config.participation, participation, cohort, index + 1)
    clip = state['clipping_norms'][index]
    multiplier = config.noise_multiplier if (weights > 0).any() else 0.0
    row = {
      'cohort_size': len(cohort),
      'clipping_norm': clip,
      'noise_multiplier': multiplier,
      'sigma': multiplier * clip / config.divisor,
      'exhausted_clients': int((weights == 0).sum()),
      'weight_mean': weights.mean() if len(weights) else 0.0,
      'weight_min': weights.min() if len(weights) else 0.0,
      'spent_max': planned[index].spent_max,
    }
    statistics = participations.statistics(config.participation, participation, index + 1)
    yield {**row, **{f'participation_{key}': float(value) for key, value in statistics.items()}}


def _summary_problems(path, run, num_clients, plan, report, ledger, rows, version) -> list[str]:
  """Where summary.json differs from the one that the other files give."""
  name = run_folder.SUMMARY
  summary = folder_files.read_json(path, name)
  try:
    # Tensors of other sizes than expected are a problem of their own, and they are not read.
    weights = files.in_model(
      path, run_folder.MODEL, lambda tensors: [tensor[()] for tensor in tensors if tensor.size in plan.model.sizes]
    )
    test = {key: files.number(rows[-1][f'test_{key}']) for key in ('accuracy', 'loss')}
    diverged = final_summary.has_diverged(weights, test['loss'])
    expected = final_summary.make(
      run,
      num_clients,
      report,
      rounds=ledger.num_rounds,
      test=test,
      diverged=diverged,
      date=datetime.date.fromisoformat(summary['date']),
      share_of_ceiling=final_summary.share_of_ceiling(plan) if _SHARE in summary else None,
    )
  except (KeyError, IndexError, TypeError, ValueError) as error:
    return [f'{name} or {run_folder.METRICS} is damaged: {type(error).__name__}: {error}']
  # Runs wrote this figure only later, with the same version of the certificate.
  skipped = (*_EARLIER_SUMMARY.get(version, ()), *({_SHARE} - summary.keys()))
  return [
    f'{name}: {difference}'
    for difference in certificates.differences(summary, expected, skipped, tolerance=files.RELATIVE)
  ]
