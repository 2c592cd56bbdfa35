"""The folder of a run: what was asked, with what versions, how far it came. One process holds it at a time.

    run.json                 every flag, the versions, the machine
    metrics.csv              one row a round
    checkpoints/round_<t>    server state, ledger and average of weights after round t
    tensorboard/             the rows again
    final_model.keras        the model with its last weights
    plot.png, summary.json   at the end
"""

import asyncio
import contextlib
import fcntl
import json
import os
import platform
import re
import shutil
import sys
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import quap_tff

_CHECKPOINTS_KEPT = 2
_RUN = 'run.json'
_UNFINISHED = '.part'


class RunDirectoryError(ValueError):
  """The output directory cannot be used for this run."""


def check(path: str, identity: Mapping[str, Any]) -> bool:
  """Whether `path` is a new run's folder; False for one that holds a run with this `identity`. Changes nothing.

  Raises:
    RunDirectoryError: If it is neither; the message says which flags differ.
  """
  path = _absolute(path)
  if not os.path.isdir(path):
    if os.path.lexists(path):
      raise RunDirectoryError(f'output_dir {path} is a file; give a folder.')
    return True
  try:
    names = set(os.listdir(path))
    # What a run leaves that was killed before its run.json stood.
    if not names - {'.lock', _RUN + _UNFINISHED}:
      return True
    with open(os.path.join(path, _RUN)) as f:
      kept = json.load(f)['identity']
    differing = _differences(kept, _through_json(identity))
  except (OSError, ValueError, KeyError, TypeError, AttributeError):
    raise RunDirectoryError(
        f'output_dir {path} holds files, but no readable {_RUN} of an earlier run: give a new or empty folder.'
    ) from None
  if differing:
    raise RunDirectoryError(
        f'output_dir {path} belongs to a run with other flags:{differing}\nGive the same flags to go on with it, or '
        'another folder.'
    )
  return False


class RunDirectory:
  """A run's folder, locked for this process until `close`."""

  def __init__(self, path: str, all_flags: Mapping[str, Any], identity: Mapping[str, Any]):
    """Takes the folder, making it if need be.

    Args:
      path: The folder: new, empty, or of a run with the same `identity`.
      all_flags: Every flag, to be written down.
      identity: The flags that say what is computed.

    Raises:
      RunDirectoryError: If it holds something else, a run with other flags (the message says which differ), another
        process is at work in it, or it cannot be written. Nothing has been written then.
    """
    self.path = _absolute(path)
    check(self.path, identity)
    try:
      os.makedirs(self.path, exist_ok=True)
      self._lock = open(self.file('.lock'), 'a')
    except OSError as error:
      raise RunDirectoryError(f'output_dir {self.path} cannot be used: {error}.') from error
    try:
      fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
      self._lock.close()
      raise RunDirectoryError(f'Another process is training in {self.path}.') from None
    # Again, now that no other process can change it.
    self.is_new = check(self.path, identity)
    if self.is_new:
      run = {
          'identity': _through_json(identity), 'flags': dict(all_flags), 'versions': _versions(), 'machine': _machine()
      }
      _write_json(self.file(_RUN), run)
    self._remove_unfinished()
    self._loop = asyncio.new_event_loop()
    self._states = tff.program.FileProgramStateManager(
        self.file('checkpoints'), prefix='round_', keep_total=_CHECKPOINTS_KEPT, keep_first=False
    )
    self._releases = None

  def file(self, name: str) -> str:
    """The path of a file in the folder."""
    return os.path.join(self.path, name)

  def _remove_unfinished(self):
    """Removes what TFF's managers were writing, under a name of their own, when a run was killed."""
    for folder in (self.path, self.file('checkpoints')):
      for name in os.listdir(folder) if os.path.isdir(folder) else ():
        if re.fullmatch(r'(round_\d+|metrics\.csv)_temp\d+', name):
          path = os.path.join(folder, name)
          shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)

  def save(self, round_num: int, state: Any, records: Mapping[str, np.ndarray]):
    """Keeps a checkpoint; it stands complete or not at all."""
    if round_num not in (self._wait(self._states.get_versions()) or []):
      leaves = [np.asarray(leaf) for leaf in tf.nest.flatten(state)]
      self._wait(self._states.save([leaves, [records[key] for key in sorted(records)]], round_num))

  def restore(
      self, state: Any, records: Mapping[str, np.ndarray]
  ) -> Optional[Tuple[int, Any, Dict[str, np.ndarray]]]:
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
    other_configuration = f'{name} is of another configuration: its tensors are not those of this run\'s state.'
    expected = [np.asarray(leaf) for leaf in tf.nest.flatten(state)]
    structure = [expected, [records[key] for key in sorted(records)]]
    try:
      kept, kept_records = self._wait(self._states.load(round_num, structure))
    except Exception as error:  # TensorFlow's loader raises nearly anything for a damaged file.
      if 'same nested structure' in str(error):
        raise RunDirectoryError(other_configuration) from error
      raise RunDirectoryError(
          f'{name} cannot be read ({error}). Remove that checkpoint to go on from an earlier one, or the folder to '
          'start anew.'
      ) from error
    if [(np.shape(k), np.asarray(k).dtype) for k in kept] != [(e.shape, e.dtype) for e in expected]:
      raise RunDirectoryError(other_configuration)
    return round_num, tf.nest.pack_sequence_as(state, kept), dict(zip(sorted(records), kept_records))

  def log(self, round_num: int, row: Mapping[str, Any]):
    """Writes a round's metrics; rows of the same or later rounds, left by a run that was cut off, go."""
    if self._releases is None:
      # Made with the first row: to make one writes a file, and a run that is finished already writes none.
      self._releases = (
          # Written whole and renamed into place: a kill leaves the old file or the new one.
          tff.program.CSVFileReleaseManager(
              self.file('metrics.csv'), save_mode=tff.program.CSVSaveMode.WRITE, key_fieldname='round'
          ),
          tff.program.TensorBoardReleaseManager(self.file('tensorboard')),
      )
    csv, tensorboard = self._releases
    self._wait(csv.release(dict(row), round_num))
    scalars = {key: value for key, value in row.items() if np.isfinite(value)}
    self._wait(tensorboard.release(scalars, round_num))

  @contextlib.contextmanager
  def replacing(self, name: str) -> Iterator[str]:
    """A path to write the file `name` under, which takes its place when the block has ended well."""
    stem, suffix = os.path.splitext(self.file(name))
    path = f'{stem}{_UNFINISHED}{suffix}'  # Writers go by the suffix.
    yield path
    os.replace(path, self.file(name))

  def write_summary(self, summary: Mapping[str, Any]):
    """Writes summary.json."""
    _write_json(self.file('summary.json'), summary)

  def read_summary(self) -> Optional[Dict[str, Any]]:
    """summary.json, or None if there is none."""
    try:
      with open(self.file('summary.json')) as f:
        return json.load(f)
    except (OSError, ValueError):
      return None

  def close(self):
    """Gives the folder free."""
    self._loop.close()
    self._lock.close()

  def _wait(self, coroutine):
    return self._loop.run_until_complete(coroutine)


def _absolute(path: str) -> str:
  if not path:
    raise RunDirectoryError('output_dir is empty; give a folder.')
  return os.path.abspath(path)


def _through_json(identity):
  """As the kept flags have gone."""
  return json.loads(json.dumps(dict(identity)))


def _differences(kept, identity):
  """A line for each flag of two values, '' if there is none."""
  return ''.join(
      f'\n  --{name}: {kept.get(name)!r} there, {identity.get(name)!r} now'
      for name in sorted({*kept, *identity})
      if kept.get(name) != identity.get(name)
  )


def _write_json(path, value):
  with open(path + _UNFINISHED, 'w') as f:
    json.dump(value, f, indent=2, allow_nan=False)
    f.write('\n')
  os.replace(path + _UNFINISHED, path)


def _versions():
  return {
      'quap_tff': quap_tff.__version__,
      'tensorflow_federated': tff.__version__,
      'tensorflow': tf.__version__,
      'numpy': np.__version__,
      'python': sys.version.split()[0],
  }


def _machine():
  return {
      'platform': platform.platform(),
      'cores': len(os.sched_getaffinity(0)),
      'gpus': len(tf.config.list_physical_devices('GPU')),
  }
