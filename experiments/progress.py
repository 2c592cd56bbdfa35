"""How a run is watched: a bar on a terminal, lines in a log file. Both go to standard error."""

import math
import sys
import time
from typing import Any, List, Mapping, Optional, Sequence

import tqdm

# In a log file, a line at least this often (seconds) and otherwise at every tenth of the run.
_SECONDS_BETWEEN_LINES = 60
_BAR = 'round {n_fmt}/{total_fmt} |{bar}| {remaining} left{postfix}'
# Where the terminal does not tell its width; and the least width of the bar itself.
_COLUMNS, _LEAST_BAR = 80, 3


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
  """A tqdm bar on one row of the terminal: of a narrow one, the last of the round's figures are left out."""

  def __init__(self, first_round, last_round):
    super().__init__(first_round, last_round)
    self._accuracy = None
    self._bar = tqdm.tqdm(
        total=last_round, initial=first_round - 1, file=sys.stderr, dynamic_ncols=True, bar_format=_BAR
    )

  def update(self, round_num, row):
    self._accuracy = row.get('test_accuracy', self._accuracy)
    self._bar.set_postfix_str(self._fitting(_figures(row, self._accuracy)), refresh=False)
    self._bar.update(round_num - self._bar.n)

  def _fitting(self, figures: Sequence[str]) -> str:
    columns = self._bar.format_dict['ncols'] or _COLUMNS
    room = columns - len(f'round {self._last}/{self._last} || 0:00:00 left, ') - _LEAST_BAR
    while figures and len(' '.join(figures)) > room:
      figures = figures[:-1]
    return ' '.join(figures)

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
    figures = ' '.join(_figures(row, self._accuracy))
    print(f'round {round_num}/{self._last}  {figures}  {clock} left', file=sys.stderr, flush=True)

  def note(self, text):
    print(text, file=sys.stderr, flush=True)


def _figures(row: Mapping[str, Any], accuracy: Optional[float]) -> List[str]:
  """The round's figures in the papers' symbols, the most telling first; ε is the round's nominal budget."""
  tested = f'{accuracy:.1%}' if accuracy is not None else '-'

  def shown(name, form):
    # Methods and --noclient_metrics leave columns out.
    value = row.get(name, math.nan)
    return '-' if math.isnan(value) else format(value, form)

  return [
      f'loss={shown("train_loss", ".3f")}', f'test={tested}', f'ε={shown("epsilon", ".4f")}',
      f'C={shown("clipping_norm", ".3g")}', f'σ={shown("sigma", ".3g")}',
  ]
