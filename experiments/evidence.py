"""The evidence for a certificate: everything in a run's folder, read, computed again and compared.

This module does not import TensorFlow, since verification runs no model. The folder may come from anybody.
"""

from collections.abc import Iterator
import datetime
import math
import os
import types
from typing import Any, NamedTuple
import zipfile

import numpy as np

from experiments import final_summary
from experiments import flags as experiment_flags
from experiments import folder_files
from experiments import methods
from experiments import provenance as provenance_lib
from experiments import run_directory
from experiments.auditing import record
from experiments.folder_files import CannotTellError
from experiments.folder_files import FolderError
from quap_tff import accounting
from quap_tff import plans
from quap_tff.accounting import certificate as certificates
from quap_tff.common import lazy
from quap_tff.mechanisms import layers as layers_lib
from quap_tff.mechanisms import participation as participations

h5py = lazy.module('h5py')

CERTIFICATE, PAGE, SIGNATURE = 'certificate.json', 'certificate.html', 'certificate.sig'
# Files that are made from the certificate, or after it.
OWN = (CERTIFICATE, PAGE, SIGNATURE, record.AUDIT, record.SIGNATURE)
_NEEDED = (run_directory.RUN, run_directory.LEDGER, run_directory.MODEL, run_directory.SUMMARY, run_directory.CLIENTS)
# Columns of metrics.csv that follow from the public test set or from message sizes. The plan names the other columns.
_OF_LOOP = frozenset({'round', 'test_accuracy', 'test_loss', 'down_bytes_per_client', 'up_bytes_per_client'})
# Tolerances between float32 figures of TensorFlow and of NumPy. A standard deviation of equal rates is nearly 0.
_RELATIVE, _ABSOLUTE = 1e-5, 1e-6
# Places of summary.json that version 3 had in other words or not at all.
_EARLIER_SUMMARY = ('malicious', 'diverged', 'output_dir', 'formal.notes', 'formal.reading')
# What fits into the memory of an ordinary machine.
_MOST_CLIENTS = 10**7
# What `_plan` makes of a run.json that does not hold what it should.
_DAMAGE = (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError, MemoryError)


class Evidence(NamedTuple):
  """What a run's folder holds for its certificate.

  Attributes:
    plan: The run's plan, made again from the flags.
    ledger: From ledger.npz.
    facts: The facts that follow from the flags and the files.
    provenance: What the certificate is bound to, see `certificate.issue`.
    problems: Where the files contradict the flags or each other, a sentence each.
    warnings: What is in the folder but should not be handed out, a sentence each.
  """

  plan: plans.CertifiedPlan
  ledger: accounting.RunLedger
  facts: certificates.Facts
  provenance: dict[str, Any]
  problems: list[str]
  warnings: list[str]


def read(path: str, version: int = certificates.VERSION) -> Evidence:
  """Reads a run's folder.

  Args:
    path: The folder.
    version: The version of the certificate that the evidence is for.

  Raises:
    FolderError: If a file is missing or damaged. The message names the first one.
    CannotTellError: If there is no such folder, or it holds a run that is too large to be verified here.
  """
  found = folder_files.entries(path, without=run_directory.CHECKPOINTS)
  problems = _entry_problems(path, found)
  for name in _NEEDED:
    folder_files.check_regular(path, name)
  run = folder_files.read_json(path, run_directory.RUN)
  plan, values = _plan(run)
  resolved = run['resolved']
  ledger = _ledger(path, resolved['num_clients'])
  ledger_problems = plan.ledger_problems(ledger)
  problems += ledger_problems
  rows = folder_files.read_rows(path, run_directory.METRICS) if ledger.num_rounds else []
  if not ledger_problems:
    # Up to version 3, the figures of a run that had ended early were those of the rounds that ran.
    report = plan.report(ledger, plan.schedule if version > 3 else None)
    problems += _metrics_problems(plan, ledger, rows)
    problems += _clients_problems(path, ledger, report.formal)
    problems += _summary_problems(path, values, resolved['num_clients'], plan, report, ledger, rows, version)
  problems += _model_problems(path, plan)
  summary = folder_files.read_json(path, run_directory.SUMMARY)
  if not isinstance(summary, dict):
    raise FolderError(f'{run_directory.SUMMARY} is damaged: it is not a JSON object.')
  facts = plan.facts(
    algorithm=values.algorithm,
    tuning=values.tuning,
    test_set=resolved['test_set'],
    tests=sum(bool(row.get('test_accuracy')) for row in rows),
    public_data=resolved['public_data'],
    post_processing=methods.post_processing(values, plan),
  )
  provenance = {
    'code': provenance_lib.code(),
    'run': {
      'dataset': values.dataset,
      'features': values.features,
      'model': resolved['model'],
      'test_accuracy': summary.get('test_accuracy'),
      'date': summary.get('date'),
    },
    'noise_multiplier': plan.config.noise_multiplier,
    'divisor': plan.config.divisor,
    'correlation': {'gains': plan.correlation.gains.tolist(), 'decays': plan.correlation.decays.tolist()},
    'config_sha256': certificates.digest(run['identity']),
    'schedule_sha256': certificates.digest([cohort.tolist() for cohort in plan.schedule]),
    'data_commitment': resolved['data_commitment'],
    'files_sha256': {
      name: folder_files.digest(path, name) for name in found.files if name not in (*OWN, run_directory.LOCK)
    },
  }
  if version > 3:
    provenance['stretches'] = _stretches(run, ledger.num_rounds)
  elif 'stretches' in run:
    problems.append(f'{run_directory.RUN} is of a later version than {CERTIFICATE}, which has version {version}.')
  return Evidence(plan, ledger, facts, provenance, problems, _warnings(path, found.files, version))


def _plan(run) -> tuple[plans.CertifiedPlan, types.SimpleNamespace]:
  """The run's plan, and its flags as attributes, from run.json."""
  try:
    defaults = {name: experiment_flags.VALUES[name].default for name in experiment_flags.all_values()}
    unknown = set(run['identity']) - set(defaults)
    if unknown:
      raise ValueError(f'unknown flags {sorted(unknown)}')
    values = types.SimpleNamespace(**{**defaults, **run['identity']})
    resolved = run['resolved']
    for name in ('test_set', 'public_data', 'data_commitment', 'model'):
      if not isinstance(resolved[name], str):
        raise ValueError(f'{name} is not text')
    for name, value, most in (
      ('rounds', values.rounds, experiment_flags.MOST_ROUNDS),
      ('num_clients', resolved['num_clients'], 2**31 - 1),
    ):
      if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f'{name} must be an integer from 1 to {most:,}, found {value!r}')
    if resolved['num_clients'] > _MOST_CLIENTS:
      raise CannotTellError(
        f'the run has {resolved["num_clients"]:,} clients, and this program verifies runs of at most '
        f'{_MOST_CLIENTS:,}.'
      )
    model = layers_lib.ModelShape(
      tuple(layers_lib.Layer(one['name'], tuple(one['indices']), one['is_dense']) for one in resolved['layers']),
      tuple(resolved['sizes']),
    )
    if not methods.parse(values.algorithm).gives_certificate:
      raise FolderError(f'{run_directory.RUN}: a run of --algorithm={values.algorithm} has no certificate.')
    return methods.plan_of(values, resolved['num_clients'], model, resolved['test_is_of_clients']), values
  except (FolderError, CannotTellError):
    raise
  except _DAMAGE as error:
    raise FolderError(
      f'{run_directory.RUN} is damaged, or its flags contradict each other: {error or type(error).__name__}'
    ) from None


def _ledger(path, num_clients) -> accounting.RunLedger:
  name = run_directory.LEDGER
  whole = folder_files.check_archive(path, name)
  try:
    # Before the arrays of a population are made.
    with np.load(whole, allow_pickle=False) as kept:
      if int(kept['num_clients']) != num_clients:
        raise ValueError(f'it is of {int(kept["num_clients"]):,} clients, the run of {num_clients:,}')
    return accounting.RunLedger.load(whole)
  except (OSError, EOFError, zipfile.BadZipFile, *_DAMAGE) as error:
    raise FolderError(f'{name} is damaged: {error or type(error).__name__}') from None


def _entry_problems(path, found: folder_files.Entries) -> list[str]:
  """What lies in the folder and can't be bound by a digest."""
  problems = [
    f'{name} is a {kind}. A certificate covers regular files only.' for name, kind in sorted(found.special.items())
  ]
  problems += [f'{name} is an empty folder, which the certificate does not name.' for name in found.empty]
  if run_directory.LOCK in found.files and os.path.getsize(os.path.join(path, run_directory.LOCK)):
    problems.append(f'{run_directory.LOCK} must be empty.')
  return problems


def _stretches(run, num_rounds) -> list[dict[str, Any]]:
  """Which code ran which rounds, from run.json: a list of first and last round, code and versions."""
  name = run_directory.RUN
  try:
    kept = [one for one in run['stretches'] if one['first_round'] <= max(num_rounds, 1)]
    firsts = [one['first_round'] for one in kept]
    if firsts[:1] != [1] or any(type(first) is not int for first in firsts) or sorted(set(firsts)) != firsts:
      raise ValueError(f'the first rounds are {firsts}')
    return [
      {'first_round': one['first_round'], 'last_round': last, 'code': one['code'], 'versions': one['versions']}
      for one, last in zip(kept, [first - 1 for first in firsts[1:]] + [num_rounds])
    ]
  except (KeyError, TypeError, ValueError) as error:
    raise FolderError(f'{name} does not say which code ran which rounds: {type(error).__name__}: {error}') from None


def _warnings(path, files, version) -> list[str]:
  found = []
  folder = os.path.join(path, run_directory.CHECKPOINTS)
  if os.path.isdir(folder):
    found.append(
      f'{folder} holds the state of the run, which contains the seed of the noise. Whoever has the seed can subtract '
      'the noise, so do not hand this folder out. --publish copies everything else.'
    )
  if version <= 3 and any(name.startswith(f'{run_directory.TENSORBOARD}{os.sep}') for name in files):
    found.append(
      f'{run_directory.TENSORBOARD} holds the time of every round. Running times depend on how much data clients '
      'have, and no certificate covers them.'
    )
  return found


def _metrics_problems(plan, ledger, rows) -> list[str]:
  """Where metrics.csv has a column that no certificate covers, or a figure that differs from the ledger's."""
  name = run_directory.METRICS
  found = [
    f"{name}: {column} is an exact function of clients' data, or may be one."
    for column in (rows[0] if rows else ())
    if column not in plan.public_metrics | _OF_LOOP
  ]
  if [row.get('round') for row in rows] != [str(number) for number in range(1, ledger.num_rounds + 1)]:
    return found + [f"{name} does not hold one row for each of the ledger's {ledger.num_rounds} rounds."]
  for row, expected in zip(rows, _expected_rows(plan, ledger)):
    for column, value in expected.items():
      if column in row and not _is_close(row[column], value):
        found.append(f'{name}: {column} of round {row["round"]} is {row[column]}, but the ledger gives {value:g}.')
    accuracy = row.get('test_accuracy')
    if accuracy and not 0 <= _number(accuracy) <= 1:
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


def _clients_problems(path, ledger, formal) -> list[str]:
  """Where clients.csv differs from what the ledger gives; `formal` is the plan's report on it."""
  name = run_directory.CLIENTS
  rows = folder_files.read_rows(path, name)
  figures = {'rounds': ledger.rounds, 'formal_epsilon': formal.epsilon}
  if formal.reading is not None:
    figures['formal_epsilon_reading'] = formal.reading.epsilon
  columns = ['client', *figures]
  found = [
    f"{name}: {column} is an exact function of clients' data, or may be one."
    for column in (rows[0] if rows else ())
    if column not in columns
  ]
  if found:
    return found
  listed = ledger.listed
  if len(rows) != len(listed) or (rows and list(rows[0]) != columns):
    whom = 'clients' if len(listed) == ledger.num_clients else 'clients that took part'
    return [f'{name} must hold {", ".join(columns)} for each of the {len(listed)} {whom}.']
  for client, row in zip(listed.tolist(), rows):
    expected = {'client': client, **{key: values[client] for key, values in figures.items()}}
    wrong = [key for key, value in expected.items() if not _is_close(row[key], value)]
    found += [
      f'{name}: {key} of client {client} is {row[key]}, but the ledger gives {expected[key]:g}.' for key in wrong
    ]
  return found


def _summary_problems(path, values, num_clients, plan, report, ledger, rows, version) -> list[str]:
  """Where summary.json differs from the one that the other files give."""
  name = run_directory.SUMMARY
  summary = folder_files.read_json(path, name)
  try:
    test = {key: _number(rows[-1][f'test_{key}']) for key in ('accuracy', 'loss')}
    diverged = final_summary.has_diverged(_model_weights(path, plan), test['loss'])
    expected = final_summary.make(
      values,
      num_clients,
      report,
      rounds=ledger.num_rounds,
      test=test,
      diverged=diverged,
      date=datetime.date.fromisoformat(summary['date']),
    )
  except (KeyError, IndexError, TypeError, ValueError) as error:
    return [f'{name} or {run_directory.METRICS} is damaged: {type(error).__name__}: {error}']
  skipped = _EARLIER_SUMMARY if version <= 3 else ()
  return [
    f'{name}: {difference}' for difference in certificates.differences(summary, expected, skipped, tolerance=_RELATIVE)
  ]


def _model_problems(path, plan) -> list[str]:
  """Where the model does not have the shape that the flags give."""
  sizes = _in_model(path, lambda tensors: [int(tensor.size) for tensor in tensors])
  if sorted(sizes) != sorted(plan.model.sizes):
    return [
      f'{run_directory.MODEL} holds tensors of {sorted(sizes)} weights, but {run_directory.RUN} says '
      f'{sorted(plan.model.sizes)}.'
    ]
  return []


def _model_weights(path, plan) -> list[np.ndarray]:
  """The model's weights. Tensors of other sizes than expected, which are a problem of their own, are not read."""
  return _in_model(path, lambda tensors: [tensor[()] for tensor in tensors if tensor.size in plan.model.sizes])


def _in_model(path, read):
  """What `read` makes of the tensors of the model's file."""
  whole = folder_files.check_archive(path, run_directory.MODEL)
  try:
    with zipfile.ZipFile(whole) as archive:
      with archive.open('model.weights.h5') as f, h5py.File(f, 'r') as weights:
        tensors = []
        weights.visititems(lambda _, item: tensors.append(item) if hasattr(item, 'shape') else None)
        return read(tensors)
  except ImportError:
    raise
  except Exception as error:  # h5py and zipfile raise nearly anything for a damaged file.
    raise FolderError(f'{run_directory.MODEL} cannot be read: {error}') from None


def _number(text) -> float:
  try:
    return float(text)
  except (TypeError, ValueError):
    return math.nan


def _is_close(found, expected) -> bool:
  return math.isclose(_number(found), expected, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
