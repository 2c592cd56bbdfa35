"""How a run is watched: a bar on a terminal, lines in a log file. Both go to standard error."""

from collections.abc import Mapping, Sequence
import math
import sys
import time
from typing import Any, Optional

from quap_tff.common import lazy
from quap_tff.common import rounding

tqdm = lazy.module('tqdm')

# In a log file, a line at least this often (seconds) and otherwise at every tenth of the run.
_SECONDS_BETWEEN_LINES = 60
_BAR = 'round {n_fmt}/{total_fmt} |{bar}| {desc} left{postfix}'
# Where the terminal does not tell its width; and the least width of the bar itself.
_COLUMNS, _LEAST_BAR = 80, 3


def say(kind: str, text: str) -> None:
  """Shows a step before the first round: TensorFlow alone takes seconds. `kind` as in `make`."""
  if kind != 'none':
    print(text, file=sys.stderr, flush=True)


def make(kind: str, first_round: int, last_round: int) -> 'Progress':
  """The display for rounds first_round..last_round; `kind` is 'auto', 'bar', 'lines' or 'none'."""
  if kind == 'auto':
    kind = 'bar' if sys.stderr.isatty() else 'lines'
  return {'bar': Bar, 'lines': Lines, 'none': Progress}[kind](first_round, last_round)


class Progress:
  """Shows nothing."""

  def __init__(self, first_round: int, last_round: int):
    self._first, self._last = first_round, last_round

  def update(self, round_num: int, row: Mapping[str, Any]) -> None:
    """Called after each round with its metrics."""

  def note(self, text: str) -> None:
    """Shows a text between the rounds' figures."""

  def close(self) -> None:
    """Called once at the end."""


class _Shown(Progress):
  """Facts that both displays show: the latest test with its round, and the time that is left."""

  def __init__(self, first_round, last_round):
    super().__init__(first_round, last_round)
    self._accuracy, self._tested_round = None, None
    self._first_ended: Optional[float] = None

  def _left(self, round_num: int) -> Optional[str]:
    """The time left after a round, from the rounds after the first, which is longer: it traces and compiles."""
    now = time.monotonic()
    if self._first_ended is None:
      self._first_ended = now
    timed = round_num - self._first
    if not timed:
      return None
    return tqdm.tqdm.format_interval((now - self._first_ended) / timed * (self._last - round_num))

  def _figures(self, round_num: int, row: Mapping[str, Any]) -> list[str]:
    """The round's figures in the papers' symbols, the most telling first; ε is the round's nominal budget."""
    if 'test_accuracy' in row:
      self._accuracy, self._tested_round = row['test_accuracy'], round_num
    tested = '-' if self._accuracy is None else f'{self._accuracy:.1%}'
    if self._tested_round not in (None, round_num):
      tested += f'@{self._tested_round}'

    def shown(name, text):
      # Methods and --noclient_metrics leave columns out.
      value = row.get(name, math.nan)
      return '-' if math.isnan(value) else text(value)

    three = '{:.3g}'.format
    return [
      f'loss={shown("train_loss", "{:.3f}".format)}',
      f'test={tested}',
      f'ε={shown("epsilon", lambda value: rounding.up_fixed(value, 4))}',
      f'C={shown("clipping_norm", three)}',
      f'σ={shown("sigma", three)}',
    ]


class Bar(_Shown):
  """A tqdm bar on one row of the terminal: of a narrow one, the last of the round's figures are left out."""

  def __init__(self, first_round, last_round):
    super().__init__(first_round, last_round)
    self._bar = tqdm.tqdm(
      total=last_round, initial=first_round - 1, file=sys.stderr, dynamic_ncols=True, bar_format=_BAR, desc='?'
    )

  def update(self, round_num, row) -> None:
    self._bar.set_postfix_str(self._fitting(self._figures(round_num, row)), refresh=False)
    self._bar.set_description_str(self._left(round_num) or '?', refresh=False)
    self._bar.update(round_num - self._bar.n)

  def _fitting(self, figures: Sequence[str]) -> str:
    columns = self._bar.format_dict['ncols'] or _COLUMNS
    room = columns - len(f'round {self._last}/{self._last} || 0:00:00 left, ') - _LEAST_BAR
    while figures and len(' '.join(figures)) > room:
      figures = figures[:-1]
    return ' '.join(figures)

  def note(self, text) -> None:
    self._bar.write(text, file=sys.stderr)

  def close(self) -> None:
    self._bar.close()


class Lines(_Shown):
  """A line now and then."""

  def __init__(self, first_round, last_round):
    super().__init__(first_round, last_round)
    self._last_line = time.monotonic()

  def update(self, round_num, row) -> None:
    now = time.monotonic()
    figures, left = self._figures(round_num, row), self._left(round_num)
    is_tenth = round_num * 10 // self._last != (round_num - 1) * 10 // self._last
    if not is_tenth and round_num != self._first and now - self._last_line < _SECONDS_BETWEEN_LINES:
      return
    self._last_line = now
    parts = [f'round {round_num}/{self._last}', ' '.join(figures), *([f'{left} left'] if left else [])]
    print('  '.join(parts), file=sys.stderr, flush=True)

  def note(self, text) -> None:
    print(text, file=sys.stderr, flush=True)
