"""The folder of a run: what was asked, with what versions, how far it came. One process holds it at a time.

    run.json                 every flag, the versions, the machine
    metrics.csv              one row a round
    checkpoints/round_<t>    server state and ledger after round t
    tensorboard/             the rows again
    final_model.keras        the model with its last weights
    plot.png, summary.json   at the end
"""

import asyncio
import fcntl
import json
import os
import platform
import sys
from typing import Any, Dict, Mapping, Optional, Tuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import quap_tff

_CHECKPOINTS_KEPT = 2


class RunDirectoryError(ValueError):
  """The output directory cannot be used for this run."""


class RunDirectory:
  """A run's folder, locked for this process until `close`."""

  def __init__(self, path: str, all_flags: Mapping[str, Any], identity: Mapping[str, Any]):
    """Takes the folder, making it if need be.

    Args:
      path: The folder: new, empty, or of a run with the same `identity`.
      all_flags: Every flag, to be written down.
      identity: The flags that say what is computed.

    Raises:
      RunDirectoryError: If it holds something else, a run with other flags (the message says which differ), or another
        process is at work in it. Nothing has been written then.
    """
    self.path = os.path.abspath(path)
    # Through JSON and back, as the kept flags have gone.
    identity = json.loads(json.dumps(dict(identity)))
    self.is_new = self._check(identity)
    os.makedirs(self.path, exist_ok=True)
    self._lock = open(self.file('.lock'), 'w')
    try:
      fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
      raise RunDirectoryError(f'Another process is training in {self.path}.') from None
    if self.is_new:
      run = {'identity': identity, 'flags': dict(all_flags), 'versions': _versions(), 'machine': _machine()}
      _write_json(self.file('run.json'), run)
    self._loop = asyncio.new_event_loop()
    self._states = tff.program.FileProgramStateManager(
        self.file('checkpoints'), prefix='round_', keep_total=_CHECKPOINTS_KEPT, keep_first=False
    )
    # Written whole and renamed into place: a kill leaves the old file or the new one.
    self._csv = tff.program.CSVFileReleaseManager(
        self.file('metrics.csv'), save_mode=tff.program.CSVSaveMode.WRITE, key_fieldname='round'
    )
    self._tensorboard = tff.program.TensorBoardReleaseManager(self.file('tensorboard'))

  def file(self, name: str) -> str:
    """The path of a file in the folder."""
    return os.path.join(self.path, name)

  def _check(self, identity):
    """Whether the folder is new; raises unless it is, or belongs to this run."""
    if os.path.exists(self.path) and not os.path.isdir(self.path):
      raise RunDirectoryError(f'output_dir {self.path} is a file; give a folder.')
    if not os.path.isdir(self.path) or not set(os.listdir(self.path)) - {'.lock'}:
      return True
    try:
      with open(self.file('run.json')) as f:
        kept = json.load(f)['identity']
    except (OSError, ValueError, KeyError, TypeError):
      raise RunDirectoryError(
          f'output_dir {self.path} holds files, but no readable run.json of an earlier run: give a new or empty folder.'
      ) from None
    names = sorted(set(kept) | set(identity))
    differing = [name for name in names if kept.get(name) != identity.get(name)]
    if differing:
      lines = ''.join(f'\n  --{n}: {kept.get(n)!r} there, {identity.get(n)!r} now' for n in differing)
      raise RunDirectoryError(
          f'output_dir {self.path} belongs to a run with other flags:{lines}\nGive the same flags to go on with it, or '
          'another folder.'
      )
    return False

  def save(self, round_num: int, state: Any, ledger: Mapping[str, np.ndarray]):
    """Keeps a checkpoint; it stands complete or not at all."""
    if round_num not in (self._wait(self._states.get_versions()) or []):
      leaves = [np.asarray(leaf) for leaf in tf.nest.flatten(state)]
      self._wait(self._states.save([leaves, [ledger[key] for key in sorted(ledger)]], round_num))

  def restore(self, state: Any, ledger: Mapping[str, np.ndarray]) -> Optional[Tuple[int, Any, Dict[str, np.ndarray]]]:
    """The latest checkpoint as (round, state, ledger), or None if there is none.

    Args:
      state: A state of the same learning process, for its structure.
      ledger: A ledger's state, for its keys.

    Raises:
      RunDirectoryError: If the checkpoint cannot be read or is of another configuration.
    """
    versions = self._wait(self._states.get_versions())
    if not versions:
      return None
    round_num = versions[-1]
    expected = [np.asarray(leaf) for leaf in tf.nest.flatten(state)]
    structure = [expected, [ledger[key] for key in sorted(ledger)]]
    try:
      kept, kept_ledger = self._wait(self._states.load(round_num, structure))
    except (OSError, ValueError, TypeError, tf.errors.OpError) as error:
      raise RunDirectoryError(
          f'The checkpoint of round {round_num} in {self.path} cannot be read ({error}). Remove that checkpoint to go on '
          'from an earlier one, or the folder to start anew.'
      ) from error
    if [(np.shape(k), np.asarray(k).dtype) for k in kept] != [(e.shape, e.dtype) for e in expected]:
      raise RunDirectoryError(
          f'The checkpoint of round {round_num} in {self.path} is of another configuration: its tensors are not those of '
          'this run\'s state.'
      )
    return round_num, tf.nest.pack_sequence_as(state, kept), dict(zip(sorted(ledger), kept_ledger))

  def log(self, round_num: int, row: Mapping[str, Any]):
    """Writes a round's metrics; rows of the same or later rounds, left by a run that was cut off, go."""
    self._wait(self._csv.release(dict(row), round_num))
    scalars = {key: value for key, value in row.items() if np.isfinite(value)}
    self._wait(self._tensorboard.release(scalars, round_num))

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


def _write_json(path, value):
  with open(path + '.part', 'w') as f:
    json.dump(value, f, indent=2)
    f.write('\n')
  os.replace(path + '.part', path)


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
