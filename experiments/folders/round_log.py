"""The rows of a run's rounds: metrics.csv, and TensorBoard's files, which are made from them.

A round appends its row, so it costs the same however many rounds came before it. A process first writes the rows of
earlier processes anew: those that a killed run left behind its checkpoint, or in the middle of a line, go. The file is
also written anew when a row has a new column, such as that of the first test.
"""

from collections.abc import Iterable, Mapping, Sequence
import csv
import io
import itertools
import math
import os
import shutil
import time
from typing import Optional

from experiments.folders import folder as run_folder
from quap_tff.common import files
from quap_tff.common import json_types
from quap_tff.common.lazy import tf

_ROUND = 'round'


class RoundLog:
  """The log in a run's folder."""

  def __init__(self, folder: str, keeps_times: bool):
    """Reads and writes nothing yet.

    Args:
      folder: The run's folder.
      keeps_times: Whether TensorBoard's files are written, which hold the time of each round.
    """
    self._path, self._keeps_times = os.path.join(folder, run_folder.METRICS), keeps_times
    self._events_folder, self._events = os.path.join(folder, run_folder.TENSORBOARD), None
    self._columns: Optional[list[str]] = None

  def has_last_row(self, round_num: int) -> bool:
    """True if the row of a round is there. Writes nothing.

    Raises:
      RunDirectoryError: If a row of an earlier round is missing, or one that is there is damaged.
    """
    _, rows = self._read(round_num)
    rounds = [int(row[0]) for row in rows]
    if rounds not in (list(range(1, round_num + 1)), list(range(1, round_num))):
      raise self._damaged(round_num)
    return len(rounds) == round_num

  def append(self, round_num: int, row: json_types.JsonView) -> None:
    """Adds the row of a round. The first call of a process removes the rows of this and of later rounds."""
    if self._columns is None:
      self._columns = self._begin(round_num)
    self._add_event(round_num, row)
    row = {_ROUND: round_num, **row}
    new = [name for name in row if name not in self._columns]
    if new:
      _, rows = self._read(round_num - 1)
      self._columns = [*self._columns, *new]
      blank = [''] * len(new)
      files.write(self._path, _text([self._columns, *([*one, *blank] for one in rows)]))
    with open(self._path, 'a', newline='', encoding='utf-8') as f:
      f.write(_text([[row.get(name, '') for name in self._columns]]))

  def _begin(self, round_num: int) -> list[str]:
    columns, rows = self._read(round_num - 1)
    files.write(self._path, _text([columns, *rows]))
    if self._keeps_times:
      shutil.rmtree(self._events_folder, ignore_errors=True)
      os.makedirs(self._events_folder)
      name = f'events.out.tfevents.{int(time.time())}'
      # TFF's and TensorFlow's own writers make a tensor of each number, for a hundred times the cost.
      self._events = tf.io.TFRecordWriter(os.path.join(self._events_folder, name))
      self._add(tf.compat.v1.Event(file_version='brain.Event:2'))
      for row in rows:
        self._add_event(int(row[0]), {name: float(text or 'nan') for name, text in zip(columns[1:], row[1:])})
    return columns

  def _add_event(self, round_num: int, row: Mapping[str, float]) -> None:
    if self._events is not None:
      summary = tf.compat.v1.Summary()
      for name, value in row.items():
        if math.isfinite(value):
          summary.value.add(tag=name, simple_value=value)
      self._add(tf.compat.v1.Event(step=round_num, summary=summary))

  def _add(self, event: 'tf.compat.v1.Event') -> None:
    assert self._events is not None
    event.wall_time = time.time()
    self._events.write(event.SerializeToString())
    self._events.flush()

  def _read(self, last_round: int) -> tuple[list[str], list[list[str]]]:
    """The names of the columns and the rows of the rounds up to `last_round`, as text."""
    if last_round == 0 or (last_round == 1 and not os.path.exists(self._path)):
      return [_ROUND], []
    try:
      with open(self._path, newline='', encoding='utf-8') as f:
        text = f.read()
      # In the middle of a line, a later round's number looks like an earlier one's.
      columns, *rows = csv.reader(io.StringIO(text[: text.rfind('\n') + 1]))
      kept = [row for row in rows if int(row[0]) <= last_round]
      if columns[0] != _ROUND or any(len(row) != len(columns) for row in kept):
        raise ValueError
      for value in itertools.chain.from_iterable(kept):
        float(value or 'nan')
      return columns, kept
    except (OSError, ValueError, IndexError, csv.Error):
      raise self._damaged(last_round) from None

  def _damaged(self, round_num: int) -> run_folder.RunDirectoryError:
    return run_folder.RunDirectoryError(
      f'{self._path} is damaged: it must hold one row for each of the first {round_num} rounds, as numbers. Put it '
      'back, or give another folder to start anew.'
    )


def _text(rows: Iterable[Sequence[object]]) -> str:
  text = io.StringIO()
  csv.writer(text).writerows(rows)
  return text.getvalue()
