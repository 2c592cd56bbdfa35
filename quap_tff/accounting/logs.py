"""A log of who took part in which round, and what each client has spent. It needs memory for the clients, not the rows.

    round,client,weight
    1,alice,1
    1,bob,0.5
    2,alice,1

A client is any text. `weight` may be left out, and other columns are not read. Rounds are numbered from 0 or 1, without
a gap, in their order: they are the rounds that released a noised sum. A round that released nothing has no number. A
file whose name ends in .gz is gzipped.
"""

import collections
from collections.abc import Iterator, Sequence
import contextlib
import csv
import gzip
import itertools
from typing import Any, NamedTuple, NoReturn, Optional
import zlib

import numpy as np

from quap_tff.common import checks
from quap_tff.mechanisms.certified import privacy_filter
from quap_tff.mechanisms.noise import correlation as correlations

# Rows that are read at once. More take longer, because memory is slower than a processor's caches.
_CHUNK = 2**10
# A budget that limits nobody.
_NO_LIMIT = 1e30
_DIGITS = 18


class LogError(ValueError):
  """A log that cannot be read. The message names the line."""


class Round(NamedTuple):
  """A round of a log.

  Attributes:
    ids: int64[M], the places of its clients in `Log.names`.
    weights: float64[M] in [0, 1].
  """

  ids: np.ndarray
  weights: np.ndarray


class Log:
  """A log in a CSV file.

  Attributes:
    path: The file.
    names: The clients that were read so far, in the order in which they came first.
  """

  def __init__(self, path: str):
    self.path = path
    self._index: dict[str, int] = {}

  @property
  def names(self) -> Sequence[str]:
    return list(self._index)

  @property
  def num_clients(self) -> int:
    """How many clients were read so far."""
    return len(self._index)

  def rounds(self) -> Iterator[Round]:
    """The rounds, from the first line on; each call reads the file anew.

    Raises:
      LogError: For a row that is none, a gap between rounds, a client twice in a round, or a file without rows.
      OSError: If the file cannot be read.
    """
    self._index = collections.defaultdict(itertools.count().__next__)
    number: Optional[int] = None
    parts: list[Round] = []
    row = 0
    for texts, clients, weights in self._blocks():
      starts = np.flatnonzero(texts[1:] != texts[:-1]) + 1
      for begin, end in zip([0, *starts.tolist()], [*starts.tolist(), len(texts)]):
        own = self._number(texts[begin], row + begin)
        if own != number:
          if number is not None:
            yield self._round(parts, row + begin)
          self._check_follows(number, own, row + begin)
          number, parts = own, []
        parts.append(Round(clients[begin:end], weights[begin:end]))
      row += len(texts)
    if number is None:
      raise LogError(f'{self.path} has no rows. It must have one row for each client in each round.')
    yield self._round(parts, row)

  def _blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Blocks of rows: the texts of rounds, the places of clients, and weights."""
    with self._opened() as (_, rows):
      header, row = next(rows, []), 0
      columns = {name.strip().lower(): place for place, name in enumerate(header)}
      if not {'round', 'client'} <= columns.keys():
        raise LogError(
          f'{self.path}, line 1: the header must name the columns round and client, and weight if there are weights, '
          f'found {",".join(header)[:200]!r}.'
        )
      while block := list(itertools.islice(rows, _CHUNK)):
        if set(map(len, block)) != {len(header)}:
          wrong = next(index for index, one in enumerate(block) if len(one) != len(header))
          self._fail(row + wrong, f'it must have {len(header)} cells as the header has, found {len(block[wrong])}.')
        cells = list(zip(*block))
        numbers, names, weights = cells[columns['round']], cells[columns['client']], np.ones(len(block))
        if max(map(len, numbers)) > _DIGITS:
          longest = max(numbers, key=len)
          self._number(longest, row + numbers.index(longest))
        clients = np.fromiter(map(self._index.__getitem__, names), np.int64, len(block))
        if '' in self._index:
          self._fail(row + names.index(''), 'it names no client. Leave out rounds to which nobody came.')
        if 'weight' in columns:
          weights = np.array(list(map(_weight, cells[columns['weight']])))
          if not (weights >= 0).all():  # NaN is not.
            wrong = int(np.argmin(weights >= 0))
            found = cells[columns['weight']][wrong]
            self._fail(row + wrong, f'a weight must be a number from 0 to 1, found {found!r}.')
        yield np.array(numbers), clients, weights
        row += len(block)

  def _number(self, text: Any, row: int) -> int:
    try:
      return checks.integer('round', checks.parsed_number(str(text), int), at_least=0, at_most=10**_DIGITS)
    except ValueError:
      self._fail(row, f'a round must be a number such as 1, found {str(text)[:100]!r}.')

  def _check_follows(self, before: Optional[int], number: int, row: int) -> None:
    if before is None and number > 1:
      self._fail(row, f'the first round must have the number 0 or 1, found {number}. Give the log from its beginning.')
    if before is not None and number != before + 1:
      self._fail(
        row,
        f'round {before + 1} must follow round {before}, found round {number}. Sort the rows by round, and number the '
        'rounds that released a sum without a gap.',
      )

  def _round(self, parts: Sequence[Round], end: int) -> Round:
    ids, weights = (np.concatenate(one) for one in zip(*parts)) if len(parts) > 1 else parts[0]
    ordered = np.sort(ids)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
      self._fail(
        end - len(ids) + int(np.flatnonzero(ids == twice[0])[1]),
        f'client {self.names[twice[0]]!r} is in this round already. A client can be in a round only once.',
      )
    return Round(ids, weights)

  def _fail(self, row: int, problem: str) -> NoReturn:
    """Raises the error of a row, counted from 0. Its line is found by reading the file again."""
    with self._opened() as (reader, rows):
      collections.deque(itertools.islice(rows, int(row) + 2), 0)
      raise LogError(f'{self.path}, line {reader.line_num}: {problem}')

  @contextlib.contextmanager
  def _opened(self) -> Iterator[tuple[Any, Iterator[list[str]]]]:
    """A reader of the file, and its rows with the header, but without empty lines."""
    opened: Any = gzip.open if self.path.endswith('.gz') else open
    with opened(self.path, 'rt', newline='', encoding='utf-8-sig') as f:
      reader = csv.reader(f, strict=True)
      try:
        yield reader, filter(None, reader)
      except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise LogError(f'{self.path} is not a whole gzip file ({error}).') from None
      except (csv.Error, UnicodeDecodeError) as error:
        raise LogError(f'{self.path}, line {reader.line_num}: it is not a CSV file in UTF-8 ({error}).') from None


def _weight(text: str) -> float:
  """A number in [0, 1], or NaN."""
  try:
    found = float(text)
  except ValueError:
    return np.nan
  return found if 0 <= found <= 1 else np.nan


class LogAccount(NamedTuple):
  """What the clients of a log have spent.

  Attributes:
    names: The N clients.
    mu_squared: float64[N], μ_i² of all releases, rounded up.
    counts: int64[N], in how many rounds each client had a weight.
    num_rounds: T, the rounds in the log.
    is_whole: Whether all weights are 1.
  """

  names: Sequence[str]
  mu_squared: np.ndarray
  counts: np.ndarray
  num_rounds: int
  is_whole: bool


def account(
  log: Log,
  noise_multiplier: float,
  correlation: correlations.Correlation = correlations.Independent(),
  num_rounds: Optional[float] = None,
) -> LogAccount:
  """The account of each client, by the filter of certified runs; no bound is enforced.

  Args:
    log: The log.
    noise_multiplier: z of each round.
    correlation: Of the noise, with all its numbers.
    num_rounds: The planned rounds, +inf for any number. Under correlated noise a client is charged for what they still
      show of it. None: those of the log.

  Raises:
    LogError: If the log cannot be read, or has more rounds than are planned.
  """
  checks.number('noise_multiplier', noise_multiplier, above=0)
  planned = num_rounds
  if correlation.num_buffers and planned is None:
    planned = sum(1 for _ in log.rounds())
  prices = privacy_filter.Prices(_NO_LIMIT, float(noise_multiplier), 0.0, correlation)
  accounts, counts = privacy_filter.opened(0, correlation.num_buffers), np.zeros(0, np.int64)
  number, is_whole = 0, True
  for number, (ids, weights) in enumerate(log.rounds(), 1):
    if planned is not None and number > planned:
      raise LogError(f'{log.path} has more than {planned} rounds, which are planned. Plan as many as there are.')
    if log.num_clients > len(counts):
      grown = privacy_filter.opened(max(2 * len(counts), log.num_clients, 1024), correlation.num_buffers)
      privacy_filter.put(grown, slice(len(counts)), accounts)
      accounts, counts = grown, np.pad(counts, (0, len(grown.latest) - len(counts)))
    own = privacy_filter.accounts_of(accounts, ids)
    left = np.inf if planned is None else planned - number
    privacy_filter.put(accounts, ids, privacy_filter.charged(prices, own, np.int64(number - 1), left, weights))
    counts[ids] += weights > 0
    is_whole = is_whole and bool((weights == 1).all())
  clients = slice(log.num_clients)
  return LogAccount(log.names, accounts.spent[clients], counts[clients], number, is_whole)
