"""The folder of a run: its flags, its versions, its results. One process holds it at a time.

    run.json                 every flag, the facts that follow from the data, the versions, the machine, and which code
                             ran which rounds
    metrics.csv              one row a round
    tensorboard/             the rows again, with the time of each: not where client metrics are withheld
    checkpoints/             server state, ledger and average of weights after a round, and the seed of secret cohorts:
                             secret, see below
    final_model.keras        the model with its last weights
    plot.png, summary.json   at the end

A checkpoint contains the seed of the noise, so anyone who has one can subtract the noise. From the start, only the
owner can read the folder of checkpoints. It is removed when the run has finished its last planned round. A run whose
cohorts are secret leaves no ledger.npz and no clients.csv.
"""

import asyncio
from collections.abc import Iterator, Mapping
import contextlib
import csv
import hashlib
import os
import re
import secrets
import shutil
from typing import Any, Optional

import filelock
import numpy as np

from experiments import checkpoints
from experiments import provenance
from experiments import run_folder
from experiments import sparse_state
from quap_tff.common import files
from quap_tff.common.lazy import tf
from quap_tff.common.lazy import tff

# Parts of TensorFlow's errors that speak of its own functions and operations.
_OF_TENSORFLOW = re.compile(r'\{\{function_node .*?\}\}\s*|\s*\[Op:\w+\]')
_SALT = 'data_salt'
_SECRET_BYTES = 32


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
      resolved: The facts that follow from the data.
      data_digest: Of the clients' data. The folder keeps a commitment to it, with a secret salt: the digest itself
        would confirm a guess of a client's data.
      needs_same_code: Whether a run whose last round was run by other code than this is refused.
      keeps_times: Whether TensorBoard's files are written, which hold the time of each round. A round takes as long as
        its clients' data are large.

    Raises:
      RunDirectoryError: If it holds something else, a run with other flags, of other data or of other code, another
        process is at work in it, or it cannot be written.
    """
    self.path, self._num_clients, self._keeps_times = run_folder.absolute(path), resolved['num_clients'], keeps_times
    run_folder.check(self.path, identity, needs_same_code)
    self._lock = filelock.FileLock(self.file(run_folder.LOCK))
    try:
      os.makedirs(self.path, exist_ok=True)
      self._lock.acquire(timeout=0)
    except filelock.Timeout:
      raise run_folder.RunDirectoryError(f'Another process is training in {self.path}.') from None
    except OSError as error:
      raise run_folder.RunDirectoryError(f'output_dir {self.path} cannot be used: {error}.') from error
    self._loop = asyncio.new_event_loop()
    try:
      with _writing(self.path):
        # Again, now that no other process can change it.
        self.is_new = run_folder.check(self.path, identity, needs_same_code).is_new
        self._make_checkpoints_folder()
        resolved = {**resolved, 'data_commitment': self._commitment(data_digest)}
        if self.is_new:
          files.write_json(
            self.file(run_folder.RUN),
            {
              'identity': run_folder.through_json(identity),
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
    except BaseException:
      self.close()
      raise
    self._releases: Optional[tuple[Any, Any]] = None

  def file(self, name: str) -> str:
    """The path of a file in the folder."""
    return os.path.join(self.path, name)

  @property
  def secrets(self) -> str:
    """The folder of what must stay secret. It is deleted when the run is finished."""
    return self.file(run_folder.CHECKPOINTS)

  def _make_checkpoints_folder(self):
    with files.private():
      os.makedirs(self.file(run_folder.CHECKPOINTS), exist_ok=True)
    os.chmod(self.file(run_folder.CHECKPOINTS), 0o700)

  def secret(self, name: str) -> bytes:
    """32 bytes from the operating system's entropy: the same for as long as the run goes on, and deleted at its end."""
    path = os.path.join(self.secrets, name)
    if not os.path.exists(path):
      with _writing(self.path), files.private():
        files.write(path, secrets.token_bytes(_SECRET_BYTES))
    with open(path, 'rb') as f:
      return f.read()

  def _commitment(self, data_digest: bytes) -> str:
    """SHA-256 of a secret salt and the digest: shows whether data are the same, and reveals nothing else."""
    return hashlib.sha256(b'data of a run' + self.secret(_SALT) + data_digest).hexdigest()

  def _check_resolved(self, resolved):
    try:
      kept = files.read_json(self.file(run_folder.RUN))['resolved']
      same_data = kept['data_commitment'] == resolved['data_commitment']
    except (OSError, ValueError, KeyError, TypeError):
      raise run_folder.RunDirectoryError(
        f'{self.file(run_folder.RUN)} does not say which data its run uses, because an older version wrote it. Give '
        'another folder.'
      ) from None
    if not same_data:
      raise run_folder.RunDirectoryError(
        f'output_dir {self.path} belongs to a run on other data: it was started with other examples than those read '
        'now. Give the --data_dir (and the files in it) of that run, or another folder.'
      )
    others = {name for name in {*kept, *resolved} if kept.get(name) != run_folder.through_json(resolved).get(name)}
    if others:
      raise run_folder.RunDirectoryError(
        f'output_dir {self.path} belongs to another run: {", ".join(sorted(others))} differ. Give another folder.'
      )

  def _remove_unfinished(self):
    """Removes unfinished files, which have names of their own, that a killed run left."""
    for folder in (self.path, self.file(run_folder.CHECKPOINTS)):
      for name in run_folder.names_in(folder):
        if re.fullmatch(r'metrics\.csv_temp\d+|.+\.part(\.\w+)?', name):
          path = os.path.join(folder, name)
          shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)

  def begin_stretch(self, first_round: int) -> None:
    """Writes down that this code runs the rounds from `first_round` on, unless it ran the one before, too."""
    with _writing(self.path):
      run = files.read_json(self.file(run_folder.RUN))
      stretches = provenance.continued(run, first_round)
      if stretches != run.get(provenance.STRETCHES):
        files.write_json(self.file(run_folder.RUN), {**run, provenance.STRETCHES: stretches})

  def save(self, round_num: int, state: Any, records: Mapping[str, np.ndarray]) -> None:
    """Saves a checkpoint, completely or not at all."""
    with _writing(self.path), files.private():
      if round_num not in checkpoints.rounds(self.secrets):
        _, structure = self._structured(state, records)
        checkpoints.save(self.secrets, round_num, tf.nest.flatten(structure))

  def restore(self, state: Any, records: Mapping[str, np.ndarray]) -> Optional[tuple[int, Any, dict[str, np.ndarray]]]:
    """The latest checkpoint as (round, state, records), or None if there is none.

    Args:
      state: A state of the same learning process, for its structure.
      records: Arrays by name, for the names.

    Raises:
      RunDirectoryError: If the checkpoint cannot be read or is of another configuration.
    """
    versions = checkpoints.rounds(self.secrets)
    if not versions:
      return None
    round_num = versions[-1]
    name = f'The checkpoint of round {round_num} in {self.path}'
    other_configuration = f"{name} is of another configuration: its tensors are not those of this run's state."
    expected, structure = self._structured(state, records)
    try:
      arrays = checkpoints.load(self.secrets, round_num)
    except Exception as error:  # The readers of zip files and arrays raise nearly anything for a damaged file.
      raise run_folder.RunDirectoryError(
        f'{name} cannot be read ({error}). Remove that checkpoint to continue from an earlier one, or the folder to '
        'start anew.'
      ) from error
    try:
      kept, kept_records = tf.nest.pack_sequence_as(structure, arrays)
      kept = sparse_state.unpacked(kept, expected, self._num_clients)
    except ValueError as error:
      raise run_folder.RunDirectoryError(f'{other_configuration} ({error})') from error
    if [(np.shape(k), np.asarray(k).dtype) for k in kept] != [(e.shape, e.dtype) for e in expected]:
      raise run_folder.RunDirectoryError(other_configuration)
    return round_num, tf.nest.pack_sequence_as(state, kept), dict(zip(sorted(records), kept_records))

  def _structured(self, state, records) -> tuple[list[np.ndarray], list[Any]]:
    """The leaves of the state, and all that a checkpoint keeps."""
    leaves = [np.asarray(leaf) for leaf in tf.nest.flatten(state)]
    return leaves, [sparse_state.packed(leaves, self._num_clients), [records[key] for key in sorted(records)]]

  def keep_rows(self, round_num: int, last_row: Mapping[str, Any]) -> None:
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
      shutil.rmtree(self.file(run_folder.TENSORBOARD), ignore_errors=True)
      manager = self._tensorboard() if rows else None
      for row in rows if manager is not None else ():
        self._wait(manager.release(_finite({k: v for k, v in row.items() if k != 'round'}), int(row['round'])))
    if is_last_missing:
      self.log(round_num, last_row)

  def _lost_rows(self, round_num):
    return run_folder.RunDirectoryError(
      f'{self.file(run_folder.METRICS)} is damaged: it must hold one row for each of the first {round_num} rounds, as '
      'numbers. Put it back, or give another folder to start anew.'
    )

  def _read_rows(self, round_num) -> list[dict[str, float]]:
    path = self.file(run_folder.METRICS)
    if round_num == 0 or (round_num == 1 and not os.path.exists(path)):
      return []
    try:
      with open(path, newline='', encoding='utf-8') as f:
        rows = [{name: float(value or 'nan') for name, value in row.items()} for row in csv.DictReader(f)]
      return [row for row in rows if row['round'] <= round_num]
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
      raise self._lost_rows(round_num) from None

  def log(self, round_num: int, row: Mapping[str, Any]) -> None:
    """Writes a round's metrics; rows of the same or later rounds, left by a run that was cut off, are removed."""
    with _writing(self.path):
      if self._releases is None:
        # Made with the first row, because making it writes a file, and a run that is already finished writes none.
        self._releases = (
          # Written whole and renamed into place: a kill leaves the old file or the new one.
          tff.program.CSVFileReleaseManager(
            self.file(run_folder.METRICS), save_mode=tff.program.CSVSaveMode.WRITE, key_fieldname='round'
          ),
          self._tensorboard(),
        )
      rows, tensorboard = self._releases
      self._wait(rows.release(dict(row), round_num))
      if tensorboard is not None:
        self._wait(tensorboard.release(_finite(row), round_num))

  def _tensorboard(self):
    return tff.program.TensorBoardReleaseManager(self.file(run_folder.TENSORBOARD)) if self._keeps_times else None

  @contextlib.contextmanager
  def replacing(self, name: str) -> Iterator[str]:
    """A path to write the file `name` under, which takes its place when the block has ended well."""
    with _writing(self.path), files.replacing(self.file(name), keep_suffix=True) as path:
      yield path

  def writing(self) -> contextlib.AbstractContextManager[None]:
    """A block that writes files of the folder; errors of the file system become errors of the folder."""
    return _writing(self.path)

  def write_summary(self, summary: Mapping[str, Any]) -> None:
    """Writes summary.json."""
    with _writing(self.path):
      files.write_json(self.file(run_folder.SUMMARY), summary)

  def read_summary(self) -> Optional[dict[str, Any]]:
    """summary.json, or None if there is none."""
    return run_folder.read_summary(self.path)

  def remove_checkpoints(self) -> None:
    """Removes all checkpoints, and the seed of the noise with them."""
    shutil.rmtree(self.file(run_folder.CHECKPOINTS))

  def close(self) -> None:
    """Lets another process use the folder."""
    self._loop.close()
    self._lock.release()

  def _wait(self, coroutine):
    return self._loop.run_until_complete(coroutine)


@contextlib.contextmanager
def _writing(path: str) -> Iterator[None]:
  """Errors of the file system as errors of the folder, whichever library they come from."""
  try:
    yield
  except OSError as error:
    raise run_folder.RunDirectoryError(f'{path} cannot be written: {error.strerror or error}') from error
  except Exception as error:  # TensorFlow's file system has errors of its own.
    if not type(error).__module__.startswith('tensorflow'):
      raise
    said = _OF_TENSORFLOW.sub('', str(getattr(error, 'message', error)))
    raise run_folder.RunDirectoryError(f'{path} cannot be written: {said}') from error


def _finite(row):
  return {key: value for key, value in row.items() if np.isfinite(value)}
