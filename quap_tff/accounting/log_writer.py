"""A gate whose rounds are written to a log. After a crash at any point, both say the same.

A round is charged, then its rows are written, then the gate's state, and only then may its sum leave the program. So
the log knows every round that the saved gate knows. Rows of a round that the saved gate does not know are removed when
the program goes on: nothing was released in that round.
"""

from collections.abc import Iterable, Sequence
import os
from typing import Optional, Union

import numpy as np

from quap_tff.accounting import gate as gates
from quap_tff.accounting import logs
from quap_tff.common import array_types
from quap_tff.mechanisms import mechanism


class LogWriter:
  """Commits rounds to a gate, and keeps its log and its state.

  Attributes:
    gate: The gate.
  """

  def __init__(self, gate: gates.Gate, log: str = 'log.csv', state: str = 'gate.state'):
    """Starts both files, or goes on with those that are there.

    Args:
      gate: A new `quap_tff.Gate`, or the one that `Gate.load(state)` gives.
      log: The log, for `python -m quap_tff.account`.
      state: The file of the gate.

    Raises:
      ValueError: If the files are there and not those of this gate, or one of them is missing.
      OSError: If they cannot be read or written.
    """
    self.gate, self._log, self._state = gate, log, state
    is_logged = os.path.lexists(log)
    if os.path.lexists(state):
      saved = type(gate).load(state)
      if (saved.rounds, saved.parameters) != (gate.rounds, gate.parameters):
        raise ValueError(
          f'{state} is of an earlier run, with {saved.rounds} committed rounds. This gate has {gate.rounds}, or other '
          f'parameters. To go on with that run, use the gate that quap_tff.Gate.load({state!r}) gives. For a new run, '
          'take a new folder.'
        )
    elif is_logged:
      raise ValueError(
        f'{log} is there without {state}: nothing shows which of its rounds were charged. Put {state} back, or take a '
        'new folder.'
      )
    if gate.rounds and not is_logged:
      raise ValueError(f'{log} is not there, but the gate has committed {gate.rounds} rounds. Put their log back.')
    if is_logged:
      self._remove_later_rounds()
    else:
      gate.save(state)
      self._append([logs.HEADER])

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
      ValueError: As `Gate.commit` does. Then nothing is charged or written.
      OSError: If a file cannot be written. Then do not release the sum.
    """
    charged = self.gate.commit(cohort, weights, released, reservation)
    record = mechanism.RoundRecord(np.asarray(cohort), None, charged, self.gate.noise_multiplier, released=released)
    self._append(logs.row_texts(self.gate.rounds, record))
    self.gate.save(self._state)

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
