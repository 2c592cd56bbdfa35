"""How a run is watched: a bar on a terminal, lines in a log file. Both go to standard error."""

from collections.abc import Sequence
import math
import sys
import time
from typing import Callable, NamedTuple, Optional

import numpy as np

from quap_tff import plans
from quap_tff.common import json_types
from quap_tff.common import lazy
from quap_tff.common.numbers import rounding

tqdm = lazy.module('tqdm')

# In a log file, a line at least this often (seconds) and otherwise at every tenth of the run.
_SECONDS_BETWEEN_LINES = 60
_BAR = 'round {n_fmt}/{total_fmt} |{bar}| {desc} left{postfix}'
_NOISE = {'C': 'clipping_norm', 'σ': 'sigma'}
_MEANINGS = {
  'loss': 'training loss',
  'test': 'test accuracy (@ its round)',
  'ε': '',
  'C': 'clipping norm',
  'σ': 'standard deviation of the noise',
}
# Where the terminal does not tell its width; and the least width of the bar itself.
_COLUMNS, _LEAST_BAR = 80, 3


def say(kind: str, text: str) -> None:
  """Shows a step before the first round: TensorFlow alone takes seconds. `kind` as in `make`."""
  if kind != 'none':
    print(text, file=sys.stderr, flush=True)


class Epsilon(NamedTuple):
  """The ε that is shown.

  Attributes:
    meaning: What it is, for the legend.
    of: Its value after a round, from the round's metrics, in constant time.
  """

  meaning: str
  of: Callable[[json_types.JsonView], float]


def epsilon_of(plan: plans.Plan) -> Optional[Epsilon]:
  """The ε to show of a run: spent so far, of a certified one; or else the round's nominal one, if there is one."""
  if plan.secret is not None:
    return None  # Its account is of all planned rounds, and no part of it is said of fewer.
  if plan.mechanism.facts.is_certified:
    # A share of the limit on μ², in float32. Where clients have limits of their own, that of the largest is a bound.
    limit, before, slack = np.asarray(plan.guarantee.limit), np.asarray(plan.core.spent_before or 0.0), plan.slack

    def most_spent(row: json_types.JsonView) -> float:
      share = row['spent_max']
      if share:
        # The row has it in float32, which may have rounded it down.
        share = np.nextafter(np.float32(share), np.float32(2))
      mu_squared = np.max(np.where(limit > 0, before + share * limit, 0.0))
      return float(slack.of(math.sqrt(mu_squared), plan.delta))

    return Epsilon('no client has spent more so far', most_spent)
  return Epsilon("the round's nominal ε", lambda row: row['epsilon']) if plan.has_nominal else None


def short(value: float, decimals: int) -> str:
  """A loss with that many decimals. Of one above a million, three digits say all."""
  return f'{value:.{decimals}f}' if abs(value) < 1e6 else f'{value:.3g}'


def make(kind: str, first_round: int, last_round: int, epsilon: Optional[Epsilon] = None) -> 'Progress':
  """The display for rounds first_round..last_round; `kind` is 'auto', 'bar', 'lines' or 'none'."""
  if kind == 'auto':
    kind = 'bar' if sys.stderr.isatty() else 'lines'
  return {'bar': Bar, 'lines': Lines, 'none': Progress}[kind](first_round, last_round, epsilon)


class Progress:
  """Shows nothing."""

  def __init__(self, first_round: int, last_round: int, epsilon: Optional[Epsilon] = None):
    self._first, self._last, self._epsilon = first_round, last_round, epsilon

  def update(self, round_num: int, row: json_types.JsonView) -> None:
    """Called after each round with its metrics."""

  def note(self, text: str) -> None:
    """Shows a text between the rounds' figures."""

  def close(self) -> None:
    """Called once at the end."""


class _Shown(Progress):
  """Facts that both displays show: a legend, the latest test with its round, and the time that is left."""

  _accuracy: Optional[float] = None
  _tested_round: Optional[int] = None
  _first_ended: Optional[float] = None

  def _left(self, round_num: int) -> Optional[str]:
    """The time left after a round, from the rounds after the first, which is longer: it traces and compiles."""
    now = time.monotonic()
    if self._first_ended is None:
      self._first_ended = now
    timed = round_num - self._first
    if not timed:
      return None
    return tqdm.tqdm.format_interval((now - self._first_ended) / timed * (self._last - round_num))

  def _take(self, round_num: int, row: json_types.JsonView) -> None:
    """Keeps the test of a round, and shows the legend with the first one."""
    if 'test_accuracy' in row:
      self._accuracy, self._tested_round = row['test_accuracy'], round_num
    if round_num == self._first:
      meanings = {**_MEANINGS, 'ε': self._epsilon.meaning} if self._epsilon is not None else _MEANINGS
      shown = {'test', *self._figures(round_num, row)}
      self.note('; '.join(f'{symbol}: {meaning}' for symbol, meaning in meanings.items() if symbol in shown))

  def _figures(self, round_num: int, row: json_types.JsonView) -> dict[str, str]:
    """The round's figures by the papers' symbols, the most telling first. What the run does not log is left out."""
    figures = {}
    if 'train_loss' in row:
      # A round with nobody has none.
      figures['loss'] = '-' if math.isnan(row['train_loss']) else short(row['train_loss'], 3)
    if self._accuracy is not None:
      at = '' if self._tested_round == round_num else f'@{self._tested_round}'
      figures['test'] = f'{self._accuracy:.1%}{at}'
    if self._epsilon is not None:
      figures['ε'] = rounding.up_fixed(self._epsilon.of(row), 4)
    # Without clipping, or while no update has been finite, there is no clipping norm.
    for symbol, name in _NOISE.items():
      if name in row:
        figures[symbol] = f'{row[name]:.3g}' if math.isfinite(row[name]) else '-'
    return figures


class Bar(_Shown):
  """A tqdm bar on one row of the terminal: of a narrow one, the last of the round's figures are left out."""

  def __init__(self, first_round: int, last_round: int, epsilon: Optional[Epsilon] = None) -> None:
    super().__init__(first_round, last_round, epsilon)
    self._bar = tqdm.tqdm(
      total=last_round, initial=first_round - 1, file=sys.stderr, dynamic_ncols=True, bar_format=_BAR, desc='?'
    )

  def update(self, round_num: int, row: json_types.JsonView) -> None:
    self._take(round_num, row)
    figures = [f'{symbol}={text}' for symbol, text in self._figures(round_num, row).items()]
    self._bar.set_postfix_str(self._fitting(figures), refresh=False)
    self._bar.set_description_str(self._left(round_num) or '?', refresh=False)
    self._bar.update(round_num - self._bar.n)

  def _fitting(self, figures: Sequence[str]) -> str:
    columns = self._bar.format_dict['ncols'] or _COLUMNS
    room = columns - len(f'round {self._last}/{self._last} || 0:00:00 left, ') - _LEAST_BAR
    while figures and len(' '.join(figures)) > room:
      figures = figures[:-1]
    return ' '.join(figures)

  def note(self, text: str) -> None:
    self._bar.write(text, file=sys.stderr)

  def close(self) -> None:
    self._bar.close()


class Lines(_Shown):
  """A line now and then."""

  _last_line = 0.0

  def update(self, round_num: int, row: json_types.JsonView) -> None:
    now = time.monotonic()
    self._take(round_num, row)
    left = self._left(round_num)
    is_tenth = round_num * 10 // self._last != (round_num - 1) * 10 // self._last
    if not is_tenth and round_num != self._first and now - self._last_line < _SECONDS_BETWEEN_LINES:
      return
    self._last_line = now
    figures = ' '.join(f'{symbol}={text}' for symbol, text in self._figures(round_num, row).items())
    parts = [f'round {round_num}/{self._last}', figures, *([f'{left} left'] if left else [])]
    print('  '.join(parts), file=sys.stderr, flush=True)

  def note(self, text: str) -> None:
    print(text, file=sys.stderr, flush=True)
