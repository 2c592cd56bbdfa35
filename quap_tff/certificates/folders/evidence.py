"""The checks of a folder's files against each other: everything that can be computed again is.

The folder may come from anybody. Each problem is a sentence. Of the files that only a run of experiments.train has
(run.json, summary.json and metrics.csv), the form is checked here. Whether the flags in run.json give the mechanism and
the schedule, and whether the two others say what the ledger says, is checked by experiments.verify.
"""

import csv
import io
import math
import os
import re
from typing import Any, Callable, NamedTuple, TypeVar
import zipfile

import numpy as np

from quap_tff import accounting
from quap_tff.certificates.folders import about as abouts
from quap_tff.certificates.folders import folder as folders
from quap_tff.certificates.folders import folder_files
from quap_tff.certificates.folders.folder_files import FolderError
from quap_tff.common import checks
from quap_tff.common import files
from quap_tff.common import lazy
from quap_tff.plans.accounts import run_account

h5py = lazy.module('h5py')

# Relative, between float32 weights in TensorFlow's arithmetic and in NumPy's: some units in the last place.
_SAME_WEIGHT = 1e-6
_KERAS_MEMBERS = {'metadata.json', 'config.json', 'model.weights.h5'}

RUN, SUMMARY, METRICS, PLOT = 'run.json', 'summary.json', 'metrics.csv', 'plot.png'
# In the name of features: the place of the extractor's copy in the folder.
_EXTRACTOR = re.compile(r'[:,]path=(features/[^/,]+)(,|$)')

_OF_RUN = frozenset({'identity', 'resolved', 'flags', 'versions', 'machine', 'stretches'})
_RESOLVED = frozenset(
  'num_clients partition test_examples test_set test_is_of_clients public_data model input_shape num_classes layers '
  'shapes data_commitment'.split()
)
_MACHINE, _STRETCH = frozenset({'platform', 'cores', 'gpus'}), {'first_round', 'code', 'versions', 'machine'}
# The keys of summary.json, but for those of `Report`.
_OF_SUMMARY = frozenset(
  'dataset algorithm malicious rounds planned_rounds finished test_accuracy test_loss diverged share_of_ceiling '
  'interrupted seconds date output_dir'.split()
)
# Columns of metrics.csv that follow from the public test set or from message sizes. The plan names the other columns.
_OF_LOOP = frozenset({'round', 'test_accuracy', 'test_loss', 'down_bytes_per_client', 'up_bytes_per_client'})
# A test may be left out, and a loss may not be finite.
_CELL = re.compile(r'(-?\d+(\.\d+)?(e[+-]?\d+)?|-?inf|nan)?', re.ASCII)

_Read = TypeVar('_Read')


def problems(content: folders.Content) -> list[str]:
  """Where the files of a folder contradict each other, or where something is in it that no certificate covers."""
  found = entry_problems(content)
  of_ledger = ledger_problems(content.plan, content.ledger)
  if not of_ledger:
    found += clients_problems(content)
  found += of_ledger + model_problems(content)
  if not found and content.made_by == folders.TRAIN:
    read_run_files(content)
  return found


def entry_problems(content: folders.Content) -> list[str]:
  """What lies in the folder and does not belong there."""
  found, of_train = content.entries, content.made_by == folders.TRAIN
  known = {folders.MECHANISM, folders.LEDGER, folders.CLIENTS, folders.KERAS_MODEL, *folders.OWN}
  known |= {folders.SCHEDULE} if content.plan.schedule else set()
  known.add(folders.LOCK if of_train else folders.ARRAYS_MODEL)
  extractor = _EXTRACTOR.search(content.about.features)

  def is_of_run(name):
    if name.startswith('features/') and (extractor is None or os.path.dirname(name) != extractor[1]):
      return False
    return name.isprintable() and any(kind.fullmatch(name) for kind in (folders.RUN_FILES, folders.SECRETS))

  strangers = [name for name in found.files if name not in known and not (of_train and is_of_run(name))]
  strangers += [name for name in found.empty if not (of_train and name == folders.CHECKPOINTS)]
  result = [f'{name} is a {kind}. A certificate covers regular files only.' for name, kind in found.special.items()]
  result += [f'{name} does not belong there: a certificate does not name it.' for name in sorted(strangers)]
  if folders.LOCK in found.files and folder_files.read_text(content.path, folders.LOCK):
    result.append(f'{folders.LOCK} must be empty.')
  return result


def unchecked(content: folders.Content) -> list[str]:
  """The parts of a folder's files that nothing here can make again. They may hold anything."""
  kept = content.entries.files
  pictures = [name for name in kept if name == PLOT or name.startswith('features/')]
  found = [f'all of {name}' for name in pictures]
  if folders.KERAS_MODEL in kept:
    found.append(f'{folders.KERAS_MODEL}, except that its tensors have the stated shapes and finite numbers')
  if content.made_by == folders.TRAIN:
    found.append(f'the machine, the versions, and flags without effect on the results in {RUN}')
  return found


class _Round(NamedTuple):
  """A round of a ledger: the entries of its clients, and what the plan gives for them."""

  clients: np.ndarray
  weights: np.ndarray
  planned: np.ndarray
  spent_max: float


def rounds(plan: run_account.RunAccount, ledger: accounting.RunLedger) -> list[_Round]:
  """The rounds of a ledger with the weights that they must have, after the weights of the rounds before.

  The ledger must have the cohorts of the plan, if it has planned any.
  """
  state = ledger.state_dict()
  cuts = state['offsets'][1:-1]
  clients, weights = np.split(state['clients'].astype(np.int64), cuts), np.split(state['weights'], cuts)
  cohorts = clients if plan.attendance is None else list(plan.attendance[: ledger.num_rounds])
  places = [_places(cohort, own) for cohort, own in zip(cohorts, clients)]
  kept = [own[np.argsort(place)] for own, place in zip(weights, places)]
  planned = plan.config.simulated(cohorts, kept)
  return [
    _Round(ids, own, one.weights[place], one.spent_max)
    for ids, own, one, place in zip(clients, weights, planned, places)
  ]


def _places(planned: np.ndarray, clients: np.ndarray) -> np.ndarray:
  """Where each of a round's clients is in the planned cohort, which has the same ids in another order."""
  return np.argsort(planned)[np.argsort(np.argsort(clients))]


def ledger_problems(plan: run_account.RunAccount, ledger: accounting.RunLedger) -> list[str]:
  """Where a ledger differs from that of a run of the plan.

  A run may have stopped early. But each of its rounds must have the planned cohort, if cohorts were planned, the
  weights that follow from the cohorts, and the planned noise.
  """
  config, state, expected = plan.config, ledger.state_dict(), plan.new_ledger().state_dict()
  found = [
    f'{name} in {folders.LEDGER} is not that of the mechanism.'
    for name in ('num_clients', 'delta', 'fingerprint', 'correlation', 'spent_before')
    if not np.array_equal(state.get(name, ()), expected.get(name, ()))
  ]
  if ledger.num_rounds > config.num_rounds:
    found.append(f'{folders.LEDGER} has {ledger.num_rounds} rounds, and {config.num_rounds} are planned.')
  if found:
    return found
  offsets = state['offsets']
  strangers = [
    number
    for number in range(1, ledger.num_rounds + 1)
    if plan.schedule and not _comes(plan, number, state['clients'][offsets[number - 1] : offsets[number]])
  ]
  if strangers:
    others = f' So have {len(strangers) - 1} other rounds.' if len(strangers) > 1 else ''
    return [
      f'Round {strangers[0]} of {folders.LEDGER} has other clients than are planned.{others} To certify cohorts as '
      'they came, build the same process for a plan without a schedule, certified_plan(plan.mechanism), and give it '
      'this ledger.'
    ]
  clip = float(np.float32(config.clip.initial_norm))
  for number, one in enumerate(rounds(plan, ledger), 1):
    if not np.allclose(one.weights, one.planned, rtol=_SAME_WEIGHT, atol=0):
      found.append(f'Round {number} of {folders.LEDGER} has other weights than follow from the cohorts.')
    planned = config.cost(one.clients, one.weights, clip, number)
    constants = {
      'noise_multipliers': planned.noise_multiplier,
      'count_noise_multipliers': planned.count_noise_multiplier,
      **({} if config.counts_norms else {'clipping_norms': clip}),
    }
    for name, value in constants.items():
      if not _close(state[name][number - 1], value):
        found.append(
          f'Round {number} of {folders.LEDGER}: {name} is {state[name][number - 1]:g}, planned is {value:g}.'
        )
    budgets = state['budgets'][offsets[number - 1] : offsets[number]]
    if not np.allclose(budgets, planned.budgets, rtol=_SAME_WEIGHT, atol=0):
      found.append(f'Round {number} of {folders.LEDGER} has other budgets than its weights give.')
  return found


def _comes(plan: run_account.RunAccount, round_num: int, clients: np.ndarray) -> bool:
  """Whether these, int64[M], may be the clients of a round, from 1."""
  if plan.attendance is None:
    return bool(np.isin(clients, plan.schedule[round_num - 1]).all())
  return np.array_equal(np.sort(clients), np.sort(plan.attendance[round_num - 1]))


def _close(found: float, expected: float) -> bool:
  return found == expected or math.isclose(found, expected, rel_tol=1e-9)


def clients_problems(content: folders.Content) -> list[str]:
  """Where clients.csv differs, in any character, from what the ledger gives."""
  found = folder_files.read_text(content.path, folders.CLIENTS).split('\n')
  expected = folders.clients_text(content.plan, content.ledger).split('\n')
  if len(found) != len(expected):
    return [f'{folders.CLIENTS} has {len(found) - 1} lines, and the ledger gives {len(expected) - 1}.']
  differing = [pair for pair in zip(found, expected) if pair[0] != pair[1]]
  return [f'{folders.CLIENTS}: it says {one!r}, but the ledger gives {other!r}.' for one, other in differing[:10]]


def model_problems(content: folders.Content) -> list[str]:
  """Where the tensors of the model are not finite floats of the stated shapes."""
  models = [name for name in (folders.KERAS_MODEL, folders.ARRAYS_MODEL) if name in content.entries.files]
  if len(models) != 1:
    return [f'The folder must hold one model, {folders.KERAS_MODEL} or {folders.ARRAYS_MODEL}, found {len(models)}.']
  assert content.plan.model is not None
  (name,), shapes = models, sorted(content.plan.model.shapes)

  def read(tensors):
    found = sorted(tuple(tensor.shape) for tensor in tensors)
    if found != shapes:
      return [f'{name} holds tensors of the shapes {found}, and {folders.MECHANISM} says {shapes}.']
    if not all(tensor.dtype.kind == 'f' and np.isfinite(tensor[()]).all() for tensor in tensors):
      return [f'{name} must hold finite floating-point numbers alone.']
    return []

  return in_model(content.path, name, read)


def in_model(path: str, name: str, read: Callable[[list[Any]], _Read]) -> _Read:
  """The result of `read` for the tensors of a model's file, .keras or .npz, which can't be used after it."""
  whole = folder_files.check_archive(path, name)
  with folder_files.damage(name, 'cannot be read'), zipfile.ZipFile(whole) as archive:
    members = archive.namelist()
    if name.endswith('.npz'):
      return read(list(folder_files.read_arrays(path, name, [[f'arr_{i}' for i in range(len(members))]]).values()))
    if len(members) != len(_KERAS_MEMBERS) or set(members) != _KERAS_MEMBERS:
      raise ValueError(f'its members must be {sorted(_KERAS_MEMBERS)}, found {members}')
    with archive.open('model.weights.h5') as f, h5py.File(f, 'r') as weights:
      return read(_tensors(weights))


def _tensors(weights) -> list[Any]:
  tensors: list[Any] = []
  weights.visititems(lambda _, item: tensors.append(item) if hasattr(item, 'shape') else None)
  # The numbers of such a tensor are in other files, or are not stored at all.
  if not all(tensor.external is None and not tensor.is_virtual for tensor in tensors):
    raise ValueError('its tensors must be stored in it')
  folder_files.check_unpacked(sum(tensor.nbytes for tensor in tensors))
  return tensors


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


def read_run_files(content: folders.Content) -> RunFiles:
  """The three files of a run of experiments.train.

  Raises:
    FolderError: If one is missing or damaged, or holds anything beyond what is defined.
  """
  return RunFiles(_run(content), _summary(content), _rows(content))


def _run(content) -> dict[str, Any]:
  value = folder_files.read_json(content.path, RUN)
  with folder_files.damage(RUN):
    abouts.check_text(RUN, value)
    _check_form(content, RUN, files.json_text(value))
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
    _check_form(content, SUMMARY, files.json_text(value))
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
  written = io.StringIO()
  csv.writer(written).writerows([list(rows[0]), *(row.values() for row in rows)])
  with folder_files.damage(METRICS):
    _check_form(content, METRICS, written.getvalue())
  return rows


def _check_form(content, name, written) -> None:
  if folder_files.read_text(content.path, name) != written:
    raise ValueError('it is written in another way than the program writes it')


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
