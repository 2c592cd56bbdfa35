"""How a run is watched: a bar on a terminal, lines in a log file. Both go to standard error."""

import math
import sys
import time
from typing import Any, Mapping, Optional

import tqdm

# In a log file, a line at least this often (seconds) and otherwise at every tenth of the run.
_SECONDS_BETWEEN_LINES = 60


def make(kind: str, first_round: int, last_round: int) -> 'Progress':
  """The display for rounds first_round..last_round; `kind` is 'auto', 'bar', 'lines' or 'none'."""
  if kind == 'auto':
    kind = 'bar' if sys.stderr.isatty() else 'lines'
  return {'bar': Bar, 'lines': Lines, 'none': Progress}[kind](first_round, last_round)


class Progress:
  """Shows nothing."""

  def __init__(self, first_round: int, last_round: int):
    self._first, self._last = first_round, last_round

  def update(self, round_num: int, row: Mapping[str, Any]):
    """Called after each round with its metrics."""

  def note(self, text: str):
    """Says something beside the rounds' figures."""

  def close(self):
    """Called once at the end."""


class Bar(Progress):
  """A tqdm bar."""

  def __init__(self, first_round, last_round):
    super().__init__(first_round, last_round)
    self._accuracy = None
    self._bar = tqdm.tqdm(
        total=last_round, initial=first_round - 1, desc='round', file=sys.stderr, dynamic_ncols=True, unit='round'
    )

  def update(self, round_num, row):
    self._accuracy = row.get('test_accuracy', self._accuracy)
    self._bar.set_postfix_str(_figures(row, self._accuracy), refresh=False)
    self._bar.update(round_num - self._bar.n)

  def note(self, text):
    self._bar.write(text, file=sys.stderr)

  def close(self):
    self._bar.close()


class Lines(Progress):
  """A line now and then."""

  def __init__(self, first_round, last_round):
    super().__init__(first_round, last_round)
    self._begin = self._last_line = time.monotonic()
    self._accuracy = None

  def update(self, round_num, row):
    now = time.monotonic()
    self._accuracy = row.get('test_accuracy', self._accuracy)
    is_tenth = round_num * 10 // self._last != (round_num - 1) * 10 // self._last
    if not is_tenth and round_num != self._first and now - self._last_line < _SECONDS_BETWEEN_LINES:
      return
    self._last_line = now
    left = (now - self._begin) / (round_num - self._first + 1) * (self._last - round_num)
    clock = tqdm.tqdm.format_interval(left)
    print(f'round {round_num}/{self._last}  {_figures(row, self._accuracy)}  {clock} left', file=sys.stderr, flush=True)

  def note(self, text):
    print(text, file=sys.stderr, flush=True)


def _figures(row: Mapping[str, Any], accuracy: Optional[float]) -> str:
  tested = f'{accuracy:.1%}' if accuracy is not None else '-'

  def shown(name, form):
    # Methods and --noclient_metrics leave columns out.
    value = row.get(name, math.nan)
    return '-' if math.isnan(value) else format(value, form)

  # The round's figures in the papers' symbols; ε is the round's nominal budget.
  return (
      f'loss={shown("train_loss", ".3f")} test={tested} ε={shown("epsilon", ".4f")} '
      f'C={shown("clipping_norm", ".3g")} σ={shown("sigma", ".3g")}'
  )
