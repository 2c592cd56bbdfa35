"""The folder of a run: its flags, its versions, its results. One process holds it at a time.

    run.json                 every flag, the facts that follow from the data, the versions, the machine, and which code
                             ran which rounds
    metrics.csv              one row a round
    tensorboard/             the rows again, with the time of each: not where client metrics are withheld
    checkpoints/             `state`, from which the run goes on, and `secret`, behind clients' keys and secret cohorts
    final_model.keras        the model with its last weights
    ledger.npz, clients.csv  who came when, and what each client has spent
    certificate/             of a certified run, in place of these three: all that its certificate is bound to
    plot.png, summary.json   at the end

The state contains the seed of the noise, so anyone who has it can subtract the noise. From the start, only the owner
can read the folder of checkpoints. A run does not go on from a state that is damaged, in use, or not the latest one
(`quap_tff.common.durable`). The folder is removed when the run has finished its last planned round. A run whose cohorts
are secret leaves no ledger.npz and no clients.csv.
"""

from collections.abc import Iterator
import contextlib
import hashlib
import hmac
import os
import re
import secrets
import shutil
from typing import Optional

import filelock

from experiments.folders import folder as run_folder
from experiments.folders import round_log
from quap_tff import certificates
from quap_tff.common import durable
from quap_tff.common import files
from quap_tff.common import json_types
from quap_tff.serving import store as stores

# Parts of TensorFlow's errors that speak of its own functions and operations.
_OF_TENSORFLOW = re.compile(r'\{\{function_node .*?\}\}\s*|\s*\[Op:\w+\]')
_SECRET_BYTES = 32


class RunDirectory:
  """A run's folder, locked for this process until `close`.

  Attributes:
    path: The folder.
    is_new: Whether the run begins here.
    finished: summary.json of a run that was finished before this process got the lock, perhaps by the same command;
      else None. The folder is left as it is then, and only `close` may be called.
  """

  def __init__(
    self,
    path: str,
    all_flags: json_types.JsonView,
    identity: json_types.JsonView,
    resolved: json_types.JsonView,
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
      data_digest: The digest of the clients' data. The folder keeps a commitment to it, with a secret salt: the digest
        itself would confirm a guess of a client's data.
      needs_same_code: Whether a run whose last round was run by other code than this is refused.
      keeps_times: Whether TensorBoard's files are written, which hold the time of each round. A round takes as long as
        its clients' data are large.

    Raises:
      RunDirectoryError: If it holds something else, a run with other flags, of other data or of other code, another
        process is at work in it, or it cannot be written.
    """
    self.path = run_folder.absolute(path)
    self._store: Optional[stores.Store] = None
    run_folder.check(self.path, identity, needs_same_code)
    self._lock = filelock.FileLock(self.file(run_folder.LOCK))
    try:
      os.makedirs(self.path, exist_ok=True)
      self._lock.acquire(timeout=0)
    except filelock.Timeout:
      raise run_folder.RunDirectoryError(f'Another process is training in {self.path}.') from None
    except OSError as error:
      raise run_folder.RunDirectoryError(f'output_dir {self.path} cannot be used: {error}.') from error
    try:
      with self.writing():
        # Again, now that no other process can change it.
        self.is_new, self.finished = run_folder.check(self.path, identity, needs_same_code)
        if self.finished is not None:
          return
        self._secret = self._new_secret() if self.is_new else run_folder.read_secret(self.path)
        resolved = {**resolved, 'data_commitment': self._commitment(data_digest)}
        if self.is_new:
          files.write_json(
            self.file(run_folder.RUN),
            {
              'identity': run_folder.through_json(identity),
              'resolved': resolved,
              'flags': dict(all_flags),
              'versions': run_folder.versions(),
              'machine': run_folder.machine(),
              run_folder.STRETCHES: [],
            },
          )
        else:
          self._check_resolved(resolved)
        self._remove_unfinished()
        self._store = self._opened()
    except BaseException:
      self.close()
      raise
    self._log = round_log.RoundLog(self.path, keeps_times)

  def _opened(self) -> stores.Store:
    try:
      # Whoever removed a run with all of its results began anew.
      return stores.Store(os.path.join(self.secrets, run_folder.STATE), anew=self.is_new)
    except durable.StateError as error:
      raise run_folder.RunDirectoryError(str(error)) from None

  @property
  def store(self) -> stores.Store:
    """Where the state of the run is kept."""
    assert self._store is not None  # Not in a folder whose run was finished before.
    return self._store

  def file(self, name: str) -> str:
    """The path of a file in the folder."""
    return os.path.join(self.path, name)

  @property
  def secrets(self) -> str:
    """The folder of checkpoints and secrets. It is deleted when the run is finished."""
    return self.file(run_folder.CHECKPOINTS)

  def _new_secret(self) -> bytes:
    """The secret of a new run. It replaces the secret of a run that was killed before its first checkpoint."""
    secret = secrets.token_bytes(_SECRET_BYTES)
    os.makedirs(self.secrets, 0o700, exist_ok=True)
    os.chmod(self.secrets, 0o700)
    files.write_sealed(os.path.join(self.secrets, run_folder.SECRET), secret)
    return secret

  def secret(self, name: str) -> bytes:
    """32 secret bytes for one use, which `name` says: the same for as long as the run goes on, and lost at its end."""
    return hmac.digest(self._secret, name.encode(), 'sha256')

  def _commitment(self, data_digest: bytes) -> str:
    """SHA-256 of a secret salt and the digest: shows whether data are the same, and reveals nothing else."""
    return hashlib.sha256(b'data of a run' + self.secret('data_salt') + data_digest).hexdigest()

  def _check_resolved(self, resolved: json_types.JsonView) -> None:
    try:
      kept = files.read_json(self.file(run_folder.RUN))['resolved']
      same_data = kept['data_commitment'] == resolved['data_commitment']
    except (OSError, ValueError, KeyError, TypeError):
      raise run_folder.RunDirectoryError(
        f'{self.file(run_folder.RUN)} is damaged: it does not say which data its run uses. Put it back to continue the '
        'run, or give another folder to start anew.'
      ) from None
    if not same_data:
      raise run_folder.RunDirectoryError(
        f'output_dir {self.path} belongs to a run on other data: it was started with other examples than those read '
        f'now, or {self.secrets} is of another run. Give the --data_dir (and the files in it) of that run, or another '
        'folder.'
      )
    others = {name for name in {*kept, *resolved} if kept.get(name) != run_folder.through_json(resolved).get(name)}
    if others:
      raise run_folder.RunDirectoryError(
        f'output_dir {self.path} belongs to another run: {", ".join(sorted(others))} differ. Give another folder.'
      )

  def _remove_unfinished(self) -> None:
    """Removes unfinished files, which have names of their own, that a killed run left."""
    for folder in (self.path, self.file(run_folder.CHECKPOINTS)):
      for name in os.listdir(folder):
        if re.fullmatch(r'.+\.part(\.\w+)?', name):
          path = os.path.join(folder, name)
          shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)

  def begin_stretch(self, first_round: int) -> None:
    """Writes down that this code runs the rounds from `first_round` on, unless it also ran the one before.

    The certificate of a run that ended earlier goes, because it does not cover what is released from now on.
    """
    self.remove_certificate()
    with self.writing():
      run = files.read_json(self.file(run_folder.RUN))
      stretches = run_folder.continued(run, first_round)
      if stretches != run.get(run_folder.STRETCHES):
        files.write_json(self.file(run_folder.RUN), {**run, run_folder.STRETCHES: stretches})

  def keep_rows(self, round_num: int, last_row: json_types.JsonView) -> None:
    """Checks that the rows of the rounds up to a checkpoint are there.

    Args:
      round_num: The round of the checkpoint.
      last_row: Its row, which is written if the run was cut off before it could be.

    Raises:
      RunDirectoryError: If a row is missing or damaged. Nothing is written then.
    """
    if not self._log.has_last_row(round_num):
      self.log(round_num, last_row)

  def log(self, round_num: int, row: json_types.JsonView) -> None:
    """Writes a round's metrics; rows of the same or later rounds, left by a run that was cut off, are removed."""
    with self.writing():
      self._log.append(round_num, row)

  @contextlib.contextmanager
  def replacing(self, name: str) -> Iterator[str]:
    """A path to write the file `name` under, which takes its place when the block has ended well."""
    with self.writing(), files.replacing(self.file(name), keep_suffix=True) as path:
      yield path

  @contextlib.contextmanager
  def writing(self) -> Iterator[None]:
    """A block that writes files of the folder; errors of the file system become errors of the folder."""
    try:
      yield
    except OSError as error:
      raise run_folder.RunDirectoryError(f'{self.path} cannot be written: {error.strerror or error}') from error
    except Exception as error:  # TensorFlow's file system has errors of its own.
      if not type(error).__module__.startswith('tensorflow'):
        raise
      said = _OF_TENSORFLOW.sub('', str(getattr(error, 'message', error)))
      raise run_folder.RunDirectoryError(f'{self.path} cannot be written: {said}') from error

  def write_summary(self, summary: json_types.JsonView) -> None:
    """Writes summary.json."""
    with self.writing():
      files.write_json(self.file(run_folder.SUMMARY), summary)

  def remove_certificate(self) -> None:
    """Removes the folder of the certificate, and the audit that is bound to it, if they are there."""
    with self.writing():
      certificates.remove(self.path)

  def remove_checkpoints(self) -> None:
    """Removes the state, and the secrets with it."""
    self.store.close()
    # The secret last: a run with a state and without it is damaged.
    os.remove(self.store.path)
    shutil.rmtree(self.secrets)

  def close(self) -> None:
    """Lets another process use the folder."""
    if self._store is not None:
      self._store.close()
    self._lock.release()
