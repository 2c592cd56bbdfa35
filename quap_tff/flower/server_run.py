"""A run as its server keeps it: in a folder, from which it goes on after a restart.

    checkpoint    state, ledger, and everything that was announced; it holds the key of the noise
    .lock         held by the server that works with the folder
    run/          what comes out, with the certificate: made after the last round

The checkpoint is written before a round is announced where clients hold the noise, and before anything of a round
leaves the server. So a server that is started again never releases a second sum under the noise of a first one, and
never tells clients another history.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import fcntl
import io
import os
from typing import Any, Optional

import numpy as np

from quap_tff.bundle import player
from quap_tff.bundle import server as servers
from quap_tff.bundle import simulation
from quap_tff.common import files
from quap_tff.flower import messages
from quap_tff.flower import sums

CHECKPOINT, LOCK, RESULT = 'checkpoint', '.lock', 'run'
_NOBODY = np.zeros(0, np.int64)
# What a certificate says of the method where nobody ran the protocol of a secure sum.
_PLAIN_SUM = ', with sums that the server adds itself: no secure sum was run'


class ServerRun:
  """A run, at the round after its checkpoint.

  Attributes:
    server: State, ledger and average.
    cohorts: int64[M_t], the clients that are planned for each round.
    history: The rounds that were announced.
    came: int64[M], who came in the last of them.
    holds_noise: Whether clients hold the noise.
  """

  def __init__(self, bundle: player.Bundle, folder: str):
    """Starts a run, or goes on from the checkpoint in the folder.

    Raises:
      ValueError: If the checkpoint is damaged or of another bundle, or another server works with the folder.
    """
    self.bundle, self._folder = bundle, folder
    self.server, self.cohorts = servers.Server(bundle), servers.checked_cohorts(bundle)
    self.history: list[messages.Link] = []
    self.came = _NOBODY
    plan = bundle.plan
    self.holds_noise = plan is not None and plan.holds_noise
    self._counts_all = plan is not None and plan.mechanism.facts.is_certified and not self.holds_noise
    self._threshold = plan.config.threshold if plan is not None and self.holds_noise else None
    os.makedirs(folder, mode=0o700, exist_ok=True)
    self._lock = open(os.path.join(folder, LOCK), 'w')  # Held as long as this process lives.
    try:
      fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
      raise ValueError(f'Another server works with {folder}. Stop it first, or give another output.') from None
    if os.path.lexists(self._checkpoint):
      self._restore()
    else:
      self._keep()

  @property
  def _checkpoint(self) -> str:
    return os.path.join(self._folder, CHECKPOINT)

  @property
  def round_num(self) -> int:
    """The next round, from 1."""
    return self.server.done + 1

  @property
  def is_over(self) -> bool:
    """Whether all planned rounds were played."""
    return self.server.done == len(self.cohorts)

  def planned(self) -> np.ndarray:
    """int64[M], who may come in the next round by the plan and by the account."""
    cohort = np.asarray(self.cohorts[self.server.done], np.int64)
    return cohort[self.server.ask(cohort) > 0]

  def announce(self, cohort: np.ndarray, quorum: float, seconds: float) -> Optional[messages.Announced]:
    """What the next round's nodes are told; None if the account does not let these clients come together.

    Args:
      cohort: int64[M], ascending: of those who are planned, the ones that are present.
      quorum: With a server that is trusted, the smallest share of the planned clients with which a round counts.
      seconds: How long the server waits.
    """
    least = int(np.ceil(quorum * len(self.planned())))
    if self.holds_noise:
      if not self.server.ask(cohort).all():
        return None
      least = len(cohort) if self._threshold is None else int(np.ceil(self._threshold * len(cohort)))
      self.history.append(messages.Link(self.round_num, cohort, self.came))
      self.came = _NOBODY
      self._keep()
    links = self.history if self.holds_noise else [messages.Link(self.round_num, cohort, _NOBODY)]
    message = self.bundle.prepare(self.server.state)
    return messages.Announced(self.bundle, message, list(links), least, seconds)

  def release(self, found: sums.Summed) -> None:
    """Ends a round with its sum.

    With a certified plan and a trusted server, everybody who is planned is charged, and those who did not come count
    as clients whose update is zero. So the account is the planned one, whoever is lost.
    """
    number, total, cohort = self.round_num, found.total, found.came
    if self._counts_all:
      cohort = np.asarray(self.cohorts[self.server.done], np.int64)
      message = self.bundle.prepare(self.server.state)
      for client in np.setdiff1d(cohort, found.came).tolist():
        total = self.bundle.add(total, self.bundle.work(_without_examples(self.bundle, client), message))
    self.server.release(total, cohort)
    if self._is_announced(number):
      self.came = found.came
    self._keep()

  def give_up(self) -> None:
    """Ends a round in which nobody came."""
    self.release(sums.Summed(self.bundle.zero(), _NOBODY))

  def _is_announced(self, number: int) -> bool:
    return bool(self.history) and self.history[-1].round_num == number

  def write(self, test: Optional[Any], signing_key: Optional[str] = None) -> Mapping[str, Any]:
    """Writes what comes out of the run, with its certificate. Returns the summary.

    Args:
      test: Examples and labels that no client holds, or None.
      signing_key: File with an Ed25519 private key (PEM), or None.
    """
    bundle = self.bundle
    if self.holds_noise:
      about = dataclasses.replace(bundle.about, algorithm=bundle.about.algorithm + _PLAIN_SUM)
    else:
      about = bundle.about
    path = os.path.join(self._folder, RESULT)
    return simulation.keep(bundle, simulation.outcome(self.server, test), path, signing_key, about)

  def _keep(self) -> None:
    content = {
      'bundle': np.array(self.bundle.digest),
      'came': self.came,
      **{f'link {k} {name}': np.asarray(part) for k, one in enumerate(self.history) for name, part in _named(one)},
      **self.server.state_dict(),
    }
    files.write_sealed(self._checkpoint, files.npz(content))
    # A machine that loses power must not come back with an older one.
    for path in (self._checkpoint, self._folder):
      opened = os.open(path, os.O_RDONLY)
      try:
        os.fsync(opened)
      finally:
        os.close(opened)

  def _restore(self) -> None:
    try:
      with np.load(io.BytesIO(files.read_sealed(self._checkpoint)), allow_pickle=False) as kept:
        arrays = dict(kept)
      if str(arrays['bundle']) != self.bundle.digest:
        raise ValueError(f'it is of the bundle with the digest {arrays["bundle"]}')
      self.server.load_state_dict(arrays)
      self.came = arrays['came']
      count = len([name for name in arrays if name.startswith('link ')]) // len(messages.Link._fields)
      parts = [[arrays[f'link {k} {name}'] for name in messages.Link._fields] for k in range(count)]
      self.history = [messages.Link(int(number), cohort, came) for number, cohort, came in parts]
    except (OSError, ValueError, KeyError) as error:
      raise ValueError(
        f'The checkpoint in {self._folder} does not fit this run: {error}. Give the bundle that it was started with, '
        'or a new output, for which clients pay anew.'
      ) from None
    if self._is_announced(self.round_num):
      # It was announced, and its sum is lost: clients may have answered, and will not answer again.
      self.give_up()


def _named(link: messages.Link) -> list[tuple[str, Any]]:
  return list(link._asdict().items())


def _without_examples(bundle: player.Bundle, client: int) -> Any:
  """The data of a client that has none."""
  return simulation.client_data(bundle, client, {}, [client]) | {'examples': []}
