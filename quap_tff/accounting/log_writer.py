"""A gate whose rounds are written to a log. After a crash at any point, both say the same.

A round is charged, then its rows are written, then the gate's state, and only then may its sum leave the program. So
the log knows every round that the saved gate knows. Rows of a round that the saved gate does not know are removed when
the program goes on: nothing was released in that round.

The state is a `quap_tff.common.durable` one: a second writer, an older copy and a removed file are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import os
from typing import Optional, Union

import numpy as np

from quap_tff.accounting import gate as gates
from quap_tff.accounting import logs
from quap_tff.common import array_types
from quap_tff.common import durable
from quap_tff.common import lazy
from quap_tff.mechanisms import mechanism

spents = lazy.module('quap_tff.accounting.spent')


class LogWriter:
  """Commits rounds to a gate, and keeps its log and its state. Nobody else can open them until `close`.

  Attributes:
    gate: The gate. Commit to it only by this object.
  """

  def __init__(self, gate: gates.Gate, log: str = 'log.csv', state: str = 'gate.state', counters: Optional[str] = None):
    """Starts both files, or goes on with those that are there.

    Args:
      gate: A new `quap_tff.Gate`, or the one that `Gate.load(state)` gives.
      log: The log, for `python -m quap_tff.account`.
      state: The file of the gate.
      counters: The folder of the counter that tells the latest state from an older copy, outside the folder of `state`.
        None: in the user's state folder, see `quap_tff.common.durable`.

    Raises:
      ValueError: If the files are there and not those of this gate, or one of them is missing, in use, or not the
        latest; or if another run counts from what this gate has spent, or from the file of its `spent`.
      OSError: If they cannot be read or written.
    """
    self.gate, self._log, self._state = gate, log, durable.StateFile(state, counters)
    try:
      self._check_is_of_the_gate(state)
      self._check_is_not_spent(counters)
      if os.path.lexists(log):
        self._remove_later_rounds()
      else:
        # After a crash between the two, a state without rounds makes its log anew. A log without a state is refused.
        self._state.write(gate.content)
        self._append([logs.HEADER])
    except BaseException:
      self.close()
      raise
    self._written = gate.rounds

  def __enter__(self) -> LogWriter:
    return self

  def __exit__(self, *_: object) -> None:
    self.close()

  def close(self) -> None:
    """Lets another writer go on with the files."""
    self._state.close()

  def _check_is_of_the_gate(self, state: str) -> None:
    gate, is_logged = self.gate, os.path.lexists(self._log)
    if self._state.content is not None:
      saved = type(gate).load(state)
      if (saved.digests, saved.parameters) != (gate.digests, gate.parameters):
        raise ValueError(
          f'{state} is of an earlier run, with {saved.rounds} committed rounds. This gate has {gate.rounds}, or other '
          f'rounds or parameters. To go on with that run, use the gate that quap_tff.Gate.load({state!r}) gives. For a '
          'new run, take a new folder.'
        )
    elif is_logged:
      raise ValueError(
        f'{self._log} is there without {state}: nothing shows which of its rounds were charged. Put {state} back, or '
        'take a new folder.'
      )
    if gate.rounds and not is_logged:
      raise ValueError(
        f'{self._log} is not there, but the gate has committed {gate.rounds} rounds. Put their log back.'
      )

  def _check_is_not_spent(self, counters: Optional[str]) -> None:
    """Claims what clients have spent before, and checks that nobody counts from what they have spent here."""
    heir = durable.heir_of(self._state.state_id, counters)
    if heir is not None:
      raise ValueError(
        f'{self._state.path}: {heir.place} counts from what was spent here, so nothing may be spent here any more. Go '
        'on with that run.'
      )
    if self.gate.spent_file is not None:
      own = durable.Heir(self._state.path, self._state.path)
      spents.claim(self.gate.spent_file, own, counters)

  def commit(
    self,
    cohort: array_types.Ids,
    weights: Union[float, np.ndarray, Sequence[float]] = 1.0,
    released: Optional[bool] = None,
    reservation: Optional[gates.Reservation] = None,
  ) -> None:
    """Charges the clients that came, by `Gate.commit`, and writes the round. Call it before the sum leaves the program.

    Args:
      cohort: int[M] distinct ids. A round may be empty.
      weights: float or float[M], as for the gate.
      released: As for the gate.
      reservation: As for the gate.

    Raises:
      ValueError: As `Gate.commit` does. Then nothing is charged or written. Or because an earlier round was charged and
        not written: this writer commits no more.
      OSError: If a file cannot be written. Then do not release the sum, and load the gate again.
    """
    if self.gate.rounds != self._written:
      self.close()
      raise ValueError(
        f'The gate has committed {self.gate.rounds} rounds, and {self._state.path} has {self._written}: one could not '
        'be written, or was not committed by this writer. Do not release its sum. Go on with '
        f'LogWriter(quap_tff.Gate.load({self._state.path!r})).'
      )
    self._state.check_open()
    charged = self.gate.commit(cohort, weights, released, reservation)
    record = mechanism.RoundRecord(np.asarray(cohort), None, charged, self.gate.noise_multiplier, released=released)
    try:
      # Rows that the state does not know are removed by the next writer. A state that knew more would be refused.
      self._append(logs.row_texts(self.gate.rounds, record))
      self._state.write(self.gate.content)
    except BaseException:
      self.close()  # For the writer that goes on from what was written.
      raise
    self._written = self.gate.rounds

  def _append(self, lines: Iterable[str]) -> None:
    with open(self._log, 'a', encoding='ascii', newline='') as f:
      f.writelines(lines)
      f.flush()
      os.fsync(f.fileno())

  def _remove_later_rounds(self) -> None:
    """Removes rows that the gate does not know, and half a row at the end."""
    end, number = 0, 0
    with open(self._log, 'r+b') as f:
      for index, line in enumerate(f):
        if not line.endswith(b'\n') or index and int(line.split(b',')[0]) > self.gate.rounds:
          break
        if not index and line != logs.HEADER.encode():
          raise ValueError(
            f'{self._log} does not begin with {logs.HEADER.strip()!r}: it is not the log of a LogWriter.'
          )
        end, number = end + len(line), int(line.split(b',')[0]) if index else 0
      if number != self.gate.rounds:
        raise ValueError(
          f'{self._log} ends with round {number}, but the gate has committed {self.gate.rounds}. Put the whole log '
          'back.'
        )
      f.truncate(end)
    if not end:  # A crash left half a header.
      self._append([logs.HEADER])
