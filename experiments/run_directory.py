"""The folder of a run: what was asked, with what versions, how far it came. One process holds it at a time.

    run.json                 every flag, what the flags leave to the data, the versions, the machine, and which code ran
                             which rounds
    metrics.csv              one row a round
    tensorboard/             the rows again, with the time of each: not where client metrics are withheld
    checkpoints/             server state, ledger and average of weights after a round: secret, see below
    final_model.keras        the model with its last weights
    plot.png, summary.json   at the end

A checkpoint contains the seed of the noise, so whoever has one can subtract the noise. From the start, only the owner
can read the folder of checkpoints. It is removed when the run has finished its last planned round.
"""

import asyncio
from collections.abc import Iterator, Mapping
import contextlib
import csv
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
from typing import Any, NamedTuple, Optional

import numpy as np

from experiments import provenance
from experiments import sparse_state
from quap_tff.common.lazy import tf
from quap_tff.common.lazy import tff

CHECKPOINTS = 'checkpoints'
RUN, METRICS, SUMMARY, MODEL, LEDGER, CLIENTS, PLOT, TENSORBOARD = (
  'run.json',
  'metrics.csv',
  'summary.json',
  'final_model.keras',
  'ledger.npz',
  'clients.csv',
  'plot.png',
  'tensorboard',
)
UNFINISHED = '.part'
LOCK = '.lock'

_CHECKPOINTS_KEPT = 2
# What TensorFlow's errors say of its own functions and operations.
_OF_TENSORFLOW = re.compile(r'\{\{function_node .*?\}\}\s*|\s*\[Op:\w+\]')
_SALT = 'data_salt'
_SALT_BYTES = 32
_FOLDERS = (CHECKPOINTS, TENSORBOARD)
_FILES = (RUN, METRICS, SUMMARY, MODEL, LEDGER, CLIENTS, PLOT)
# What a run that was interrupted before its first round may have left.
_OF_THE_START = {LOCK, RUN + UNFINISHED, CHECKPOINTS}


class RunDirectoryError(ValueError):
  """The output directory cannot be used for this run."""


class Found(NamedTuple):
  """What an output directory contains.

  Attributes:
    is_new: Whether no run has been started in it.
    finished: summary.json of a run that has reached its last planned round and whose checkpoints are gone; else None.
  """

  is_new: bool
  finished: Optional[dict[str, Any]]


def check(path: str, identity: Mapping[str, Any], needs_same_code: bool = False) -> Found:
  """What lies in the folder, which must be a new run's or hold a run with this `identity`. Changes nothing.

  Args:
    path: The folder.
    identity: The flags that say what is computed.
    needs_same_code: Whether a run whose last round was run by other code than this is refused.

  Raises:
    RunDirectoryError: If it is neither, or holds results of a run whose checkpoints are gone before its end.
  """
  path = _absolute(path)
  if not os.path.isdir(path):
    if os.path.lexists(path):
      raise RunDirectoryError(f'output_dir {path} is a file; give a folder.')
    _check_can_be_made(path)
    return Found(True, None)
  try:
    names = set(os.listdir(path))
    last_round = _last_checkpoint(path)
    started = last_round is not None
    if not names - _OF_THE_START and not started:
      return Found(True, None)
    with open(os.path.join(path, RUN), encoding='utf-8') as f:
      run = json.load(f)
    differing = _differences(run['identity'], _through_json(identity))
    code_problem = provenance.code_problem(run, last_round or 0) if needs_same_code else None
  except (OSError, ValueError, KeyError, TypeError, AttributeError):
    raise RunDirectoryError(
      f'output_dir {path} holds files, but no readable {RUN} of an earlier run: give a new or empty folder.'
    ) from None
  if differing:
    raise RunDirectoryError(
      f'output_dir {path} belongs to a run with other flags:{differing}\nGive the same flags to continue it, or '
      'another folder.'
    )
  _check_kinds(path, names)
  if started:
    if code_problem is not None:
      raise RunDirectoryError(f'output_dir {path} cannot be continued: {code_problem}')
    return Found(False, None)
  summary = read_summary(path)
  if summary is not None and summary.get('finished') is True:
    return Found(False, summary)
  results = sorted(names & set(_FILES) - {RUN})
  if results:
    raise RunDirectoryError(
      f'output_dir {path} holds {", ".join(results)} of a run that has not reached its last planned round, and its '
      f'checkpoints are gone. To train it again would release a second model of the same clients, and nothing would '
      f'account for the first one. Put {CHECKPOINTS}/ back to continue it, or give another folder to start anew.'
    )
  return Found(False, None)


def _check_can_be_made(path):
  """Finds out now, not after the data have been read, what would keep the folder from being made."""
  try:
    with contextlib.suppress(FileNotFoundError):
      os.lstat(path)
    parent = os.path.dirname(path)
    while not os.path.lexists(parent):
      parent = os.path.dirname(parent)
    if not os.access(parent, os.W_OK | os.X_OK):
      raise OSError(f'{parent} may not be written to')
  except (OSError, ValueError) as error:
    raise RunDirectoryError(f'output_dir {path} cannot be used: {error}. Give another folder.') from error


def _check_kinds(path, names):
  for name in sorted(names & {*_FILES, *_FOLDERS}):
    if os.path.isdir(os.path.join(path, name)) != (name in _FOLDERS):
      kind, found = ('folder', 'file') if name in _FOLDERS else ('file', 'folder')
      raise RunDirectoryError(f'{os.path.join(path, name)} must be a {kind}, found a {found}. Move it away.')


def _last_checkpoint(path) -> Optional[int]:
  names = _names_in(os.path.join(path, CHECKPOINTS))
  return max((int(name[len('round_') :]) for name in names if re.fullmatch(r'round_\d+', name)), default=None)


def _names_in(folder) -> list[str]:
  return os.listdir(folder) if os.path.isdir(folder) else []


def read_summary(path: str) -> Optional[dict[str, Any]]:
  """The folder's summary.json, or None if there is none that can be read."""
  try:
    with open(os.path.join(path, SUMMARY), encoding='utf-8') as f:
      summary = json.load(f)
    return summary if isinstance(summary, dict) else None
  except (OSError, ValueError):
    return None


class RunDirectory:
  """A run's folder, locked for this process until `close`."""

  def __init__(
    self,
    path: str,
    all_flags: Mapping[str, Any],
    identity: Mapping[str, Any],
    resolved: Mapping[str, Any],
    data_digest: bytes,
    *,
    needs_same_code: bool = False,
    keeps_times: bool = True,
  ):
    """Takes the folder, making it if need be.

    Args:
      path: The folder: new, empty, or of a run with the same `identity`.
      all_flags: Every flag, to be written down.
      identity: The flags that say what is computed.
      resolved: What the flags leave to the data.
      data_digest: Of the clients' data. The folder keeps a commitment to it, with a secret salt: the digest itself
        would confirm a guess of a client's data.
      needs_same_code: Whether a run whose last round was run by other code than this is refused.
      keeps_times: Whether TensorBoard's files are written, which hold the time of each round. A round takes as long as
        its clients' data are large.

    Raises:
      RunDirectoryError: If it holds something else, a run with other flags, of other data or of other code, another
        process is at work in it, or it cannot be written.
    """
    self.path, self._num_clients, self._keeps_times = _absolute(path), resolved['num_clients'], keeps_times
    check(self.path, identity, needs_same_code)
    try:
      os.makedirs(self.path, exist_ok=True)
      self._lock = open(self.file(LOCK), 'a')
    except OSError as error:
      raise RunDirectoryError(f'output_dir {self.path} cannot be used: {error}.') from error
    try:
      fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
      self._lock.close()
      raise RunDirectoryError(f'Another process is training in {self.path}.') from None
    self._loop = asyncio.new_event_loop()
    try:
      with _writing(self.path):
        # Again, now that no other process can change it.
        self.is_new = check(self.path, identity, needs_same_code).is_new
        self._make_checkpoints_folder()
        resolved = {**resolved, 'data_commitment': self._commitment(data_digest)}
        if self.is_new:
          write_json(
            self.file(RUN),
            {
              'identity': _through_json(identity),
              'resolved': resolved,
              'flags': dict(all_flags),
              'versions': provenance.versions(),
              'machine': provenance.machine(),
              provenance.STRETCHES: [],
            },
          )
        else:
          self._check_resolved(resolved)
        self._remove_unfinished()
        self._states = tff.program.FileProgramStateManager(
          self.file(CHECKPOINTS), prefix='round_', keep_total=_CHECKPOINTS_KEPT, keep_first=False
        )
    except BaseException:
      self.close()
      raise
    self._releases = None

  def file(self, name: str) -> str:
    """The path of a file in the folder."""
    return os.path.join(self.path, name)

  def _make_checkpoints_folder(self):
    with _private():
      os.makedirs(self.file(CHECKPOINTS), exist_ok=True)
    os.chmod(self.file(CHECKPOINTS), 0o700)

  def _commitment(self, data_digest: bytes) -> str:
    """SHA-256 of a secret salt and the digest: shows whether data are the same, and reveals nothing else."""
    path = os.path.join(self.file(CHECKPOINTS), _SALT)
    if not os.path.exists(path):
      with _private(), open(path + UNFINISHED, 'wb') as f:
        f.write(secrets.token_bytes(_SALT_BYTES))
      os.replace(path + UNFINISHED, path)
    with open(path, 'rb') as f:
      return hashlib.sha256(b'data of a run' + f.read() + data_digest).hexdigest()

  def _check_resolved(self, resolved):
    try:
      with open(self.file(RUN), encoding='utf-8') as f:
        kept = json.load(f)['resolved']
      same_data = kept['data_commitment'] == resolved['data_commitment']
    except (OSError, ValueError, KeyError, TypeError):
      raise RunDirectoryError(
        f'{self.file(RUN)} does not say which data its run uses, because an older version wrote it. Give another '
        'folder.'
      ) from None
    if not same_data:
      raise RunDirectoryError(
        f'output_dir {self.path} belongs to a run on other data: it was started with other examples than those read '
        'now. Give the --data_dir (and the files in it) of that run, or another folder.'
      )
    others = {name for name in {*kept, *resolved} if kept.get(name) != _through_json(resolved).get(name)}
    if others:
      raise RunDirectoryError(
        f'output_dir {self.path} belongs to another run: {", ".join(sorted(others))} differ. Give another folder.'
      )

  def _remove_unfinished(self):
    """Removes unfinished files, which have names of their own, that a killed run left."""
    for folder in (self.path, self.file(CHECKPOINTS)):
      for name in _names_in(folder):
        if re.fullmatch(r'(round_\d+|metrics\.csv)_temp\d+|.+\.part(\.\w+)?', name):
          path = os.path.join(folder, name)
          shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)

  def begin_stretch(self, first_round: int):
    """Writes down that this code runs the rounds from `first_round` on, unless it ran the one before, too."""
    with _writing(self.path):
      with open(self.file(RUN), encoding='utf-8') as f:
        run = json.load(f)
      stretches = provenance.continued(run, first_round)
      if stretches != run.get(provenance.STRETCHES):
        write_json(self.file(RUN), {**run, provenance.STRETCHES: stretches})

  def save(self, round_num: int, state: Any, records: Mapping[str, np.ndarray]):
    """Saves a checkpoint, completely or not at all."""
    with _writing(self.path), _private():
      if round_num not in (self._wait(self._states.get_versions()) or []):
        leaves = sparse_state.packed([np.asarray(leaf) for leaf in tf.nest.flatten(state)], self._num_clients)
        self._wait(self._states.save([leaves, [records[key] for key in sorted(records)]], round_num))

  def restore(self, state: Any, records: Mapping[str, np.ndarray]) -> Optional[tuple[int, Any, dict[str, np.ndarray]]]:
    """The latest checkpoint as (round, state, records), or None if there is none.

    Args:
      state: A state of the same learning process, for its structure.
      records: Arrays by name, for the names.

    Raises:
      RunDirectoryError: If the checkpoint cannot be read or is of another configuration.
    """
    versions = self._wait(self._states.get_versions())
    if not versions:
      return None
    round_num = versions[-1]
    name = f'The checkpoint of round {round_num} in {self.path}'
    other_configuration = f"{name} is of another configuration: its tensors are not those of this run's state."
    expected = [np.asarray(leaf) for leaf in tf.nest.flatten(state)]
    structure = [sparse_state.packed(expected, self._num_clients), [records[key] for key in sorted(records)]]
    try:
      kept, kept_records = self._wait(self._states.load(round_num, structure))
    except Exception as error:  # TensorFlow's loader raises nearly anything for a damaged file.
      if 'same nested structure' in str(error):
        raise RunDirectoryError(other_configuration) from error
      raise RunDirectoryError(
        f'{name} cannot be read ({error}). Remove that checkpoint to continue from an earlier one, or the folder to '
        'start anew.'
      ) from error
    try:
      kept = sparse_state.unpacked(kept, expected, self._num_clients)
    except ValueError as error:
      raise RunDirectoryError(f'{other_configuration} ({error})') from error
    if [(np.shape(k), np.asarray(k).dtype) for k in kept] != [(e.shape, e.dtype) for e in expected]:
      raise RunDirectoryError(other_configuration)
    return round_num, tf.nest.pack_sequence_as(state, kept), dict(zip(sorted(records), kept_records))

  def keep_rows(self, round_num: int, last_row: Mapping[str, Any]):
    """Checks that the rows of the rounds before a checkpoint are there, and makes TensorBoard's anew from them.

    Rows of later rounds, left by a run that was cut off, are written again: in metrics.csv they are replaced, but in
    TensorBoard's files they would appear twice. If times are not kept, files that an older version left are removed.

    Args:
      round_num: The round of the checkpoint.
      last_row: Its row, which is written if the run was cut off before it could be.

    Raises:
      RunDirectoryError: If a row is missing.
    """
    rows = self._read_rows(round_num)
    if [row['round'] for row in rows] not in (list(range(1, round_num + 1)), list(range(1, round_num))):
      raise self._lost_rows(round_num)
    is_last_missing = len(rows) < round_num
    with _writing(self.path):
      shutil.rmtree(self.file(TENSORBOARD), ignore_errors=True)
      manager = self._tensorboard() if rows else None
      for row in rows if manager is not None else ():
        self._wait(manager.release(_finite({k: v for k, v in row.items() if k != 'round'}), int(row['round'])))
    if is_last_missing:
      self.log(round_num, last_row)

  def _lost_rows(self, round_num):
    return RunDirectoryError(
      f'{self.file(METRICS)} is damaged: it must hold one row for each of the first {round_num} rounds, as numbers. '
      'Put it back, or give another folder to start anew.'
    )

  def _read_rows(self, round_num) -> list[dict[str, float]]:
    path = self.file(METRICS)
    if round_num == 0 or (round_num == 1 and not os.path.exists(path)):
      return []
    try:
      with open(path, newline='', encoding='utf-8') as f:
        rows = [{name: float(value or 'nan') for name, value in row.items()} for row in csv.DictReader(f)]
      return [row for row in rows if row['round'] <= round_num]
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
      raise self._lost_rows(round_num) from None

  def log(self, round_num: int, row: Mapping[str, Any]):
    """Writes a round's metrics; rows of the same or later rounds, left by a run that was cut off, are removed."""
    with _writing(self.path):
      if self._releases is None:
        # Made with the first row, because making it writes a file, and a run that is already finished writes none.
        self._releases = (
          # Written whole and renamed into place: a kill leaves the old file or the new one.
          tff.program.CSVFileReleaseManager(
            self.file(METRICS), save_mode=tff.program.CSVSaveMode.WRITE, key_fieldname='round'
          ),
          self._tensorboard(),
        )
      rows, tensorboard = self._releases
      self._wait(rows.release(dict(row), round_num))
      if tensorboard is not None:
        self._wait(tensorboard.release(_finite(row), round_num))

  def _tensorboard(self):
    return tff.program.TensorBoardReleaseManager(self.file(TENSORBOARD)) if self._keeps_times else None

  @contextlib.contextmanager
  def replacing(self, name: str) -> Iterator[str]:
    """A path to write the file `name` under, which takes its place when the block has ended well."""
    stem, suffix = os.path.splitext(self.file(name))
    path = f'{stem}{UNFINISHED}{suffix}'  # Writers go by the suffix.
    with _writing(self.path):
      yield path
      os.replace(path, self.file(name))

  def write_summary(self, summary: Mapping[str, Any]):
    """Writes summary.json."""
    with _writing(self.path):
      write_json(self.file(SUMMARY), summary)

  def read_summary(self) -> Optional[dict[str, Any]]:
    """summary.json, or None if there is none."""
    return read_summary(self.path)

  def remove_checkpoints(self):
    """Removes all checkpoints, and the seed of the noise with them."""
    shutil.rmtree(self.file(CHECKPOINTS))

  def close(self):
    """Lets another process use the folder."""
    self._loop.close()
    self._lock.close()

  def _wait(self, coroutine):
    return self._loop.run_until_complete(coroutine)


@contextlib.contextmanager
def _writing(path: str) -> Iterator[None]:
  """Errors of the file system as errors of the folder, whichever library they come from."""
  try:
    yield
  except OSError as error:
    raise RunDirectoryError(f'{path} cannot be written: {error.strerror or error}') from error
  except Exception as error:  # TensorFlow's file system has errors of its own.
    if not type(error).__module__.startswith('tensorflow'):
      raise
    said = _OF_TENSORFLOW.sub('', str(getattr(error, 'message', error)))
    raise RunDirectoryError(f'{path} cannot be written: {said}') from error


@contextlib.contextmanager
def _private() -> Iterator[None]:
  """Files made in the block can be read only by their owner, from the start."""
  before = os.umask(0o077)
  try:
    yield
  finally:
    os.umask(before)


def _absolute(path: str) -> str:
  if not path:
    raise RunDirectoryError('output_dir is empty; give a folder.')
  return os.path.abspath(path)


def _through_json(value):
  """The value as a JSON file gives it back: tuples are lists."""
  return json.loads(json.dumps(dict(value)))


def _differences(kept, identity):
  """A line for each flag of two values, '' if there is none."""
  return ''.join(
    f'\n  --{name}: {kept.get(name)!r} there, {identity.get(name)!r} now'
    for name in sorted({*kept, *identity})
    if kept.get(name) != identity.get(name)
  )


def _finite(row):
  return {key: value for key, value in row.items() if np.isfinite(value)}


def write_json(path: str, value: Any):
  """Writes a JSON file under another name and renames it."""
  with open(path + UNFINISHED, 'w', encoding='utf-8') as f:
    json.dump(value, f, indent=2, allow_nan=False, ensure_ascii=False)
    f.write('\n')
  os.replace(path + UNFINISHED, path)
