"""The folder of a run, read only: its files, and whether a run may go on in it. `directory` writes it."""

from collections.abc import Mapping, Set
import contextlib
import json
import os
import platform
import sys
import tempfile
from typing import NamedTuple, Optional, TypedDict

import numpy as np

from quap_tff.certificates.folders import about as abouts
from quap_tff.certificates.folders import folder as certificate_folders
from quap_tff.common import checks
from quap_tff.common import files
from quap_tff.common import json_types
from quap_tff.common import kernels
from quap_tff.common import version
from quap_tff.common.lazy import tf
from quap_tff.common.lazy import tff
from quap_tff.serving import store as stores

RUN, METRICS, SUMMARY, PLOT, TENSORBOARD = 'run.json', 'metrics.csv', 'summary.json', 'plot.png', 'tensorboard'
CHECKPOINTS, LOCK = 'checkpoints', '.lock'
# A certified run has these three in the folder of its certificate, and its model as arrays.
MODEL, LEDGER, CLIENTS = 'final_model.keras', certificate_folders.LEDGER, certificate_folders.CLIENTS
CERTIFICATE = certificate_folders.SUBFOLDER
# The key in run.json.
STRETCHES = 'stretches'
# In the folder of checkpoints: the state of the run, and the secret from which all its secrets follow.
STATE, SECRET = 'state', 'secret'

_FOLDERS = (CHECKPOINTS, TENSORBOARD, CERTIFICATE)
_FILES = (RUN, METRICS, SUMMARY, MODEL, LEDGER, CLIENTS, PLOT)
# A run that was interrupted before its first round may leave these names.
_OF_THE_START = {LOCK, RUN + files.UNFINISHED, CHECKPOINTS}

_SOURCES = ('quap_tff', 'data', 'experiments')


class Machine(TypedDict):
  """The machine that ran rounds, as run.json has it."""

  platform: str
  cores: int
  gpus: int
  onednn: bool


class Stretch(TypedDict):
  """Which code, versions and machine ran the rounds from `first_round` on, as run.json has it."""

  first_round: int
  code: dict[str, str]
  versions: dict[str, str]
  machine: Machine


class StatedStretch(TypedDict):
  """Which code ran some rounds, as a certificate states it."""

  first_round: int
  last_round: int
  code: dict[str, str]
  versions: dict[str, str]


class RunDirectoryError(ValueError):
  """The output directory cannot be used for this run."""


class Found(NamedTuple):
  """The run in an output directory.

  Attributes:
    is_new: Whether no run has begun in it: there is no checkpoint, and no result.
    finished: summary.json of a run that has reached its last planned round and whose checkpoints are gone; else None.
  """

  is_new: bool
  finished: Optional[json_types.JsonObject]


def check(path: str, identity: json_types.JsonView, needs_same_code: bool = False) -> Found:
  """The run in a folder, which must be new or hold a run with this `identity`. Changes nothing.

  Args:
    path: The folder.
    identity: The flags that say what is computed.
    needs_same_code: Whether a run whose last round was run by other code than this is refused.

  Raises:
    RunDirectoryError: If it is neither, or holds results of a run whose checkpoints are gone before its end.
  """
  path = absolute(path)
  if not os.path.isdir(path):
    if os.path.lexists(path):
      raise RunDirectoryError(f'output_dir {path} is a file; give a folder.')
    _check_can_be_made(path)
    return Found(True, None)
  try:
    names = set(os.listdir(path))
    last_round = _last_round(path)
    if not names - _OF_THE_START and last_round is None:
      return Found(True, None)
    run = files.read_json(os.path.join(path, RUN))
    differing = differences(run['identity'], through_json(identity))
  except RunDirectoryError:
    raise
  except (OSError, ValueError, KeyError, TypeError, AttributeError):
    raise RunDirectoryError(
      f'output_dir {path} holds files, but no readable {RUN} of an earlier run: give a new or empty folder.'
    ) from None
  if differing:
    raise RunDirectoryError(
      f'output_dir {path} belongs to a run with other flags:{"".join(differing)}\nGive the same flags to continue it, '
      'or another folder.'
    )
  _check_kinds(path, names)
  if last_round is not None:
    _check_can_go_on(path, run, last_round, needs_same_code)
    return Found(False, None)
  summary = read_summary(path)
  if summary is not None and summary.get('finished') is True:
    return Found(False, summary)
  results = sorted(names & {*_FILES, CERTIFICATE} - {RUN})
  if results:
    raise RunDirectoryError(
      f'output_dir {path} holds {", ".join(results)} of a run that has not reached its last planned round, and its '
      f'checkpoints are gone. To train it again would release a second model of the same clients, and nothing would '
      f'account for the first one. Put {CHECKPOINTS}/ back to continue it, or give another folder to start anew.'
    )
  return Found(True, None)


def _last_round(path: str) -> Optional[int]:
  """The round of the state that a folder has; None if it has none."""
  file = os.path.join(path, CHECKPOINTS, STATE)
  try:
    return stores.rounds_in(file)
  except (OSError, ValueError) as error:
    raise RunDirectoryError(
      f'{file} cannot be read ({error}). Put the latest copy back to continue the run, or give another folder to start '
      'anew.'
    ) from None


def _check_can_go_on(path: str, run: json_types.JsonView, last_round: int, needs_same_code: bool) -> None:
  read_secret(path)
  try:
    kept = stretches(run, last_round)
  except ValueError as error:
    raise RunDirectoryError(
      f'{os.path.join(path, RUN)} is damaged: {error}. Put it back to continue the run, or give another folder to '
      'start anew.'
    ) from None
  if needs_same_code and kept and kept[-1]['code'] != code():
    raise RunDirectoryError(
      f'output_dir {path} cannot be continued: its round {last_round} was run by other code: by '
      f'{_named(kept[-1]["code"])}. This is {_named(code())}. Continue the run with the code that began it. Or give '
      '--allow_code_change: the run then goes on, and run.json says which code ran which rounds.'
    )


def _named(which: Mapping[str, str]) -> str:
  return f'quap_tff {which["quap_tff"]} with the source digest {which["source_sha256"]}'


def read_secret(path: str) -> bytes:
  """The secret of the run in a folder. Raises `RunDirectoryError` if it is missing or damaged."""
  file = os.path.join(path, CHECKPOINTS, SECRET)
  try:
    return files.read_sealed(file)
  except (OSError, ValueError) as error:
    problem = 'is missing' if isinstance(error, FileNotFoundError) else f'cannot be read ({error})'
    raise RunDirectoryError(
      f'{file} {problem}. The keys of this run follow from it, and a run must not go on with other keys. Put it back '
      'from a copy to continue the run, or give another folder to start anew.'
    ) from None


def _check_can_be_made(path: str) -> None:
  """Makes and removes an empty folder, so that an error comes before the data are read."""
  try:
    with contextlib.suppress(FileNotFoundError):
      os.lstat(path)
    parent = os.path.dirname(path)
    while not os.path.lexists(parent):
      parent = os.path.dirname(parent)
  except (OSError, ValueError) as error:
    raise RunDirectoryError(f'output_dir {path} cannot be used: {error}. Give another folder.') from error
  try:
    os.rmdir(tempfile.mkdtemp(dir=parent))
  except OSError as error:
    # In /proc, Linux says that there is no such file.
    reason = 'it takes no new folders' if isinstance(error, FileNotFoundError) else error.strerror
    raise RunDirectoryError(f'output_dir {path} cannot be made in {parent}: {reason}. Give another folder.') from error


def _check_kinds(path: str, names: set[str]) -> None:
  for name in sorted(names & {*_FILES, *_FOLDERS}):
    if os.path.isdir(os.path.join(path, name)) != (name in _FOLDERS):
      kind, other_kind = ('folder', 'file') if name in _FOLDERS else ('file', 'folder')
      raise RunDirectoryError(f'{os.path.join(path, name)} must be a {kind}, found a {other_kind}. Move it away.')


def read_summary(path: str) -> Optional[json_types.JsonObject]:
  """The folder's summary.json, or None if there is none that can be read."""
  try:
    summary = files.read_json(os.path.join(path, SUMMARY))
    return summary if isinstance(summary, dict) else None
  except (OSError, ValueError):
    return None


def absolute(path: str) -> str:
  """The folder's whole path. Raises `RunDirectoryError` for an empty one."""
  if not path:
    raise RunDirectoryError('output_dir is empty; give a folder.')
  return os.path.abspath(path)


def through_json(value: json_types.JsonView) -> json_types.JsonObject:
  """The value as a JSON file gives it back: tuples are lists."""
  return json.loads(json.dumps(dict(value)))


def differences(there: json_types.JsonView, now: json_types.JsonView) -> list[str]:
  """A line for each flag whose two values differ."""
  return [
    f'\n  --{name}: {there.get(name)!r} there, {now.get(name)!r} now'
    for name in sorted({*there, *now})
    if there.get(name) != now.get(name)
  ]


def code() -> dict[str, str]:
  """The version of the program and the digest of its source."""
  return {'quap_tff': version.VERSION, 'source_sha256': source_digest()}


def source_digest(root: Optional[str] = None) -> str:
  """SHA-256 of the program's source, see `version.source_digest`."""
  return version.source_digest(_SOURCES, root)


def versions() -> dict[str, str]:
  """The versions of the program, of Python, and of the packages that compute. Loads TFF."""
  return {
    'quap_tff': version.VERSION,
    'tensorflow_federated': tff.__version__,
    'tensorflow': tf.__version__,
    'numpy': np.__version__,
    'python': sys.version.split()[0],
  }


def machine() -> Machine:
  """The platform, the cores, the GPUs, and whether oneDNN's kernels are on. Loads TensorFlow."""
  return {
    'platform': platform.platform(),
    'cores': len(os.sched_getaffinity(0)),
    'gpus': len(tf.config.list_physical_devices('GPU')),
    'onednn': kernels.uses_onednn(),
  }


def continued(run: json_types.JsonView, first_round: int) -> list[Stretch]:
  """The stretches of a run that goes on here and now with `first_round`."""
  earlier = stretches(run, first_round - 1)
  now = Stretch(first_round=first_round, code=code(), versions=versions(), machine=machine())
  if earlier and now == {**earlier[-1], 'first_round': first_round}:
    return earlier
  return [*earlier, now]


def stretches(run: json_types.JsonView, last_round: int) -> list[Stretch]:
  """The stretches of the rounds up to `last_round`, of run.json as a value.

  A stretch says which code, versions and machine ran rounds: {first_round, code, versions, machine}. It ends where the
  next one begins. A process may have ended before the first of its rounds was kept, so there may be later ones.

  Raises:
    ValueError: If they are not stretches of these rounds.
  """
  try:
    entries = run[STRETCHES]
    for one in entries:
      _check_keys('a stretch', one, Stretch.__required_keys__)
      abouts.check_code(one['code'])
      _check_machine(one)
    firsts = [one['first_round'] for one in entries]
    if any(type(first) is not int for first in firsts) or firsts != sorted(set(firsts)) or firsts[:1] not in ([], [1]):
      raise ValueError(f'the first rounds must ascend from 1, found {firsts}')
    if last_round > 0 and not firsts:
      raise ValueError('no code is named for the rounds that were run')
  except (ValueError, TypeError, KeyError, AttributeError) as error:
    raise ValueError(f'the {STRETCHES} are not those of a run: {error}') from None
  return [one for one in entries if one['first_round'] <= last_round]


def stated_stretches(run: json_types.JsonView, num_rounds: int) -> list[StatedStretch]:
  """Which code ran which rounds, as a certificate states it: first and last round, code and versions.

  Raises:
    ValueError: If run.json does not say it.
  """
  kept = stretches(run, max(num_rounds, 1))
  last_rounds = [one['first_round'] - 1 for one in kept[1:]] + [num_rounds]
  return [
    {'first_round': one['first_round'], 'last_round': last, 'code': one['code'], 'versions': one['versions']}
    for one, last in zip(kept, last_rounds)
  ]


def _check_keys(name: str, value: object, keys: Set[str]) -> None:
  if not isinstance(value, dict) or set(value) != keys:
    raise ValueError(f'{name} must have the keys {sorted(keys)}')


def _check_machine(value: json_types.JsonView) -> None:
  """Checks the versions and the machine in run.json, or in a stretch of it."""
  abouts.check_versions('versions', value['versions'])
  machine = value['machine']
  _check_keys('machine', machine, Machine.__required_keys__)
  if not isinstance(machine['platform'], str):
    raise ValueError(f'platform must be a text, found {machine["platform"]!r}')
  for name in ('cores', 'gpus'):
    checks.integer(name, machine[name], at_least=0)
  if not isinstance(machine['onednn'], bool):
    raise ValueError(f'onednn must be true or false, found {machine["onednn"]!r}')
