"""The form of the files that only a run of experiments.train has: run.json, summary.json and metrics.csv.

Whether the flags in run.json give the mechanism and the schedule, and whether the two others say what the ledger says,
is checked by experiments.verify.
"""

import re
from typing import Any, NamedTuple

from quap_tff.certificates.folders import about as abouts
from quap_tff.certificates.folders import folder as folders
from quap_tff.certificates.folders import folder_files
from quap_tff.certificates.folders.folder_files import FolderError
from quap_tff.common import checks

RUN, SUMMARY, METRICS = 'run.json', 'summary.json', 'metrics.csv'

_OF_RUN = frozenset({'identity', 'resolved', 'flags', 'versions', 'machine', 'stretches'})
_RESOLVED = frozenset(
  'num_clients partition test_examples test_set test_is_of_clients public_data model input_shape num_classes layers '
  'shapes data_commitment'.split()
)
_MACHINE, _STRETCH = frozenset({'platform', 'cores', 'gpus'}), {'first_round', 'code', 'versions', 'machine'}
# The keys of summary.json, but for those of `plans.Report`.
_OF_SUMMARY = frozenset(
  'dataset algorithm malicious rounds planned_rounds finished test_accuracy test_loss diverged share_of_ceiling '
  'interrupted seconds date output_dir'.split()
)
# Columns of metrics.csv that follow from the public test set or from message sizes. The plan names the other columns.
_OF_LOOP = frozenset({'round', 'test_accuracy', 'test_loss', 'down_bytes_per_client', 'up_bytes_per_client'})
# A test may be left out, and a loss may not be finite.
_CELL = re.compile(r'(-?\d+(\.\d+)?(e[+-]?\d+)?|-?inf|nan)?', re.ASCII)


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


def read(content: folders.Content) -> RunFiles:
  """The three files of a run of experiments.train.

  Raises:
    FolderError: If one is missing or damaged, or holds anything beyond what is defined.
  """
  return RunFiles(_run(content), _summary(content), _rows(content))


def _run(content) -> dict[str, Any]:
  value = folder_files.read_json(content.path, RUN)
  with folder_files.damage(RUN):
    abouts.check_text(RUN, value)
    _check_keys('it', value, _OF_RUN)
    identity, flags, resolved = value['identity'], value['flags'], value['resolved']
    _check_keys('resolved', resolved, _RESOLVED)
    folders.model_shape(resolved)
    for part in (flags, {name: value for name, value in resolved.items() if name not in ('layers', 'shapes')}):
      _check_plain(part)
    # Of the number of workers, identity has what it came to.
    differing = [name for name in identity if name != 'num_workers' and identity[name] != flags[name]]
    if differing:
      raise ValueError(f'identity and flags have two values of {differing[0]}')
    _check_plain(identity)
    _check_machine(value)
    stretches(value, content.ledger.num_rounds)
  return value


def stretches(run: dict[str, Any], num_rounds: int) -> list[dict[str, Any]]:
  """Which code ran which rounds, from run.json: a list of first and last round, code and versions.

  Raises:
    FolderError: If run.json does not say it.
  """
  with folder_files.damage(RUN, 'does not say which code ran which rounds'):
    found = run['stretches']
    for one in found:
      _check_keys('a stretch', one, _STRETCH)
      abouts.check_code(one['code'])
      _check_machine(one)
    firsts = [one['first_round'] for one in found]
    if firsts[:1] != [1] or any(type(first) is not int for first in firsts) or sorted(set(firsts)) != firsts:
      raise ValueError(f'the first rounds are {firsts}')
    # A process may have ended before the first of its rounds was kept.
    kept = [one for one in found if one['first_round'] <= max(num_rounds, 1)]
    return [
      {'first_round': one['first_round'], 'last_round': last, 'code': one['code'], 'versions': one['versions']}
      for one, last in zip(kept, [one['first_round'] - 1 for one in kept[1:]] + [num_rounds])
    ]


def _summary(content) -> dict[str, Any]:
  value = folder_files.read_json(content.path, SUMMARY)
  with folder_files.damage(SUMMARY):
    abouts.check_text(SUMMARY, value)
    expected = content.plan.report(content.ledger, content.plan.schedule).as_dict()
    _check_keys('it', value, _OF_SUMMARY | expected.keys())
    _check_plain({name: value[name] for name in _OF_SUMMARY - {'malicious'}})
    if value['malicious'] is not None:
      _check_keys('malicious', value['malicious'], {'clients', 'attack'})
      _check_plain(value['malicious'])
    _check_like('it', {name: value[name] for name in expected}, expected)
  return value


def _rows(content) -> list[dict[str, str]]:
  if not content.ledger.num_rounds:
    return []
  rows = folder_files.read_rows(content.path, METRICS)
  for column in rows[0] if rows else ():
    if column not in content.plan.public_metrics | _OF_LOOP:
      raise FolderError(f"{METRICS}: {column} is an exact function of clients' data, or may be one.")
  if [row.get('round') for row in rows] != [str(number) for number in range(1, content.ledger.num_rounds + 1)]:
    raise FolderError(f"{METRICS} does not hold one row for each of the ledger's {content.ledger.num_rounds} rounds.")
  for row in rows:
    for column, cell in row.items():
      if not _CELL.fullmatch(cell):
        raise FolderError(f'{METRICS}: {column} of round {row["round"]} must be a number, found {cell!r}.')
    accuracy = row.get('test_accuracy')
    if accuracy and not 0 <= float(accuracy) <= 1:
      raise FolderError(
        f'{METRICS}: test_accuracy of round {row["round"]} is {accuracy}, which is not between 0 and 1.'
      )
  return rows


def _check_keys(name, value, keys) -> None:
  if not isinstance(value, dict) or set(value) != keys:
    raise ValueError(f'{name} must have the keys {sorted(keys)}')


def _check_like(name, value, example) -> None:
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


def _check_plain(values) -> None:
  for name, value in values.items():
    for one in value if type(value) is list else [value]:
      if not (one is None or isinstance(one, (str, int, float))):
        raise ValueError(f'{name} must be a text, a number or a list of these, found {value!r}')


def _check_machine(value) -> None:
  """Of run.json, or of a stretch in it."""
  abouts.check_versions('versions', value['versions'])
  machine = value['machine']
  _check_keys('machine', machine, _MACHINE)
  if not isinstance(machine['platform'], str):
    raise ValueError(f'platform must be a text, found {machine["platform"]!r}')
  for name in ('cores', 'gpus'):
    checks.integer(name, machine[name], at_least=0)
