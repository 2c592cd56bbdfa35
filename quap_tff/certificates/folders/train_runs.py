"""The files that a run of experiments.train has beyond those of every certified run: their names, and their form.

    run.json, summary.json, metrics.csv, plot.png, features/    handed out with the certificate
    checkpoints/, .lock                                         kept

The form is checked here, for every verifier. Whether the flags in run.json give the mechanism and the schedule, and
whether the two others say what the ledger says, is checked by experiments.verify. The folder may come from anybody.
"""

from collections.abc import Mapping, Set
import csv
import io
import os
import re
from typing import Any, NamedTuple

from quap_tff import accounting
from quap_tff.certificates.folders import about as abouts
from quap_tff.certificates.folders import folder_files
from quap_tff.certificates.folders import programs
from quap_tff.certificates.folders import shapes
from quap_tff.certificates.folders.folder_files import FolderError
from quap_tff.common import checks
from quap_tff.common import files
from quap_tff.plans.accounts import run_account

RUN, SUMMARY, METRICS, PLOT = 'run.json', 'summary.json', 'metrics.csv', 'plot.png'
CHECKPOINTS, LOCK = 'checkpoints', '.lock'
STRETCHES = 'stretches'
_PUBLISHED = re.compile(r'(run|summary)\.json|metrics\.csv|plot\.png|features/[^/]+/(extractor\.keras|card\.json)')
# The states after rounds, and the secret from which the keys follow.
_SECRETS = re.compile(r'checkpoints/(round_\d+|secret)')
# In the name of features: the place of the extractor's copy in the folder.
_EXTRACTOR = re.compile(r'[:,]path=(features/[^/,]+)(,|$)')

_OF_RUN = frozenset({'identity', 'resolved', 'flags', 'versions', 'machine', 'stretches'})
_RESOLVED = frozenset(
  'num_clients partition test_examples test_set test_is_of_clients public_data model input_shape num_classes layers '
  'shapes data_commitment'.split()
)
_MACHINE, _STRETCH = frozenset({'platform', 'cores', 'gpus'}), {'first_round', 'code', 'versions', 'machine'}
# The keys of summary.json, except those of a `Report`.
_OF_SUMMARY = frozenset(
  'dataset algorithm malicious rounds planned_rounds finished test_accuracy test_loss diverged share_of_ceiling '
  'interrupted seconds date output_dir'.split()
)
# Columns of metrics.csv that follow from the public test set or from message sizes. The plan names the other columns.
_OF_LOOP = frozenset({'round', 'test_accuracy', 'test_loss', 'down_bytes_per_client', 'up_bytes_per_client'})
# A test may be left out, and a loss may not be finite.
_CELL = re.compile(r'(-?\d+(\.\d+)?(e[+-]?\d+)?|-?inf|nan)?', re.ASCII)


class TrainRun(programs.Program):
  """A run of experiments.train."""

  takes_arrays = False
  empty_files = frozenset({LOCK})
  empty_folders = frozenset({CHECKPOINTS})
  unchecked = (f'the machine, the versions, and flags without effect on the results in {RUN}',)

  def owns(self, name: str, about: abouts.About) -> bool:
    extractor = _EXTRACTOR.search(about.features)
    if name.startswith('features/') and (extractor is None or os.path.dirname(name) != extractor[1]):
      return False
    return name.isprintable() and (_PUBLISHED.fullmatch(name) is not None or self.keeps(name))

  def keeps(self, name: str) -> bool:
    return name == LOCK or _SECRETS.fullmatch(name) is not None

  def check(self, path: str, plan: run_account.RunAccount, ledger: accounting.RunLedger) -> None:
    read(path, plan, ledger)

  def may_hold_anything(self, name: str) -> bool:
    return name == PLOT or name.startswith('features/')

  def warnings(self, path: str, is_checked: bool) -> list[str]:
    sentences = []
    if not is_checked:
      sentences.append(
        f'What {RUN}, {SUMMARY} and {METRICS} say in addition was not compared. python -m experiments.verify does it.'
      )
    folder = os.path.join(path, CHECKPOINTS)
    if os.path.isdir(folder):
      sentences.append(
        f'{folder} holds the state of the run, which contains the key of the noise. Anyone who has it can subtract the '
        'noise, so do not hand this folder out. python -m experiments.verify --publish copies everything else.'
      )
    return sentences


class RunFiles(NamedTuple):
  """The content of the three files.

  Attributes:
    run: run.json.
    summary: summary.json.
    rows: metrics.csv, a row for each round of the ledger.
  """

  run: dict[str, Any]
  summary: dict[str, Any]
  rows: list[dict[str, str]]


def read(path: str, plan: run_account.RunAccount, ledger: accounting.RunLedger) -> RunFiles:
  """The three files of a run of experiments.train.

  Raises:
    FolderError: If one is missing or damaged, or holds anything beyond what is defined.
  """
  return RunFiles(_run(path, ledger.num_rounds), _summary(path, plan, ledger), _rows(path, plan, ledger.num_rounds))


def _run(path: str, num_rounds: int) -> dict[str, Any]:
  value = folder_files.read_json(path, RUN)
  with folder_files.damage(RUN):
    abouts.check_text(RUN, value)
    _check_form(path, RUN, files.json_text(value))
    _check_keys('it', value, _OF_RUN)
    identity, flags, resolved = value['identity'], value['flags'], value['resolved']
    _check_keys('resolved', resolved, _RESOLVED)
    shapes.model_shape(resolved)
    for part in (flags, {name: value for name, value in resolved.items() if name not in ('layers', 'shapes')}):
      _check_plain(part)
    differing = [name for name in identity if identity[name] != flags[name]]
    if differing:
      raise ValueError(f'identity and flags have two values of {differing[0]}')
    _check_plain(identity)
    _check_machine(value)
    stated_stretches(value, num_rounds)
  return value


def stretches(run: Mapping[str, Any], last_round: int) -> list[dict[str, Any]]:
  """The stretches of the rounds up to `last_round`, of run.json as a value.

  A stretch says which code, versions and machine ran rounds: {first_round, code, versions, machine}. It ends where the
  next one begins. A process may have ended before the first of its rounds was kept, so there may be later ones.

  Raises:
    ValueError: If they are not stretches of these rounds.
  """
  try:
    entries = run[STRETCHES]
    for one in entries:
      _check_keys('a stretch', one, _STRETCH)
      abouts.check_code(one['code'])
      _check_machine(one)
    firsts = [one['first_round'] for one in entries]
    if any(type(first) is not int for first in firsts) or firsts != sorted(set(firsts)) or firsts[:1] not in ([], [1]):
      raise ValueError(f'the first rounds must ascend from 1, found {firsts}')
    if last_round > 0 and not firsts:
      raise ValueError('there is none')
  except (ValueError, TypeError, KeyError, AttributeError) as error:
    raise ValueError(f'the {STRETCHES} are not those of a run: {error}') from None
  return [one for one in entries if one['first_round'] <= last_round]


def stated_stretches(run: Mapping[str, Any], num_rounds: int) -> list[dict[str, Any]]:
  """Which code ran which rounds, as a certificate states it: first and last round, code and versions.

  Raises:
    FolderError: If run.json does not say it.
  """
  with folder_files.damage(RUN, 'does not say which code ran which rounds'):
    kept = stretches(run, max(num_rounds, 1))
    return [
      {'first_round': one['first_round'], 'last_round': last, 'code': one['code'], 'versions': one['versions']}
      for one, last in zip(kept, [one['first_round'] - 1 for one in kept[1:]] + [num_rounds])
    ]


def _summary(path: str, plan: run_account.RunAccount, ledger: accounting.RunLedger) -> dict[str, Any]:
  value = folder_files.read_json(path, SUMMARY)
  with folder_files.damage(SUMMARY):
    abouts.check_text(SUMMARY, value)
    _check_form(path, SUMMARY, files.json_text(value))
    expected = plan.report(ledger, plan.schedule).as_dict()
    _check_keys('it', value, _OF_SUMMARY | expected.keys())
    _check_plain({name: value[name] for name in _OF_SUMMARY - {'malicious'}})
    if value['malicious'] is not None:
      _check_keys('malicious', value['malicious'], {'clients', 'attack'})
      _check_plain(value['malicious'])
    _check_like('it', {name: value[name] for name in expected}, expected)
  return value


def _rows(path: str, plan: run_account.RunAccount, num_rounds: int) -> list[dict[str, str]]:
  if not num_rounds:
    return []
  rows = folder_files.read_rows(path, METRICS)
  for column in rows[0] if rows else ():
    if column not in plan.public_metrics | _OF_LOOP:
      raise FolderError(f"{METRICS}: {column} is an exact function of clients' data, or may be one.")
  if [row.get('round') for row in rows] != [str(number) for number in range(1, num_rounds + 1)]:
    raise FolderError(f"{METRICS} does not hold one row for each of the ledger's {num_rounds} rounds.")
  for row in rows:
    for column, cell in row.items():
      if not _CELL.fullmatch(cell):
        raise FolderError(f'{METRICS}: {column} of round {row["round"]} must be a number, found {cell!r}.')
    accuracy = row.get('test_accuracy')
    if accuracy and not 0 <= float(accuracy) <= 1:
      raise FolderError(
        f'{METRICS}: test_accuracy of round {row["round"]} is {accuracy}, which is not between 0 and 1.'
      )
  written = io.StringIO()
  csv.writer(written).writerows([list(rows[0]), *(row.values() for row in rows)])
  with folder_files.damage(METRICS):
    _check_form(path, METRICS, written.getvalue())
  return rows


def _check_form(path: str, name: str, written: str) -> None:
  if folder_files.read_text(path, name) != written:
    raise ValueError('it is written in another way than the program writes it')


def _check_keys(name: str, value: Any, keys: Set[str]) -> None:
  if not isinstance(value, dict) or set(value) != keys:
    raise ValueError(f'{name} must have the keys {sorted(keys)}')


def _check_like(name: str, value: Any, example: Any) -> None:
  """Raises `ValueError` unless a value has the keys of the example, at any depth."""
  if isinstance(example, dict):
    _check_keys(name, value, example.keys())
    for key, part in example.items():
      _check_like(key, value[key], part)
  elif isinstance(example, list) and any(isinstance(one, dict) for one in example):
    for one in value:
      _check_like(name, one, example[0])
  else:
    _check_plain({name: value})


def _check_plain(values: Mapping[str, Any]) -> None:
  for name, value in values.items():
    for one in value if type(value) is list else [value]:
      if not (one is None or isinstance(one, (str, int, float))):
        raise ValueError(f'{name} must be a text, a number or a list of these, found {value!r}')


def _check_machine(value: Mapping[str, Any]) -> None:
  """Checks the versions and the machine in run.json, or in a stretch of it."""
  abouts.check_versions('versions', value['versions'])
  machine = value['machine']
  _check_keys('machine', machine, _MACHINE)
  if not isinstance(machine['platform'], str):
    raise ValueError(f'platform must be a text, found {machine["platform"]!r}')
  for name in ('cores', 'gpus'):
    checks.integer(name, machine[name], at_least=0)
